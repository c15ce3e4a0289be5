//! A Deployment that is restarted over and over while something else goes on.

use crate::stage::{Stage, StageError};
use std::time::{Duration, SystemTime};

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

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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
