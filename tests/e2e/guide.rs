//! The guide measures what it promises and says so in report.json.

use crate::support::*;
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};

pub const TESTS: &[Test] = &[
    ("the_guide_measures_every_mode_and_reports_it", guide),
    ("modes_and_cases_of_the_guide_can_be_chosen", chosen),
    ("a_folder_that_cannot_take_the_report_is_named_first", out),
    ("orders_are_counted_and_what_is_executed_twice_is_seen", retry),
    ("the_harness_of_scripts_in_a_config_map_runs_too", scripts),
    ("rollouts_are_measured_and_every_failure_is_looked_for", rollout),
];

/// Runs the guide; what it printed and its report.
fn run(user: User, flags: &[&str]) -> (String, Value) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Of its own: a run that fails leaves its report there.
    let dir = format!("/dev/shm/guide-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let output = trysail(user).args(["guide", "--rounds", "2", "--out", &dir]).args(flags).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_str(&std::fs::read_to_string(format!("{dir}/report.json")).unwrap()).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    (text, report)
}

fn guide(user: User) {
    let (text, report) = run(user, &["--seconds", "1", "--cases", "mtls,netpol,latency,canary"]);
    for word in ["no mesh", "sidecar", "ambient L4", "ambient L7", "P99.9", "readable", "not readable", "blocked"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(report["schema"], "trysail.report/v1");
    for mode in ["none", "sidecar", "ambient-l4", "ambient-l7"] {
        let latency = &report["cases"]["latency"][mode];
        assert_eq!((&latency["count"], &latency["codes"]["200"]), (&400.into(), &400.into()), "{latency}");
        let keys = ["p50_ms", "p75_ms", "p90_ms", "p99_ms", "p999_ms"].map(|k| latency[k].as_f64().unwrap());
        assert!(keys[0] > 0.0 && keys.is_sorted(), "{latency}");
        let mtls = &report["cases"]["mtls"][mode];
        let meshed = mode != "none";
        assert_eq!(
            (&mtls["marker_on_wire"], &mtls["plaintext_blocked"]),
            (&(!meshed).into(), &meshed.into()),
            "{mtls}"
        );
        assert_eq!(mtls["same_root"] == true, meshed, "{mode}: {mtls}");
    }
    for mode in ["none", "sidecar", "ambient-l4", "ambient-l7"] {
        let netpol = &report["cases"]["netpol"][mode];
        let said = ["app_port_only", "with_15008", "retroactive", "other_port_after_15008"].map(|k| netpol[k].clone());
        assert_eq!(said, ["allowed", "allowed", "blocked", "blocked"], "{mode}: {netpol}");
        assert_eq!(netpol["works_as_is"], true);
        let istio = ["app_port_only", "with_15008", "other_port_after_15008"].map(|k| netpol["istio"][k].clone());
        let tunnelled = mode.starts_with("ambient");
        let wanted = if tunnelled { ["blocked", "allowed", "allowed"] } else { ["allowed", "allowed", "blocked"] };
        assert_eq!(istio, wanted, "{mode}: {netpol}");
    }
    for (path, followed) in [
        ("ingress-ambient-l4", true),
        ("east-west-ambient-l4", false),
        ("east-west-ambient-l7", true),
        ("east-west-sidecar", true),
    ] {
        let canary = &report["cases"]["canary"][path];
        assert_eq!((&canary["followed"], &canary["failed"]), (&followed.into(), &0.into()), "{path}: {canary}");
    }
    assert_eq!(report["wrong"], serde_json::json!([]));
}

fn chosen(user: User) {
    let (text, report) = run(user, &["--modes", "none,sidecar", "--cases", "mtls", "--seconds", "1"]);
    assert!(!text.contains("ambient"), "{text}");
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&report["cases"]["mtls"]), ["none", "sidecar"]);
    assert!(report["cases"]["latency"].as_object().is_none_or(serde_json::Map::is_empty), "{}", report["cases"]);
    for (flag, value) in [("--modes", "ambient"), ("--cases", "speed"), ("--rounds", "0"), ("--seconds", "0")] {
        let output = trysail(user).args(["guide", flag, value]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(value), "{said}");
    }
}

/// Before anything is measured: a run that could not keep its result does not begin.
fn out(user: User) {
    for dir in ["/proc/none", "/dev/full/x"] {
        let output = trysail(user).args(["guide", "--out", dir]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(dir) && said.contains("--out"), "{said}");
        assert!(!said.contains("starting a lab"), "{said}");
    }
}

