//! Wire records to the model and back. Total: what cannot be read is named, and its neighbours still apply.

use crate::builder::Change;
use crate::model::{
    AppProtocol, Health, LoadBalancing, OwnerKind, Protocol, Scope, Service, ServicePort, Waypoint, WaypointAt,
    Workload,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use trysail_api::ids::{DEFAULT_TRUST_DOMAIN, ServiceKey, SpiffeId, WorkloadUid};
use trysail_api::k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use trysail_policy::authz::{Action, Cidr, Match, Policy, Scope as PolicyScope, ServiceAccount, StringMatch};
use trysail_policy::network::{self, NamedPort};
use trysail_wire::type_urls::{ADDRESS, AUTHORIZATION, NAMESPACE, NETWORK_POLICY};
use trysail_wire::{network as net, security as sec, workload as wds};

/// Why a record is refused.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf of this type.
    #[error("the record is not valid protobuf")]
    Protobuf(#[from] prost::DecodeError),
    /// A spec that is not one of a NetworkPolicy.
    #[error("the policy's spec cannot be read")]
    Spec(#[from] serde_json::Error),
    /// An address that is neither 4 nor 16 bytes long.
    #[error("an address of {0} bytes (4 or 16 are possible)")]
    Address(usize),
    /// A port above 65535.
    #[error("port {0} is above 65535")]
    Port(u32),
    /// A block whose prefix is longer than its address.
    #[error("a prefix of {0} bits is longer than the address")]
    Prefix(u32),
    /// A field without which the record means nothing.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A value that this version does not know.
    #[error("{0} is not a known value of {1}")]
    Unknown(i32, &'static str),
}

/// `istio.workload.Address` to a change.
pub fn address(bytes: &[u8]) -> Result<Change, DecodeError> {
    let record: wds::Address = prost::Message::decode(bytes)?;
    match record.r#type.ok_or(DecodeError::Missing("type"))? {
        wds::address::Type::Workload(w) => workload(w).map(|w| Change::Workload(Arc::new(w))),
        wds::address::Type::Service(s) => service(s).map(|s| Change::Service(Arc::new(s))),
    }
}

/// `istio.security.Authorization` to a change.
pub fn authorization(bytes: &[u8]) -> Result<Change, DecodeError> {
    policy(prost::Message::decode(bytes)?).map(|p| Change::Policy(Arc::new(p)))
}

/// The types that a snapshot is made of.
pub const TYPES: [&str; 4] = [AUTHORIZATION, NAMESPACE, NETWORK_POLICY, ADDRESS];

/// A resource of one of these types to a change.
pub fn resource(type_url: &str, bytes: &[u8]) -> Result<Change, DecodeError> {
    match type_url {
        ADDRESS => address(bytes),
        NETWORK_POLICY => network_policy(bytes),
        NAMESPACE => {
            let record: net::Namespace = prost::Message::decode(bytes)?;
            Ok(Change::Namespace(record.name, record.labels))
        }
        _ => authorization(bytes),
    }
}

/// The change that removes a resource.
pub fn gone(type_url: &str, name: &str) -> Change {
    let name = name.to_owned();
    match type_url {
        ADDRESS => Change::AddressGone(name),
        NETWORK_POLICY => Change::NetworkPolicyGone(name),
        NAMESPACE => Change::NamespaceGone(name),
        _ => Change::PolicyGone(name),
    }
}

fn network_policy(bytes: &[u8]) -> Result<Change, DecodeError> {
    let record: net::Policy = prost::Message::decode(bytes)?;
    let spec = serde_json::from_slice(&record.spec)?;
    Ok(network_policy_of(record.namespace, record.name, spec, record.spec))
}

/// A NetworkPolicy's object as a change; `written` is its spec as JSON.
pub fn network_policy_of(namespace: String, name: String, spec: NetworkPolicySpec, written: Vec<u8>) -> Change {
    let metadata = ObjectMeta { namespace: Some(namespace), name: Some(name), ..ObjectMeta::default() };
    let (policy, _) = network::read::read(&NetworkPolicy { metadata, spec: Some(spec) });
    Change::NetworkPolicy(Arc::new(policy), written.into())
}

fn ip(bytes: &[u8]) -> Result<IpAddr, DecodeError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        Ok(IpAddr::from(v4))
    } else {
        <[u8; 16]>::try_from(bytes).map(IpAddr::from).map_err(|_| DecodeError::Address(bytes.len()))
    }
}

fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn port(number: u32) -> Result<u16, DecodeError> {
    number.try_into().map_err(|_| DecodeError::Port(number))
}

fn or_default(text: &str, default: &str) -> String {
    if text.is_empty() { default } else { text }.to_owned()
}

fn workload(w: wds::Workload) -> Result<Workload, DecodeError> {
    if w.uid.is_empty() {
        return Err(DecodeError::Missing("uid"));
    }
    let protocol = match w.tunnel_protocol() {
        wds::TunnelProtocol::Hbone => Protocol::Hbone,
        wds::TunnelProtocol::None => Protocol::Plain,
        wds::TunnelProtocol::LegacyIstioMtls => {
            return Err(DecodeError::Unknown(w.tunnel_protocol, "tunnel_protocol"));
        }
    };
    let owner_kind = match w.workload_type() {
        wds::WorkloadType::Deployment => OwnerKind::Deployment,
        wds::WorkloadType::Cronjob => OwnerKind::CronJob,
        wds::WorkloadType::Pod => OwnerKind::Pod,
        wds::WorkloadType::Job => OwnerKind::Job,
    };
    let health = match w.status() {
        wds::WorkloadStatus::Healthy => Health::Healthy,
        wds::WorkloadStatus::Unhealthy => Health::Unhealthy,
    };
    let host_network = w.network_mode() == wds::NetworkMode::HostNetwork;
    let trust_domain = or_default(&w.trust_domain, DEFAULT_TRUST_DOMAIN);
    let account = or_default(&w.service_account, "default");
    let mut services = BTreeMap::new();
    for (key, list) in w.services {
        let ports = list.ports.iter().map(|p| Ok((port(p.service_port)?, port(p.target_port)?)));
        services.insert(ServiceKey::from_wire(&key), ports.collect::<Result<_, DecodeError>>()?);
    }
    let locality = w.locality.unwrap_or_default();
    Ok(Workload {
        uid: WorkloadUid::new(&w.uid),
        identity: SpiffeId::new(&trust_domain, &w.namespace, &account),
        name: w.name,
        namespace: w.namespace,
        addresses: w.addresses.iter().map(|a| ip(a)).collect::<Result<_, _>>()?,
        network: w.network,
        protocol,
        native_tunnel: w.native_tunnel,
        node: w.node,
        cluster: w.cluster_id,
        canonical_name: w.canonical_name,
        canonical_revision: w.canonical_revision,
        owner_kind,
        owner: w.workload_name,
        health,
        host_network,
        policies: w.authorization_policies,
        services,
        locality: [locality.region, locality.zone, locality.subzone],
        capacity: w.capacity.unwrap_or(1),
        waypoint: w.waypoint.map(waypoint).transpose()?,
        labels: w.labels,
        named_ports: w.named_ports.into_iter().map(named_port).collect::<Result<_, _>>()?,
    })
}

fn named_port(p: wds::NamedPort) -> Result<NamedPort, DecodeError> {
    let protocol = network::Protocol::parse(Some(&p.protocol)).ok_or(DecodeError::Missing("named_ports.protocol"))?;
    Ok(NamedPort { name: p.name, protocol, number: port(p.number)? })
}

/// A workload as it is published.
pub fn workload_to_wire(w: &Workload) -> wds::Workload {
    let service = |ports: &BTreeMap<u16, u16>| wds::PortList {
        ports: ports.iter().map(|(port, target)| wire_port(*port, *target, AppProtocol::Unknown)).collect(),
    };
    let [region, zone, subzone] = w.locality.clone();
    let located = w.locality.iter().any(|part| !part.is_empty());
    wds::Workload {
        name: w.name.clone(),
        namespace: w.namespace.clone(),
        addresses: w.addresses.iter().map(|a| ip_bytes(*a)).collect(),
        network: w.network.clone(),
        tunnel_protocol: match w.protocol {
            Protocol::Plain => wds::TunnelProtocol::None,
            Protocol::Hbone => wds::TunnelProtocol::Hbone,
        } as i32,
        trust_domain: omit(&w.identity.trust_domain, DEFAULT_TRUST_DOMAIN),
        service_account: omit(&w.identity.service_account, "default"),
        node: w.node.clone(),
        canonical_name: w.canonical_name.clone(),
        canonical_revision: w.canonical_revision.clone(),
        workload_type: match w.owner_kind {
            OwnerKind::Deployment => wds::WorkloadType::Deployment,
            OwnerKind::CronJob => wds::WorkloadType::Cronjob,
            OwnerKind::Pod => wds::WorkloadType::Pod,
            OwnerKind::Job => wds::WorkloadType::Job,
        } as i32,
        workload_name: w.owner.clone(),
        native_tunnel: w.native_tunnel,
        authorization_policies: w.policies.clone(),
        status: match w.health {
            Health::Healthy => wds::WorkloadStatus::Healthy,
            Health::Unhealthy => wds::WorkloadStatus::Unhealthy,
        } as i32,
        cluster_id: w.cluster.clone(),
        uid: w.uid.to_string(),
        services: w.services.iter().map(|(key, ports)| (key.to_string(), service(ports))).collect(),
        locality: located.then_some(wds::Locality { region, zone, subzone }),
        network_mode: i32::from(w.host_network),
        capacity: (w.capacity != 1).then_some(w.capacity),
        waypoint: w.waypoint.as_ref().map(waypoint_to_wire),
        labels: w.labels.clone(),
        named_ports: w
            .named_ports
            .iter()
            .map(|p| wds::NamedPort { name: p.name.clone(), protocol: p.protocol.to_string(), number: p.number.into() })
            .collect(),
        ..wds::Workload::default()
    }
}

