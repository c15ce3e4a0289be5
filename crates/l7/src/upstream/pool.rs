//! HTTP connections to endpoints, kept for the next request. Keyed by where they lead and for whom: a connection on which one caller
//! was judged never carries another's request.

use super::dial::{DialError, Dialler, Target};
use crate::body::Outgoing;
use crate::connection::Executor;
use crate::framing::{FIELD_LIMIT, HEAD_LIMIT};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trysail_identity::tls::{ALPN_ISTIO_H2, ALPN_ISTIO_HTTP1};

/// Idle connections kept of one key.
const IDLE_MOST: usize = 256;
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Requests at a time on one HTTP/2 connection before another is opened.
const STREAMS: u32 = 100;

/// The version spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// What connections are shared by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Where it leads.
    pub target: Target,
    /// What is spoken.
    pub version: Version,
}

struct Idle {
    sender: http1::SendRequest<Outgoing>,
    since: Instant,
    used: u32,
}

#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<Outgoing>,
    streams: Arc<AtomicU32>,
    used: Arc<AtomicU32>,
}

#[derive(Default)]
struct Shelf {
    idle: Vec<Idle>,
    shared: Vec<Shared>,
}

/// The connections.
#[derive(Default)]
pub struct Pool {
    shelves: Mutex<HashMap<Arc<Key>, Shelf>>,
}

/// A connection for one request.
pub struct Connection {
    key: Arc<Key>,
    /// None once it was given back.
    kind: Option<Kind>,
    used: u32,
    /// Was used before: its end may not be known yet.
    pub reused: bool,
}

enum Kind {
    One(http1::SendRequest<Outgoing>),
    Two(Shared),
}

/// What came of sending.
pub enum Sent {
    /// The head of an answer.
    Answer(Response<Incoming>),
    /// Nothing was sent.
    Unsent(hyper::Error),
    /// It may have arrived.
    Failed(hyper::Error),
    /// The connection was given back before.
    Spent,
}

