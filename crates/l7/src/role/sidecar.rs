//! The sidecar: what its pod's application sends and receives is captured and passes here. Towards other sidecars it speaks mutual
//! TLS on the application's own port; tunnels are taken as well.

use crate::connection::{Downstream, Hop, run};
use crate::proxy::{Proxy, ProxyError};
use crate::record::End;
use crate::role::waypoint::{by_protocol, tunnels};
use crate::role::{accept, bind, complete};
use crate::state::State;
use crate::upstream::dial::Target;
use http::{HeaderMap, StatusCode};
use rustls::server::Acceptor;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use trysail_api::ids::SpiffeId;
use trysail_base::relay::reset_on_close;
use trysail_hbone::authority::Authority;
use trysail_hbone::caller::Caller;
use trysail_hbone::server::{self, Connect};
use trysail_hbone::stream::TunnelIo;
use trysail_identity::svid::spiffe_id;
use trysail_identity::tls::{ALPN_ISTIO, ALPN_ISTIO_H2, ALPN_ISTIO_HTTP1, sidecar_server_config};
use trysail_mesh::Workload;
use trysail_mesh::model::AppProtocol;
use trysail_netns::socket::original_destination;
use trysail_policy::authz::{Facts, Verdict, evaluate};

/// Captured outbound connections.
const OUTBOUND: u16 = 15001;
/// Captured inbound connections.
const INBOUND: u16 = 15006;
/// Ports of the proxy's own: what leads there was not captured.
const OWN: [u16; 6] = [15000, OUTBOUND, INBOUND, 15008, 15020, 15021];
const SVID_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may take to say what it speaks.
const HELLO: Duration = Duration::from_secs(10);
/// The largest TLS hello that is looked at, bytes.
const HELLO_SIZE: usize = 16 << 10;

/// Opens the ports of captured connections and of tunnels.
pub async fn listen(proxy: &Arc<Proxy>) -> Result<(), ProxyError> {
    let at = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    accept(proxy, bind(proxy, at(OUTBOUND))?, outbound);
    accept(proxy, bind(proxy, at(INBOUND))?, inbound);
    accept(proxy, bind(proxy, at(trysail_hbone::PORT))?, tunnel);
    Ok(())
}

/// The control plane's address, which is needed before anything is known.
fn is_control(proxy: &Proxy, to: SocketAddr) -> bool {
    let named = |url: &str| url.split("://").nth(1).and_then(|a| a.trim_end_matches('/').parse::<SocketAddr>().ok());
    named(&proxy.settings.xds.url) == Some(to) || named(&proxy.settings.ca.url) == Some(to)
}

async fn outbound(proxy: Arc<Proxy>, stream: TcpStream, peer: SocketAddr) {
    let to = match original_destination(&stream) {
        Ok(to)
            if stream.local_addr().is_ok_and(|own| own == to) || OWN.contains(&to.port()) && to.ip() == peer.ip() =>
        {
            return reset_on_close(&stream);
        }
        Ok(to) => to,
        Err(error) => {
            tracing::debug!(%error, "a connection that was not captured");
            return reset_on_close(&stream);
        }
    };
    if is_control(&proxy, to) {
        return pass(&proxy, stream, Target::Plain { address: to, source: None }).await;
    }
    if !complete(&proxy).await {
        tracing::warn!(%to, "refused: the state of the mesh is not known yet");
        return reset_on_close(&stream);
    }
    let state = proxy.state.load();
    let Some(service) = state.mesh.service_at(to.ip()).cloned() else {
        return pass(&proxy, stream, by_address(&state, &proxy, to)).await;
    };
    let Some(known) = service.ports.iter().find(|p| p.port == to.port()) else {
        tracing::info!(service = %service.key, port = to.port(), "refused: the service has no such port");
        return reset_on_close(&stream);
    };
    if let Some(waypoint) = &service.waypoint {
        // The waypoint does what is to be done; one hop that understands HTTP is enough.
        return match crate::aim::waypoint_target(&state, &service, waypoint, to.port()) {
            Ok((target, _)) => pass(&proxy, stream, target).await,
            Err(refusal) => {
                tracing::info!(why = refusal.detail, "a connection was refused");
                reset_on_close(&stream);
            }
        };
    }
    let own = state.mesh.workload(&proxy.uid).cloned();
    let facts = Facts {
        source: Some(proxy.identity.clone()),
        via: None,
        source_ip: peer.ip(),
        destination_ip: to.ip(),
        destination_port: to.port(),
    };
    let down = Arc::new(Downstream {
        hop: Hop::Outbound { service: service.key.clone() },
        peer,
        source: End { workload: own, identity: Some(proxy.identity.clone()) },
        facts,
        port: to.port(),
        scheme: "http",
        sni: None,
        mutual: false,
        proxy: proxy.clone(),
    });
    by_protocol(down, stream, known.protocol).await;
}

