//! The waypoint: tunnels in, tunnels out. Serves the services and workloads that are bound to it, and nothing else.

use crate::connection::{Downstream, Hop, run};
use crate::proxy::{Proxy, ProxyError};
use crate::record::End;
use crate::role::{accept, bind, complete};
use crate::sniff::{Spoken, sniff};
use crate::state::State;
use crate::tcp::carry;
use http::{HeaderMap, StatusCode};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use trysail_hbone::authority::Authority;
use trysail_hbone::server::{self, Connect, Tunnel};
use trysail_hbone::stream::TunnelIo;
use trysail_mesh::model::AppProtocol;
use trysail_policy::authz::Facts;

const SVID_LIMIT: Duration = Duration::from_secs(5);

/// Opens the port of tunnels.
pub async fn listen(proxy: &Arc<Proxy>) -> Result<(), ProxyError> {
    let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), trysail_hbone::PORT);
    accept(proxy, bind(proxy, address)?, serve);
    Ok(())
}

async fn serve(proxy: Arc<Proxy>, stream: TcpStream, from: SocketAddr) {
    let svid = match proxy.svids.get(&proxy.identity, SVID_LIMIT).await {
        Ok(svid) => svid,
        Err(error) => return tracing::warn!(%error, "a tunnel was refused"),
    };
    let tunnel = match server::accept(stream, svid.server.clone()).await {
        Ok(tunnel) => tunnel,
        Err(error) => return tracing::info!(%from, error = trysail_base::log::chain(&error), "a tunnel was refused"),
    };
    tunnels(&proxy, tunnel, |proxy, peer, connect| stream_in(proxy, (peer, from), connect)).await;
}

/// Serves the streams of a tunnel connection until it ends, each in a task of its own.
pub(crate) async fn tunnels<F>(
    proxy: &Arc<Proxy>,
    mut tunnel: Tunnel,
    serve: impl Fn(Arc<Proxy>, trysail_api::ids::SpiffeId, Connect) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut draining = false;
    loop {
        tokio::select! {
            () = proxy.drain.cancelled(), if !draining => {
                draining = true;
                tunnel.drain();
            }
            connect = tunnel.next() => match connect {
                Some(connect) => proxy.connections.track(serve(proxy.clone(), tunnel.peer.clone(), connect)),
                None => return,
            },
        }
    }
}

/// What a tunnel's stream leads to.
fn lead(state: &State, proxy: &Proxy, authority: &Authority) -> Option<(Hop, u16, AppProtocol)> {
    let own = |w: &Option<trysail_mesh::model::Waypoint>| w.as_ref().is_some_and(|w| proxy.is_own_waypoint(w));
    let service = match authority {
        Authority::Address(address) => state.mesh.service_at(address.ip()).cloned(),
        Authority::Host(host, _) => state.mesh.services().find(|s| s.hostname == *host).cloned(),
    };
    let port = match authority {
        Authority::Address(address) => address.port(),
        Authority::Host(_, port) => *port,
    };
    if let Some(service) = service {
        let known = service.ports.iter().find(|p| p.port == port).filter(|_| own(&service.waypoint))?;
        return Some((Hop::Waypoint { service: service.key.clone() }, port, known.protocol));
    }
    let Authority::Address(address) = authority else { return None };
    let workload = state.mesh.at_address(address.ip()).find(|w| own(&w.waypoint))?;
    let ports = workload.services.iter().filter(|(_, ports)| ports.values().any(|p| *p == port));
    let declared = ports.filter_map(|(key, ports)| {
        let called = ports.iter().find(|(_, target)| **target == port).map(|(called, _)| *called)?;
        state.mesh.service(key)?.ports.iter().find(|p| p.port == called).map(|p| p.protocol)
    });
    let protocol = declared.into_iter().next().unwrap_or_default();
    Some((Hop::WaypointWorkload { uid: workload.uid.clone(), address: *address }, port, protocol))
}

async fn stream_in(proxy: Arc<Proxy>, (peer, from): (trysail_api::ids::SpiffeId, SocketAddr), connect: Connect) {
    if !complete(&proxy).await {
        return connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
    }
    let state = proxy.state.load();
    let Some((hop, port, protocol)) = lead(&state, &proxy, &connect.authority) else {
        tracing::info!(%from, %peer, authority = %connect.authority, "a tunnel leads to nothing that this waypoint serves");
        return connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
    };
    // The record of the caller is a hint for telemetry; who it is, the certificate says.
    let workload = state.mesh.at_address(from.ip()).find(|w| w.identity == peer).cloned();
    let destination_ip = match &connect.authority {
        Authority::Address(address) => address.ip(),
        Authority::Host(..) => proxy.settings.instance_ip,
    };
    let facts =
        Facts { source: Some(peer.clone()), via: None, source_ip: from.ip(), destination_ip, destination_port: port };
    let down = Arc::new(Downstream {
        hop,
        peer: from,
        source: End { workload, identity: Some(peer) },
        facts,
        port,
        scheme: "http",
        sni: None,
        mutual: true,
        proxy: proxy.clone(),
    });
    let (read, write) = match connect.accept(HeaderMap::new()) {
        Ok(halves) => halves,
        Err(error) => return tracing::debug!(%error, "a tunnel's stream could not be opened"),
    };
    by_protocol(down, TunnelIo::new(read, write), protocol).await;
}

/// Serves a connection as what its port declares, or as what it begins with.
pub(crate) async fn by_protocol<T>(down: Arc<Downstream>, io: T, declared: AppProtocol)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = matches!(declared, AppProtocol::Http1 | AppProtocol::Http2 | AppProtocol::Grpc);
    if matches!(declared, AppProtocol::Tcp | AppProtocol::Tls) {
        return carried(&down, io).await;
    }
    // Where HTTP is declared a silent client is waited for; elsewhere it may be waiting itself.
    match sniff(io, http).await {
        Ok((Spoken::Http1, io)) => run(down, io, false).await,
        Ok((Spoken::Http2, io)) => run(down, io, true).await,
        // What is declared to be HTTP and is not is refused by the parser, with an answer.
        Ok((Spoken::Other, io)) if http => run(down, io, false).await,
        Ok((_, io)) => carried(&down, io).await,
        Err(error) => tracing::debug!(%error, peer = %down.peer, "a connection ended before it began"),
    }
}

async fn carried<T>(down: &Arc<Downstream>, io: T)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = carry(down, io).await {
        tracing::info!(peer = %down.peer, port = down.port, error = trysail_base::log::chain(&error), "a connection was refused");
    }
}
