//! A request's body that can be sent again: what has been sent is kept, up to a limit; beyond it the request cannot be repeated.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

/// The most that is kept of one body, bytes.
pub const KEPT: usize = 64 << 10;

struct Shared {
    source: Option<Incoming>,
    kept: Vec<Bytes>,
    kept_bytes: usize,
    overflow: bool,
    ended: bool,
    failed: bool,
    /// More than trailers-free data was seen, which is not kept.
    trailers: bool,
    /// Counts tries: a body of an earlier one reads no more.
    turn: u64,
    total: u64,
}

/// The body, held by the exchange.
#[derive(Clone)]
pub struct Replay(Arc<Mutex<Shared>>);

/// One try's view of it.
pub struct Attempt {
    shared: Arc<Mutex<Shared>>,
    turn: u64,
    next: usize,
    hint: SizeHint,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replay {
    /// Keeps what is read from `source`.
    pub fn new(source: Incoming) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            source: Some(source),
            kept: Vec::new(),
            kept_bytes: 0,
            overflow: false,
            ended: false,
            failed: false,
            trailers: false,
            turn: 0,
            total: 0,
        })))
    }

    /// The body from its start, for the next try; earlier views end.
    pub fn attempt(&self) -> Attempt {
        let mut shared = lock(&self.0);
        shared.turn += 1;
        let hint = if shared.total == 0 {
            shared.source.as_ref().map(Body::size_hint).unwrap_or_default()
        } else {
            SizeHint::default()
        };
        Attempt { shared: self.0.clone(), turn: shared.turn, next: 0, hint }
    }

    /// Whether another try would send the same.
    pub fn replayable(&self) -> bool {
        let shared = lock(&self.0);
        !shared.overflow && !shared.failed && !shared.trailers
    }

    /// Whether the client's side failed, rather than the destination's.
    pub fn failed(&self) -> bool {
        lock(&self.0).failed
    }

    /// Whether anything was read.
    pub fn begun(&self) -> bool {
        let shared = lock(&self.0);
        shared.total > 0 || shared.ended
    }

    /// Whether it was read to its end.
    pub fn ended(&self) -> bool {
        let shared = lock(&self.0);
        shared.ended || shared.source.as_ref().is_none_or(Body::is_end_stream)
    }

    /// All of it, when it was read to its end and kept.
    pub fn whole(&self) -> Option<Bytes> {
        let shared = lock(&self.0);
        let kept = shared.ended && !shared.overflow && !shared.trailers;
        kept.then(|| shared.kept.concat().into())
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).total
    }
}

impl Body for Attempt {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let mut shared = lock(&this.shared);
        if shared.turn != this.turn {
            return Poll::Ready(None);
        }
        if let Some(chunk) = shared.kept.get(this.next).filter(|_| !shared.overflow) {
            this.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        if shared.ended {
            return Poll::Ready(None);
        }
        let Some(source) = shared.source.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(source).poll_frame(cx));
        match &frame {
            None => {
                shared.ended = true;
                shared.source = None;
            }
            Some(Err(_)) => shared.failed = true,
            Some(Ok(frame)) => match frame.data_ref() {
                None => shared.trailers = true,
                Some(data) => {
                    let data = data.clone();
                    shared.total += data.len() as u64;
                    shared.kept_bytes += data.len();
                    if shared.kept_bytes > KEPT {
                        shared.overflow = true;
                        shared.kept = Vec::new();
                    } else if !shared.overflow {
                        shared.kept.push(data);
                        this.next += 1;
                    }
                }
            },
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let shared = lock(&self.shared);
        let more = shared.kept.len() > self.next;
        !more && (shared.ended || shared.source.as_ref().is_none_or(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}
