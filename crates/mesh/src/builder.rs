//! The single writer: applies a whole push, keeps every index in step, says what changed.

use crate::model::{Service, Workload};
use crate::state::{Map, Set, Snapshot};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_policy::authz::Policy;
use trysail_policy::network;

/// One record that changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// A workload was added or replaced.
    Workload(Arc<Workload>),
    /// A service was added or replaced.
    Service(Arc<Service>),
    /// A policy was added or replaced.
    Policy(Arc<Policy>),
    /// A NetworkPolicy was added or replaced.
    NetworkPolicy(Arc<network::Policy>, Arc<[u8]>),
    /// A namespace's labels are these.
    Namespace(String, network::Labels),
    /// A NetworkPolicy left, by `namespace/name`.
    NetworkPolicyGone(String),
    /// A namespace left.
    NamespaceGone(String),
    /// A workload or service left; the key is the resource's name on the wire.
    AddressGone(String),
    /// A policy left, by `namespace/name`.
    PolicyGone(String),
}

/// Owns the next snapshot. Not `Clone`: there is one writer.
#[derive(Default)]
pub struct Builder {
    next: Snapshot,
}

impl Builder {
    /// Applies `changes` in order and returns the snapshot to publish.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Snapshot {
        for change in changes {
            match change {
                Change::Workload(workload) => self.put_workload(workload),
                Change::Service(service) => self.put_service(service),
                Change::Policy(policy) => {
                    self.next.policies.insert_mut(format!("{}/{}", policy.namespace, policy.name), policy);
                }
                Change::NetworkPolicy(policy, _) => {
                    let name = format!("{}/{}", policy.namespace, policy.name);
                    let network = Arc::make_mut(&mut self.next.network);
                    network.policies.entry(policy.namespace.clone()).or_default().insert(name, policy);
                }
                Change::Namespace(name, labels) => {
                    Arc::make_mut(&mut self.next.network).namespaces.insert(name, labels);
                }
                Change::NetworkPolicyGone(name) => {
                    let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
                    if let Some(own) = Arc::make_mut(&mut self.next.network).policies.get_mut(namespace) {
                        own.remove(&name);
                    }
                }
                Change::NamespaceGone(name) => {
                    Arc::make_mut(&mut self.next.network).namespaces.remove(&name);
                }
                Change::AddressGone(name) => {
                    self.remove_workload(&WorkloadUid::new(&name));
                    self.remove_service(&ServiceKey::from_wire(&name));
                }
                Change::PolicyGone(name) => {
                    self.next.policies.remove_mut(&name);
                }
            }
        }
        self.next.generation += 1;
        self.next.clone()
    }

    fn put_workload(&mut self, workload: Arc<Workload>) {
        self.remove_workload(&workload.uid);
        // Pods on their node's network share its address, which therefore names none of them.
        if !workload.host_network {
            for address in &workload.addresses {
                add(&mut self.next.by_address, *address, workload.uid.clone());
            }
        }
        for service in workload.services.keys() {
            add(&mut self.next.endpoints, service.clone(), workload.uid.clone());
        }
        self.next.workloads.insert_mut(workload.uid.clone(), workload);
    }

    fn remove_workload(&mut self, uid: &WorkloadUid) {
        let Some(old) = self.next.workloads.get(uid).cloned() else { return };
        for address in &old.addresses {
            remove(&mut self.next.by_address, address, uid);
        }
        for service in old.services.keys() {
            remove(&mut self.next.endpoints, service, uid);
        }
        self.next.workloads.remove_mut(uid);
    }

    fn put_service(&mut self, service: Arc<Service>) {
        self.remove_service(&service.key);
        for (_, address) in &service.addresses {
            self.next.by_vip.insert_mut(*address, service.key.clone());
        }
        self.next.services.insert_mut(service.key.clone(), service);
    }

    fn remove_service(&mut self, key: &ServiceKey) {
        let Some(old) = self.next.services.get(key).cloned() else { return };
        for (_, address) in &old.addresses {
            if self.next.by_vip.get(address) == Some(key) {
                self.next.by_vip.remove_mut::<IpAddr>(address);
            }
        }
        self.next.services.remove_mut(key);
    }
}

fn add<K: Hash + Eq + Clone>(map: &mut Map<K, Set<WorkloadUid>>, key: K, uid: WorkloadUid) {
    let mut set = map.get(&key).cloned().unwrap_or_default();
    set.insert_mut(uid);
    map.insert_mut(key, set);
}

fn remove<K: Hash + Eq + Clone>(map: &mut Map<K, Set<WorkloadUid>>, key: &K, uid: &WorkloadUid) {
    let Some(mut set) = map.get(key).cloned() else { return };
    set.remove_mut(uid);
    if set.is_empty() {
        map.remove_mut(key);
    } else {
        map.insert_mut(key.clone(), set);
    }
}

#[cfg(test)]
pub(crate) mod tests;
