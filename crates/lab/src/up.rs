//! The life of a lab: `lab up` starts this binary again in stages, each in a deeper namespace; the last one is the lab.
//!
//! supervise: new user, mount, network and process namespaces. init: first process of the new process namespace, reaps orphans; when it
//! ends the kernel ends all others. run: builds the world and serves the socket.

use crate::agent_link::AgentLink;
use crate::api::{self, Answer, Manifest, Request};
use crate::cluster::{Cluster, NodeLink, NodeRules, Parts};
use crate::images::{ImageError, Images};
use crate::store::Store;
use crate::system::{self, SystemError};
use crate::world::{self, Node, WorldError};
use crate::{dns, server};
use nix::sys::wait::{WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use trysail_base::tasks::Tasks;
use trysail_netns::nft::{self, NftError};
use trysail_netns::ns::NetNs;
use trysail_netns::user_ns::{self, IsolateError};

/// What a lab is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Name; several labs can run side by side.
    pub name: String,
    /// Nodes.
    pub nodes: u8,
    /// Further images, `NAME=COMMAND`.
    pub images: Vec<String>,
    /// Ends with the process that started it.
    pub owned: bool,
    /// Life of certificates, seconds.
    pub cert_ttl: u64,
    /// Log filter of the mesh's processes.
    pub log: String,
    /// Another node proxy to run.
    pub l4_proxy: Option<PathBuf>,
    /// How NetworkPolicies act on pods of the mesh.
    pub network_policy: NetworkPolicyMode,
}

/// How NetworkPolicies act on pods of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NetworkPolicyMode {
    /// As they are: tunnels stay open, and what is inside them is judged.
    #[default]
    Trysail,
    /// As with Istio: the tunnel's port alone is judged.
    Istio,
}

