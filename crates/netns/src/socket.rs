//! TCP sockets as a proxy needs them: inside another namespace, marked, with a foreign source address.

use crate::ns::{NetNs, NsError};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdp};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The mark of a proxy's own packets, which capture rules leave alone.
pub const PROXY_MARK: u32 = 0x539;

/// Makes sockets in a pod's namespace from a process that lives elsewhere.
#[derive(Clone)]
pub struct Sockets {
    /// The pod's namespace and the process's own; none: sockets are made where the process is.
    elsewhere: Option<(NetNs, NetNs)>,
    marked: bool,
}

fn flat(result: Result<io::Result<Socket>, NsError>) -> io::Result<Socket> {
    result.map_err(io::Error::other)?
}

impl Sockets {
    /// For the namespace `pod`; the calling thread's is home.
    pub fn new(pod: NetNs) -> Result<Self, NsError> {
        Ok(Self { elsewhere: Some((pod, NetNs::current()?)), marked: true })
    }

    fn make(&self, address: SocketAddr) -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        let new = || Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP));
        let socket = match &self.elsewhere {
            Some((pod, home)) => flat(pod.within(home, new))?,
            None => new()?,
        };
        if self.marked {
            socket.set_mark(PROXY_MARK)?;
        }
        Ok(socket)
    }

    /// For the process's own namespace; `marked`, so that capture rules in it leave them alone, which takes the privilege to mark.
    pub fn own(marked: bool) -> Self {
        Self { elsewhere: None, marked }
    }

    /// A listener inside the namespace. Several processes may share the port, so that one can take over from another.
    pub fn listen(&self, address: SocketAddr, transparent: bool) -> io::Result<TcpListener> {
        let socket = self.make(address)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        if transparent && address.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        TcpListener::from_std(StdListener::from(socket))
    }

    /// Connects from inside the namespace; with `source`, from that address, which need not be local.
    pub async fn connect(&self, to: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
        let socket = self.make(to)?;
        if let Some(source) = source {
            match source {
                // Every address of the loopback block is local already.
                source if source.is_loopback() => {}
                IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
                IpAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
            }
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        let stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        prepare(&stream)?;
        Ok(stream)
    }
}

/// Options of every proxied connection: no delay for small writes, and keepalive, so that a vanished peer is noticed.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(180)).with_interval(Duration::from_secs(180)).with_retries(9);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Where a redirected connection was going before it was captured.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let v4 = stream.local_addr()?.is_ipv4();
    let address = if v4 { socket.original_dst_v4() } else { socket.original_dst_v6() }?;
    address.as_socket().ok_or_else(|| io::Error::other("the original destination is no IP address"))
}

/// A UDP socket and a TCP listener on one address inside `ns`.
pub fn datagram_and_listener(ns: &NetNs, address: SocketAddr) -> io::Result<(StdUdp, StdListener)> {
    ns.run(move || {
        let udp = StdUdp::bind(address)?;
        let tcp = StdListener::bind(address)?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok((udp, tcp))
    })
    .map_err(io::Error::other)?
}

/// A plain connection from inside `ns`.
pub async fn connect_in(ns: &NetNs, to: SocketAddr) -> io::Result<TcpStream> {
    let domain = Domain::for_address(to);
    let made = ns.run(move || Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP)));
    TcpSocket::from_std_stream(flat(made)?.into()).connect(to).await
}
