//! Every kind of workload reaches every other, or is refused, cell by cell as `docs/interoperability.md` says.

use crate::engine::{SIDECAR, WAYPOINT, waypoint};
use crate::support::*;

pub const TESTS: &[Test] = &[("every_kind_reaches_every_kind_as_documented", matrix)];

const DOCUMENT: &str = include_str!("../../docs/interoperability.md");

/// Kind, and its namespace's labels.
const KINDS: [(&str, &str); 6] = [
    ("none", ""),
    ("sidecar", SIDECAR),
    ("ambient", AMBIENT),
    ("waypoint", WAYPOINT),
    ("waypoint-all", WAYPOINT),
    ("sidecar-waypoint", "istio-injection: enabled, istio.io/use-waypoint: waypoint"),
];

/// Rows of the table under a heading: the caller, then a cell for each kind in order.
fn table(heading: &str) -> Vec<(String, Vec<String>)> {
    let section = DOCUMENT.split("\n## ").find(|s| s.starts_with(heading)).unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = section.lines().filter(|l| l.starts_with('|')).map(cells);
    let head = lines.next().unwrap();
    assert_eq!(head[1..], KINDS.map(|(kind, _)| kind.to_owned()), "the columns");
    lines.skip(1).map(|row| (row[0].clone(), row[1..].to_vec())).collect()
}

fn matrix(user: User) {
    let mut manifests = String::new();
    for (kind, labels) in KINDS {
        manifests += &[namespace(kind, labels), echo(kind, "web", 1), client(kind, "default")].concat();
    }
    for kind in ["waypoint", "sidecar-waypoint"] {
        manifests += &waypoint(kind);
    }
    manifests +=
        &waypoint("waypoint-all").replace("{name: waypoint,", "{labels: {istio.io/waypoint-for: all}, name: waypoint,");
    let lab = up(user, &manifests);
    let addresses: Vec<String> = KINDS.iter().map(|(kind, _)| lab.pod(kind, "web", "status.podIP")).collect();
    for mode in ["PERMISSIVE", "STRICT"] {
        lab.apply(&peer_authentication("istio-system", "default", &format!("{{mtls: {{mode: {mode}}}}}")));
        // The change has arrived when the last of the cells that it changes has.
        let refused = if mode == "STRICT" { -1 } else { 200 };
        for kind in ["sidecar", "ambient", "waypoint", "waypoint-all", "sidecar-waypoint"] {
            lab.until_call(("none", "client"), &format!("http://web.{kind}/"), refused);
        }
        let (mut wrong, mut cells) = (Vec::new(), 0);
        for (caller, row) in table(mode) {
            for (((called, _), address), wanted) in KINDS.iter().zip(&addresses).zip(&row) {
                for url in [format!("http://web.{called}/"), format!("http://{address}:8080/")] {
                    let code = lab.call(&caller, "client", &url);
                    cells += 1;
                    if code != if wanted == "yes" { 200 } else { -1 } {
                        wrong.push(format!("{mode}: {caller} -> {called}, {url}: {code}, not {wanted}"));
                    }
                }
            }
        }
        assert_eq!(cells, 72);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
