//! A Deployment that is restarted over and over while something else goes on.

use crate::delivery::join;
use crate::stage::{Stage, StageError};
use crate::verdict::churn::{Churn, Cycle};
use std::time::{Duration, SystemTime};
use trysail_load::result::Summary;

/// How long one rollout may take before the next restart is asked for all the same.
const PATIENCE: Duration = Duration::from_secs(60);

/// One restart; moments in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// When it was asked for.
    pub at_ms: u64,
    /// When the last pod had been replaced; `None`: not within a minute.
    pub done_ms: Option<u64>,
}

/// A load that is over, and what is needed to look for its requests in the logs.
pub struct Loaded {
    summary: Summary,
    restarts: Vec<Restart>,
    mark: u64,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a load from the namespace's client, with a journal, while `deployment` is restarted.
///
/// # Errors
/// As [`during`].
pub fn load(stage: &Stage, (namespace, deployment): (&str, &str), flags: &[&str]) -> Result<Loaded, StageError> {
    let flags = [&["-journal"], flags].concat();
    let mark = stage.logs_mark(namespace)?;
    let (summary, restarts) = during(stage, (namespace, deployment), |s| s.load(namespace, &flags))?;
    Ok(Loaded { summary, restarts, mark })
}

impl Loaded {
    /// What became of the requests, by the logs. Servers are the containers named `container` of `deployment`; their pods are gone by
    /// now, so that they have said all that there was to say.
    ///
    /// # Errors
    /// When the logs cannot be read.
    pub fn examine(
        self,
        stage: &Stage,
        namespace: &str,
        (deployment, container): (&str, &str),
    ) -> Result<Churn, StageError> {
        let logs = stage.logs(namespace, self.mark)?;
        let journal = self.summary.journal.unwrap_or_default();
        let seconds = |ms: u64| (ms as f64 - journal.began_ms as f64) / 1e3;
        // The first restart is asked for while the load starts.
        let cycle = |r: &Restart| Cycle { at_s: seconds(r.at_ms).max(0.0), done_s: r.done_ms.map(seconds) };
        Ok(Churn {
            cycles: self.restarts.iter().map(cycle).collect(),
            histogram: self.summary.histogram,
            codes: self.summary.codes,
            sockets: self.summary.sockets,
            connections: self.summary.connections as u64,
            evidence: join(&journal.failures, &logs, (&format!("{deployment}-"), container)),
            seconds: journal.seconds,
            unnamed: journal.unnamed,
        })
    }
}

/// Restarts `deployment` of `namespace`, again as soon as its pods are new, for as long as `work` goes on.
///
/// # Errors
/// What `work` fails with, or the first restart that is refused.
pub fn during<T: Send>(
    stage: &Stage,
    (namespace, deployment): (&str, &str),
    work: impl FnOnce(&Stage) -> Result<T, StageError> + Send,
) -> Result<(T, Vec<Restart>), StageError> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(stage));
        let mut restarts = Vec::new();
        let mut refused = Ok(());
        while !worker.is_finished() && refused.is_ok() {
            let at_ms = now_ms();
            refused = stage.restart(namespace, deployment);
            let done = refused.is_ok() && stage.rolled_out(namespace, deployment, PATIENCE).is_ok();
            restarts.push(Restart { at_ms, done_ms: done.then(now_ms) });
        }
        let gone = || StageError::Refused("what went on during the restarts ended without a result".to_owned());
        let done = worker.join().unwrap_or_else(|_| Err(gone()))?;
        refused.map(|()| (done, restarts))
    })
}
