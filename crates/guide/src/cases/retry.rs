//! Case `retry`: orders that must not be executed twice, under retries that users ask for, while the Deployment that executes them is
//! restarted over and over. A control run, in which orders are executed twice, shows that this would be seen.

use super::churn::{self, Loaded};
use crate::stage::{Mode, Stage, StageError};
use crate::verdict::retry::{Control, Executed, Retry};
use serde_json::Value;
use std::time::Duration;
use trysail_api::object::Kind;
use trysail_base::log::chain;
use trysail_lab::api::Request;

/// The manifests, for any namespace.
const ORDERS: (&str, &str) = ("examples/retry/orders.yaml", include_str!("../../../../examples/retry/orders.yaml"));
const CONTROL: (&str, &str) = ("examples/retry/control.yaml", include_str!("../../../../examples/retry/control.yaml"));
/// The Deployment that is restarted, its Service and its container; who counts; the rule.
const ORDER: &str = "order";
const COLLECTOR: &str = "collector";
const RULE: &str = "order-retry";
const URL: &str = "http://order:8080/order";
const HEALTH: &str = "http://order:8080/healthz";
/// Port of the collector.
const COUNTS: u16 = 9090;
/// How long the pods may take to be ready.
const SETTLED: Duration = Duration::from_secs(120);

/// How it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Orders a second, each on a connection of its own.
    pub qps: u32,
    /// Orders under way at once, at most.
    pub connections: u32,
    /// Seconds of the load.
    pub seconds: u32,
    /// Seconds of the control run.
    pub control_s: u32,
}

/// A mode and what was measured in it.
pub struct Measured {
    /// The mode.
    pub mode: Mode,
    /// What was measured, or what kept it from being measured.
    pub outcome: Result<Retry, StageError>,
}

/// Measures every mode, one after the other; `progress` hears of each before its load. What keeps one mode from being measured takes
/// nothing away from the others.
///
/// # Errors
/// When the workloads can be put nowhere, or do not go away again.
pub fn run(
    stage: &Stage,
    modes: &[Mode],
    plan: Plan,
    mut progress: impl FnMut(Mode),
) -> Result<Vec<Measured>, StageError> {
    let ready = put(stage, modes, &[ORDERS])?;
    let mut loads = Vec::new();
    for (mode, ready) in modes.iter().zip(ready) {
        progress(*mode);
        loads.push(ready.and_then(|()| load(stage, mode.namespace(), plan)));
    }
    // Orders that nobody waits for any more are executed too: what is executed is known when their servers are gone.
    remove(stage, modes, Kind::Deployment, ORDER)?;
    modes.iter().try_for_each(|mode| stage.gone(mode.namespace(), ORDER))?;
    let examine = |(load, mode): (Result<Loaded, StageError>, &Mode)| -> Result<Retry, StageError> {
        let churn = load?.examine(stage, mode.namespace(), (ORDER, ORDER))?;
        Ok(Retry { churn, executed: executed(stage, mode.namespace())?, control: Control::NoRetries })
    };
    let outcomes: Vec<_> = loads.into_iter().zip(modes).map(examine).collect();
    clear(stage, modes)?;
    let mut out: Vec<Measured> =
        modes.iter().zip(outcomes).map(|(mode, outcome)| Measured { mode: *mode, outcome }).collect();
    // Only who understands HTTP can try again.
    let routed: Vec<Mode> = modes.iter().copied().filter(|m| matches!(m, Mode::Sidecar | Mode::AmbientL7)).collect();
    let controls = match control(stage, &routed, plan) {
        Ok(seen) => seen.into_iter().map(Control::Seen).collect(),
        Err(error) => vec![Control::Failed(chain(&error)); routed.len()],
    };
    for (mode, control) in routed.iter().zip(controls) {
        if let Some(Ok(retry)) = out.iter_mut().find(|m| m.mode == *mode).map(|m| &mut m.outcome) {
            retry.control = control;
        }
    }
    Ok(out)
}

fn load(stage: &Stage, namespace: &str, plan: Plan) -> Result<Loaded, StageError> {
    stage.reached(namespace, HEALTH)?;
    let (qps, connections, length) = (plan.qps.to_string(), plan.connections.to_string(), format!("{}s", plan.seconds));
    churn::load(stage, (namespace, ORDER), &flags(&qps, &connections, &length))
}

/// A POST of `{}` on a connection of its own, each with its name.
fn flags<'a>(qps: &'a str, connections: &'a str, length: &'a str) -> [&'a str; 10] {
    ["-qps", qps, "-c", connections, "-t", length, "-keepalive=false", "-payload", "{}", URL]
}

/// The same orders to servers that act on some and then reset the connection, under retries that take that for not executed.
fn control(stage: &Stage, modes: &[Mode], plan: Plan) -> Result<Vec<Executed>, StageError> {
    put(stage, modes, &[ORDERS, CONTROL])?.into_iter().collect::<Result<(), _>>()?;
    let (qps, connections, length) =
        (plan.qps.to_string(), plan.connections.to_string(), format!("{}s", plan.control_s));
    for ns in modes.iter().map(|mode| mode.namespace()) {
        stage.reached(ns, HEALTH)?;
        stage.load(ns, &[&["-journal"], flags(&qps, &connections, &length).as_slice()].concat())?;
    }
    remove(stage, modes, Kind::Deployment, ORDER)?;
    modes.iter().try_for_each(|mode| stage.gone(mode.namespace(), ORDER))?;
    let seen = modes.iter().map(|mode| executed(stage, mode.namespace())).collect();
    clear(stage, modes)?;
    seen
}

/// Puts manifests into each mode's namespace; whether the workloads came up in each.
fn put(stage: &Stage, modes: &[Mode], manifests: &[(&str, &str)]) -> Result<Vec<Result<(), StageError>>, StageError> {
    for mode in modes {
        for (file, text) in manifests {
            stage.apply(mode.namespace(), file, text)?;
        }
    }
    let ready = |ns: &str| {
        stage.rolled_out(ns, COLLECTOR, SETTLED)?;
        stage.rolled_out(ns, ORDER, SETTLED)
    };
    Ok(modes.iter().map(|mode| ready(mode.namespace())).collect())
}

fn remove(stage: &Stage, modes: &[Mode], kind: Kind, name: &str) -> Result<(), StageError> {
    modes.iter().try_for_each(|mode| stage.delete(kind, mode.namespace(), name))
}

/// Takes away what is left.
fn clear(stage: &Stage, modes: &[Mode]) -> Result<(), StageError> {
    remove(stage, modes, Kind::VirtualService, RULE)?;
    remove(stage, modes, Kind::Service, ORDER)?;
    remove(stage, modes, Kind::Service, COLLECTOR)?;
    remove(stage, modes, Kind::Deployment, COLLECTOR)?;
    modes.iter().try_for_each(|mode| stage.gone(mode.namespace(), COLLECTOR))
}

/// What the collector has counted.
fn executed(stage: &Stage, namespace: &str) -> Result<Executed, StageError> {
    let pod = stage.pods(namespace, COLLECTOR)?.into_iter().next().unwrap_or_default();
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let path = "/dupes".to_owned();
    let request = Request::PodGet { namespace: namespace.to_owned(), pod: name.to_owned(), port: COUNTS, path };
    let body = stage.ask(&request)?;
    let text = body.get("body").and_then(Value::as_str).unwrap_or_default();
    Executed::from_json(text)
        .ok_or_else(|| StageError::Refused(format!("the collector's answer cannot be read: {text}")))
}