/// The way to an address that is no service's.
fn by_address(state: &State, proxy: &Proxy, to: SocketAddr) -> Target {
    match state.mesh.at_address(to.ip()).next() {
        Some(workload) => match &workload.waypoint {
            Some(waypoint) => match state.mesh.waypoint(waypoint).first() {
                Some(hop) => Target::Tunnel {
                    uid: hop.uid.clone(),
                    expected: vec![hop.identity.clone()],
                    address: SocketAddr::new(hop.addresses.first().copied().unwrap_or(to.ip()), waypoint.port),
                    inner: to,
                    caller: None,
                },
                None => crate::aim::target(proxy, workload, to, None),
            },
            None => crate::aim::target(proxy, workload, to, None),
        },
        None => Target::Plain { address: to, source: None },
    }
}

/// Carries a connection of the own application as it is.
async fn pass(proxy: &Proxy, mut stream: TcpStream, target: Target) {
    match proxy.upstream.dialler.dial(&target, ALPN_ISTIO, None).await {
        Ok(mut other) => {
            if let Err(error) = copy_bidirectional(&mut stream, &mut other).await {
                tracing::debug!(%error, "a connection failed");
            }
        }
        Err(error) => {
            tracing::info!(to = %target.address(), error = trysail_base::log::chain(&error), "a connection could not be opened");
            reset_on_close(&stream);
        }
    }
}

/// What is declared of a port of the own application.
fn declared(state: &State, workload: &Workload, port: u16) -> AppProtocol {
    let leads = |ports: &std::collections::BTreeMap<u16, u16>| ports.iter().find(|(_, t)| **t == port).map(|(p, _)| *p);
    let mut found = workload.services.iter().filter_map(|(key, ports)| {
        let called = leads(ports)?;
        state.mesh.service(key)?.ports.iter().find(|p| p.port == called).map(|p| p.protocol)
    });
    found.find(|p| *p != AppProtocol::Unknown).unwrap_or_default()
}

async fn inbound(proxy: Arc<Proxy>, stream: TcpStream, peer: SocketAddr) {
    let to = match original_destination(&stream) {
        Ok(to) if !OWN.contains(&to.port()) => to,
        _ => return reset_on_close(&stream),
    };
    if !complete(&proxy).await {
        return reset_on_close(&stream);
    }
    match hello(&stream).await {
        Hello::Mesh => mutual(proxy, stream, (peer, to)).await,
        Hello::Other => plaintext(proxy, stream, (peer, to)).await,
        Hello::Gone => {}
    }
}

enum Hello {
    /// Mutual TLS of a sidecar.
    Mesh,
    /// Anything else, an application's own TLS among it.
    Other,
    /// Ended before it said anything.
    Gone,
}

