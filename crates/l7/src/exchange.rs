//! The life of a request: read, judged, routed, sent, answered. One readable function of named steps; what can end it early is a
//! [`Refusal`].

use crate::answer::{Answer, Outcome, Refusal, answer, grpc_status, own_answer};
use crate::authorize::{self, Target};
use crate::compile::{Action, Backend, Redirect, Route};
use crate::connection::{Downstream, Hop};
use crate::cors;
use crate::framing::Violation;
use crate::gate::Verdicts;
use crate::headers::{self};
use crate::reason::Reason;
use crate::record::{Record, Reporter};
use crate::router::{self, Asked, changed_path, weighted};
use crate::send::{self, Destined, Sending};
use crate::state::{State, default_retry};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION, SET_COOKIE, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, request::Parts};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Serves one request, whatever comes of it.
pub async fn serve(down: Arc<Downstream>, request: Request<Incoming>, verdicts: Option<&Verdicts>) -> Response<Answer> {
    let reporter = match down.hop {
        Hop::App { .. } => Reporter::destination,
        Hop::Waypoint { .. } | Hop::WaypointWorkload { .. } => Reporter::waypoint,
        Hop::Outbound { .. } | Hop::Listener => Reporter::source,
    };
    let mut record = Record::begin(&down.proxy.sinks, reporter);
    let violation = verdicts.and_then(Verdicts::next_request);
    let asks_upgrade = verdicts.filter(|_| request.headers().contains_key(UPGRADE));
    let grpc = headers::is_grpc(request.headers());
    let mut outcome = exchange(&down, request, violation, &mut record).await;
    if let (Some(verdicts), Ok(sent)) = (asks_upgrade, &outcome) {
        verdicts.upgraded(sent.response.status() == StatusCode::SWITCHING_PROTOCOLS);
    } else if let Some(verdicts) = asks_upgrade {
        verdicts.upgraded(false);
    }
    match &mut outcome {
        Ok(sent) => record.status = sent.response.status().as_u16(),
        Err(refusal) => {
            record.status = refusal.status.as_u16();
            record.failed(refusal.reason, refusal.detail.clone());
        }
    }
    match outcome {
        Ok(sent) => answer(down, sent, record),
        Err(refusal) => {
            let response = own_answer(&refusal, grpc);
            record.sent = refusal.body.len() as u64;
            if grpc {
                record.grpc_status = Some(grpc_status(refusal.status).to_owned());
            }
            record.finish();
            response
        }
    }
}

async fn exchange(
    down: &Arc<Downstream>,
    request: Request<Incoming>,
    violation: Option<Violation>,
    record: &mut Record,
) -> Result<Outcome, Refusal> {
    record.peer = Some(down.peer);
    record.source = down.source.clone();
    record.mutual = down.mutual;
    if let Some(why) = violation {
        let reason = if why == Violation::HeadTooLarge { Reason::HeadTooLarge } else { Reason::BadRequest };
        let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::BAD_REQUEST);
        return Err(Refusal::new(reason, why.to_string()).with_status(status));
    }
    let (mut parts, body) = request.into_parts();
    describe(down, &parts, record);
    let target = authorize::target(&parts, down.scheme)?;
    record.authority.clone_from(&target.authority);
    let state = down.proxy.state.load();
    headers::strip_internal(&mut parts.headers);
    follow_trace(down, &mut parts, record);
    authorize::judge(&state, down, (&target, &mut parts), record).await?;
    authorize::state_caller(down, &mut parts.headers);
    let routed = route(&state, down, (&target, &parts), record)?;
    let began = Instant::now();
    let deadline = routed.route.as_ref().and_then(|r| r.timeout).map(|t| began + t);
    if let Some(route) = &routed.route {
        fault(route).await?;
        if let Some(own) = direct(down, &target, &parts, route) {
            return Ok(own);
        }
    }
    // Only a rule of cross-origin sharing looks at the request again.
    let shared = routed.route.as_ref().is_some_and(|r| r.cors.is_some());
    let origin = (if shared { parts.headers.clone() } else { HeaderMap::new() }, parts.version);
    let backend = match &routed.route {
        Some(route) => Some(backend(route)?),
        None => None,
    };
    if let Some(redirect) = backend.and_then(|b| b.redirect.as_ref()) {
        let matched = routed.route.as_ref().map_or(0, |r| r.matched.prefix_length());
        return Ok(redirected(down, (&target, &parts), redirect, matched));
    }
    let rewritten = rewrite(&routed, backend, (&target, &mut parts));
    let destined = destined(&state, down, backend, record)?;
    let sending = Sending {
        down,
        destined,
        parts,
        authority: rewritten,
        body: Some(body),
        retry: routed.route.as_ref().and_then(|r| r.retry.clone()).unwrap_or_else(default_retry),
        deadline,
        mirrors: routed.route.as_ref().map(|r| r.mirrors.clone()).unwrap_or_default(),
    };
    let sent = send::send(sending, record).await?;
    Ok(finish(sent, &routed, backend, (&origin.0, origin.1), deadline))
}

