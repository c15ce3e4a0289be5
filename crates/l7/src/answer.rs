//! What is answered: an endpoint's answer on its way, with what ends when it does, or one of the proxy's own.

use crate::connection::Downstream;
use crate::headers::{self, DELIVERY, REASON};
use crate::reason::Reason;
use crate::record::Record;
use crate::send;
use crate::upstream::pool::{Connection, Use};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep};

/// Why a request ends here.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Status of the answer.
    pub status: StatusCode,
    /// For the log.
    pub detail: String,
    /// Headers of the answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Body of the answer.
    pub body: String,
    /// Whether it is known that nothing reached the application.
    pub undelivered: bool,
}

impl Refusal {
    /// With the reason's own status.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        Self { reason, status, detail: detail.into(), headers: Vec::new(), body: String::new(), undelivered: true }
    }

    /// With another status.
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// A policy's no.
    pub fn denied(reason: Reason, detail: String) -> Self {
        Self { body: "RBAC: access denied".to_owned(), ..Self::new(reason, detail) }
    }

    /// The application may have seen the request.
    pub fn delivery_unknown(mut self) -> Self {
        self.undelivered = false;
        self
    }
}

/// The body of an answer.
pub enum Answer {
    /// Of the proxy's own.
    Own(Bytes),
    /// An endpoint's.
    Passed(Box<Passed>),
}

/// An endpoint's body on its way, with what ends when it does.
pub struct Passed {
    body: Incoming,
    record: Option<Record>,
    connection: Option<Connection>,
    held: send::Held,
    uses: Use,
    down: Arc<Downstream>,
    deadline: Option<Pin<Box<Sleep>>>,
    sent: u64,
}

impl Passed {
    fn finish(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(mut record) = self.record.take() {
            if let Some(status) = trailers.and_then(|t| t.get("grpc-status")).and_then(|v| v.to_str().ok()) {
                record.grpc_status = Some(status.to_owned());
            }
            record.sent = self.sent;
            record.received = self.held.received();
            record.finish();
        }
        if let Some(connection) = self.connection.take().filter(|_| self.held.body_done()) {
            self.down.proxy.upstream.pool.give_back(connection, self.uses);
        }
        self.held.release();
    }

    fn fail(&mut self, reason: Reason, detail: &str) {
        if let Some(mut record) = self.record.take() {
            record.sent = self.sent;
            record.received = self.held.received();
            record.failed(reason, detail);
            record.finish();
        }
        self.connection = None;
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.finish(None);
        }
        if let Some(record) = &mut self.record {
            record.sent = self.sent;
            record.received = self.held.received();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Own(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Passed(passed) => {
                if passed.deadline.as_mut().is_some_and(|d| d.as_mut().poll(cx).is_ready()) {
                    passed.fail(Reason::Timeout, "the answer took too long");
                    return Poll::Ready(Some(Err("the answer took too long".into())));
                }
                match ready!(Pin::new(&mut passed.body).poll_frame(cx)) {
                    None => {
                        passed.finish(None);
                        Poll::Ready(None)
                    }
                    Some(Ok(frame)) => {
                        if let Some(data) = frame.data_ref() {
                            passed.sent += data.len() as u64;
                            // Whoever writes a body of known length does not ask for its end.
                            if passed.body.is_end_stream() {
                                passed.finish(None);
                            }
                        } else {
                            passed.finish(frame.trailers_ref());
                        }
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Some(Err(error)) => {
                        passed.fail(Reason::ConnectionLost, &trysail_base::log::chain(&error));
                        Poll::Ready(Some(Err(error.into())))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_empty(),
            Self::Passed(passed) => passed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Passed(passed) => passed.body.size_hint(),
        }
    }
}

/// What is to be answered.
pub struct Outcome {
    /// Its head; without a body it is the proxy's own.
    pub response: Response<Option<Incoming>>,
    /// The connection that it comes on.
    pub connection: Option<Connection>,
    /// What is held meanwhile.
    pub held: send::Held,
    /// How the connection is used.
    pub uses: Use,
    /// When it must have ended.
    pub deadline: Option<Instant>,
    /// A body of the proxy's own.
    pub own_body: Bytes,
}

impl Outcome {
    /// An answer of the proxy's own.
    pub fn own(response: Response<Option<Incoming>>, own_body: Bytes) -> Self {
        let held = send::Held::default();
        Self { response, connection: None, held, uses: Use::default(), deadline: None, own_body }
    }
}

/// The answer, its record written when it ends.
pub fn answer(down: Arc<Downstream>, sent: Outcome, mut record: Record) -> Response<Answer> {
    let (parts, body) = sent.response.into_parts();
    let Some(body) = body else {
        record.sent = sent.own_body.len() as u64;
        record.finish();
        return Response::from_parts(parts, Answer::Own(sent.own_body));
    };
    if let Some(status) = parts.headers.get("grpc-status").and_then(|v| v.to_str().ok()) {
        record.grpc_status = Some(status.to_owned());
    }
    let ended = body.is_end_stream();
    let mut passed = Passed {
        body,
        record: Some(record),
        connection: sent.connection,
        held: sent.held,
        uses: sent.uses,
        down,
        deadline: sent.deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
        sent: 0,
    };
    if ended {
        passed.finish(None);
    }
    Response::from_parts(parts, Answer::Passed(Box::new(passed)))
}

/// gRPC's status for an HTTP status (gRPC over HTTP/2, appendix).
pub fn grpc_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 431 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        504 => "4",
        429 | 502 | 503 => "14",
        _ => "2",
    }
}

/// The answer to a request that ends here.
pub fn own_answer(refusal: &Refusal, grpc: bool) -> Response<Answer> {
    let mut response = Response::new(Answer::Own(Bytes::from(refusal.body.clone())));
    let headers = response.headers_mut();
    headers.extend(refusal.headers.iter().cloned());
    headers.insert(REASON, HeaderValue::from_static(refusal.reason.as_str()));
    if refusal.status.is_server_error() {
        let delivery = if refusal.undelivered { "none" } else { "unknown" };
        headers.insert(DELIVERY, HeaderValue::from_static(delivery));
    }
    if grpc {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(grpc_status(refusal.status)));
        headers::put(headers, "grpc-message", refusal.reason.as_str());
        *response.body_mut() = Answer::Own(Bytes::new());
    } else {
        if !refusal.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        }
        *response.status_mut() = refusal.status;
    }
    if matches!(refusal.reason, Reason::BadRequest | Reason::HeadTooLarge) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
