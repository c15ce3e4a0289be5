//! `trysail lab`: kubectl's verbs and flags, spoken to a running lab.

use crate::api::{self, Answer, AskError, Manifest, Request, Target, Which};
use crate::output;
use crate::up::{self, NetworkPolicyMode, Options, UpError};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trysail_api::object::Kind;

/// Flags of every verb.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Which lab.
    #[arg(long, global = true, default_value = "default")]
    pub name: String,
    /// Namespace.
    #[arg(short, long, global = true, default_value = "default")]
    pub namespace: String,
}

/// The verbs.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Start a lab, apply manifests, wait until everything is ready.
    Up(Up),
    /// End a lab with everything in it.
    Down,
    /// Create or change objects.
    Apply {
        /// File or folder; `-` for standard input.
        #[arg(short, required = true)]
        filename: Vec<PathBuf>,
    },
    /// Delete objects.
    Delete {
        /// File or folder with what is to be deleted.
        #[arg(short)]
        filename: Vec<PathBuf>,
        /// KIND NAME…, or KIND/NAME.
        what: Vec<String>,
        /// Labels that must match.
        #[arg(short = 'l', long)]
        selector: Option<String>,
        /// Seconds for pods to end.
        #[arg(long)]
        grace_period: Option<u64>,
    },
    /// List objects.
    Get(Get),
    /// Show objects with what happened to them.
    Describe {
        /// KIND [NAME…], or KIND/NAME.
        #[arg(required = true)]
        what: Vec<String>,
    },
    /// Run a command in a container.
    Exec {
        /// Pod, or deployment/NAME.
        pod: String,
        /// Container.
        #[arg(short, long)]
        container: Option<String>,
        /// Pass standard input on (it always is).
        #[arg(short = 'i', long)]
        stdin: bool,
        /// Use a terminal (the caller's own is used if there is one).
        #[arg(short = 't', long)]
        tty: bool,
        /// Command and arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Print a container's output.
    Logs {
        /// Pod, or deployment/NAME.
        pod: String,
        /// Container.
        #[arg(short, long)]
        container: Option<String>,
        /// Go on with what comes.
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines.
        #[arg(long)]
        tail: Option<usize>,
    },
    /// Restart a Deployment's pods, or wait for that.
    Rollout {
        /// restart or status.
        action: RolloutAction,
        /// deployment/NAME.
        what: String,
        /// How long to wait, e.g. 60s.
        #[arg(long, default_value = "300s")]
        timeout: String,
    },
    /// Change labels.
    Label {
        /// KIND NAME… KEY=VALUE… KEY-…
        #[arg(required = true)]
        args: Vec<String>,
        /// Replace values that differ.
        #[arg(long)]
        overwrite: bool,
    },
    /// The mesh's own processes: list, logs, stop, start, restart; or get NODE:PORT/PATH, e.g. node-1:15000/config_dump, or
    /// NAMESPACE/POD:PORT/PATH.
    System {
        /// list, logs, stop, start, restart or get.
        action: String,
        /// Which, e.g. proxy-node-1 or node-1:15020/metrics.
        #[arg(default_value = "")]
        process: String,
    },
    /// CPU and memory by role.
    Top,
}

/// What to do with a rollout.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum RolloutAction {
    /// Replace all pods, step by step.
    Restart,
    /// Wait until the pods are what was asked for.
    Status,
}

/// `lab up`.
#[derive(Args, Clone, Debug)]
pub struct Up {
    /// File or folder with manifests.
    #[arg(short)]
    pub filename: Vec<PathBuf>,
    /// How many nodes.
    #[arg(long, default_value_t = 2)]
    pub nodes: u8,
    /// What stands for an image: NAME=COMMAND ARG…
    #[arg(long)]
    pub image: Vec<String>,
    /// Stay until interrupted, then end the lab.
    #[arg(long)]
    pub foreground: bool,
    /// Life of certificates, seconds.
    #[arg(long, default_value_t = 86_400)]
    pub cert_ttl: u64,
    /// Log filter of the mesh's processes.
    #[arg(long, default_value = "info")]
    pub log: String,
    /// Run another Istio-compatible node proxy instead of Trysail's.
    #[arg(long)]
    pub l4_proxy: Option<PathBuf>,
    /// How NetworkPolicies act on pods of the mesh: `istio` judges the tunnel's port alone, as Istio does.
    #[arg(long, value_enum, default_value_t)]
    pub networkpolicy: NetworkPolicyMode,
    /// How long to wait for everything to be ready, seconds.
    #[arg(long, default_value_t = 120)]
    pub timeout: u64,
}

