//! What is shown by gateways: the way from the gateway to the pods, the route, and the name inside the mesh.

use super::names::mark;
use super::rules::{Gate, admits, ports};
use super::{
    GATEWAY, Maker, SERVICE_ENTRY, UDP_ROUTE, VIRTUAL_SERVICE, annotated, namespace_named, object, present, sanitise,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use trysail_api::labels::NAMESPACE_NAME;
use trysail_api::package::{self, Direction, Expose, ExposeProtocol, Labels};

/// The gateway of HTTP entries that name none.
const TENANT: &str = "tenant";
/// The gateway of UDP entries that name none, and its namespace.
pub const MANAGED: &str = "envoy-default-gateway";

/// The gateway of an entry.
pub fn gateway(entry: &Expose) -> &str {
    entry.gateway.as_deref().unwrap_or(if udp(entry) { MANAGED } else { TENANT })
}

/// Whether an entry is of UDP.
pub fn udp(entry: &Expose) -> bool {
    entry.protocol == Some(ExposeProtocol::Udp)
}

/// The full name under which an entry is shown.
fn host(maker: &Maker<'_>, entry: &Expose) -> String {
    let world = maker.world;
    let domain = match &entry.domain {
        Some(domain) => domain.clone(),
        None if gateway(entry).contains("admin") => {
            world.admin_domain.clone().unwrap_or_else(|| format!("admin.{}", world.domain))
        }
        None => world.domain.clone(),
    };
    match entry.host.as_deref() {
        Some(".") | None => domain,
        Some(left) => format!("{left}.{domain}"),
    }
}

/// Every full name, once.
pub fn endpoints(maker: &Maker<'_>) -> Vec<String> {
    let entries = maker.package.spec.network.expose.iter().filter(|e| !udp(e));
    let mut seen = BTreeSet::new();
    entries.map(|e| host(maker, e)).filter(|h| seen.insert(h.clone())).collect()
}

fn host_word(entry: &Expose) -> &str {
    match entry.host.as_deref() {
        Some(".") => "root-domain",
        other => other.unwrap_or("undefined"),
    }
}

/// The name of an HTTP entry's route.
pub fn route_name(package: &str, entry: &Expose) -> String {
    let tail = entry.description.clone().unwrap_or_else(|| {
        let port = entry.port.map_or_else(|| "undefined".to_owned(), |p| p.to_string());
        let service = entry.service.as_deref().unwrap_or("undefined");
        let matches = entry.advanced_http.as_ref().and_then(|a| a.matches.as_ref()).or(entry.matches.as_ref());
        let names = matches.into_iter().flatten().filter_map(|m| m["name"].as_str());
        let head = [host_word(entry), &port, service];
        head.into_iter().chain(names).collect::<Vec<_>>().join("-")
    });
    sanitise(&format!("{package}-{}-{tail}", gateway(entry)))
}

/// The name of a UDP entry's route.
pub fn udp_route_name(package: &str, entry: &Expose) -> String {
    let port = entry.port.map(|p| p.to_string()).unwrap_or_default();
    sanitise(&format!("{package}-udp-{}", entry.description.as_ref().unwrap_or(&port)))
}

/// The name of the mesh's entry for a shown host, before it is told apart from others.
fn entry_name(maker: &Maker<'_>, entry: &Expose) -> String {
    sanitise(&format!("{}-{}-{}", maker.name(), gateway(entry), host_word(entry)))
}

/// Objects of every entry.
pub fn expose(maker: &Maker<'_>, policies: &mut Vec<Value>, admissions: &mut Vec<Value>, routes: &mut Vec<Value>) {
    let entries = &maker.package.spec.network.expose;
    let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in entries.iter().filter(|e| !udp(e)) {
        hosts.entry(entry_name(maker, entry)).or_default().insert(host(maker, entry));
    }
    let mut shown = BTreeSet::new();
    for entry in entries {
        if udp(entry) {
            policies.push(udp_gate(maker, entry));
            routes.push(udp_route(maker, entry));
            continue;
        }
        if entry.port.is_some() {
            policies.push(gate(maker, entry));
            admissions.push(admission(maker, entry));
        }
        routes.push(virtual_service(maker, entry));
        let (name, host) = (entry_name(maker, entry), host(maker, entry));
        let alone = hosts.get(&name).is_none_or(|h| h.len() == 1);
        let name = if alone { name } else { format!("{name}-{}", mark(&host)) };
        if shown.insert(name.clone()) {
            routes.push(service_entry(maker, entry, &name, &host));
        }
    }
}

fn pod_port(entry: &Expose) -> u16 {
    entry.target_port.or(entry.port).map_or(0, std::num::NonZeroU16::get)
}

fn selector_words(entry: &Expose) -> Option<String> {
    let selector = entry.selector.as_ref().filter(|s| !s.is_empty())?;
    Some(selector.values().cloned().collect::<Vec<_>>().join("-"))
}

fn gate(maker: &Maker<'_>, entry: &Expose) -> Value {
    let (name, port) = (gateway(entry), pod_port(entry));
    let words = selector_words(entry).unwrap_or_default();
    let description = format!("{port}-{words} Istio {name} gateway");
    let peer = json!({
        "namespaceSelector": namespace_named(&format!("istio-{name}-gateway")),
        "podSelector": {"matchLabels": {"app": format!("{name}-ingressgateway")}},
    });
    described_gate(maker, entry, &description, peer, ports(&[(port, "TCP")], true))
}

fn described_gate(maker: &Maker<'_>, entry: &Expose, description: &str, peer: Value, ports: Value) -> Value {
    let none = Labels::new();
    let gate = Gate {
        direction: Direction::Ingress,
        selector: entry.selector.as_ref().unwrap_or(&none),
        peers: vec![peer],
        ports,
    };
    let name = sanitise(&format!("allow-{}-ingress-{description}", maker.name()));
    annotated(maker.gate(&name, Labels::new(), &gate), package::DESCRIPTION, description)
}

fn admission(maker: &Maker<'_>, entry: &Expose) -> Value {
    let (name, port) = (gateway(entry), pod_port(entry));
    let description = format!("{port}-{} Istio {name} gateway", selector_words(entry).as_deref().unwrap_or("all"));
    let principal = maker.world.principal(&format!("istio-{name}-gateway"), &format!("{name}-ingressgateway"));
    let none = Labels::new();
    let object = maker.admission(
        &sanitise(&format!("protect-{}-ingress-{description}", maker.name())),
        Labels::new(),
        Some(entry.selector.as_ref().unwrap_or(&none)),
        admits(Some(json!({"principals": [principal]})), &[port]),
    );
    annotated(object, package::DESCRIPTION, &description)
}

fn virtual_service(maker: &Maker<'_>, entry: &Expose) -> Value {
    let name = gateway(entry);
    let advanced = entry.advanced_http.clone().unwrap_or_default();
    let answers = advanced.direct_response.is_some() || advanced.redirect.is_some();
    let backend = entry.service.as_ref().filter(|_| !answers).map(|service| {
        let host = trysail_api::ids::service_hostname(service, maker.namespace());
        json!([{"destination": {"host": host, "port": {"number": entry.port}}}])
    });
    let mut http = serde_json::to_value(&advanced).unwrap_or_default();
    if let Some(route) = &backend {
        http["route"] = route.clone();
    }
    let full = host(maker, entry);
    let tls = name.contains("passthrough").then(|| {
        let matches = json!([{"port": 443, "sniHosts": [full]}]);
        Value::Array(vec![present([("match", Some(matches)), ("route", backend.clone())])])
    });
    let spec = present([
        ("hosts", Some(json!([full]))),
        ("gateways", Some(json!([format!("istio-{name}-gateway/{name}-gateway")]))),
        ("http", Some(Value::Array(vec![http]))),
        ("tls", tls),
    ]);
    maker.owned(VIRTUAL_SERVICE, &route_name(maker.name(), entry), Labels::new(), spec)
}

fn service_entry(maker: &Maker<'_>, entry: &Expose, name: &str, host: &str) -> Value {
    let gateway = gateway(entry);
    let address = format!("{gateway}-ingressgateway.istio-{gateway}-gateway.svc.cluster.local");
    let spec = json!({
        "hosts": [host], "location": "MESH_INTERNAL", "resolution": "DNS",
        "ports": [{"name": "https", "number": 443, "protocol": "HTTPS"}],
        "endpoints": [{"address": address}],
    });
    maker.owned(SERVICE_ENTRY, name, Labels::new(), spec)
}

fn udp_gate(maker: &Maker<'_>, entry: &Expose) -> Value {
    let (name, port) = (gateway(entry), pod_port(entry));
    let words = selector_words(entry).unwrap_or_default();
    let owner = |what: &str| format!("gateway.envoyproxy.io/owning-gateway-{what}");
    let peer = json!({
        "namespaceSelector": namespace_named(name),
        "podSelector": {"matchLabels": {owner("name"): name, owner("namespace"): name}},
    });
    described_gate(maker, entry, &format!("{port}-{words} Envoy Gateway {name}"), peer, ports(&[(port, "UDP")], false))
}

fn udp_route(maker: &Maker<'_>, entry: &Expose) -> Value {
    let name = gateway(entry);
    let section = (name == MANAGED).then(|| Value::from(listener(entry)));
    let parent = present([("name", Some(name.into())), ("namespace", Some(name.into())), ("sectionName", section)]);
    let backend = json!([{"name": entry.service, "port": entry.port}]);
    let spec = json!({"parentRefs": [parent], "rules": [{"backendRefs": backend}]});
    maker.owned(UDP_ROUTE, &udp_route_name(maker.name(), entry), Labels::new(), spec)
}

fn listener(entry: &Expose) -> String {
    format!("udp-{}", entry.port.map(|p| p.to_string()).unwrap_or_default())
}

/// The gateway of UDP entries that name none, for the entries of every Package; `None` when there are none.
pub fn managed<'a>(entries: impl IntoIterator<Item = (&'a str, &'a Expose)>) -> Option<Value> {
    let entries = entries.into_iter().filter(|(_, entry)| udp(entry) && gateway(entry) == MANAGED);
    let listeners: Vec<Value> = entries
        .map(|(namespace, entry)| {
            let from = json!({"from": "Selector", "selector": {"matchLabels": {NAMESPACE_NAME: namespace}}});
            json!({
                "name": listener(entry), "port": entry.port, "protocol": "UDP", "allowedRoutes": {"namespaces": from},
            })
        })
        .collect();
    (!listeners.is_empty()).then(|| {
        object(
            GATEWAY,
            json!({"name": MANAGED, "namespace": MANAGED}),
            json!({"gatewayClassName": "envoy-gateway", "listeners": listeners}),
        )
    })
}