fn describe(down: &Downstream, parts: &Parts, record: &mut Record) {
    record.method = parts.method.to_string();
    record.path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    record.protocol = match parts.version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    record.grpc = headers::is_grpc(&parts.headers);
    if matches!(down.hop, Hop::Outbound { .. } | Hop::Listener) {
        let state = down.proxy.state.load();
        record.source.workload = state.mesh.workload(&down.proxy.uid).cloned();
    }
}

fn follow_trace(down: &Downstream, parts: &mut Parts, record: &mut Record) {
    record.request_id = headers::request_id(&mut parts.headers);
    let tracer = &down.proxy.sinks.tracer;
    // Without a receiver of one's own, what a caller says goes on as it came.
    if tracer.is_on() {
        let context = crate::trace::Context::follow(&parts.headers, tracer.samples());
        context.pass_on(&mut parts.headers);
        record.trace = Some(context);
    }
}

/// The route that a request takes; none: straight to what was called.
struct Routed {
    route: Option<Arc<Route>>,
    matched: usize,
}

fn route(
    state: &State,
    down: &Downstream,
    (target, parts): (&Target, &Parts),
    record: &mut Record,
) -> Result<Routed, Refusal> {
    let caller = down.source.identity.as_ref().map(|id| id.namespace.to_string());
    let own = &down.proxy.settings.pod_namespace;
    let straight = Ok(Routed { route: None, matched: 0 });
    let list = match &down.hop {
        Hop::App { .. } | Hop::WaypointWorkload { .. } => return straight,
        Hop::Outbound { service } => match state.routes(service, down.port, own) {
            Some(list) => list,
            None => return straight,
        },
        Hop::Waypoint { service } => match state.routes(service, down.port, "") {
            Some(list) => list,
            None => return straight,
        },
        Hop::Listener => listener_routes(state, down, target)?,
    };
    let source = if matches!(down.hop, Hop::Outbound { .. }) { own.as_str() } else { caller.as_deref().unwrap_or("") };
    let asked = Asked {
        path: &target.paths.resolved,
        query: parts.uri.query(),
        method: parts.method.as_str(),
        host: &target.host,
        authority: &target.authority,
        scheme: down.scheme,
        port: down.port,
        headers: &parts.headers,
        source_namespace: source,
    };
    let found = router::find(list, &asked).ok_or_else(|| Refusal::new(Reason::NoRoute, "no route matches"))?;
    record.route.clone_from(&found.name);
    Ok(Routed { matched: found.matched.prefix_length(), route: Some(found.clone()) })
}

/// The routes of the most specific listener of the port that covers the host.
fn listener_routes<'a>(state: &'a State, down: &Downstream, target: &Target) -> Result<&'a [Arc<Route>], Refusal> {
    let gateway =
        state.l7.gateway.as_ref().ok_or_else(|| Refusal::new(Reason::NotReady, "no listener is known yet"))?;
    let covers = |host: &str| host.is_empty() || router::host_holds(host, &target.host);
    let listeners = gateway.listeners.iter().filter(|l| l.port == down.port && covers(&l.hostname));
    let best = listeners.max_by_key(|l| (!l.hostname.starts_with('*') && !l.hostname.is_empty(), l.hostname.len()));
    let best = best.ok_or_else(|| Refusal::new(Reason::NoRoute, format!("no listener for {}", target.host)))?;
    // A connection whose handshake was for another listener carries nothing for this one.
    let misdirected =
        down.sni.as_ref().is_some_and(|sni| !best.hostname.is_empty() && !router::host_holds(&best.hostname, sni));
    if misdirected {
        return Err(Refusal::new(Reason::NoRoute, "the connection is another host's")
            .with_status(StatusCode::MISDIRECTED_REQUEST));
    }
    Ok(&best.routes)
}

