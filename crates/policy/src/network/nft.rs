//! The packet gate: what is admitted of a node's pods, as one atomic nftables ruleset. Pure; whoever owns the node applies it.

use super::flat::{Admitted, Peers, Ports};
use super::{Direction, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// An isolated pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolated {
    /// Its address.
    pub address: Ipv4Addr,
    /// What may come in; `None`: everything.
    pub ingress: Option<Arc<[Admitted]>>,
    /// What may go out; `None`: everything.
    pub egress: Option<Arc<[Admitted]>>,
}

/// The rules for these pods, in place of whatever was there. Packets between a pod and its own node do not pass the hook that they are on.
pub fn ruleset(pods: &[Isolated]) -> String {
    let mut out = String::from("add table ip netpol\ndelete table ip netpol\n");
    if pods.is_empty() {
        return out;
    }
    out.push_str("add table ip netpol\n");
    let mut made = Made::default();
    let mut jumps: BTreeMap<Direction, Vec<String>> = BTreeMap::new();
    for pod in pods {
        for (direction, admitted) in [(Direction::Egress, &pod.egress), (Direction::Ingress, &pod.ingress)] {
            if let Some(admitted) = admitted {
                let chain = made.chain(direction, admitted, &mut out);
                jumps.entry(direction).or_default().push(format!("{} : jump {chain}", pod.address));
            }
        }
    }
    let own: Vec<String> = pods.iter().map(|p| format!("{} . {}", p.address, p.address)).collect();
    out.push_str("add chain ip netpol pods { type filter hook forward priority filter; policy accept; }\n");
    line(&mut out, "pods", "ct state established,related accept");
    line(&mut out, "pods", &format!("ip saddr . ip daddr {{ {} }} accept", own.join(", ")));
    for (direction, field) in [(Direction::Egress, "saddr"), (Direction::Ingress, "daddr")] {
        if let Some(jumps) = jumps.get(&direction) {
            line(&mut out, "pods", &format!("ip {field} vmap {{ {} }}", jumps.join(", ")));
        }
    }
    out
}

/// Chains and sets that were made: pods under the same policies share the former, rules with the same peers the latter.
#[derive(Default)]
struct Made {
    /// By direction and place in memory: what is shared is the same.
    chains: BTreeMap<(Direction, usize), String>,
    sets: BTreeMap<BTreeSet<Ipv4Addr>, String>,
}

impl Made {
    fn chain(&mut self, direction: Direction, admitted: &Arc<[Admitted]>, out: &mut String) -> String {
        let key = (direction, Arc::as_ptr(admitted).addr());
        if let Some(name) = self.chains.get(&key) {
            return name.clone();
        }
        let name = format!("{direction}{}", self.chains.len());
        writeln!(out, "add chain ip netpol {name}").unwrap_or_default();
        for one in admitted.iter() {
            for rule in self.rules(direction, one, out) {
                line(out, &name, &format!("{rule}return"));
            }
        }
        line(out, &name, "drop");
        self.chains.insert(key, name.clone());
        name
    }

    /// The matches of each rule, with a blank at the end unless they are none.
    fn rules(&mut self, direction: Direction, one: &Admitted, out: &mut String) -> Vec<String> {
        let field = match direction {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        };
        let peers = match &one.peers {
            Peers::Any => String::new(),
            Peers::Addresses(addresses) => {
                let set = self.set(addresses.iter().filter_map(v4).collect(), out);
                format!("ip {field} @{set} ")
            }
            Peers::Block(block, except) => {
                // A block of the other family covers no packet of this one.
                let IpAddr::V4(address) = block.address else { return Vec::new() };
                let except = except.iter().filter(|e| e.address.is_ipv4());
                let except: String = except.map(|e| format!("ip {field} != {}/{} ", e.address, e.prefix)).collect();
                format!("ip {field} {address}/{} {except}", block.prefix)
            }
        };
        match &one.ports {
            Ports::Any => vec![peers],
            Ports::Ranges(ranges) => {
                let of = |protocol: Protocol| {
                    let mine = ranges.iter().filter(move |r| r.0 == protocol);
                    let each: Vec<String> = mine
                        .map(
                            |(_, first, last)| {
                                if first == last { first.to_string() } else { format!("{first}-{last}") }
                            },
                        )
                        .collect();
                    (!each.is_empty()).then(|| format!("{peers}{} dport {{ {} }} ", name(protocol), each.join(", ")))
                };
                [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().filter_map(of).collect()
            }
            Ports::At(places) => {
                let of = |protocol: Protocol| {
                    let mine = places.iter().filter(move |p| p.1 == protocol);
                    let each: Vec<String> =
                        mine.filter_map(|(ip, _, port)| Some(format!("{} . {port}", v4(ip)?))).collect();
                    let name = name(protocol);
                    (!each.is_empty()).then(|| format!("ip {field} . {name} dport {{ {} }} ", each.join(", ")))
                };
                [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().filter_map(of).collect()
            }
        }
    }

    fn set(&mut self, addresses: BTreeSet<Ipv4Addr>, out: &mut String) -> String {
        if let Some(name) = self.sets.get(&addresses) {
            return name.clone();
        }
        let name = format!("peers{}", self.sets.len());
        let elements: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let elements =
            if elements.is_empty() { String::new() } else { format!(" elements = {{ {} }};", elements.join(", ")) };
        writeln!(out, "add set ip netpol {name} {{ type ipv4_addr;{elements} }}").unwrap_or_default();
        self.sets.insert(addresses, name.clone());
        name
    }
}

fn v4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn line(out: &mut String, chain: &str, rule: &str) {
    writeln!(out, "add rule ip netpol {chain} {rule}").unwrap_or_default();
}
