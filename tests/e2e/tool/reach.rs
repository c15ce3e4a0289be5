//! Who reaches whom: listeners that greet, and a client that tries many at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// How long an answer may take; a packet that is dropped costs this much.
const PATIENCE: Duration = Duration::from_millis(700);

/// Greets on each port, over TCP and UDP, until it is killed.
pub fn listen(ports: &[&str]) {
    for port in ports {
        let udp = UdpSocket::bind(format!("0.0.0.0:{port}")).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(b"hello", from);
            }
        });
        let tcp = TcpListener::bind(format!("0.0.0.0:{port}")).unwrap();
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let _ = stream.write_all(b"hello");
            }
        });
    }
    loop {
        std::thread::park();
    }
}

/// Says of each `address:port/protocol` whether it greets.
pub fn reach(targets: &[&str]) {
    let tries: Vec<_> = targets
        .iter()
        .map(|target| {
            let (address, protocol) = target.split_once('/').unwrap();
            let (address, udp): (SocketAddr, bool) = (address.parse().unwrap(), protocol == "udp");
            let tried = std::thread::spawn(move || if udp { by_udp(address) } else { by_tcp(address) });
            (target, tried)
        })
        .collect();
    for (target, tried) in tries {
        println!("{target} {}", if tried.join().unwrap() { "yes" } else { "no" });
    }
}

fn by_tcp(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 5]).is_ok()
}

fn by_udp(address: SocketAddr) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"hello", address).is_ok() && socket.recv(&mut [0; 8]).is_ok()
}
