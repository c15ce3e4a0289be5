//! What the command line asks of a running lab, over a unix socket in the abstract namespace. One request a connection: a length,
//! the request as JSON, and the answer likewise. Exec passes its streams as descriptors beside the length.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use trysail_api::object::Kind;

/// A file's name and text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// For messages.
    pub file: String,
    /// YAML.
    pub text: String,
}

/// Which objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Which {
    /// Kind.
    pub kind: Kind,
    /// Namespace; all when none.
    pub namespace: Option<String>,
    /// Names; all when empty.
    #[serde(default)]
    pub names: Vec<String>,
    /// Labels that must match.
    #[serde(default)]
    pub selector: BTreeMap<String, String>,
}

/// A container of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Namespace.
    pub namespace: String,
    /// Pod, or `deployment/name` for any of its pods.
    pub pod: String,
    /// Container; the first when none.
    pub container: Option<String>,
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the verbs and flags are kubectl's")]
pub enum Request {
    Apply {
        manifests: Vec<Manifest>,
        namespace: String,
    },
    DeleteManifests {
        manifests: Vec<Manifest>,
        namespace: String,
    },
    Delete {
        which: Which,
        grace: Option<u64>,
    },
    Get(Which),
    Describe(Which),
    Label {
        which: Which,
        changes: BTreeMap<String, Option<String>>,
        overwrite: bool,
    },
    RolloutRestart {
        namespace: String,
        name: String,
    },
    RolloutStatus {
        namespace: String,
        name: String,
        timeout_s: u64,
    },
    Logs {
        target: Target,
        offset: u64,
    },
    /// Output of every container of a namespace, also of pods that are gone: of those from number `since` on.
    AllLogs {
        namespace: String,
        since: u64,
    },
    Exec {
        target: Target,
        command: Vec<String>,
    },
    /// Waits until every Deployment is rolled out and every pod is ready.
    WaitReady {
        timeout_s: u64,
    },
    /// The mesh's own processes: `list`, `stop`, `start`, `restart`, `logs`.
    System {
        action: String,
        name: String,
    },
    Account,
    /// Starts a capture on the fabric that looks for a marker.
    CaptureStart {
        marker: String,
    },
    /// Ends it: what was seen.
    CaptureStop,
    /// An HTTP GET from a node to itself, e.g. port 15000 for its proxy's state.
    NodeGet {
        node: String,
        port: u16,
        path: String,
    },
    /// An HTTP GET from a pod to itself, e.g. port 15020 for its proxy's metrics.
    PodGet {
        namespace: String,
        pod: String,
        port: u16,
        path: String,
    },
    Down,
}

impl Request {
    /// Whether nothing changes by it.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Get(_)
                | Self::Describe(_)
                | Self::RolloutStatus { .. }
                | Self::WaitReady { .. }
                | Self::Logs { .. }
                | Self::AllLogs { .. }
                | Self::Account
                | Self::NodeGet { .. }
        )
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Exit code of the command line.
    pub code: i32,
    /// For the terminal's standard error.
    #[serde(default)]
    pub errors: Vec<String>,
    /// What was asked for.
    #[serde(default)]
    pub value: Value,
}

impl Answer {
    /// A success.
    pub fn ok(value: impl Into<Value>) -> Self {
        Self { code: 0, errors: Vec::new(), value: value.into() }
    }

    /// A failure.
    pub fn error(message: impl Into<String>) -> Self {
        Self { code: 1, errors: vec![message.into()], value: Value::Null }
    }
}

/// The socket's name of the lab `name` of this user.
pub fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("trysail-lab-{}-{name}", nix::unistd::getuid()))
}

/// Why a lab could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no lab of this name.
    #[error("no lab named {0:?} is running\n  help: start one with `trysail lab up -f DIR`")]
    NoLab(String),
    /// The conversation broke.
    #[error("the lab did not answer")]
    Io(#[from] io::Error),
    /// The answer cannot be read.
    #[error("the lab's answer cannot be read")]
    Json(#[from] serde_json::Error),
}

/// Asks the lab `name`; `streams` are passed along.
pub fn ask(name: &str, request: &Request, streams: &[RawFd]) -> Result<Answer, AskError> {
    let mut stream = UnixStream::connect_addr(&address(name)?).map_err(|_| AskError::NoLab(name.to_owned()))?;
    let body = serde_json::to_vec(request)?;
    trysail_netns::fd_pass::send_with(stream.as_raw_fd(), &(body.len() as u64).to_be_bytes(), streams)?;
    stream.write_all(&body)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(u64::from_be_bytes(length)).map_err(io::Error::other)?];
    stream.read_exact(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
