//! Bounded two-way copy with half-close. One chunk a direction is in flight; an idle connection holds no buffer.

use bytes::{Bytes, BytesMut};
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::net::TcpStream;

/// The most bytes one direction holds.
pub const CHUNK: usize = 64 * 1024;

/// A source of bytes.
pub trait ChunkRead {
    /// The next chunk; `None` at the end of the stream.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>>;
}

/// A sink of bytes.
pub trait ChunkWrite {
    /// Takes bytes from the front of `chunk` until it is empty.
    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>>;
    /// Passes the end of the stream on; the other direction stays open.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Ends the stream as failed, so that the far end does not take what it has for the whole.
    fn abort(&mut self);
}

/// Bytes moved so far, readable while the relay runs.
#[derive(Default)]
pub struct Moved {
    /// From the first end to the second.
    pub forward: AtomicU64,
    /// From the second end to the first.
    pub back: AtomicU64,
}

/// Which end failed.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Reading from or writing to the first end.
    #[error("the connection to the client failed")]
    First(#[source] io::Error),
    /// Reading from or writing to the second end.
    #[error("the connection to the server failed")]
    Second(#[source] io::Error),
}

/// Copies both ways until both directions have ended. On an error both sinks are aborted.
pub async fn relay<A, AW, B, BW>(first: (A, AW), second: (B, BW), moved: &Moved) -> Result<(), RelayError>
where
    A: ChunkRead,
    AW: ChunkWrite,
    B: ChunkRead,
    BW: ChunkWrite,
{
    let ((mut a, mut aw), (mut b, mut bw)) = (first, second);
    let end = tokio::try_join!(
        async {
            copy(&mut a, &mut bw, &moved.forward).await.map_err(|e| e.name(RelayError::First, RelayError::Second))
        },
        async { copy(&mut b, &mut aw, &moved.back).await.map_err(|e| e.name(RelayError::Second, RelayError::First)) },
    );
    if end.is_err() {
        aw.abort();
        bw.abort();
    }
    end.map(drop)
}

enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

impl CopyError {
    fn name(self, read: fn(io::Error) -> RelayError, write: fn(io::Error) -> RelayError) -> RelayError {
        match self {
            Self::Read(error) => read(error),
            Self::Write(error) => write(error),
        }
    }
}

async fn copy<R: ChunkRead, W: ChunkWrite>(from: &mut R, to: &mut W, count: &AtomicU64) -> Result<(), CopyError> {
    while let Some(mut chunk) = poll_fn(|cx| from.poll_chunk(cx)).await.map_err(CopyError::Read)? {
        let length = chunk.len() as u64;
        poll_fn(|cx| to.poll_write_chunk(cx, &mut chunk)).await.map_err(CopyError::Write)?;
        count.fetch_add(length, Ordering::Relaxed);
    }
    poll_fn(|cx| to.poll_finish(cx)).await.map_err(CopyError::Write)
}

/// The reading half of a TCP connection.
pub struct TcpRead {
    stream: Arc<TcpStream>,
    buffer: BytesMut,
    capacity: usize,
}

/// The writing half of a TCP connection. Dropped before its end was passed on, it resets the connection.
pub struct TcpWrite {
    stream: Arc<TcpStream>,
    finished: bool,
}

/// Splits a TCP connection for [`relay`].
pub fn tcp(stream: TcpStream) -> (TcpRead, TcpWrite) {
    let stream = Arc::new(stream);
    let read = TcpRead { stream: stream.clone(), buffer: BytesMut::new(), capacity: CHUNK / 8 };
    (read, TcpWrite { stream, finished: false })
}

impl ChunkRead for TcpRead {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            self.buffer.reserve(self.capacity);
            match self.stream.try_read_buf(&mut self.buffer) {
                Ok(0) => return Poll::Ready(Ok(None)),
                Ok(count) => {
                    // A reader that fills its buffer earns a larger one, one that does not gives it back.
                    self.capacity = if count >= self.capacity { CHUNK } else { self.capacity.max(count) };
                    let chunk = self.buffer.split().freeze();
                    if self.buffer.capacity() < self.capacity / 2 || count < self.capacity / 8 {
                        self.buffer = BytesMut::new();
                    }
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.buffer = BytesMut::new();
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl ChunkWrite for TcpWrite {
    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        while !chunk.is_empty() {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(chunk) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => drop(chunk.split_to(written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finished = true;
        match socket2::SockRef::from(&*self.stream).shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            end => Poll::Ready(end),
        }
    }

    fn abort(&mut self) {
        self.finished = false;
    }
}

impl Drop for TcpWrite {
    fn drop(&mut self) {
        if !self.finished {
            reset_on_close(&self.stream);
        }
    }
}

/// Makes the close of `stream` a reset, so that its peer cannot take a failure for an orderly end.
pub fn reset_on_close(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!("a reset could not be prepared: {error}");
    }
}

#[cfg(test)]
mod tests;