fn omit(text: &str, default: &str) -> String {
    if text == default { String::new() } else { text.to_owned() }
}

fn wire_port(service_port: u16, target: u16, protocol: AppProtocol) -> wds::Port {
    let app_protocol = match protocol {
        AppProtocol::Unknown => wds::AppProtocol::Unknown,
        AppProtocol::Http1 => wds::AppProtocol::Http11,
        AppProtocol::Http2 => wds::AppProtocol::Http2,
        AppProtocol::Grpc => wds::AppProtocol::Grpc,
        AppProtocol::Tcp => wds::AppProtocol::Tcp,
        AppProtocol::Tls => wds::AppProtocol::Tls,
    };
    wds::Port { service_port: service_port.into(), target_port: target.into(), app_protocol: app_protocol as i32 }
}

fn app_protocol(protocol: wds::AppProtocol) -> AppProtocol {
    match protocol {
        wds::AppProtocol::Unknown => AppProtocol::Unknown,
        wds::AppProtocol::Http11 => AppProtocol::Http1,
        wds::AppProtocol::Http2 => AppProtocol::Http2,
        wds::AppProtocol::Grpc => AppProtocol::Grpc,
        wds::AppProtocol::Tcp => AppProtocol::Tcp,
        wds::AppProtocol::Tls => AppProtocol::Tls,
    }
}

fn waypoint(w: wds::GatewayAddress) -> Result<Waypoint, DecodeError> {
    use wds::gateway_address::Destination;
    let at = match w.destination.ok_or(DecodeError::Missing("destination"))? {
        Destination::Hostname(host) => WaypointAt::Service(ServiceKey::new(&host.namespace, &host.hostname)),
        Destination::Address(address) => WaypointAt::Address(ip(&address.address)?),
    };
    Ok(Waypoint { at, port: port(w.hbone_mtls_port)? })
}

fn waypoint_to_wire(w: &Waypoint) -> wds::GatewayAddress {
    use wds::gateway_address::Destination;
    let destination = match &w.at {
        WaypointAt::Service(key) => Destination::Hostname(wds::NamespacedHostname {
            namespace: key.namespace().to_owned(),
            hostname: key.hostname().to_owned(),
        }),
        WaypointAt::Address(address) => Destination::Address(wds::NetworkAddress {
            network: String::new(),
            address: ip_bytes(*address),
            length: None,
        }),
    };
    wds::GatewayAddress { destination: Some(destination), hbone_mtls_port: w.port.into() }
}

