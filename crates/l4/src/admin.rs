//! The proxy's own HTTP ports: 15000 on loopback (state, control), 15020 metrics, 15021 readiness.

use crate::dump::dump;
use crate::pods::Pods;
use crate::state::Shared;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trysail_base::admin::{Answer, Method, StatusCode, readiness};
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
    /// Set when the process is asked to end.
    pub quit: CancellationToken,
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
            trysail_base::admin::serve(listener, &self.shared.tasks, move |method, path| {
                admin.answer(port, method, path)
            });
        }
        Ok(())
    }

    fn answer(&self, port: Port, method: &Method, path: &str) -> Answer {
        match (port, path) {
            (Port::Admin, "/config_dump") => (StatusCode::OK, format!("{:#}\n", dump(&self.shared, &self.pods))),
            (Port::Admin, "/quitquitquit") if method == Method::POST => {
                tracing::info!("asked to quit");
                self.quit.cancel();
                (StatusCode::OK, "shutting down\n".to_owned())
            }
            (Port::Admin, "/quitquitquit") => (StatusCode::METHOD_NOT_ALLOWED, "POST it\n".to_owned()),
            (Port::Stats, "/metrics" | "/stats/prometheus") => (StatusCode::OK, self.metrics.text()),
            (Port::Ready | Port::Admin, "/healthz/ready") => readiness(&self.ready),
            _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        }
    }
}
