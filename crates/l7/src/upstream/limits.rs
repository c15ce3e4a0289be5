//! Limits of a DestinationRule: busy connections, waiting requests, requests and tries again under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use trysail_wire::l7::Settings;

/// A service's port or subset.
pub type Key = super::endpoints::Wanted;

#[derive(Default)]
struct Counts {
    requests: AtomicU32,
    pending: AtomicU32,
    retries: AtomicU32,
    /// Busy connections, and the limit that the semaphore was made for.
    connections: Mutex<Option<(u32, Arc<Semaphore>)>>,
}

/// The counts of all services.
#[derive(Default)]
pub struct Limits(Mutex<HashMap<Key, Arc<Counts>>>);

/// Counts one request until dropped.
pub struct Admitted {
    counts: Arc<Counts>,
    /// A busy connection's place.
    _connection: Option<OwnedSemaphorePermit>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.counts.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts one try again until dropped.
pub struct Retrying(Arc<Counts>);

impl Drop for Retrying {
    fn drop(&mut self) {
        self.0.retries.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl Limits {
    fn of(&self, key: &Key) -> Arc<Counts> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key.clone()).or_default().clone()
    }

    /// Lets a request in, waiting for a connection's place if there must be one. `None`: nothing is limited.
    pub async fn admit(&self, key: &Key, settings: &Settings) -> Result<Option<Admitted>, Overflow> {
        if settings.max_requests == 0 && settings.max_connections == 0 {
            return Ok(None);
        }
        let counts = self.of(key);
        let before = counts.requests.fetch_add(1, Ordering::AcqRel);
        let mut admitted = Admitted { counts: counts.clone(), _connection: None };
        if settings.max_requests > 0 && before >= settings.max_requests {
            return Err(Overflow);
        }
        if settings.max_connections > 0 {
            let slots = counts.slots(settings.max_connections);
            admitted._connection = Some(match slots.clone().try_acquire_owned() {
                Ok(slot) => slot,
                Err(_) => {
                    let waiting = Pending::new(&counts);
                    if settings.max_pending > 0 && waiting.before >= settings.max_pending {
                        return Err(Overflow);
                    }
                    slots.acquire_owned().await.map_err(|_| Overflow)?
                }
            });
        }
        Ok(Some(admitted))
    }

    /// Lets one more try be made.
    pub fn retry(&self, key: &Key, settings: &Settings) -> Result<Retrying, Overflow> {
        let counts = self.of(key);
        let before = counts.retries.fetch_add(1, Ordering::AcqRel);
        let retrying = Retrying(counts);
        if settings.max_retries > 0 && before >= settings.max_retries { Err(Overflow) } else { Ok(retrying) }
    }
}

impl Counts {
    fn slots(&self, limit: u32) -> Arc<Semaphore> {
        let mut held = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((made_for, slots)) if *made_for == limit => slots.clone(),
            _ => {
                let slots = Arc::new(Semaphore::new(limit as usize));
                *held = Some((limit, slots.clone()));
                slots
            }
        }
    }
}

struct Pending<'a> {
    counts: &'a Counts,
    before: u32,
}

impl<'a> Pending<'a> {
    fn new(counts: &'a Counts) -> Self {
        Self { counts, before: counts.pending.fetch_add(1, Ordering::AcqRel) }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.counts.pending.fetch_sub(1, Ordering::AcqRel);
    }
}