fn retry(user: User) {
    let (text, report) = run(user, &["--modes", "none,sidecar", "--cases", "retry", "--seconds", "5"]);
    for word in ["RETRY", "executed twice", "control run", "no mesh", "sidecar"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for mode in ["none", "sidecar"] {
        let seen = &report["cases"]["retry"][mode];
        let number = |key: &str| seen[key].as_u64().unwrap_or_else(|| panic!("{key}: {seen}"));
        assert!(number("cycles") >= 1, "{seen}");
        assert_eq!((number("sent"), number("executed_twice"), number("unknown")), (100, 0, 0), "{seen}");
        // What was answered was executed; what failed may have been.
        let (answered, executed) = (100 - number("failed"), number("executed"));
        assert!(answered <= executed && executed <= 100, "{seen}");
        assert_eq!(number("delivered") + number("never_delivered"), number("failed"), "{seen}");
    }
    // Without retries nothing can be executed twice; with careless ones it is, and is seen.
    assert_eq!(report["cases"]["retry"]["none"]["control"], Value::Null);
    let control = &report["cases"]["retry"]["sidecar"]["control"];
    assert!(control["executed_twice"].as_u64() > Some(0), "{control}");
    assert!(control["twice"].as_object().unwrap().values().all(|times| times.as_u64() >= Some(2)), "{control}");
}

/// The same harness as users write it: three Python programs in a ConfigMap.
fn scripts(user: User) {
    let lab = up(user, include_str!("guide/scripts.yaml"));
    let dupes = || {
        let ask = "import urllib.request; print(urllib.request.urlopen('http://collector:9090/dupes').read().decode())";
        let (code, text) = lab.exec("shop", "order-client", &["python3", "-c", ask]);
        serde_json::from_str::<Value>(&text).map_err(|e| format!("{code}: {e}: {text}"))
    };
    let counted = |least: u64| {
        lab.until(&format!("{least} orders are counted"), || match dupes()? {
            seen if seen["total_ids"].as_u64() >= Some(least) => Ok(seen),
            seen => Err(seen.to_string()),
        })
    };
    let before = counted(10)["total_ids"].as_u64().unwrap();
    for _ in 0..2 {
        lab.lab(&["rollout", "restart", "-n", "shop", "deployment/order"]);
        lab.lab(&["rollout", "status", "-n", "shop", "deployment/order", "--timeout", "60s"]);
    }
    let after = counted(before + 20);
    assert_eq!((&after["dupe_count"], &after["dupes"]), (&0.into(), &serde_json::json!({})), "{after}");
}

fn rollout(user: User) {
    let flags = ["--modes", "none,ambient-l7", "--cases", "rollout", "--seconds", "6"];
    let (text, report) = run(user, &flags);
    for word in ["ROLLOUT", "no mesh, hardened", "ambient L7", "never delivered", "Time line"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for mode in ["none", "ambient-l7"] {
        for variant in ["baseline", "hardened"] {
            let seen = &report["cases"]["rollout"][mode][variant];
            let number = |key: &str| seen[key].as_u64().unwrap_or_else(|| panic!("{key}: {seen}"));
            assert!(number("cycles") >= 1, "{seen}");
            assert_eq!(number("sent"), 600, "{seen}");
            let codes: u64 = seen["codes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(codes, 600, "{seen}");
            // All logs are there, so each failure is known for what it is; and the parts add up.
            let parts = [number("never_delivered"), number("delivered"), number("unknown")];
            assert_eq!((parts.iter().sum::<u64>(), parts[2]), (number("failed"), 0), "{seen}");
            assert_eq!(seen["failures"].as_array().unwrap().len() as u64, number("failed"), "{seen}");
            let seconds = seen["time_line"]["seconds"].as_array().unwrap();
            assert_eq!(seconds.iter().map(|s| s[0].as_u64().unwrap()).sum::<u64>(), 600, "{seen}");
            assert!(!seen["time_line"]["restarts"].as_array().unwrap().is_empty(), "{seen}");
            assert!(number("sockets") >= 16 && seen["mean_ms"].as_f64() <= seen["slowest_ms"].as_f64(), "{seen}");
        }
    }
    assert_eq!(report["unmeasured"], serde_json::json!([]));
}
