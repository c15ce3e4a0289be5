//! Endpoints of a service, with what is known of each from its answers.

use crate::state::{State, cached};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_mesh::pick::{NoEndpoint, candidates};
use trysail_mesh::{Service, Workload};

/// Which endpoints are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Service.
    pub service: ServiceKey,
    /// Its port.
    pub port: u16,
    /// Subset; all when empty.
    pub subset: String,
}

/// An endpoint.
pub struct Endpoint {
    /// Its record.
    pub workload: Arc<Workload>,
    /// Where its application listens.
    pub address: SocketAddr,
    /// What is known of it.
    pub stats: Arc<Stats>,
}

/// What is known of an endpoint from its answers. Outlives snapshots.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests under way.
    pub active: AtomicU32,
    /// Errors in a row: 5xx and failed connections.
    pub errors: AtomicU32,
    /// Gateway errors in a row: 502, 503, 504 and failed connections.
    pub gateway_errors: AtomicU32,
    /// Left out until then, milliseconds on the process's clock.
    pub ejected_until: AtomicU64,
    /// How often it was left out.
    pub ejections: AtomicU32,
}

/// All endpoints that may be chosen.
pub struct EndpointSet {
    /// The endpoints; in a stable order.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Why there is none.
    pub none: Option<NoEndpoint>,
    /// For taking turns.
    pub turn: AtomicUsize,
}

/// What is known of endpoints, by workload and port.
#[derive(Default)]
pub struct Statistics(Mutex<HashMap<(WorkloadUid, u16), Arc<Stats>>>);

impl Statistics {
    fn of(&self, uid: &WorkloadUid, port: u16) -> Arc<Stats> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((uid.clone(), port)).or_default().clone()
    }

    /// Forgets workloads that are gone.
    pub fn sweep(&self, state: &State) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(uid, _), _| state.mesh.workload(uid).is_some());
    }

    /// The endpoints of `wanted`, looked up once a snapshot. `source`: the caller's own record, for services that prefer what is near.
    pub fn set(
        &self,
        state: &State,
        service: &Service,
        wanted: &Wanted,
        source: Option<&Workload>,
    ) -> Arc<EndpointSet> {
        cached(&state.endpoints, wanted, || self.find(state, service, wanted, source))
    }

    fn find(&self, state: &State, service: &Service, wanted: &Wanted, source: Option<&Workload>) -> EndpointSet {
        let members = (!wanted.subset.is_empty()).then(|| {
            let caller = source.map(|w| w.namespace.as_str()).unwrap_or_default();
            let destination = state.destination(&wanted.service, caller);
            destination.and_then(|d| d.subsets.get(&wanted.subset)).map(|s| s.members.as_slice()).unwrap_or_default()
        });
        let found = candidates(&state.mesh, (service, wanted.port), source, &[]);
        let (found, mut none) = match found {
            Ok(found) => (found, None),
            Err(none) => (Vec::new(), Some(none)),
        };
        let mut endpoints: Vec<Arc<Endpoint>> = found
            .into_iter()
            .filter(|e| members.is_none_or(|m| m.contains(&e.workload.uid)))
            .map(|e| {
                let address = SocketAddr::new(e.address, e.port);
                let stats = self.of(&e.workload.uid, e.port);
                Arc::new(Endpoint { workload: e.workload, address, stats })
            })
            .collect();
        endpoints.sort_by(|a, b| a.workload.uid.cmp(&b.workload.uid));
        if endpoints.is_empty() && none.is_none() {
            none = Some(NoEndpoint::None);
        }
        EndpointSet { endpoints, none, turn: AtomicUsize::new(rand::random_range(0..1024)) }
    }
}
