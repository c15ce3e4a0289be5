//! Tunnels into a captured pod.

use crate::decide::{self, Refusal};
use crate::flows::{Direction, Flow, Flows};
use crate::record::{End, Outcome, Record, Reporter};
use crate::state::{Pod, RECORD_LIMIT, SVID_LIMIT};
use http::StatusCode;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use trysail_api::ids::SpiffeId;
use trysail_base::relay::{relay, reset_on_close, tcp};
use trysail_hbone::caller::Caller;
use trysail_hbone::server::{self, Connect, Tunnel};
use trysail_mesh::{Snapshot, Workload};
use trysail_policy::authz::Facts;

/// How long a peer's record may lag behind its certificate, as right after an address changed hands.
const PEER_LIMIT: Duration = Duration::from_secs(2);

/// Why a tunnelled connection was not carried.
#[derive(Debug, thiserror::Error)]
enum InboundError {
    #[error("the pod has no record in the mesh yet")]
    NoRecord,
    #[error("refused")]
    Refused(#[source] Refusal),
    #[error("the application does not accept the connection")]
    Application(#[source] std::io::Error),
    #[error(transparent)]
    Caller(trysail_hbone::caller::Unreadable),
    #[error("the tunnel failed")]
    Tunnel(#[source] trysail_hbone::server::StreamError),
}

impl InboundError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Refused(Refusal::Policy(_) | Refusal::Network(_) | Refusal::OtherPeer { .. }) => {
                StatusCode::UNAUTHORIZED
            }
            Self::Refused(Refusal::OtherAddress(_)) | Self::Caller(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Serves one tunnel connection until it ends; `drain` announces its end and lets its streams finish.
pub async fn serve(pod: Arc<Pod>, stream: TcpStream, from: SocketAddr, drain: tokio_util::sync::CancellationToken) {
    let Ok(local) = stream.local_addr() else { return };
    let svid = match pod.shared.svids.get(&pod.identity, SVID_LIMIT).await {
        Ok(svid) => svid,
        Err(error) => {
            reset_on_close(&stream);
            return tracing::warn!(pod = pod.name, %error, "a tunnel was refused");
        }
    };
    let mut tunnel = match server::accept(stream, svid.server.clone()).await {
        Ok(tunnel) => tunnel,
        Err(error) => {
            let error = trysail_base::log::chain(&error);
            return tracing::info!(target: "access", { src.addr = %from, dst.addr = %local, pod = pod.name, error }, "tunnel refused");
        }
    };
    let peer = Peer { identity: tunnel.peer.clone(), from, local: local.ip() };
    let mut draining = false;
    loop {
        let connect = next(&mut tunnel, &drain, draining).await;
        match connect {
            Next::Stream(connect) => {
                let (pod, peer) = (pod.clone(), peer.clone());
                pod.tasks.clone().track(async move { stream_in(&pod, &peer, connect).await });
            }
            Next::Drain => {
                draining = true;
                tunnel.drain();
            }
            Next::End => return,
        }
    }
}

enum Next {
    Stream(Connect),
    Drain,
    End,
}

async fn next(tunnel: &mut Tunnel, drain: &tokio_util::sync::CancellationToken, draining: bool) -> Next {
    tokio::select! {
        () = drain.cancelled(), if !draining => Next::Drain,
        connect = tunnel.next() => connect.map_or(Next::End, Next::Stream),
    }
}

#[derive(Clone)]
struct Peer {
    identity: SpiffeId,
    from: SocketAddr,
    local: IpAddr,
}

struct Admitted {
    snapshot: Arc<Snapshot>,
    workload: Arc<Workload>,
    caller: Option<Arc<Workload>>,
    facts: Facts,
}

async fn admit(pod: &Pod, peer: &Peer, connect: &Connect) -> Result<Admitted, InboundError> {
    let (mut snapshot, workload) = pod.record().await.ok_or(InboundError::NoRecord)?;
    let port = decide::inner_port(&workload, &connect.authority, peer.local).map_err(InboundError::Refused)?;
    let source_ip = peer.from.ip();
    let caller = match decide::peer(&snapshot, &peer.identity, source_ip) {
        Ok(caller) => caller.cloned(),
        Err(refusal) => {
            // The address may have changed hands a moment ago; the newer record is waited for, within a bound.
            let agrees = |s: &Snapshot| decide::peer(s, &peer.identity, source_ip).ok().map(|w| w.cloned());
            let caller = pod.shared.mesh.wait_for(PEER_LIMIT, agrees).await;
            let caller = caller.ok_or(InboundError::Refused(refusal))?;
            snapshot = pod.record().await.ok_or(InboundError::NoRecord)?.0;
            caller
        }
    };
    let (stated, via) = spoken_for(&snapshot, &workload, (peer, caller.as_deref()), (connect, port))?;
    let caller = match &stated {
        Some(stated) => snapshot.at_address(stated.address).next().cloned(),
        None => caller,
    };
    let own = Caller { identity: Some(peer.identity.clone()), address: source_ip };
    let Caller { identity: source, address: source_ip } = stated.unwrap_or(own);
    if pod.shared.settings.inner_gate {
        let inside = decide::inside(&snapshot, (&workload, peer.local), (caller.as_deref(), source_ip), port);
        inside.map_err(InboundError::Refused)?;
    }
    let facts = Facts { source, via, source_ip, destination_ip: peer.local, destination_port: port };
    decide::admit(&snapshot, &workload, &facts).map_err(InboundError::Refused)?;
    Ok(Admitted { snapshot, workload, caller, facts })
}

/// The original caller, if a hop states one that may speak for the callers of this port; then also the hop itself.
fn spoken_for(
    snapshot: &Snapshot,
    workload: &Workload,
    (peer, hop): (&Peer, Option<&Workload>),
    (connect, port): (&Connect, u16),
) -> Result<(Option<Caller>, Option<SpiffeId>), InboundError> {
    let entitled = hop.is_some_and(|hop| snapshot.speaks_for(&hop.uid, workload, port));
    match Caller::stated(&connect.headers).map_err(InboundError::Caller)? {
        Some(stated) if entitled => Ok((Some(stated), Some(peer.identity.clone()))),
        // Whoever may not speak for others speaks for itself.
        _ => Ok((None, None)),
    }
}

async fn stream_in(pod: &Pod, peer: &Peer, connect: Connect) {
    let shared = &pod.shared;
    let asked = match &connect.authority {
        trysail_hbone::authority::Authority::Address(address) => *address,
        trysail_hbone::authority::Authority::Host(_, port) => SocketAddr::new(peer.local, *port),
    };
    let mut record = Record::begin(&shared.metrics, Reporter::destination, peer.from, asked);
    record.chosen(asked, Some(SocketAddr::new(peer.local, trysail_hbone::PORT)));
    let source = |workload| End { workload, identity: Some(&peer.identity) };
    record.describe(source(None), End { workload: None, identity: Some(&pod.identity) }, None);
    let admitted = match admit(pod, peer, &connect).await {
        Ok(admitted) => admitted,
        Err(error) => {
            connect.refuse(error.status());
            return record.finish(&Outcome::Failed(&error));
        }
    };
    let Admitted { snapshot, workload, caller, facts } = admitted;
    let service = workload.services.keys().next().and_then(|key| snapshot.service(key));
    let destination = End { workload: Some(&workload), identity: Some(&pod.identity) };
    // Of a caller that a waypoint has spoken for, the caller is what is shown.
    let source = End { workload: caller.as_deref(), identity: facts.source.as_ref() };
    record.describe(source, destination, service.map(|s| &**s));
    let target = SocketAddr::new(facts.destination_ip, facts.destination_port);
    let app = match to_application(pod, target, facts.source_ip).await {
        Ok(app) => app,
        Err(error) => {
            connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
            return record.finish(&Outcome::Failed(&InboundError::Application(error)));
        }
    };
    let (read, write) = match connect.accept(crate::outbound::headers(&workload)) {
        Ok(halves) => halves,
        Err(error) => return record.finish(&Outcome::Failed(&InboundError::Tunnel(error))),
    };
    let mut flow = Flow::new(&pod.uid, Direction::Inbound, (peer.from, target), true);
    flow.judged = Some((workload.uid.clone(), facts));
    drop((snapshot, workload, caller));
    let moved = record.opened();
    let open = Flows::open(shared, flow);
    // The state may have changed between the verdict and the flow's entry into the list.
    shared.flows.recheck_one(&open, &shared.mesh.load());
    tokio::select! {
        end = relay((read, write), tcp(app), &moved) => match end {
            Ok(()) => record.finish(&Outcome::Complete),
            Err(error) => record.finish(&Outcome::Failed(&error)),
        },
        () = open.stop.cancelled() => record.finish(&Outcome::Stopped("no longer permitted")),
    }
}

/// Connects to the application as the original client, whose address it sees.
pub async fn to_application(pod: &Pod, target: SocketAddr, client: IpAddr) -> std::io::Result<TcpStream> {
    let source = (client != target.ip()).then_some(client);
    let connected = tokio::time::timeout(RECORD_LIMIT, pod.sockets.connect(target, source)).await;
    connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}
