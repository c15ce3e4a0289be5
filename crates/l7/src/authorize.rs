//! What a request is asked before it goes on: well-formed, its token, its policies.

use crate::answer::Refusal;
use crate::connection::{Downstream, Hop};
use crate::headers::{self, client_address};
use crate::jwt;
use crate::reason::Reason;
use crate::record::Record;
use crate::state::{Serving, State};
use http::header::{HOST, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request::Parts};
use std::net::IpAddr;
use trysail_policy::authz::{self, Verdict};
use trysail_policy::http::{Facts, Request, evaluate};
use trysail_policy::path::Readings;

/// What a request asks for, read once.
pub struct Target {
    /// Authority as it came.
    pub authority: String,
    /// Host, lower case, without port and trailing dot.
    pub host: String,
    /// Port of the authority, or the scheme's own.
    pub host_port: u16,
    /// What the path may mean.
    pub paths: Readings,
}

fn bad(detail: impl Into<String>) -> Refusal {
    Refusal::new(Reason::BadRequest, detail)
}

/// Reads authority and path; what has no single meaning is refused.
pub fn target(parts: &Parts, scheme: &str) -> Result<Target, Refusal> {
    if !parts.method.as_str().bytes().all(|b| b.is_ascii_uppercase() || b == b'-' || b == b'_') {
        return Err(bad("the method is not upper case"));
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(bad("more than one Host"));
    }
    let host = host.map(|h| h.to_str().map_err(|_| bad("the Host is not text"))).transpose()?;
    let authority = match (parts.uri.authority(), host) {
        (Some(authority), Some(host)) if !same_host(authority.as_str(), host, scheme) => {
            return Err(bad("the request's authority and its Host differ"));
        }
        (Some(authority), _) => authority.as_str(),
        (None, Some(host)) => host,
        (None, None) if parts.version <= Version::HTTP_10 => "",
        (None, None) => return Err(bad("no Host")),
    };
    if authority.contains('@') {
        return Err(bad("the authority names a user"));
    }
    let (host, port) = split(authority);
    let default = if scheme == "https" { 443 } else { 80 };
    let path = parts.uri.path();
    let path = if path.is_empty() { if parts.method == Method::OPTIONS { "*" } else { "/" } } else { path };
    Ok(Target {
        host: normal(host),
        host_port: port.unwrap_or(default),
        authority: authority.to_owned(),
        paths: Readings::of(path).map_err(|e| bad(e.to_string()))?,
    })
}

/// Host and port; an IPv6 address keeps its brackets.
fn split(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            (host, digits.parse().ok())
        }
        Some((host, "")) => (host, None),
        _ => (authority, None),
    }
}

fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn same_host(a: &str, b: &str, scheme: &str) -> bool {
    let default = if scheme == "https" { 443 } else { 80 };
    let of = |authority| {
        let (host, port) = split(authority);
        (normal(host), port.unwrap_or(default))
    };
    of(a) == of(b)
}

