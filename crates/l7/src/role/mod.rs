//! Where connections come from, and who may speak for whom.

pub mod gateway;
pub mod sidecar;
pub mod waypoint;

use crate::proxy::{Proxy, ProxyError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use trysail_netns::socket::prepare;

/// How long a connection may wait for the state of the mesh.
pub(crate) const STATE_LIMIT: Duration = Duration::from_secs(5);

/// Waits, within a bound, until the state of the mesh is complete.
pub(crate) async fn complete(proxy: &Proxy) -> bool {
    proxy.ready.pending().is_empty()
        || proxy.state.wait_for(STATE_LIMIT, |_| proxy.ready.pending().is_empty().then_some(())).await.is_some()
}

pub(crate) fn bind(proxy: &Proxy, address: SocketAddr) -> Result<TcpListener, ProxyError> {
    proxy.sockets.listen(address, false).map_err(|e| ProxyError::Listen(address, e))
}

/// Takes connections until the proxy ends; each is served by a task of its own.
pub(crate) fn accept<F>(
    proxy: &Arc<Proxy>,
    listener: TcpListener,
    serve: impl Fn(Arc<Proxy>, TcpStream, SocketAddr) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let proxy = proxy.clone();
    let tasks = proxy.tasks.clone();
    tasks.spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    if let Err(error) = prepare(&stream) {
                        tracing::debug!(%error, "a connection ended before it was served");
                        continue;
                    }
                    proxy.connections.track(serve(proxy.clone(), stream, peer));
                }
                Err(error) => {
                    // Out of descriptors, most likely: give others time to end.
                    tracing::warn!(%error, "accepting failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    });
}
