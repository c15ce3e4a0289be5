//! Where one try of a request goes: endpoint, way, version. Decides, and connects nothing.

use crate::answer::Refusal;
use crate::connection::{Downstream, Hop};
use crate::headers;
use crate::proxy::{Proxy, Role};
use crate::reason::Reason;
use crate::router::decoded;
use crate::send::{Destined, Sending};
use crate::state::State;
use crate::upstream::balance::{self, Choice};
use crate::upstream::dial::Target;
use crate::upstream::endpoints::{Endpoint, EndpointSet, Wanted};
use crate::upstream::pool::Version;
use http::header::UPGRADE;
use http::{Method, request::Parts};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use trysail_hbone::caller::Caller;
use trysail_mesh::model::AppProtocol;
use trysail_mesh::{Health, Protocol, Service, Workload};
use trysail_policy::network::{Direction, End};
use trysail_wire::l7::{self as wire, Settings, hash};

/// Where connections of a sidecar to its application come from (Istio's address).
pub const TO_APP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6));

/// Where one try goes.
pub struct Aim {
    /// Where the connection leads, and how.
    pub target: Target,
    /// What is spoken.
    pub version: Version,
    /// The endpoint, among those that it was chosen from.
    pub endpoint: Option<(Arc<Endpoint>, Arc<EndpointSet>)>,
    /// The workload at the end.
    pub workload: Option<Arc<Workload>>,
    /// Its application's address, when this is where the try leads without another hop.
    pub inner: Option<SocketAddr>,
    /// How the destination's endpoints are used.
    pub settings: Arc<Settings>,
    /// Whose limits count.
    pub limits: Option<Wanted>,
    /// A cookie that keeps the client at this endpoint.
    pub cookie: Option<String>,
}

/// The aim of the next try, leaving out endpoints in `tried` while there are others.
pub fn aim(state: &State, sending: &Sending<'_>, tried: &[Arc<Endpoint>]) -> Result<Aim, Refusal> {
    let down = sending.down;
    match &sending.destined {
        Destined::App { address, service } => {
            let port = service.as_ref().and_then(|s| {
                let own = state.mesh.workload(&down.proxy.uid)?.services.get(&s.key)?;
                let (port, _) = own.iter().find(|(_, target)| **target == address.port())?;
                s.ports.iter().find(|p| p.port == *port)
            });
            Ok(plain_aim(
                Target::Plain { address: *address, source: Some(TO_APP) },
                version(port.map(|p| p.protocol).unwrap_or_default(), &sending.parts, false),
                None,
            ))
        }
        Destined::Workload { workload, address } => {
            let target = target(&down.proxy, workload, *address, caller(down));
            let aim = plain_aim(target, version(AppProtocol::Unknown, &sending.parts, false), Some(workload.clone()));
            Ok(Aim { inner: Some(*address), ..aim })
        }
        Destined::Service { service, port, subset } => service_aim(state, sending, (service, *port, subset), tried),
    }
}

fn plain_aim(target: Target, version: Version, workload: Option<Arc<Workload>>) -> Aim {
    Aim { target, version, endpoint: None, workload, inner: None, settings: Arc::default(), limits: None, cookie: None }
}

fn service_aim(
    state: &State,
    sending: &Sending<'_>,
    (service, port, subset): (&Arc<Service>, u16, &str),
    tried: &[Arc<Endpoint>],
) -> Result<Aim, Refusal> {
    let down = sending.down;
    let proxy = &down.proxy;
    let known = service.ports.iter().find(|p| p.port == port);
    let protocol = known.map(|p| p.protocol).unwrap_or_default();
    if let Some(waypoint) = service.waypoint.as_ref().filter(|w| !proxy.is_own_waypoint(w)) {
        let (target, workload) = waypoint_target(state, service, waypoint, port)?;
        return Ok(plain_aim(target, version(protocol, &sending.parts, false), Some(workload)));
    }
    let own = &proxy.settings.pod_namespace;
    let settings = state
        .traffic(&service.key, own, (port, subset))
        .map_err(|_| Refusal::new(Reason::InvalidBackend, format!("{} has no subset {subset:?}", service.key)))?;
    let wanted = Wanted { service: service.key.clone(), port, subset: subset.to_owned() };
    let source = state.mesh.workload(&proxy.uid).map(|w| &**w);
    let set = proxy.upstream.statistics.set(state, service, &wanted, source);
    let (hash, cookie) = hashed(&settings, sending);
    let random = (rand::random_range(0..usize::MAX), rand::random_range(0..usize::MAX));
    let choice = Choice { settings: &settings, hash, tried, now: proxy.now(), random };
    let endpoint = balance::choose(&set, &choice)
        .map_err(|none| Refusal::new(Reason::NoEndpoint, format!("{}: {none}", service.key)))?;
    let target = if settings.plaintext {
        Target::Plain { address: endpoint.address, source: None }
    } else {
        target(proxy, &endpoint.workload, endpoint.address, caller(down))
    };
    Ok(Aim {
        target,
        version: version(protocol, &sending.parts, settings.upgrade_h2),
        workload: Some(endpoint.workload.clone()),
        inner: Some(endpoint.address),
        endpoint: Some((endpoint, set)),
        settings,
        limits: Some(wanted),
        cookie,
    })
}