/// Asks for tokens and policies where they act; the headers are changed as the tokens' rules say.
pub async fn judge(
    state: &State,
    down: &Downstream,
    (target, parts): (&Target, &mut Parts),
    record: &mut Record,
) -> Result<(), Refusal> {
    if !down.hop.enforces() {
        return Ok(());
    }
    let proxy = &down.proxy;
    let own = state.mesh.workload(&proxy.uid);
    let service = match &down.hop {
        Hop::Waypoint { service } => state.mesh.service(service),
        _ => None,
    };
    let at_gateway = matches!(down.hop, Hop::Listener);
    let gateway = (!matches!(down.hop, Hop::App { .. }))
        .then_some((proxy.settings.pod_namespace.as_str(), proxy.settings.gateway.as_str()));
    let serving = Serving {
        service: service.map(|s| &**s),
        gateway,
        class: &proxy.settings.gateway_class,
        // A waypoint's own workload is not what is called: policies by scope act at the destination.
        workload: own.map(|w| &**w).filter(|_| at_gateway || matches!(down.hop, Hop::App { .. })),
    };
    let tokens = state.tokens(&serving);
    let issuers: Vec<&jwt::Issuers> = tokens.iter().map(|t| &t.issuers).collect();
    let found = if issuers.is_empty() {
        jwt::Found::default()
    } else {
        jwt::authenticate(&issuers, &parts.headers, parts.uri.query()).await.map_err(refused_token)?
    };
    if let (Hop::App { .. }, Some(workload)) = (&down.hop, own) {
        let verdict = authz::evaluate(state.implied(workload), &down.facts);
        if verdict != Verdict::Allow {
            return Err(Refusal::denied(Reason::PeerAuthentication, verdict.to_string()));
        }
    }
    let headers = &parts.headers;
    let values = |name: &str| {
        let texts = headers.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
        texts.collect::<Vec<_>>()
    };
    let facts = Facts {
        connection: &down.facts,
        remote_ip: remote(state, down, headers),
        sni: down.sni.as_deref(),
        request: Some(Request {
            method: parts.method.as_str(),
            host: &target.host,
            port: target.host_port,
            paths: &target.paths,
            headers: &values,
            claims: found.claims.as_ref(),
        }),
    };
    let outcome = evaluate(state.policies(&serving), &facts);
    record.noted = outcome.noted;
    if outcome.verdict != Verdict::Allow {
        return Err(Refusal::denied(Reason::Authorization, outcome.verdict.to_string()));
    }
    for name in &found.remove {
        parts.headers.remove(name);
    }
    for (name, value) in &found.add {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            parts.headers.insert(name, value);
        }
    }
    Ok(())
}

/// The client's address: decided at the edge; elsewhere the caller's.
fn remote(state: &State, down: &Downstream, headers: &HeaderMap) -> IpAddr {
    match (&down.hop, &state.l7.gateway) {
        (Hop::Listener, Some(gateway)) => client_address(headers, gateway.trusted_proxies, down.facts.source_ip),
        _ => down.facts.source_ip,
    }
}

fn refused_token(why: jwt::Refused) -> Refusal {
    let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::UNAUTHORIZED);
    let mut refusal = Refusal::new(Reason::Jwt, why.to_string()).with_status(status);
    if status == StatusCode::UNAUTHORIZED {
        refusal.headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
    }
    refusal.body = why.to_string();
    refusal
}

/// Whether a connection that is not HTTP may go on to where it leads.
pub fn judge_connection(state: &State, down: &Downstream) -> Result<(), String> {
    if !down.hop.enforces() {
        return Ok(());
    }
    let proxy = &down.proxy;
    let own = state.mesh.workload(&proxy.uid);
    let service = match &down.hop {
        Hop::Waypoint { service } => state.mesh.service(service),
        _ => None,
    };
    let in_pod = matches!(down.hop, Hop::App { .. });
    let serving = Serving {
        service: service.map(|s| &**s),
        gateway: (!in_pod).then_some((proxy.settings.pod_namespace.as_str(), proxy.settings.gateway.as_str())),
        class: &proxy.settings.gateway_class,
        workload: own.map(|w| &**w).filter(|_| in_pod),
    };
    if let Some(workload) = own.filter(|_| in_pod) {
        let verdict = authz::evaluate(state.implied(workload), &down.facts);
        if verdict != Verdict::Allow {
            return Err(verdict.to_string());
        }
    }
    let facts =
        Facts { connection: &down.facts, remote_ip: down.facts.source_ip, sni: down.sni.as_deref(), request: None };
    match evaluate(state.policies(&serving), &facts).verdict {
        Verdict::Allow => Ok(()),
        no => Err(no.to_string()),
    }
}

/// Headers that a hop which has proven its caller says of it, and that nobody else may.
pub fn state_caller(down: &Downstream, headers: &mut HeaderMap) {
    if down.hop.enforces() {
        headers::client_cert(headers, &down.proxy.identity, down.source.identity.as_ref());
    }
    if matches!(down.hop, Hop::Listener) {
        headers::forwarded_for(headers, down.peer.ip());
        headers::put(headers, "x-forwarded-proto", down.scheme);
    }
}
