//! A request on its way to an endpoint, and again when that is safe.

use crate::aim::{Aim, aim, permitted};
use crate::answer::Refusal;
use crate::body::{Outgoing, Wait};
use crate::compile::{Backend, Retry};
use crate::connection::Downstream;
use crate::exchange::idempotent;
use crate::framing::HEAD_LIMIT;
use crate::headers::{DELIVERY, put, strip_hop, strip_internal};
use crate::mirror::mirror;
use crate::reason::Reason;
use crate::record::Record;
use crate::replay::Replay;
use crate::upgrade;
use crate::upstream::eject;
use crate::upstream::endpoints::Endpoint;
use crate::upstream::limits::Admitted;
use crate::upstream::pool::{Connection, Key, Sent, Use, Version};
use bytes::Bytes;
use http::header::{EXPECT, HOST};
use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use trysail_mesh::{Service, Workload};
use trysail_wire::l7::{Condition, Settings};

/// How long the body of a request that waits for `100 Continue` is held back (as common clients do).
const CONTINUE: Duration = Duration::from_secs(1);
/// Most tries of one request, whatever a route says.
const MOST: u32 = 10;

/// Where a request is to go.
pub enum Destined {
    /// The application in the own pod.
    App {
        /// Where it listens.
        address: SocketAddr,
        /// A service that leads there.
        service: Option<Arc<Service>>,
    },
    /// One workload.
    Workload {
        /// The workload.
        workload: Arc<Workload>,
        /// Where its application listens.
        address: SocketAddr,
    },
    /// An endpoint of a service.
    Service {
        /// The service.
        service: Arc<Service>,
        /// Its port.
        port: u16,
        /// Subset; all when empty.
        subset: String,
    },
}

/// A request ready to be sent.
pub struct Sending<'a> {
    /// The connection that it came on.
    pub down: &'a Arc<Downstream>,
    /// Where it is to go.
    pub destined: Destined,
    /// Its head.
    pub parts: Parts,
    /// The authority that it goes on with.
    pub authority: String,
    /// Its body; taken when sending begins.
    pub body: Option<Incoming>,
    /// When it is tried again.
    pub retry: Retry,
    /// When it must be answered.
    pub deadline: Option<Instant>,
    /// Who gets a copy.
    pub mirrors: Vec<(Backend, f64)>,
}

/// What is held while an answer is on its way.
#[derive(Default)]
pub struct Held {
    active: Option<Active>,
    admitted: Option<Admitted>,
    body: Option<Replay>,
}

impl Held {
    /// Bytes of the request's body that were read.
    pub fn received(&self) -> u64 {
        self.body.as_ref().map_or(0, Replay::bytes)
    }

    /// Whether the request's body was sent to its end: only then can its connection carry another.
    pub fn body_done(&self) -> bool {
        self.body.as_ref().is_none_or(Replay::ended)
    }

    /// The answer has ended.
    pub fn release(&mut self) {
        self.active = None;
        self.admitted = None;
    }
}

/// Counts a request at its endpoint until dropped.
struct Active(Arc<Endpoint>);

