//! Gateways: listeners, and the routes that attach to them.

use super::findings::Findings;
use super::routes::{self, Ranked, Written, granted};
use super::units::hostname;
use crate::translate::objects::{Objects, name, namespace};
use crate::translate::waypoint::{is_gateway_class, is_waypoint_class};
use trysail_api::gateway::GROUP;
use trysail_api::gateway::gateways::{Gateway, Listener, RouteNamespaces};
use trysail_api::gateway::route::ParentRef;
use trysail_api::object::{annotation, labels};
use trysail_wire::l7 as wire;

/// Annotation of a gateway: proxies in front of it whose X-Forwarded-For is believed.
const TRUSTED_PROXIES: &str = "trysail.dev/num-trusted-proxies";

/// Every gateway of a class of ours.
pub fn gateways(objects: &Objects) -> Vec<wire::Gateway> {
    let ours = objects.gateways().filter(|g| is_gateway_class(&g.spec.gateway_class_name));
    let written = routes::all(objects);
    let one = |gateway: &Gateway| wire::Gateway {
        namespace: namespace(&gateway.metadata).to_owned(),
        name: name(&gateway.metadata).to_owned(),
        trusted_proxies: annotation(&gateway.metadata, TRUSTED_PROXIES).and_then(|n| n.parse().ok()).unwrap_or(0),
        listeners: gateway.spec.listeners.iter().map(|l| listener(objects, gateway, l, &written)).collect(),
    };
    ours.map(one).collect()
}

fn listener(objects: &Objects, gateway: &Gateway, listener: &Listener, written: &[Written<'_>]) -> wire::Listener {
    let mut routes: Vec<Ranked> = Vec::new();
    for route in written {
        let to_this = route.parents.iter().filter(|p| names(p, route, gateway, listener));
        if to_this.count() == 0 {
            continue;
        }
        if let Ok(hosts) = attaches(objects, gateway, listener, route) {
            routes.extend(route.routes(objects, 0, &hosts));
        }
    }
    let tls = listener.protocol == "HTTPS";
    wire::Listener {
        name: listener.name.clone(),
        port: listener.port.into(),
        hostname: listener.hostname.clone().unwrap_or_default(),
        tls,
        certificates: if tls { certificates(objects, gateway, listener).unwrap_or_default() } else { Vec::new() },
        routes: routes::ordered(routes),
    }
}

/// Whether a parent reference names the gateway and the listener.
pub fn names(parent: &ParentRef, route: &Written<'_>, gateway: &Gateway, listener: &Listener) -> bool {
    parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
        && parent.namespace.as_deref().unwrap_or(namespace(route.meta)) == namespace(&gateway.metadata)
        && parent.name == name(&gateway.metadata)
        && parent.section_name.as_ref().is_none_or(|s| *s == listener.name)
        && parent.port.is_none_or(|p| p == listener.port)
}

/// Why a route does not attach, in the words of Gateway API's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Gateway API's reasons")]
pub enum NotAttached {
    NotAllowedByListeners,
    NoMatchingListenerHostname,
}

/// The hosts for which a route attaches to a listener that it names; empty: any.
pub fn attaches(
    objects: &Objects,
    gateway: &Gateway,
    listener: &Listener,
    route: &Written<'_>,
) -> Result<Vec<String>, NotAttached> {
    let allowed = listener.allowed_routes.as_ref();
    let namespaces = allowed.and_then(|a| a.namespaces.as_ref());
    let kinds = allowed.map(|a| a.kinds.as_slice()).unwrap_or_default();
    if !namespace_allowed(objects, namespaces, namespace(&gateway.metadata), namespace(route.meta))
        || !(kinds.is_empty() || kinds.iter().any(|k| k.kind == route.kind))
    {
        return Err(NotAttached::NotAllowedByListeners);
    }
    intersect(listener.hostname.as_deref(), route.hosts).ok_or(NotAttached::NoMatchingListenerHostname)
}

/// The host names that a listener and a route have in common; empty: any. `None`: there is none.
fn intersect(listener: Option<&str>, route: &[String]) -> Option<Vec<String>> {
    let Some(listener) = listener.filter(|l| !l.is_empty()) else { return Some(route.to_vec()) };
    if route.is_empty() {
        return Some(vec![listener.to_owned()]);
    }
    let below = |host: &str, pattern: &str| pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix));
    let both = |host: &String| {
        let bare = host.trim_start_matches('*');
        if host == listener || below(bare, listener) {
            Some(host.clone())
        } else if below(listener.trim_start_matches('*'), host) {
            Some(listener.to_owned())
        } else {
            None
        }
    };
    let found: Vec<String> = route.iter().filter_map(both).collect();
    (!found.is_empty()).then_some(found)
}

