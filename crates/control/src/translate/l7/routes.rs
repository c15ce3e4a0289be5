//! HTTPRoute and GRPCRoute to routes, for gateways' listeners and for services.

use super::findings::Findings;
use super::units::{duration, exact, header_name, header_value, hostname, method, pattern};
use crate::translate::objects::{Objects, name, namespace, service_key};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trysail_api::gateway::GROUP;
use trysail_api::gateway::route::{
    BackendRef, GrpcMatch, GrpcRoute, HeaderModifier, HttpFilter, HttpMatch, HttpRoute, HttpRule, ParentRef,
    PathModifier, Redirect, ValueMatch,
};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use trysail_api::labels::RETRY_UNSAFE;
use trysail_api::object::{Object, annotation};
use trysail_wire::l7::{self as wire, path, path_change, route::Action, text};

/// Routes of a service, for its callers.
pub enum For {
    /// All.
    Everyone(Vec<wire::Route>),
    /// Those of one namespace.
    Namespace(String, Vec<wire::Route>),
}

/// One route object, whichever kind.
#[derive(Clone)]
pub struct Written<'a> {
    /// Kind.
    pub kind: &'static str,
    /// Metadata.
    pub meta: &'a ObjectMeta,
    /// Parents.
    pub parents: &'a [ParentRef],
    /// Hosts.
    pub hosts: &'a [String],
    /// Its rules, as HTTP.
    rules: Vec<Rule<'a>>,
}

#[derive(Clone)]
struct Rule<'a> {
    matches: Vec<wire::Match>,
    filters: &'a [HttpFilter],
    backends: &'a [BackendRef],
    http: Option<&'a HttpRule>,
}

/// A route with what its place among others depends on.
pub struct Ranked {
    rank: Rank,
    /// The route.
    pub route: wire::Route,
}

/// Sorted ascending: the first matches first (Gateway API's precedence of rules).
type Rank = (
    Reverse<(bool, usize)>,
    Reverse<(u8, usize)>,
    Reverse<bool>,
    Reverse<usize>,
    Reverse<usize>,
    String,
    String,
    usize,
);

/// Puts routes in order.
pub fn ordered(mut routes: Vec<Ranked>) -> Vec<wire::Route> {
    routes.sort_by(|a, b| a.rank.cmp(&b.rank));
    routes.into_iter().map(|r| r.route).collect()
}

/// Every HTTPRoute and GRPCRoute.
pub fn all(objects: &Objects) -> Vec<Written<'_>> {
    let findings = &mut Findings::default();
    let http: Vec<_> = objects.http_routes().map(|r| http(r, findings)).collect();
    http.into_iter().chain(objects.grpc_routes().map(|r| grpc(r, findings)).collect::<Vec<_>>()).collect()
}

/// An object as a route, if it is one.
pub fn read(object: &Object) -> Option<Written<'_>> {
    match object {
        Object::HTTPRoute(route) => Some(http(route, &mut Findings::default())),
        Object::GRPCRoute(route) => Some(grpc(route, &mut Findings::default())),
        _ => None,
    }
}

fn http<'a>(route: &'a HttpRoute, findings: &mut Findings) -> Written<'a> {
    let rules = route.spec.rules.iter().enumerate().map(|(index, rule)| {
        let at = format!("spec.rules[{index}]");
        let matches =
            rule.matches.iter().enumerate().map(|(i, m)| http_match(m, &format!("{at}.matches[{i}]"), findings));
        let mut matches: Vec<wire::Match> = matches.collect();
        if matches.is_empty() {
            matches.push(http_match(&HttpMatch::default(), &at, findings));
        }
        Rule { matches, filters: &rule.filters, backends: &rule.backend_refs, http: Some(rule) }
    });
    let rules = rules.collect();
    Written {
        kind: "HTTPRoute",
        meta: &route.metadata,
        parents: &route.spec.parent_refs,
        hosts: &route.spec.hostnames,
        rules,
    }
}

