//! Nothing is lost while pods, labels and certificates change.

use crate::support::*;

pub const TESTS: &[Test] = &[
    ("a_namespace_enters_and_leaves_the_mesh_under_load_without_a_failed_request", flips),
    ("certificates_rotate_under_load_without_a_failed_request", rotation),
    ("an_address_that_changes_hands_carries_no_identity_over", reuse),
    ("what_manifests_say_of_the_mode_holds_for_pods_that_run", applied),
];

fn mesh_column(lab: &Lab, namespace: &str, app: &str) -> String {
    lab.pod(namespace, app, "metadata.annotations.ambient\\.istio\\.io/redirection")
}

/// Waits until the first pod of `app` in namespace m is captured ("enabled") or not ("").
fn until_mesh(lab: &Lab, app: &str, wanted: &str) {
    lab.until("the pod's capture is as its labels say", || match mesh_column(lab, "m", app) {
        now if now == wanted => Ok(()),
        other => Err(other),
    });
}

fn flips(user: User) {
    let manifests = [namespace("m", ""), echo("m", "web", 2), client("m", "default")].concat();
    let lab = up(user, &manifests);
    let names = || lab.lab(&["get", "pods", "-n", "m", "-o", "name"]);
    let before = names();
    let opened = || {
        lab.metrics("m", "web")
            .lines()
            .filter(|l| l.starts_with("istio_tcp_connections_opened_total") && l.contains("mutual_tls"))
            .count()
    };
    for keepalive in ["", "new"] {
        let url = if keepalive.is_empty() { "http://web/" } else { "http://web/?size=10" };
        let run = lab.under_load(("m", "client", url), || {
            for _ in 0..2 {
                lab.lab(&["label", "namespace", "m", AMBIENT.replace(": ", "=").as_str(), "--overwrite"]);
                for app in ["web", "client"] {
                    until_mesh(&lab, app, "enabled");
                }
                // New connections go through the mesh now.
                assert_eq!(
                    only(
                        &lab.load(
                            "m",
                            "client",
                            &["-n", "40", "-c", "2", "-qps", "0", "-keepalive=false", "http://web/"]
                        ),
                        "200"
                    ),
                    40
                );
                assert!(opened() > 0);
                lab.lab(&["label", "namespace", "m", "istio.io/dataplane-mode-"]);
                for app in ["web", "client"] {
                    until_mesh(&lab, app, "");
                }
                assert_eq!(
                    only(
                        &lab.load(
                            "m",
                            "client",
                            &["-n", "40", "-c", "2", "-qps", "0", "-keepalive=false", "http://web/"]
                        ),
                        "200"
                    ),
                    40
                );
            }
        });
        assert!(only(&run, "200") > 0);
    }
    assert_eq!(names(), before, "no pod was restarted");
}

fn rotation(user: User) {
    let manifests = [
        namespace("m", AMBIENT),
        echo("m", "web", 2),
        client("m", "default"),
        peer_authentication("m", "default", "{mtls: {mode: STRICT}}"),
    ]
    .concat();
    let lab = up_with(user, &manifests, &["--cert-ttl", "6"]);
    let node = lab.pod("m", "client", "spec.nodeName");
    let serial = || {
        let dump: serde_json::Value =
            serde_json::from_str(&lab.lab(&["system", "get", &format!("{node}:15000/config_dump")])).unwrap();
        let all = dump["certificates"].as_array().unwrap().clone();
        all.iter().find(|c| c["identity"] == "spiffe://cluster.local/ns/m/sa/default").unwrap()["certChain"][0]["serialNumber"].to_string()
    };
    // Kept connections and new ones, over three renewals: longer than any certificate lives.
    let run = lab.under_load(("m", "client", "http://web/"), || {
        for _ in 0..3 {
            let before = serial();
            lab.until("the certificate is renewed", || {
                assert_eq!(
                    only(
                        &lab.load(
                            "m",
                            "client",
                            &["-n", "10", "-c", "2", "-qps", "0", "-keepalive=false", "http://web/"]
                        ),
                        "200"
                    ),
                    10
                );
                let now = serial();
                if now == before { Err(now) } else { Ok(()) }
            });
        }
    });
    assert!(only(&run, "200") > 0);
    // Without the control plane the certificate that is valid stays in use until its end, and not beyond.
    lab.lab(&["system", "stop", "control"]);
    lab.until_call(("m", "client"), "http://web/", 200);
    lab.lab(&["system", "start", "control"]);
    lab.until_call(("m", "client"), "http://web/", 200);
}

