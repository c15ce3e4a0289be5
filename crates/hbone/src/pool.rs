//! Tunnel connections, shared between the streams of one source to one destination and never across identities.

use crate::authority::Authority;
use crate::client::{DialError, Slot, Tunnel};
use crate::stream::{TunnelRead, TunnelWrite};
use http::HeaderMap;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trysail_api::ids::{SpiffeId, WorkloadUid};

/// What connections are shared by. State is keyed by workload and identity; the address alone says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The calling pod, by the uid under which its proxy serves it.
    pub source: WorkloadUid,
    /// Its identity.
    pub source_identity: SpiffeId,
    /// The called workload.
    pub destination: WorkloadUid,
    /// The identities that the called workload may have.
    pub expected: Vec<SpiffeId>,
    /// The address that is dialled.
    pub address: SocketAddr,
}

#[derive(Default)]
struct Shelf {
    tunnels: Mutex<Vec<Arc<Tunnel>>>,
    /// One dial at a time a key: the others wait and then share.
    dialling: tokio::sync::Mutex<()>,
}

/// The connections of one node proxy.
#[derive(Default)]
pub struct Pool {
    shelves: Mutex<HashMap<Key, Arc<Shelf>>>,
}

/// An open stream with its place in the pool.
pub struct Pooled {
    /// The receiving half.
    pub read: TunnelRead,
    /// The sending half.
    pub write: TunnelWrite,
    /// Held while the stream is in use.
    pub slot: Slot,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A stream to `authority` on a shared connection, or on a new one that `dial` makes. A connection that turns out to be closing
    /// is left for another.
    pub async fn open<D, F>(
        &self,
        key: &Key,
        authority: &Authority,
        headers: &HeaderMap,
        dial: D,
    ) -> Result<Pooled, DialError>
    where
        D: Fn() -> F,
        F: Future<Output = Result<Tunnel, DialError>>,
    {
        let shelf = lock(&self.shelves).entry(key.clone()).or_default().clone();
        let mut attempts = 0;
        loop {
            let (tunnel, slot) = shelf.tunnel(&dial).await?;
            let opened = tokio::time::timeout(crate::CONNECT_LIMIT, tunnel.open(authority, headers.clone())).await;
            match opened.unwrap_or(Err(DialError::Timeout)) {
                Err(DialError::Timeout) => {
                    // A peer that has vanished does not say so; the next stream is not to wait for it too.
                    tunnel.retire();
                    return Err(DialError::Timeout);
                }
                Ok((read, write)) => return Ok(Pooled { read, write, slot }),
                Err(DialError::Http2(error)) if attempts < 3 && !is_stream_refusal(&error) => {
                    // The connection is going away; nothing was sent on this stream, so another may carry it.
                    tunnel.retire();
                    attempts += 1;
                    tracing::debug!(%error, destination = %key.destination, "a pooled connection was closing");
                }
                Err(DialError::Http2(error)) if attempts < 3 => {
                    attempts += 1;
                    tracing::debug!(%error, destination = %key.destination, "the stream was refused");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the connections whose key `unwanted` holds of, with their streams.
    pub fn close_where(&self, unwanted: impl Fn(&Key) -> bool) {
        lock(&self.shelves).retain(|key, shelf| {
            let end = unwanted(key);
            if end {
                lock(&shelf.tunnels).iter().for_each(|tunnel| tunnel.close());
            }
            !end
        });
    }

    /// Forgets closed connections and empty keys; meant to be called now and then.
    pub fn sweep(&self) {
        lock(&self.shelves).retain(|_, shelf| {
            let mut tunnels = lock(&shelf.tunnels);
            tunnels.retain(|tunnel| tunnel.is_open());
            !tunnels.is_empty() || Arc::strong_count(shelf) > 1
        });
    }
}

fn is_stream_refusal(error: &h2::Error) -> bool {
    error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
}

impl Shelf {
    fn shared(&self) -> Option<(Arc<Tunnel>, Slot)> {
        let mut tunnels = lock(&self.tunnels);
        tunnels.retain(|tunnel| tunnel.is_open());
        tunnels.iter().find_map(|tunnel| tunnel.slot().map(|slot| (tunnel.clone(), slot)))
    }

    async fn tunnel<D, F>(&self, dial: &D) -> Result<(Arc<Tunnel>, Slot), DialError>
    where
        D: Fn() -> F,
        F: Future<Output = Result<Tunnel, DialError>>,
    {
        if let Some(found) = self.shared() {
            return Ok(found);
        }
        // One limit for the wait and the dial together: who queues behind a peer that does not answer is not to wait in turn.
        let dialled = async {
            let _turn = self.dialling.lock().await;
            if let Some(found) = self.shared() {
                return Ok(found);
            }
            let tunnel = Arc::new(dial().await?);
            lock(&self.tunnels).push(tunnel.clone());
            let slot = tunnel.slot().ok_or(DialError::Timeout)?;
            Ok((tunnel, slot))
        };
        tokio::time::timeout(crate::CONNECT_LIMIT, dialled).await.map_err(|_| DialError::Timeout)?
    }
}
