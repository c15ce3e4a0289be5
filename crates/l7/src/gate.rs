//! Stands before the HTTP/1 parser of a connection: passes on what [`crate::framing`] has judged and nothing else. A message that is
//! refused is replaced by one that asks for its refusal, so that the answer takes its turn behind those that came before.

use crate::framing::{Framer, Violation};
use bytes::{Buf, BytesMut};
use futures_util::task::AtomicWaker;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

/// What is read at a time.
const READ: usize = 16 << 10;
/// Stands for a message that was refused.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// Neither a chunk's size, nor its end, nor a trailer.
const NO_CHUNK: &[u8] = b"\0\r\n\r\n";

const UNDECIDED: u8 = 0;
const STAYS: u8 = 1;
const CHANGES: u8 = 2;

/// Shared by the gate and by whoever answers the connection's requests.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// The number of the refused request on the connection, 1-based; 0: none.
    refused: AtomicU64,
    why: AtomicU8,
    upgrade: AtomicU8,
    waker: AtomicWaker,
    served: AtomicU64,
}

const ALL: [Violation; 11] = [
    Violation::HeadTooLarge,
    Violation::LineEnd,
    Violation::RequestLine,
    Violation::Field,
    Violation::Host,
    Violation::ContentLength,
    Violation::TransferEncoding,
    Violation::Both,
    Violation::Chunk,
    Violation::Trailer,
    Violation::Connect,
];

impl Verdicts {
    fn refuse(&self, number: u64, why: Violation) {
        let index = ALL.iter().position(|v| *v == why).unwrap_or(0);
        self.why.store(u8::try_from(index).unwrap_or(0), Ordering::Release);
        self.refused.store(number, Ordering::Release);
    }

    /// To be asked once for each request, in order: whether it stands for one that was refused, and why.
    pub fn next_request(&self) -> Option<Violation> {
        let number = self.served.fetch_add(1, Ordering::AcqRel) + 1;
        let refused = self.refused.load(Ordering::Acquire) == number;
        refused.then(|| ALL.get(usize::from(self.why.load(Ordering::Acquire))).copied()).flatten()
    }

    /// To be said of each request that asked for an upgrade, when its answer is known.
    pub fn upgraded(&self, changes: bool) {
        self.upgrade.store(if changes { CHANGES } else { STAYS }, Ordering::Release);
        self.waker.wake();
    }
}

/// A stream whose reading side is judged.
pub struct Gate<T> {
    inner: T,
    framer: Framer,
    input: BytesMut,
    /// Bytes at the front of `input` that were judged.
    ready: usize,
    refused: bool,
    verdicts: Arc<Verdicts>,
}

impl<T> Gate<T> {
    /// Judges what comes from `inner`.
    pub fn new(inner: T, verdicts: Arc<Verdicts>) -> Self {
        Self { inner, framer: Framer::default(), input: BytesMut::new(), ready: 0, refused: false, verdicts }
    }

    fn judge(&mut self) {
        let fresh = self.input.get(self.ready..).unwrap_or_default();
        let (passed, violation) = self.framer.pass(fresh);
        self.ready += passed;
        match violation {
            None => {}
            Some(why) if self.framer.in_body() => {
                // The request is under way: no parser takes this for a chunk, so that its body fails and it can be answered.
                tracing::debug!(%why, "a request's body is malformed");
                self.input.truncate(self.ready);
                self.input.extend_from_slice(NO_CHUNK);
                self.ready = self.input.len();
                self.refused = true;
            }
            Some(why) => {
                self.verdicts.refuse(self.framer.heads + 1, why);
                self.input.truncate(self.ready);
                self.input.extend_from_slice(STAND_IN);
                self.ready = self.input.len();
                self.refused = true;
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gate<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ready > 0 {
                let part = this.ready.min(buf.remaining());
                buf.put_slice(this.input.get(..part).unwrap_or_default());
                this.input.advance(part);
                this.ready -= part;
                if this.input.is_empty() && this.input.capacity() > READ {
                    this.input = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.refused {
                // Nothing more is read; the answer closes the connection.
                return Poll::Pending;
            }
            if this.framer.held() {
                this.verdicts.waker.register(cx.waker());
                match this.verdicts.upgrade.swap(UNDECIDED, Ordering::AcqRel) {
                    UNDECIDED => return Poll::Pending,
                    decided => this.framer.decided(decided == CHANGES),
                }
                this.judge();
                continue;
            }
            this.input.reserve(READ);
            if ready!(poll_read_buf(Pin::new(&mut this.inner), cx, &mut this.input))? == 0 {
                return Poll::Ready(Ok(()));
            }
            this.judge();
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gate<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
