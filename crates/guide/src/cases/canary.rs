//! Case `canary`: a rule of nine to one between two versions, at the edge and inside, and what share the new one gets.

use crate::stage::{Stage, StageError};
use crate::verdict::Canary;
use std::time::Duration;
use trysail_load::result::Summary;

/// A way that requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Key in report.json.
    pub key: &'static str,
    /// In a table.
    pub title: &'static str,
    namespace: &'static str,
    url: &'static str,
    /// Whether something on the way understands HTTP, so that the rule counts.
    pub routed: bool,
}

/// The share of the new version that the rule demands.
pub const WANTED: f64 = 0.1;
/// What the new version answers, so that it can be told apart.
const NEW: i32 = 202;
/// How long the first request of a path may take to be answered.
const REACHED: Duration = Duration::from_secs(20);

/// The ways, the edge first.
pub const PATHS: [Path; 4] = [
    Path {
        key: "ingress-ambient-l4",
        title: "from outside, backends ambient L4",
        namespace: "outside",
        url: "http://edge-istio.ambient-l4:80/",
        routed: true,
    },
    Path {
        key: "east-west-ambient-l4",
        title: "inside, ambient L4",
        namespace: "ambient-l4",
        url: "http://canary:8080/",
        routed: false,
    },
    Path {
        key: "east-west-ambient-l7",
        title: "inside, ambient L7",
        namespace: "ambient-l7",
        url: "http://canary:8080/",
        routed: true,
    },
    Path {
        key: "east-west-sidecar",
        title: "inside, sidecar",
        namespace: "sidecar",
        url: "http://canary:8080/",
        routed: true,
    },
];

/// Measures one way with so many requests.
pub fn run(stage: &Stage, path: &Path, requests: u32) -> Result<Canary, StageError> {
    stage.until("an answer", REACHED, |s| {
        let summary = load(s, path, 1).map_err(|e| e.to_string())?;
        let answered = summary.codes.keys().all(|code| [200, NEW].contains(code));
        if answered { Ok(()) } else { Err(format!("{:?}", summary.codes)) }
    })?;
    let summary = load(stage, path, requests)?;
    let count = |code: i32| summary.codes.get(&code).copied().unwrap_or(0);
    let (new, total) = (count(NEW), summary.codes.values().sum::<u64>());
    Ok(Canary { wanted: WANTED, requests: total, new, failed: total - new - count(200), routed: path.routed })
}

fn load(stage: &Stage, path: &Path, requests: u32) -> Result<Summary, StageError> {
    let count = requests.to_string();
    // At layer 4 a connection is what is distributed: each request has its own.
    stage.load(path.namespace, &["-qps", "0", "-c", "4", "-n", &count, "-keepalive=false", path.url])
}
