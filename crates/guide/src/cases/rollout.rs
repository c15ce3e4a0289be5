//! Case `rollout`: requests on kept connections while the Deployment that answers them is restarted over and over; then the same with
//! what is recommended against failures.

use super::churn::{self, Loaded};
use crate::stage::{Mode, Stage, StageError};
use crate::verdict::churn::Churn;
use std::time::Duration;
use trysail_api::object::Kind;

/// The manifests, for any namespace.
const BASELINE: (&str, &str) =
    ("examples/rollout/baseline.yaml", include_str!("../../../../examples/rollout/baseline.yaml"));
const HARDENED: (&str, &str) =
    ("examples/rollout/hardened.yaml", include_str!("../../../../examples/rollout/hardened.yaml"));
/// The Deployment in them, its Service, and its container.
const NAME: &str = "rolling";
const CONTAINER: &str = "echo";
const URL: &str = "http://rolling:8080/";
/// How long the pods may take to be ready, or to be gone.
const SETTLED: Duration = Duration::from_secs(120);

/// How it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Requests a second.
    pub qps: u32,
    /// Connections.
    pub connections: u32,
    /// Seconds of the load, as the manifests are.
    pub baseline_s: u32,
    /// Seconds of the load, hardened.
    pub hardened_s: u32,
}

/// Whether the workload says how its pods are to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// It says nothing.
    Baseline,
    /// Its pods serve on for a while, and its sidecars end with their last connection.
    Hardened,
}

impl Variant {
    /// Both, in the order in which they are run.
    pub const ALL: [Variant; 2] = [Variant::Baseline, Variant::Hardened];

    /// Key in report.json.
    pub fn key(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Hardened => "hardened",
        }
    }
}

/// A mode and what was measured in it.
pub struct Measured {
    /// The mode.
    pub mode: Mode,
    /// What was measured, or what kept it from being measured.
    pub outcome: Result<Churn, StageError>,
}

/// Measures every mode, one after the other; `progress` hears of each before its load. What keeps one mode from being measured takes
/// nothing away from the others.
///
/// # Errors
/// When the workloads can be put nowhere, or do not go away again.
pub fn run(
    stage: &Stage,
    modes: &[Mode],
    variant: Variant,
    plan: Plan,
    mut progress: impl FnMut(Mode),
) -> Result<Vec<Measured>, StageError> {
    for mode in modes {
        stage.apply(mode.namespace(), BASELINE.0, BASELINE.1)?;
        if variant == Variant::Hardened {
            stage.apply(mode.namespace(), HARDENED.0, HARDENED.1)?;
        }
    }
    // All of them start at once, before anything is measured; whether each did is seen below.
    let ready: Vec<_> = modes.iter().map(|mode| stage.rolled_out(mode.namespace(), NAME, SETTLED)).collect();
    let mut loads = Vec::new();
    for (mode, ready) in modes.iter().zip(ready) {
        progress(*mode);
        loads.push(ready.and_then(|()| load(stage, *mode, variant, plan)));
    }
    for mode in modes {
        stage.delete(Kind::Service, mode.namespace(), NAME)?;
        stage.delete(Kind::Deployment, mode.namespace(), NAME)?;
    }
    // Who is on the way out has said what there was to say once it is gone.
    modes.iter().try_for_each(|mode| stage.gone(mode.namespace(), NAME))?;
    let measured = |(load, mode): (Result<Loaded, StageError>, &Mode)| Measured {
        mode: *mode,
        outcome: load.and_then(|loaded| loaded.examine(stage, mode.namespace(), (NAME, CONTAINER))),
    };
    Ok(loads.into_iter().zip(modes).map(measured).collect())
}

/// The load, while the Deployment is restarted.
fn load(stage: &Stage, mode: Mode, variant: Variant, plan: Plan) -> Result<Loaded, StageError> {
    let ns = mode.namespace();
    stage.reached(ns, URL)?;
    let seconds = if variant == Variant::Hardened { plan.hardened_s } else { plan.baseline_s };
    let (qps, connections, length) = (plan.qps.to_string(), plan.connections.to_string(), format!("{seconds}s"));
    let flags = ["-qps", &qps, "-c", &connections, "-t", &length, URL];
    churn::load(stage, (ns, NAME), &flags)
}
