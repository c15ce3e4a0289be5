//! The certificates of this process: one request an identity, renewed ahead of time; a valid one outlives a failed renewal.

use crate::renew;
use crate::svid::Svid;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use trysail_api::ids::SpiffeId;
use trysail_base::tasks::Tasks;

/// A failed issue, as the issuer tells it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct IssueError(pub String);

/// Issues certificates.
pub trait Issuer: Send + Sync + 'static {
    /// A new certificate for `identity`.
    fn issue<'a>(
        &'a self,
        identity: &'a SpiffeId,
    ) -> Pin<Box<dyn Future<Output = Result<Svid, IssueError>> + Send + 'a>>;
}

/// The state of one identity.
#[derive(Clone, Default)]
pub struct State {
    /// The newest certificate.
    pub svid: Option<Arc<Svid>>,
    /// Why the last issue failed; `None` after a success.
    pub error: Option<IssueError>,
}

struct Entry {
    state: watch::Receiver<State>,
    users: usize,
    tasks: Tasks,
}

/// The certificates of the identities in use.
pub struct Svids {
    issuer: Arc<dyn Issuer>,
    entries: Mutex<HashMap<SpiffeId, Entry>>,
    tasks: Tasks,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum NoSvid {
    /// No local pod has this identity.
    #[error("{0} is no identity of this proxy")]
    NotHeld(SpiffeId),
    /// None came in time.
    #[error("no certificate for {identity} within {waited:?}{}", .last.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    NotIssued {
        /// The identity.
        identity: SpiffeId,
        /// How long was waited.
        waited: Duration,
        /// The issuer's last error.
        last: Option<IssueError>,
    },
}

impl Svids {
    /// An empty cache over `issuer`.
    pub fn new(issuer: Arc<dyn Issuer>, tasks: &Tasks) -> Self {
        Self { issuer, entries: Mutex::default(), tasks: tasks.child() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SpiffeId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds `identity` for one more user; the first has it fetched.
    pub fn hold(&self, identity: &SpiffeId) {
        let mut entries = self.lock();
        let entry = entries.entry(identity.clone()).or_insert_with(|| {
            let (sender, state) = watch::channel(State::default());
            let tasks = self.tasks.child();
            tasks.spawn(keep_fresh(self.issuer.clone(), identity.clone(), sender));
            Entry { state, users: 0, tasks }
        });
        entry.users += 1;
    }

    /// Lets go of `identity` for one user; the last has it dropped.
    pub fn release(&self, identity: &SpiffeId) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(identity) else { return };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0 {
            entry.tasks.stop();
            entries.remove(identity);
        }
    }

    /// A valid certificate for an identity that is held, waiting at most `limit`.
    pub async fn get(&self, identity: &SpiffeId, limit: Duration) -> Result<Arc<Svid>, NoSvid> {
        let mut state = {
            let entries = self.lock();
            let entry = entries.get(identity).ok_or_else(|| NoSvid::NotHeld(identity.clone()))?;
            entry.state.clone()
        };
        let valid = |s: &State| s.svid.as_ref().is_some_and(|svid| !svid.expired(SystemTime::now()));
        let found = {
            let ready = tokio::time::timeout(limit, state.wait_for(valid)).await;
            ready.ok().and_then(Result::ok).and_then(|now| now.svid.clone())
        };
        found.ok_or_else(|| {
            let last = state.borrow().error.clone();
            NoSvid::NotIssued { identity: identity.clone(), waited: limit, last }
        })
    }

    /// Every identity that is held, with its state.
    pub fn states(&self) -> Vec<(SpiffeId, State)> {
        let entries = self.lock();
        let mut all: Vec<_> = entries.iter().map(|(id, entry)| (id.clone(), entry.state.borrow().clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

async fn keep_fresh(issuer: Arc<dyn Issuer>, identity: SpiffeId, state: watch::Sender<State>) {
    let mut failures = 0;
    loop {
        let pause = match issuer.issue(&identity).await {
            Ok(svid) => {
                failures = 0;
                let age = SystemTime::now().duration_since(svid.not_before).unwrap_or_default();
                let due = renew::renewal(svid.lifetime(), rand::random()).saturating_sub(age);
                tracing::info!(%identity, serial = svid.serial, renew_in = ?due, "certificate issued");
                state.send_replace(State { svid: Some(Arc::new(svid)), error: None });
                due
            }
            Err(error) => {
                let pause = renew::backoff(failures, rand::random());
                failures += 1;
                tracing::warn!(%identity, %error, retry_in = ?pause, "certificate not issued");
                state.send_modify(|s| s.error = Some(error));
                pause
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests;
