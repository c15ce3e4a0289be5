//! The proxy's own HTTP ports: 15000 on loopback (state, control), 15020 metrics, 15021 readiness.

use crate::dump::dump;
use crate::pods::Pods;
use crate::state::Shared;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;

/// What the ports show.
#[derive(Clone)]
pub struct Admin {
    /// State.
    pub shared: Arc<Shared>,
    /// Captured pods.
    pub pods: Arc<Pods>,
    /// Readiness gates.
    pub ready: Readiness,
    /// Metrics.
    pub metrics: Metrics,
}

/// A port and what it serves.
#[derive(Clone, Copy)]
enum Port {
    Admin,
    Stats,
    Ready,
}

impl Admin {
    /// Opens the ports.
    pub async fn serve(self, stats: IpAddr) -> Result<(), (SocketAddr, std::io::Error)> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ports = [(Port::Admin, loopback, 15000), (Port::Stats, stats, 15020), (Port::Ready, stats, 15021)];
        for (port, ip, number) in ports {
            let address = SocketAddr::new(ip, number);
            let listener = TcpListener::bind(address).await.map_err(|e| (address, e))?;
            let admin = self.clone();
            self.shared.tasks.spawn(async move { admin.accept(listener, port).await });
        }
        Ok(())
    }

    async fn accept(self, listener: TcpListener, port: Port) {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let admin = self.clone();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let (status, body) = admin.answer(port, request.method(), request.uri().path());
                let mut response = Response::new(Full::new(Bytes::from(body)));
                *response.status_mut() = status;
                async move { Ok::<_, Infallible>(response) }
            });
            self.shared.tasks.spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                if let Err(error) = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await {
                    tracing::debug!(%error, "admin connection failed");
                }
            });
        }
    }

    fn answer(&self, port: Port, method: &Method, path: &str) -> (StatusCode, String) {
        match (port, path) {
            (Port::Admin, "/config_dump") => (StatusCode::OK, format!("{:#}\n", dump(&self.shared, &self.pods))),
            (Port::Admin, "/quitquitquit") if method == Method::POST => {
                tracing::info!("asked to quit");
                self.shared.tasks.stop();
                (StatusCode::OK, "shutting down\n".to_owned())
            }
            (Port::Admin, "/quitquitquit") => (StatusCode::METHOD_NOT_ALLOWED, "POST it\n".to_owned()),
            (Port::Stats, "/metrics" | "/stats/prometheus") => (StatusCode::OK, self.metrics.text()),
            (Port::Ready | Port::Admin, "/healthz/ready") => {
                let pending = self.ready.pending();
                if pending.is_empty() {
                    (StatusCode::OK, "ready\n".to_owned())
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", pending.join(", ")))
                }
            }
            _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        }
    }
}
