//! What is received, made ready for use: patterns compiled, names resolved. What cannot be read becomes something that refuses.

use http::{HeaderName, HeaderValue, StatusCode};
use regex::Regex;
use std::sync::Arc;
use std::time::Duration;
use trysail_api::ids::ServiceKey;
use trysail_wire::l7 as wire;
use trysail_wire::l7::{path, path_change, route, text};

/// Why a resource is refused.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Not protobuf of this type.
    #[error("not valid protobuf")]
    Protobuf(#[from] prost::DecodeError),
    /// A pattern.
    #[error("{0:?} is not a regular expression")]
    Regex(String),
    /// A header.
    #[error("{0:?} is not a header")]
    Header(String),
    /// A status.
    #[error("{0} is not a status")]
    Status(u32),
    /// A field without which it means nothing.
    #[error("{0} is missing")]
    Missing(&'static str),
}

type Result<T> = std::result::Result<T, CompileError>;

/// How a text is compared.
#[derive(Clone, Debug)]
pub enum Text {
    /// Equal.
    Exact(String),
    /// Begins with.
    Prefix(String),
    /// Matches as a whole.
    Regex(Regex),
    /// Is there.
    Present,
}

impl Text {
    /// Whether `value` is what is wanted.
    pub fn holds(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text.as_str()),
            Self::Regex(regex) => regex.is_match(value),
            Self::Present => true,
        }
    }
}

/// How a path is compared.
#[derive(Clone, Debug)]
pub enum Path {
    /// Equal.
    Exact(String),
    /// Whole segments.
    Segments(String),
    /// Characters.
    Prefix(String),
    /// Matches as a whole.
    Regex(Regex),
}

/// A named value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Name.
    pub name: String,
    /// Wanted.
    pub text: Text,
    /// Holds when it does not match.
    pub not: bool,
}

/// What a request must be.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Path.
    pub path: Option<Path>,
    /// The path is compared without case.
    pub ignore_case: bool,
    /// Headers.
    pub headers: Vec<Value>,
    /// Query parameters.
    pub query: Vec<Value>,
    /// Method.
    pub method: Option<Text>,
    /// Authority.
    pub authority: Option<Text>,
    /// Scheme.
    pub scheme: Option<Text>,
    /// Port that was called; 0: any.
    pub port: u16,
    /// Host names; any when empty.
    pub hosts: Vec<String>,
    /// Namespace of the caller; any when empty.
    pub source_namespace: String,
}

/// Changes of headers.
#[derive(Clone, Debug, Default)]
pub struct HeaderChanges {
    /// Replaced or added.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Added.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Removed.
    pub remove: Vec<HeaderName>,
    /// A new authority (`:authority` or `host` in the list of what is set).
    pub authority: Option<String>,
}

/// A new path.
#[derive(Clone, Debug)]
pub enum PathChange {
    /// The whole path.
    Full(String),
    /// The matched prefix.
    Prefix(String),
    /// What matches.
    Regex(Regex, String),
}

/// A change of host and path.
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// Host.
    pub host: Option<String>,
    /// Path.
    pub path: Option<PathChange>,
}

/// An answer that sends the client elsewhere.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// Scheme.
    pub scheme: Option<String>,
    /// Host.
    pub host: Option<String>,
    /// Port.
    pub port: Option<u16>,
    /// The request's port stays.
    pub keep_port: bool,
    /// Path.
    pub path: Option<PathChange>,
    /// Status.
    pub status: StatusCode,
}

/// A weighted destination.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Service.
    pub service: ServiceKey,
    /// Port; 0: the one that was called.
    pub port: u16,
    /// Weight.
    pub weight: u32,
    /// Subset.
    pub subset: String,
    /// Changes for it alone.
    pub request: Option<HeaderChanges>,
    /// Changes of its answers.
    pub response: Option<HeaderChanges>,
    /// Rewrite for it alone.
    pub rewrite: Option<Rewrite>,
    /// Redirect instead.
    pub redirect: Option<Redirect>,
    /// Why it cannot be used.
    pub invalid: Option<String>,
}

/// What is done with a request.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sent on.
    Forward(Vec<Backend>),
    /// Sent elsewhere.
    Redirect(Redirect),
    /// Answered.
    Direct(StatusCode, String),
}

/// When and how often a request is tried again.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Further tries.
    pub attempts: u32,
    /// Limit of each try.
    pub per_try: Option<Duration>,
    /// Statuses.
    pub statuses: Vec<u16>,
    /// Conditions.
    pub conditions: Vec<wire::Condition>,
    /// Pause before a try.
    pub backoff: Duration,
    /// Whatever the method.
    pub any_method: bool,
}

