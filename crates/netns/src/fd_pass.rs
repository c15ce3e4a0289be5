//! Messages with descriptors over unix sockets (SCM_RIGHTS), with bounded sizes.

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A connected unix socket that keeps message boundaries (SOCK_SEQPACKET).
pub struct Seqpacket(AsyncFd<OwnedFd>);

/// A listening one.
pub struct SeqpacketListener(AsyncFd<OwnedFd>);

fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

impl SeqpacketListener {
    /// Listens at `path`, replacing what an earlier process left there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let fd = open()?;
        bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&fd, Backlog::new(16)?)?;
        Ok(Self(watched(fd)?))
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Seqpacket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let accept = |fd: &OwnedFd| accept4(fd, flags).map_err(io::Error::from);
        Ok(Seqpacket(watched(self.0.async_io(Interest::READABLE, accept).await?)?))
    }
}

impl Seqpacket {
    /// Connects to a listener at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = open()?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self(watched(fd)?))
    }

    /// Sends one message, with at most one descriptor.
    pub async fn send(&self, message: &[u8], descriptor: Option<RawFd>) -> io::Result<()> {
        let send = |fd: &OwnedFd| send_with(fd.as_raw_fd(), message, descriptor.as_slice());
        let sent = self.0.async_io(Interest::WRITABLE, send).await?;
        if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// The next message into `buffer`: its length (0 at the end) and the descriptors it came with. A message longer than the
    /// buffer is an error.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.0.async_io(Interest::READABLE, |fd| recv_with(fd.as_raw_fd(), buffer)).await
    }
}

/// Sends bytes with descriptors on any unix socket.
pub fn send_with(socket: RawFd, message: &[u8], descriptors: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control: &[ControlMessage<'_>] = if descriptors.is_empty() { &[] } else { &rights };
    Ok(sendmsg::<()>(socket, &[IoSlice::new(message)], control, MsgFlags::MSG_NOSIGNAL, None)?)
}

/// Receives bytes and at most three descriptors from any unix socket.
pub fn recv_with(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket, &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            received.extend(raw.into_iter().map(own));
        }
    }
    if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was longer than allowed"));
    }
    Ok((message.bytes, received))
}

#[allow(unsafe_code)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names one open descriptor until it is dropped, and the AsyncFd owns it.
    let registered = unsafe { AsyncFd::register(fd) };
    registered.map_err(|e| io::Error::other(e.to_string()))
}

#[allow(unsafe_code)]
fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us (SCM_RIGHTS), and nothing else knows of it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn a_descriptor_travels_with_its_message_and_long_messages_are_refused() {
        let path = std::env::temp_dir().join(format!("trysail-seq-{}", std::process::id()));
        let listener = SeqpacketListener::bind(&path).unwrap();
        let near = Seqpacket::connect(&path).unwrap();
        let far = listener.accept().await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        near.send(b"here", Some(file.as_fd().as_raw_fd())).await.unwrap();
        let mut buffer = [0; 8];
        let (length, descriptors) = far.recv(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (b"here".as_slice(), 1));
        near.send(&[0; 9], None).await.unwrap();
        assert!(far.recv(&mut buffer).await.is_err());
        drop(near);
        assert_eq!(far.recv(&mut buffer).await.unwrap().0, 0);
    }
}
