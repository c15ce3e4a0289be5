//! Objects to mesh records. Pure: which records a change touches, and what they become.

pub mod authorization;
pub mod service;
pub mod workload;

use crate::files::ObjectChange;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use trysail_api::istio::authorization_policy::AuthorizationPolicy;
use trysail_api::istio::peer_authentication::PeerAuthentication;
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service};
use trysail_api::object::{Kind, Object, ObjectKey, labels};
use trysail_mesh::Change;
use trysail_policy::authz::Policy;
use trysail_policy::{ROOT_NAMESPACE, peer_auth};

/// What all records of a mesh share.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// The trust domain of every identity.
    pub trust_domain: String,
    /// The cluster's id, first part of every uid.
    pub cluster: String,
}

/// All objects, and the records made of them.
pub struct Translator {
    config: MeshConfig,
    objects: BTreeMap<ObjectKey, Object>,
    /// The records in effect, by name on the wire.
    addresses: BTreeMap<String, Change>,
    policies: BTreeMap<String, Arc<Policy>>,
}

impl Translator {
    /// Without any object yet.
    pub fn new(config: MeshConfig) -> Self {
        Self { config, objects: BTreeMap::new(), addresses: BTreeMap::new(), policies: BTreeMap::new() }
    }

    /// Takes object changes in and returns the record changes that follow from them.
    pub fn apply(&mut self, changes: Vec<ObjectChange>) -> Vec<Change> {
        let mut touched: BTreeSet<ObjectKey> = BTreeSet::new();
        let mut policies_changed = false;
        for (key, object) in changes {
            match key.kind {
                Kind::Service | Kind::PeerAuthentication | Kind::AuthorizationPolicy => {
                    // Whatever selects pods touches those of its namespace, or all from the root namespace.
                    let everywhere = key.kind != Kind::Service && key.namespace == ROOT_NAMESPACE;
                    let pods = self.objects.keys().filter(|k| k.kind == Kind::Pod);
                    touched.extend(pods.filter(|k| everywhere || k.namespace == key.namespace).cloned());
                    policies_changed |= key.kind != Kind::Service;
                }
                _ => {}
            }
            if matches!(key.kind, Kind::Pod | Kind::Service) {
                touched.insert(key.clone());
            }
            match object {
                Some(object) => self.objects.insert(key, object),
                None => self.objects.remove(&key),
            };
        }
        let mut out = Vec::new();
        let mut peer_policies: BTreeMap<String, Policy> = BTreeMap::new();
        for key in &touched {
            self.address(key, &mut out, &mut peer_policies);
        }
        if policies_changed || !peer_policies.is_empty() {
            self.policies(&mut out);
        }
        out
    }

    fn address(&mut self, key: &ObjectKey, out: &mut Vec<Change>, peer_policies: &mut BTreeMap<String, Policy>) {
        let record = match self.objects.get(key) {
            Some(Object::Pod(pod)) => self.workload(pod, peer_policies).map(|w| Change::Workload(Arc::new(w))),
            Some(Object::Service(service)) => service::service(service).map(|s| Change::Service(Arc::new(s))),
            _ => None,
        };
        let name = match key.kind {
            Kind::Pod => format!("{}//Pod/{}/{}", self.config.cluster, key.namespace, key.name),
            _ => format!("{}/{}", key.namespace, trysail_api::ids::service_hostname(&key.name, &key.namespace)),
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

    fn workload(&self, pod: &Pod, peer_policies: &mut BTreeMap<String, Policy>) -> Option<trysail_mesh::Workload> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let mut record = workload::workload(pod, &self.config, &self.services(namespace))?;
        let pod_labels = labels(&pod.metadata);
        let effective = peer_auth::effective(&self.peer_authentications(), namespace, pod_labels);
        if let Some(policy) = peer_auth::as_policy(&effective, namespace) {
            let name = format!("{}/{}", policy.namespace, policy.name);
            record.policies.push(name.clone());
            peer_policies.insert(name, policy);
        }
        for policy in self.authorization_policies() {
            if authorization::lists(policy, namespace, pod_labels) {
                record.policies.push(authorization::full_name(policy));
            }
        }
        Some(record)
    }

    /// Recomputes every policy; they are few beside workloads.
    fn policies(&mut self, out: &mut Vec<Change>) {
        let mut now: BTreeMap<String, Policy> = BTreeMap::new();
        for policy in self.authorization_policies() {
            let translated = authorization::translate(policy, &self.config.trust_domain);
            for note in &translated.notes {
                tracing::warn!("AuthorizationPolicy {}: {note}", authorization::full_name(policy));
            }
            if let Some(policy) = translated.policy {
                now.insert(format!("{}/{}", policy.namespace, policy.name), policy);
            }
        }
        let pods = self.objects.values().filter_map(|o| match o {
            Object::Pod(pod) => Some(pod),
            _ => None,
        });
        let peers = self.peer_authentications();
        for pod in pods {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            let effective = peer_auth::effective(&peers, namespace, labels(&pod.metadata));
            if let Some(policy) = peer_auth::as_policy(&effective, namespace) {
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

    fn services(&self, namespace: &str) -> Vec<&Service> {
        let from = ObjectKey::new(Kind::Service, namespace, "");
        let in_namespace =
            self.objects.range(from..).take_while(|(k, _)| k.kind == Kind::Service && k.namespace == namespace);
        in_namespace
            .filter_map(|(_, object)| match object {
                Object::Service(service) => Some(&**service),
                _ => None,
            })
            .collect()
    }

    fn peer_authentications(&self) -> Vec<&PeerAuthentication> {
        self.objects
            .values()
            .filter_map(|o| match o {
                Object::PeerAuthentication(p) => Some(&**p),
                _ => None,
            })
            .collect()
    }

    fn authorization_policies(&self) -> Vec<&AuthorizationPolicy> {
        self.objects
            .values()
            .filter_map(|o| match o {
                Object::AuthorizationPolicy(p) => Some(&**p),
                _ => None,
            })
            .collect()
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
