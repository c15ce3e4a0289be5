//! The guide measures what it promises and says so in report.json.

use crate::support::*;

pub const TESTS: &[Test] = &[("the_guide_measures_both_modes_and_reports_them", guide)];

fn guide(user: User) {
    let output =
        trysail(user).args(["guide", "--rounds", "2", "--seconds", "1", "--out", "/dev/shm"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for word in ["no mesh", "ambient L4", "P99.9", "readable", "not readable", "blocked"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let file = "/dev/shm/report.json";
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    assert_eq!(report["schema"], "trysail.report/v1");
    for mode in ["none", "ambient-l4"] {
        let latency = &report["cases"]["latency"][mode];
        assert_eq!(latency["count"], 400, "{latency}");
        let keys = ["p50_ms", "p75_ms", "p90_ms", "p99_ms", "p999_ms"].map(|k| latency[k].as_f64().unwrap());
        assert!(keys[0] > 0.0 && keys.is_sorted(), "{latency}");
    }
    let (bare, meshed) = (&report["cases"]["mtls"]["none"], &report["cases"]["mtls"]["ambient-l4"]);
    assert_eq!((&bare["marker_on_wire"], &bare["plaintext_blocked"]), (&true.into(), &false.into()));
    assert_eq!(
        (&meshed["marker_on_wire"], &meshed["plaintext_blocked"], &meshed["same_root"]),
        (&false.into(), &true.into(), &true.into())
    );
}