/// Whether NetworkPolicies admit a try, for the caller that it is made for: each request is asked about, since a connection that is kept
/// may be older than a policy.
pub fn permitted(state: &State, down: &Downstream, aim: &Aim) -> Result<(), Refusal> {
    let proxy = &down.proxy;
    let (Some(workload), Some(to)) = (&aim.workload, aim.inner) else { return Ok(()) };
    if !proxy.settings.inner_gate {
        return Ok(());
    }
    let (source, address) = match down.hop {
        Hop::Waypoint { .. } | Hop::WaypointWorkload { .. } => (down.source.workload.as_ref(), down.facts.source_ip),
        _ => (state.mesh.workload(&proxy.uid), proxy.settings.instance_ip),
    };
    let peer = source.map_or(End::Other(address), |w| w.end(address));
    let ingress = state.mesh.network_verdict(Direction::Ingress, (workload, to.ip()), peer, to.port());
    let egress =
        source.map(|w| state.mesh.network_verdict(Direction::Egress, (w, address), workload.end(to.ip()), to.port()));
    match [Some(ingress), egress].into_iter().flatten().find(|verdict| !verdict.allows()) {
        None => Ok(()),
        Some(verdict) => Err(Refusal::new(Reason::NetworkPolicy, verdict.to_string())),
    }
}

/// The way to a workload's port.
pub fn target(proxy: &Proxy, workload: &Workload, address: SocketAddr, caller: Option<Caller>) -> Target {
    // One's own application is called as what comes from outside calls it.
    if workload.uid == proxy.uid && proxy.role == Role::Sidecar {
        return Target::Plain { address, source: Some(TO_APP) };
    }
    let expected = vec![workload.identity.clone()];
    match (workload.protocol, workload.native_tunnel) {
        (Protocol::Plain, _) => Target::Plain { address, source: None },
        // A waypoint states the caller, which takes a tunnel.
        (Protocol::Hbone, true) if proxy.role != Role::Waypoint => {
            Target::Sidecar { uid: workload.uid.clone(), expected, address }
        }
        (Protocol::Hbone, _) => Target::Tunnel {
            uid: workload.uid.clone(),
            expected,
            address: SocketAddr::new(address.ip(), trysail_hbone::PORT),
            inner: address,
            caller,
        },
    }
}

/// The caller, as a waypoint states it to destinations.
pub fn caller(down: &Downstream) -> Option<Caller> {
    let waypoint = matches!(down.hop, Hop::Waypoint { .. } | Hop::WaypointWorkload { .. });
    waypoint.then(|| Caller { identity: down.facts.source.clone(), address: down.facts.source_ip })
}

/// The way to a waypoint, for a service of its own.
pub fn waypoint_target(
    state: &State,
    service: &Service,
    waypoint: &trysail_mesh::model::Waypoint,
    port: u16,
) -> Result<(Target, Arc<Workload>), Refusal> {
    let missing =
        |what: &str| Refusal::new(Reason::NoEndpoint, format!("{} is bound to a waypoint, {what}", service.key));
    let ready: Vec<&Arc<Workload>> =
        state.mesh.waypoint(waypoint).into_iter().filter(|w| w.health == Health::Healthy).collect();
    let chosen = ready.get(rand::random_range(0..ready.len().max(1))).ok_or_else(|| missing("and none is ready"))?;
    let address = chosen.addresses.first().ok_or_else(|| missing("which has no address"))?;
    let (_, vip) = service.addresses.first().ok_or_else(|| missing("and has no address to be called by"))?;
    let target = Target::Tunnel {
        uid: chosen.uid.clone(),
        expected: vec![chosen.identity.clone()],
        address: SocketAddr::new(*address, waypoint.port),
        inner: SocketAddr::new(*vip, port),
        caller: None,
    };
    Ok((target, (*chosen).clone()))
}

/// What is spoken to the endpoint: what its port declares, else what the client spoke.
fn version(protocol: AppProtocol, parts: &Parts, upgrade_h2: bool) -> Version {
    let upgrades = parts.headers.contains_key(UPGRADE) || parts.method == Method::CONNECT;
    if upgrades {
        return Version::Http1;
    }
    match protocol {
        AppProtocol::Http2 | AppProtocol::Grpc => Version::Http2,
        // gRPC is HTTP/2 whatever a port's name says.
        _ if headers::is_grpc(&parts.headers) && parts.version == http::Version::HTTP_2 => Version::Http2,
        AppProtocol::Http1 if !upgrade_h2 => Version::Http1,
        _ if upgrade_h2 || parts.version == http::Version::HTTP_2 => Version::Http2,
        _ => Version::Http1,
    }
}

/// The hash that decides on the endpoint, and the cookie that must be made for it.
fn hashed(settings: &Settings, sending: &Sending<'_>) -> (Option<u64>, Option<String>) {
    let Some(kind) = settings.hash.as_ref().and_then(|h| h.kind.as_ref()) else { return (None, None) };
    if settings.balance() != wire::Balance::Hash {
        return (None, None);
    }
    let parts = &sending.parts;
    let text = match kind {
        hash::Kind::Header(name) => parts.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned),
        hash::Kind::SourceIp(_) => Some(sending.down.facts.source_ip.to_string()),
        hash::Kind::Query(name) => {
            let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|p| p.split_once('='));
            pairs.into_iter().find(|(key, _)| decoded(key) == **name).map(|(_, v)| decoded(v).into_owned())
        }
        hash::Kind::Cookie(cookie) => {
            let known = headers::cookie(&parts.headers, &cookie.name);
            let (None, Some(ttl)) = (&known, cookie.ttl_s) else { return (known.map(|k| balance::hash(&k)), None) };
            let value = format!("{:032x}", rand::random::<u128>());
            let path = if cookie.path.is_empty() { String::new() } else { format!("; Path={}", cookie.path) };
            let age = if ttl > 0 { format!("; Max-Age={ttl}") } else { String::new() };
            let made = format!("{}={value}{age}{path}; HttpOnly", cookie.name);
            return (Some(balance::hash(&value)), Some(made));
        }
    };
    (text.map(|t| balance::hash(&t)), None)
}