/// A route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Name in logs.
    pub name: String,
    /// What a request must be.
    pub matched: Match,
    /// What is done.
    pub action: Action,
    /// Changes of the request.
    pub request: Option<HeaderChanges>,
    /// Changes of the answer.
    pub response: Option<HeaderChanges>,
    /// Rewrite.
    pub rewrite: Option<Rewrite>,
    /// Limit of the whole request.
    pub timeout: Option<Duration>,
    /// Retries.
    pub retry: Option<Retry>,
    /// Faults.
    pub fault: Option<wire::Fault>,
    /// Copies.
    pub mirrors: Vec<(Backend, f64)>,
    /// Cross-origin sharing.
    pub cors: Option<Cors>,
}

/// Cross-origin sharing.
#[derive(Clone, Debug)]
pub struct Cors {
    /// Origins.
    pub origins: Vec<Text>,
    /// As received.
    pub rest: wire::Cors,
}

/// Compiles a pattern that must match as a whole.
fn regex(text: &str) -> Result<Regex> {
    Regex::new(&format!("^(?:{text})$")).map_err(|_| CompileError::Regex(text.to_owned()))
}

fn text(t: wire::Text) -> Result<Text> {
    Ok(match t.kind.ok_or(CompileError::Missing("text.kind"))? {
        text::Kind::Exact(text) => Text::Exact(text),
        text::Kind::Prefix(text) => Text::Prefix(text),
        text::Kind::Regex(text) => Text::Regex(regex(&text)?),
        text::Kind::Present(_) => Text::Present,
    })
}

fn value(v: wire::Value) -> Result<Value> {
    let wanted = v.value.ok_or(CompileError::Missing("value"))?;
    Ok(Value { name: v.name, text: text(wanted)?, not: v.not })
}

fn matched(m: wire::Match) -> Result<Match> {
    let ignore_case = m.path.as_ref().is_some_and(|p| p.ignore_case);
    let lower = |text: String| if ignore_case { text.to_ascii_lowercase() } else { text };
    let path = m.path.and_then(|p| p.kind).map(|kind| {
        Ok::<_, CompileError>(match kind {
            path::Kind::Exact(text) => Path::Exact(lower(text)),
            path::Kind::Segments(text) => Path::Segments(lower(text).trim_end_matches('/').to_owned()),
            path::Kind::Prefix(text) => Path::Prefix(lower(text)),
            path::Kind::Regex(text) => Path::Regex(regex(&text)?),
        })
    });
    Ok(Match {
        path: path.transpose()?,
        ignore_case,
        headers: m.headers.into_iter().map(value).collect::<Result<_>>()?,
        query: m.query.into_iter().map(value).collect::<Result<_>>()?,
        method: m.method.map(text).transpose()?,
        authority: m.authority.map(text).transpose()?,
        scheme: m.scheme.map(text).transpose()?,
        port: u16::try_from(m.port).unwrap_or(0),
        hosts: m.hosts,
        source_namespace: m.source_namespace,
    })
}

fn changes(c: wire::HeaderChanges) -> Result<HeaderChanges> {
    let name = |text: &str| text.parse::<HeaderName>().map_err(|_| CompileError::Header(text.to_owned()));
    let mut authority = None;
    let mut list = |headers: Vec<wire::Header>| {
        let mut out = Vec::new();
        for h in headers {
            if matches!(h.name.as_str(), "host" | ":authority") {
                authority = Some(h.value);
                continue;
            }
            let value = h.value.parse::<HeaderValue>().map_err(|_| CompileError::Header(h.name.clone()))?;
            out.push((name(&h.name)?, value));
        }
        Ok::<_, CompileError>(out)
    };
    let (set, add) = (list(c.set)?, list(c.add)?);
    let remove = c.remove.iter().map(|n| name(n)).collect::<Result<_>>()?;
    Ok(HeaderChanges { set, add, remove, authority })
}

