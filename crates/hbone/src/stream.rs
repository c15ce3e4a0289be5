//! One tunnelled connection as a byte stream.

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use trysail_base::relay::{ChunkRead, ChunkWrite};

/// The receiving half.
pub struct TunnelRead {
    stream: RecvStream,
    /// Bytes handed out and not yet known to be written on: the window is given back for them at the next read.
    held: usize,
}

/// The sending half. Dropped before its end was passed on, it resets the stream.
pub struct TunnelWrite {
    stream: SendStream<Bytes>,
    finished: bool,
}

pub(crate) fn halves(read: RecvStream, write: SendStream<Bytes>) -> (TunnelRead, TunnelWrite) {
    (TunnelRead { stream: read, held: 0 }, TunnelWrite { stream: write, finished: false })
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    } else if error.is_reset() {
        io::Error::new(io::ErrorKind::ConnectionReset, error)
    } else {
        io::Error::other(error)
    }
}

impl ChunkRead for TunnelRead {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.held > 0 {
            let held = std::mem::take(&mut self.held);
            self.stream.flow_control().release_capacity(held).map_err(io_error)?;
        }
        loop {
            match ready!(self.stream.poll_data(cx)) {
                None => return Poll::Ready(Ok(None)),
                Some(Ok(chunk)) if chunk.is_empty() => {
                    if self.stream.is_end_stream() {
                        return Poll::Ready(Ok(None));
                    }
                }
                Some(Ok(chunk)) => {
                    self.held = chunk.len();
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(Ok(None)),
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            }
        }
    }
}

impl ChunkWrite for TunnelWrite {
    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        while !chunk.is_empty() {
            self.stream.reserve_capacity(chunk.len());
            let room = match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(0)) => continue,
                Some(Ok(room)) => room,
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            let part = chunk.split_to(room.min(chunk.len()));
            self.stream.send_data(part, false).map_err(io_error)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finished = true;
        Poll::Ready(self.stream.send_data(Bytes::new(), true).map_err(io_error))
    }

    fn abort(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
        self.finished = true;
    }
}

impl Drop for TunnelWrite {
    fn drop(&mut self) {
        if !self.finished {
            self.stream.send_reset(Reason::CANCEL);
        }
    }
}

/// Both halves as one stream, for what reads and writes bytes.
pub struct TunnelIo {
    read: TunnelRead,
    write: TunnelWrite,
    rest: Bytes,
    ended: bool,
}

impl TunnelIo {
    /// Joins the halves.
    pub fn new(read: TunnelRead, write: TunnelWrite) -> Self {
        Self { read, write, rest: Bytes::new(), ended: false }
    }
}

impl AsyncRead for TunnelIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            match ready!(this.read.poll_chunk(cx))? {
                Some(chunk) => this.rest = chunk,
                None => this.ended = true,
            }
        }
        let part = this.rest.split_to(this.rest.len().min(buf.remaining()));
        buf.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = &mut self.get_mut().write.stream;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        stream.reserve_capacity(buf.len());
        loop {
            let room = match ready!(stream.poll_capacity(cx)) {
                Some(Ok(0)) => continue,
                Some(Ok(room)) => room.min(buf.len()),
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
            let part = Bytes::copy_from_slice(buf.get(..room).unwrap_or_default());
            stream.send_data(part, false).map_err(io_error)?;
            return Poll::Ready(Ok(room));
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let write = &mut self.get_mut().write;
        if write.finished { Poll::Ready(Ok(())) } else { write.poll_finish(cx) }
    }
}
