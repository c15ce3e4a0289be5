//! Readiness: a process is ready when every gate it declared has opened.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long after readiness a process is taken to be done with starting.
const SETTLED: Duration = Duration::from_secs(5);

/// The set of gates that are still shut.
#[derive(Clone)]
pub struct Readiness {
    pending: Arc<Mutex<BTreeSet<&'static str>>>,
    changed: Arc<watch::Sender<()>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { pending: Arc::default(), changed: Arc::new(watch::channel(()).0) }
    }
}

/// One reason not to be ready yet. Dropping it without [`Gate::open`] leaves the process unready.
#[must_use]
pub struct Gate {
    name: &'static str,
    owner: Readiness,
}

impl Readiness {
    /// Declares a gate; all are declared before serving begins.
    pub fn gate(&self, name: &'static str) -> Gate {
        self.lock().insert(name);
        Gate { name, owner: self.clone() }
    }

    /// The names of the gates that are still shut, sorted; empty when ready.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().iter().copied().collect()
    }

    /// Resolves when every gate is open.
    pub async fn wait(&self) {
        let mut changes = self.changed.subscribe();
        while !self.pending().is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resolves some time after every gate has opened, when a process is done with starting.
    pub async fn settled(&self) {
        self.wait().await;
        tokio::time::sleep(SETTLED).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Opens the gate for good.
    pub fn open(self) {
        self.owner.lock().remove(self.name);
        self.owner.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_only_when_every_gate_is_open() {
        let ready = Readiness::default();
        let (a, b) = (ready.gate("a"), ready.gate("b"));
        a.open();
        assert_eq!(ready.pending(), ["b"]);
        let waiting = ready.clone();
        let mut wait = Box::pin(async move { waiting.wait().await });
        assert!(futures_poll(&mut wait).is_pending());
        b.open();
        wait.await;
    }

    fn futures_poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
        std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
