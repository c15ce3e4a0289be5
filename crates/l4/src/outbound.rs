//! Connections out of a captured pod.

use crate::decide::{self, NoRoute, Route};
use crate::flows::{Direction, Flow, Flows};
use crate::record::{End, Outcome, Record, Reporter};
use crate::state::{Pod, SVID_LIMIT};
use http::{HeaderMap, HeaderValue};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use trysail_base::relay::{relay, reset_on_close, tcp};
use trysail_hbone::authority::Authority;
use trysail_hbone::client::{self, DialError};
use trysail_hbone::pool::{Key, Pooled};
use trysail_identity::cache::NoSvid;
use trysail_identity::svid::SvidError;
use trysail_identity::tls::client_config;
use trysail_mesh::Workload;
use trysail_netns::socket::original_destination;
use trysail_policy::network::Verdict;

/// How many endpoints are tried for one connection.
const ATTEMPTS: usize = 5;
/// How long news of a change is waited for when nothing that is known can be reached.
const NEWS_LIMIT: Duration = Duration::from_millis(500);

/// Why a captured connection was not carried.
#[derive(Debug, thiserror::Error)]
enum OutboundError {
    #[error("the pod has no record in the mesh yet")]
    NoRecord,
    #[error("the original destination is not known")]
    NoDestination(#[source] std::io::Error),
    #[error("the connection was made to the proxy itself")]
    Direct,
    #[error("no route")]
    NoRoute(#[source] NoRoute),
    #[error("networkpolicy: {0}")]
    Network(Verdict),
    #[error("no identity")]
    NoSvid(#[source] NoSvid),
    #[error("the certificate cannot be used")]
    Svid(#[source] SvidError),
    #[error("dialling {to} failed")]
    Dial { to: SocketAddr, source: DialError },
    #[error("connecting to {to} failed")]
    Connect { to: SocketAddr, source: std::io::Error },
}

impl OutboundError {
    /// Whether another endpoint may do better. A refusal by policy is final; what is wrong with this pod itself is too.
    fn another_may_do(&self) -> bool {
        match self {
            Self::Dial { source: DialError::Refused(status), .. } => status.is_server_error(),
            Self::Dial { .. } | Self::Connect { .. } => true,
            _ => false,
        }
    }
}

enum Upstream {
    Tunnel(Pooled),
    Plain(TcpStream),
}

/// Carries one captured connection to its end.
pub async fn serve(pod: Arc<Pod>, stream: TcpStream, peer: SocketAddr) {
    let listener = stream.local_addr();
    let destination = original_destination(&stream).map_err(OutboundError::NoDestination).and_then(|to| {
        // Without a redirection the "original" destination is the listener itself.
        if listener.is_ok_and(|local| local == to) { Err(OutboundError::Direct) } else { Ok(to) }
    });
    let target = destination.as_ref().copied().unwrap_or(peer);
    let mut record = Record::begin(&pod.shared.metrics, Reporter::source, peer, target);
    let found = match destination {
        Ok(to) => connect(&pod, to, &mut record).await,
        Err(error) => Err(error),
    };
    let (upstream, route) = match found {
        Ok(found) => found,
        Err(error) => {
            reset_on_close(&stream);
            drop(stream);
            return record.finish(&Outcome::Failed(&error));
        }
    };
    let moved = record.opened();
    let tunnel = matches!(upstream, Upstream::Tunnel(_));
    let open = Flows::open(&pod.shared, Flow::new(&pod.uid, Direction::Outbound, (peer, route.target()), tunnel));
    drop(route);
    let end = match upstream {
        Upstream::Tunnel(pooled) => {
            let _slot = pooled.slot;
            tokio::select! {
                end = relay(tcp(stream), (pooled.read, pooled.write), &moved) => Some(end),
                () = open.stop.cancelled() => None,
            }
        }
        Upstream::Plain(other) => tokio::select! {
            end = relay(tcp(stream), tcp(other), &moved) => Some(end),
            () = open.stop.cancelled() => None,
        },
    };
    match end {
        Some(Ok(())) => record.finish(&Outcome::Complete),
        Some(Err(error)) => record.finish(&Outcome::Failed(&error)),
        None => record.finish(&Outcome::Stopped("ended by the proxy")),
    }
}

/// Finds a route and follows it. No byte of the client has been read, so every attempt may be followed by another.
async fn connect(pod: &Arc<Pod>, to: SocketAddr, record: &mut Record) -> Result<(Upstream, Route), OutboundError> {
    let (mut snapshot, mut source) = pod.record().await.ok_or(OutboundError::NoRecord)?;
    let mut tried = Vec::new();
    let mut last: Option<OutboundError> = None;
    let deadline = Instant::now() + NEWS_LIMIT;
    for attempt in 0.. {
        let route = match decide::outbound(&snapshot, &source, to, &tried, rand::random()) {
            Ok(route) if attempt < ATTEMPTS => route,
            Ok(_) => return Err(last.unwrap_or(OutboundError::NoRecord)),
            Err(no_route) => {
                let error = last.take().unwrap_or(OutboundError::NoRoute(no_route));
                // Everything known was tried: perhaps the state has moved on, as when a pod has just changed its mode.
                let generation = snapshot.generation;
                let left = deadline.saturating_duration_since(Instant::now());
                let newer = |s: &trysail_mesh::Snapshot| (s.generation > generation).then_some(());
                if attempt >= ATTEMPTS || tried.is_empty() || pod.shared.mesh.wait_for(left, newer).await.is_none() {
                    return Err(error);
                }
                (snapshot, source) = pod.record().await.ok_or(OutboundError::NoRecord)?;
                tried.clear();
                last = Some(error);
                continue;
            }
        };
        let tunnel = match &route {
            Route::Tunnel { end, .. } => Some(*end),
            Route::Plain { .. } => None,
        };
        record.chosen(route.target(), tunnel);
        let called = route.workload().map(|w| &**w);
        let own = tunnel.map(|_| &source.identity);
        let proven = tunnel.and(called).map(|w| &w.identity);
        record.describe(
            End { workload: Some(&source), identity: own },
            End { workload: called, identity: proven },
            route.service().map(|s| &**s),
        );
        if pod.shared.settings.inner_gate {
            // Final: another endpoint is no way around a policy.
            decide::may_leave(&snapshot, &source, &route).map_err(OutboundError::Network)?;
        }
        match follow(pod, &source, &route).await {
            Ok(upstream) => return Ok((upstream, route)),
            Err(error) => {
                let Some(workload) = route.workload().filter(|_| error.another_may_do()) else { return Err(error) };
                tracing::debug!(to = %route.target(), error = trysail_base::log::chain(&error), "trying another endpoint");
                tried.push(workload.uid.clone());
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or(OutboundError::NoRecord))
}

async fn follow(pod: &Arc<Pod>, source: &Workload, route: &Route) -> Result<Upstream, OutboundError> {
    match route {
        Route::Plain { to, .. } => {
            let connected = tokio::time::timeout(trysail_hbone::CONNECT_LIMIT, pod.sockets.connect(*to, None)).await;
            let connected = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
            connected.map(Upstream::Plain).map_err(|source| OutboundError::Connect { to: *to, source })
        }
        Route::Tunnel { workload, end, target, service } => {
            let address = *end;
            let key = Key {
                // The pod itself, not its record: a pod that takes another's name has a namespace of its own.
                source: pod.incarnation.clone(),
                source_identity: source.identity.clone(),
                destination: workload.uid.clone(),
                expected: decide::expected(workload, service.as_deref()),
                address,
            };
            let svid = pod.shared.svids.get(&source.identity, SVID_LIMIT).await.map_err(OutboundError::NoSvid)?;
            let config = client_config(&svid, key.expected.clone()).map_err(OutboundError::Svid)?;
            let dial = || {
                let (pod, config) = (pod.clone(), config.clone());
                async move {
                    let stream = pod.sockets.connect(address, None).await.map_err(DialError::Connect)?;
                    client::handshake(stream, config, &pod.shared.tasks).await
                }
            };
            let authority = Authority::Address(*target);
            let opened = pod.shared.pool.open(&key, &authority, &headers(source), dial).await;
            opened.map(Upstream::Tunnel).map_err(|source| OutboundError::Dial { to: address, source })
        }
    }
}

/// What a CONNECT says of its source; informational, never authorised on.
pub fn headers(workload: &Workload) -> HeaderMap {
    let kind = match workload.owner_kind {
        trysail_mesh::model::OwnerKind::Deployment => "deployment",
        trysail_mesh::model::OwnerKind::CronJob => "cronjob",
        trysail_mesh::model::OwnerKind::Pod => "pod",
        trysail_mesh::model::OwnerKind::Job => "job",
    };
    let parts = [
        ("k8s.cluster.name", &workload.cluster),
        ("k8s.namespace.name", &workload.namespace),
        (&format!("k8s.{kind}.name"), &workload.owner),
        ("service.name", &workload.canonical_name),
        ("service.version", &workload.canonical_revision),
    ];
    let given: Vec<String> = parts.iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| format!("{k}={v}")).collect();
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&given.join(",")) {
        headers.insert("baggage", value);
    }
    headers
}
