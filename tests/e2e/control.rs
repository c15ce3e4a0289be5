//! Traffic does not depend on the control plane, the agent or their restarts.

use crate::support::*;

pub const TESTS: &[Test] = &[
    ("traffic_goes_on_without_the_control_plane_and_state_reconverges_after_it", control_plane),
    ("an_agent_that_restarts_changes_nothing_and_new_pods_are_captured_again", agent),
    ("without_a_node_proxy_traffic_stops_and_comes_back_with_it", proxy),
];

fn setup(user: User) -> Lab {
    let manifests = [
        namespace("m", AMBIENT),
        namespace("outside", ""),
        echo("m", "web", 2),
        client("m", "default"),
        client("outside", "default"),
        peer_authentication("m", "default", "{mtls: {mode: STRICT}}"),
    ]
    .concat();
    up(user, &manifests)
}

fn control_plane(user: User) {
    let lab = setup(user);
    let run = lab.under_load(("m", "client", "http://web/"), || {
        lab.lab(&["system", "stop", "control"]);
        // Kept and new connections, and what is refused stays refused.
        assert_eq!(
            only(
                &lab.load("m", "client", &["-n", "40", "-c", "4", "-qps", "0", "-keepalive=false", "http://web/"]),
                "200"
            ),
            40
        );
        assert_eq!(lab.call("outside", "client", "http://web.m/"), -1);
        // What changes meanwhile is in effect once it is back.
        lab.lab(&["delete", "peerauthentication", "-n", "m", "default"]);
        lab.apply(&echo("m", "web", 3));
        lab.lab(&["system", "start", "control"]);
        lab.until_call(("outside", "client"), "http://web.m/", 200);
        lab.lab(&["rollout", "status", "-n", "m", "deployment/web"]);
        lab.lab(&["system", "restart", "control"]);
        assert_eq!(
            only(
                &lab.load("m", "client", &["-n", "40", "-c", "4", "-qps", "0", "-keepalive=false", "http://web/"]),
                "200"
            ),
            40
        );
    });
    assert!(only(&run, "200") > 0);
    let node = lab.pod("m", "client", "spec.nodeName");
    lab.until("the proxy knows three endpoints", || {
        let dump: serde_json::Value =
            serde_json::from_str(&lab.lab(&["system", "get", &format!("{node}:15000/config_dump")])).unwrap();
        let services = dump["services"].as_array().unwrap().clone();
        let web = services.iter().find(|s| s["name"] == "web").cloned().unwrap_or_default();
        let healthy = web["endpoints"].as_object().map(|e| e.values().filter(|e| e["status"] == "Healthy").count());
        if healthy == Some(3) { Ok(()) } else { Err(web.to_string()) }
    });
}

fn agent(user: User) {
    let lab = setup(user);
    let run = lab.under_load(("m", "client", "http://web/"), || {
        for node in ["agent-node-1", "agent-node-2"] {
            lab.lab(&["system", "restart", node]);
        }
        lab.apply(&echo("m", "web", 4));
        lab.lab(&["rollout", "status", "-n", "m", "deployment/web"]);
        let marks = lab.lab(&["get", "pods", "-n", "m", "-o", "wide"]);
        assert_eq!(marks.matches("enabled").count(), 5, "{marks}");
    });
    assert!(only(&run, "200") > 0);
}

fn proxy(user: User) {
    let lab = setup(user);
    assert_eq!(lab.call("m", "client", "http://web/"), 200);
    for node in ["proxy-node-1", "proxy-node-2"] {
        lab.lab(&["system", "stop", node]);
    }
    // Captured and not served: nothing leaves in plaintext, nothing comes in.
    assert_eq!(lab.call("m", "client", "http://web/"), -1);
    assert_eq!(lab.call("outside", "client", "http://web.m/"), -1);
    for node in ["proxy-node-1", "proxy-node-2"] {
        lab.lab(&["system", "start", node]);
    }
    lab.until_call(("m", "client"), "http://web/", 200);
    assert_eq!(lab.call("outside", "client", "http://web.m/"), -1);
}