fn grpc<'a>(route: &'a GrpcRoute, findings: &mut Findings) -> Written<'a> {
    let rules = route.spec.rules.iter().enumerate().map(|(index, rule)| {
        let at = format!("spec.rules[{index}]");
        let matches =
            rule.matches.iter().enumerate().map(|(i, m)| grpc_match(m, &format!("{at}.matches[{i}]"), findings));
        let mut matches: Vec<wire::Match> = matches.collect();
        if matches.is_empty() {
            matches.push(grpc_match(&GrpcMatch::default(), &at, findings));
        }
        Rule { matches, filters: &rule.filters, backends: &rule.backend_refs, http: None }
    });
    let rules = rules.collect();
    Written {
        kind: "GRPCRoute",
        meta: &route.metadata,
        parents: &route.spec.parent_refs,
        hosts: &route.spec.hostnames,
        rules,
    }
}

/// Routes that have a service as parent.
pub fn of_services(objects: &Objects) -> Vec<(String, String, For)> {
    let mut found: BTreeMap<(String, String, Option<String>), Vec<Ranked>> = BTreeMap::new();
    for written in all(objects) {
        let own = namespace(written.meta);
        for parent in written.parents.iter().filter(|p| p.kind.as_deref() == Some("Service")) {
            let place = parent.namespace.as_deref().unwrap_or(own);
            // A route in another namespace than the service's is its callers' there alone.
            let caller = (place != own).then(|| own.to_owned());
            let routes = written.routes(objects, parent.port.unwrap_or(0), &[]);
            found.entry((place.to_owned(), parent.name.clone(), caller)).or_default().extend(routes);
        }
    }
    let each = |((namespace, name, caller), routes): ((String, String, Option<String>), Vec<Ranked>)| {
        let routes = ordered(routes);
        let routes = match caller {
            None => For::Everyone(routes),
            Some(caller) => For::Namespace(caller, routes),
        };
        (namespace, name, routes)
    };
    found.into_iter().map(each).collect()
}

impl Written<'_> {
    /// What is wrong with the first backend that cannot be used, `Reason: message`.
    pub fn unresolved(&self, objects: &Objects) -> Option<String> {
        let routes = self.routes(objects, 0, &[]);
        let backends = routes.iter().flat_map(|r| match &r.route.action {
            Some(Action::Forward(forward)) => forward.backends.as_slice(),
            _ => &[],
        });
        let mirrored = routes.iter().flat_map(|r| r.route.mirrors.iter().filter_map(|m| m.backend.as_ref()));
        let wrong = backends.chain(mirrored).map(|b| &b.invalid).find(|problem| !problem.is_empty());
        wrong.cloned()
    }

    /// The routes, for one port (0: any) and for `hosts` (empty: any).
    pub fn routes(&self, objects: &Objects, port: u16, hosts: &[String]) -> Vec<Ranked> {
        let mut out = Vec::new();
        let own = namespace(self.meta);
        let made = self.meta.creation_timestamp.as_ref().map(|t| t.0.to_string()).unwrap_or_default();
        let unsafe_retry = annotation(self.meta, RETRY_UNSAFE) == Some("allow");
        let mut resolver = Resolver { objects, kind: self.kind, namespace: own };
        for (index, rule) in self.rules.iter().enumerate() {
            let at = format!("spec.rules[{index}]");
            let label = format!("{}/{own}/{}#{index}", self.kind, name(self.meta));
            let base = resolver.rule(rule, &at, unsafe_retry, &mut Findings::default());
            for matched in &rule.matches {
                let matched = wire::Match { port: port.into(), hosts: hosts.to_vec(), ..matched.clone() };
                let host = hosts.iter().map(|h| (!h.starts_with("*."), h.len())).max().unwrap_or((false, 0));
                let rank = (
                    Reverse(host),
                    Reverse(path_rank(matched.path.as_ref())),
                    Reverse(matched.method.is_some()),
                    Reverse(matched.headers.len()),
                    Reverse(matched.query.len()),
                    made.clone(),
                    format!("{own}/{}", name(self.meta)),
                    index,
                );
                let route = wire::Route { name: label.clone(), r#match: Some(matched), ..base.clone() };
                out.push(Ranked { rank, route });
            }
        }
        out
    }
}

