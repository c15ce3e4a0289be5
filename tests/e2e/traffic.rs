//! What TCP promises holds through the mesh.

use crate::support::*;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    ("server_first_half_close_and_large_transfers", tcp),
    ("an_endpoint_that_refuses_costs_no_request", retry),
    ("meshed_and_unmeshed_pods_reach_each_other_by_every_name", names),
];

fn deployment(namespace: &str, name: &str, args: &str) -> String {
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
      containers: [{{name: main, image: test/tool, args: [{args}], readinessProbe: {{tcpSocket: {{port: 7000}}, periodSeconds: 1}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 7000}}]}}
"
    )
}

fn tcp(user: User) {
    let manifests = [
        namespace("m", AMBIENT),
        deployment("m", "greeter", "greet, '7000'"),
        deployment("m", "late", "late-answer, '7000'"),
        client("m", "default"),
        peer_authentication("m", "default", "{mtls: {mode: STRICT}}"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let run = |args: &[&str]| {
        let mut command = vec![tool()];
        command.extend(args);
        let (code, text) = lab.exec("m", "client", &command);
        assert_eq!(code, 0, "{text}");
        text.trim().to_owned()
    };
    assert_eq!(run(&["tool", "first-line", "greeter:7000"]), "hello from the server");
    // The client ends its side; the server answers ten megabytes afterwards.
    assert_eq!(run(&["tool", "half-close", "late:7000"]), "10000000 bytes after 8");
}

fn retry(user: User) {
    // One of two endpoints is ready by its probe and refuses connections on the service's port.
    let broken = echo("m", "web", 1)
        .replace("name: web, namespace", "name: broken, namespace")
        .replace("'8080', -log-connections", "'8081', -log-connections")
        .replace(
            "readinessProbe: {httpGet: {path: /fortio/, port: http}, periodSeconds: 1}",
            "readinessProbe: {httpGet: {path: /fortio/, port: 8081}, periodSeconds: 1}",
        );
    let broken = broken
        .split("---\napiVersion: v1\nkind: Service")
        .next()
        .unwrap()
        .replace("{app: web}", "{app: web, kind: broken}");
    let manifests = [namespace("m", AMBIENT), echo("m", "web", 1), broken, client("m", "default")].concat();
    let lab = up(user, &manifests);
    assert_eq!(lab.lab(&["get", "pods", "-n", "m", "-l", "app=web", "-o", "name"]).lines().count(), 2);
    let run = lab.load("m", "client", &["-n", "60", "-c", "4", "-qps", "0", "-keepalive=false", "http://web/"]);
    assert_eq!(only(&run, "200"), 60);
}

fn names(user: User) {
    let headless = "---\napiVersion: v1\nkind: Service\nmetadata: {name: each, namespace: m}\nspec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}\n";
    let manifests = [
        namespace("m", AMBIENT),
        namespace("plain", ""),
        echo("m", "web", 2),
        echo("plain", "old", 2),
        client("m", "default"),
        client("plain", "default"),
        headless.to_owned(),
    ]
    .concat();
    let lab = up(user, &manifests);
    for (from, url) in [
        ("m", "http://web/"),
        ("m", "http://web.m/"),
        ("m", "http://web.m.svc.cluster.local/"),
        ("m", "http://each:8080/"),
        ("m", "http://old.plain/"),
        ("plain", "http://old/"),
        ("plain", "http://web.m/"),
        ("plain", "http://each.m:8080/"),
    ] {
        assert_eq!(
            only(&lab.load(from, "client", &["-n", "8", "-c", "2", "-qps", "0", "-keepalive=false", url]), "200"),
            8,
            "{from} -> {url}"
        );
    }
    // A service without endpoints is an error at once, in the mesh and outside.
    lab.lab(&["delete", "deployment", "-n", "m", "web", "--grace-period", "0"]);
    for from in ["m", "plain"] {
        lab.until_call((from, "client"), "http://web.m/", -1);
        let began = std::time::Instant::now();
        assert_eq!(lab.call(from, "client", "http://web.m/"), -1);
        assert!(began.elapsed() < Duration::from_secs(3), "{from}: refused only after {:?}", began.elapsed());
    }
}
