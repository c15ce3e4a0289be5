//! The node proxy as a process.

use crate::admin::Admin;
use crate::flows::Flows;
use crate::pods::Pods;
use crate::record::FlowMetrics;
use crate::settings::Settings;
use crate::state::Shared;
use crate::{xds, zds};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;
use trysail_base::snapshot::SnapshotCell;
use trysail_base::tasks::{Tasks, terminated};
use trysail_hbone::pool::Pool;
use trysail_identity::cache::Svids;
use trysail_identity::client::CaClient;
use trysail_mesh::Snapshot;
use trysail_xds::client::{Client, Want};

/// How often closed tunnels are forgotten.
const SWEEP: Duration = Duration::from_secs(30);

/// How long the last bytes of closed streams may take to leave.
const FLUSH: Duration = Duration::from_millis(100);

/// Why the proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// A port of its own.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// Runs until SIGTERM, then lets open connections finish within the termination grace period.
pub async fn run(settings: Settings) -> Result<(), ProxyError> {
    let (tasks, ready, metrics) = (Tasks::default(), Readiness::default(), Metrics::default());
    let (state_gate, pods_gate) = (ready.gate("mesh state"), ready.gate("pods"));
    let mesh = Arc::new(SnapshotCell::new(Snapshot::default()));
    let (demands, demanded) = mpsc::channel(64);
    let issuer = Arc::new(CaClient::new(settings.ca.clone(), settings.secret_ttl));
    let shared = Arc::new(Shared {
        mesh: mesh.clone(),
        svids: Svids::new(issuer, &tasks),
        pool: Pool::default(),
        flows: Flows::default(),
        metrics: FlowMetrics::new(&metrics),
        tasks: tasks.clone(),
        demands,
        settings: settings.clone(),
    });
    let pods = Arc::new(Pods::new(shared.clone()));
    let quit = CancellationToken::new();
    let starting = ready.clone();
    tasks.spawn(async move {
        starting.settled().await;
        if let Err(error) = trysail_netns::memory::let_code_go() {
            tracing::debug!(%error, "code stays resident");
        }
    });
    let admin = Admin { shared: shared.clone(), pods: pods.clone(), ready, metrics, quit: quit.clone() };
    admin.serve(settings.stats_address).await.map_err(|(address, error)| ProxyError::Listen(address, error))?;

    let changed = Arc::new(Notify::new());
    let connect = xds::ToControl(settings.xds.clone(), settings.cluster.clone());
    let types = xds::types(&settings);
    let state = xds::State::new(mesh, changed.clone(), &types, state_gate);
    tasks.spawn(
        Client::new(connect, state, xds::node(&settings), types.into_iter().map(Want::all).collect()).run(demanded),
    );
    tasks.spawn(zds::run(settings.zds_socket.clone(), pods.clone(), pods_gate));
    tasks.spawn(upkeep(shared.clone(), changed));

    tokio::select! {
        () = terminated() => {}
        () = quit.cancelled() => {}
    }
    tracing::info!(open = shared.flows.len(), "draining");
    pods.drain_all();
    let finished = async {
        // Connections that are only being opened count too.
        while pods.open_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(settings.termination_grace, finished).await.is_err() {
        tracing::warn!(open = shared.flows.len(), "connections are cut at the end of the grace period");
    }
    // What was handed to a tunnel last is on its way out.
    tokio::time::sleep(FLUSH).await;
    tasks.stop();
    Ok(())
}

/// Re-checks open connections after changes of the state, and tidies the pool.
async fn upkeep(shared: Arc<Shared>, changed: Arc<Notify>) {
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            () = changed.notified() => {
                shared.flows.recheck(&shared.mesh.load());
            }
            _ = sweep.tick() => shared.pool.sweep(),
        }
    }
}