/// How connections are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// Longest connecting.
    pub connect: Option<Duration>,
    /// Longest silence.
    pub idle: Option<Duration>,
    /// Most requests on one; 0: no limit.
    pub requests: u32,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<Key>, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is kept, or a new one.
    pub async fn take(&self, key: &Arc<Key>, dialler: &Dialler, uses: Use) -> Result<Connection, DialError> {
        match self.kept(key, uses) {
            Some(connection) => Ok(connection),
            None => self.fresh(key, dialler, uses).await,
        }
    }

    fn kept(&self, key: &Arc<Key>, uses: Use) -> Option<Connection> {
        let mut shelves = self.lock();
        let shelf = shelves.get_mut(key)?;
        let oldest = uses.idle.unwrap_or(IDLE).min(IDLE);
        if key.version == Version::Http2 {
            shelf.shared.retain(|s| !s.sender.is_closed());
            let free = |s: &&Shared| {
                s.streams.load(Ordering::Acquire) < STREAMS
                    && (uses.requests == 0 || s.used.load(Ordering::Relaxed) < uses.requests)
            };
            let shared = shelf.shared.iter().find(free)?.clone();
            shared.streams.fetch_add(1, Ordering::AcqRel);
            shared.used.fetch_add(1, Ordering::Relaxed);
            return Some(Connection { key: key.clone(), kind: Some(Kind::Two(shared)), used: 0, reused: true });
        }
        // The one that was used last is the least likely to have been closed.
        while let Some(idle) = shelf.idle.pop() {
            if !idle.sender.is_closed() && idle.since.elapsed() < oldest {
                return Some(Connection {
                    key: key.clone(),
                    kind: Some(Kind::One(idle.sender)),
                    used: idle.used,
                    reused: true,
                });
            }
        }
        None
    }

    /// A new connection.
    pub async fn fresh(&self, key: &Arc<Key>, dialler: &Dialler, uses: Use) -> Result<Connection, DialError> {
        let alpn = if key.version == Version::Http2 { ALPN_ISTIO_H2 } else { ALPN_ISTIO_HTTP1 };
        let io = TokioIo::new(dialler.dial(&key.target, alpn, uses.connect).await?);
        let fail = |e| DialError::Http(key.target.address(), e);
        let kind = match key.version {
            Version::Http1 => {
                let (sender, connection) = http1::Builder::new()
                    .max_headers(FIELD_LIMIT)
                    .max_buf_size(HEAD_LIMIT * 2)
                    .handshake(io)
                    .await
                    .map_err(fail)?;
                // How it ends is seen by the request that was under way.
                dialler.tasks.track(async move { connection.with_upgrades().await.unwrap_or_default() });
                Kind::One(sender)
            }
            Version::Http2 => {
                let (sender, connection) = http2::Builder::new(Executor(dialler.tasks.clone()))
                    .timer(TokioTimer::new())
                    .keep_alive_interval(Some(Duration::from_secs(10)))
                    .keep_alive_timeout(Duration::from_secs(20))
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(4 << 20)
                    .max_header_list_size(HEAD_LIMIT as u32)
                    .handshake(io)
                    .await
                    .map_err(fail)?;
                dialler.tasks.track(async move { connection.await.unwrap_or_default() });
                let shared = Shared { sender, streams: Arc::new(AtomicU32::new(1)), used: Arc::new(AtomicU32::new(1)) };
                self.lock().entry(key.clone()).or_default().shared.push(shared.clone());
                Kind::Two(shared)
            }
        };
        Ok(Connection { key: key.clone(), kind: Some(kind), used: 0, reused: false })
    }

    /// Gives a connection back whose request is over and whose answer was read to its end.
    pub fn give_back(&self, mut connection: Connection, uses: Use) {
        if matches!(connection.kind, Some(Kind::Two(_))) {
            return;
        }
        let Some(Kind::One(sender)) = connection.kind.take() else { return };
        let used = connection.used + 1;
        if sender.is_closed() || (uses.requests > 0 && used >= uses.requests) {
            return;
        }
        let mut shelves = self.lock();
        let shelf = shelves.entry(connection.key.clone()).or_default();
        if shelf.idle.len() < IDLE_MOST {
            shelf.idle.push(Idle { sender, since: Instant::now(), used });
        }
    }

    /// Forgets what is closed, idle too long, or leads to a workload that `gone` holds of.
    pub fn sweep(&self, gone: impl Fn(&Target) -> bool) {
        self.lock().retain(|key, shelf| {
            if gone(&key.target) {
                return false;
            }
            shelf.idle.retain(|i| !i.sender.is_closed() && i.since.elapsed() < IDLE);
            shelf.shared.retain(|s| !s.sender.is_closed());
            !shelf.idle.is_empty() || !shelf.shared.is_empty()
        });
    }

    /// Open connections that are kept.
    pub fn kept_count(&self) -> usize {
        self.lock().values().map(|s| s.idle.len() + s.shared.len()).sum()
    }
}

impl Connection {
    /// The version spoken.
    pub fn version(&self) -> Version {
        self.key.version
    }

    /// Sends a request and waits for its answer's head.
    pub async fn send(&mut self, request: Request<Outgoing>) -> Sent {
        let outcome = match &mut self.kind {
            Some(Kind::One(sender)) => {
                // The last answer's end may still be on its way through the connection.
                if let Err(error) = sender.ready().await {
                    return Sent::Unsent(error);
                }
                sender.try_send_request(request).await
            }
            Some(Kind::Two(shared)) => {
                if let Err(error) = shared.sender.ready().await {
                    return Sent::Unsent(error);
                }
                shared.sender.try_send_request(request).await
            }
            None => return Sent::Spent,
        };
        match outcome {
            Ok(answer) => Sent::Answer(answer),
            Err(error) => unsent(error),
        }
    }
}

fn unsent(mut error: TrySendError<Request<Outgoing>>) -> Sent {
    match error.take_message() {
        Some(_) => Sent::Unsent(error.into_error()),
        None => Sent::Failed(error.into_error()),
    }
}

/// Gives an HTTP/2 connection's place back.
impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(Kind::Two(shared)) = &self.kind {
            shared.streams.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
