//! Captured plaintext into a pod: the same policies, with no identity.

use crate::decide::{self, Refusal};
use crate::flows::{Direction, Flow, Flows};
use crate::inbound::to_application;
use crate::record::{End, Outcome, Record, Reporter};
use crate::state::Pod;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use trysail_base::relay::{relay, reset_on_close, tcp};
use trysail_netns::socket::original_destination;
use trysail_policy::authz::Facts;

/// Why a plaintext connection was not carried. The client sees a reset, the application nothing.
#[derive(Debug, thiserror::Error)]
enum PlainError {
    #[error("the pod has no record in the mesh yet")]
    NoRecord,
    #[error("the original destination is not known")]
    NoDestination(#[source] std::io::Error),
    #[error("refused")]
    Refused(#[source] Refusal),
    #[error("the application does not accept the connection")]
    Application(#[source] std::io::Error),
}

/// Carries one captured connection to its end.
pub async fn serve(pod: Arc<Pod>, stream: TcpStream, peer: SocketAddr) {
    let destination = original_destination(&stream);
    let target = destination.as_ref().copied().unwrap_or(peer);
    let mut record = Record::begin(&pod.shared.metrics, Reporter::destination, peer, target);
    let app = match destination {
        Ok(to) => admit(&pod, peer, to, &mut record).await,
        Err(error) => Err(PlainError::NoDestination(error)),
    };
    let (app, flow) = match app {
        Ok(found) => found,
        Err(error) => {
            reset_on_close(&stream);
            drop(stream);
            return record.finish(&Outcome::Failed(&error));
        }
    };
    let moved = record.opened();
    let open = Flows::open(&pod.shared, flow);
    pod.shared.flows.recheck_one(&open, &pod.shared.mesh.load());
    tokio::select! {
        end = relay(tcp(stream), tcp(app), &moved) => match end {
            Ok(()) => record.finish(&Outcome::Complete),
            Err(error) => record.finish(&Outcome::Failed(&error)),
        },
        () = open.stop.cancelled() => record.finish(&Outcome::Stopped("no longer permitted")),
    }
}

async fn admit(
    pod: &Pod,
    peer: SocketAddr,
    to: SocketAddr,
    record: &mut Record,
) -> Result<(TcpStream, Flow), PlainError> {
    let (snapshot, workload) = pod.record().await.ok_or(PlainError::NoRecord)?;
    let caller = snapshot.at_address(peer.ip()).next();
    let service = workload.services.keys().next().and_then(|key| snapshot.service(key));
    let ends =
        (End { workload: caller.map(|w| &**w), identity: None }, End { workload: Some(&workload), identity: None });
    record.describe(ends.0, ends.1, service.map(|s| &**s));
    // A connection made to this listener itself was not captured, and leads nowhere.
    if crate::OWN_PORTS.contains(&to.port()) {
        return Err(PlainError::Refused(Refusal::Port(to.port())));
    }
    let facts =
        Facts { source: None, via: None, source_ip: peer.ip(), destination_ip: to.ip(), destination_port: to.port() };
    decide::admit(&snapshot, &workload, &facts).map_err(PlainError::Refused)?;
    let app = to_application(pod, to, peer.ip()).await.map_err(PlainError::Application)?;
    let mut flow = Flow::new(&pod.uid, Direction::Inbound, (peer, to), false);
    flow.judged = Some((workload.uid.clone(), facts));
    Ok((app, flow))
}
