//! Case `mtls`: plaintext from outside, a call from inside, identities of both ends, the wire.

use crate::stage::{Mode, OUTSIDE, Stage, StageError};
use crate::verdict::Mtls;
use serde_json::Value;
use std::time::Duration;
use trysail_lab::api::Request;
use trysail_lab::capture::Seen;

/// How long the proxies' counters may take to show a connection.
const COUNTED: Duration = Duration::from_secs(5);

/// What counts calls: at a node's proxy, and at a sidecar.
const COUNTERS: [&str; 2] = ["istio_tcp_connections_opened_total{", "istio_requests_total{"];

fn text<'a>(pod: &'a Value, path: &str) -> &'a str {
    pod.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Measures one mode.
pub fn run(stage: &Stage, mode: Mode) -> Result<Mtls, StageError> {
    let namespace = mode.namespace();
    let client = stage.pods(namespace, "client")?.into_iter().next().unwrap_or_default();
    let servers = stage.pods(namespace, "echo")?;
    let home = text(&client, "/spec/nodeName").to_owned();
    let missing = || StageError::Refused(format!("{namespace}: no echo pod runs on another node than its client"));
    let server = servers.iter().find(|p| text(p, "/spec/nodeName") != home).ok_or_else(missing)?;
    let address = text(server, "/status/podIP");
    let direct = format!("http://{address}:8080/");

    let outside = stage
        .client(OUTSIDE, &["fortio", "load", "-n", "1", "-c", "1", "-json", "-", "-allow-initial-errors", &direct])?;
    let inside = stage.client(
        namespace,
        &[
            "fortio",
            "load",
            "-n",
            "4",
            "-c",
            "2",
            "-qps",
            "0",
            "-json",
            "-",
            "-allow-initial-errors",
            "http://echo:8080/",
        ],
    )?;

    let marker = format!("TRYSAIL-MARKER-{:016x}", std::process::id() as u64 ^ 0x5eed_1e55_cafe_f00d);
    stage.ask(&Request::CaptureStart { marker: marker.clone() })?;
    let sent = stage.client(
        namespace,
        &[
            "fortio",
            "load",
            "-n",
            "4",
            "-c",
            "1",
            "-qps",
            "0",
            "-json",
            "-",
            "-allow-initial-errors",
            "-payload",
            &marker,
            &direct,
        ],
    );
    let seen: Seen = serde_json::from_value(stage.ask(&Request::CaptureStop)?).unwrap_or_default();
    let sent = code(&sent?.stdout);

    let mut out = Mtls {
        plaintext_blocked: code(&outside.stdout) == -1,
        in_mesh_code: code(&inside.stdout),
        marker_on_wire: seen.with_marker > 0,
        frames: if sent == 200 { seen.frames } else { 0 },
        ..Mtls::default()
    };
    if mode != Mode::None {
        let far = text(server, "/spec/nodeName");
        let pod = |p: &Value| (text(p, "/metadata/namespace").to_owned(), text(p, "/metadata/name").to_owned());
        // In a sidecar it is the pods themselves that know; elsewhere it is their nodes.
        let (near, far) = match mode {
            Mode::Sidecar => (Place::Pod(pod(&client)), Place::Pod(pod(server))),
            _ => (Place::Node(home.clone()), Place::Node(far.to_owned())),
        };
        let (client_id, server_id) =
            stage.until("a counted call with mutual TLS", COUNTED, |s| identities(s, &far, namespace))?;
        out.same_root = Some(same_root(stage, (&near, &client_id), (&far, &server_id))?);
        (out.client_id, out.server_id) = (Some(client_id), Some(server_id));
    }
    Ok(out)
}

/// The one status of a run; the worst if there were several, -1 if there was no answer or no result.
fn code(json: &str) -> i32 {
    let codes =
        serde_json::from_str::<Value>(json).ok().and_then(|v| v.get("RetCodes").and_then(Value::as_object).cloned());
    let codes: Vec<i32> = codes.unwrap_or_default().keys().filter_map(|c| c.parse().ok()).collect();
    codes.iter().copied().find(|c| *c != 200).or(codes.first().copied()).unwrap_or(-1)
}

/// Where a proxy is asked.
enum Place {
    Node(String),
    Pod((String, String)),
}

fn get(stage: &Stage, place: &Place, port: u16, path: &str) -> Result<String, StageError> {
    let path = path.to_owned();
    let request = match place {
        Place::Node(node) => Request::NodeGet { node: node.clone(), port, path },
        Place::Pod((namespace, pod)) => Request::PodGet { namespace: namespace.clone(), pod: pod.clone(), port, path },
    };
    Ok(text(&stage.ask(&request)?, "/body").to_owned())
}

/// Both identities of a call into `namespace`, as the called side's proxy has counted it.
fn identities(stage: &Stage, place: &Place, namespace: &str) -> Result<(String, String), String> {
    let metrics = get(stage, place, 15020, "/metrics").map_err(|e| e.to_string())?;
    let wanted = [
        "reporter=\"destination\"",
        "connection_security_policy=\"mutual_tls\"",
        &format!("destination_workload_namespace=\"{namespace}\""),
    ];
    let line = metrics
        .lines()
        .find(|l| COUNTERS.iter().any(|c| l.starts_with(c)) && wanted.iter().all(|w| l.contains(w)))
        .ok_or("no call with mutual TLS is counted on the called side")?;
    let label = |name: &str| {
        let start = line.find(&format!("{name}=\"")).map(|at| at + name.len() + 2)?;
        line.get(start..)?.split('"').next().map(str::to_owned)
    };
    label("source_principal").zip(label("destination_principal")).ok_or_else(|| line.to_owned())
}

/// Whether two proxies' certificates for two identities lead to one root.
fn same_root(stage: &Stage, a: (&Place, &str), b: (&Place, &str)) -> Result<bool, StageError> {
    let root = |(place, identity): (&Place, &str)| -> Result<Option<String>, StageError> {
        let dump: Value = serde_json::from_str(&get(stage, place, 15000, "/config_dump")?).unwrap_or_default();
        let mut all = dump.get("certificates").and_then(Value::as_array).into_iter().flatten();
        let own = all.find(|c| text(c, "/identity") == identity);
        Ok(own.map(|c| text(c, "/rootCerts/0/pem").to_owned()).filter(|pem| !pem.is_empty()))
    };
    let (a, b) = (root(a)?, root(b)?);
    Ok(a.is_some() && a == b)
}
