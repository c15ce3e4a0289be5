//! Case `latency`: open loop at a fixed rate, the modes in turn.

use crate::stage::{Mode, Stage, StageError};
use crate::verdict::Latency;
use trysail_load::result::Summary;

/// How it is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Requests a second.
    pub qps: u32,
    /// Connections.
    pub connections: u32,
    /// Rounds of each mode.
    pub rounds: u32,
    /// Seconds of each round.
    pub seconds: u32,
}

/// Measures the modes, a round of each in turn; `progress` hears of each round that has ended.
pub fn run(
    stage: &Stage,
    modes: &[Mode],
    plan: Plan,
    mut progress: impl FnMut(Mode),
) -> Result<Vec<(Mode, Latency)>, StageError> {
    let mut out: Vec<(Mode, Latency)> = modes.iter().map(|mode| (*mode, Latency::default())).collect();
    for mode in modes {
        // Certificates, connections and caches are warm before anything is counted.
        round(stage, *mode, Plan { seconds: 1, ..plan })?;
    }
    for _ in 0..plan.rounds {
        for (mode, total) in &mut out {
            let summary = round(stage, *mode, plan)?;
            total.p50_rounds.push(summary.histogram.percentile_ms(50.0));
            total.histogram.merge(&summary.histogram);
            total.sockets += summary.sockets;
            for (code, count) in &summary.codes {
                *total.codes.entry(*code).or_default() += count;
            }
            progress(*mode);
        }
    }
    Ok(out)
}

fn round(stage: &Stage, mode: Mode, plan: Plan) -> Result<Summary, StageError> {
    let (qps, connections, length) = (plan.qps.to_string(), plan.connections.to_string(), format!("{}s", plan.seconds));
    stage.load(mode.namespace(), &["-qps", &qps, "-t", &length, "-c", &connections, "http://echo:8080/"])
}
