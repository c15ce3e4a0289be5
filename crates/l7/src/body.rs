//! The bodies that the engine sends.

use crate::replay::Attempt;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// A request's body towards an endpoint.
pub enum Outgoing {
    /// Nothing.
    Empty,
    /// The client's.
    Attempt(Attempt),
    /// The client's, sent when the endpoint says that it wants it.
    Waiting(Attempt, Wait),
    /// Bytes.
    Full(Bytes),
}

/// Why the waiting ends.
pub struct Wait {
    /// Resolves at `100 Continue`.
    pub go: oneshot::Receiver<()>,
    /// Otherwise after this.
    pub limit: Pin<Box<tokio::time::Sleep>>,
    /// The endpoint has answered: the body is not wanted.
    pub over: bool,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if let Self::Waiting(_, wait) = this {
            if wait.over {
                return Poll::Pending;
            }
            match Pin::new(&mut wait.go).poll(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    // Answered without it: the body stays where it is.
                    wait.over = true;
                    return Poll::Pending;
                }
                Poll::Pending => std::task::ready!(wait.limit.as_mut().poll(cx)),
            }
            if let Self::Waiting(attempt, _) = std::mem::replace(this, Self::Empty) {
                *this = Self::Attempt(attempt);
            }
        }
        match this {
            Self::Empty | Self::Waiting(..) => Poll::Ready(None),
            Self::Attempt(attempt) => Pin::new(attempt).poll_frame(cx),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Attempt(attempt) => attempt.is_end_stream(),
            Self::Waiting(..) => false,
            Self::Full(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Attempt(attempt) | Self::Waiting(attempt, _) => attempt.size_hint(),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
