//! What the control plane says, applied to the mesh state.

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use trysail_base::ready::Gate;
use trysail_base::snapshot::SnapshotCell;
use trysail_identity::client::ControlAddress;
use trysail_mesh::{Builder, Change, Snapshot, codec};
use trysail_wire::discovery::{Node, Resource};
use trysail_wire::type_urls::{ADDRESS, AUTHORIZATION};
use trysail_xds::client::{Connect, Handler, Rejected};

/// The types that a node proxy wants. Policies first, so that a workload's are there when it is. Another's control plane knows Istio's
/// own types alone, and is used without the inner gate.
pub fn types(settings: &crate::Settings) -> Vec<&'static str> {
    if settings.inner_gate { codec::TYPES.to_vec() } else { vec![AUTHORIZATION, ADDRESS] }
}

/// Applies responses.
pub struct State {
    builder: Builder,
    mesh: Arc<SnapshotCell<Snapshot>>,
    changed: Arc<Notify>,
    waiting: BTreeSet<&'static str>,
    /// Policies that were gone when the stream opened again: they leave when the records that may list them have been compared too.
    leaving: Vec<Change>,
    gate: Option<Gate>,
}

impl State {
    /// Publishes to `mesh`, wakes `changed`, and opens `gate` once every type was answered.
    pub fn new(mesh: Arc<SnapshotCell<Snapshot>>, changed: Arc<Notify>, types: &[&'static str], gate: Gate) -> Self {
        Self {
            builder: Builder::default(),
            mesh,
            changed,
            waiting: types.iter().copied().collect(),
            leaving: Vec::new(),
            gate: Some(gate),
        }
    }
}

impl Handler for State {
    fn apply(&mut self, type_url: &str, resources: &[Resource], removed: &[String], first: bool) -> Vec<Rejected> {
        let (mut changes, mut rejected) = (Vec::new(), Vec::new());
        for resource in resources {
            let body = resource.resource.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
            match codec::resource(type_url, body) {
                Ok(change) => changes.push(change),
                Err(error) => {
                    rejected.push(Rejected { name: resource.name.clone(), reason: trysail_base::log::chain(&error) });
                }
            }
        }
        let gone = |name: &String| codec::gone(type_url, name);
        if first && type_url == AUTHORIZATION {
            self.leaving.extend(removed.iter().map(gone));
        } else {
            changes.extend(removed.iter().map(gone));
        }
        if first && type_url == ADDRESS {
            changes.append(&mut self.leaving);
        }
        if !changes.is_empty() {
            self.mesh.publish(self.builder.apply(changes));
            self.changed.notify_one();
        }
        if self.waiting.remove(type_url) && self.waiting.is_empty() {
            tracing::info!("the mesh state is complete");
            if let Some(gate) = self.gate.take() {
                gate.open();
            }
        }
        rejected
    }
}

/// Connects to the control plane.
pub struct ToControl(pub ControlAddress, pub String);

impl Connect for ToControl {
    async fn connect(&self) -> Result<(Channel, MetadataMap), String> {
        let mut request = tonic::Request::new(());
        self.0.authorize(&mut request).await.map_err(|e| trysail_base::log::chain(&e))?;
        if let Ok(cluster) = self.1.parse() {
            request.metadata_mut().insert("clusterid", cluster);
        }
        let channel = self.0.connect().await.map_err(|e| trysail_base::log::chain(&e))?;
        Ok((channel, request.into_parts().0))
    }
}

/// How this proxy introduces itself.
pub fn node(settings: &crate::Settings) -> Node {
    let text = |value: &str| prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(value.to_owned())) };
    let fields = [
        ("NAME", &settings.pod_name),
        ("NAMESPACE", &settings.pod_namespace),
        ("NODE_NAME", &settings.node),
        ("INSTANCE_IPS", &settings.instance_ip),
        ("CLUSTER_ID", &settings.cluster),
    ];
    let (ip, pod, ns) = (&settings.instance_ip, &settings.pod_name, &settings.pod_namespace);
    Node {
        id: format!("ztunnel~{ip}~{pod}.{ns}~{ns}.svc.cluster.local"),
        cluster: String::new(),
        metadata: Some(prost_types::Struct {
            fields: fields.into_iter().map(|(key, value)| (key.to_owned(), text(value))).collect(),
        }),
    }
}
