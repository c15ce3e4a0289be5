//! Where a connection goes and whether it may: pure, one snapshot a decision.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_hbone::authority::Authority;
use trysail_mesh::model::Waypoint;
use trysail_mesh::pick::{NoEndpoint, pick};
use trysail_mesh::{Health, Protocol, Service, Snapshot, Workload};
use trysail_policy::authz::{Facts, Verdict, evaluate};
use trysail_policy::network::{self, Direction};

/// Where an outbound connection goes.
#[derive(Clone, Debug)]
pub enum Route {
    /// Through a tunnel.
    Tunnel {
        /// The workload at the end of the tunnel: the called one, or a waypoint.
        workload: Arc<Workload>,
        /// Where the tunnel ends.
        end: SocketAddr,
        /// Where the inner connection leads: an application's port, or a service that a waypoint serves.
        target: SocketAddr,
        /// The service that was called.
        service: Option<Arc<Service>>,
    },
    /// As it is.
    Plain {
        /// Where to.
        to: SocketAddr,
        /// The called workload, if it is known.
        workload: Option<Arc<Workload>>,
        /// The service that was called.
        service: Option<Arc<Service>>,
    },
}

/// Why an outbound connection goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// The service has no usable endpoint.
    #[error("{service}: {reason}")]
    Endpoint {
        /// The service.
        service: String,
        /// Why.
        reason: NoEndpoint,
    },
    /// The destination demands an L7 hop, and none is ready.
    #[error("{0} is bound to a waypoint, and none is ready to go through")]
    Waypoint(String),
    /// The called address belongs to a workload that was tried without success.
    #[error("{0} cannot be reached")]
    Tried(String),
}

impl Route {
    /// The same, for the service that was called.
    fn called(mut self, by: Arc<Service>) -> Self {
        let (Self::Tunnel { service, .. } | Self::Plain { service, .. }) = &mut self;
        *service = Some(by);
        self
    }

    /// The workload that is called.
    pub fn workload(&self) -> Option<&Arc<Workload>> {
        match self {
            Self::Tunnel { workload, .. } => Some(workload),
            Self::Plain { workload, .. } => workload.as_ref(),
        }
    }

    /// The service that is called.
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Tunnel { service, .. } | Self::Plain { service, .. } => service.as_ref(),
        }
    }

    /// The application's address.
    pub fn target(&self) -> SocketAddr {
        match self {
            Self::Tunnel { target, .. } => *target,
            Self::Plain { to, .. } => *to,
        }
    }
}

/// The route of a connection of `source` to `destination`, leaving out the workloads in `tried`. `random` is uniform in 0..1.
pub fn outbound(
    snapshot: &Snapshot,
    source: &Workload,
    destination: SocketAddr,
    tried: &[WorkloadUid],
    random: f64,
) -> Result<Route, NoRoute> {
    if let Some(service) = snapshot.service_at(destination.ip()) {
        if let Some(waypoint) = &service.waypoint {
            let hop = through(snapshot, waypoint, destination, tried, random);
            return hop
                .map(|route| route.called(service.clone()))
                .ok_or_else(|| NoRoute::Waypoint(service.key.to_string()));
        }
        return match pick(snapshot, (service, destination.port()), Some(source), tried, random) {
            Ok(found) => {
                Ok(to_workload(found.workload, SocketAddr::new(found.address, found.port), Some(service.clone())))
            }
            Err(_) if service.balancing.passthrough => {
                Ok(Route::Plain { to: destination, workload: None, service: Some(service.clone()) })
            }
            Err(reason) => Err(NoRoute::Endpoint { service: service.key.to_string(), reason }),
        };
    }
    let mut found = None;
    for workload in snapshot.at_address(destination.ip()) {
        let own = |w: &Waypoint| snapshot.waypoint(w).iter().any(|hop| hop.uid == source.uid);
        if let Some(waypoint) = workload.waypoint.as_ref().filter(|w| !own(w)) {
            let hop = through(snapshot, waypoint, destination, tried, random);
            return hop.ok_or_else(|| NoRoute::Waypoint(workload.uid.to_string()));
        }
        if tried.contains(&workload.uid) {
            return Err(NoRoute::Tried(workload.uid.to_string()));
        }
        // Should several claim the address, one that can prove itself is preferred: the handshake confirms or refuses it.
        if found.is_none() || workload.protocol == Protocol::Hbone {
            found = Some(workload.clone());
        }
    }
    Ok(match found {
        Some(workload) => to_workload(workload, destination, None),
        None => Route::Plain { to: destination, workload: None, service: None },
    })
}

/// The way through a waypoint that is ready.
fn through(
    snapshot: &Snapshot,
    waypoint: &Waypoint,
    target: SocketAddr,
    tried: &[WorkloadUid],
    random: f64,
) -> Option<Route> {
    let usable = |w: &&Arc<Workload>| w.health == Health::Healthy && !tried.contains(&w.uid);
    let ready: Vec<&Arc<Workload>> = snapshot.waypoint(waypoint).into_iter().filter(usable).collect();
    let hop = ready.get((random * ready.len() as f64) as usize)?;
    let end = SocketAddr::new(*hop.addresses.first()?, waypoint.port);
    Some(Route::Tunnel { workload: (*hop).clone(), end, target, service: None })
}

fn to_workload(workload: Arc<Workload>, to: SocketAddr, service: Option<Arc<Service>>) -> Route {
    match workload.protocol {
        Protocol::Hbone => {
            let end = SocketAddr::new(to.ip(), trysail_hbone::PORT);
            Route::Tunnel { workload, end, target: to, service }
        }
        Protocol::Plain => Route::Plain { to, workload: Some(workload), service },
    }
}

