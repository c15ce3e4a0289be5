//! Plaintext is accepted or refused as PeerAuthentication says, at every level, and not a byte of what is refused reaches the application.

use crate::support::*;

pub const TESTS: &[Test] = &[
    ("plaintext_is_refused_or_accepted_by_mode_and_port", modes),
    ("a_policy_decides_by_identity_and_ends_open_connections", policies),
];

fn modes(user: User) {
    let manifests = [
        namespace("m", AMBIENT),
        namespace("outside", ""),
        echo("m", "web", 1),
        client("outside", "default"),
        client("m", "default"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let ip = lab.pod("m", "web", "status.podIP");
    let (main, second) = (format!("http://{ip}:8080/"), format!("http://{ip}:9090/"));
    let outside = ("outside", "client");
    let source = lab.pod("outside", "client", "status.podIP");

    // PERMISSIVE is the default; the application sees the caller's own address.
    lab.until_call(outside, &main, 200);
    assert!(lab.logs("m", "web", "main").contains(&format!("connection from {source}:")));

    // STRICT: reset, and the application hears nothing of it.
    lab.apply(&peer_authentication("m", "default", "{mtls: {mode: STRICT}}"));
    lab.until_call(outside, &main, -1);
    let before = lab.logs("m", "web", "main").matches(&source).count();
    let refused = lab.load("outside", "client", &["-n", "5", "-c", "1", "-qps", "0", &main]);
    assert_eq!(only(&refused, "-1"), 5);
    assert!(refused["LastError"].as_str().unwrap().contains("reset"), "{refused}");
    assert_eq!(
        lab.logs("m", "web", "main").matches(&source).count(),
        before,
        "a refused connection reached the application"
    );
    let failed = lab.metrics("m", "web");
    assert!(
        failed
            .lines()
            .any(|l| l.starts_with("istio_tcp_connections_failed_total") && l.contains("reporter=\"destination\"")),
        "{failed}"
    );
    // Callers in the mesh and the node's probes are not touched.
    assert_eq!(only(&lab.load("m", "client", &["-n", "5", "-c", "1", "-qps", "0", "http://web/"]), "200"), 5);
    assert!(lab.lab(&["get", "pods", "-n", "m", "-l", "app=web"]).contains("2/2"));

    // One port open in a strict workload, and one strict in an open one.
    lab.apply(&peer_authentication(
        "m",
        "web",
        "{selector: {matchLabels: {app: web}}, portLevelMtls: {9090: {mode: PERMISSIVE}}}",
    ));
    lab.until_call(outside, &second, 200);
    assert_eq!(lab.call("outside", "client", &main), -1);
    lab.apply(&peer_authentication(
        "m",
        "web",
        "{selector: {matchLabels: {app: web}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {9090: {mode: STRICT}}}",
    ));
    lab.until_call(outside, &second, -1);
    assert_eq!(lab.call("outside", "client", &main), 200);

    // The whole mesh, from the root namespace.
    lab.lab(&["delete", "peerauthentication", "-n", "m", "default", "web"]);
    lab.until_call(outside, &second, 200);
    lab.apply(&peer_authentication("istio-system", "default", "{mtls: {mode: STRICT}}"));
    lab.until_call(outside, &main, -1);
    lab.lab(&["delete", "peerauthentication", "-n", "istio-system", "default"]);
    lab.until_call(outside, &main, 200);
}

fn policies(user: User) {
    let manifests = [
        namespace("m", AMBIENT),
        namespace("c", AMBIENT),
        echo("m", "web", 1),
        client("m", "friend"),
        client("c", "other"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let policy = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: friends, namespace: m}\nspec:\n  rules: \
                  [{from: [{source: {principals: [cluster.local/ns/m/sa/friend]}}], to: [{operation: {ports: ['8080']}}]}]\n";
    // A connection that is open when the policy comes is ended by it, and only that one.
    let run = lab.under_load(("m", "client", "http://web/"), || {
        let refused = lab.under_load(("c", "client", "http://web.m/"), || {
            lab.until("calls flow", || {
                (lab.call("c", "client", "http://web.m/") == 200).then_some(()).ok_or_else(String::new)
            });
            lab.apply(policy);
            lab.until_call(("c", "client"), "http://web.m/", -1);
        });
        let codes = refused["RetCodes"].as_object().unwrap();
        assert!(codes.contains_key("200") && codes.contains_key("-1"), "{codes:?}");
    });
    assert!(only(&run, "200") > 0);
    assert_eq!(lab.call("m", "client", "http://web:9090/"), -1, "the port is not the policy's");
}
