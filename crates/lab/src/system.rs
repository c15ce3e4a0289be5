//! The mesh's own processes and their credentials.

use crate::supervise::Process;
use crate::world::{CONTROL, Node};
use crate::{CLUSTER_ID, PROXY_ACCOUNT, SYSTEM_NAMESPACE};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use trysail_base::tasks::Tasks;
use trysail_identity::ca::{Authority, CaError};
use trysail_identity::token::{Bound, Named, Signer, TokenError};
use trysail_netns::ns::{NetNs, NsError};

/// How long a node's token is valid, and how often it is made anew.
pub const TOKEN_TTL: Duration = Duration::from_secs(12 * 3600);
const TOKEN_RENEWAL: Duration = Duration::from_secs(3600);

/// The folder of the lab's own files: an empty file system of its own, over a folder that every system has.
pub fn scratch() -> PathBuf {
    let places = ["/mnt", "/media", "/srv", "/opt"];
    places.iter().map(Path::new).find(|p| p.is_dir()).unwrap_or(Path::new("/mnt")).to_owned()
}

/// Port of discovery and certificates.
pub const DISCOVERY: u16 = 15012;

/// How the mesh's processes run.
#[derive(Clone, Debug)]
pub struct Options {
    /// This binary.
    pub own: PathBuf,
    /// Life of certificates, seconds.
    pub cert_ttl: u64,
    /// Log filter of the mesh's processes.
    pub log: String,
    /// Another node proxy that speaks the same protocols, to be run instead of this binary's own.
    pub l4_proxy: Option<PathBuf>,
    /// Judge what is inside tunnels by NetworkPolicies.
    pub inner_gate: bool,
}

/// What proxies are told of NetworkPolicies.
fn network_policy(options: &Options) -> &'static str {
    if options.inner_gate { "trysail" } else { "istio" }
}

/// Why the mesh's processes cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// Keys.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// Tokens.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Files.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Namespaces.
    #[error(transparent)]
    Ns(#[from] NsError),
}

/// The mesh as the lab knows it.
pub struct System {
    /// Its processes.
    pub processes: Vec<Process>,
    /// Signs service account tokens.
    pub signer: Arc<Signer>,
    /// The root certificate, PEM.
    pub root: String,
}