fn service(s: wds::Service) -> Result<Service, DecodeError> {
    use wds::load_balancing as lb;
    if s.hostname.is_empty() {
        return Err(DecodeError::Missing("hostname"));
    }
    let mut balancing = LoadBalancing::default();
    if let Some(given) = &s.load_balancing {
        balancing.strict = given.mode() == lb::Mode::Strict;
        balancing.passthrough = given.mode() == lb::Mode::Passthrough;
        balancing.allow_unhealthy = given.health_policy() == lb::HealthPolicy::AllowAll;
        let scopes = given.routing_preference().filter_map(|scope| match scope {
            lb::Scope::UnspecifiedScope => None,
            lb::Scope::Region => Some(Scope::Region),
            lb::Scope::Zone => Some(Scope::Zone),
            lb::Scope::Subzone => Some(Scope::Subzone),
            lb::Scope::Node => Some(Scope::Node),
            lb::Scope::Cluster => Some(Scope::Cluster),
            lb::Scope::Network => Some(Scope::Network),
        });
        balancing.preference = scopes.collect();
    }
    // Of several by weight the heaviest is taken: one hop that is there is better than none.
    let heaviest = s.weighted_waypoints.iter().max_by_key(|w| w.weight).and_then(|w| w.destination.clone());
    let hop = s.waypoint.clone().or(heaviest);
    let ports = s.ports.iter().map(|p| {
        let protocol = app_protocol(p.app_protocol());
        Ok(ServicePort { port: port(p.service_port)?, target: port(p.target_port)?, protocol })
    });
    Ok(Service {
        key: ServiceKey::new(&s.namespace, &s.hostname),
        addresses: s
            .addresses
            .iter()
            .map(|a| Ok((a.network.clone(), ip(&a.address)?)))
            .collect::<Result<_, DecodeError>>()?,
        ports: ports.collect::<Result<_, DecodeError>>()?,
        name: s.name,
        namespace: s.namespace,
        hostname: s.hostname,
        subject_alt_names: s.subject_alt_names,
        balancing,
        waypoint: hop.map(waypoint).transpose()?,
    })
}

/// A service as it is published.
pub fn service_to_wire(s: &Service) -> wds::Service {
    use wds::load_balancing as lb;
    let balancing = (s.balancing != LoadBalancing::default()).then(|| wds::LoadBalancing {
        routing_preference: s
            .balancing
            .preference
            .iter()
            .map(|scope| match scope {
                Scope::Region => lb::Scope::Region as i32,
                Scope::Zone => lb::Scope::Zone as i32,
                Scope::Subzone => lb::Scope::Subzone as i32,
                Scope::Node => lb::Scope::Node as i32,
                Scope::Cluster => lb::Scope::Cluster as i32,
                Scope::Network => lb::Scope::Network as i32,
            })
            .collect(),
        mode: if s.balancing.strict {
            lb::Mode::Strict
        } else if s.balancing.passthrough {
            lb::Mode::Passthrough
        } else if s.balancing.preference.is_empty() {
            lb::Mode::UnspecifiedMode
        } else {
            lb::Mode::Failover
        } as i32,
        health_policy: i32::from(s.balancing.allow_unhealthy),
    });
    wds::Service {
        name: s.name.clone(),
        namespace: s.namespace.clone(),
        hostname: s.hostname.clone(),
        addresses: s
            .addresses
            .iter()
            .map(|(network, a)| wds::NetworkAddress { network: network.clone(), address: ip_bytes(*a), length: None })
            .collect(),
        ports: s.ports.iter().map(|p| wire_port(p.port, p.target, p.protocol)).collect(),
        waypoint: s.waypoint.as_ref().map(waypoint_to_wire),
        subject_alt_names: s.subject_alt_names.clone(),
        load_balancing: balancing,
        canonical: true,
        ..wds::Service::default()
    }
}

fn policy(p: sec::Authorization) -> Result<Policy, DecodeError> {
    let scope = match sec::Scope::try_from(p.scope).map_err(|_| DecodeError::Unknown(p.scope, "scope"))? {
        sec::Scope::Global => PolicyScope::Global,
        sec::Scope::Namespace => PolicyScope::Namespace,
        sec::Scope::WorkloadSelector => PolicyScope::Workload,
    };
    let action = match sec::Action::try_from(p.action).map_err(|_| DecodeError::Unknown(p.action, "action"))? {
        sec::Action::Allow => Action::Allow,
        sec::Action::Deny => Action::Deny,
    };
    let clause = |c: sec::Clause| c.matches.into_iter().map(match_from_wire).collect::<Result<Vec<_>, _>>();
    let rule = |r: sec::Rule| r.clauses.into_iter().map(clause).collect::<Result<Vec<_>, _>>();
    Ok(Policy {
        rules: p.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
        namespace: p.namespace,
        name: p.name,
        scope,
        action,
        dry_run: p.dry_run,
    })
}