fn path_rank(path: Option<&wire::Path>) -> (u8, usize) {
    match path.and_then(|p| p.kind.as_ref()) {
        Some(path::Kind::Exact(text)) => (3, text.len()),
        Some(path::Kind::Regex(text)) => (2, text.len()),
        Some(path::Kind::Segments(text) | path::Kind::Prefix(text)) => (1, text.len()),
        None => (0, 0),
    }
}

fn http_match(m: &HttpMatch, at: &str, findings: &mut Findings) -> wire::Match {
    let value = m.path.as_ref().and_then(|p| p.value.clone()).unwrap_or_else(|| "/".to_owned());
    let field = format!("{at}.path.value");
    if m.path.is_some() && !value.starts_with('/') {
        findings.error(&field, "a path begins with a slash");
    }
    let kind = match m.path.as_ref().and_then(|p| p.kind.as_deref()).unwrap_or("PathPrefix") {
        "Exact" => path::Kind::Exact(value),
        "PathPrefix" => path::Kind::Segments(value),
        "RegularExpression" => path::Kind::Regex(pattern(&value, &field, findings)),
        other => {
            findings
                .error(format!("{at}.path.type"), format!("{other:?} is not Exact, PathPrefix or RegularExpression"));
            path::Kind::Exact(value)
        }
    };
    if let Some(given) = &m.method {
        method(given, &format!("{at}.method"), findings);
    }
    wire::Match {
        path: Some(wire::Path { kind: Some(kind), ignore_case: false }),
        headers: values(&m.headers, &format!("{at}.headers"), true, findings),
        query: values(&m.query_params, &format!("{at}.queryParams"), false, findings),
        method: m.method.as_deref().map(exact),
        ..wire::Match::default()
    }
}

fn values(list: &[ValueMatch], at: &str, headers: bool, findings: &mut Findings) -> Vec<wire::Value> {
    let mut out: Vec<wire::Value> = Vec::new();
    for (index, v) in list.iter().enumerate() {
        let field = format!("{at}[{index}]");
        let wanted = if headers { v.name.to_ascii_lowercase() } else { v.name.clone() };
        if headers {
            header_name(&v.name, &format!("{field}.name"), findings);
        }
        let kind = match v.kind.as_deref().unwrap_or("Exact") {
            "Exact" => text::Kind::Exact(v.value.clone()),
            "RegularExpression" => text::Kind::Regex(pattern(&v.value, &format!("{field}.value"), findings)),
            other => {
                findings.error(format!("{field}.type"), format!("{other:?} is not Exact or RegularExpression"));
                text::Kind::Exact(v.value.clone())
            }
        };
        // Of several entries of one name the first counts (Gateway API).
        if !out.iter().any(|o| o.name == wanted) {
            out.push(wire::Value { name: wanted, value: Some(wire::Text { kind: Some(kind) }), not: false });
        }
    }
    out
}

fn grpc_match(m: &GrpcMatch, at: &str, findings: &mut Findings) -> wire::Match {
    let method = m.method.clone().unwrap_or_default();
    let (service, call) = (method.service.as_deref(), method.method.as_deref());
    let kind = match method.kind.as_deref().unwrap_or("Exact") {
        "Exact" => match (service, call) {
            (Some(service), Some(call)) => path::Kind::Exact(format!("/{service}/{call}")),
            (Some(service), None) => path::Kind::Prefix(format!("/{service}/")),
            (None, Some(call)) => path::Kind::Regex(format!("/[^/]+/{}", regex::escape(call))),
            (None, None) => path::Kind::Segments("/".to_owned()),
        },
        "RegularExpression" => {
            let text = format!("/{}/{}", service.unwrap_or("[^/]+"), call.unwrap_or("[^/]+"));
            path::Kind::Regex(pattern(&text, &format!("{at}.method"), findings))
        }
        other => {
            findings.error(format!("{at}.method.type"), format!("{other:?} is not Exact or RegularExpression"));
            path::Kind::Exact("/".to_owned())
        }
    };
    wire::Match {
        path: Some(wire::Path { kind: Some(kind), ignore_case: false }),
        headers: values(&m.headers, &format!("{at}.headers"), true, findings),
        ..wire::Match::default()
    }
}