/// Environment of every proxy that runs in a pod.
pub fn proxy_env(options: &Options) -> Vec<(String, String)> {
    let control = format!("https://{CONTROL}:{DISCOVERY}");
    [
        ("XDS_ADDRESS", control.clone()),
        ("CA_ADDRESS", control),
        ("ISTIO_META_CLUSTER_ID", CLUSTER_ID.to_owned()),
        ("SECRET_TTL_SECONDS", options.cert_ttl.to_string()),
        ("RUST_LOG", options.log.clone()),
        ("NETWORK_POLICY", network_policy(options).to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}

/// Starts the control plane, and an agent and a proxy on each node.
pub fn start(options: &Options, nodes: &[Node], objects: &Path, tasks: &Tasks) -> Result<System, SystemError> {
    let scratch = scratch();
    let (ca, key) = (scratch.join("ca"), scratch.join("token-key.pem"));
    Authority::load_or_create(&ca, trysail_api::ids::DEFAULT_TRUST_DOMAIN)?;
    let signer = Arc::new(Signer::generate()?);
    std::fs::write(&key, signer.public_pem())?;
    for node in nodes {
        write_token(&signer, node.name.clone(), &node.dir)?;
    }
    let renewed: Vec<(String, PathBuf)> = nodes.iter().map(|n| (n.name.clone(), n.dir.clone())).collect();
    let renewing = signer.clone();
    tasks.spawn(async move {
        loop {
            tokio::time::sleep(TOKEN_RENEWAL).await;
            for (name, dir) in &renewed {
                if let Err(error) = write_token(&renewing, name.clone(), dir) {
                    tracing::error!(%error, node = name, "a node's token could not be renewed");
                }
            }
        }
    });
    let home = NetNs::current()?;
    let (own, objects, ttl, log) = (options.own.clone(), objects.to_owned(), options.cert_ttl, options.log.clone());
    let (control_ca, control_key) = (ca.clone(), key);
    let mut processes = vec![Process::start(
        ("control", "control"),
        home,
        move || {
            let mut command = role(&own, "control", &log);
            command.arg("--files").arg(&objects).arg("--ca-dir").arg(&control_ca).arg("--token-key").arg(&control_key);
            command.args(["--listen", &format!("{CONTROL}:{DISCOVERY}"), "--admin", &format!("{CONTROL}:15014")]);
            command.args(["--cluster", CLUSTER_ID, "--cert-ttl", &ttl.to_string()]);
            command.args(["--node-account", &format!("{SYSTEM_NAMESPACE}/{PROXY_ACCOUNT}")]);
            command
        },
        tasks,
    )];
    for node in nodes {
        let roles = [("agent", "agent"), ("proxy", "node proxy")];
        for (name, accounted) in roles {
            let setup = NodeRole::new(options, node, &ca);
            let full = format!("{name}-{}", node.name);
            processes.push(Process::start((&full, accounted), node.ns.clone(), move || setup.command(name), tasks));
        }
    }
    let root = std::fs::read_to_string(ca.join("root-cert.pem"))?;
    Ok(System { processes, signer, root })
}

fn role(own: &Path, name: &str, log: &str) -> Command {
    let mut command = Command::new(own);
    command.arg(name).env_clear().env("RUST_LOG", log).env("PATH", crate::images::PATH).process_group(0);
    command
}

struct NodeRole {
    options: Options,
    node: String,
    address: String,
    dir: PathBuf,
    root: PathBuf,
}

impl NodeRole {
    fn new(options: &Options, node: &Node, ca: &Path) -> Self {
        Self {
            options: options.clone(),
            node: node.name.clone(),
            address: node.address.to_string(),
            dir: node.dir.clone(),
            root: ca.join("root-cert.pem"),
        }
    }

    fn command(&self, name: &str) -> Command {
        let o = &self.options;
        let mut command = match (&o.l4_proxy, name) {
            (Some(other), "proxy") => {
                let mut command = Command::new(other);
                command.arg("proxy").env_clear().env("RUST_LOG", &o.log).process_group(0);
                command
            }
            (None, "proxy") => role(&o.own, "node-proxy", &o.log),
            _ => role(&o.own, "agent", &o.log),
        };
        let control = format!("https://{CONTROL}:{DISCOVERY}");
        command
            .env("NODE_NAME", &self.node)
            .env("POD_NAME", format!("node-proxy-{}", self.node))
            .env("POD_NAMESPACE", SYSTEM_NAMESPACE)
            .env("SERVICE_ACCOUNT", PROXY_ACCOUNT)
            .env("INSTANCE_IP", &self.address)
            .env("ISTIO_META_CLUSTER_ID", CLUSTER_ID)
            .env("XDS_ADDRESS", &control)
            .env("CA_ADDRESS", &control)
            .env("CA_ROOT_CA", &self.root)
            .env("XDS_ROOT_CA", &self.root)
            .env("AUTH_TOKEN", self.dir.join("token"))
            .env("INPOD_UDS", self.dir.join("zds.sock"))
            .env("AGENT_SOCKET", agent_socket(&self.dir))
            .env("NETWORK_POLICY", network_policy(o))
            .env("TERMINATION_GRACE_PERIOD_SECONDS", "5")
            .env("SECRET_TTL_SECONDS", o.cert_ttl.to_string());
        command
    }
}

/// The agent's socket in a node's folder.
pub fn agent_socket(node: &Path) -> PathBuf {
    node.join("agent.sock")
}

fn write_token(signer: &Signer, node: String, dir: &Path) -> Result<(), SystemError> {
    let named = |name: String| Named { uid: name.clone(), name };
    let bound = Bound {
        namespace: SYSTEM_NAMESPACE.to_owned(),
        service_account: named(PROXY_ACCOUNT.to_owned()),
        pod: named(format!("node-proxy-{node}")),
        node: named(node),
    };
    let token = signer.sign(&bound, TOKEN_TTL)?;
    let temporary = dir.join(".token");
    std::fs::write(&temporary, token)?;
    Ok(std::fs::rename(temporary, dir.join("token"))?)
}
