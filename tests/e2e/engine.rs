//! The HTTP engine keeps HTTP whole: every version and manner, through a gateway, a waypoint and sidecars, cell by cell.

use crate::support::*;

pub const TESTS: &[Test] =
    &[("every_protocol_passes_every_hop", protocols), ("large_bodies_pass_in_bounded_memory", large)];

/// A Deployment of the tool with these arguments, with a Service of the same name.
pub fn tool_app(namespace: &str, name: &str, args: &str, port: u16) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: test/tool, args: [{args}], readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: {port}}}]}}
"
    )
}

/// A waypoint of a namespace.
pub fn waypoint(namespace: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: waypoint, namespace: {namespace}}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
"
    )
}

/// A gateway that sends everything to one service.
pub fn gateway(namespace: &str, service: &str, port: u16) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: {namespace}}}
spec:
  gatewayClassName: istio
  listeners: [{{name: http, port: 80, protocol: HTTP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: edge, namespace: {namespace}}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: {service}, port: {port}}}]}}]
"
    )
}

pub const SIDECAR: &str = "istio-injection: enabled";
pub const WAYPOINT: &str = "istio.io/dataplane-mode: ambient, istio.io/use-waypoint: waypoint";

/// Hop, namespace of the client, address.
const HOPS: [(&str, &str, &str); 3] =
    [("gateway", "outside", "edge-istio.l4:80"), ("waypoint", "l7", "app:8080"), ("sidecar", "sc", "app:8080")];

fn manifests(port: &str) -> String {
    [
        namespace("outside", ""),
        namespace("l4", AMBIENT),
        namespace("l7", WAYPOINT),
        namespace("sc", SIDECAR),
        waypoint("l7"),
        gateway("l4", "app", 8080),
        tool_app("l4", "app", port, 8080),
        tool_app("l7", "app", port, 8080),
        tool_app("sc", "app", port, 8080),
        client("outside", "default"),
        client("l7", "default"),
        client("sc", "default"),
    ]
    .concat()
}

/// What each cell must say, through every hop.
const CELLS: [(&str, &str); 20] = [
    ("http/1.0", "200 closed"),
    ("http/1.0 keep-alive", "200 200"),
    ("http/1.1", "200 200 200"),
    ("head 204 304", "200+length 204 304 200"),
    ("unknown upgrade", "200/200 200/200 200/200"),
    ("websocket", "101 one two"),
    ("100-continue", "100 200 5 bytes, trailers "),
    ("401 before the body", "401 without asking for the body"),
    ("417 before the body", "417 without asking for the body"),
    ("chunked with trailers", "200 7 bytes, trailers x-end=yes"),
    ("response trailers", "200 x-sum"),
    ("request headers", "8K 200 64K 200 200K 200 300K 431 400 fields 200 600 fields 431"),
    ("response headers", "8K 200 64K 200 200K 200 400K 502"),
    ("client abort", "the application heard of it"),
    ("server abort", "200 10 of 100 bytes, then the end"),
    ("h2c", "200 GET /hello HTTP/2.0 host=app"),
    ("grpc unary", "7 bytes, grpc-status 0"),
    ("grpc streaming", "3 turns, grpc-status 0"),
    ("websocket over h2", "200 one"),
    ("slow reader", "200 OK, then 8 MiB"),
];

fn protocols(user: User) {
    let lab = up(user, &manifests("http, '8080'"));
    let mut wrong = Vec::new();
    for (hop, from, address) in HOPS {
        lab.until_call((from, "client"), &format!("http://{address}/hello"), 200);
        let (_, text) = lab.exec(from, "client", &[tool(), "tool", "protocols", address]);
        for (cell, wanted) in CELLS {
            let line = text.lines().find_map(|l| l.strip_prefix(&format!("{cell}: ")));
            if line.map(str::trim_end) != Some(wanted.trim_end()) {
                wrong.push(format!("{hop}, {cell}: {:?}, not {wanted:?}", line.unwrap_or("nothing")));
            }
        }
        if !wrong.is_empty() {
            eprintln!("{hop}:\n{text}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn large(user: User) {
    let lab = up(user, &manifests("http, '8080'"));
    for (hop, from, address) in HOPS {
        lab.until_call((from, "client"), &format!("http://{address}/hello"), 200);
        let (_, text) = lab.exec(from, "client", &[tool(), "tool", "large", address, "1024"]);
        assert_eq!(text, "1073741824 bytes, trailers \n1024 MiB back\n", "{hop}");
    }
    // What passed is a thousand times what may be held.
    let top = lab.lab(&["top"]);
    let proxies = top.lines().filter(|l| ["sidecar", "waypoint", "gateway"].iter().any(|role| l.starts_with(role)));
    let mut seen = 0;
    for line in proxies {
        let memory: u64 = line.split_whitespace().last().unwrap().parse().unwrap();
        assert!(memory < 160 << 10, "{line}");
        seen += 1;
    }
    assert_eq!(seen, 4, "{top}");
}