fn path_change(p: wire::PathChange) -> Result<PathChange> {
    Ok(match p.kind.ok_or(CompileError::Missing("path.kind"))? {
        path_change::Kind::Full(text) => PathChange::Full(text),
        path_change::Kind::Prefix(text) => PathChange::Prefix(text),
        path_change::Kind::Regex(change) => {
            let regex = Regex::new(&change.pattern).map_err(|_| CompileError::Regex(change.pattern.clone()))?;
            // RE2 writes groups as `\1`.
            let groups = (1..10).fold(change.replacement.replace('$', "$$"), |text, n| {
                text.replace(&format!("\\{n}"), &format!("${{{n}}}"))
            });
            PathChange::Regex(regex, groups)
        }
    })
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn rewrite(r: wire::Rewrite) -> Result<Rewrite> {
    Ok(Rewrite { host: non_empty(r.host), path: r.path.map(path_change).transpose()? })
}

fn status(code: u32) -> Result<StatusCode> {
    u16::try_from(code).ok().and_then(|c| StatusCode::from_u16(c).ok()).ok_or(CompileError::Status(code))
}

fn redirect(r: wire::Redirect) -> Result<Redirect> {
    Ok(Redirect {
        scheme: non_empty(r.scheme),
        host: non_empty(r.host),
        port: u16::try_from(r.port).ok().filter(|p| *p > 0),
        keep_port: r.keep_port,
        path: r.path.map(path_change).transpose()?,
        status: status(r.status)?,
    })
}

fn backend(b: wire::Backend) -> Result<Backend> {
    Ok(Backend {
        service: ServiceKey::from_wire(&b.service),
        port: u16::try_from(b.port).unwrap_or(0),
        weight: b.weight,
        subset: b.subset,
        request: b.request.map(changes).transpose()?,
        response: b.response.map(changes).transpose()?,
        rewrite: b.rewrite.map(rewrite).transpose()?,
        redirect: b.redirect.map(redirect).transpose()?,
        invalid: non_empty(b.invalid),
    })
}

fn milliseconds(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

fn retry(r: wire::Retry) -> Retry {
    Retry {
        attempts: r.attempts,
        per_try: milliseconds(r.per_try_timeout_ms),
        conditions: r.conditions().collect(),
        statuses: r.statuses.iter().filter_map(|s| u16::try_from(*s).ok()).collect(),
        backoff: Duration::from_millis(if r.backoff_ms == 0 { 25 } else { r.backoff_ms }),
        any_method: r.r#unsafe,
    }
}

/// One route.
pub fn route(r: wire::Route) -> Result<Route> {
    let action = match r.action.ok_or(CompileError::Missing("action"))? {
        route::Action::Forward(f) => Action::Forward(f.backends.into_iter().map(backend).collect::<Result<_>>()?),
        // An internal answer in a redirect's place: a filter that is not understood.
        route::Action::Redirect(r) if r.status >= 400 => Action::Direct(status(r.status)?, String::new()),
        route::Action::Redirect(r) => Action::Redirect(redirect(r)?),
        route::Action::Direct(d) => Action::Direct(status(d.status)?, d.body),
    };
    let mirror = |m: wire::Mirror| Ok((backend(m.backend.ok_or(CompileError::Missing("mirror.backend"))?)?, m.share));
    let cors = |c: wire::Cors| {
        Ok::<_, CompileError>(Cors { origins: c.origins.iter().cloned().map(text).collect::<Result<_>>()?, rest: c })
    };
    Ok(Route {
        name: r.name,
        matched: matched(r.r#match.unwrap_or_default())?,
        action,
        request: r.request.map(changes).transpose()?,
        response: r.response.map(changes).transpose()?,
        rewrite: r.rewrite.map(rewrite).transpose()?,
        timeout: milliseconds(r.timeout_ms),
        retry: r.retry.map(retry),
        fault: r.fault,
        mirrors: r.mirrors.into_iter().map(mirror).collect::<Result<_>>()?,
        cors: r.cors.map(cors).transpose()?,
    })
}

/// Routes in order. One that cannot be read refuses what it would have matched, if that at least can be read, else everything after it.
pub fn routes(list: Vec<wire::Route>) -> Vec<Arc<Route>> {
    let one = |r: wire::Route| {
        let (name, wanted) = (r.name.clone(), r.r#match.clone().unwrap_or_default());
        let broken = |error: CompileError| {
            tracing::error!(route = name, %error, "a route cannot be read: what it matches is refused");
            Route {
                name: name.clone(),
                matched: matched(wanted).unwrap_or_default(),
                action: Action::Direct(StatusCode::INTERNAL_SERVER_ERROR, String::new()),
                request: None,
                response: None,
                rewrite: None,
                timeout: None,
                retry: None,
                fault: None,
                mirrors: Vec::new(),
                cors: None,
            }
        };
        Arc::new(route(r).unwrap_or_else(broken))
    };
    list.into_iter().map(one).collect()
}
