//! A proxy that understands HTTP, as a process.

use crate::access::Access;
use crate::record::{RequestMetrics, Sinks};
use crate::role::{gateway, sidecar, waypoint};
use crate::settings::{AccessLog, Settings};
use crate::state::State;
use crate::trace::Tracer;
use crate::upstream::Upstream;
use crate::upstream::dial::Dialler;
use crate::xds::{self, Apply, ToControl};
use http::{HeaderMap, HeaderValue};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trysail_api::ids::{ServiceKey, SpiffeId, WorkloadUid, service_hostname};
use trysail_base::admin::{StatusCode, readiness, serve as serve_admin};
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;
use trysail_base::snapshot::SnapshotCell;
use trysail_base::tasks::{Tasks, terminated};
use trysail_hbone::pool::Pool as Tunnels;
use trysail_identity::cache::Svids;
use trysail_identity::client::CaClient;
use trysail_mesh::model::{Waypoint, WaypointAt};
use trysail_netns::socket::Sockets;
use trysail_xds::client::Client;

/// How often what is no longer needed is let go.
const SWEEP: Duration = Duration::from_secs(5);
/// How long the first certificate may take before the proxy says what it waits for.
const SVID_LIMIT: Duration = Duration::from_secs(30);

/// What a proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Stands beside an application, in its pod.
    Sidecar,
    /// Stands in front of services of a namespace.
    Waypoint,
    /// Stands at the edge.
    Gateway,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Waypoint => "waypoint",
            Self::Gateway => "router",
        }
    }
}

/// Why the proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// A port of its own.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// Shared by everything in the process.
pub struct Proxy {
    /// Settings.
    pub settings: Settings,
    /// Role.
    pub role: Role,
    /// The state of the mesh.
    pub state: Arc<SnapshotCell<State>>,
    /// The way to endpoints.
    pub upstream: Upstream,
    /// Where records go.
    pub sinks: Arc<Sinks>,
    /// Tasks of the process.
    pub tasks: Tasks,
    /// Tasks of clients' connections.
    pub connections: Tasks,
    /// Set when connections are to come to their end.
    pub drain: CancellationToken,
    /// The own identity.
    pub identity: SpiffeId,
    /// The own workload.
    pub uid: WorkloadUid,
    /// Own sockets.
    pub sockets: Sockets,
    /// Own certificate.
    pub svids: Arc<Svids>,
    /// Whether the state is complete.
    pub ready: Readiness,
    began: Instant,
}

impl Proxy {
    /// Milliseconds on the process's clock; never 0.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Whether a waypoint is this process itself, or a replica of it.
    pub fn is_own_waypoint(&self, waypoint: &Waypoint) -> bool {
        let (namespace, gateway) = (&self.settings.pod_namespace, &self.settings.gateway);
        self.role == Role::Waypoint
            && waypoint.at == WaypointAt::Service(ServiceKey::new(namespace, &service_hostname(gateway, namespace)))
    }
}

fn new(settings: &Settings, role: Role, tasks: &Tasks, metrics: &Metrics, ready: Readiness) -> Arc<Proxy> {
    let identity = SpiffeId::new(&settings.trust_domain, &settings.pod_namespace, &settings.service_account);
    let uid = WorkloadUid::pod(&settings.cluster, &settings.pod_namespace, &settings.pod_name);
    let issuer = Arc::new(CaClient::new(settings.ca.clone(), settings.secret_ttl));
    let svids = Arc::new(Svids::new(issuer, tasks));
    svids.hold(&identity);
    // What a sidecar sends must not be captured again.
    let sockets = Sockets::own(role == Role::Sidecar);
    let mut baggage = HeaderMap::new();
    let described = format!("k8s.namespace.name={},service.name={}", settings.pod_namespace, settings.pod_name);
    if let Ok(value) = HeaderValue::from_str(&described) {
        baggage.insert("baggage", value);
    }
    let service = if settings.gateway.is_empty() { &settings.pod_name } else { &settings.gateway };
    let sinks = Sinks {
        metrics: RequestMetrics::new(metrics),
        access: Access::new(settings.access_log != AccessLog::Off),
        logged: settings.access_log,
        tracer: Tracer::new(&settings.otlp, settings.sampling, service, tasks),
    };
    Arc::new(Proxy {
        upstream: Upstream {
            dialler: Dialler {
                sockets: sockets.clone(),
                svids: svids.clone(),
                identity: identity.clone(),
                uid: uid.clone(),
                tunnels: Tunnels::default(),
                baggage,
                tasks: tasks.clone(),
            },
            pool: Default::default(),
            statistics: Default::default(),
            limits: Default::default(),
        },
        settings: settings.clone(),
        role,
        state: Arc::new(SnapshotCell::new(State::default())),
        sinks: Arc::new(sinks),
        tasks: tasks.clone(),
        connections: Tasks::default(),
        drain: CancellationToken::new(),
        identity,
        uid,
        sockets,
        svids,
        ready,
        began: Instant::now(),
    })
}

