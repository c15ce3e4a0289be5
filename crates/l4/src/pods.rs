//! The captured pods: listeners inside each, and their orderly end.

use crate::state::{Pod, Shared};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_base::tasks::Tasks;
use trysail_netns::ns::NetNs;
use trysail_netns::socket::{Sockets, prepare};

/// How long tunnels are still accepted for a pod that left the mesh: peers hear of it a moment later.
const LINGER: Duration = Duration::from_secs(5);
/// How long a removed pod's open connections may go on.
const DRAIN_LIMIT: Duration = Duration::from_secs(3600);

/// What the agent says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are ZDS'")]
pub struct Info {
    pub name: String,
    pub namespace: String,
    pub service_account: String,
}

struct Served {
    pod: Arc<Pod>,
    info: Info,
    inode: u64,
    /// Ends the accepting of captured connections.
    accepting: Tasks,
    /// Announces the end on open tunnels.
    drain: CancellationToken,
}

#[derive(Default)]
struct Inner {
    served: HashMap<String, Served>,
    pending: HashMap<String, (Info, NetNs)>,
    /// While a snapshot is received: what it has named so far.
    named: Option<Vec<String>>,
}

/// All captured pods of the node.
pub struct Pods {
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
    next: AtomicU64,
}

impl Pods {
    /// None yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, inner: Mutex::default(), next: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new conversation begins: what it does not name is dropped at its end.
    pub fn begin_snapshot(&self) {
        self.lock().named = Some(Vec::new());
    }

    /// The snapshot is whole.
    pub fn end_snapshot(&self) {
        let gone: Vec<String> = {
            let mut inner = self.lock();
            let named = inner.named.take().unwrap_or_default();
            inner.served.keys().chain(inner.pending.keys()).filter(|uid| !named.contains(uid)).cloned().collect()
        };
        for uid in gone {
            tracing::info!(uid, "a pod is not in the agent's snapshot");
            self.remove(&uid);
        }
    }

    /// Serves a pod. A pod that is served already in the same namespace stays as it is. The error is for the agent.
    pub fn add(&self, uid: &str, info: Info, ns: NetNs) -> Result<(), String> {
        let inode = ns.inode().map_err(|e| format!("the namespace cannot be inspected: {e}"))?;
        let same = {
            let mut inner = self.lock();
            if let Some(named) = &mut inner.named {
                named.push(uid.to_owned());
            }
            inner.served.get(uid).map(|s| s.inode == inode && s.info == info)
        };
        match same {
            Some(true) => return Ok(()),
            Some(false) => self.remove(uid),
            None => {}
        }
        match self.start(uid, &info, &ns, inode) {
            Ok(served) => {
                tracing::info!(uid, pod = info.name, namespace = info.namespace, "pod captured");
                let mut inner = self.lock();
                inner.pending.remove(uid);
                inner.served.insert(uid.to_owned(), served);
                Ok(())
            }
            Err(error) => {
                tracing::error!(uid, pod = info.name, namespace = info.namespace, %error, "a pod cannot be served yet");
                self.lock().pending.insert(uid.to_owned(), (info, ns));
                Err(format!("listeners cannot be opened: {error}"))
            }
        }
    }

    /// A pod whose namespace the agent has lost stays as it is.
    pub fn keep(&self, uid: &str) -> Result<(), String> {
        let mut inner = self.lock();
        if !inner.served.contains_key(uid) {
            return Err("this pod is not served".to_owned());
        }
        if let Some(named) = &mut inner.named {
            named.push(uid.to_owned());
        }
        Ok(())
    }

    /// Tries pods again that could not be served.
    pub fn retry_pending(&self) {
        let pending: Vec<_> = self.lock().pending.iter().map(|(u, (i, n))| (u.clone(), i.clone(), n.clone())).collect();
        for (uid, info, ns) in pending {
            if let Err(error) = self.add(&uid, info, ns) {
                tracing::debug!(uid, error, "still pending");
            }
        }
    }

