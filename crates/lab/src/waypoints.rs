//! Waypoints of a lab from the command line.

use crate::api::{self, Manifest, Request, Which};
use crate::cli::{CliError, Common, lines};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use trysail_api::labels::{USE_WAYPOINT, USE_WAYPOINT_NAMESPACE};
use trysail_api::object::Kind;

/// How long a new waypoint may take to be ready.
const READY: Duration = Duration::from_secs(60);

/// The Gateway of a waypoint.
pub fn manifest(namespace: &str, name: &str, traffic: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels:\n    \
         istio.io/waypoint-for: {traffic}\nspec:\n  gatewayClassName: istio-waypoint\n  listeners:\n  - name: mesh\n    port: 15008\n    \
         protocol: HBONE\n"
    )
}

/// Creates a waypoint; with `enrol`, binds the namespace to it (over another binding if that is set).
pub fn apply(common: &Common, (name, traffic): (&str, &str), enrol: Option<bool>, wait: bool) -> Result<i32, CliError> {
    let namespace = &common.namespace;
    let ask = |request: &Request| api::ask(&common.name, request, &[]);
    let text = manifest(namespace, name, traffic);
    let manifests = vec![Manifest { file: "waypoint".to_owned(), text }];
    let code = lines(&ask(&Request::Apply { manifests, namespace: namespace.clone() })?);
    if code != 0 {
        return Ok(code);
    }
    if wait {
        let which = Which {
            kind: Kind::Gateway,
            namespace: Some(namespace.clone()),
            names: vec![name.to_owned()],
            selector: BTreeMap::new(),
        };
        let deadline = Instant::now() + READY;
        loop {
            let answer = ask(&Request::Get(which.clone()))?;
            let conditions =
                answer.value.pointer("/0/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
            let programmed =
                |c: &Value| c.get("type") == Some(&"Programmed".into()) && c.get("status") == Some(&"True".into());
            if conditions.iter().any(programmed) {
                break;
            }
            if Instant::now() >= deadline {
                return Err(CliError::Words(format!(
                    "error: waypoint {namespace}/{name} is not ready after {READY:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    if let Some(overwrite) = enrol {
        let which =
            Which { kind: Kind::Namespace, namespace: None, names: vec![namespace.clone()], selector: BTreeMap::new() };
        let changes = BTreeMap::from([
            (USE_WAYPOINT.to_owned(), Some(name.to_owned())),
            (USE_WAYPOINT_NAMESPACE.to_owned(), None),
        ]);
        return Ok(lines(&ask(&Request::Label { which, changes, overwrite })?));
    }
    println!("waypoint {namespace}/{name} applied");
    Ok(0)
}

/// Lists waypoints.
pub fn list(common: &Common, all: bool) -> Result<i32, CliError> {
    let namespace = Some(common.namespace.clone()).filter(|_| !all);
    let which = Which { kind: Kind::Gateway, namespace, names: Vec::new(), selector: BTreeMap::new() };
    let answer = api::ask(&common.name, &Request::Get(which), &[])?;
    let mut rows = vec![["NAMESPACE", "NAME", "TRAFFIC TYPE", "PROGRAMMED"].map(str::to_owned).to_vec()];
    for gateway in answer.value.as_array().into_iter().flatten() {
        let text = |path: &str| gateway.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !text("/spec/gatewayClassName").ends_with("-waypoint") {
            continue;
        }
        let conditions = gateway.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let mut programmed = conditions
            .filter(|c| c.get("type") == Some(&"Programmed".into()))
            .filter_map(|c| c.get("status")?.as_str());
        let traffic = Some(text("/metadata/labels/istio.io~1waypoint-for")).filter(|t| !t.is_empty());
        rows.push(vec![
            text("/metadata/namespace"),
            text("/metadata/name"),
            traffic.unwrap_or_else(|| "service".to_owned()),
            programmed.next().unwrap_or("False").to_owned(),
        ]);
    }
    print!("{}", crate::output::table(&rows));
    Ok(answer.code)
}

/// Deletes waypoints by name.
pub fn delete(common: &Common, names: Vec<String>) -> Result<i32, CliError> {
    let which =
        Which { kind: Kind::Gateway, namespace: Some(common.namespace.clone()), names, selector: BTreeMap::new() };
    Ok(lines(&api::ask(&common.name, &Request::Delete { which, grace: None }, &[])?))
}