impl Active {
    fn new(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.stats.active.fetch_add(1, Ordering::Relaxed);
        Self(endpoint.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.stats.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An endpoint's answer, its body still to be read.
pub struct Answered {
    /// Head and body.
    pub response: Response<Incoming>,
    /// The connection that it comes on.
    pub connection: Option<Connection>,
    /// What is held meanwhile.
    pub held: Held,
    /// How the connection is used.
    pub uses: Use,
    /// A cookie that keeps the client at its endpoint.
    pub cookie: Option<String>,
}

/// Why one try failed.
pub(crate) struct Failure {
    reason: Reason,
    detail: String,
    /// Known not to have reached the application.
    undelivered: bool,
    /// No other endpoint would do better.
    last_word: bool,
    /// The answer's status, when there was an answer that the route's retries do not take.
    answered: Option<Box<Answered>>,
}

impl Failure {
    pub(crate) fn new(reason: Reason, detail: String, undelivered: bool) -> Self {
        Self { reason, detail, undelivered, last_word: false, answered: None }
    }

    fn into_refusal(self) -> Refusal {
        let refusal = Refusal::new(self.reason, self.detail);
        if self.undelivered { refusal } else { refusal.delivery_unknown() }
    }
}

/// Everything of a request that stays the same from try to try.
struct Work<'a> {
    sending: Sending<'a>,
    body: Option<Replay>,
    upgrade: Option<OnUpgrade>,
    tried: Vec<Arc<Endpoint>>,
}

/// Sends a request until it is answered or nothing more can be tried.
pub async fn send(mut sending: Sending<'_>, record: &mut Record) -> Result<Answered, Refusal> {
    let upgrade = upgrade::asked(&mut sending.parts)?;
    let body = sending.body.take().filter(|b| !b.is_end_stream() && upgrade.is_none()).map(Replay::new);
    let mut work = Work { sending, body, upgrade, tried: Vec::new() };
    let deadline = work.sending.deadline;
    let answered = {
        let tries = tries(&mut work, record);
        match deadline {
            None => tries.await,
            Some(at) => tokio::time::timeout_at(at, tries)
                .await
                .unwrap_or_else(|_| Err(Refusal::new(Reason::Timeout, "the route's time is over").delivery_unknown())),
        }
    };
    if !work.sending.mirrors.is_empty() {
        let body = work.body.as_ref().map_or_else(|| Some(Bytes::new()), Replay::whole);
        match body {
            Some(body) => mirror(work.sending.down, &work.sending, body),
            None => tracing::debug!("a request is not copied: its body is too large, or had not ended"),
        }
    }
    answered
}

/// One copy of a request.
pub struct Copy {
    /// Where it goes.
    pub destined: Destined,
    /// Its head.
    pub parts: Parts,
    /// The authority that it goes on with.
    pub authority: String,
    /// Its whole body.
    pub body: Bytes,
}

/// Sends a copy of a request and forgets its answer.
pub async fn send_copy(down: &Arc<Downstream>, copy: Copy) {
    let proxy = &down.proxy;
    let sending = Sending {
        down,
        destined: copy.destined,
        parts: copy.parts,
        authority: copy.authority,
        body: None,
        retry: crate::state::default_retry(),
        deadline: None,
        mirrors: Vec::new(),
    };
    let state = proxy.state.load();
    let Ok(aim) = aim(&state, &sending, &[]) else { return };
    if permitted(&state, down, &aim).is_err() {
        return;
    }
    let work = Work { sending, body: None, upgrade: None, tried: Vec::new() };
    let Ok(head) = work.head(&aim) else { return };
    let key = Arc::new(Key { target: aim.target.clone(), version: aim.version });
    let uses = uses(&aim.settings);
    let Ok(mut connection) = proxy.upstream.pool.take(&key, &proxy.upstream.dialler, uses).await else { return };
    let body = if copy.body.is_empty() { Outgoing::Empty } else { Outgoing::Full(copy.body) };
    if let Sent::Answer(response) = connection.send(head.map(|()| body)).await {
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        proxy.upstream.pool.give_back(connection, uses);
    }
}

async fn tries(work: &mut Work<'_>, record: &mut Record) -> Result<Answered, Refusal> {
    let most = work.sending.retry.attempts.min(MOST);
    let mut again = 0;
    loop {
        record.attempts += 1;
        let state = work.sending.down.proxy.state.load();
        let aim = match aim(&state, &work.sending, &work.tried) {
            Ok(aim) => aim,
            Err(refusal) => return Err(refusal),
        };
        note(record, &aim);
        permitted(&state, work.sending.down, &aim)?;
        let failure = match attempt(work, &aim).await {
            Ok(answered) => return Ok(answered),
            Err(failure) => failure,
        };
        let (proxy, settings) = (&work.sending.down.proxy, &aim.settings);
        let allowed = again < most && !failure.last_word && work.may_repeat(&failure);
        let retrying = match (allowed, &aim.limits) {
            (true, Some(key)) => proxy.upstream.limits.retry(key, settings).ok().map(Some),
            (true, None) => Some(None),
            (false, _) => None,
        };
        let Some(_retrying) = retrying else {
            return match failure.answered {
                // The last answer stands.
                Some(answered) => Ok(*answered),
                None => Err(failure.into_refusal()),
            };
        };
        proxy.sinks.metrics.retried(failure.reason, failure.undelivered);
        tracing::debug!(detail = failure.detail, undelivered = failure.undelivered, "a request is tried again");
        if let Some((endpoint, _)) = &aim.endpoint {
            work.tried.push(endpoint.clone());
        }
        again += 1;
        if !failure.undelivered || again > 2 {
            let longest = work.sending.retry.backoff.saturating_mul(1 << again.min(6));
            tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
        }
    }
}

fn note(record: &mut Record, aim: &Aim) {
    record.upstream = Some(aim.target.address());
    if let Some(workload) = &aim.workload {
        record.destination.identity = aim.target.mutual().then(|| workload.identity.clone());
        record.destination.workload = Some(workload.clone());
        // Towards a mesh peer it is this side that knows whether the connection is mutual TLS.
        if record.is_source() {
            record.mutual = aim.target.mutual();
        }
    }
}

impl Work<'_> {
    /// Whether a request that failed like this may be sent again.
    fn may_repeat(&self, failure: &Failure) -> bool {
        if self.upgrade.is_some() && !failure.undelivered {
            return false;
        }
        if self.body.as_ref().is_some_and(|b| !b.replayable()) {
            return false;
        }
        let retry = &self.sending.retry;
        let harmless = retry.any_method || idempotent(&self.sending.parts.method);
        if failure.undelivered {
            return true;
        }
        let wanted = match (&failure.answered, failure.reason) {
            (Some(answered), _) => wants(retry, answered.response.status(), answered.response.headers()),
            // A connection that was lost says nothing of the request: what may be repeated is.
            (None, Reason::ConnectionLost) => true,
            (None, Reason::Timeout) => {
                retry
                    .conditions
                    .iter()
                    .any(|c| matches!(c, Condition::FiveXx | Condition::GatewayError | Condition::Reset))
                    || retry.statuses.contains(&504)
                    || retry.per_try.is_some() && !retry.conditions.is_empty()
            }
            _ => false,
        };
        harmless && wanted
    }

    /// The head for an endpoint.
    fn head(&self, aim: &Aim) -> Result<Request<()>, http::Error> {
        let parts = &self.sending.parts;
        let mut headers = parts.headers.clone();
        strip_hop(&mut headers, self.upgrade.is_some());
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        let authority = if self.sending.authority.is_empty() {
            aim.target.address().to_string()
        } else {
            self.sending.authority.clone()
        };
        let mut request = Request::builder().method(upgrade::method(parts, self.upgrade.is_some()));
        if aim.version == Version::Http2 {
            headers.remove(HOST);
            request = request.version(http::Version::HTTP_2).uri(
                http::Uri::builder()
                    .scheme(self.sending.down.scheme)
                    .authority(authority)
                    .path_and_query(path)
                    .build()?,
            );
        } else {
            put(&mut headers, "host", &authority);
            let path = if parts.uri.path() == "*" || parts.uri.path().is_empty() { "*" } else { path };
            request = request.uri(path);
        }
        if self.upgrade.is_some() {
            upgrade::translate(parts, &mut headers);
        }
        let mut request = request.body(())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// The body for a try, and what releases it when the endpoint must ask for it first.
    fn outgoing(&self, head: &Request<()>, version: Version) -> (Outgoing, Option<oneshot::Sender<()>>) {
        let Some(body) = &self.body else { return (Outgoing::Empty, None) };
        let waits = head.headers().get(EXPECT).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        if !waits || version == Version::Http2 || body.begun() {
            return (Outgoing::Attempt(body.attempt()), None);
        }
        let (tell, go) = oneshot::channel();
        let limit = Box::pin(tokio::time::sleep(CONTINUE));
        (Outgoing::Waiting(body.attempt(), Wait { go, limit, over: false }), Some(tell))
    }
}

/// Whether a route's retries want an answer repeated.
fn wants(retry: &Retry, status: StatusCode, headers: &http::HeaderMap) -> bool {
    let code = status.as_u16();
    let grpc = headers.get("grpc-status").and_then(|v| v.to_str().ok()).unwrap_or_default();
    retry.statuses.contains(&code)
        || retry.conditions.iter().any(|condition| match condition {
            Condition::FiveXx => code >= 500,
            Condition::GatewayError => matches!(code, 502..=504),
            Condition::Retriable4xx => code == 409,
            Condition::GrpcCancelled => grpc == "1",
            Condition::GrpcDeadlineExceeded => grpc == "4",
            Condition::GrpcResourceExhausted => grpc == "8",
            Condition::GrpcUnavailable => grpc == "14",
            _ => false,
        })
}

async fn attempt(work: &mut Work<'_>, aim: &Aim) -> Result<Answered, Failure> {
    let per_try = work.sending.retry.per_try;
    let work = &*work;
    let once = once(work, aim);
    match per_try {
        None => once.await,
        Some(limit) => tokio::time::timeout(limit, once).await.unwrap_or_else(|_| {
            observe(work, aim, None);
            Err(Failure::new(Reason::Timeout, "a try took too long".into(), false))
        }),
    }
}

/// One try: admitted, connected, sent, its answer's head read.
async fn once(work: &Work<'_>, aim: &Aim) -> Result<Answered, Failure> {
    let down = work.sending.down;
    let upstream = &down.proxy.upstream;
    let uses = uses(&aim.settings);
    let admitted = match &aim.limits {
        Some(key) => upstream.limits.admit(key, &aim.settings).await.map_err(|_| Failure {
            last_word: true,
            ..Failure::new(Reason::Overflow, "a limit of the destination is reached".into(), true)
        })?,
        None => None,
    };
    let active = aim.endpoint.as_ref().map(|(e, _)| Active::new(e));
    let key = Arc::new(Key { target: aim.target.clone(), version: aim.version });
    let mut fresh = false;
    loop {
        let taken = if fresh {
            upstream.pool.fresh(&key, &upstream.dialler, uses).await
        } else {
            upstream.pool.take(&key, &upstream.dialler, uses).await
        };
        let mut connection = taken.map_err(|error| {
            observe(work, aim, None);
            let refused = error.is_refusal();
            let reason = if refused { Reason::RefusedByDestination } else { Reason::ConnectFailure };
            let failure = Failure::new(reason, trysail_base::log::chain(&error), true);
            Failure { last_word: refused, ..failure }
        })?;
        let head = work.head(aim).map_err(|e| Failure::new(Reason::BadRequest, e.to_string(), true))?;
        let (body, tell) = work.outgoing(&head, aim.version);
        let mut request = head.map(|()| body);
        if let Some(tell) = tell {
            let tell = Mutex::new(Some(tell));
            hyper::ext::on_informational(&mut request, move |answer| {
                let told = tell.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let (StatusCode::CONTINUE, Some(tell)) = (answer.status(), told) {
                    // A try that is over waits for nothing.
                    tell.send(()).unwrap_or_default();
                }
            });
        }
        let reused = connection.reused;
        let failure = match connection.send(request).await {
            Sent::Answer(response) => {
                let held = Held { active, admitted, body: work.body.clone() };
                return judged(work, aim, (response, connection), held, uses);
            }
            // A kept connection that had ended: nothing was sent, and this endpoint may well be there.
            Sent::Unsent(_) | Sent::Spent if reused && !fresh => {
                fresh = true;
                continue;
            }
            Sent::Unsent(error) => Failure::new(Reason::ConnectionLost, trysail_base::log::chain(&error), true),
            Sent::Spent => Failure::new(Reason::ConnectionLost, "the connection was used up".into(), true),
            Sent::Failed(error) => failed(work, &error),
        };
        observe(work, aim, None);
        return Err(failure);
    }
}

fn uses(settings: &Settings) -> Use {
    let ms = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    Use {
        connect: ms(settings.connect_timeout_ms),
        idle: ms(settings.idle_timeout_ms),
        requests: settings.max_requests_per_connection,
    }
}

fn failed(work: &Work<'_>, error: &hyper::Error) -> Failure {
    let detail = trysail_base::log::chain(error);
    if work.body.as_ref().is_some_and(Replay::failed) {
        return Failure { last_word: true, ..Failure::new(Reason::BadRequest, detail, false) };
    }
    let refused = refused_stream(error);
    let reason = if error.is_parse() || error.is_parse_too_large() || error.is_parse_status() {
        Reason::BadResponse
    } else {
        Reason::ConnectionLost
    };
    Failure::new(reason, detail, refused)
}

/// Whether the far end said that it had not processed the request (RFC 9113, 8.7).
fn refused_stream(error: &hyper::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(h2) = inner.downcast_ref::<h2::Error>() {
            return h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        source = inner.source();
    }
    false
}

/// An answer: taken, or one that the route wants repeated.
fn judged(
    work: &Work<'_>,
    aim: &Aim,
    (mut response, connection): (Response<Incoming>, Connection),
    held: Held,
    uses: Use,
) -> Result<Answered, Failure> {
    if head_size(response.headers()) > HEAD_LIMIT {
        let detail = format!("the head of the answer is larger than {HEAD_LIMIT} bytes");
        return Err(Failure { last_word: true, ..Failure::new(Reason::BadResponse, detail, false) });
    }
    let status = response.status();
    let told = response.headers().get(DELIVERY).map(|v| v.as_bytes() == b"none");
    // Only a proxy of the mesh is believed, and it says so of its own answers alone.
    let undelivered = aim.target.mutual() && status == StatusCode::SERVICE_UNAVAILABLE && told == Some(true);
    if undelivered {
        observe(work, aim, None);
        return Err(Failure::new(Reason::ConnectFailure, "nothing reached the application".into(), true));
    }
    observe(work, aim, Some(status.as_u16()));
    if !aim.target.mutual() {
        strip_internal(response.headers_mut());
    }
    let switched = status == StatusCode::SWITCHING_PROTOCOLS;
    if switched {
        upgrade::join(&work.sending, work.upgrade.clone(), &mut response)?;
    }
    let connection = (!switched).then_some(connection);
    let answered = Answered { response, connection, held, uses, cookie: aim.cookie.clone() };
    if wants(&work.sending.retry, status, answered.response.headers()) {
        let failure = Failure::new(Reason::None, format!("answered {status}"), false);
        return Err(Failure { answered: Some(Box::new(answered)), ..failure });
    }
    Ok(answered)
}

/// Bytes of a head's fields, as they are written.
fn head_size(headers: &http::HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

fn observe(work: &Work<'_>, aim: &Aim, status: Option<u16>) {
    if let (Some((endpoint, set)), Some(outlier)) = (&aim.endpoint, &aim.settings.outlier) {
        eject::observe(set, endpoint, status, outlier, work.sending.down.proxy.now());
    }
}
