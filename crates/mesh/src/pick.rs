//! Endpoint choice: pure, randomness passed in.

use crate::model::{Health, Scope, Service, Workload};
use crate::state::Snapshot;
use std::net::IpAddr;
use std::sync::Arc;
use trysail_api::ids::WorkloadUid;

/// A chosen endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The address to dial.
    pub address: IpAddr,
    /// The workload's port.
    pub port: u16,
}

/// Why there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The service has no such port.
    #[error("the service has no such port")]
    NoSuchPort,
    /// The service has no endpoint at all.
    #[error("the service has no endpoints")]
    None,
    /// Every endpoint is unready, terminating, or was tried already.
    #[error("the service has no healthy endpoint that was not tried yet")]
    Unhealthy,
}

/// Chooses an endpoint of `service` for `port`, not among `tried`. `random` is uniform in 0..1.
pub fn pick(
    snapshot: &Snapshot,
    (service, port): (&Service, u16),
    source: Option<&Workload>,
    tried: &[WorkloadUid],
    random: f64,
) -> Result<Endpoint, NoEndpoint> {
    let found = candidates(snapshot, (service, port), source, tried)?;
    weighted(found, random).ok_or(NoEndpoint::Unhealthy)
}

/// All endpoints that may be chosen for `port` of `service`: the nearest, by the service's preference, that are usable and not `tried`.
pub fn candidates(
    snapshot: &Snapshot,
    (service, port): (&Service, u16),
    source: Option<&Workload>,
    tried: &[WorkloadUid],
) -> Result<Vec<Endpoint>, NoEndpoint> {
    let known = service.ports.iter().find(|p| p.port == port).ok_or(NoEndpoint::NoSuchPort)?;
    let mut seen = false;
    let mut best: (usize, Vec<Endpoint>) = (0, Vec::new());
    for workload in snapshot.endpoints(&service.key) {
        seen = true;
        let own = workload.services.get(&service.key).and_then(|ports| ports.get(&port)).copied();
        let (Some(target), Some(address)) =
            (own.filter(|p| *p > 0).or((known.target > 0).then_some(known.target)), workload.addresses.first())
        else {
            continue;
        };
        let usable = workload.health == Health::Healthy || service.balancing.allow_unhealthy;
        if !usable || tried.contains(&workload.uid) {
            continue;
        }
        let rank = source.map_or(0, |source| shared_scopes(service, source, workload));
        if service.balancing.strict && rank < service.balancing.preference.len() {
            continue;
        }
        if rank > best.0 {
            best = (rank, Vec::new());
        }
        if rank == best.0 {
            best.1.push(Endpoint { workload: workload.clone(), address: *address, port: target });
        }
    }
    match (best.1.is_empty(), seen) {
        (false, _) => Ok(best.1),
        (true, true) => Err(NoEndpoint::Unhealthy),
        (true, false) => Err(NoEndpoint::None),
    }
}

/// How many scopes of the preference, in order, the two share.
fn shared_scopes(service: &Service, source: &Workload, endpoint: &Workload) -> usize {
    let same = |scope: &Scope| match scope {
        Scope::Region => source.locality.first() == endpoint.locality.first(),
        Scope::Zone => source.locality.get(1) == endpoint.locality.get(1),
        Scope::Subzone => source.locality.get(2) == endpoint.locality.get(2),
        Scope::Node => source.node == endpoint.node,
        Scope::Cluster => source.cluster == endpoint.cluster,
        Scope::Network => source.network == endpoint.network,
    };
    service.balancing.preference.iter().take_while(|scope| same(scope)).count()
}

fn weighted(candidates: Vec<Endpoint>, random: f64) -> Option<Endpoint> {
    let total: f64 = candidates.iter().map(|e| f64::from(e.workload.capacity)).sum();
    let mut left = random * total;
    let mut last = None;
    for candidate in candidates {
        left -= f64::from(candidate.workload.capacity);
        if left < 0.0 {
            return Some(candidate);
        }
        last = Some(candidate);
    }
    last
}

#[cfg(test)]
mod tests;
