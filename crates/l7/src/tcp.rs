//! Connections that are not HTTP: judged, carried, and ended when they are no longer permitted.

use crate::aim::{TO_APP, caller, target, waypoint_target};
use crate::authorize::{self, judge_connection};
use crate::connection::{Downstream, Hop};
use crate::record::{Record, Reporter};
use crate::state::State;
use crate::upstream::balance::{self, Choice};
use crate::upstream::dial::{DialError, Target};
use crate::upstream::endpoints::{Endpoint, Wanted};
use http::request::Parts;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use trysail_api::ids::ServiceKey;
use trysail_identity::tls::ALPN_ISTIO;

/// Most endpoints that are tried, as long as no byte of the client was sent.
const TRIES: usize = 4;

/// Why a connection was not carried.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// A policy.
    #[error("refused: {0}")]
    Refused(String),
    /// Nowhere to go.
    #[error("{0}")]
    Nowhere(String),
    /// No connection to where it goes.
    #[error(transparent)]
    Dial(#[from] DialError),
}

/// Carries a connection to its end. An error comes before any byte was passed on.
pub async fn carry<T>(down: &Arc<Downstream>, mut io: T) -> Result<(), TcpError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    judge_connection(&down.proxy.state.load(), down).map_err(TcpError::Refused)?;
    let mut upstream = open(down).await?;
    tokio::select! {
        end = copy_bidirectional(&mut io, &mut upstream) => {
            if let Err(error) = end {
                tracing::debug!(%error, peer = %down.peer, "a connection failed");
            }
        }
        why = revoked(down, None) => tracing::info!(why, peer = %down.peer, "an open connection is ended"),
    }
    Ok(())
}

/// Opens the connection's other side, at another endpoint if one does not answer.
async fn open(down: &Arc<Downstream>) -> Result<crate::upstream::dial::Stream, TcpError> {
    let dialler = &down.proxy.upstream.dialler;
    let mut tried: Vec<Arc<Endpoint>> = Vec::new();
    loop {
        let (target, endpoint) = way(&down.proxy.state.load(), down, &tried)?;
        match dialler.dial(&target, ALPN_ISTIO, None).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let Some(endpoint) = endpoint.filter(|_| !error.is_refusal() && tried.len() + 1 < TRIES) else {
                    return Err(error.into());
                };
                tried.push(endpoint);
            }
        }
    }
}

type Way = (Target, Option<Arc<Endpoint>>);

fn way(state: &State, down: &Downstream, tried: &[Arc<Endpoint>]) -> Result<Way, TcpError> {
    match &down.hop {
        Hop::App { address } => Ok((Target::Plain { address: *address, source: Some(TO_APP) }, None)),
        Hop::Outbound { service } | Hop::Waypoint { service } => to_service(state, down, service, tried),
        Hop::WaypointWorkload { uid, address } => {
            let workload = state.mesh.workload(uid).ok_or_else(|| TcpError::Nowhere(format!("{uid} is gone")))?;
            Ok((target(&down.proxy, workload, *address, caller(down)), None))
        }
        Hop::Listener => Err(TcpError::Nowhere("a listener carries HTTP alone".to_owned())),
    }
}

fn to_service(state: &State, down: &Downstream, key: &ServiceKey, tried: &[Arc<Endpoint>]) -> Result<Way, TcpError> {
    let proxy = &down.proxy;
    let service = state.mesh.service(key).ok_or_else(|| TcpError::Nowhere(format!("{key} is gone")))?;
    if let Some(waypoint) = service.waypoint.as_ref().filter(|w| !proxy.is_own_waypoint(w)) {
        let found = waypoint_target(state, service, waypoint, down.port);
        return found.map(|(target, _)| (target, None)).map_err(|refusal| TcpError::Nowhere(refusal.detail));
    }
    let wanted = Wanted { service: key.clone(), port: down.port, subset: String::new() };
    let own = state.mesh.workload(&proxy.uid).map(|w| &**w);
    let set = proxy.upstream.statistics.set(state, service, &wanted, own);
    let settings = state.traffic(key, &proxy.settings.pod_namespace, (down.port, "")).unwrap_or_default();
    let random = (rand::random_range(0..usize::MAX), rand::random_range(0..usize::MAX));
    let choice = Choice { settings: &settings, hash: None, tried, now: proxy.now(), random };
    let endpoint = balance::choose(&set, &choice).map_err(|none| TcpError::Nowhere(format!("{key}: {none}")))?;
    let target = if settings.plaintext {
        Target::Plain { address: endpoint.address, source: None }
    } else {
        target(proxy, &endpoint.workload, endpoint.address, caller(down))
    };
    Ok((target, Some(endpoint)))
}

/// Resolves when a connection is no longer permitted, with the reason. `request`: the one that it began with, if it was HTTP.
pub async fn revoked(down: &Arc<Downstream>, request: Option<&Parts>) -> String {
    let mut generations = down.proxy.state.watch();
    loop {
        if generations.changed().await.is_err() {
            return std::future::pending().await;
        }
        let state = down.proxy.state.load();
        let verdict = match request {
            None => judge_connection(&state, down),
            Some(parts) => judge_request(&state, down, parts).await,
        };
        if let Err(why) = verdict {
            return why;
        }
    }
}

async fn judge_request(state: &State, down: &Downstream, parts: &Parts) -> Result<(), String> {
    let mut parts = parts.clone();
    let target = authorize::target(&parts, down.scheme).map_err(|refusal| refusal.detail)?;
    let mut silent = Record::silent(&down.proxy.sinks, Reporter::destination);
    let judged = authorize::judge(state, down, (&target, &mut parts), &mut silent).await;
    judged.map_err(|refusal| refusal.detail)
}
