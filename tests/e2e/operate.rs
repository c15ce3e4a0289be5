//! What an operator sees of proxies that understand HTTP and does with them: metrics, logs, traces, certificates at the edge, jobs,
//! waypoints from the command line, status.

use crate::engine::{SIDECAR, WAYPOINT, gateway, tool_app, waypoint};
use crate::routes::ask;
use crate::support::*;
use serde_json::Value;
use std::process::Output;

pub const TESTS: &[Test] = &[
    ("every_hop_tells_of_requests_in_metrics_log_and_traces", telemetry),
    ("an_https_listener_serves_the_certificate_of_its_secret", edge_tls),
    ("a_job_with_a_sidecar_finishes", job),
    ("a_waypoint_from_the_command_line_serves_its_namespace", waypoint_verbs),
    ("status_says_what_came_of_an_object", status),
];

/// Puts the proxy's settings into a manifest's metadata.
fn telling(manifest: &str) -> String {
    let settings = "annotations: {proxy.istio.io/config: '{proxyMetadata: {ACCESS_LOG: all, OTLP_ENDPOINT: \"http://sink.outside.svc.cluster.local:4318\"}}'}";
    manifest
        .replace("  template:\n    metadata: {", &format!("  template:\n    metadata: {{{settings}, "))
        .replace("metadata: {name: waypoint,", &format!("metadata: {{{settings}, name: waypoint,"))
}

/// Who reports in the metrics, and the pod whose proxy it is.
type Teller = (&'static str, &'static str, &'static str);

fn pod_of(lab: &Lab, namespace: &str, name: &str) -> String {
    let all = lab.lab(&["get", "pods", "-n", namespace]);
    let found = all.lines().find(|l| l.starts_with(&format!("{name}-"))).and_then(|l| l.split_whitespace().next());
    found.unwrap_or_else(|| panic!("no pod {name}: {all}")).to_owned()
}

fn telemetry(user: User) {
    let manifests = [
        namespace("outside", ""),
        namespace("l7", WAYPOINT),
        namespace("sc", SIDECAR),
        tool_app("outside", "sink", "http, '4318', sink", 4318),
        telling(&waypoint("l7")),
        tool_app("l7", "app", "http, '8080', app", 8080),
        client("l7", "default"),
        client("outside", "default"),
        telling(&tool_app("sc", "app", "http, '8080', app", 8080)),
        telling(&client("sc", "default")),
    ];
    let lab = up(user, &manifests.concat());
    for (ns, tellers) in [
        ("l7", &[("waypoint", "l7", "waypoint")][..]),
        ("sc", &[("source", "sc", "client"), ("destination", "sc", "app")]),
    ] {
        lab.until_call((ns, "client"), "http://app:8080/hello", 200);
        traced(&lab, ns);
        counted(&lab, ns, tellers);
    }
}

/// The trace goes on in the form it came in, and its spans reach the receiver.
fn traced(lab: &Lab, ns: &str) {
    let (trace, span) = (format!("{:032x}", rand::random::<u128>() | 1), "00f067aa0ba902b7");
    let said = ask(lab, ns, "app:8080", &format!("GET /hello\ntraceparent: 00-{trace}-{span}-01\ntracestate: a=b"));
    assert_eq!(said.status, 200);
    assert!(said.body.contains(&format!("traceparent=00-{trace}-")), "{}", said.body);
    assert!(!said.body.contains(span), "a hop has a span of its own: {}", said.body);
    assert!(said.body.contains("tracestate=a=b") && said.body.contains("x-request-id="), "{}", said.body);
    lab.until("the spans arrive", || {
        let spans = ask(lab, "outside", "sink:4318", "GET /spans").body;
        if spans.contains(&trace) && spans.contains(span) { Ok(()) } else { Err(spans) }
    });
    let b3 = ask(lab, ns, "app:8080", &format!("GET /hello\nb3: {trace}-{span}-1"));
    assert!(b3.body.contains(&format!("x-b3-traceid={trace}")), "{}", b3.body);
}

/// Requests are counted with Istio's labels, and written with the reason when one is refused.
fn counted(lab: &Lab, ns: &str, tellers: &[Teller]) {
    let target = if ns == "l7" {
        "targetRefs: [{kind: Service, group: '', name: app}]"
    } else {
        "selector: {matchLabels: {app: app}}"
    };
    lab.apply(&format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: no, namespace: {ns}}}\nspec: {{{target}, action: DENY, rules: [{{to: [{{operation: {{paths: [/secret]}}}}]}}]}}\n"
    ));
    lab.until_call((ns, "client"), "http://app:8080/secret", 403);
    for (reporter, place, name) in tellers {
        let pod = pod_of(lab, place, name);
        let metrics = lab.lab(&["system", "get", &format!("{place}/{pod}:15020/stats/prometheus")]);
        let labels = [
            format!("reporter=\"{reporter}\""),
            format!("source_principal=\"spiffe://cluster.local/ns/{ns}/sa/default\""),
            "source_workload=\"client\"".to_owned(),
            "destination_workload=\"app\"".to_owned(),
            format!("destination_service=\"app.{ns}.svc.cluster.local\""),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            "response_code=\"200\"".to_owned(),
        ];
        for family in [
            "istio_requests_total",
            "istio_request_duration_milliseconds_count",
            "istio_request_bytes_sum",
            "istio_response_bytes_sum",
        ] {
            let series = metrics.lines().filter(|l| l.starts_with(&format!("{family}{{")));
            let found = series.filter(|l| labels.iter().all(|label| l.contains(label))).count();
            assert!(found > 0, "{reporter}: {family} with {labels:?}: {metrics}");
        }
        let lines = lab.until("the log is written", || {
            let text = lab.lab(&["logs", "-n", place, &pod, "-c", "istio-proxy"]);
            let lines: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
            if lines.iter().any(|l| l["path"] == "/secret") { Ok(lines) } else { Err(text) }
        });
        let refused = lines.iter().find(|l| l["path"] == "/secret" && l["response_code"] == 403).unwrap();
        let why = if *reporter == "source" { "-" } else { "authorization" };
        assert_eq!(refused["reason"], why, "{refused}");
        for key in ["start_time", "method", "authority", "duration_ms", "request_id", "source_principal", "bytes_sent"]
        {
            assert!(refused.get(key).is_some(), "{key}: {refused}");
        }
        assert!(lines.iter().any(|l| l["path"] == "/hello" && l["reason"] == "-"), "{lines:?}");
    }
}