/// `lab get`.
#[derive(Args, Clone, Debug)]
pub struct Get {
    /// KIND [NAME…], or KIND/NAME.
    #[arg(required = true)]
    pub what: Vec<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Labels that must match, KEY=VALUE,….
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// wide, name, yaml, json or jsonpath=TEMPLATE.
    #[arg(short, long)]
    pub output: Option<String>,
}

/// Why a verb failed before the lab could answer.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The lab.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Starting.
    #[error(transparent)]
    Up(#[from] UpError),
    /// A file.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// Words.
    #[error("{0}")]
    Words(String),
}

/// Runs a verb; the exit code.
pub fn run(common: &Common, verb: Verb) -> Result<i32, CliError> {
    let lab = &common.name;
    let ask = |request: &Request| api::ask(lab, request, &[]);
    let namespace = Some(common.namespace.clone());
    match verb {
        Verb::Up(up) => start(common, &up),
        Verb::Down => {
            ask(&Request::Down)?;
            wait_down(lab);
            println!("lab {lab:?} ended");
            Ok(0)
        }
        Verb::Apply { filename } => {
            Ok(lines(&ask(&Request::Apply { manifests: read(&filename)?, namespace: common.namespace.clone() })?))
        }
        Verb::Delete { filename, .. } if !filename.is_empty() => Ok(lines(&ask(&Request::DeleteManifests {
            manifests: read(&filename)?,
            namespace: common.namespace.clone(),
        })?)),
        Verb::Delete { what, selector, grace_period, .. } => {
            let which = which(&what, namespace, selector.as_deref())?;
            if which.names.is_empty() && which.selector.is_empty() {
                return Err(CliError::Words("error: name what is to be deleted, or select it with -l".into()));
            }
            Ok(lines(&ask(&Request::Delete { which, grace: grace_period })?))
        }
        Verb::Get(get) => show(common, &get),
        Verb::Describe { what } => {
            let answer = ask(&Request::Describe(which(&what, namespace, None)?))?;
            for one in answer.value.as_array().into_iter().flatten() {
                print!("{}", output::yaml(one));
            }
            Ok(said(&answer))
        }
        Verb::Exec { pod, container, command, .. } => {
            let target = Target { namespace: common.namespace.clone(), pod, container };
            let streams = [io::stdin().as_raw_fd(), io::stdout().as_raw_fd(), io::stderr().as_raw_fd()];
            Ok(said(&api::ask(lab, &Request::Exec { target, command }, &streams)?))
        }
        Verb::Logs { pod, container, follow, tail } => {
            logs(lab, &Target { namespace: common.namespace.clone(), pod, container }, follow, tail)
        }
        Verb::Rollout { action: RolloutAction::Restart, what, .. } => {
            Ok(lines(&ask(&Request::RolloutRestart { namespace: common.namespace.clone(), name: what })?))
        }
        Verb::Rollout { action: RolloutAction::Status, what, timeout } => {
            let timeout_s = seconds(&timeout)?;
            Ok(lines(&ask(&Request::RolloutStatus { namespace: common.namespace.clone(), name: what, timeout_s })?))
        }
        Verb::Label { args, overwrite } => {
            let (changes, what): (Vec<String>, Vec<String>) =
                args.into_iter().partition(|a| a.contains('=') || a.ends_with('-'));
            let change = |text: &String| match text.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (text.trim_end_matches('-').to_owned(), None),
            };
            let changes: BTreeMap<_, _> = changes.iter().map(change).collect();
            Ok(lines(&ask(&Request::Label { which: which(&what, namespace, None)?, changes, overwrite })?))
        }
        Verb::System { action, process } if action == "get" => node_get(lab, &process),
        Verb::System { action, process } => system(&ask(&Request::System { action, name: process })?),
        Verb::Top => top(&ask(&Request::Account)?),
    }
}