async fn fault(route: &Route) -> Result<(), Refusal> {
    let Some(fault) = &route.fault else { return Ok(()) };
    let hit = |share: f64| share > 0.0 && rand::random::<f64>() * 100.0 < share;
    if hit(fault.delay_share) {
        tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
    }
    if !hit(fault.abort_share) {
        return Ok(());
    }
    let mut refusal = Refusal::new(Reason::Fault, "fault filter abort");
    refusal.body = "fault filter abort".to_owned();
    match u16::try_from(fault.abort_status).ok().and_then(|s| StatusCode::from_u16(s).ok()) {
        Some(status) => Err(refusal.with_status(status)),
        None => {
            refusal.headers.push((HeaderName::from_static("grpc-status"), fault.abort_grpc.into()));
            Err(refusal.with_status(StatusCode::OK))
        }
    }
}

/// An answer of the proxy's own, if the route or its CORS rule has one.
fn direct(down: &Downstream, target: &Target, parts: &Parts, route: &Route) -> Option<Outcome> {
    if let Some(headers) = route.cors.as_ref().and_then(|c| cors::preflight(c, &parts.method, &parts.headers)) {
        let mut response = Response::new(None);
        *response.headers_mut() = headers;
        return Some(Outcome::own(response, Bytes::new()));
    }
    let mut own = match &route.action {
        Action::Forward(_) => return None,
        Action::Redirect(redirect) => redirected(down, (target, parts), redirect, route.matched.prefix_length()),
        Action::Direct(status, body) => {
            let mut response = Response::new(None);
            *response.status_mut() = *status;
            if !body.is_empty() {
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            }
            Outcome::own(response, Bytes::from(body.clone()))
        }
    };
    if let Some(changes) = &route.response {
        headers::change(own.response.headers_mut(), changes);
    }
    Some(own)
}