/// Resolves what a route refers to.
struct Resolver<'a> {
    objects: &'a Objects,
    kind: &'static str,
    namespace: &'a str,
}

impl Resolver<'_> {
    fn rule(&mut self, rule: &Rule<'_>, at: &str, unsafe_retry: bool, findings: &mut Findings) -> wire::Route {
        let mut out = wire::Route::default();
        let mut redirect = None;
        for (index, filter) in rule.filters.iter().enumerate() {
            let field = format!("{at}.filters[{index}]");
            if let Some(found) = self.filter(filter, &field, &mut out, findings) {
                redirect = Some(found);
            }
        }
        let backends = rule.backends.iter().enumerate();
        let mut backends: Vec<_> =
            backends.map(|(i, b)| self.backend(b, &format!("{at}.backendRefs[{i}]"), findings)).collect();
        if backends.is_empty() && redirect.is_none() {
            backends.push(wire::Backend {
                weight: 1,
                invalid: "the rule has no backends".into(),
                ..Default::default()
            });
        }
        out.action = Some(match redirect {
            Some(redirect) => Action::Redirect(redirect),
            None => Action::Forward(wire::Forward { backends }),
        });
        if let Some(http) = rule.http {
            times(http, at, &mut out, unsafe_retry, findings);
        }
        out
    }

    /// Takes a filter in; a redirect is returned, since it stands instead of backends.
    fn filter(
        &self,
        filter: &HttpFilter,
        at: &str,
        out: &mut wire::Route,
        findings: &mut Findings,
    ) -> Option<wire::Redirect> {
        let mut missing =
            |field: &str| findings.error(format!("{at}.{field}"), format!("needed by type {}", filter.kind));
        match filter.kind.as_str() {
            "RequestHeaderModifier" => match &filter.request_header_modifier {
                Some(m) => out.request = Some(headers(m, &format!("{at}.requestHeaderModifier"), findings)),
                None => missing("requestHeaderModifier"),
            },
            "ResponseHeaderModifier" => match &filter.response_header_modifier {
                Some(m) => out.response = Some(headers(m, &format!("{at}.responseHeaderModifier"), findings)),
                None => missing("responseHeaderModifier"),
            },
            "RequestRedirect" => match &filter.request_redirect {
                Some(r) => return Some(redirect(r, &format!("{at}.requestRedirect"), findings)),
                None => missing("requestRedirect"),
            },
            "URLRewrite" => match &filter.url_rewrite {
                Some(r) => {
                    let path = r.path.as_ref().and_then(|p| path_change(p, &format!("{at}.urlRewrite.path"), findings));
                    out.rewrite = Some(wire::Rewrite { host: r.hostname.clone().unwrap_or_default(), path });
                }
                None => missing("urlRewrite"),
            },
            "RequestMirror" => match &filter.request_mirror {
                Some(m) => {
                    let backend = self.backend(&m.backend_ref, &format!("{at}.requestMirror.backendRef"), findings);
                    let fraction = m.fraction.as_ref().map(|f| {
                        let below = f.denominator.unwrap_or(100).max(1);
                        f64::from(f.numerator) * 100.0 / f64::from(below)
                    });
                    let share = m.percent.map(f64::from).or(fraction).unwrap_or(100.0);
                    let share = super::units::share(share, &format!("{at}.requestMirror"), findings);
                    out.mirrors.push(wire::Mirror { backend: Some(backend), share });
                }
                None => missing("requestMirror"),
            },
            "CORS" => match &filter.cors {
                Some(c) => out.cors = Some(cors(c)),
                None => missing("cors"),
            },
            other => {
                findings.error(format!("{at}.type"), format!("{other:?} is not a filter that is supported"));
                // A filter that is not understood must not be skipped.
                out.action = None;
                return Some(wire::Redirect { status: 500, ..Default::default() });
            }
        }
        None
    }

    fn backend(&self, b: &BackendRef, at: &str, findings: &mut Findings) -> wire::Backend {
        let place = b.namespace.as_deref().unwrap_or(self.namespace);
        let mut out = wire::Backend {
            service: service_key(place, &b.name),
            port: b.port.unwrap_or(0).into(),
            weight: b.weight.unwrap_or(1),
            ..Default::default()
        };
        let kind = b.kind.as_deref().unwrap_or("Service");
        out.invalid = if kind != "Service" || !b.group.as_deref().unwrap_or("").is_empty() {
            format!("InvalidKind: {kind} is not a backend that is supported")
        } else if place != self.namespace && !self.granted(place, "Service", &b.name) {
            format!(
                "RefNotPermitted: no ReferenceGrant in {place} lets {} of {} refer to it",
                self.kind, self.namespace
            )
        } else if b.port.is_none() {
            "a port is needed".to_owned()
        } else if self.objects.service(place, &b.name).is_none() {
            format!("BackendNotFound: service {place}/{} does not exist", b.name)
        } else {
            String::new()
        };
        if b.port.is_none() && kind == "Service" {
            findings.error(format!("{at}.port"), "needed for a Service");
        }
        let mut changes = wire::Route::default();
        for (index, filter) in b.filters.iter().enumerate() {
            out.redirect = self.filter(filter, &format!("{at}.filters[{index}]"), &mut changes, findings);
        }
        (out.request, out.response, out.rewrite) = (changes.request, changes.response, changes.rewrite);
        out
    }

    fn granted(&self, to: &str, kind: &str, target: &str) -> bool {
        granted(self.objects, (GROUP, self.kind, self.namespace), (kind, to, target))
    }
}

