//! The agent as a process: pods in, captures and statuses out.

use crate::enrol;
use crate::redirect;
use crate::seam::{PodState, Redirection, Status, ToAgent};
use crate::zds_server::{Answer, Served, ZdsServer};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use trysail_base::settings::Reader;
use trysail_base::tasks::{Tasks, terminated};
use trysail_netns::nft::{self, NftError};
use trysail_netns::ns::{NetNs, NsError};
use trysail_wire::zds::WorkloadInfo;

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Node it serves.
    pub node: String,
    /// Socket on which pods are told.
    pub pods_socket: PathBuf,
    /// Socket for node proxies.
    pub zds_socket: PathBuf,
    /// Log filter.
    pub log: String,
}

impl Settings {
    /// Reads the section.
    pub fn read(r: &mut Reader<'_>) -> Self {
        Self {
            node: r.required("NODE_NAME"),
            pods_socket: r.text("AGENT_SOCKET", "/var/run/trysail/agent.sock").into(),
            zds_socket: r.text("INPOD_UDS", "/var/run/ztunnel/ztunnel.sock").into(),
            log: r.text("RUST_LOG", "info"),
        }
    }
}

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A socket.
    #[error("cannot listen on {0}")]
    Listen(PathBuf, #[source] std::io::Error),
    /// The node's own rules.
    #[error("the node's rules cannot be applied")]
    Rules(#[from] NftError),
    /// The own namespace.
    #[error("the node's namespace cannot be opened")]
    Ns(#[from] NsError),
}

/// How often a pod that is not captured as it should be is tried again.
const RETRY: Duration = Duration::from_secs(5);

struct Known {
    state: PodState,
    ns: NetNs,
    captured: bool,
    redirection: Redirection,
}

struct Agent {
    home: NetNs,
    zds: Arc<ZdsServer>,
    pods: BTreeMap<String, Known>,
}

/// Runs until SIGTERM. Captured pods stay captured: their rules are in their own namespaces.
pub async fn run(settings: Settings) -> Result<(), AgentError> {
    let tasks = Tasks::default();
    let home = NetNs::current()?;
    let (zds, answers) = ZdsServer::listen(&settings.zds_socket, &tasks)
        .map_err(|e| AgentError::Listen(settings.zds_socket.clone(), e))?;
    nft::apply(&home, redirect::node(&[]))?;
    if let Err(error) = std::fs::remove_file(&settings.pods_socket)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(AgentError::Listen(settings.pods_socket, error));
    }
    let listener =
        UnixListener::bind(&settings.pods_socket).map_err(|e| AgentError::Listen(settings.pods_socket.clone(), e))?;
    tracing::info!(node = settings.node, "node agent serves");
    let agent = Agent { home, zds, pods: BTreeMap::new() };
    tokio::select! {
        () = agent.serve(listener, answers) => {}
        () = terminated() => {}
    }
    Ok(())
}

impl Agent {
    /// One source of pods at a time; a new one replaces the old.
    async fn serve(mut self, listener: UnixListener, mut answers: mpsc::Receiver<Answer>) {
        let mut retry = tokio::time::interval(RETRY);
        let mut source: Option<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)> = None;
        loop {
            let line = async {
                match &mut source {
                    Some((lines, _)) => lines.next_line().await.ok().flatten(),
                    None => std::future::pending().await,
                }
            };
            let statuses = tokio::select! {
                accepted = listener.accept() => {
                    source = accepted.ok().map(|(stream, _)| split(stream));
                    Vec::new()
                }
                line = line => match line.map(|text| serde_json::from_str::<ToAgent>(&text)) {
                    Some(Ok(message)) => self.message(message),
                    Some(Err(error)) => {
                        tracing::error!(%error, "a message cannot be read and is ignored");
                        Vec::new()
                    }
                    None => {
                        tracing::warn!("the source of pods is gone; captured pods stay captured");
                        source = None;
                        Vec::new()
                    }
                },
                _ = retry.tick() => self.retry(),
                Some((uid, answer)) = answers.recv() => self.answered(&uid, answer).into_iter().collect(),
            };
            for status in statuses {
                let Some((_, write)) = &mut source else { break };
                let line = serde_json::to_string(&status).unwrap_or_default() + "\n";
                if write.write_all(line.as_bytes()).await.is_err() {
                    source = None;
                }
            }
        }
    }

    fn message(&mut self, message: ToAgent) -> Vec<Status> {
        match message {
            ToAgent::Put(state) => vec![self.put(*state)],
            ToAgent::Gone { uid } => {
                self.zds.remove(&uid);
                if self.pods.remove(&uid).is_some_and(|known| known.captured || known.state.sidecar) {
                    self.node_rules();
                }
                Vec::new()
            }
            ToAgent::Synced => {
                self.zds.synced();
                Vec::new()
            }
        }
    }

    /// Tries again what is not as it should be.
    fn retry(&mut self) -> Vec<Status> {
        let wrong = |k: &&Known| k.state.wants_capture() && k.redirection != Redirection::Enabled;
        let states: Vec<PodState> = self.pods.values().filter(wrong).map(|k| k.state.clone()).collect();
        states.into_iter().map(|state| self.put(state)).collect()
    }

    fn put(&mut self, state: PodState) -> Status {
        let uid = state.uid.clone();
        let (redirection, error) = match self.reconcile(state) {
            Ok(redirection) => (redirection, None),
            // Not captured although it should be, or the other way round: said aloud, and tried again with the next news.
            Err(error) => (Redirection::Pending, Some(error)),
        };
        if let Some(known) = self.pods.get_mut(&uid) {
            known.redirection = redirection;
        }
        Status { uid, redirection, error }
    }

    fn reconcile(&mut self, state: PodState) -> Result<Redirection, String> {
        let uid = state.uid.clone();
        let ns = match self.pods.get(&uid) {
            Some(known) => known.ns.clone(),
            None => NetNs::open(&state.netns).map_err(|e| e.to_string())?,
        };
        let (wanted, starting, first) = (state.wants_capture(), state.starting, !self.pods.contains_key(&uid));
        let known = self.pods.entry(uid.clone()).or_insert_with(|| Known {
            state: state.clone(),
            ns: ns.clone(),
            captured: false,
            redirection: Redirection::None,
        });
        known.state = state;
        match (known.captured, wanted) {
            (true, true) if known.redirection == Redirection::Enabled => Ok(Redirection::Enabled),
            (true, true) => self.capture(&uid, &ns),
            (false, false) if known.state.sidecar => {
                // The rules come before any process of the pod, and stay as long as it does.
                if first && starting {
                    enrol::sidecar(&ns).map_err(|e| e.to_string())?;
                }
                self.node_rules();
                Ok(Redirection::None)
            }
            (false, false) => {
                // The proxy may have been told, and an agent before this one may have captured it.
                self.zds.remove(&uid);
                if first && !starting {
                    enrol::release(&ns).map_err(|e| e.to_string())?;
                }
                Ok(Redirection::None)
            }
            (false, true) => self.capture(&uid, &ns),
            (true, false) => {
                enrol::release(&ns).map_err(|e| e.to_string())?;
                known.captured = false;
                self.node_rules();
                self.zds.remove(&uid);
                tracing::info!(uid, "pod released");
                Ok(Redirection::None)
            }
        }
    }

    /// A pod that has not started is captured first, so that nothing of it ever leaves uncaptured; one that runs is served first, so
    /// that none of its connections meets a closed door.
    fn capture(&mut self, uid: &str, ns: &NetNs) -> Result<Redirection, String> {
        let Some(known) = self.pods.get_mut(uid) else { return Ok(Redirection::None) };
        let info = WorkloadInfo {
            name: known.state.name.clone(),
            namespace: known.state.namespace.clone(),
            service_account: known.state.service_account.clone(),
        };
        if !known.captured && (known.state.starting || !self.zds.has_proxy()) {
            enrol::capture(ns).map_err(|e| e.to_string())?;
            known.captured = true;
            self.node_rules();
        }
        self.zds.add(uid, Served { info, ns: ns.clone() });
        Ok(Redirection::Pending)
    }

    /// The proxy's answer to an add.
    fn answered(&mut self, uid: &str, answer: Result<(), String>) -> Option<Status> {
        let known = self.pods.get_mut(uid)?;
        if !known.state.wants_capture() {
            return None;
        }
        let mut error = answer.err();
        // A pod that runs goes on as it was while the proxy cannot serve it; one that was captured before stays shut.
        if !known.captured && error.is_none() {
            match enrol::capture(&known.ns) {
                Ok(()) => known.captured = true,
                Err(failed) => error = Some(failed.to_string()),
            }
        }
        known.redirection = if error.is_none() { Redirection::Enabled } else { Redirection::Pending };
        let status = Status { uid: uid.to_owned(), redirection: known.redirection, error };
        tracing::info!(uid, redirection = ?status.redirection, error = status.error, "pod answered for");
        self.node_rules();
        Some(status)
    }

    fn node_rules(&self) {
        let captured: Vec<IpAddr> =
            self.pods.values().filter(|k| k.captured || k.state.sidecar).map(|k| k.state.address).collect();
        if let Err(error) = nft::apply(&self.home, redirect::node(&captured)) {
            tracing::error!(%error, "the node's rules could not be changed: probes of captured pods may fail");
        }
    }
}

fn split(stream: UnixStream) -> (Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf) {
    let (read, write) = stream.into_split();
    (BufReader::new(read).lines(), write)
}
