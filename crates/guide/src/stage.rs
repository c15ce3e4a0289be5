//! What a case may do: a lab of its own, objects, restarts, commands and loads in its pods, logs, a capture on its fabric.

use crate::delivery::{ContainerLog, Logs};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use trysail_api::object::Kind;
use trysail_lab::api::{self, AskError, Manifest, Request, Target, Which};
use trysail_lab::up::{self, NetworkPolicyMode, Options, Started, UpError};
use trysail_load::result::Summary;

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

/// How long the first request may take to be answered, and pods to be gone.
const REACHED: Duration = Duration::from_secs(20);
const GONE: Duration = Duration::from_secs(60);

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

    /// Runs a load from the namespace's client, with fortio's flags and at last the URL; what it found.
    pub fn load(&self, namespace: &str, flags: &[&str]) -> Result<Summary, StageError> {
        let command = [&["fortio", "load", "-json", "-", "-allow-initial-errors"], flags].concat();
        let output = self.client(namespace, &command)?;
        let value = serde_json::from_str(&output.stdout).unwrap_or_default();
        Summary::from_json(&value).ok_or_else(|| {
            let said = output.stderr.trim();
            StageError::Refused(format!(
                "the load generator in {namespace} gave no result (exit code {}): {said}",
                output.code
            ))
        })
    }

    /// Applies manifests; what names no namespace goes into `namespace`.
    pub fn apply(&self, namespace: &str, file: &str, text: &str) -> Result<(), StageError> {
        let manifests = vec![Manifest { file: file.to_owned(), text: text.to_owned() }];
        self.ask(&Request::Apply { manifests, namespace: namespace.to_owned() }).map(drop)
    }

    /// Deletes an object; pods end at once.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), StageError> {
        let names = vec![name.to_owned()];
        let which = Which { kind, namespace: Some(namespace.to_owned()), names, selector: BTreeMap::new() };
        self.ask(&Request::Delete { which, grace: Some(0) }).map(drop)
    }

    /// Restarts a Deployment.
    pub fn restart(&self, namespace: &str, name: &str) -> Result<(), StageError> {
        self.ask(&Request::RolloutRestart { namespace: namespace.to_owned(), name: name.to_owned() }).map(drop)
    }

    /// Waits until a Deployment's pods are what was asked for; says what is missing when they are not within `limit`.
    pub fn rolled_out(&self, namespace: &str, name: &str, limit: Duration) -> Result<(), StageError> {
        let timeout_s = limit.as_secs();
        let request = Request::RolloutStatus { namespace: namespace.to_owned(), name: name.to_owned(), timeout_s };
        let answer = api::ask(&self.name, &request, &[])?;
        let what = || format!("the rollout of {namespace}/{name}");
        match answer.code {
            0 => Ok(()),
            _ => Err(StageError::Timeout { what: what(), limit, last: answer.errors.join("; ") }),
        }
    }

    /// Waits until the namespace's client gets a 200 from `url`.
    pub fn reached(&self, namespace: &str, url: &str) -> Result<(), StageError> {
        self.until(&format!("an answer of {url} in {namespace}"), REACHED, |s| {
            let summary = s.load(namespace, &["-n", "1", "-c", "1", "-qps", "0", url]).map_err(|e| e.to_string())?;
            if summary.codes.contains_key(&200) { Ok(()) } else { Err(format!("{:?}", summary.codes)) }
        })
    }

    /// Waits until no pod with `app=app` is left.
    pub fn gone(&self, namespace: &str, app: &str) -> Result<(), StageError> {
        self.until(&format!("the end of the pods of {namespace}/{app}"), GONE, |s| {
            let left = s.pods(namespace, app).map_err(|e| e.to_string())?.len();
            if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
        })
    }

    /// Where the logs are now, for [`Stage::logs`].
    pub fn logs_mark(&self, namespace: &str) -> Result<u64, StageError> {
        let logs = self.ask(&Request::AllLogs { namespace: namespace.to_owned(), since: u64::MAX })?;
        Ok(logs.get("next").and_then(Value::as_u64).unwrap_or(0))
    }

    /// What the containers of a namespace have written, those included that have ended since `mark`, and the node proxies.
    pub fn logs(&self, namespace: &str, mark: u64) -> Result<Logs, StageError> {
        let all = self.ask(&Request::AllLogs { namespace: namespace.to_owned(), since: mark })?;
        let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let container = |value: &Value| ContainerLog {
            pod: text(value, "pod"),
            container: text(value, "container"),
            text: text(value, "text"),
            cut: number(value, "dropped") > 0,
        };
        let containers = all.get("logs").and_then(Value::as_array).into_iter().flatten().map(container).collect();
        let system = |action: &str, name: &str| Request::System { action: action.to_owned(), name: name.to_owned() };
        let mut nodes = Vec::new();
        for process in self.ask(&system("list", ""))?.as_array().into_iter().flatten() {
            let name = text(process, "name");
            if text(process, "role") == "node proxy" {
                let log = self.ask(&system("logs", &name))?;
                nodes.push((name, log.as_str().unwrap_or_default().to_owned()));
            }
        }
        Ok(Logs { containers, nodes, missing: number(&all, "kept_from") > mark })
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