/// Whether a ReferenceGrant lets `from` (group, kind, namespace) refer to `to` (kind of the core group, namespace, name).
pub fn granted(objects: &Objects, from: (&str, &str, &str), to: (&str, &str, &str)) -> bool {
    objects.reference_grants().filter(|g| namespace(&g.metadata) == to.1).any(|g| {
        g.spec.from.iter().any(|f| (f.group.as_str(), f.kind.as_str(), f.namespace.as_str()) == from)
            && g.spec
                .to
                .iter()
                .any(|t| t.group.is_empty() && t.kind == to.0 && t.name.as_ref().is_none_or(|n| n == to.2))
    })
}

fn times(rule: &HttpRule, at: &str, out: &mut wire::Route, unsafe_retry: bool, findings: &mut Findings) {
    let timeouts = rule.timeouts.clone().unwrap_or_default();
    out.timeout_ms = duration(timeouts.request.as_ref(), &format!("{at}.timeouts.request"), findings);
    let each = duration(timeouts.backend_request.as_ref(), &format!("{at}.timeouts.backendRequest"), findings);
    if out.timeout_ms > 0 && each > out.timeout_ms {
        findings.error(format!("{at}.timeouts.backendRequest"), "longer than the whole request may take");
    }
    if each == 0 && rule.retry.is_none() {
        return;
    }
    let retry = rule.retry.clone().unwrap_or_default();
    for (index, code) in retry.codes.iter().enumerate().filter(|(_, c)| !(400..600).contains(*c)) {
        findings.error(format!("{at}.retry.codes[{index}]"), format!("{code} is not between 400 and 599"));
    }
    let conditions = if rule.retry.is_some() {
        vec![wire::Condition::Reset as i32, wire::Condition::ConnectFailure as i32]
    } else {
        Vec::new()
    };
    out.retry = Some(wire::Retry {
        attempts: retry.attempts.unwrap_or(u32::from(rule.retry.is_some())),
        per_try_timeout_ms: each,
        statuses: retry.codes.iter().map(|c| u32::from(*c)).collect(),
        conditions,
        backoff_ms: duration(retry.backoff.as_ref(), &format!("{at}.retry.backoff"), findings),
        r#unsafe: unsafe_retry,
    });
}

