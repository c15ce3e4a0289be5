//! What a case may do: a lab of its own, commands in its pods, a capture on its fabric.

use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use trysail_api::object::Kind;
use trysail_lab::api::{self, AskError, Manifest, Request, Target, Which};
use trysail_lab::up::{self, NetworkPolicyMode, Options, Started, UpError};

/// A way of meshing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// No mesh.
    None,
    /// A proxy in each pod.
    Sidecar,
    /// Ambient without waypoint.
    AmbientL4,
    /// Ambient with a waypoint.
    AmbientL7,
}

impl Mode {
    /// The modes that are measured, the baseline first.
    pub const ALL: [Mode; 4] = [Mode::None, Mode::Sidecar, Mode::AmbientL4, Mode::AmbientL7];

    /// Key in report.json.
    pub fn key(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sidecar => "sidecar",
            Self::AmbientL4 => "ambient-l4",
            Self::AmbientL7 => "ambient-l7",
        }
    }

    /// Namespace of its workload in the guide's manifests.
    pub fn namespace(self) -> &'static str {
        match self {
            Self::None => "bare",
            Self::Sidecar => "sidecar",
            Self::AmbientL4 => "ambient-l4",
            Self::AmbientL7 => "ambient-l7",
        }
    }

    /// In a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::None => "no mesh",
            Self::Sidecar => "sidecar",
            Self::AmbientL4 => "ambient L4",
            Self::AmbientL7 => "ambient L7",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::key);
        let found = Self::ALL.into_iter().find(|m| m.key() == text);
        found.ok_or_else(|| format!("{text:?} is not a mode: {}", known.join(", ")))
    }
}

/// Namespace of the client outside the mesh.
pub const OUTSIDE: &str = "outside";

/// Why a case could not be run.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The lab did not start.
    #[error(transparent)]
    Up(#[from] UpError),
    /// The lab did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The lab refused.
    #[error("{0}")]
    Refused(String),
    /// A pipe.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Something did not come about in time.
    #[error("{what} did not happen within {limit:?}; last seen: {last}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// The nearest miss.
        last: String,
    },
}

/// A lab that ends with this value.
pub struct Stage {
    name: String,
    started: Started,
}

/// Programs of others in a lab.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// The node proxy of every node.
    pub l4_proxy: Option<PathBuf>,
    /// How NetworkPolicies act on pods of the mesh.
    pub network_policy: NetworkPolicyMode,
    /// Further images, `NAME=COMMAND`.
    pub images: Vec<String>,
}

/// A command's outcome.
#[derive(Debug)]
pub struct Output {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Stage {
    /// Starts a lab and applies `manifests`; returns when everything is ready.
    pub fn open(manifests: Vec<Manifest>, programs: Programs) -> Result<Self, StageError> {
        let suffix = if programs.l4_proxy.is_some() { "-other" } else { "" };
        let name = format!("guide-{}{suffix}", std::process::id());
        let options = Options {
            name: name.clone(),
            nodes: 2,
            images: programs.images,
            owned: true,
            cert_ttl: 86_400,
            log: "info".to_owned(),
            l4_proxy: programs.l4_proxy,
            network_policy: programs.network_policy,
        };
        let started = up::start(&options)?;
        let stage = Self { name, started };
        let answer = up::fill(&stage.name, manifests, 120)?;
        if answer.code != 0 {
            return Err(StageError::Refused(answer.errors.join("\n")));
        }
        Ok(stage)
    }

    /// Asks the lab; a refusal is an error.
    pub fn ask(&self, request: &Request) -> Result<Value, StageError> {
        let answer = api::ask(&self.name, request, &[])?;
        if answer.code == 0 { Ok(answer.value) } else { Err(StageError::Refused(answer.errors.join("\n"))) }
    }

    /// The pods of a namespace with `app=app`.
    pub fn pods(&self, namespace: &str, app: &str) -> Result<Vec<Value>, StageError> {
        let which = Which {
            kind: Kind::Pod,
            namespace: Some(namespace.to_owned()),
            names: Vec::new(),
            selector: BTreeMap::from([("app".to_owned(), app.to_owned())]),
        };
        Ok(self.ask(&Request::Get(which))?.as_array().cloned().unwrap_or_default())
    }

    /// Runs a command in the namespace's client.
    pub fn client(&self, namespace: &str, command: &[&str]) -> Result<Output, StageError> {
        let target = Target { namespace: namespace.to_owned(), pod: "deployment/client".to_owned(), container: None };
        self.exec(target, command)
    }

    /// Runs a command in a container.
    pub fn exec(&self, target: Target, command: &[&str]) -> Result<Output, StageError> {
        let request = Request::Exec { target, command: command.iter().map(|w| (*w).to_owned()).collect() };
        let null = std::fs::File::open("/dev/null")?;
        let ((out_read, out_write), (err_read, err_write)) = (std::io::pipe()?, std::io::pipe()?);
        let readers = [out_read, err_read].map(|pipe| std::thread::spawn(move || std::io::read_to_string(pipe)));
        let answer = api::ask(&self.name, &request, &[null.as_raw_fd(), out_write.as_raw_fd(), err_write.as_raw_fd()]);
        drop((out_write, err_write));
        let [stdout, stderr] = readers.map(|reader| reader.join().ok().and_then(Result::ok).unwrap_or_default());
        let answer = answer?;
        let stderr = stderr + &answer.errors.join("\n");
        Ok(Output { code: answer.code, stdout, stderr })
    }

    /// Tries `attempt` until it gives something, at most `limit`; its error text is the nearest miss.
    pub fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut attempt: impl FnMut(&Self) -> Result<T, String>,
    ) -> Result<T, StageError> {
        let deadline = std::time::Instant::now() + limit;
        loop {
            match attempt(self) {
                Ok(found) => return Ok(found),
                Err(last) if std::time::Instant::now() >= deadline => {
                    return Err(StageError::Timeout { what: what.to_owned(), limit, last });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if api::ask(&self.name, &Request::Down, &[]).is_ok() {
            self.started.wait().map(drop).unwrap_or_default();
        }
    }
}
