//! Records of the mesh, as proxies decide on them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use trysail_api::ids::{ServiceKey, SpiffeId, WorkloadUid};
use trysail_policy::network;

/// How a workload is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Plain TCP: it is not in the mesh.
    Plain,
    /// HTTP/2 CONNECT over mutual TLS, port 15008.
    Hbone,
}

/// Whether a workload takes new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Ready.
    Healthy,
    /// Not ready, or terminating.
    Unhealthy,
}

/// Kind of the object that owns a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the kind of its name")]
pub enum OwnerKind {
    Deployment,
    CronJob,
    Pod,
    Job,
}

/// One workload; its key is `uid`, never an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The record's key.
    pub uid: WorkloadUid,
    /// Pod name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Identity: trust domain, namespace, service account.
    pub identity: SpiffeId,
    /// Addresses; none for a workload that is known by host name alone.
    pub addresses: Vec<IpAddr>,
    /// Network, empty in a mesh of one.
    pub network: String,
    /// How it is reached.
    pub protocol: Protocol,
    /// Whether the application itself speaks the tunnel.
    pub native_tunnel: bool,
    /// Node it runs on.
    pub node: String,
    /// Cluster it runs in.
    pub cluster: String,
    /// Service shown in telemetry.
    pub canonical_name: String,
    /// Revision shown in telemetry.
    pub canonical_revision: String,
    /// Owner's kind.
    pub owner_kind: OwnerKind,
    /// Owner's name.
    pub owner: String,
    /// Whether it takes new connections.
    pub health: Health,
    /// Shares its node's addresses.
    pub host_network: bool,
    /// `namespace/name` of policies that select it.
    pub policies: Vec<String>,
    /// Services it is an endpoint of: service port to its own port.
    pub services: BTreeMap<ServiceKey, BTreeMap<u16, u16>>,
    /// Locality: region, zone, subzone.
    pub locality: [String; 3],
    /// Weight in load balancing, 1 when not given.
    pub capacity: u32,
    /// The L7 hop for traffic addressed to it.
    pub waypoint: Option<Waypoint>,
    /// The pod's labels, for NetworkPolicies.
    pub labels: network::Labels,
    /// Named ports of its containers, for NetworkPolicies.
    pub named_ports: Vec<network::NamedPort>,
}

impl Workload {
    /// What NetworkPolicies make of it at one of its addresses: a pod in its node's network is an address to them.
    pub fn end(&self, address: IpAddr) -> network::End<'_> {
        if self.host_network {
            return network::End::Other(address);
        }
        network::End::Pod(self.pod(address))
    }

    /// The same for a pod with a network of its own.
    pub fn pod(&self, address: IpAddr) -> network::Pod<'_> {
        network::Pod { namespace: &self.namespace, labels: &self.labels, address, ports: &self.named_ports }
    }
}

/// Where traffic goes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waypoint {
    /// Its service, or its address.
    pub at: WaypointAt,
    /// The port of its tunnels.
    pub port: u16,
}

/// How a waypoint is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaypointAt {
    /// By its service.
    Service(ServiceKey),
    /// By an address, of a service or of a workload.
    Address(IpAddr),
}

/// A port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Port of the service.
    pub port: u16,
    /// Port of the workload; 0 when it is named and each workload says.
    pub target: u16,
    /// What is spoken on it.
    pub protocol: AppProtocol,
}

/// What an application speaks on a port, as its name or `appProtocol` declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppProtocol {
    /// Not declared: looked at where it matters.
    #[default]
    Unknown,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC, on HTTP/2.
    Grpc,
    /// Something else.
    Tcp,
    /// TLS of the application's own.
    Tls,
}

/// How endpoints are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LoadBalancing {
    /// Scopes in order of preference.
    pub preference: Vec<Scope>,
    /// Only endpoints that match every scope.
    pub strict: bool,
    /// Unknown addresses pass through.
    pub passthrough: bool,
    /// Unhealthy endpoints are used too.
    pub allow_unhealthy: bool,
}

/// A scope of locality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Istio's names")]
pub enum Scope {
    Region,
    Zone,
    Subzone,
    Node,
    Cluster,
    Network,
}

/// One service; its key is `namespace/hostname`.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// The record's key.
    pub key: ServiceKey,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Host name.
    pub hostname: String,
    /// Virtual addresses, each with its network.
    pub addresses: Vec<(String, IpAddr)>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// Further identities its endpoints may have.
    pub subject_alt_names: Vec<String>,
    /// How endpoints are chosen.
    pub balancing: LoadBalancing,
    /// The L7 hop for traffic addressed to it.
    pub waypoint: Option<Waypoint>,
}