/// Runs until SIGTERM, then lets open connections come to their end.
pub async fn run(settings: Settings, role: Role) -> Result<(), ProxyError> {
    let (tasks, metrics, ready) = (Tasks::default(), Metrics::default(), Readiness::default());
    let (state_gate, svid_gate) = (ready.gate("mesh state"), ready.gate("certificate"));
    let proxy = new(&settings, role, &tasks, &metrics, ready);
    admin(&proxy, metrics).await?;
    match role {
        Role::Sidecar => sidecar::listen(&proxy).await?,
        Role::Waypoint => waypoint::listen(&proxy).await?,
        Role::Gateway => gateway::start(&proxy),
    }
    let wants = xds::wants(&settings, role == Role::Gateway);
    let apply = Apply::new(proxy.state.clone(), &wants, state_gate, &settings.trust_domain);
    let connect = ToControl(settings.xds.clone(), settings.cluster.clone());
    let (_demands, demanded) = mpsc::channel(1);
    tasks.spawn(Client::new(connect, apply, xds::node(&settings, role.as_str()), wants).run(demanded));
    let waiting = proxy.clone();
    tasks.spawn(async move {
        loop {
            match waiting.svids.get(&waiting.identity, SVID_LIMIT).await {
                Ok(_) => break svid_gate.open(),
                Err(error) => tracing::warn!(%error, "still without a certificate"),
            }
        }
    });
    tasks.spawn(upkeep(proxy.clone()));
    let ready = proxy.ready.clone();
    tasks.spawn(async move {
        ready.settled().await;
        if let Err(error) = trysail_netns::memory::let_code_go() {
            tracing::debug!(%error, "code stays resident");
        }
    });
    terminated().await;
    tracing::info!(open = proxy.connections.len(), "draining");
    proxy.drain.cancel();
    let ended = async {
        if !settings.exit_on_zero {
            return std::future::pending().await;
        }
        while !proxy.connections.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(settings.drain, ended).await.is_err() && !proxy.connections.is_empty() {
        tracing::warn!(open = proxy.connections.len(), "connections are cut at the end of the drain");
    }
    tasks.stop();
    Ok(())
}

async fn admin(proxy: &Arc<Proxy>, metrics: Metrics) -> Result<(), ProxyError> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    for (port, ip) in [(15000, IpAddr::V4(Ipv4Addr::LOCALHOST)), (15020, any), (15021, any)] {
        let address = SocketAddr::new(ip, port);
        let listener = TcpListener::bind(address).await.map_err(|e| ProxyError::Listen(address, e))?;
        let (proxy, metrics) = (proxy.clone(), metrics.clone());
        let tasks = proxy.tasks.clone();
        serve_admin(listener, &tasks, move |_, path| match (port, path) {
            (15000, "/config_dump") => (StatusCode::OK, dump(&proxy)),
            (15020, "/metrics" | "/stats/prometheus") => (StatusCode::OK, metrics.text()),
            (_, "/healthz/ready") => readiness(&proxy.ready),
            _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        });
    }
    Ok(())
}

/// What this proxy knows and has, for people.
fn dump(proxy: &Proxy) -> String {
    let state = proxy.state.load();
    let certificates = proxy.svids.states();
    let certificates: Vec<_> = certificates
        .iter()
        .map(|(id, s)| {
            let engine = &base64::engine::general_purpose::STANDARD;
            let der =
                |r: &trysail_identity::tls::Certificate| serde_json::json!({"pem": base64::Engine::encode(engine, r)});
            let roots = s.svid.iter().flat_map(|v| &v.roots).map(der);
            serde_json::json!({
                "identity": id.to_string(),
                "serialNumber": s.svid.as_ref().map(|v| v.serial.clone()),
                "rootCerts": roots.collect::<Vec<_>>(),
                "error": s.error.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let value = serde_json::json!({
        "role": proxy.role.as_str(),
        "generation": state.generation,
        "workloads": state.mesh.workloads().count(),
        "services": state.l7.services.keys().map(ServiceKey::as_str).collect::<Vec<_>>(),
        "policies": state.l7.policies.keys().collect::<Vec<_>>(),
        "tokens": state.l7.tokens.keys().collect::<Vec<_>>(),
        "listeners": state.l7.gateway.iter().flat_map(|g| &g.listeners).map(|l| format!("{}:{}", l.name, l.port)).collect::<Vec<_>>(),
        "certificates": certificates,
        "upstream_connections": proxy.upstream.pool.kept_count(),
        "open_connections": proxy.connections.len(),
    });
    format!("{value:#}\n")
}

/// Lets connections to what is gone or ending go, and forgets it.
async fn upkeep(proxy: Arc<Proxy>) {
    let mut generations = proxy.state.watch();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            changed = generations.changed() => if changed.is_err() { return },
            _ = sweep.tick() => {
                proxy.upstream.dialler.tunnels.sweep();
                proxy.upstream.statistics.sweep(&proxy.state.load());
            }
        }
        let state = proxy.state.load();
        proxy.upstream.pool.sweep(|target| target.uid().is_some_and(|uid| state.mesh.workload(uid).is_none()));
    }
}
