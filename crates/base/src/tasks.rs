//! Owned tasks: every task belongs to a set that can stop it, wait for it, and that reports its panic.

use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A set of tasks with one stop signal. Clones share the set.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// A set that stops when this one does.
    pub fn child(&self) -> Self {
        Self { tracker: TaskTracker::new(), stop: self.stop.child_token() }
    }

    /// Runs `future` until it ends or the set is stopped.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.track(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = future => {}
            }
        });
    }

    /// Runs `future` to its own end, also after the set is stopped.
    #[expect(clippy::disallowed_methods, reason = "this module is the owner of tasks")]
    pub fn track(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(self.tracker.track_future(future));
        drop(task);
    }

    /// Tells the tasks to stop, without waiting.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// How many tasks run.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Waits, at most `limit`, for the tasks to end by themselves, then stops the rest. False if some had to be stopped.
    pub async fn drain_open(&self, limit: Duration) -> bool {
        self.tracker.close();
        let ended = tokio::time::timeout(limit, self.tracker.wait()).await.is_ok();
        self.stop.cancel();
        ended
    }

    /// Stops the set and waits, at most `limit`, for its tasks to end. False if some were still running.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}

/// Resolves at SIGTERM or SIGINT.
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("signal handlers cannot be installed; only SIGKILL will stop this process");
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