fn pod(name: &str, account: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: m, labels: {{app: {name}}}}}\nspec:\n  serviceAccountName: {account}\n  \
         nodeName: node-1\n  terminationGracePeriodSeconds: 1\n  containers: [{{name: main, image: test/tool, args: [sleep]}}]\n"
    )
}

fn reuse(user: User) {
    let policy = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: first-only, namespace: m}\nspec:\n  \
                  selector: {matchLabels: {app: web}}\n  rules: [{from: [{source: {principals: [cluster.local/ns/m/sa/first]}}]}]\n";
    let manifests = [namespace("m", AMBIENT), echo("m", "web", 1), pod("one", "first"), policy.to_owned()].concat();
    let lab = up(user, &manifests);
    let call = |name: &str| {
        let output = lab.try_lab(&[
            "exec",
            "-n",
            "m",
            name,
            "--",
            "fortio",
            "load",
            "-allow-initial-errors",
            "-n",
            "1",
            "-c",
            "1",
            "-json",
            "-",
            "http://web/",
        ]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        value["RetCodes"].as_object().and_then(|c| c.keys().next().cloned()).unwrap_or_default()
    };
    assert_eq!(call("one"), "200");
    let ip = lab.pod("m", "one", "status.podIP");
    for round in 0..3 {
        lab.lab(&["delete", "pod", "-n", "m", "one", "--grace-period", "0"]);
        let gone = || {
            let left = lab.lab(&["get", "pods", "-n", "m", "-l", "app=one", "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        };
        lab.until("the pod is gone", gone);
        lab.apply(&pod("two", "second"));
        lab.until("the new pod runs", || match lab.pod("m", "two", "status.phase").as_str() {
            "Running" => Ok(()),
            other => Err(other.to_owned()),
        });
        assert_eq!(lab.pod("m", "two", "status.podIP"), ip, "the address is reused");
        assert_eq!(call("two"), "-1", "round {round}: the new pod was taken for the old one");
        lab.lab(&["delete", "pod", "-n", "m", "two", "--grace-period", "0"]);
        lab.until("the pod is gone", || {
            let left = lab.lab(&["get", "pods", "-n", "m", "-l", "app=two", "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        lab.apply(&pod("one", "first"));
        lab.until("the first account is served again", || match call("one") {
            code if code == "200" => Ok(()),
            other => Err(other),
        });
    }
}

fn applied(user: User) {
    let lab = up(user, &[namespace("m", ""), pod("one", "first")].concat());
    assert_eq!(mesh_column(&lab, "m", "one"), "");
    lab.apply(&namespace("m", AMBIENT));
    until_mesh(&lab, "one", "enabled");
    // The manifest says nothing of the capture, and takes nothing from it.
    lab.apply(&pod("one", "first"));
    until_mesh(&lab, "one", "enabled");
    // What happens while there is no agent is made good by the next one.
    lab.lab(&["system", "stop", "agent-node-1"]);
    lab.apply(&namespace("m", ""));
    lab.lab(&["system", "start", "agent-node-1"]);
    until_mesh(&lab, "one", "");
    let rules = lab.exec_pod(
        "m",
        "one",
        &["fortio", "load", "-allow-initial-errors", "-n", "1", "-c", "1", "http://10.96.0.10:53/"],
    );
    assert!(!rules.contains("refused"), "the pod's connections still lead to closed doors: {rules}");
}
