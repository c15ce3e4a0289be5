//! The lab's side of the conversation with a node's agent: tells it of pods, hears how they are captured, and tells all again when it restarts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use trysail_base::tasks::Tasks;
use trysail_node::seam::{PodState, Status, ToAgent};

/// Messages that may wait for an agent.
const QUEUE: usize = 1024;
/// Pause before connecting again.
const PAUSE: Duration = Duration::from_millis(50);

/// Sends to one node's agent.
#[derive(Clone)]
pub struct AgentLink(mpsc::Sender<ToAgent>);

impl AgentLink {
    /// Keeps a conversation with the agent at `socket`; what it says goes to `statuses`.
    pub fn open(socket: PathBuf, statuses: mpsc::Sender<Status>, tasks: &Tasks) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tasks.spawn(keep(socket, receiver, statuses));
        Self(sender)
    }

    /// A pod is there, or has changed.
    pub async fn put(&self, state: PodState) {
        self.send(ToAgent::Put(Box::new(state))).await;
    }

    /// A pod has ended.
    pub async fn gone(&self, uid: &str) {
        self.send(ToAgent::Gone { uid: uid.to_owned() }).await;
    }

    async fn send(&self, message: ToAgent) {
        if self.0.send(message).await.is_err() {
            tracing::debug!("the agent's link is closed");
        }
    }
}

async fn keep(socket: PathBuf, mut messages: mpsc::Receiver<ToAgent>, statuses: mpsc::Sender<Status>) {
    let mut pods: BTreeMap<String, PodState> = BTreeMap::new();
    loop {
        if let Ok(stream) = UnixStream::connect(&socket).await {
            if talk(stream, &mut messages, &statuses, &mut pods).await.is_none() {
                return;
            }
            tracing::warn!(socket = %socket.display(), "the node agent is gone; waiting for it");
        }
        // News that comes meanwhile is kept for the next agent.
        let wait = tokio::time::sleep(PAUSE);
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => break,
                message = messages.recv() => match message {
                    Some(message) => note(&mut pods, &message),
                    None => return,
                },
            }
        }
    }
}

fn note(pods: &mut BTreeMap<String, PodState>, message: &ToAgent) {
    match message {
        ToAgent::Put(state) => {
            pods.insert(state.uid.clone(), (**state).clone());
        }
        ToAgent::Gone { uid } => {
            pods.remove(uid);
        }
        ToAgent::Synced => {}
    }
}

/// `None` when the lab itself ends.
async fn talk(
    stream: UnixStream,
    messages: &mut mpsc::Receiver<ToAgent>,
    statuses: &mpsc::Sender<Status>,
    pods: &mut BTreeMap<String, PodState>,
) -> Option<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let known = pods.values().map(|state| ToAgent::Put(Box::new(state.clone())));
    for message in known.chain([ToAgent::Synced]) {
        let line = serde_json::to_string(&message).unwrap_or_default() + "\n";
        if write.write_all(line.as_bytes()).await.is_err() {
            return Some(());
        }
    }
    loop {
        tokio::select! {
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return Some(()) };
                match serde_json::from_str::<Status>(&line) {
                    Ok(status) => statuses.send(status).await.ok()?,
                    Err(error) => tracing::error!(%error, line, "the agent said something that cannot be read"),
                }
            }
            message = messages.recv() => {
                let message = message?;
                note(pods, &message);
                let line = serde_json::to_string(&message).unwrap_or_default() + "\n";
                if write.write_all(line.as_bytes()).await.is_err() {
                    return Some(());
                }
            }
        }
    }
}
