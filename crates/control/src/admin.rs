//! The control plane's own HTTP port: readiness, metrics, what is published.

use crate::publish::Resources;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpListener;
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;
use trysail_base::tasks::Tasks;

/// What the port shows.
#[derive(Clone)]
pub struct Admin {
    /// Readiness gates.
    pub ready: Readiness,
    /// Metrics.
    pub metrics: Metrics,
    /// Published resources.
    pub resources: Arc<Resources>,
}

impl Admin {
    fn answer(&self, path: &str) -> (StatusCode, String) {
        match path {
            "/healthz/ready" | "/ready" => {
                let pending = self.ready.pending();
                if pending.is_empty() {
                    (StatusCode::OK, "ready\n".to_owned())
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", pending.join(", ")))
                }
            }
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
        let owner = tasks.clone();
        tasks.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let admin = self.clone();
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (status, body) = admin.answer(request.uri().path());
                    let mut response = Response::new(Full::new(Bytes::from(body)));
                    *response.status_mut() = status;
                    async move { Ok::<_, Infallible>(response) }
                });
                owner.spawn(async move {
                    let io = hyper_util::rt::TokioIo::new(stream);
                    if let Err(error) = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await {
                        tracing::debug!(%error, "admin connection failed");
                    }
                });
            }
        });
    }
}
