//! VirtualService to routes.

use super::findings::Findings;
use super::units::{self, duration, exact, header_name, header_value, pattern, share};
use crate::translate::objects::{Objects, name, namespace, service_key, service_of_host};
use std::collections::BTreeMap;
use trysail_api::istio::virtual_service::{
    Abort, Cors, Fault, HeaderChanges, Headers, Host, HttpRoute, Match, Percent, Redirect, Retries, Rewrite, Text,
    VirtualService,
};
use trysail_api::labels::RETRY_UNSAFE;
use trysail_api::object::annotation;
use trysail_wire::l7::{self as wire, path, path_change, route::Action, text};

/// Routes by service: namespace, name, routes in order.
pub fn of_services(objects: &Objects) -> Vec<(String, String, Vec<wire::Route>)> {
    let mut out: BTreeMap<(String, String), Vec<wire::Route>> = BTreeMap::new();
    let mut written: Vec<&VirtualService> = objects.virtual_services().collect();
    // The oldest counts first where several speak of one host.
    written.sort_by_key(|v| (v.metadata.creation_timestamp.as_ref().map(|t| t.0), v.metadata.name.clone()));
    for service in written {
        let own = namespace(&service.metadata);
        if !speaks_for_mesh(service) {
            continue;
        }
        let routes = routes(objects, service, &mut Findings::default());
        for host in &service.spec.hosts {
            for found in hosts(objects, host, own) {
                out.entry(found).or_default().extend(routes.iter().cloned());
            }
        }
    }
    out.into_iter().map(|((namespace, name), routes)| (namespace, name, routes)).collect()
}

fn speaks_for_mesh(service: &VirtualService) -> bool {
    service.spec.gateways.is_empty() || service.spec.gateways.iter().any(|g| g == "mesh")
}

/// The services that a host stands for; a wildcard stands for all whose name it covers.
fn hosts(objects: &Objects, host: &str, own: &str) -> Vec<(String, String)> {
    match host.strip_prefix('*') {
        None => service_of_host(host, own).into_iter().collect(),
        Some(suffix) => objects
            .services()
            .map(|s| (namespace(&s.metadata).to_owned(), name(&s.metadata).to_owned()))
            .filter(|(ns, n)| service_key(ns, n).ends_with(suffix))
            .collect(),
    }
}