/// Whether objects of namespace `from` may attach to something of namespace `own`.
pub fn namespace_allowed(objects: &Objects, allowed: Option<&RouteNamespaces>, own: &str, from: &str) -> bool {
    match allowed.and_then(|a| a.from.as_deref()).unwrap_or("Same") {
        "All" => true,
        "Selector" => {
            let selector = allowed.and_then(|a| a.selector.as_ref());
            let wanted = selector.and_then(|s| s.match_labels.as_ref());
            let has = objects.namespace(from).map(|n| labels(&n.metadata));
            has.is_some_and(|has| wanted.into_iter().flatten().all(|(k, v)| has.get(k) == Some(v)))
        }
        _ => own == from,
    }
}

/// A listener's certificates, or why one cannot be had.
pub fn certificates(
    objects: &Objects,
    gateway: &Gateway,
    listener: &Listener,
) -> Result<Vec<wire::Certificate>, String> {
    let own = namespace(&gateway.metadata);
    let mut out = Vec::new();
    for reference in listener.tls.iter().flat_map(|t| &t.certificate_refs) {
        let place = reference.namespace.as_deref().unwrap_or(own);
        if reference.kind.as_deref().unwrap_or("Secret") != "Secret" {
            return Err(format!("InvalidCertificateRef: {:?} is not Secret", reference.kind));
        }
        if place != own && !granted(objects, (GROUP, "Gateway", own), ("Secret", place, &reference.name)) {
            return Err(format!("RefNotPermitted: no ReferenceGrant in {place} lets Gateways of {own} refer to it"));
        }
        let missing = || format!("InvalidCertificateRef: secret {place}/{} does not exist", reference.name);
        let secret = objects.secret(place, &reference.name).ok_or_else(missing)?;
        let part = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.clone());
            let text = secret.string_data.as_ref().and_then(|d| d.get(key)).map(|t| t.clone().into_bytes());
            bytes
                .or(text)
                .ok_or_else(|| format!("InvalidCertificateRef: secret {place}/{} has no {key}", reference.name))
        };
        out.push(wire::Certificate { chain: part("tls.crt")?, key: part("tls.key")? });
    }
    if out.is_empty() {
        Err("InvalidCertificateRef: an HTTPS listener needs a certificate".to_owned())
    } else {
        Ok(out)
    }
}

/// Checks a Gateway by itself.
pub fn check(gateway: &Gateway, findings: &mut Findings) {
    let class = gateway.spec.gateway_class_name.as_str();
    let waypoint = is_waypoint_class(class);
    if !waypoint && !is_gateway_class(class) {
        findings.error(
            "spec.gatewayClassName",
            format!("{class:?} is not istio, trysail, istio-waypoint or trysail-waypoint"),
        );
        return;
    }
    if gateway.spec.listeners.is_empty() {
        findings.error("spec.listeners", "at least one listener is needed");
    }
    for (index, listener) in gateway.spec.listeners.iter().enumerate() {
        let at = format!("spec.listeners[{index}]");
        let known: &[&str] = if waypoint { &["HBONE"] } else { &["HTTP", "HTTPS"] };
        if !known.contains(&listener.protocol.as_str()) {
            findings.error(format!("{at}.protocol"), format!("{:?} is not {}", listener.protocol, known.join(" or ")));
        }
        if waypoint && listener.port != 15008 {
            findings.error(format!("{at}.port"), "a waypoint listens on 15008");
        }
        if listener.port == 0 || (15000..15100).contains(&listener.port) && !waypoint {
            findings.error(format!("{at}.port"), format!("{} cannot be listened on", listener.port));
        }
        if listener.name.is_empty() || gateway.spec.listeners.iter().take(index).any(|l| l.name == listener.name) {
            findings.error(format!("{at}.name"), "every listener needs a name of its own");
        }
        if let Some(host) = &listener.hostname {
            hostname(host, &format!("{at}.hostname"), findings);
        }
        if let Some(tls) = &listener.tls {
            if tls.mode.as_deref().is_some_and(|m| m != "Terminate") {
                findings.error(format!("{at}.tls.mode"), "only Terminate is supported");
            }
        } else if listener.protocol == "HTTPS" {
            findings.error(format!("{at}.tls"), "needed by HTTPS");
        }
        let selector = listener.allowed_routes.as_ref().and_then(|r| r.namespaces.as_ref()?.selector.as_ref());
        findings.unsupported(
            selector.is_some_and(|s| s.match_expressions.is_some()),
            format!("{at}.allowedRoutes.namespaces.selector.matchExpressions"),
        );
    }
}
