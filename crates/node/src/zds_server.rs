//! Hands pods to the node proxy (ZDS). One request at a time on a connection; adds go to the newest proxy, removals to all.

use prost::Message;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use trysail_base::tasks::Tasks;
use trysail_netns::fd_pass::{Seqpacket, SeqpacketListener};
use trysail_netns::ns::NetNs;
use trysail_wire::zds::{
    AddWorkload, DelWorkload, SnapshotSent, Version, WorkloadInfo, WorkloadRequest, WorkloadResponse, ZdsHello,
    workload_request::Payload, workload_response,
};

/// How long a proxy may take for one message.
const IO_LIMIT: Duration = Duration::from_secs(5);
/// Requests that may wait for one proxy.
const QUEUE: usize = 1024;

/// A pod to be served.
#[derive(Clone)]
pub struct Served {
    /// What the proxy is told.
    pub info: WorkloadInfo,
    /// Its network namespace.
    pub ns: NetNs,
}

/// What a proxy answered for a pod; an error also when there is no proxy.
pub type Answer = (String, Result<(), String>);

enum Command {
    Add(String),
    Del(String),
}

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Served>,
    proxies: Vec<mpsc::Sender<Command>>,
}

/// The serving side.
pub struct ZdsServer {
    state: Mutex<State>,
    answers: mpsc::Sender<Answer>,
    synced: watch::Sender<bool>,
    tasks: Tasks,
}

/// Why a conversation with a proxy ended.
#[derive(Debug, thiserror::Error)]
enum TalkError {
    #[error("the proxy's socket")]
    Io(#[from] io::Error),
    #[error("the proxy did not answer in time")]
    Timeout,
    #[error("a message cannot be read")]
    Decode(#[from] prost::DecodeError),
    #[error("the proxy broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the proxy closed the conversation")]
    Closed,
}

impl ZdsServer {
    /// Listens at `path`. What proxies answer comes out of the receiver.
    pub fn listen(path: &Path, tasks: &Tasks) -> io::Result<(Arc<Self>, mpsc::Receiver<Answer>)> {
        let listener = SeqpacketListener::bind(path)?;
        let (answers, receiver) = mpsc::channel(QUEUE);
        let (synced, _) = watch::channel(false);
        let server = Arc::new(Self { state: Mutex::default(), answers, synced, tasks: tasks.clone() });
        let accepting = server.clone();
        tasks.spawn(async move {
            loop {
                match listener.accept().await {
                    Ok(socket) => {
                        let server = accepting.clone();
                        accepting.tasks.spawn(async move {
                            let end = server.talk(socket).await;
                            tracing::info!(reason = end.err().map(|e| e.to_string()), "a node proxy left");
                        });
                    }
                    Err(error) => tracing::warn!(%error, "accepting a node proxy failed"),
                }
                // At most five proxies a second.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Ok((server, receiver))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods are complete: proxies may be told. Before that a snapshot would make them drop pods that are only not known yet.
    pub fn synced(&self) {
        self.synced.send_replace(true);
    }

    /// Has a pod served. False when there is no proxy now; it is told when one comes.
    pub fn add(&self, uid: &str, served: Served) -> bool {
        let mut state = self.lock();
        state.pods.insert(uid.to_owned(), served);
        state.proxies.retain(|p| !p.is_closed());
        state.proxies.last().is_some_and(|newest| newest.try_send(Command::Add(uid.to_owned())).is_ok())
    }

    /// Ends the serving of a pod.
    pub fn remove(&self, uid: &str) {
        let mut state = self.lock();
        if state.pods.remove(uid).is_none() {
            return;
        }
        state.proxies.retain(|proxy| match proxy.try_send(Command::Del(uid.to_owned())) {
            Ok(()) => true,
            Err(error) => matches!(error, mpsc::error::TrySendError::Full(_)),
        });
    }

    /// Whether a proxy is connected.
    pub fn has_proxy(&self) -> bool {
        self.lock().proxies.iter().any(|p| !p.is_closed())
    }

    async fn talk(&self, socket: Seqpacket) -> Result<(), TalkError> {
        let mut buffer = [0; 1024];
        let (length, _) = limited(socket.recv(&mut buffer)).await?;
        let hello = ZdsHello::decode(buffer.get(..length).unwrap_or_default())?;
        if hello.version() != Version::V1 {
            return Err(TalkError::Protocol("a version that is not known"));
        }
        let mut synced = self.synced.subscribe();
        if synced.wait_for(|s| *s).await.is_err() {
            return Ok(());
        }
        let (sender, mut commands) = mpsc::channel(QUEUE);
        let snapshot: Vec<String> = {
            let mut state = self.lock();
            state.proxies.push(sender);
            state.pods.keys().cloned().collect()
        };
        tracing::info!(pods = snapshot.len(), "a node proxy connected");
        for uid in snapshot {
            self.add_to(&socket, uid).await?;
        }
        request(&socket, Payload::SnapshotSent(SnapshotSent {}), None)
            .await?
            .map_err(|_| TalkError::Protocol("it refused the snapshot's end"))?;
        loop {
            let command = tokio::select! {
                command = commands.recv() => command,
                // A proxy says nothing by itself: whatever is readable now is its end.
                end = socket.recv(&mut buffer) => {
                    return Err(end.map_or_else(TalkError::Io, |_| TalkError::Closed));
                }
            };
            match command {
                Some(Command::Add(uid)) => self.add_to(&socket, uid).await?,
                Some(Command::Del(uid)) => {
                    if let Err(error) = request(&socket, Payload::Del(DelWorkload { uid }), None).await? {
                        tracing::warn!(error, "the proxy could not let go of a pod");
                    }
                }
                None => return Ok(()),
            }
        }
    }

    async fn add_to(&self, socket: &Seqpacket, uid: String) -> Result<(), TalkError> {
        let Some(served) = self.lock().pods.get(&uid).cloned() else { return Ok(()) };
        let add = AddWorkload { uid: uid.clone(), workload_info: Some(served.info) };
        let answer = request(socket, Payload::Add(add), Some(&served.ns)).await?;
        if self.answers.send((uid, answer)).await.is_err() {
            tracing::debug!("nobody listens to a proxy's answers");
        }
        Ok(())
    }
}

async fn limited<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, TalkError> {
    Ok(tokio::time::timeout(IO_LIMIT, work).await.map_err(|_| TalkError::Timeout)??)
}

/// Sends one request and waits for its answer: the inner result is the proxy's own.
async fn request(socket: &Seqpacket, payload: Payload, ns: Option<&NetNs>) -> Result<Result<(), String>, TalkError> {
    let bytes = WorkloadRequest { payload: Some(payload) }.encode_to_vec();
    limited(socket.send(&bytes, ns.map(|ns| ns.as_fd().as_raw_fd()))).await?;
    let mut buffer = [0; 1024];
    let (length, _) = limited(socket.recv(&mut buffer)).await?;
    if length == 0 {
        return Err(TalkError::Closed);
    }
    let response = WorkloadResponse::decode(buffer.get(..length).unwrap_or_default())?;
    match response.payload {
        Some(workload_response::Payload::Ack(ack)) if ack.error.is_empty() => Ok(Ok(())),
        Some(workload_response::Payload::Ack(ack)) => Ok(Err(ack.error)),
        None => Err(TalkError::Protocol("an empty response")),
    }
}
