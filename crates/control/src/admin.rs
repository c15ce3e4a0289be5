//! The control plane's own HTTP port: readiness, metrics, what is published.

use crate::publish::Resources;
use std::sync::Arc;
use tokio::net::TcpListener;
use trysail_base::admin::{Answer, StatusCode, readiness};
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;
use trysail_base::tasks::Tasks;

/// What the port shows.
pub struct Admin {
    /// Readiness gates.
    pub ready: Readiness,
    /// Metrics.
    pub metrics: Metrics,
    /// Published resources.
    pub resources: Arc<Resources>,
}

impl Admin {
    fn answer(&self, path: &str) -> Answer {
        match path {
            "/healthz/ready" | "/ready" => readiness(&self.ready),
            "/metrics" => (StatusCode::OK, self.metrics.text()),
            "/debug/resources" => {
                let lines = self.resources.counts().into_iter().map(|(t, n)| format!("{t} {n}\n"));
                (StatusCode::OK, lines.collect())
            }
            _ => (StatusCode::NOT_FOUND, "try /healthz/ready, /metrics or /debug/resources\n".to_owned()),
        }
    }

    /// Serves until the tasks stop.
    pub fn serve(self, listener: TcpListener, tasks: &Tasks) {
        trysail_base::admin::serve(listener, tasks, move |_, path| self.answer(path));
    }
}
