//! The metrics registry and its text form (Prometheus/OpenMetrics 1.0).

use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, PoisonError};

pub use prometheus_client::{encoding, metrics};

/// A process's registry. Clones share it.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// Registers families; called at start, not per event.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Everything registered, as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if encoding::text::encode(&mut out, &registry).is_err() {
            tracing::error!("metrics could not be written as text");
        }
        out
    }
}
