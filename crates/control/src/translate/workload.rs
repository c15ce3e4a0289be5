//! Pod to workload record.

use super::MeshConfig;
use super::service::{key, resolve_target, selects};
use std::collections::BTreeMap;
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service};
use trysail_api::labels as names;
use trysail_api::object::{annotation, label};
use trysail_mesh::model::{Health, OwnerKind, Protocol, Workload};

/// The record of a pod; none before it has an address and after it has ended.
pub fn workload(pod: &Pod, config: &MeshConfig, services: &[&Service]) -> Option<Workload> {
    let meta = &pod.metadata;
    let (name, namespace) = (meta.name.as_deref()?, meta.namespace.as_deref().unwrap_or("default"));
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut addresses: Vec<_> = listed.chain(status.pod_ip.as_deref()).filter_map(|ip| ip.parse().ok()).collect();
    addresses.dedup();
    if addresses.is_empty() {
        return None;
    }
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let healthy = ready && meta.deletion_timestamp.is_none();
    // A sidecar takes tunnels too, and is in the pod before anything else.
    let sidecar = annotation(meta, names::SIDECAR_STATUS).is_some();
    let captured = sidecar || annotation(meta, names::REDIRECTION) == Some("enabled");
    let (owner_kind, owner) = owner(pod, name);
    let first = |keys: &[&str]| keys.iter().find_map(|k| label(meta, k)).map(str::to_owned);
    let canonical_name = first(&[names::CANONICAL_NAME, names::APP_NAME, names::APP]).unwrap_or_else(|| owner.clone());
    let revision = first(&[names::CANONICAL_REVISION, "app.kubernetes.io/version", names::VERSION]);
    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let mut endpoints = BTreeMap::new();
    for service in services.iter().filter(|s| selects(s, pod)) {
        let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
        let resolved = ports.filter_map(|p| Some((u16::try_from(p.port).ok()?, resolve_target(p, pod)?)));
        endpoints.insert(key(service), resolved.collect());
    }
    Some(Workload {
        uid: WorkloadUid::pod(&config.cluster, namespace, name),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        identity: SpiffeId::new(&config.trust_domain, namespace, account),
        addresses,
        network: String::new(),
        protocol: if captured { Protocol::Hbone } else { Protocol::Plain },
        native_tunnel: sidecar,
        node: spec.node_name.clone().unwrap_or_default(),
        cluster: config.cluster.clone(),
        canonical_name,
        canonical_revision: revision.unwrap_or_else(|| "latest".to_owned()),
        owner_kind,
        owner,
        health: if healthy { Health::Healthy } else { Health::Unhealthy },
        host_network: spec.host_network.unwrap_or(false),
        policies: Vec::new(),
        services: endpoints,
        locality: Default::default(),
        capacity: 1,
        waypoint: None,
        labels: trysail_api::object::labels(meta).clone(),
        named_ports: crate::gate::named_ports(pod),
    })
}

/// The object that made the pod: a ReplicaSet stands for its Deployment.
fn owner(pod: &Pod, name: &str) -> (OwnerKind, String) {
    let controller = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    match controller {
        Some(o) if o.kind == "ReplicaSet" => {
            let hash = label(&pod.metadata, names::POD_TEMPLATE_HASH).map(|h| format!("-{h}")).unwrap_or_default();
            (OwnerKind::Deployment, o.name.strip_suffix(&*hash).unwrap_or(&o.name).to_owned())
        }
        Some(o) if o.kind == "Job" => (OwnerKind::Job, o.name.clone()),
        _ => (OwnerKind::Pod, name.to_owned()),
    }
}