fn edge_tls(user: User) {
    let made = rcgen::generate_simple_self_signed(vec!["shop.example".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
    let secret = |name: &str, pair: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        serde_json::json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": "m"},
            "stringData": {"tls.crt": pair.cert.pem(), "tls.key": pair.signing_key.serialize_pem()}})
        .to_string()
    };
    let listeners = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: m}
spec:
  gatewayClassName: trysail
  listeners:
  - {name: shop, port: 443, protocol: HTTPS, hostname: shop.example, tls: {certificateRefs: [{name: shop}]}}
  - {name: other, port: 443, protocol: HTTPS, hostname: other.example, tls: {certificateRefs: [{name: other}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: m}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{name: app, port: 8080}]}]
";
    let manifests = [
        namespace("m", AMBIENT),
        tool_app("m", "app", "http, '8080', app", 8080),
        client("m", "default"),
        format!("---\n{}\n---\n{listeners}", secret("shop", &made)),
    ];
    let lab = up(user, &manifests.concat());
    let call = |name: &str, pair: &rcgen::CertifiedKey<rcgen::KeyPair>, alpn: &str| {
        let args = [tool(), "tool", "https", "edge-trysail:443", name, &pair.cert.pem(), alpn];
        lab.exec("m", "client", &args).1.trim_end().to_owned()
    };
    for (alpn, version) in [("h2", "HTTP/2.0"), ("http/1.1", "HTTP/1.1")] {
        lab.until("the gateway answers", || {
            let said = call("shop.example", &made, alpn);
            let whole = format!("{alpn} 200 app: GET /hello");
            if said.starts_with(&whole) && said.contains("host=shop.example") {
                Ok(())
            } else {
                Err(format!("{version}: {said}"))
            }
        });
    }
    // A listener whose secret is not there takes no connection, and says why.
    assert!(!call("other.example", &other, "h2").contains("200"));
    let gateway = lab.lab(&["get", "gateway", "edge", "-n", "m", "-o", "yaml"]);
    assert!(
        gateway.contains("InvalidCertificateRef") && gateway.contains("secret m/other does not exist"),
        "{gateway}"
    );
    // Certificates come, and change, while it runs.
    lab.apply(&secret("other", &other));
    lab.until("the other name is served", || {
        let said = call("other.example", &other, "h2");
        if said.contains("200 app") { Ok(()) } else { Err(said) }
    });
    let renewed = rcgen::generate_simple_self_signed(vec!["shop.example".to_owned()]).unwrap();
    lab.apply(&secret("shop", &renewed));
    lab.until("the new certificate is served", || {
        let said = call("shop.example", &renewed, "h2");
        if said.contains("200 app") { Ok(()) } else { Err(said) }
    });
}

