//! `/config_dump`: the state in the shape that Istio's command line reads.

use crate::flows::{Direction, Flow};
use crate::pods::Pods;
use crate::state::Shared;
use base64::Engine;
use serde_json::{Map, Value, json};
use std::time::SystemTime;
use trysail_identity::cache::State;
use trysail_identity::tls::Certificate;
use trysail_mesh::model::{Health, OwnerKind};
use trysail_mesh::{Protocol, Service, Snapshot, Workload};
use trysail_policy::authz::{Action, Policy, Scope};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Everything.
pub fn dump(shared: &Shared, pods: &Pods) -> Value {
    let snapshot = shared.mesh.load();
    let mut workloads: Vec<_> = snapshot.workloads().collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    let mut services: Vec<_> = snapshot.services().collect();
    services.sort_by(|a, b| a.key.cmp(&b.key));
    let state = pods.list().into_iter().map(|(uid, info, up)| {
        let connections = connections(&shared.flows.of_pod(&uid));
        let info = json!({"name": info.name, "namespace": info.namespace, "serviceAccount": info.service_account});
        (uid, json!({"state": if up { "Up" } else { "Pending" }, "info": info, "connections": connections}))
    });
    json!({
        "workloads": workloads.iter().map(|w| workload(w)).collect::<Vec<_>>(),
        "services": services.iter().map(|s| service(&snapshot, s)).collect::<Vec<_>>(),
        "policies": snapshot.policies().map(|p| policy(p)).collect::<Vec<_>>(),
        "certificates": shared.svids.states().iter().map(|(id, s)| certificate(&id.to_string(), s)).collect::<Vec<_>>(),
        "workloadState": state.collect::<Map<_, _>>(),
        "generation": snapshot.generation,
    })
}

fn workload(w: &Workload) -> Value {
    json!({
        "uid": w.uid.as_str(),
        "workloadIps": w.addresses,
        "name": w.name,
        "namespace": w.namespace,
        "serviceAccount": &*w.identity.service_account,
        "trustDomain": &*w.identity.trust_domain,
        "protocol": match w.protocol { Protocol::Hbone => "HBONE", Protocol::Plain => "TCP" },
        "workloadName": w.owner,
        "workloadType": match w.owner_kind {
            OwnerKind::Deployment => "deployment",
            OwnerKind::CronJob => "cronjob",
            OwnerKind::Pod => "pod",
            OwnerKind::Job => "job",
        },
        "canonicalName": w.canonical_name,
        "canonicalRevision": w.canonical_revision,
        "node": w.node,
        "status": match w.health { Health::Healthy => "Healthy", Health::Unhealthy => "Unhealthy" },
        "clusterId": w.cluster,
        "network": w.network,
        "authorizationPolicies": w.policies,
        "services": w.services.keys().map(|k| k.as_str()).collect::<Vec<_>>(),
        "capacity": w.capacity,
    })
}

fn service(snapshot: &Snapshot, s: &Service) -> Value {
    let endpoints = snapshot.endpoints(&s.key).map(|w| {
        let ports = w.services.get(&s.key).into_iter().flatten().map(|(k, v)| (k.to_string(), json!(v)));
        let status = match w.health {
            Health::Healthy => "Healthy",
            Health::Unhealthy => "Unhealthy",
        };
        (
            w.uid.to_string(),
            json!({"workloadUid": w.uid.as_str(), "port": ports.collect::<Map<_, _>>(), "status": status}),
        )
    });
    json!({
        "name": s.name,
        "namespace": s.namespace,
        "hostname": s.hostname,
        "vips": s.addresses.iter().map(|(n, ip)| format!("{n}/{ip}")).collect::<Vec<_>>(),
        "ports": s.ports.iter().map(|p| (p.port.to_string(), json!(p.target))).collect::<Map<_, _>>(),
        "endpoints": endpoints.collect::<Map<_, _>>(),
        "subjectAltNames": s.subject_alt_names,
    })
}

fn policy(p: &Policy) -> Value {
    json!({
        "name": p.name,
        "namespace": p.namespace,
        "scope": match p.scope {
            Scope::Global => "Global",
            Scope::Namespace => "Namespace",
            Scope::Workload => "WorkloadSelector",
        },
        "action": match p.action { Action::Allow => "Allow", Action::Deny => "Deny" },
        "rules": p.rules.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>(),
        "dryRun": p.dry_run,
    })
}

fn certificate(identity: &str, state: &State) -> Value {
    let text = match (&state.svid, &state.error) {
        (Some(svid), _) if !svid.expired(SystemTime::now()) => "Available".to_owned(),
        (Some(_), _) => "Expired".to_owned(),
        (None, Some(error)) => format!("Unavailable: {error}"),
        (None, None) => "Initializing".to_owned(),
    };
    let list = |ders: &[Certificate]| ders.iter().map(|der| one(der)).collect::<Vec<_>>();
    let (chain, roots) = state.svid.as_ref().map(|s| (list(&s.chain), list(&s.roots))).unwrap_or_default();
    json!({"identity": identity, "state": text, "certChain": chain, "rootCerts": roots})
}

fn one(der: &[u8]) -> Value {
    let engine = base64::engine::general_purpose::STANDARD;
    let lines =
        engine.encode(der).as_bytes().chunks(64).map(|c| String::from_utf8_lossy(c).into_owned()).collect::<Vec<_>>();
    let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"));
    let (serial, from, until) = match X509Certificate::from_der(der) {
        Ok((_, c)) => {
            (c.tbs_certificate.serial.to_string(), date(c.validity().not_before), date(c.validity().not_after))
        }
        Err(error) => return json!({"error": error.to_string()}),
    };
    json!({"pem": engine.encode(pem), "serialNumber": serial, "validFrom": from, "expirationTime": until})
}

fn date(time: x509_parser::time::ASN1Time) -> String {
    let format = time::format_description::well_known::Rfc3339;
    time.to_datetime().format(&format).unwrap_or_default()
}

fn connections(flows: &[Flow]) -> Value {
    let of = |direction: Direction| {
        let mine = flows.iter().filter(|f| f.direction == direction);
        let each = mine.map(|f| {
            let protocol = if f.tunnel { "HBONE" } else { "TCP" };
            json!({"src": f.peer.to_string(), "actualDst": f.target.to_string(), "protocol": protocol})
        });
        each.collect::<Vec<_>>()
    };
    json!({"inbound": of(Direction::Inbound), "outbound": of(Direction::Outbound)})
}
