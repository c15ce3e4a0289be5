use super::*;
use trysail_api::load::load;

const WORLD: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: x, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Namespace
metadata: {name: y, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Namespace
metadata: {name: out}
---
apiVersion: v1
kind: Service
metadata: {name: s, namespace: y, labels: {istio.io/use-waypoint: w}}
spec: {selector: {app: srv}, clusterIP: 10.96.0.9, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: w, namespace: y}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
";

fn deployment(ns: &str, name: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {ns}}}\nspec: {{selector: {{matchLabels: {{app: {name}}}}}, template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, ports: [{{containerPort: 8080}}]}}]}}}}}}\n"
    )
}

fn ask(more: &str, from: (&str, &str), port: u16, request: Option<(&str, &str)>) -> Vec<Way> {
    let all = [WORLD, &deployment("x", "cli"), &deployment("out", "cli"), &deployment("y", "srv"), more].concat();
    let loaded = load("case", &all);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let mut objects = Objects::default();
    loaded.objects.into_iter().for_each(|l| objects.set(l.object.key(), Some(l.object)));
    let pair = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    let question = Question { from: pair(from), to: pair(("y", "srv")), port, request: request.map(pair) };
    let config = MeshConfig { trust_domain: "cluster.local".into(), cluster: "c".into() };
    explain(&objects, &config, &question).unwrap()
}

#[track_caller]
fn says(ways: &[Way], title: &str, verdict: &str, reason: &str) {
    let way = ways.iter().find(|w| w.title.contains(title)).unwrap_or_else(|| panic!("{title}: {ways:#?}"));
    assert_eq!(way.verdict(), verdict, "{way}");
    assert!(way.to_string().contains(reason), "{reason}: {way}");
}

#[test]
fn every_gate_is_named_on_every_way() {
    let open = ask("", ("x", "cli"), 8080, None);
    says(&open, "by its address", "allow", "inner gate, ingress of y/srv: not isolated");
    says(&open, "service y/s:80 through waypoint y/w", "allow", "AuthorizationPolicy at the waypoint: allowed");
    let isolated = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: y}\nspec: {podSelector: {}, ingress: [{ports: [{port: 15008}]}]}\n";
    let ways = ask(isolated, ("x", "cli"), 8080, None);
    says(&ways, "by its address", "refuse", "isolated for ingress by y/p, no rule matched");
    says(&ask(isolated, ("out", "cli"), 8080, None), "by its address", "drop", "packet gate, ingress of y/srv");
    let strict = "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: d, namespace: y}\nspec: {mtls: {mode: STRICT}}\n";
    says(
        &ask(strict, ("out", "cli"), 8080, None),
        "by its address",
        "refuse",
        "mode Strict, the caller comes by plaintext",
    );
    says(
        &ask(strict, ("x", "cli"), 8080, None),
        "by its address",
        "allow",
        "mode Strict, the caller comes by mutual TLS",
    );
}

#[test]
fn policies_act_where_they_are_aimed() {
    let at_service = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: get, namespace: y}\nspec: {targetRefs: [{kind: Service, group: '', name: s}], rules: [{to: [{operation: {methods: [GET], paths: [/a*]}}]}]}\n";
    let ways = |request| ask(at_service, ("x", "cli"), 8080, request);
    says(&ways(Some(("GET", "/a"))), "through waypoint", "allow", "allowed");
    says(&ways(Some(("POST", "/a"))), "through waypoint", "403", "isolated by ALLOW policies");
    says(&ways(Some(("GET", "/a/../b"))), "through waypoint", "403", "isolated by ALLOW policies");
    says(&ways(None), "through waypoint", "reset", "as for TCP");
    says(&ways(Some(("GET", "/a"))), "by its address", "refuse", "l7_hop_required");
    let at_node = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: no, namespace: y}\nspec: {action: DENY, rules: [{from: [{source: {namespaces: [x]}}]}]}\n";
    says(&ask(at_node, ("x", "cli"), 8080, None), "by its address", "refuse", "denied by policy y/no");
}

#[test]
fn a_change_shows_in_what_it_alters() {
    let before = ask("", ("x", "cli"), 8080, None);
    let isolate = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: y}\nspec: {podSelector: {}}\n";
    let after = ask(isolate, ("x", "cli"), 8080, None);
    assert_eq!(differences(&before, &after).len(), 2);
    assert!(differences(&before, &before).is_empty());
}