fn headers(m: &HeaderModifier, at: &str, findings: &mut Findings) -> wire::HeaderChanges {
    let mut list = |headers: &[trysail_api::gateway::route::Header], field: &str| {
        let each = headers.iter().enumerate().map(|(index, h)| {
            let at = format!("{at}.{field}[{index}]");
            header_name(&h.name, &format!("{at}.name"), findings);
            header_value(&h.value, &format!("{at}.value"), findings);
            wire::Header { name: h.name.to_ascii_lowercase(), value: h.value.clone() }
        });
        each.collect::<Vec<_>>()
    };
    let (set, add) = (list(&m.set, "set"), list(&m.add, "add"));
    wire::HeaderChanges { set, add, remove: m.remove.iter().map(|n| n.to_ascii_lowercase()).collect() }
}

fn redirect(r: &Redirect, at: &str, findings: &mut Findings) -> wire::Redirect {
    let status = r.status_code.unwrap_or(302);
    if ![301, 302, 303, 307, 308].contains(&status) {
        findings.error(format!("{at}.statusCode"), format!("{status} is not 301, 302, 303, 307 or 308"));
    }
    let scheme = r.scheme.clone().unwrap_or_default();
    if !["", "http", "https"].contains(&scheme.as_str()) {
        findings.error(format!("{at}.scheme"), format!("{scheme:?} is not http or https"));
    }
    wire::Redirect {
        // Without a port and with a scheme, the scheme's own; with neither, the listener's.
        keep_port: r.port.is_none() && scheme.is_empty(),
        scheme,
        host: r.hostname.clone().unwrap_or_default(),
        port: r.port.unwrap_or(0).into(),
        path: r.path.as_ref().and_then(|p| path_change(p, &format!("{at}.path"), findings)),
        status: status.into(),
    }
}

fn path_change(p: &PathModifier, at: &str, findings: &mut Findings) -> Option<wire::PathChange> {
    let kind = match (p.kind.as_str(), &p.replace_full_path, &p.replace_prefix_match) {
        ("ReplaceFullPath", Some(path), _) => path_change::Kind::Full(path.clone()),
        ("ReplacePrefixMatch", _, Some(path)) => path_change::Kind::Prefix(path.clone()),
        (other, ..) => {
            findings.error(
                format!("{at}.type"),
                format!("{other:?} needs its own field, replaceFullPath or replacePrefixMatch"),
            );
            return None;
        }
    };
    Some(wire::PathChange { kind: Some(kind) })
}

fn cors(c: &trysail_api::gateway::route::Cors) -> wire::Cors {
    let origin = |o: &String| {
        let kind = match o.split_once('*') {
            None => text::Kind::Exact(o.clone()),
            Some(("", "")) => text::Kind::Present(true),
            Some((before, after)) => {
                text::Kind::Regex(format!("{}[^/]+{}", regex::escape(before), regex::escape(after)))
            }
        };
        wire::Text { kind: Some(kind) }
    };
    wire::Cors {
        origins: c.allow_origins.iter().map(origin).collect(),
        methods: c.allow_methods.clone(),
        headers: c.allow_headers.clone(),
        expose: c.expose_headers.clone(),
        credentials: c.allow_credentials.unwrap_or(false),
        max_age_s: c.max_age.unwrap_or(5).into(),
    }
}

/// Checks an HTTPRoute by itself.
pub fn check_http(route: &HttpRoute, findings: &mut Findings) {
    let written = http(route, findings);
    check(&written, findings);
}

/// Checks a GRPCRoute by itself.
pub fn check_grpc(route: &GrpcRoute, findings: &mut Findings) {
    let written = grpc(route, findings);
    check(&written, findings);
}

fn check(written: &Written<'_>, findings: &mut Findings) {
    for (index, host) in written.hosts.iter().enumerate() {
        hostname(host, &format!("spec.hostnames[{index}]"), findings);
    }
    for (index, parent) in written.parents.iter().enumerate() {
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        if !["Gateway", "Service"].contains(&kind) {
            findings.error(format!("spec.parentRefs[{index}].kind"), format!("{kind:?} is not Gateway or Service"));
        }
    }
    let objects = Objects::default();
    let mut resolver = Resolver { objects: &objects, kind: written.kind, namespace: namespace(written.meta) };
    for (index, rule) in written.rules.iter().enumerate() {
        resolver.rule(rule, &format!("spec.rules[{index}]"), false, findings);
    }
}