/// Looks at a connection's first bytes and leaves them where they are.
async fn hello(stream: &TcpStream) -> Hello {
    let mut buffer = vec![0; 1024];
    let looking = async {
        let mut seen = 0;
        loop {
            let Ok(count) = stream.peek(&mut buffer).await else { return Hello::Gone };
            if count == 0 {
                return Hello::Gone;
            }
            let bytes = buffer.get(..count).unwrap_or_default();
            if bytes.first() != Some(&0x16) {
                return Hello::Other;
            }
            match alpn(bytes) {
                Some(true) => return Hello::Mesh,
                Some(false) => return Hello::Other,
                None if count >= HELLO_SIZE => return Hello::Other,
                None => {}
            }
            if count == buffer.len() {
                buffer.resize(buffer.len() * 2, 0);
            } else if count == seen {
                // The rest of the hello is on its way; the socket stays readable meanwhile.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            seen = count;
        }
    };
    // A client that waits for its server says nothing.
    tokio::time::timeout(Duration::from_millis(200), looking).await.unwrap_or(Hello::Other)
}

/// Whether a TLS hello asks for one of the sidecars' protocols; `None`: it is not whole.
fn alpn(bytes: &[u8]) -> Option<bool> {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        match acceptor.read_tls(&mut rest) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                return Some(hello.alpn().into_iter().flatten().any(|p| p.starts_with(ALPN_ISTIO)));
            }
            Ok(None) => {}
            Err(_) => return Some(false),
        }
    }
    None
}

async fn mutual(proxy: Arc<Proxy>, stream: TcpStream, (peer, to): (SocketAddr, SocketAddr)) {
    let svid = match proxy.svids.get(&proxy.identity, SVID_LIMIT).await {
        Ok(svid) => svid,
        Err(error) => {
            tracing::warn!(%error, "a connection was refused");
            return reset_on_close(&stream);
        }
    };
    let acceptor = TlsAcceptor::from(sidecar_server_config(&svid));
    let tls = match tokio::time::timeout(HELLO, acceptor.accept(stream)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return tracing::info!(%peer, %error, "a TLS handshake failed"),
        Err(_) => return,
    };
    let (_, session) = tls.get_ref();
    let leaf = session.peer_certificates().and_then(|chain| chain.first());
    let Some(identity) = leaf.and_then(|leaf| spiffe_id(leaf)) else { return };
    let agreed = session.alpn_protocol().map(<[u8]>::to_vec);
    let state = proxy.state.load();
    let workload = state.mesh.at_address(peer.ip()).find(|w| w.identity == identity).cloned();
    let caller = Caller { identity: Some(identity), address: peer.ip() };
    let down = Arc::new(to_app(&proxy, (peer, to), (caller, None, workload), true));
    match agreed.as_deref() {
        Some(ALPN_ISTIO_H2) => run(down, tls, true).await,
        Some(ALPN_ISTIO_HTTP1 | b"istio-http/1.0") => run(down, tls, false).await,
        _ => {
            let protocol = own(&state, &proxy).map(|w| declared(&state, &w, to.port())).unwrap_or_default();
            by_protocol(down, tls, protocol).await;
        }
    }
}

fn own(state: &State, proxy: &Proxy) -> Option<Arc<Workload>> {
    state.mesh.workload(&proxy.uid).cloned()
}

async fn plaintext(proxy: Arc<Proxy>, stream: TcpStream, (peer, to): (SocketAddr, SocketAddr)) {
    let state = proxy.state.load();
    let workload = state.mesh.at_address(peer.ip()).next().cloned();
    let caller = Caller { identity: None, address: peer.ip() };
    let down = to_app(&proxy, (peer, to), (caller, None, workload), false);
    let Some(own) = own(&state, &proxy) else {
        tracing::warn!(%peer, "refused: this pod has no record in the mesh yet");
        return reset_on_close(&stream);
    };
    // STRICT: not a byte is read.
    let verdict = evaluate(state.implied(&own), &down.facts);
    if verdict != Verdict::Allow {
        tracing::info!(%peer, %to, %verdict, "a plaintext connection was refused");
        return reset_on_close(&stream);
    }
    let protocol = declared(&state, &own, to.port());
    drop(state);
    by_protocol(Arc::new(down), stream, protocol).await;
}

