//! The packet gates of all nodes: every NetworkPolicy, and the companions that keep tunnels open where a policy isolates a pod of the
//! mesh. Pure: pods and objects in, rulesets out; whoever owns the nodes applies them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use trysail_api::k8s_openapi::api::core::v1::{Namespace, Pod as Object};
use trysail_api::k8s_openapi::api::networking::v1::NetworkPolicy;
use trysail_api::labels::{GATEWAY_MANAGED, REDIRECTION, SIDECAR_STATUS, WAYPOINT_PORT};
use trysail_api::object::{annotation, label, labels};
use trysail_policy::network::flat::{Admitted, Peers, Ports, admitted};
use trysail_policy::network::nft::{Isolated, ruleset};
use trysail_policy::network::{Direction, Labels, NamedPort, Namespaces, Pod, Policy, Protocol, read};

/// How a pod is in the mesh, as companions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mesh {
    /// It is not.
    Out,
    /// It opens tunnels, and takes none.
    Sidecar,
    /// Traffic to it and from it is in tunnels: captured, or a waypoint or gateway.
    Enrolled,
}

/// A pod that has an address and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Node that it runs on.
    pub node: usize,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: Labels,
    /// Named ports of its containers.
    pub ports: Vec<NamedPort>,
    /// How it is in the mesh.
    pub mesh: Mesh,
}

impl Member {
    /// A pod's facts.
    pub fn of(pod: &Object, node: usize, address: Ipv4Addr) -> Self {
        let meta = &pod.metadata;
        let mesh = if label(meta, GATEWAY_MANAGED).is_some() || annotation(meta, REDIRECTION) == Some("enabled") {
            Mesh::Enrolled
        } else if annotation(meta, SIDECAR_STATUS).is_some() {
            Mesh::Sidecar
        } else {
            Mesh::Out
        };
        Self {
            node,
            address,
            namespace: meta.namespace.clone().unwrap_or_default(),
            labels: labels(meta).clone(),
            ports: named_ports(pod),
            mesh,
        }
    }

    fn pod(&self) -> Pod<'_> {
        let address = IpAddr::V4(self.address);
        Pod { namespace: &self.namespace, labels: &self.labels, address, ports: &self.ports }
    }
}

/// The named ports of a pod's containers and native sidecars.
pub fn named_ports(pod: &Object) -> Vec<NamedPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let native = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = native.chain(&spec.containers).flat_map(|c| c.ports.iter().flatten());
    let named = ports.filter_map(|p| {
        let (name, number) = (p.name.clone()?, u16::try_from(p.container_port).ok()?);
        Some(NamedPort { name, protocol: Protocol::parse(p.protocol.as_deref())?, number })
    });
    named.collect()
}

/// Labels of namespaces.
pub fn namespaces<'a>(all: impl Iterator<Item = &'a Namespace>) -> Namespaces {
    all.map(|n| (n.metadata.name.clone().unwrap_or_default(), labels(&n.metadata).clone())).collect()
}

/// The policies, made ready. What is wrong with one was said where it came in.
pub fn policies<'a>(all: impl Iterator<Item = &'a NetworkPolicy>) -> Vec<Policy> {
    all.map(|p| read::read(p).0).collect()
}

/// What is wrong with a policy: fields, and why.
pub fn problems(policy: &NetworkPolicy) -> Vec<read::Problem> {
    read::read(policy).1
}

/// What the gates depend on besides pods and policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Keep tunnels of mesh peers open (and leave what is inside to the node proxies).
    pub companions: bool,
    /// Where the control plane is: proxies in pods always reach it.
    pub control: (Ipv4Addr, u16),
}

/// What decides which rules a pod is under.
type Sort<'a> = (&'a str, &'a Labels, &'a [NamedPort], Mesh, Direction);