fn redirected(down: &Downstream, (target, parts): (&Target, &Parts), r: &Redirect, matched: usize) -> Outcome {
    let scheme = r.scheme.as_deref().unwrap_or(down.scheme);
    let bare = target.authority.rsplit_once(':').filter(|(_, d)| d.bytes().all(|b| b.is_ascii_digit()));
    let host = r.host.as_deref().unwrap_or(bare.map_or(&target.authority, |(h, _)| h));
    let default = if scheme == "https" { 443 } else { 80 };
    let kept = if matches!(down.hop, Hop::Listener) { down.port } else { target.host_port };
    let port = r.port.or(r.keep_port.then_some(kept)).filter(|p| *p != default);
    let path = match &r.path {
        Some(change) => changed_path(change, &target.paths.resolved, matched),
        None => parts.uri.path().to_owned(),
    };
    let query = parts.uri.query().filter(|_| !path.contains('?')).map(|q| format!("?{q}")).unwrap_or_default();
    let port = port.map(|p| format!(":{p}")).unwrap_or_default();
    let mut response = Response::new(None);
    *response.status_mut() = r.status;
    if let Ok(location) = HeaderValue::from_str(&format!("{scheme}://{host}{port}{path}{query}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    Outcome::own(response, Bytes::new())
}

/// The backend that takes the request, by weight.
fn backend(route: &Route) -> Result<&Backend, Refusal> {
    let Action::Forward(backends) = &route.action else {
        return Err(Refusal::new(Reason::InvalidBackend, "the route leads nowhere"));
    };
    let chosen = weighted(backends, rand::random())
        .ok_or_else(|| Refusal::new(Reason::InvalidBackend, "the route's weights add up to nothing"))?;
    match &chosen.invalid {
        Some(why) => Err(Refusal::new(Reason::InvalidBackend, why.clone())),
        None => Ok(chosen),
    }
}

/// Makes the route's and the backend's changes of the request; the authority that it goes on with.
fn rewrite(routed: &Routed, backend: Option<&Backend>, (target, parts): (&Target, &mut Parts)) -> String {
    let mut authority = target.authority.clone();
    let route = routed.route.as_deref();
    let rewrites = [route.and_then(|r| r.rewrite.as_ref()), backend.and_then(|b| b.rewrite.as_ref())];
    for rewrite in rewrites.into_iter().flatten() {
        if let Some(host) = &rewrite.host {
            authority.clone_from(host);
        }
        if let Some(change) = &rewrite.path {
            let path = changed_path(change, &target.paths.resolved, routed.matched);
            let query = parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
            if let Ok(uri) = format!("{path}{query}").parse() {
                parts.uri = uri;
            }
        }
    }
    for changes in
        [route.and_then(|r| r.request.as_ref()), backend.and_then(|b| b.request.as_ref())].into_iter().flatten()
    {
        headers::change(&mut parts.headers, changes);
        if let Some(host) = &changes.authority {
            authority.clone_from(host);
        }
    }
    if authority != target.authority || !parts.headers.contains_key(HOST) {
        headers::put(&mut parts.headers, "host", &authority);
    }
    authority
}

/// Where the request goes, by the hop and the backend.
fn destined(
    state: &Arc<State>,
    down: &Downstream,
    backend: Option<&Backend>,
    record: &mut Record,
) -> Result<Destined, Refusal> {
    match (&down.hop, backend) {
        (Hop::App { address }, _) => {
            record.destination.workload = state.mesh.workload(&down.proxy.uid).cloned();
            record.destination.identity = Some(down.proxy.identity.clone());
            let port = address.port();
            let own = record.destination.workload.as_ref();
            let service = own.and_then(|w| w.services.iter().find(|(_, ports)| ports.values().any(|p| *p == port)));
            record.service = service.and_then(|(key, _)| state.mesh.service(key)).cloned();
            Ok(Destined::App { address: *address, service: record.service.clone() })
        }
        (Hop::WaypointWorkload { uid, address }, _) => {
            let gone = || Refusal::new(Reason::NoEndpoint, format!("{uid} is gone"));
            let workload = state.mesh.workload(uid).cloned().ok_or_else(gone)?;
            Ok(Destined::Workload { workload, address: *address })
        }
        (Hop::Outbound { service } | Hop::Waypoint { service }, None) => {
            let port = down.port;
            let found = state.mesh.service(service).cloned();
            let service = found.ok_or_else(|| Refusal::new(Reason::NoEndpoint, format!("{service} is gone")))?;
            record.service = Some(service.clone());
            Ok(Destined::Service { service, port, subset: String::new() })
        }
        (_, Some(backend)) => {
            let missing = || Refusal::new(Reason::InvalidBackend, format!("{} does not exist", backend.service));
            let service = state.mesh.service(&backend.service).cloned().ok_or_else(missing)?;
            // A backend without a port is called on the port that was called, or on the only one it has.
            let only = service.ports.first().filter(|_| service.ports.len() == 1).map(|p| p.port);
            let called = Some(down.port).filter(|p| service.ports.iter().any(|own| own.port == *p));
            let port = Some(backend.port).filter(|p| *p > 0).or(called).or(only).unwrap_or(down.port);
            record.service = Some(service.clone());
            Ok(Destined::Service { service, port, subset: backend.subset.clone() })
        }
        (Hop::Listener, None) => Err(Refusal::new(Reason::NoRoute, "no route matches")),
    }
}

/// The answer's way back: what the route changes in it.
fn finish(
    sent: send::Answered,
    routed: &Routed,
    backend: Option<&Backend>,
    (origin, origin_version): (&HeaderMap, Version),
    deadline: Option<Instant>,
) -> Outcome {
    let mut response = sent.response;
    let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let extended = switching && origin_version == Version::HTTP_2;
    if extended {
        // An extended CONNECT is agreed to with 200 (RFC 8441).
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().remove("sec-websocket-accept");
    }
    let out = response.headers_mut();
    headers::strip_hop(out, switching && !extended);
    let route = routed.route.as_deref();
    for changes in
        [route.and_then(|r| r.response.as_ref()), backend.and_then(|b| b.response.as_ref())].into_iter().flatten()
    {
        headers::change(out, changes);
    }
    if let Some(cors) = route.and_then(|r| r.cors.as_ref()) {
        cors::answer(cors, origin, out);
    }
    if let Some(cookie) = sent.cookie.and_then(|c| HeaderValue::from_str(&c).ok()) {
        out.append(SET_COOKIE, cookie);
    }
    let (parts, body) = response.into_parts();
    Outcome {
        response: Response::from_parts(parts, Some(body)),
        connection: sent.connection,
        held: sent.held,
        uses: sent.uses,
        deadline: if switching { None } else { deadline },
        own_body: Bytes::new(),
    }
}

/// Whether a method may be repeated without harm (RFC 9110, 9.2.2).
pub fn idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE)
}