type From = (Caller, Option<SpiffeId>, Option<Arc<Workload>>);

/// A connection to the own application, of a caller that was proven.
fn to_app(
    proxy: &Arc<Proxy>,
    (peer, to): (SocketAddr, SocketAddr),
    (caller, via, workload): From,
    mutual: bool,
) -> Downstream {
    Downstream {
        hop: Hop::App { address: to },
        peer: SocketAddr::new(caller.address, peer.port()),
        source: End { workload, identity: caller.identity.clone() },
        facts: Facts {
            source: caller.identity,
            via,
            source_ip: caller.address,
            destination_ip: to.ip(),
            destination_port: to.port(),
        },
        port: to.port(),
        scheme: "http",
        sni: None,
        mutual,
        proxy: proxy.clone(),
    }
}

async fn tunnel(proxy: Arc<Proxy>, stream: TcpStream, from: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let svid = match proxy.svids.get(&proxy.identity, SVID_LIMIT).await {
        Ok(svid) => svid,
        Err(error) => {
            tracing::warn!(%error, "a tunnel was refused");
            return reset_on_close(&stream);
        }
    };
    match server::accept(stream, svid.server.clone()).await {
        Ok(tunnel) => {
            tunnels(&proxy, tunnel, |proxy, peer, connect| stream_in(proxy, peer, (from, local), connect)).await
        }
        Err(error) => tracing::info!(%from, error = trysail_base::log::chain(&error), "a tunnel was refused"),
    }
}

async fn stream_in(proxy: Arc<Proxy>, peer: SpiffeId, (from, local): (SocketAddr, SocketAddr), connect: Connect) {
    if !complete(&proxy).await {
        return connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
    }
    let state = proxy.state.load();
    let Some(own) = own(&state, &proxy) else { return connect.refuse(StatusCode::SERVICE_UNAVAILABLE) };
    let port = match &connect.authority {
        Authority::Address(address) if address.ip() == local.ip() && !OWN.contains(&address.port()) => address.port(),
        _ => return connect.refuse(StatusCode::BAD_REQUEST),
    };
    let hop = state.mesh.at_address(from.ip()).find(|w| w.identity == peer).cloned();
    let entitled = hop.as_ref().is_some_and(|h| state.mesh.speaks_for(&h.uid, &own, port));
    let (caller, via) = match Caller::stated(&connect.headers) {
        Ok(Some(caller)) if entitled => (caller, Some(peer)),
        // Whoever may not speak for others speaks for itself.
        Ok(_) => (Caller { identity: Some(peer), address: from.ip() }, None),
        Err(error) => {
            tracing::warn!(%from, %error, "a tunnel's stream was refused");
            return connect.refuse(StatusCode::BAD_REQUEST);
        }
    };
    let workload = state.mesh.at_address(caller.address).next().cloned();
    let to = SocketAddr::new(local.ip(), port);
    let down = to_app(&proxy, (from, to), (caller, via, workload), true);
    // Refused here, the far end hears it as the answer to its CONNECT.
    let verdict = evaluate(state.implied(&own), &down.facts);
    if verdict != Verdict::Allow {
        tracing::info!(%from, %to, %verdict, "a tunnel's stream was refused");
        return connect.refuse(StatusCode::UNAUTHORIZED);
    }
    let protocol = declared(&state, &own, port);
    drop((state, own));
    match connect.accept(HeaderMap::new()) {
        Ok((read, write)) => by_protocol(Arc::new(down), TunnelIo::new(read, write), protocol).await,
        Err(error) => tracing::debug!(%error, "a tunnel's stream could not be opened"),
    }
}
