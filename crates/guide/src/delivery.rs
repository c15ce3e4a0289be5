//! What became of requests that failed: the client's journal joined with the logs of servers and proxies. Pure.

use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trysail_load::journal::Failure;

/// The container of a proxy that understands HTTP, under Istio's name.
const PROXY: &str = "istio-proxy";

/// What one container has written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerLog {
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// What it has written.
    pub text: String,
    /// The beginning is missing.
    pub cut: bool,
}

/// What was written while a load ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs {
    /// Containers of the namespace, also of pods that are gone.
    pub containers: Vec<ContainerLog>,
    /// Node proxies, by name.
    pub nodes: Vec<(String, String)>,
    /// Some pods' output is not in here.
    pub missing: bool,
}

/// Whether a request reached the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// No server has it in its log, and all logs are there: sending it again would have been right.
    Never,
    /// A server has it in its log.
    Delivered,
    /// No server has it in its log, but a part of the logs is missing.
    Unknown,
}

impl Delivery {
    /// In a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never delivered",
            Self::Delivered => "delivered",
            Self::Unknown => "unknown",
        }
    }
}

/// What a server or a proxy has said of a request or of its connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Said {
    /// Which of them.
    pub by: String,
    /// What: the reason in its log, without the addresses.
    pub reason: String,
}

/// A failure and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fate {
    /// The request's name.
    pub id: String,
    /// When it was due, seconds from the start of the run.
    pub at_s: f64,
    /// How long it took to fail, milliseconds.
    pub took_ms: f64,
    /// Status, or -1 when there was no answer.
    pub code: i32,
    /// What the client saw, when there was no answer.
    pub error: Option<String>,
    /// Whether it reached the application.
    pub delivery: Delivery,
    /// What the server and the proxies on its way have logged.
    pub reasons: Vec<Said>,
}

/// What the logs say of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Each failure.
    pub fates: Vec<Fate>,
    /// Requests that the servers have received, each counted once.
    pub received: u64,
    /// Names of requests that were received more than once.
    pub doubled: Vec<String>,
}

/// Joins `failures` with the logs; servers are the containers named `container` of the pods whose names begin with `pods`.
pub fn join(failures: &[Failure], logs: &Logs, (pods, container): (&str, &str)) -> Evidence {
    let servers = logs.containers.iter().filter(|l| l.container == container && l.pod.starts_with(pods));
    let (mut received, mut cut) = (BTreeMap::<&str, u64>::new(), logs.missing);
    let mut refused: BTreeMap<&str, Said> = BTreeMap::new();
    for log in servers {
        cut |= log.cut;
        for line in log.text.lines() {
            if let Some(id) = line.strip_prefix("received ") {
                *received.entry(id).or_default() += 1;
            } else if let Some((id, why)) = line.strip_prefix("failed ").and_then(|rest| rest.split_once(": ")) {
                refused.insert(id, Said { by: "server".to_owned(), reason: plain(why) });
            }
        }
    }
    let requests = by_request(logs);
    let connections = by_connection(logs);
    let fate = |f: &Failure| {
        let delivery = match received.contains_key(f.id.as_str()) {
            true => Delivery::Delivered,
            false if cut => Delivery::Unknown,
            false => Delivery::Never,
        };
        let of_server = refused.get(f.id.as_str());
        let of_request = requests.get(f.id.as_str()).into_iter().flatten();
        let of_connection = f.local.and_then(|local| connections.get(&local)).into_iter().flatten();
        Fate {
            id: f.id.clone(),
            at_s: f.at_s,
            took_ms: f.took_ms,
            code: f.code,
            error: f.error.as_deref().map(plain),
            delivery,
            reasons: of_server.into_iter().chain(of_request).chain(of_connection).cloned().collect(),
        }
    };
    Evidence {
        fates: failures.iter().map(fate).collect(),
        received: received.len() as u64,
        doubled: received.iter().filter(|(_, times)| **times > 1).map(|(id, _)| (*id).to_owned()).collect(),
    }
}

/// What proxies that understand HTTP have said of requests that went wrong, by the request's name.
fn by_request(logs: &Logs) -> BTreeMap<String, Vec<Said>> {
    let mut out: BTreeMap<String, Vec<Said>> = BTreeMap::new();
    for log in logs.containers.iter().filter(|l| l.container == PROXY) {
        let lines = log.text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        for line in lines {
            let text = |key: &str| line.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
            let (id, reason, detail) = (text("request_id"), text("reason"), text("detail"));
            if id.is_empty() || reason.is_empty() || reason == "-" {
                continue;
            }
            let reason = if detail.is_empty() { reason.to_owned() } else { format!("{reason}: {}", plain(detail)) };
            let role = match text("reporter") {
                "waypoint" => "waypoint",
                "source" => "client's sidecar",
                _ => "server's sidecar",
            };
            out.entry(id.to_owned()).or_default().push(Said { by: role.to_owned(), reason });
        }
    }
    out
}

/// What clients' node proxies have said of connections, by the client's end. At the other end of a tunnel that is not known.
fn by_connection(logs: &Logs) -> BTreeMap<SocketAddr, Vec<Said>> {
    let mut out: BTreeMap<SocketAddr, Vec<Said>> = BTreeMap::new();
    let lines = logs.nodes.iter().flat_map(|(_, text)| text.lines());
    for line in lines.filter(|line| field(line, "direction") == Some("outbound")) {
        let Some(source) = field(line, "src.addr").and_then(|text| text.parse().ok()) else { continue };
        let reason = match field(line, "error") {
            Some(error) => plain(error),
            // The connection ended in order: whoever answers has closed it.
            None if line.contains("connection complete") => "connection complete".to_owned(),
            None => continue,
        };
        out.entry(source).or_default().push(Said { by: "client's node proxy".to_owned(), reason });
    }
    out
}

/// The value of `key=value` or `key="value"` in a line of a log.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = line.match_indices(key).find(|(at, _)| {
        let before = line.get(..*at).and_then(|l| l.chars().next_back());
        let after = line.get(at + key.len()..).and_then(|l| l.chars().next());
        before.is_none_or(char::is_whitespace) && after == Some('=')
    })?;
    let value = line.get(at.0 + key.len() + 1..)?;
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split_whitespace().next(),
    }
}

/// A text without addresses, so that equal reasons are equal.
fn plain(text: &str) -> String {
    let word = |word: &str| {
        let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let address = core.parse::<SocketAddr>().is_ok() || core.parse::<IpAddr>().is_ok();
        if address { word.replace(core, "ADDRESS") } else { word.to_owned() }
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Failures that look alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Kind {
    /// Status, or -1 when there was no answer.
    pub code: i32,
    /// Whether they reached the application.
    pub delivery: Delivery,
    /// What the proxies say, or the client where no proxy says anything.
    pub why: String,
}

/// Failures by kind, the most frequent first.
pub fn kinds(fates: &[Fate]) -> Vec<(Kind, u64)> {
    let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
    for fate in fates {
        let said: Vec<String> = fate.reasons.iter().map(|s| format!("{}: {}", s.by, s.reason)).collect();
        let client = || fate.error.as_ref().map_or_else(String::new, |error| format!("client: {error}"));
        let why = if said.is_empty() { client() } else { said.join("; ") };
        *counts.entry(Kind { code: fate.code, delivery: fate.delivery, why }).or_default() += 1;
    }
    let mut out: Vec<_> = counts.into_iter().collect();
    out.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    out
}

#[cfg(test)]
mod tests;