fn start(common: &Common, up: &Up) -> Result<i32, CliError> {
    let options = Options {
        name: common.name.clone(),
        nodes: up.nodes,
        images: up.image.clone(),
        owned: up.foreground,
        cert_ttl: up.cert_ttl,
        log: up.log.clone(),
        l4_proxy: up.l4_proxy.clone(),
        network_policy: up.networkpolicy,
    };
    let manifests = read(&up.filename)?;
    let checked = up::check(&options, &manifests)?;
    if checked.has_errors() {
        checked.diagnostics.iter().for_each(|d| eprintln!("{d}"));
        return Ok(1);
    }
    let began = Instant::now();
    let mut started = up::start(&options)?;
    let answer = up::fill(&common.name, manifests, up.timeout)?;
    let code = said(&answer);
    if code != 0 {
        eprintln!(
            "error: not everything became ready; the lab goes on for you to look at: `trysail lab get pods -A`, `trysail lab down`"
        );
        return Ok(1);
    }
    println!(
        "lab {:?} is up: {} nodes, {} pods, ready in {:.1} s",
        common.name,
        up.nodes,
        answer.value,
        began.elapsed().as_secs_f64()
    );
    if up.foreground {
        started.wait().map_err(|e| CliError::Words(e.to_string()))?;
    }
    Ok(0)
}

/// Waits until the socket's name is free again.
pub fn wait_down(lab: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        match api::address(lab).and_then(|a| std::os::unix::net::UnixStream::connect_addr(&a)) {
            Ok(_) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return,
        }
    }
}

/// Reads manifests from files and folders, in the order of names.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>, CliError> {
    let mut out = Vec::new();
    for path in paths {
        let fail = |error| CliError::File(path.clone(), error);
        if path == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(fail)?;
            out.push(Manifest { file: "stdin".into(), text });
            continue;
        }
        let mut files = vec![path.clone()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(fail)?.filter_map(Result::ok).map(|e| e.path());
            files =
                entries.filter(|p| p.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json")).collect();
            files.sort();
            if files.is_empty() {
                return Err(CliError::Words(format!(
                    "error: {}: no .yaml, .yml or .json file in this folder",
                    path.display()
                )));
            }
        }
        for file in files {
            let text = std::fs::read_to_string(&file).map_err(|e| CliError::File(file.clone(), e))?;
            out.push(Manifest { file: file.display().to_string(), text });
        }
    }
    Ok(out)
}

fn seconds(text: &str) -> Result<u64, CliError> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        _ => return Err(CliError::Words(format!("error: {text:?} is no duration such as 60s or 5m"))),
    };
    number
        .parse::<u64>()
        .map(|n| n * factor)
        .map_err(|_| CliError::Words(format!("error: {text:?} is no duration such as 60s or 5m")))
}

fn which(what: &[String], namespace: Option<String>, selector: Option<&str>) -> Result<Which, CliError> {
    let (first, rest) = what.split_first().ok_or_else(|| CliError::Words("error: a kind is needed".into()))?;
    let (kind, mut names) = match first.split_once('/') {
        Some((kind, name)) => (kind, vec![name.to_owned()]),
        None => (first.as_str(), Vec::new()),
    };
    names.extend(rest.iter().map(|n| n.rsplit('/').next().unwrap_or(n).to_owned()));
    let kind: Kind =
        kind.parse().map_err(|e: trysail_api::object::UnknownKind| CliError::Words(format!("error: {e}")))?;
    let pair = |text: &str| {
        let (key, value) = text.split_once("==").or_else(|| text.split_once('='))?;
        Some((key.to_owned(), value.to_owned()))
    };
    let wanted = selector
        .into_iter()
        .flat_map(|s| s.split(','))
        .map(|s| pair(s).ok_or_else(|| CliError::Words(format!("error: {s:?} is not KEY=VALUE"))));
    Ok(Which {
        kind,
        namespace: namespace.filter(|_| kind.namespaced()),
        names,
        selector: wanted.collect::<Result<_, _>>()?,
    })
}