/// Why a lab cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// There is one of the same name.
    #[error(
        "a lab named {0:?} is running already\n  help: end it with `trysail lab down --name {0}`, or give this one another name with --name"
    )]
    Running(String),
    /// It ended before it was ready.
    #[error("the lab did not start: {0}")]
    Start(String),
    /// This process.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Options.
    #[error("{0}\n  help: {cure}", cure = .0.cure())]
    Image(ImageError),
    /// Options.
    #[error("--nodes must be between 1 and {}", world::MAX_NODES)]
    Nodes,
    /// nft.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Namespaces.
    #[error(transparent)]
    Isolate(#[from] IsolateError),
    /// The network.
    #[error("the lab's network cannot be built")]
    World(#[from] WorldError),
    /// The mesh.
    #[error("the mesh's processes cannot be started")]
    System(#[from] SystemError),
    /// The lab does not answer.
    #[error(transparent)]
    Ask(#[from] api::AskError),
    /// A stage was called by hand.
    #[error("this command is for the lab's own use")]
    Stage,
}

impl From<ImageError> for UpError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

/// A running lab that was started from here.
pub struct Started {
    child: std::process::Child,
}

impl Started {
    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// Checks manifests as a lab with `options` would, without starting one: what must be said of them.
pub fn check(options: &Options, manifests: &[Manifest]) -> Result<trysail_api::load::Load, UpError> {
    let images = Images::new(&options.images, std::env::current_exe()?)?;
    let mut all = trysail_api::load::Load::default();
    for manifest in manifests {
        all.merge(trysail_api::load::load(&manifest.file, &manifest.text));
    }
    let found: Vec<_> = all.objects.iter().flat_map(|l| crate::support::check(l, &images)).collect();
    all.diagnostics.extend(found);
    Ok(all)
}

/// Starts a lab and returns when its mesh is ready for objects.
pub fn start(options: &Options) -> Result<Started, UpError> {
    if options.nodes == 0 || options.nodes > world::MAX_NODES {
        return Err(UpError::Nodes);
    }
    nft::available()?;
    let listener = match StdListener::bind_addr(&api::address(&options.name)?) {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(UpError::Running(options.name.clone())),
        Err(error) => return Err(error.into()),
    };
    let mut child = stage("supervise", options)?.stdin(OwnedFd::from(listener)).stdout(Stdio::piped()).spawn()?;
    let mut first = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut first)?;
    }
    match first.trim_end() {
        "ready" => Ok(Started { child }),
        "" => {
            child.wait()?;
            Err(UpError::Start("it ended without a word; its messages are above".to_owned()))
        }
        said => {
            child.wait()?;
            // A message of several lines is passed on one.
            Err(UpError::Start(said.replace("\\n", "\n")))
        }
    }
}

fn stage(name: &str, options: &Options) -> io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0_trysail().args(["lab-stage", name, &serde_json::to_string(options)?]);
    Ok(command)
}

trait Arg0 {
    fn arg0_trysail(&mut self) -> &mut Self;
}

impl Arg0 for Command {
    fn arg0_trysail(&mut self) -> &mut Self {
        use std::os::unix::process::CommandExt;
        self.arg0("trysail")
    }
}

/// Enters a stage. `supervise` and `init` must be called while the process has one thread.
pub fn enter(name: &str, options: &str) -> Result<i32, UpError> {
    let parsed: Options = serde_json::from_str(options).map_err(|_| UpError::Stage)?;
    let result = match name {
        "supervise" => supervise(&parsed),
        "init" => init(&parsed),
        "run" => run(parsed),
        _ => return Err(UpError::Stage),
    };
    if let Err(error) = &result {
        // Whoever waits for "ready" is told instead.
        let text = trysail_base::log::chain(error);
        println!("{}", text.replace('\n', "\\n"));
        return Ok(1);
    }
    result
}

fn supervise(options: &Options) -> Result<i32, UpError> {
    if options.owned {
        user_ns::die_with_parent()?;
    } else if let Err(error) = nix::unistd::setsid() {
        tracing::debug!(%error, "no session of its own");
    }
    user_ns::isolate()?;
    let status = stage("init", options)?.status()?;
    Ok(status.code().unwrap_or(1))
}

fn init(options: &Options) -> Result<i32, UpError> {
    user_ns::die_with_parent()?;
    user_ns::private_mounts(&system::scratch())?;
    let child = stage("run", options)?.spawn()?;
    let own = i32::try_from(child.id()).map_err(io::Error::other)?;
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid.as_raw() == own => return Ok(code),
            Ok(WaitStatus::Signaled(pid, ..)) if pid.as_raw() == own => return Ok(1),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}

fn run(options: Options) -> Result<i32, UpError> {
    user_ns::die_with_parent()?;
    let listener = StdListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    let log = std::fs::File::create(system::scratch().join("lab.log"))?;
    nix::unistd::dup2_stderr(&log).map_err(io::Error::from)?;
    trysail_base::log::init("info");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(lab(options, listener))?;
    Ok(0)
}

async fn lab(options: Options, listener: StdListener) -> Result<(), UpError> {
    let tasks = Tasks::default();
    let scratch = system::scratch();
    let own = std::fs::read_link("/proc/self/exe")?;
    let images = Arc::new(Images::new(&options.images, own.clone())?);
    let store = Store::new(scratch.join("objects"))?;
    let nodes = tokio::task::spawn_blocking(move || {
        world::build_fabric()?;
        (1..=options.nodes)
            .map(|n| world::build_node(n, options.nodes, &system::scratch()))
            .collect::<Result<Vec<Node>, _>>()
    });
    let nodes = nodes.await.map_err(io::Error::other)??;
    let system_options = system::Options {
        own,
        cert_ttl: options.cert_ttl,
        log: options.log,
        l4_proxy: options.l4_proxy,
        inner_gate: options.network_policy == NetworkPolicyMode::Trysail,
    };
    let companions = system_options.inner_gate;
    let system = system::start(&system_options, &nodes, store.dir(), &tasks)?;
    let proxy_env = system::proxy_env(&system_options);
    let (statuses, captured) = mpsc::channel(1024);
    let (names, published) = watch::channel(Arc::default());
    let mut links = Vec::new();
    for node in &nodes {
        let agent = AgentLink::open(system::agent_socket(&node.dir), statuses.clone(), &tasks);
        let (udp, tcp) = node.resolver_sockets()?;
        dns::serve(
            tokio::net::UdpSocket::from_std(udp)?,
            tokio::net::TcpListener::from_std(tcp)?,
            published.clone(),
            &tasks,
        );
        let (rules, wanted) = watch::channel(NodeRules::default());
        let (known, gated) = watch::channel(Arc::default());
        tasks.spawn(apply_rules(node.ns.clone(), wanted, known));
        links.push(NodeLink { agent, rules, gated });
    }
    let (cluster, pod_events) =
        Cluster::new(Parts { store, images, nodes, links, system, proxy_env, companions, names, tasks: tasks.clone() });
    let (inputs, receiver) = mpsc::channel(256);
    let (down, mut ended) = watch::channel(false);
    server::serve(tokio::net::UnixListener::from_std(listener)?, inputs, cluster.changes(), down, &tasks);
    tasks.spawn(cluster.run(receiver, pod_events, captured));
    println!("ready");
    io::stdout().flush()?;
    tokio::select! {
        _ = ended.wait_for(|down| *down) => {}
        () = trysail_base::tasks::terminated() => {}
    }
    // A moment for the answer to `down`; everything else ends with the namespaces.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    Ok(())
}

/// Keeps a node's rules; only the newest matter. `known`: the pods that those in effect know.
async fn apply_rules(ns: NetNs, mut wanted: watch::Receiver<NodeRules>, known: watch::Sender<Arc<BTreeSet<String>>>) {
    let mut before = NodeRules::default();
    while wanted.changed().await.is_ok() {
        let rules = wanted.borrow_and_update().clone();
        let mut text = String::new();
        for (new, old) in [(&rules.services, &before.services), (&rules.policies, &before.policies)] {
            if new != old {
                text.push_str(new);
            }
        }
        let inner = ns.clone();
        let applied = match text.is_empty() {
            true => Ok(Ok(())),
            false => tokio::task::spawn_blocking(move || nft::apply(&inner, text)).await,
        };
        match applied {
            Ok(Ok(())) => {
                known.send_replace(rules.pods.clone());
                before = rules;
            }
            Ok(Err(error)) => tracing::error!(%error, "a node's rules could not be applied; new pods wait for them"),
            Err(error) => tracing::error!(%error, "a node's rules were not applied; new pods wait for them"),
        }
    }
}

/// Applies manifests to a lab and waits until everything is ready.
pub fn fill(name: &str, manifests: Vec<Manifest>, timeout_s: u64) -> Result<Answer, UpError> {
    let applied = api::ask(name, &Request::Apply { manifests, namespace: "default".to_owned() }, &[])?;
    if applied.code != 0 {
        return Ok(applied);
    }
    let mut ready = api::ask(name, &Request::WaitReady { timeout_s }, &[])?;
    let mut errors = applied.errors;
    errors.append(&mut ready.errors);
    ready.errors = errors;
    Ok(ready)
}