fn job(user: User) {
    let once = "
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: sc}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: once}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: fortio/fortio, args: [load, -n, '4', -c, '1', -qps, '0', 'http://app:8080/hello']}]
";
    let app = tool_app("sc", "app", "http, '8080', app", 8080);
    let strict = peer_authentication("sc", "default", "{mtls: {mode: STRICT}}");
    let lab = up(user, &[namespace("sc", SIDECAR), app, strict].concat());
    lab.apply(once);
    lab.until("the job is complete", || {
        let job = lab.lab(&["get", "job", "once", "-n", "sc", "-o", "jsonpath={.status.succeeded}"]);
        if job == "1" { Ok(()) } else { Err(format!("{job}\n{}", lab.lab(&["get", "pods", "-n", "sc"]))) }
    });
    // Its first request was already mutual TLS: the sidecar was there before, and ended after.
    let pod = pod_of(&lab, "sc", "once");
    let ended = lab.lab(&["get", "pod", &pod, "-n", "sc", "-o", "jsonpath={.status.phase}"]);
    assert_eq!(ended, "Succeeded");
    assert!(lab.lab(&["logs", "-n", "sc", &pod, "-c", "main"]).contains("Code 200 : 4"));
}

fn waypoint_verb(user: User, lab: &Lab, args: &[&str]) -> Output {
    let mut command = trysail(user);
    command.arg("waypoint").args(args).args(["--name", &lab.name]);
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

fn waypoint_verbs(user: User) {
    let app = tool_app("m", "app", "http, '8080', app", 8080);
    let lab = up(user, &[namespace("m", AMBIENT), app, client("m", "default")].concat());
    let run = |args: &[&str]| {
        let output = waypoint_verb(user, &lab, args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    };
    assert!(run(&["generate", "-n", "m", "--for", "all"]).contains("istio.io/waypoint-for: all"));
    // When it returns, the namespace is served: the first request goes through.
    run(&["apply", "-n", "m", "--enroll-namespace", "--wait"]);
    lab.until_call(("m", "client"), "http://app:8080/hello", 200);
    lab.until("requests go through it", || {
        let said = ask(&lab, "m", "app:8080", "GET /hello");
        if said.body.contains("x-request-id=") { Ok(()) } else { Err(said.body) }
    });
    let list = run(&["list", "-n", "m"]);
    assert!(list.contains("waypoint") && list.contains("True"), "{list}");
    lab.lab(&["label", "namespace", "m", "istio.io/use-waypoint-"]);
    run(&["delete", "waypoint", "-n", "m"]);
    lab.until("it is gone", || {
        let pods = lab.lab(&["get", "pods", "-n", "m"]);
        if pods.contains("waypoint-") { Err(pods) } else { Ok(()) }
    });
    lab.until_call(("m", "client"), "http://app:8080/hello", 200);
}

fn status(user: User) {
    let manifests = [
        namespace("m", WAYPOINT),
        gateway("m", "app", 8080),
        tool_app("m", "app", "http, '8080', app", 8080),
        client("m", "default"),
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: m}\nspec: {targetRefs: [{kind: Service, group: '', name: app}], rules: [{to: [{operation: {methods: [GET]}}]}]}\n".to_owned(),
    ];
    let lab = up(user, &manifests.concat());
    let says = |kind: &str, name: &str, words: &[&str]| {
        lab.until(&format!("{kind} {name} says {words:?}"), || {
            let text = lab.lab(&["get", kind, name, "-n", "m", "-o", "yaml"]);
            if words.iter().all(|w| text.contains(w)) { Ok(()) } else { Err(text) }
        });
    };
    // No waypoint: what a policy guards is refused, and both objects say why.
    says("service", "app", &["istio.io/WaypointBound", "WaypointMissing", "traffic to this service is refused"]);
    says("authorizationpolicy", "p", &["WaypointAccepted", "AncestorNotBound"]);
    assert_ne!(lab.call("m", "client", "http://app:8080/hello"), 200);
    lab.apply(&waypoint("m"));
    says("service", "app", &["WaypointAccepted", "Successfully attached to waypoint m/waypoint"]);
    says("authorizationpolicy", "p", &["reason: Accepted", "type: WaypointAccepted"]);
    lab.until_call(("m", "client"), "http://app:8080/hello", 200);
    says("httproute", "edge", &["parents:", "reason: Accepted", "reason: ResolvedRefs"]);
    says("gateway", "edge", &["attachedRoutes: 1", "reason: Programmed"]);
    // Gone again: fails closed.
    lab.lab(&["delete", "gateway", "waypoint", "-n", "m"]);
    says("service", "app", &["WaypointMissing", "there is no waypoint m/waypoint; a policy requires it"]);
    lab.until("the service is refused", || match lab.call("m", "client", "http://app:8080/hello") {
        200 => Err("200".to_owned()),
        _ => Ok(()),
    });
}
