//! The snapshot: immutable indexes that share their structure with the next one.

use crate::model::{Service, Waypoint, WaypointAt, Workload};
use rpds::{HashTrieMapSync, HashTrieSetSync};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_policy::authz::{Policy, Scope};
use trysail_policy::network;

pub(crate) type Map<K, V> = HashTrieMapSync<K, V>;
pub(crate) type Set<T> = HashTrieSetSync<T>;

/// Everything known of the mesh at one moment. A decision takes one and uses only it.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub(crate) workloads: Map<WorkloadUid, Arc<Workload>>,
    pub(crate) services: Map<ServiceKey, Arc<Service>>,
    pub(crate) policies: Map<String, Arc<Policy>>,
    pub(crate) by_address: Map<IpAddr, Set<WorkloadUid>>,
    pub(crate) by_vip: Map<IpAddr, ServiceKey>,
    pub(crate) endpoints: Map<ServiceKey, Set<WorkloadUid>>,
    pub(crate) network: Arc<Network>,
    /// Counts publications.
    pub generation: u64,
}

/// NetworkPolicies by namespace and name, and the labels of namespaces.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub(crate) policies: BTreeMap<String, BTreeMap<String, Arc<network::Policy>>>,
    pub(crate) namespaces: network::Namespaces,
}

impl Snapshot {
    /// What NetworkPolicies say of a workload as one end of a connection.
    pub fn network_verdict(
        &self,
        direction: network::Direction,
        (own, address): (&Workload, IpAddr),
        peer: network::End<'_>,
        port: u16,
    ) -> network::Verdict {
        let Some(policies) = self.network.policies.get(&own.namespace).filter(|_| !own.host_network) else {
            return network::Verdict::NotIsolated;
        };
        let target = network::Target { protocol: network::Protocol::Tcp, port };
        let policies = policies.values().map(Arc::as_ref);
        network::judge(policies, &self.network.namespaces, direction, (own.pod(address), peer), target)
    }

    /// The record of `uid`.
    pub fn workload(&self, uid: &WorkloadUid) -> Option<&Arc<Workload>> {
        self.workloads.get(uid)
    }

    /// The records of the workloads that have `address`: a hint, to be confirmed by identity.
    pub fn at_address(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Workload>> {
        let uids = self.by_address.get(&address);
        uids.into_iter().flat_map(Set::iter).filter_map(|uid| self.workloads.get(uid))
    }

    /// The service with the virtual address `vip`.
    pub fn service_at(&self, vip: IpAddr) -> Option<&Arc<Service>> {
        self.by_vip.get(&vip).and_then(|key| self.services.get(key))
    }

    /// The record of a service.
    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.services.get(key)
    }

    /// The endpoints of a service, healthy or not.
    pub fn endpoints(&self, key: &ServiceKey) -> impl Iterator<Item = &Arc<Workload>> {
        let uids = self.endpoints.get(key);
        uids.into_iter().flat_map(Set::iter).filter_map(|uid| self.workloads.get(uid))
    }

    /// All workloads.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.values()
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// The workloads that serve as a waypoint, healthy or not.
    pub fn waypoint(&self, waypoint: &Waypoint) -> Vec<&Arc<Workload>> {
        match &waypoint.at {
            WaypointAt::Service(key) => self.endpoints(key).collect(),
            WaypointAt::Address(address) => match self.by_vip.get(address) {
                Some(key) => self.endpoints(key).collect(),
                None => self.at_address(*address).collect(),
            },
        }
    }

    /// Whether the workload `hop` may speak for the callers of port `port` of `workload`: it is a waypoint of the workload, or of a
    /// service that leads to that port.
    pub fn speaks_for(&self, hop: &WorkloadUid, workload: &Workload, port: u16) -> bool {
        let services = workload.services.iter().filter(|(_, ports)| ports.values().any(|p| *p == port));
        let of_services = services.filter_map(|(key, _)| self.services.get(key)).filter_map(|s| s.waypoint.as_ref());
        let mut waypoints = of_services.chain(&workload.waypoint);
        waypoints.any(|w| self.waypoint(w).iter().any(|candidate| candidate.uid == *hop))
    }

    /// The policies that apply to a workload: mesh-wide, its namespace's, and those its record lists.
    pub fn policies_of<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Policy> {
        let wide = self.policies.values().filter(|policy| match policy.scope {
            Scope::Global => true,
            Scope::Namespace => policy.namespace == workload.namespace,
            Scope::Workload => false,
        });
        let listed = workload.policies.iter().filter_map(|name| self.policies.get(name));
        wide.chain(listed.filter(|policy| policy.scope == Scope::Workload)).map(Arc::as_ref)
    }
}