fn show(common: &Common, get: &Get) -> Result<i32, CliError> {
    let namespace = Some(common.namespace.clone()).filter(|_| !get.all_namespaces);
    let which = which(&get.what, namespace, get.selector.as_deref())?;
    let (kind, single) = (which.kind, which.names.len() == 1);
    let answer = api::ask(&common.name, &Request::Get(which), &[])?;
    let items = answer.value.as_array().cloned().unwrap_or_default();
    let whole = || match (single, items.first()) {
        (true, Some(one)) => one.clone(),
        _ => serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}),
    };
    match get.output.as_deref() {
        _ if answer.code != 0 => {}
        None | Some("wide") => {
            if items.is_empty() {
                eprintln!(
                    "No resources found{}",
                    if get.all_namespaces { String::new() } else { format!(" in {} namespace.", common.namespace) }
                );
            } else {
                print!("{}", output::objects(kind, &items, get.output.is_some(), get.all_namespaces));
            }
        }
        Some("name") => {
            for item in &items {
                let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                println!("{}/{name}", kind.as_str().to_ascii_lowercase());
            }
        }
        Some("yaml") => print!("{}", output::yaml(&whole())),
        Some("json") => println!("{:#}", whole()),
        Some(other) => match other.strip_prefix("jsonpath=") {
            Some(template) => print!("{}", output::jsonpath(&whole(), template).map_err(CliError::Words)?),
            None => {
                return Err(CliError::Words(format!(
                    "error: unable to match a printer to output format {other:?}; wide, name, yaml, json and jsonpath=… are there"
                )));
            }
        },
    }
    Ok(said(&answer))
}

fn logs(lab: &str, target: &Target, follow: bool, tail: Option<usize>) -> Result<i32, CliError> {
    let mut offset = 0;
    let mut first = true;
    loop {
        let answer = api::ask(lab, &Request::Logs { target: target.clone(), offset }, &[])?;
        if answer.code != 0 {
            return Ok(said(&answer));
        }
        let text = answer.value.get("text").and_then(Value::as_str).unwrap_or_default();
        match tail.filter(|_| first) {
            Some(count) => {
                let all: Vec<&str> = text.lines().collect();
                all.iter().skip(all.len().saturating_sub(count)).for_each(|line| println!("{line}"));
            }
            None => print!("{text}"),
        }
        if !follow {
            return Ok(0);
        }
        first = false;
        offset = answer.value.get("offset").and_then(Value::as_u64).unwrap_or(offset);
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn system(answer: &Answer) -> Result<i32, CliError> {
    if let Some(processes) = answer.value.as_array() {
        let cell = |p: &Value, key: &str| {
            p.get(key).map_or(String::new(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        };
        let mut rows = vec![["NAME", "ROLE", "PID", "STARTS"].map(str::to_owned).to_vec()];
        rows.extend(processes.iter().map(|p| ["name", "role", "pid", "starts"].map(|k| cell(p, k)).to_vec()));
        print!("{}", output::table(&rows));
        return Ok(said(answer));
    }
    Ok(lines(answer))
}

fn node_get(lab: &str, what: &str) -> Result<i32, CliError> {
    let parts =
        what.split_once(':').and_then(|(node, rest)| rest.split_once('/').map(|(port, path)| (node, port, path)));
    let (node, port, path) = parts
        .ok_or_else(|| CliError::Words(format!("error: {what:?} is not NODE:PORT/PATH or NAMESPACE/POD:PORT/PATH")))?;
    let port = port.parse().map_err(|_| CliError::Words(format!("error: {port:?} is no port")))?;
    let path = format!("/{path}");
    let request = match node.split_once('/') {
        Some((namespace, pod)) => Request::PodGet { namespace: namespace.to_owned(), pod: pod.to_owned(), port, path },
        None => Request::NodeGet { node: node.to_owned(), port, path },
    };
    let answer = api::ask(lab, &request, &[])?;
    print!("{}", answer.value.get("body").and_then(Value::as_str).unwrap_or_default());
    Ok(said(&answer))
}

fn top(answer: &Answer) -> Result<i32, CliError> {
    let account: crate::account::Account = serde_json::from_value(answer.value.clone()).unwrap_or_default();
    let mut rows = vec![["ROLE", "PROCESS", "CPU(ms)", "MEMORY(KiB)"].map(str::to_owned).to_vec()];
    for (role, processes) in &account {
        for (name, usage) in processes {
            rows.push(vec![role.clone(), name.clone(), usage.cpu_ms.to_string(), usage.memory_kib.to_string()]);
        }
    }
    print!("{}", output::table(&rows));
    Ok(said(answer))
}

/// Prints the answer's text, or its lines; the exit code.
pub(crate) fn lines(answer: &Answer) -> i32 {
    match &answer.value {
        Value::Array(all) => all.iter().filter_map(Value::as_str).for_each(|line| println!("{line}")),
        Value::String(text) => println!("{text}"),
        _ => {}
    }
    said(answer)
}

fn said(answer: &Answer) -> i32 {
    answer.errors.iter().for_each(|line| eprintln!("{line}"));
    answer.code
}