    /// Ends the serving of a pod: nothing new is captured, what is open finishes.
    pub fn remove(&self, uid: &str) {
        let served = {
            let mut inner = self.lock();
            inner.pending.remove(uid);
            inner.served.remove(uid)
        };
        let Some(served) = served else { return };
        tracing::info!(uid, pod = served.pod.name, "pod released");
        let shared = self.shared.clone();
        shared.tasks.clone().spawn(async move {
            served.drain.cancel();
            tokio::time::sleep(LINGER).await;
            served.accepting.stop();
            let ended = served.pod.tasks.drain_open(DRAIN_LIMIT).await;
            tracing::debug!(pod = served.pod.name, ended, "released pod is drained");
            shared.pool.close_where(|key| key.source == served.pod.incarnation);
            shared.svids.release(&served.pod.identity);
        });
    }

    /// Stops accepting for all pods and announces the end on all tunnels.
    pub fn drain_all(&self) {
        for served in self.lock().served.values() {
            served.accepting.stop();
            served.drain.cancel();
        }
    }

    /// Tasks of connections that are still served.
    pub fn open_tasks(&self) -> usize {
        self.lock().served.values().map(|s| s.pod.tasks.len()).sum()
    }

    /// Key, what is known, and whether it is served, for every pod.
    pub fn list(&self) -> Vec<(String, Info, bool)> {
        let inner = self.lock();
        let up = inner.served.iter().map(|(uid, s)| (uid.clone(), s.info.clone(), true));
        let pending = inner.pending.iter().map(|(uid, (info, _))| (uid.clone(), info.clone(), false));
        let mut all: Vec<_> = up.chain(pending).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    fn start(&self, uid: &str, info: &Info, ns: &NetNs, inode: u64) -> io::Result<Served> {
        let shared = &self.shared;
        let sockets = Sockets::new(ns.clone()).map_err(io::Error::other)?;
        let identity = SpiffeId::new(&shared.settings.trust_domain, &info.namespace, &info.service_account);
        let pod = Arc::new(Pod {
            shared: shared.clone(),
            uid: uid.to_owned(),
            incarnation: WorkloadUid::new(&format!("{uid}/{}", self.next.fetch_add(1, Ordering::Relaxed))),
            name: info.name.clone(),
            namespace: info.namespace.clone(),
            identity: identity.clone(),
            sockets,
            tasks: Tasks::default(),
            record_key: OnceLock::new(),
        });
        let (accepting, drain) = (shared.tasks.child(), CancellationToken::new());
        let outbound = listeners(&pod, crate::OUTBOUND_PORT, true)?;
        let plaintext = listeners(&pod, crate::PLAINTEXT_PORT, true)?;
        let tunnels = listeners(&pod, trysail_hbone::PORT, false)?;
        shared.svids.hold(&identity);
        for listener in outbound {
            accept(&pod, &accepting, listener, crate::outbound::serve);
        }
        for listener in plaintext {
            accept(&pod, &accepting, listener, crate::passthrough::serve);
        }
        for listener in tunnels {
            let drain = drain.clone();
            accept(&pod, &accepting, listener, move |pod, stream, peer| {
                crate::inbound::serve(pod, stream, peer, drain.clone())
            });
        }
        Ok(Served { pod, info: info.clone(), inode, accepting, drain })
    }
}

/// Listeners on one port, for each address family that the pod has: one is enough.
fn listeners(pod: &Pod, port: u16, transparent: bool) -> io::Result<Vec<TcpListener>> {
    let v4 = pod.sockets.listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), transparent);
    let v6 = pod.sockets.listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), transparent);
    match (v4, v6) {
        (Err(error), Err(_)) => Err(error),
        (v4, v6) => Ok(v4.into_iter().chain(v6).collect()),
    }
}

fn accept<F>(
    pod: &Arc<Pod>,
    accepting: &Tasks,
    listener: TcpListener,
    serve: impl Fn(Arc<Pod>, tokio::net::TcpStream, SocketAddr) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let pod = pod.clone();
    accepting.spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    if let Err(error) = prepare(&stream) {
                        tracing::debug!(%error, "a connection ended before it was served");
                        continue;
                    }
                    pod.tasks.track(serve(pod.clone(), stream, peer));
                }
                Err(error) => {
                    // Out of descriptors, most likely: give others time to end.
                    tracing::warn!(pod = pod.name, %error, "accepting failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    });
}