fn match_from_wire(m: sec::Match) -> Result<Match, DecodeError> {
    use sec::string_match::MatchType;
    let texts = |list: Vec<sec::StringMatch>| {
        let each = |s: sec::StringMatch| match s.match_type.ok_or(DecodeError::Missing("match_type"))? {
            MatchType::Exact(text) => Ok(StringMatch::Exact(text)),
            MatchType::Prefix(text) => Ok(StringMatch::Prefix(text)),
            MatchType::Suffix(text) => Ok(StringMatch::Suffix(text)),
            MatchType::Presence(_) => Ok(StringMatch::Present),
        };
        list.into_iter().map(each).collect::<Result<Vec<_>, DecodeError>>()
    };
    let blocks = |list: Vec<sec::Address>| {
        let each = |a: sec::Address| {
            let address = ip(&a.address)?;
            let prefix = u8::try_from(a.length).ok().filter(|p| *p <= if address.is_ipv4() { 32 } else { 128 });
            Ok(Cidr { address, prefix: prefix.ok_or(DecodeError::Prefix(a.length))? })
        };
        list.into_iter().map(each).collect::<Result<Vec<_>, DecodeError>>()
    };
    let ports = |list: Vec<u32>| list.into_iter().map(port).collect::<Result<Vec<_>, _>>();
    let accounts = |list: Vec<sec::ServiceAccountMatch>| {
        list.into_iter().map(|a| ServiceAccount { namespace: a.namespace, name: a.service_account }).collect()
    };
    Ok(Match {
        namespaces: texts(m.namespaces)?,
        not_namespaces: texts(m.not_namespaces)?,
        principals: texts(m.principals)?,
        not_principals: texts(m.not_principals)?,
        source_ips: blocks(m.source_ips)?,
        not_source_ips: blocks(m.not_source_ips)?,
        destination_ips: blocks(m.destination_ips)?,
        not_destination_ips: blocks(m.not_destination_ips)?,
        destination_ports: ports(m.destination_ports)?,
        not_destination_ports: ports(m.not_destination_ports)?,
        service_accounts: accounts(m.service_accounts),
        not_service_accounts: accounts(m.not_service_accounts),
    })
}

/// A policy as it is published.
pub fn policy_to_wire(p: &Policy) -> sec::Authorization {
    let clause = |c: &Vec<Match>| sec::Clause { matches: c.iter().map(match_to_wire).collect() };
    sec::Authorization {
        name: p.name.clone(),
        namespace: p.namespace.clone(),
        scope: match p.scope {
            PolicyScope::Global => sec::Scope::Global,
            PolicyScope::Namespace => sec::Scope::Namespace,
            PolicyScope::Workload => sec::Scope::WorkloadSelector,
        } as i32,
        action: match p.action {
            Action::Allow => sec::Action::Allow,
            Action::Deny => sec::Action::Deny,
        } as i32,
        rules: p.rules.iter().map(|r| sec::Rule { clauses: r.iter().map(clause).collect() }).collect(),
        dry_run: p.dry_run,
        extensions: Vec::new(),
    }
}

fn match_to_wire(m: &Match) -> sec::Match {
    use sec::string_match::MatchType;
    let texts = |list: &[StringMatch]| {
        let each = |s: &StringMatch| sec::StringMatch {
            match_type: Some(match s {
                StringMatch::Exact(text) => MatchType::Exact(text.clone()),
                StringMatch::Prefix(text) => MatchType::Prefix(text.clone()),
                StringMatch::Suffix(text) => MatchType::Suffix(text.clone()),
                StringMatch::Present => MatchType::Presence(sec::Presence {}),
            }),
        };
        list.iter().map(each).collect()
    };
    let blocks = |list: &[Cidr]| {
        list.iter().map(|c| sec::Address { address: ip_bytes(c.address), length: c.prefix.into() }).collect()
    };
    let ports = |list: &[u16]| list.iter().map(|p| u32::from(*p)).collect();
    let accounts = |list: &[ServiceAccount]| {
        list.iter()
            .map(|a| sec::ServiceAccountMatch { namespace: a.namespace.clone(), service_account: a.name.clone() })
            .collect()
    };
    sec::Match {
        namespaces: texts(&m.namespaces),
        not_namespaces: texts(&m.not_namespaces),
        principals: texts(&m.principals),
        not_principals: texts(&m.not_principals),
        source_ips: blocks(&m.source_ips),
        not_source_ips: blocks(&m.not_source_ips),
        destination_ips: blocks(&m.destination_ips),
        not_destination_ips: blocks(&m.not_destination_ips),
        destination_ports: ports(&m.destination_ports),
        not_destination_ports: ports(&m.not_destination_ports),
        service_accounts: accounts(&m.service_accounts),
        not_service_accounts: accounts(&m.not_service_accounts),
        extensions: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
