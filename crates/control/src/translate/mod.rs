//! Objects to mesh records. Pure: which records a change touches, and what they become.

pub mod authorization;
pub mod l7;
pub mod objects;
pub mod service;
pub mod waypoint;
pub mod workload;

use crate::files::ObjectChange;
use objects::Objects;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use trysail_api::istio::peer_authentication::Mode;
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service};
use trysail_api::object::{Kind, Object, ObjectKey, labels};
use trysail_mesh::{Change, codec};
use trysail_policy::authz::Policy;
use trysail_policy::{ROOT_NAMESPACE, peer_auth};
use trysail_wire::type_urls::L7_GATEWAY;

/// What all records of a mesh share.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// The trust domain of every identity.
    pub trust_domain: String,
    /// The cluster's id, first part of every uid.
    pub cluster: String,
}

/// A resource beside the mesh records that changed; without a body it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Type.
    pub type_url: &'static str,
    /// Name.
    pub name: String,
    /// Content.
    pub body: Option<Vec<u8>>,
    /// Another name that it can be asked for by.
    pub alias: Option<String>,
}

/// What follows from changes of objects.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Of the mesh state.
    pub records: Vec<Change>,
    /// Beside it.
    pub resources: Vec<Resource>,
}

/// All objects, and the records made of them.
pub struct Translator {
    config: MeshConfig,
    objects: Objects,
    /// The records in effect, by name on the wire.
    addresses: BTreeMap<String, Change>,
    policies: BTreeMap<String, Arc<Policy>>,
    resources: l7::Resources,
}

/// Kinds that decide what proxies which understand HTTP are told.
const L7_KINDS: [Kind; 11] = [
    Kind::Namespace,
    Kind::Service,
    Kind::Secret,
    Kind::AuthorizationPolicy,
    Kind::RequestAuthentication,
    Kind::VirtualService,
    Kind::DestinationRule,
    Kind::Gateway,
    Kind::HTTPRoute,
    Kind::GRPCRoute,
    Kind::ReferenceGrant,
];

impl Translator {
    /// Without any object yet.
    pub fn new(config: MeshConfig) -> Self {
        Self {
            config,
            objects: Objects::default(),
            addresses: BTreeMap::new(),
            policies: BTreeMap::new(),
            resources: BTreeMap::new(),
        }
    }

    /// Takes object changes in and returns what follows from them.
    pub fn apply(&mut self, changes: Vec<ObjectChange>) -> Outcome {
        let mut touched: BTreeSet<ObjectKey> = BTreeSet::new();
        let (mut policies_changed, mut l7_changed) = (false, false);
        let mut out = Vec::new();
        for (key, object) in changes {
            // Whatever selects or binds touches what is in its namespace, or everything from the root namespace; a gateway or a
            // namespace may be what another namespace's objects are bound to.
            let reach = match key.kind {
                Kind::Service => Some(false),
                Kind::PeerAuthentication | Kind::AuthorizationPolicy => Some(key.namespace == ROOT_NAMESPACE),
                Kind::Gateway | Kind::Namespace => Some(true),
                _ => None,
            };
            if let Some(everywhere) = reach {
                let all = self.objects.keys(Kind::Pod).chain(self.objects.keys(Kind::Service));
                touched.extend(all.filter(|k| everywhere || k.namespace == key.namespace).cloned());
                policies_changed = true;
            }
            if matches!(key.kind, Kind::Pod | Kind::Service) {
                touched.insert(key.clone());
            }
            out.extend(network(&key, object.as_ref()));
            l7_changed |= L7_KINDS.contains(&key.kind) || (key.kind == Kind::Pod && self.selects_pods());
            self.objects.set(key, object);
        }
        let mut records = out;
        let mut implied: BTreeMap<String, Policy> = BTreeMap::new();
        for key in &touched {
            self.address(key, &mut records, &mut implied);
        }
        if policies_changed || !implied.is_empty() {
            self.policies(&mut records);
        }
        Outcome { records, resources: if l7_changed { self.l7() } else { Vec::new() } }
    }

    /// Whether a pod's labels matter to an L7 resource: for a subset, or for whose tokens are believed.
    fn selects_pods(&self) -> bool {
        self.objects.destination_rules().any(|d| !d.spec.subsets.is_empty())
            || self.objects.request_authentications().any(|r| r.spec.selector.is_some())
    }

    /// The L7 resources that differ from what they were.
    fn l7(&mut self) -> Vec<Resource> {
        let now = l7::resources(&self.objects, &self.config.cluster);
        let before = std::mem::replace(&mut self.resources, now);
        let put = self.resources.iter().filter(|(key, body)| before.get(*key) != Some(body));
        let put = put.map(|((t, name), body)| Resource {
            type_url: t,
            name: name.clone(),
            body: Some(body.clone()),
            alias: self.account_of(t, name),
        });
        let gone = before.keys().filter(|key| !self.resources.contains_key(*key));
        let gone = gone.map(|(t, name)| Resource { type_url: t, name: name.clone(), body: None, alias: None });
        put.chain(gone).collect()
    }

    /// A gateway's resource is asked for by the account that the gateway runs under.
    fn account_of(&self, type_url: &str, name: &str) -> Option<String> {
        let (namespace, name) = name.split_once('/').filter(|_| type_url == L7_GATEWAY)?;
        let gateway = self.objects.gateway(namespace, name)?;
        Some(format!("{namespace}/{}", crate::deploy::made_name(gateway)))
    }