/// The identities that the far end of a tunnel may have.
pub fn expected(workload: &Workload, service: Option<&Service>) -> Vec<SpiffeId> {
    let named = service.iter().flat_map(|s| &s.subject_alt_names).filter_map(|name| name.parse().ok());
    std::iter::once(workload.identity.clone()).chain(named).collect()
}

/// Why an inbound connection is not let through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The tunnel's inner address is not this pod's.
    #[error("the inner address {0} is not the address that was dialled")]
    OtherAddress(String),
    /// Leads to the proxy itself, or nowhere.
    #[error("port {0} cannot be called")]
    Port(u16),
    /// The inner host name is not one that this pod serves.
    #[error("{0} is not served by this pod")]
    UnknownHost(String),
    /// The source address belongs to a workload of another identity.
    #[error("the peer {peer} is not the workload at {address}")]
    OtherPeer {
        /// What the certificate says.
        peer: SpiffeId,
        /// Where the connection came from.
        address: IpAddr,
    },
    /// Policy.
    #[error("{0}")]
    Policy(Verdict),
    /// NetworkPolicies, asked about what is inside the tunnel.
    #[error("networkpolicy: {0}")]
    Network(network::Verdict),
}

/// The port of the pod `workload` that a CONNECT to `authority` leads to. `local`: the address that was dialled.
pub fn inner_port(workload: &Workload, authority: &Authority, local: IpAddr) -> Result<u16, Refusal> {
    let port = match authority {
        Authority::Address(address) if address.ip() == local => address.port(),
        Authority::Address(address) => return Err(Refusal::OtherAddress(address.to_string())),
        Authority::Host(host, port) => {
            let ports = workload.services.iter().find(|(key, _)| key.hostname() == host).map(|(_, ports)| ports);
            let ports = ports.ok_or_else(|| Refusal::UnknownHost(authority.to_string()))?;
            *ports.get(port).ok_or(Refusal::Port(*port))?
        }
    };
    if port == 0 || crate::OWN_PORTS.contains(&port) {
        return Err(Refusal::Port(port));
    }
    Ok(port)
}

/// The record of the peer behind a tunnel, by its address, confirmed by its certificate. An address without a record says nothing.
pub fn peer<'a>(
    snapshot: &'a Snapshot,
    identity: &SpiffeId,
    address: IpAddr,
) -> Result<Option<&'a Arc<Workload>>, Refusal> {
    let mut known = false;
    for workload in snapshot.at_address(address) {
        if workload.identity == *identity {
            return Ok(Some(workload));
        }
        known = true;
    }
    if known { Err(Refusal::OtherPeer { peer: identity.clone(), address }) } else { Ok(None) }
}

/// Whether NetworkPolicies admit what is inside a tunnel: the destination's for what comes in, the caller's for what goes out. What a
/// caller's own proxy has judged is judged again, since a sidecar lives in the pod that it judges.
pub fn inside(
    snapshot: &Snapshot,
    own: (&Workload, IpAddr),
    (caller, address): (Option<&Workload>, IpAddr),
    port: u16,
) -> Result<(), Refusal> {
    let peer = caller.map_or(network::End::Other(address), |w| w.end(address));
    let ingress = snapshot.network_verdict(Direction::Ingress, own, peer, port);
    if !ingress.allows() {
        return Err(Refusal::Network(ingress));
    }
    let Some(caller) = caller else { return Ok(()) };
    let egress = snapshot.network_verdict(Direction::Egress, (caller, address), own.0.end(own.1), port);
    if egress.allows() { Ok(()) } else { Err(Refusal::Network(egress)) }
}

/// Whether NetworkPolicies let `source` go this way. To what a waypoint serves, if they let it go to any endpoint: which of them it will
/// be, the waypoint says.
pub fn may_leave(snapshot: &Snapshot, source: &Workload, route: &Route) -> Result<(), network::Verdict> {
    let Route::Tunnel { workload, target, service, .. } = route else { return Ok(()) };
    let Some(address) = source.addresses.first() else { return Ok(()) };
    let asked = |peer: &Workload, at: IpAddr, port: u16| {
        snapshot.network_verdict(Direction::Egress, (source, *address), peer.end(at), port)
    };
    let verdicts: Vec<network::Verdict> = if workload.addresses.contains(&target.ip()) {
        vec![asked(workload, target.ip(), target.port())]
    } else if let Some(service) = service {
        let each = snapshot.endpoints(&service.key).filter_map(|w| {
            let port = w.services.get(&service.key)?.get(&target.port())?;
            Some(asked(w, *w.addresses.first()?, *port))
        });
        each.collect()
    } else {
        snapshot.at_address(target.ip()).map(|w| asked(w, target.ip(), target.port())).collect()
    };
    match verdicts.iter().any(network::Verdict::allows) {
        true => Ok(()),
        // Without any endpoint there is nothing to refuse.
        false => verdicts.into_iter().next().map_or(Ok(()), Err),
    }
}

/// Whether policy lets a connection with `facts` reach the pod `workload`.
pub fn admit(snapshot: &Snapshot, workload: &Workload, facts: &Facts) -> Result<(), Refusal> {
    match evaluate(snapshot.policies_of(workload), facts) {
        Verdict::Allow => Ok(()),
        no => Err(Refusal::Policy(no)),
    }
}

/// Whether an open connection may go on: its peer is still who it was, and policy still admits it.
pub fn still_admitted(snapshot: &Snapshot, workload: &Workload, facts: &Facts) -> Result<(), Refusal> {
    // Of a caller that a waypoint has spoken for, the waypoint knows whether it is still who it was.
    if let (Some(identity), None) = (&facts.source, &facts.via) {
        peer(snapshot, identity, facts.source_ip)?;
    }
    admit(snapshot, workload, facts)
}

#[cfg(test)]
mod tests;
