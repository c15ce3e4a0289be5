//! Case `netpol`: rules that admit one port, on pods that already run, and what opening the tunnel's port changes.

use crate::stage::{Mode, Stage, StageError};
use crate::verdict::{Netpol, Reach};
use serde_json::Value;
use std::time::Duration;
use trysail_api::object::Kind;

/// How long a change of policy may take to act.
const ACTS: Duration = Duration::from_secs(3);
/// How long an answer is waited for: what is dropped costs this much.
const PATIENCE: &str = "1s";
/// How long a pod may take to be replaced.
const RENEWED: Duration = Duration::from_secs(60);
/// The rules' name.
const NAME: &str = "guarded";

/// Measures one mode.
/// `as_istio`: rules see tunnels alone, and those that are open outlive a change, so the pod is made anew as Istio's users do.
pub fn run(stage: &Stage, mode: Mode, as_istio: bool) -> Result<Netpol, StageError> {
    let ns = mode.namespace();
    until(stage, ns, 8080, Reach::Allowed, true)?;
    // A rule for a port that nobody listens on, put on a pod that runs.
    admit(stage, ns, &[9999])?;
    let retroactive = until(stage, ns, 8080, Reach::Blocked, false)?;
    admit(stage, ns, &[8080])?;
    if as_istio {
        renew(stage, ns)?;
    }
    // The rule is in effect when the other port is shut.
    until(stage, ns, 9090, Reach::Blocked, false)?;
    let app_port_only = until(stage, ns, 8080, Reach::Allowed, false)?;
    admit(stage, ns, &[8080, 15008])?;
    let with_15008 = until(stage, ns, 8080, Reach::Allowed, false)?;
    let other_port_after_15008 = until(stage, ns, 9090, Reach::Allowed, false)?;
    stage.delete(Kind::NetworkPolicy, ns, NAME)?;
    Ok(Netpol { app_port_only, with_15008, retroactive, other_port_after_15008 })
}

/// Puts the rules in place that admit these ports.
fn admit(stage: &Stage, namespace: &str, ports: &[u16]) -> Result<(), StageError> {
    let ports: Vec<String> = ports.iter().map(|p| format!("{{protocol: TCP, port: {p}}}")).collect();
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {NAME}, namespace: {namespace}}}\nspec: {{podSelector: {{matchLabels: {{app: guarded}}}}, policyTypes: [Ingress], ingress: [{{ports: [{}]}}]}}\n",
        ports.join(", ")
    );
    stage.apply(namespace, "netpol", &text)
}

/// A new pod instead of the one that runs.
fn renew(stage: &Stage, namespace: &str) -> Result<(), StageError> {
    let ready = |s: &Stage| -> Result<Vec<String>, String> {
        let pods = s.pods(namespace, NAME).map_err(|e| e.to_string())?;
        let text = |pod: &Value, path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_ready = |pod: &Value| {
            let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
            conditions
                .into_iter()
                .flatten()
                .any(|c| c.get("type") == Some(&"Ready".into()) && c.get("status") == Some(&"True".into()))
        };
        match pods.iter().all(is_ready) {
            true => Ok(pods.iter().map(|pod| text(pod, "/metadata/name")).collect()),
            false => Err(format!("{} pods, not all ready", pods.len())),
        }
    };
    let before = ready(stage).map_err(StageError::Refused)?;
    stage.restart(namespace, NAME)?;
    stage.until("a new pod alone", RENEWED, |s| {
        let now = ready(s)?;
        if now.len() == before.len() && now.iter().all(|n| !before.contains(n)) { Ok(()) } else { Err(now.join(", ")) }
    })
}

/// Whether the port answers, given a while to come to what is hoped for; `must`: nothing else will do.
fn until(stage: &Stage, namespace: &str, port: u16, hoped: Reach, must: bool) -> Result<Reach, StageError> {
    let url = format!("http://guarded:{port}/");
    let attempt = |s: &Stage| {
        let flags = ["-n", "1", "-c", "1", "-qps", "0", "-timeout", PATIENCE, &url];
        let summary = s.load(namespace, &flags).map_err(|e| e.to_string())?;
        let reach = if summary.codes.contains_key(&200) { Reach::Allowed } else { Reach::Blocked };
        if reach == hoped { Ok(()) } else { Err(format!("{:?}", summary.codes)) }
    };
    match stage.until(&format!("{url} in {namespace}"), ACTS, attempt) {
        Ok(()) => Ok(hoped),
        Err(StageError::Timeout { .. }) if !must => Ok(hoped.other()),
        Err(error) => Err(error),
    }
}