/// The routes of one object.
fn routes(objects: &Objects, service: &VirtualService, findings: &mut Findings) -> Vec<wire::Route> {
    let own = namespace(&service.metadata);
    let unsafe_retry = annotation(&service.metadata, RETRY_UNSAFE) == Some("allow");
    let mut out = Vec::new();
    for (index, route) in service.spec.http.iter().enumerate() {
        let at = format!("spec.http[{index}]");
        let mut reader = Reader { objects, own, findings: &mut *findings };
        let mut base = reader.route(route, &at);
        base.name = format!("VirtualService/{own}/{}#{index}", name(&service.metadata));
        if let Some(retry) = &mut base.retry {
            retry.r#unsafe = unsafe_retry;
        }
        if route.matches.is_empty() {
            out.push(wire::Route { r#match: Some(wire::Match::default()), ..base });
            continue;
        }
        for (m, matched) in route.matches.iter().enumerate() {
            let read = reader.matched(matched, &format!("{at}.match[{m}]"));
            let mut route = wire::Route { r#match: Some(read), ..base.clone() };
            // What replaces a prefix needs a prefix; a route that matches otherwise has its whole path replaced.
            if !matches!(
                route.r#match.as_ref().and_then(|m| m.path.as_ref()?.kind.clone()),
                None | Some(path::Kind::Prefix(_))
            ) {
                for change in [route.rewrite.as_mut().and_then(|r| r.path.as_mut())].into_iter().flatten() {
                    if let Some(path_change::Kind::Prefix(whole)) = change.kind.clone() {
                        change.kind = Some(path_change::Kind::Full(whole));
                    }
                }
            }
            out.push(route);
        }
    }
    out
}

struct Reader<'a> {
    objects: &'a Objects,
    own: &'a str,
    findings: &'a mut Findings,
}

impl Reader<'_> {
    fn route(&mut self, route: &HttpRoute, at: &str) -> wire::Route {
        let mut out = wire::Route {
            timeout_ms: duration(route.timeout.as_ref(), &format!("{at}.timeout"), self.findings),
            retry: route.retries.as_ref().map(|r| self.retries(r, &format!("{at}.retries"))),
            rewrite: route.rewrite.as_ref().map(|r| self.rewrite(r, &format!("{at}.rewrite"))),
            fault: route.fault.as_ref().map(|f| self.fault(f, &format!("{at}.fault"))),
            cors: route.cors_policy.as_ref().map(|c| self.cors(c, &format!("{at}.corsPolicy"))),
            mirrors: self.mirrors(route, at),
            ..Default::default()
        };
        (out.request, out.response) = self.headers(route.headers.as_ref(), &format!("{at}.headers"));
        self.findings.unsupported(route.delegate.is_some(), format!("{at}.delegate"));
        let given = [!route.route.is_empty(), route.redirect.is_some(), route.direct_response.is_some()];
        if given.iter().filter(|g| **g).count() != 1 && route.delegate.is_none() {
            self.findings.error(at, "exactly one of route, redirect and directResponse is needed");
        }
        out.action = Some(if let Some(redirect) = &route.redirect {
            Action::Redirect(self.redirect(redirect, &format!("{at}.redirect")))
        } else if let Some(direct) = &route.direct_response {
            if !(100..600).contains(&direct.status) {
                self.findings
                    .error(format!("{at}.directResponse.status"), format!("{} is not a status", direct.status));
            }
            let body = direct.body.as_ref().and_then(|b| b.string.clone()).unwrap_or_default();
            Action::Direct(wire::Direct { status: direct.status.into(), body })
        } else {
            Action::Forward(self.forward(route, &format!("{at}.route")))
        });
        out
    }

    fn forward(&mut self, route: &HttpRoute, at: &str) -> wire::Forward {
        let single = route.route.len() == 1;
        let mut backends = Vec::new();
        for (index, destination) in route.route.iter().enumerate() {
            let at = format!("{at}[{index}]");
            let mut backend = self.backend(&destination.destination, &format!("{at}.destination"));
            backend.weight = destination.weight.unwrap_or(u32::from(single));
            if single {
                backend.weight = 1;
            }
            (backend.request, backend.response) = self.headers(destination.headers.as_ref(), &format!("{at}.headers"));
            backends.push(backend);
        }
        if !backends.is_empty() && backends.iter().all(|b| b.weight == 0) {
            self.findings.error(at, "the weights add up to nothing");
        }
        wire::Forward { backends }
    }

    fn backend(&mut self, host: &Host, at: &str) -> wire::Backend {
        let mut out = wire::Backend {
            weight: 1,
            subset: host.subset.clone().unwrap_or_default(),
            port: host.port.as_ref().map_or(0, |p| p.number.into()),
            ..Default::default()
        };
        match service_of_host(&host.host, self.own) {
            None => {
                self.findings.error(format!("{at}.host"), format!("{:?} is not a service of the cluster", host.host));
                out.invalid = format!("host {:?} is not a service of the cluster", host.host);
            }
            Some((namespace, name)) => {
                out.service = service_key(&namespace, &name);
                if self.objects.service(&namespace, &name).is_none() {
                    out.invalid = format!("service {namespace}/{name} does not exist");
                }
            }
        }
        out
    }

    fn matched(&mut self, m: &Match, at: &str) -> wire::Match {
        self.findings.unsupported(!m.source_labels.is_empty(), format!("{at}.sourceLabels"));
        self.findings.unsupported(m.gateways.iter().any(|g| g != "mesh"), format!("{at}.gateways"));
        let path = m.uri.as_ref().map(|uri| {
            let kind = match (&uri.exact, &uri.prefix, &uri.regex) {
                (Some(text), None, None) => path::Kind::Exact(text.clone()),
                (None, Some(text), None) => path::Kind::Prefix(text.clone()),
                (None, None, Some(text)) => path::Kind::Regex(pattern(text, &format!("{at}.uri.regex"), self.findings)),
                _ => {
                    self.findings.error(format!("{at}.uri"), "exactly one of exact, prefix and regex is needed");
                    path::Kind::Exact("-".to_owned())
                }
            };
            wire::Path { kind: Some(kind), ignore_case: m.ignore_uri_case.unwrap_or(false) }
        });
        let mut headers = Vec::new();
        for (list, field, not) in [(&m.headers, "headers", false), (&m.without_headers, "withoutHeaders", true)] {
            for (name, text) in list {
                let at = format!("{at}.{field}.{name}");
                header_name(name, &at, self.findings);
                headers.push(wire::Value {
                    name: name.to_ascii_lowercase(),
                    value: Some(self.text(text, &at, true)),
                    not,
                });
            }
        }
        let query = m.query_params.iter().map(|(name, text)| {
            let value = Some(self.text(text, &format!("{at}.queryParams.{name}"), true));
            wire::Value { name: name.clone(), value, not: false }
        });
        let query = query.collect();
        let mut one =
            |text: &Option<Text>, field: &str| text.as_ref().map(|t| self.text(t, &format!("{at}.{field}"), false));
        wire::Match {
            path,
            headers,
            query,
            method: one(&m.method, "method"),
            authority: one(&m.authority, "authority"),
            scheme: one(&m.scheme, "scheme"),
            port: m.port.unwrap_or(0).into(),
            hosts: Vec::new(),
            source_namespace: m.source_namespace.clone().unwrap_or_default(),
        }
    }

    /// One of three kinds; an empty one asks for presence where that is possible.
    fn text(&mut self, text: &Text, at: &str, presence: bool) -> wire::Text {
        let kind = match (&text.exact, &text.prefix, &text.regex) {
            (Some(text), None, None) => text::Kind::Exact(text.clone()),
            (None, Some(text), None) => text::Kind::Prefix(text.clone()),
            (None, None, Some(text)) => text::Kind::Regex(pattern(text, &format!("{at}.regex"), self.findings)),
            (None, None, None) if presence => text::Kind::Present(true),
            _ => {
                self.findings.error(at, "exactly one of exact, prefix and regex is needed");
                return exact("-");
            }
        };
        wire::Text { kind: Some(kind) }
    }

    fn headers(
        &mut self,
        given: Option<&Headers>,
        at: &str,
    ) -> (Option<wire::HeaderChanges>, Option<wire::HeaderChanges>) {
        let mut one =
            |changes: Option<&HeaderChanges>, side: &str| changes.map(|c| self.changes(c, &format!("{at}.{side}")));
        let request = one(given.and_then(|h| h.request.as_ref()), "request");
        (request, one(given.and_then(|h| h.response.as_ref()), "response"))
    }

    fn changes(&mut self, c: &HeaderChanges, at: &str) -> wire::HeaderChanges {
        let mut list = |map: &BTreeMap<String, String>, field: &str| {
            let each = map.iter().map(|(name, value)| {
                let at = format!("{at}.{field}.{name}");
                header_name(name.trim_start_matches(':'), &at, self.findings);
                header_value(value, &at, self.findings);
                wire::Header { name: name.to_ascii_lowercase(), value: value.clone() }
            });
            each.collect::<Vec<_>>()
        };
        let (set, add) = (list(&c.set, "set"), list(&c.add, "add"));
        wire::HeaderChanges { set, add, remove: c.remove.iter().map(|n| n.to_ascii_lowercase()).collect() }
    }

    fn retries(&mut self, r: &Retries, at: &str) -> wire::Retry {
        self.findings.unsupported(r.retry_remote_localities.is_some(), format!("{at}.retryRemoteLocalities"));
        let (mut statuses, mut conditions) = (Vec::new(), Vec::new());
        let on = r.retry_on.as_deref().unwrap_or("connect-failure,refused-stream,unavailable,cancelled");
        for word in on.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            use wire::Condition as C;
            conditions.push(match word {
                "5xx" => C::FiveXx,
                "gateway-error" => C::GatewayError,
                "reset" | "reset-before-request" => C::Reset,
                "connect-failure" => C::ConnectFailure,
                "refused-stream" => C::RefusedStream,
                "retriable-4xx" => C::Retriable4xx,
                "cancelled" => C::GrpcCancelled,
                "deadline-exceeded" => C::GrpcDeadlineExceeded,
                "resource-exhausted" => C::GrpcResourceExhausted,
                "unavailable" => C::GrpcUnavailable,
                // Istio's own word for statuses, which stand beside it.
                "retriable-status-codes" => continue,
                other => match other.parse::<u32>().ok().filter(|s| (100..600).contains(s)) {
                    Some(status) => {
                        statuses.push(status);
                        continue;
                    }
                    None => {
                        self.findings
                            .error(format!("{at}.retryOn"), format!("{other:?} is not a condition that is known"));
                        continue;
                    }
                },
            } as i32);
        }
        wire::Retry {
            attempts: r.attempts,
            per_try_timeout_ms: duration(r.per_try_timeout.as_ref(), &format!("{at}.perTryTimeout"), self.findings),
            statuses,
            conditions,
            backoff_ms: duration(r.backoff.as_ref(), &format!("{at}.backoff"), self.findings),
            r#unsafe: false,
        }
    }

    fn rewrite(&mut self, r: &Rewrite, at: &str) -> wire::Rewrite {
        let kind = match (&r.uri, &r.uri_regex_rewrite) {
            (Some(_), Some(_)) => {
                self.findings.error(at, "uri and uriRegexRewrite exclude each other");
                None
            }
            (Some(uri), None) => Some(path_change::Kind::Prefix(uri.clone())),
            (None, Some(regex)) => {
                let pattern = pattern(&regex.pattern, &format!("{at}.uriRegexRewrite.match"), self.findings);
                Some(path_change::Kind::Regex(wire::RegexChange { pattern, replacement: regex.rewrite.clone() }))
            }
            (None, None) => None,
        };
        let path = kind.map(|kind| wire::PathChange { kind: Some(kind) });
        wire::Rewrite { host: r.authority.clone().unwrap_or_default(), path }
    }

    fn redirect(&mut self, r: &Redirect, at: &str) -> wire::Redirect {
        let status = r.redirect_code.unwrap_or(301);
        if ![301, 302, 303, 307, 308].contains(&status) {
            self.findings.error(format!("{at}.redirectCode"), format!("{status} is not 301, 302, 303, 307 or 308"));
        }
        let keep_port = match r.derive_port.as_deref() {
            None | Some("FROM_PROTOCOL_DEFAULT") => r.scheme.is_none() && r.port.is_none() && r.derive_port.is_none(),
            Some("FROM_REQUEST_PORT") => true,
            Some(other) => {
                let known = "FROM_PROTOCOL_DEFAULT or FROM_REQUEST_PORT";
                self.findings.error(format!("{at}.derivePort"), format!("{other:?} is not {known}"));
                false
            }
        };
        wire::Redirect {
            scheme: r.scheme.clone().unwrap_or_default(),
            host: r.authority.clone().unwrap_or_default(),
            port: r.port.unwrap_or(0).into(),
            keep_port,
            path: r.uri.clone().map(|uri| wire::PathChange { kind: Some(path_change::Kind::Full(uri)) }),
            status: status.into(),
        }
    }

    fn percent(&mut self, percentage: Option<&Percent>, whole: Option<u32>, at: &str) -> f64 {
        let given = percentage.map(|p| p.value).or(whole.map(f64::from)).unwrap_or(100.0);
        share(given, at, self.findings)
    }

    fn fault(&mut self, f: &Fault, at: &str) -> wire::Fault {
        let mut out = wire::Fault::default();
        if let Some(delay) = &f.delay {
            let at = format!("{at}.delay");
            out.delay_ms = duration(delay.fixed_delay.as_ref(), &format!("{at}.fixedDelay"), self.findings);
            if out.delay_ms == 0 {
                self.findings.error(format!("{at}.fixedDelay"), "a length above nothing is needed");
            }
            out.delay_share = self.percent(delay.percentage.as_ref(), delay.percent, &format!("{at}.percentage"));
        }
        if let Some(abort) = &f.abort {
            self.abort(abort, &format!("{at}.abort"), &mut out);
        }
        out
    }

    fn abort(&mut self, abort: &Abort, at: &str, out: &mut wire::Fault) {
        match (abort.http_status, &abort.grpc_status) {
            (Some(status), None) if (200..600).contains(&status) => out.abort_status = status.into(),
            (None, Some(name)) => match grpc_status(name) {
                Some(status) => out.abort_grpc = status,
                None => self.findings.error(format!("{at}.grpcStatus"), format!("{name:?} is not a gRPC status")),
            },
            _ => self.findings.error(at, "exactly one of httpStatus (200 to 599) and grpcStatus is needed"),
        }
        out.abort_share = self.percent(abort.percentage.as_ref(), None, &format!("{at}.percentage"));
    }

    fn mirrors(&mut self, route: &HttpRoute, at: &str) -> Vec<wire::Mirror> {
        let mut out = Vec::new();
        if let Some(host) = &route.mirror {
            let share =
                self.percent(route.mirror_percentage.as_ref(), route.mirror_percent, &format!("{at}.mirrorPercentage"));
            out.push(wire::Mirror { backend: Some(self.backend(host, &format!("{at}.mirror"))), share });
        }
        for (index, mirror) in route.mirrors.iter().enumerate() {
            let at = format!("{at}.mirrors[{index}]");
            let share = self.percent(mirror.percentage.as_ref(), None, &format!("{at}.percentage"));
            let backend = self.backend(&mirror.destination, &format!("{at}.destination"));
            out.push(wire::Mirror { backend: Some(backend), share });
        }
        out
    }

    fn cors(&mut self, c: &Cors, at: &str) -> wire::Cors {
        let origins = c.allow_origins.iter().enumerate();
        let origins = origins.map(|(i, text)| self.text(text, &format!("{at}.allowOrigins[{i}]"), false)).collect();
        wire::Cors {
            origins,
            methods: c.allow_methods.clone(),
            headers: c.allow_headers.clone(),
            expose: c.expose_headers.clone(),
            credentials: c.allow_credentials.unwrap_or(false),
            max_age_s: duration(c.max_age.as_ref(), &format!("{at}.maxAge"), self.findings) / 1000,
        }
    }
}

fn grpc_status(name: &str) -> Option<u32> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let at = NAMES.iter().position(|n| n.eq_ignore_ascii_case(name))?;
    u32::try_from(at).ok()
}

/// Checks a VirtualService by itself.
pub fn check(service: &VirtualService, findings: &mut Findings) {
    let spec = &service.spec;
    if spec.hosts.is_empty() {
        findings.error("spec.hosts", "at least one host is needed");
    }
    for (index, host) in spec.hosts.iter().enumerate() {
        units::hostname(host, &format!("spec.hosts[{index}]"), findings);
    }
    for (index, gateway) in spec.gateways.iter().enumerate().filter(|(_, g)| *g != "mesh") {
        let message = format!(
            "{gateway:?}: Istio's own Gateway is not supported; attach an HTTPRoute to a Gateway of the Gateway API"
        );
        findings.error(format!("spec.gateways[{index}]"), message);
    }
    findings.unsupported(!spec.tcp.is_empty(), "spec.tcp");
    findings.unsupported(!spec.tls.is_empty(), "spec.tls");
    findings.unsupported(spec.export_to.iter().any(|e| e != "*"), "spec.exportTo");
    routes(&Objects::default(), service, findings);
}