/// The ruleset of each node from 0 to `nodes`.
pub fn rulesets(
    nodes: usize,
    members: &[Member],
    namespaces: &Namespaces,
    policies: &[Policy],
    terms: Terms,
) -> Vec<String> {
    let pods: Vec<Pod<'_>> = members.iter().map(Member::pod).collect();
    let peers: BTreeSet<IpAddr> =
        members.iter().filter(|m| m.mesh != Mesh::Out).map(|m| IpAddr::V4(m.address)).collect();
    // Pods of one kind are under the same rules.
    let mut known: BTreeMap<Sort<'_>, Option<Arc<[Admitted]>>> = BTreeMap::new();
    let mut isolated: Vec<Vec<Isolated>> = vec![Vec::new(); nodes];
    for member in members {
        let mut of = |direction| {
            let key = (member.namespace.as_str(), &member.labels, member.ports.as_slice(), member.mesh, direction);
            let make = || {
                let mut all = admitted(policies, namespaces, &pods, member.pod(), direction)?;
                all.extend(implied(member, direction, &peers, terms));
                Some(Arc::from(all))
            };
            known.entry(key).or_insert_with(make).clone()
        };
        let (ingress, egress) = (of(Direction::Ingress), of(Direction::Egress));
        if let Some(own) = isolated.get_mut(member.node).filter(|_| ingress.is_some() || egress.is_some()) {
            own.push(Isolated { address: member.address, ingress, egress });
        }
    }
    isolated.iter().map(|pods| ruleset(pods)).collect()
}

/// What is admitted beside a user's rules.
fn implied(member: &Member, direction: Direction, peers: &BTreeSet<IpAddr>, terms: Terms) -> Vec<Admitted> {
    let one = |peers, port| Admitted { peers, ports: Ports::Ranges(vec![(Protocol::Tcp, port, port)]) };
    let tunnels = match direction {
        Direction::Ingress => member.mesh == Mesh::Enrolled,
        Direction::Egress => member.mesh != Mesh::Out,
    };
    let mut out = Vec::new();
    if terms.companions && tunnels {
        out.push(one(Peers::Addresses(peers.clone()), WAYPOINT_PORT));
    }
    let proxy = member.mesh == Mesh::Sidecar || member.labels.contains_key(GATEWAY_MANAGED);
    if direction == Direction::Egress && proxy {
        out.push(one(Peers::Addresses(BTreeSet::from([IpAddr::V4(terms.control.0)])), terms.control.1));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(last: u8, text: &str, mesh: Mesh) -> Member {
        let (namespace, app) = text.split_once('/').unwrap();
        Member {
            node: usize::from(last % 2),
            address: Ipv4Addr::new(10, 244, 1, last),
            namespace: namespace.into(),
            labels: BTreeMap::from([("app".into(), app.into())]),
            ports: Vec::new(),
            mesh,
        }
    }

    #[test]
    fn companions_admit_tunnels_of_mesh_peers_to_enrolled_pods_alone() {
        let members = [
            member(2, "y/srv", Mesh::Enrolled),
            member(4, "y/bare", Mesh::Out),
            member(6, "x/side", Mesh::Sidecar),
            member(3, "x/cli", Mesh::Enrolled),
        ];
        let isolate = Policy {
            namespace: "y".into(),
            name: "p".into(),
            pods: Default::default(),
            ingress: Some(Vec::new()),
            egress: None,
        };
        let terms = Terms { companions: true, control: (Ipv4Addr::new(10, 255, 0, 1), 15012) };
        let rules = rulesets(2, &members, &Namespaces::new(), std::slice::from_ref(&isolate), terms);
        let tunnels = "ip saddr @peers0 tcp dport { 15008 } return";
        assert_eq!(rules[0].matches(tunnels).count(), 1, "{}", rules[0]);
        assert!(rules[0].contains("elements = { 10.244.1.2, 10.244.1.3, 10.244.1.6 }"), "{}", rules[0]);
        assert!(!rules[1].contains("pods"), "x is not isolated: {}", rules[1]);
        let plain = Terms { companions: false, ..terms };
        let rules = rulesets(2, &members, &Namespaces::new(), std::slice::from_ref(&isolate), plain);
        assert!(!rules[0].contains("15008"), "{}", rules[0]);
        // Whatever is isolated, a proxy in a pod reaches the control plane.
        let out = Policy { namespace: "x".into(), ingress: None, egress: Some(Vec::new()), ..isolate };
        let rules = rulesets(2, &members, &Namespaces::new(), &[out], plain);
        assert!(rules[0].contains("tcp dport { 15012 } return") && !rules[1].contains("15012"), "{rules:?}");
    }
}
