//! What policies admit of one pod in one direction, with selectors and port names resolved to addresses and numbers: for gates that see
//! packets and no labels.

use super::{Direction, End, Namespaces, Peer, Pod, Policy, PortRange, Protocol, Rule, Target};
use crate::authz::Cidr;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Peers and ports of which any combination is admitted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Admitted {
    /// The other end.
    pub peers: Peers,
    /// Ports of the destination.
    pub ports: Ports,
}

/// Other ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peers {
    /// Any, outside included.
    Any,
    /// These.
    Addresses(BTreeSet<IpAddr>),
    /// Inside the first and in none of the others.
    Block(Cidr, Vec<Cidr>),
}

/// Ports of the destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// Any port of any protocol, also of those without ports.
    Any,
    /// From the first to the second, both included, sorted and apart.
    Ranges(Vec<(Protocol, u16, u16)>),
    /// These ports of these destinations; says all of the other end that is asked.
    At(BTreeSet<(IpAddr, Protocol, u16)>),
}

/// What is admitted of `pod` among all `pods`; `None`: it is not isolated.
pub fn admitted<'p>(
    policies: impl IntoIterator<Item = &'p Policy>,
    namespaces: &Namespaces,
    pods: &[Pod<'_>],
    pod: Pod<'_>,
    direction: Direction,
) -> Option<Vec<Admitted>> {
    let mut out: Option<BTreeSet<Admitted>> = None;
    for policy in policies {
        let Some(rules) = policy.rules(direction).filter(|_| policy.selects(pod)) else { continue };
        let known = out.get_or_insert_default();
        let resolver = Resolver { own: &policy.namespace, namespaces, pods, pod, direction };
        rules.iter().for_each(|rule| resolver.rule(rule, known));
    }
    Some(out?.into_iter().collect())
}

/// Resolves the rules of one policy for one pod and direction.
struct Resolver<'a> {
    /// The policy's namespace.
    own: &'a str,
    namespaces: &'a Namespaces,
    pods: &'a [Pod<'a>],
    pod: Pod<'a>,
    direction: Direction,
}

impl Resolver<'_> {
    fn rule(&self, rule: &Rule, out: &mut BTreeSet<Admitted>) {
        let peers = self.peers(rule);
        let Some(ports) = &rule.ports else {
            out.extend(peers.into_iter().map(|peers| Admitted { peers, ports: Ports::Any }));
            return;
        };
        let mut ranges: Vec<(Protocol, u16, u16)> = Vec::new();
        let mut places = BTreeSet::new();
        for port in ports {
            match (&port.port, self.direction) {
                (PortRange::All, _) => ranges.push((port.protocol, 0, u16::MAX)),
                (PortRange::Numbers(first, last), _) => ranges.push((port.protocol, *first, *last)),
                // The pod's own ports.
                (PortRange::Named(name), Direction::Ingress) => {
                    ranges.extend(named(self.pod, name, port.protocol).map(|n| (port.protocol, n, n)));
                }
                // Each destination's own.
                (PortRange::Named(name), Direction::Egress) => {
                    let fits = |p: &&Pod<'_>| rule.peers.as_ref().is_none_or(|list| self.any(list, **p));
                    for p in self.pods.iter().filter(fits) {
                        places.extend(named(*p, name, port.protocol).map(|n| (p.address, port.protocol, n)));
                    }
                }
                (PortRange::Nothing, _) => {}
            }
        }
        if !ranges.is_empty() {
            let ports = Ports::Ranges(merged(ranges));
            out.extend(peers.into_iter().map(|peers| Admitted { peers, ports: ports.clone() }));
        }
        if !places.is_empty() {
            out.insert(Admitted { peers: Peers::Any, ports: Ports::At(places) });
        }
    }

    fn peers(&self, rule: &Rule) -> Vec<Peers> {
        let Some(list) = &rule.peers else { return vec![Peers::Any] };
        let selectors: Vec<Peer> = list.iter().filter(|p| matches!(p, Peer::Pods { .. })).cloned().collect();
        let selected: BTreeSet<IpAddr> =
            self.pods.iter().filter(|p| self.any(&selectors, **p)).map(|p| p.address).collect();
        let blocks = list.iter().filter_map(|p| match p {
            Peer::Block { block, except } => Some(Peers::Block(*block, except.clone())),
            _ => None,
        });
        let selected = (!selected.is_empty()).then_some(Peers::Addresses(selected));
        selected.into_iter().chain(blocks).collect()
    }

    fn any(&self, list: &[Peer], pod: Pod<'_>) -> bool {
        list.iter().any(|m| m.matches(self.own, self.namespaces, End::Pod(pod)))
    }
}

/// The numbers of a pod's ports of a name.
fn named<'a>(pod: Pod<'a>, name: &'a str, protocol: Protocol) -> impl Iterator<Item = u16> + 'a {
    pod.ports.iter().filter(move |p| p.name == name && p.protocol == protocol).map(|p| p.number)
}

/// Sorted, and no two of them touch.
fn merged(mut ranges: Vec<(Protocol, u16, u16)>) -> Vec<(Protocol, u16, u16)> {
    ranges.sort_unstable();
    let mut out: Vec<(Protocol, u16, u16)> = Vec::new();
    for (protocol, first, last) in ranges {
        match out.last_mut() {
            Some((p, _, end)) if *p == protocol && u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
            _ => out.push((protocol, first, last)),
        }
    }
    out
}

impl Admitted {
    /// Whether it covers a connection whose other end is `peer`.
    pub fn admits(&self, peer: IpAddr, target: Target) -> bool {
        let peers = match &self.peers {
            Peers::Any => true,
            Peers::Addresses(addresses) => addresses.contains(&peer),
            Peers::Block(block, except) => block.contains(peer) && !except.iter().any(|e| e.contains(peer)),
        };
        peers
            && match &self.ports {
                Ports::Any => true,
                Ports::Ranges(ranges) => ranges.iter().any(|(protocol, first, last)| {
                    *protocol == target.protocol && (*first..=*last).contains(&target.port)
                }),
                Ports::At(places) => places.contains(&(peer, target.protocol, target.port)),
            }
    }
}
