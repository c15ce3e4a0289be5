//! The gateway: listeners at the edge, as its Gateway object says; ports are opened and closed as it changes.

use crate::connection::{Downstream, Hop, run};
use crate::proxy::Proxy;
use crate::record::End;
use crate::router::host_holds;
use crate::sniff::{Spoken, sniff};
use crate::state::Gateway;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use trysail_base::snapshot::SnapshotCell;
use trysail_base::tasks::Tasks;
use trysail_netns::socket::prepare;
use trysail_policy::authz::Facts;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Keeps the listeners as they are wanted.
pub fn start(proxy: &Arc<Proxy>) {
    proxy.tasks.spawn(keep(proxy.clone()));
}

async fn keep(proxy: Arc<Proxy>) {
    let mut open: BTreeMap<u16, Tasks> = BTreeMap::new();
    let mut generations = proxy.state.watch();
    loop {
        let wanted: BTreeSet<u16> =
            proxy.state.load().l7.gateway.iter().flat_map(|g| &g.listeners).map(|l| l.port).collect();
        open.retain(|port, tasks| {
            let stays = wanted.contains(port);
            if !stays {
                tracing::info!(port, "a listener is closed");
                tasks.stop();
            }
            stays
        });
        for port in wanted {
            if open.contains_key(&port) {
                continue;
            }
            match proxy.sockets.listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), false) {
                Ok(listener) => {
                    tracing::info!(port, "a listener is open");
                    let tasks = proxy.tasks.child();
                    tasks.spawn(accept(proxy.clone(), listener, port));
                    open.insert(port, tasks);
                }
                Err(error) => tracing::error!(port, %error, "a listener cannot be opened"),
            }
        }
        if generations.changed().await.is_err() {
            return;
        }
    }
}

async fn accept(proxy: Arc<Proxy>, listener: TcpListener, port: u16) {
    // A proxy that is ending takes no new connection; those that wait in the queue are the next one's.
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = proxy.drain.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) if prepare(&stream).is_ok() => {
                proxy.connections.track(serve(proxy.clone(), stream, peer, port));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "accepting failed");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(proxy: Arc<Proxy>, stream: TcpStream, peer: SocketAddr, port: u16) {
    let state = proxy.state.load();
    let Some(gateway) = state.l7.gateway.clone() else { return };
    let tls = gateway.listeners.iter().any(|l| l.port == port && l.tls.is_some());
    let local = stream.local_addr().map_or(proxy.settings.instance_ip, |a| a.ip());
    let workload = state.mesh.at_address(peer.ip()).next().cloned();
    drop(state);
    let down = |scheme, sni| {
        Arc::new(Downstream {
            proxy: proxy.clone(),
            hop: Hop::Listener,
            peer,
            source: End { workload: workload.clone(), identity: None },
            facts: Facts {
                source: None,
                via: None,
                source_ip: peer.ip(),
                destination_ip: local,
                destination_port: port,
            },
            port,
            scheme,
            sni,
            mutual: false,
        })
    };
    if !tls {
        return match sniff(stream, true).await {
            Ok((spoken, io)) => run(down("http", None), io, spoken == Spoken::Http2).await,
            Err(error) => tracing::debug!(%error, "a connection ended before it began"),
        };
    }
    let acceptor = TlsAcceptor::from(config(&proxy, port));
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(tls)) => {
            let (_, session) = tls.get_ref();
            let (sni, http2) = (session.server_name().map(str::to_owned), session.alpn_protocol() == Some(b"h2"));
            run(down("https", sni), tls, http2).await;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}

fn config(proxy: &Proxy, port: u16) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let resolver = Arc::new(ByName { state: proxy.state.clone(), port });
    let builder = ServerConfig::builder_with_provider(provider);
    // The provider has both versions; should it not, no handshake succeeds.
    let mut config = match builder.with_protocol_versions(rustls::ALL_VERSIONS) {
        Ok(builder) => builder.with_no_client_auth().with_cert_resolver(resolver),
        Err(error) => {
            tracing::error!(%error, "TLS cannot be set up");
            ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver)
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// The certificate of the listener whose host is asked for.
struct ByName {
    state: Arc<SnapshotCell<crate::state::State>>,
    port: u16,
}

impl std::fmt::Debug for ByName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByName").field("port", &self.port).finish_non_exhaustive()
    }
}

fn certificate(gateway: &Gateway, port: u16, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
    let listeners = gateway.listeners.iter().filter(|l| l.port == port);
    let covers = |host: &str| host.is_empty() || name.is_some_and(|n| host_holds(host, n));
    let best =
        listeners.filter(|l| covers(&l.hostname)).max_by_key(|l| (!l.hostname.starts_with('*'), l.hostname.len()))?;
    best.tls.as_ref()?.first().cloned()
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        certificate(self.state.load().l7.gateway.as_ref()?, self.port, hello.server_name())
    }
}
