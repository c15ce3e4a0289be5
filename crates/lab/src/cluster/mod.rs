//! The lab's state and the one task that changes it: requests, news of pods and captures come in; pods, rules, names and files go out.

mod gateways;
mod jobs;
mod logs;
mod netpol;
mod packages;
mod reconcile;
mod requests;
mod status;

use crate::agent_link::AgentLink;
use crate::api::{Answer, Request};
use crate::dns::Names;
use crate::images::Images;
use crate::kubelet::PodView;
use crate::kubelet::context::Context;
use crate::spawn::Output;
use crate::store::Store;
use crate::supervise::Process;
use crate::system::System;
use crate::world::Node;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use trysail_api::object::{Object, ObjectKey};
use trysail_base::tasks::Tasks;
use trysail_identity::token::Signer;
use trysail_node::seam::Status;

/// Notes kept of one object.
const NOTES: usize = 20;

/// A pod that runs, or is on its way.
pub struct Running {
    key: ObjectKey,
    node: usize,
    address: Ipv4Addr,
    view: PodView,
    outputs: BTreeMap<String, Output>,
    context: Arc<OnceLock<Arc<Context>>>,
    stop: watch::Sender<Option<Instant>>,
    capture: watch::Sender<Option<Status>>,
    /// What the agent was told last.
    told: Option<trysail_node::seam::PodState>,
}

/// What a node needs to be told.
pub struct NodeLink {
    /// Its agent.
    pub agent: AgentLink,
    /// Its rules.
    pub rules: watch::Sender<NodeRules>,
    /// Pods that the rules in effect know.
    pub gated: watch::Receiver<Arc<BTreeSet<String>>>,
}

/// The rules of a node, put in effect together.
#[derive(Clone, Debug, Default)]
pub struct NodeRules {
    /// For services.
    pub services: String,
    /// For NetworkPolicies.
    pub policies: String,
    /// Its pods, by uid, that these rules know.
    pub pods: Arc<BTreeSet<String>>,
}

/// Everything.
pub struct Cluster {
    store: Store,
    images: Arc<Images>,
    nodes: Vec<Node>,
    links: Vec<NodeLink>,
    pods: BTreeMap<String, Running>,
    /// What is left of pods that are gone.
    past: logs::Past,
    processes: Vec<Process>,
    signer: Arc<Signer>,
    /// The mesh's root certificate, PEM.
    root: String,
    /// Environment of proxies in pods.
    proxy_env: Vec<(String, String)>,
    names: watch::Sender<Arc<Names>>,
    notes: BTreeMap<ObjectKey, VecDeque<String>>,
    next_vip: u16,
    /// What the statuses of all objects follow from, as it was when they were told.
    settled: u64,
    /// What Packages were seen through, as it was when they were looked at.
    packaged: u64,
    /// What the packet gates were made of.
    gated: Option<netpol::Seen>,
    /// Whether tunnels stay open where a NetworkPolicy isolates a pod of the mesh.
    companions: bool,
    pod_events: mpsc::Sender<(String, PodView)>,
    /// Counts changes; requests that wait look again at each.
    changed: watch::Sender<u64>,
    tasks: Tasks,
}

/// A request with the place for its answer.
pub type Asked = (Request, oneshot::Sender<Answer>);

/// What exec needs.
pub struct ExecTarget {
    /// The pod.
    pub context: Arc<Context>,
    /// The container's process.
    pub pid: u32,
    /// Index of the container in the spec.
    pub container: usize,
}

/// What is sent to the task besides requests.
pub enum Input {
    /// A request.
    Ask(Asked),
    /// Asks for a container to run something in.
    Find(crate::api::Target, oneshot::Sender<Result<ExecTarget, String>>),
}

/// The parts that the task is made of.
pub struct Parts {
    /// Objects.
    pub store: Store,
    /// Images.
    pub images: Arc<Images>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Links to them, in the same order.
    pub links: Vec<NodeLink>,
    /// The mesh.
    pub system: System,
    /// Environment of proxies in pods.
    pub proxy_env: Vec<(String, String)>,
    /// Whether tunnels stay open where a NetworkPolicy isolates a pod of the mesh.
    pub companions: bool,
    /// Names for the resolvers.
    pub names: watch::Sender<Arc<Names>>,
    /// All tasks.
    pub tasks: Tasks,
}

impl Cluster {
    /// The task's state; the receiver hears of pods.
    pub fn new(parts: Parts) -> (Self, mpsc::Receiver<(String, PodView)>) {
        let (pod_events, receiver) = mpsc::channel(1024);
        let cluster = Self {
            store: parts.store,
            images: parts.images,
            nodes: parts.nodes,
            links: parts.links,
            pods: BTreeMap::new(),
            past: logs::Past::default(),
            processes: parts.system.processes,
            signer: parts.system.signer,
            root: parts.system.root,
            proxy_env: parts.proxy_env,
            names: parts.names,
            notes: BTreeMap::new(),
            settled: 0,
            packaged: 0,
            gated: None,
            companions: parts.companions,
            next_vip: 20,
            pod_events,
            changed: watch::channel(0).0,
            tasks: parts.tasks,
        };
        (cluster, receiver)
    }

    /// A receiver that hears of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Runs until the inputs end.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut pods: mpsc::Receiver<(String, PodView)>,
        mut statuses: mpsc::Receiver<Status>,
    ) {
        for namespace in ["default", "kube-system", crate::SYSTEM_NAMESPACE] {
            self.ensure_namespace(namespace);
        }
        loop {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(Input::Ask((Request::System { action, name }, reply))) => {
                        // Stopping a process takes as long as it drains; pods and their peers are not to wait for that.
                        let processes = self.processes.clone();
                        self.tasks.track(async move {
                            if reply.send(requests::system(&processes, &action, &name).await).is_err() {
                                tracing::debug!("whoever asked is gone");
                            }
                        });
                        continue;
                    }
                    Some(Input::Ask((request, reply))) => {
                        let reads = request.only_reads();
                        let answer = self.request(request).await;
                        if reply.send(answer).is_err() {
                            tracing::debug!("whoever asked is gone");
                        }
                        if reads {
                            continue;
                        }
                    }
                    Some(Input::Find(target, reply)) => {
                        if reply.send(self.exec_target(&target)).is_err() {
                            tracing::debug!("whoever asked is gone");
                        }
                    }
                    None => return,
                },
                Some((uid, view)) = pods.recv() => self.pod_changed(&uid, view).await,
                Some(status) = statuses.recv() => self.capture_changed(status).await,
            }
            self.reconcile().await;
            self.changed.send_modify(|n| *n += 1);
        }
    }

    fn note(&mut self, key: &ObjectKey, text: &str) {
        let notes = self.notes.entry(key.clone()).or_default();
        let line = format!("{}  {text}", crate::store::now().0);
        if notes.back().is_none_or(|last| !last.ends_with(text)) {
            notes.push_back(line);
        }
        if notes.len() > NOTES {
            notes.pop_front();
        }
    }

    /// Puts an object in; a failure to write it is the user's to know.
    fn put(&mut self, object: Object) -> Option<ObjectKey> {
        match self.store.put(object) {
            Ok(key) => Some(key),
            Err(error) => {
                tracing::error!(%error, "an object could not be written");
                None
            }
        }
    }

    fn pod_uid(&self, key: &ObjectKey) -> Option<String> {
        self.store.get(key).and_then(|o| o.meta().uid.clone())
    }
}
