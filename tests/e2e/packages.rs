//! Packages: the objects that they stand for, and their life in a lab.

use crate::support::*;

pub const TESTS: &[Test] = &[
    ("packages_are_expanded_to_objects_that_the_lab_takes", expanded),
    ("pk15_pk16_packages_live_switch_modes_are_repaired_and_leave_nothing", lives),
];

/// The receiver of the acceptance cases: one caller, by service account, on two ports.
fn package(mode: &str) -> String {
    format!(
        "---
apiVersion: uds.dev/v1alpha1
kind: Package
metadata: {{name: shop, namespace: shop}}
spec:
  network:
    serviceMesh: {{mode: {mode}}}
    allow:
      - {{direction: Ingress, selector: {{app: web}}, remoteNamespace: pay, remoteServiceAccount: default, port: 8080}}
"
    )
}

fn callers(name: &str) -> String {
    namespace(name, AMBIENT) + &client(name, "default")
}

/// Who is admitted, and on which port.
fn holds(lab: &Lab) {
    lab.until_call(("pay", "client"), "http://web.shop/", 200);
    let refused = |from: &str, url: &str| {
        lab.until(&format!("{url} is refused to {from}"), || match lab.call(from, "client", url) {
            // A sidecar can say so in HTTP.
            -1 | 403 => Ok(()),
            other => Err(other.to_string()),
        });
    };
    refused("spy", "http://web.shop/");
    // Another port of the same pod, by the same caller and the same tunnel.
    let address = lab.pod("shop", "web", "status.podIP");
    refused("pay", &format!("http://{address}:9090/"));
}

fn expanded(user: User) {
    let package = package("ambient");
    let denied = given(user, &package.replace("remoteNamespace: pay, ", ""), &["package", "expand", "-f", "-"]);
    let words = String::from_utf8_lossy(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1));
    assert!(
        words.starts_with("error: stdin:9: Package shop/shop: spec.network.allow[0]: ") && words.contains("(E1)"),
        "{words}"
    );

    let expanded = given(user, &package, &["package", "expand", "-f", "-"]);
    assert!(expanded.status.success(), "{}", String::from_utf8_lossy(&expanded.stderr));
    // What is printed is in effect once it is applied: as it says, with traffic, in ambient mode.
    let objects = String::from_utf8(expanded.stdout).unwrap();
    let manifests = [callers("pay"), callers("spy"), namespace("shop", AMBIENT), echo("shop", "web", 1)].concat();
    let lab = up(user, &manifests);
    lab.apply(&objects);
    holds(&lab);
}

fn ready(lab: &Lab, mode: &str) {
    lab.until(&format!("the Package is ready in mode {mode}"), || {
        let text = lab.lab(&["get", "package", "shop", "-n", "shop", "-o", "json"]);
        let status = serde_json::from_str::<serde_json::Value>(&text).unwrap()["status"].clone();
        let done = status["phase"] == "Ready" && status["meshMode"] == mode;
        if done { Ok(()) } else { Err(status.to_string()) }
    });
}

fn policies(lab: &Lab) -> String {
    ["networkpolicy", "authorizationpolicy"].map(|kind| lab.lab(&["get", kind, "-n", "shop", "-o", "name"])).concat()
}

fn lives(user: User) {
    let manifests = [callers("pay"), callers("spy"), namespace("shop", ""), echo("shop", "web", 2)].concat();
    let lab = up(user, &manifests);
    lab.until_call(("spy", "client"), "http://web.shop/", 200);
    lab.apply(&package("ambient"));
    ready(&lab, "ambient");
    holds(&lab);
    let fresh = policies(&lab);

    // What is taken away by hand comes back.
    lab.lab(&["delete", "networkpolicy", "-n", "shop", "deny-shop-default"]);
    lab.until("the policy is back", || {
        let now = policies(&lab);
        if now == fresh { Ok(()) } else { Err(now) }
    });

    // To sidecars and back, under load.
    for mode in ["sidecar", "ambient"] {
        let run = lab.under_load(("pay", "client", "http://web.shop/"), || {
            lab.apply(&package(mode));
            ready(&lab, mode);
        });
        // No caller is ever refused; an application that ends may take a request in flight with it, of which
        // a sidecar says 503.
        let codes = run["RetCodes"].as_object().unwrap();
        let lost = codes.iter().filter(|(code, _)| *code != "200").map(|(_, n)| n.as_u64().unwrap()).sum::<u64>();
        assert!(codes["200"].as_u64() > Some(50 * lost) && !codes.contains_key("403"), "{codes:?}");
        holds(&lab);
    }
    assert_eq!(policies(&lab), fresh);

    // Nothing is left of it.
    lab.lab(&["delete", "package", "-n", "shop", "shop"]);
    lab.until_call(("spy", "client"), "http://web.shop/", 200);
    assert_eq!(policies(&lab).trim(), "");
    let labels = lab.lab(&["get", "namespace", "shop", "-o", "json"]);
    assert!(!labels.contains("dataplane-mode") && !labels.contains("uds.dev/"), "{labels}");
}