    fn address(&mut self, key: &ObjectKey, out: &mut Vec<Change>, implied: &mut BTreeMap<String, Policy>) {
        let record = match self.objects.get(key) {
            Some(Object::Pod(pod)) => self.workload(pod, implied).map(|w| Change::Workload(Arc::new(w))),
            Some(Object::Service(service)) => {
                let record = service::service(service)
                    .map(|s| trysail_mesh::Service { waypoint: waypoint::of_service(&self.objects, service), ..s });
                record.map(|s| Change::Service(Arc::new(s)))
            }
            _ => None,
        };
        let name = match key.kind {
            Kind::Pod => format!("{}//Pod/{}/{}", self.config.cluster, key.namespace, key.name),
            _ => objects::service_key(&key.namespace, &key.name),
        };
        match record {
            Some(record) => {
                if !self.addresses.get(&name).is_some_and(|old| same(old, &record)) {
                    self.addresses.insert(name, record.clone());
                    out.push(record);
                }
            }
            None => {
                if self.addresses.remove(&name).is_some() {
                    out.push(Change::AddressGone(name));
                }
            }
        }
    }

    fn workload(&self, pod: &Pod, implied: &mut BTreeMap<String, Policy>) -> Option<trysail_mesh::Workload> {
        let namespace = objects::namespace(&pod.metadata);
        let services: Vec<&Service> = self.objects.services_in(namespace).collect();
        let mut record = workload::workload(pod, &self.config, &services)?;
        record.waypoint = waypoint::of_pod(&self.objects, pod);
        let policies = self.implied(pod);
        // Where mesh TLS is switched off, peers in the mesh do not speak it either.
        if record.native_tunnel && self.effective(pod).mode == Mode::Disable {
            record.protocol = trysail_mesh::Protocol::Plain;
        }
        for policy in policies {
            let name = format!("{}/{}", policy.namespace, policy.name);
            record.policies.push(name.clone());
            implied.insert(name, policy);
        }
        for policy in self.objects.authorization_policies() {
            if authorization::lists(policy, namespace, labels(&pod.metadata)) {
                record.policies.push(authorization::full_name(policy));
            }
        }
        Some(record)
    }

    fn effective(&self, pod: &Pod) -> peer_auth::Effective {
        let peers: Vec<_> = self.objects.peer_authentications().collect();
        peer_auth::effective(&peers, objects::namespace(&pod.metadata), labels(&pod.metadata))
    }

    /// Policies that no object states and that follow for a pod: from PeerAuthentication, and from a required L7 hop.
    fn implied(&self, pod: &Pod) -> Vec<Policy> {
        let namespace = objects::namespace(&pod.metadata);
        let services: Vec<&Service> =
            self.objects.services_in(namespace).filter(|s| service::selects(s, pod)).collect();
        let peers = peer_auth::as_policy(&self.effective(pod), namespace);
        let hops = waypoint::hop_policies(&self.objects, &services, pod, &self.config.trust_domain);
        peers.into_iter().chain(hops).collect()
    }

    /// Recomputes every policy; they are few beside workloads.
    fn policies(&mut self, out: &mut Vec<Change>) {
        let mut now: BTreeMap<String, Policy> = BTreeMap::new();
        for policy in self.objects.authorization_policies() {
            let translated = authorization::translate(policy, &self.config.trust_domain);
            for note in &translated.notes {
                tracing::warn!("AuthorizationPolicy {}: {note}", authorization::full_name(policy));
            }
            if let Some(policy) = translated.policy {
                now.insert(format!("{}/{}", policy.namespace, policy.name), policy);
            }
        }
        for pod in self.objects.pods() {
            for policy in self.implied(pod) {
                now.insert(format!("{}/{}", policy.namespace, policy.name), policy);
            }
        }
        let gone: Vec<String> = self.policies.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
        // Policies come before the workloads that list them, and leave after: a listed name that is unknown is skipped by proxies.
        let mut first = Vec::new();
        for (name, policy) in now {
            if self.policies.get(&name).is_none_or(|old| **old != policy) {
                let policy = Arc::new(policy);
                self.policies.insert(name, policy.clone());
                first.push(Change::Policy(policy));
            }
        }
        out.splice(0..0, first);
        for name in gone {
            self.policies.remove(&name);
            out.push(Change::PolicyGone(name));
        }
    }
}

/// The record of a NetworkPolicy or of a namespace's labels.
fn network(key: &ObjectKey, object: Option<&Object>) -> Option<Change> {
    let full = || format!("{}/{}", key.namespace, key.name);
    match (key.kind, object) {
        (Kind::NetworkPolicy, None) => Some(Change::NetworkPolicyGone(full())),
        (Kind::Namespace, None) => Some(Change::NamespaceGone(key.name.clone())),
        (_, Some(Object::NetworkPolicy(policy))) => {
            let spec = policy.spec.clone().unwrap_or_default();
            let written = serde_json::to_vec(&spec).unwrap_or_default();
            Some(codec::network_policy_of(key.namespace.clone(), key.name.clone(), spec, written))
        }
        (_, Some(Object::Namespace(namespace))) => {
            Some(Change::Namespace(key.name.clone(), labels(&namespace.metadata).clone()))
        }
        _ => None,
    }
}

fn same(a: &Change, b: &Change) -> bool {
    match (a, b) {
        (Change::Workload(a), Change::Workload(b)) => a == b,
        (Change::Service(a), Change::Service(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
