use super::*;
use trysail_api::load::load;
use trysail_api::object::Object;
use trysail_policy::authz::{Facts, Verdict, evaluate};

fn policy(spec: &str) -> AuthorizationPolicy {
    let head =
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: p\n  namespace: m\nspec:\n";
    let loaded = load("case", &format!("{head}{spec}"));
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    match &loaded.objects[0].object {
        Object::AuthorizationPolicy(policy) => (**policy).clone(),
        other => panic!("{other:?}"),
    }
}

fn admits(spec: &str, source: Option<&str>, port: u16) -> bool {
    let translated = translate(&policy(spec), "cluster.local").policy;
    let facts = Facts {
        source: source.map(|id| format!("spiffe://cluster.local/ns/{}", id.replace(':', "/sa/")).parse().unwrap()),
        via: None,
        source_ip: "10.1.2.3".parse().unwrap(),
        destination_ip: "10.0.0.2".parse().unwrap(),
        destination_port: port,
    };
    evaluate(translated.iter(), &facts) == Verdict::Allow
}

const WEB: Option<&str> = Some("c:web");

#[test]
fn what_a_node_proxy_evaluates() {
    let cases = [
        ("  action: ALLOW\n", WEB, 80, false),
        ("  action: DENY\n", WEB, 80, true),
        ("  rules: [{}]\n", None, 80, true),
        ("  rules: [{from: [{source: {principals: [cluster.local/ns/c/sa/web]}}]}]\n", WEB, 80, true),
        ("  rules: [{from: [{source: {principals: [cluster.local/ns/c/sa/web]}}]}]\n", None, 80, false),
        ("  rules: [{from: [{source: {namespaces: [c]}}], to: [{operation: {ports: ['8080']}}]}]\n", WEB, 8080, true),
        ("  rules: [{from: [{source: {namespaces: [c]}}], to: [{operation: {ports: ['8080']}}]}]\n", WEB, 9090, false),
        ("  rules: [{from: [{source: {serviceAccounts: [c/web]}}]}]\n", WEB, 80, true),
        ("  rules: [{from: [{source: {serviceAccounts: [web]}}]}]\n", WEB, 80, false),
        ("  action: DENY\n  rules: [{from: [{source: {notNamespaces: [c]}}]}]\n", None, 80, false),
        ("  action: DENY\n  rules: [{when: [{key: source.ip, values: [10.1.0.0/16]}]}]\n", WEB, 80, false),
    ];
    for (spec, source, port, admitted) in cases {
        assert_eq!(admits(spec, source, port), admitted, "{spec}");
    }
}

#[test]
fn what_it_cannot_evaluate_is_never_weaker_and_is_named() {
    let allow = "  rules: [{to: [{operation: {methods: [GET]}}]}]\n";
    let deny = format!("  action: DENY\n{allow}");
    let deny_port = "  action: DENY\n  rules: [{to: [{operation: {methods: [GET], ports: ['9090']}}]}]\n";
    assert!(!admits(allow, WEB, 80));
    assert!(!admits(&deny, WEB, 80));
    assert!(admits(deny_port, WEB, 80) && !admits(deny_port, WEB, 9090));
    assert!(!admits("  action: CUSTOM\n  provider: {name: x}\n  rules: [{}]\n", WEB, 80));
    assert!(!admits("  rules: [{from: [{source: {ipBlocks: [nonsense]}}]}]\n", WEB, 80));
    assert!(!admits("  action: DENY\n  rules: [{to: [{operation: {ports: ['http']}}]}]\n", WEB, 80));
    let notes: Vec<String> =
        [allow, &deny, deny_port].iter().flat_map(|s| translate(&policy(s), "cluster.local").notes).collect();
    insta::assert_snapshot!(notes.join("\n"));
}
