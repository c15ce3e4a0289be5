//! Packet capture on all links of a namespace (AF_PACKET).

use crate::ns::NetNs;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike, bind, socket};
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// An open capture: every frame on every link of the namespace, both ways. A frame that is bridged is seen at both ports; a bridge's own
/// device would show only what is addressed to itself.
pub struct Capture(socket2::Socket);

impl Capture {
    /// Opens a capture inside `ns`.
    pub fn open(ns: &NetNs) -> io::Result<Self> {
        ns.run(open).map_err(io::Error::other)?
    }

    /// The next frame into `buffer`; `None` when none came within the time limit.
    pub fn next(&mut self, buffer: &mut [u8], limit: Duration) -> io::Result<Option<usize>> {
        use std::io::Read;
        self.0.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        match self.0.read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn open() -> io::Result<Capture> {
    let fd: OwnedFd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
    bind(fd.as_raw_fd(), &all_links()?)?;
    let socket = socket2::Socket::from(fd);
    socket.set_recv_buffer_size(8 << 20)?;
    Ok(Capture(socket))
}

#[allow(unsafe_code)]
fn all_links() -> io::Result<LinkAddr> {
    let raw = nix::libc::sockaddr_ll {
        sll_family: nix::libc::AF_PACKET as u16,
        sll_protocol: (nix::libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&raw).try_into().map_err(io::Error::other)?;
    // SAFETY: the pointer is to a whole, initialised sockaddr_ll of the length given, and is only read during the call.
    unsafe { LinkAddr::from_raw((&raw const raw).cast(), Some(length)) }.ok_or_else(|| io::Error::other("no such link"))
}
