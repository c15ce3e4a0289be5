//! Kubernetes NetworkPolicy: who may connect to whom. Pure: pods, labels and policies in, a verdict with its reason out.

pub mod flat;
pub mod nft;
pub mod read;
pub mod selector;

use crate::authz::Cidr;
use selector::Selector;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Labels of a pod or a namespace.
pub type Labels = BTreeMap<String, String>;

/// A transport protocol that a policy can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// From a manifest; TCP when absent.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text.unwrap_or("TCP") {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// Which way a policy looks, seen from the pod that it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub enum Direction {
    Ingress,
    Egress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// Name.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Number.
    pub number: u16,
}

/// What policies ask of a pod. Pods in their node's network are no pods to them, and neither are those that have ended.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// Its address.
    pub address: IpAddr,
    /// Its containers' named ports.
    pub ports: &'a [NamedPort],
}

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// A pod.
    Pod(Pod<'a>),
    /// Anything else.
    Other(IpAddr),
}

impl End<'_> {
    fn address(&self) -> IpAddr {
        match self {
            Self::Pod(pod) => pod.address,
            Self::Other(address) => *address,
        }
    }
}

/// What is connected to, after any translation of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the endpoint.
    pub port: u16,
}

/// A policy made ready. What of it cannot be read matches nothing, and still isolates.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pods that it selects.
    pub pods: Selector,
    /// Rules for what comes in; `None`: it does not isolate that direction.
    pub ingress: Option<Vec<Rule>>,
    /// Rules for what goes out; `None`: it does not isolate that direction.
    pub egress: Option<Vec<Rule>>,
}

/// A rule: some peer and some port match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// `None`: any, outside included.
    pub peers: Option<Vec<Peer>>,
    /// `None`: any port of any protocol.
    pub ports: Option<Vec<PortMatch>>,
}

/// A peer of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    /// Pods by labels; without a selector of namespaces those of the policy's own.
    Pods {
        /// Namespaces.
        namespaces: Option<Selector>,
        /// Pods in them.
        pods: Selector,
    },
    /// Addresses.
    Block {
        /// Inside this.
        block: Cidr,
        /// And in none of these.
        except: Vec<Cidr>,
    },
    /// What could not be read.
    Nothing,
}

/// A port of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMatch {
    /// Protocol.
    pub protocol: Protocol,
    /// Which of its ports.
    pub port: PortRange,
}

/// Ports of one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRange {
    /// All.
    All,
    /// From the first to the second, both included.
    Numbers(u16, u16),
    /// Looked up in the destination pod.
    Named(String),
    /// What could not be read.
    Nothing,
}

/// Labels of namespaces by name.
pub type Namespaces = BTreeMap<String, Labels>;

/// A rule of a policy, by its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleAt {
    /// `namespace/name`.
    pub policy: String,
    /// Which way.
    pub direction: Direction,
    /// Index.
    pub rule: usize,
}

impl fmt::Display for RuleAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkPolicy {} {}[{}]", self.policy, self.direction, self.rule)
    }
}

/// What policies say of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// This rule admits the connection.
    Allowed(RuleAt),
    /// The pod is isolated by these policies (`namespace/name`), and no rule of theirs matches.
    Isolated(Direction, Vec<String>),
}

impl Verdict {
    /// Whether the connection may go on.
    pub fn allows(&self) -> bool {
        !matches!(self, Self::Isolated(..))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIsolated => f.write_str("not isolated"),
            Self::Allowed(rule) => write!(f, "{rule} allows"),
            Self::Isolated(direction, by) => {
                write!(f, "isolated for {direction} by {}, no rule matched", by.join(", "))
            }
        }
    }
}

/// What the policies say of `pod` as one end of a connection with `peer`. The other end is judged by a call of its own.
pub fn judge<'p>(
    policies: impl IntoIterator<Item = &'p Policy>,
    namespaces: &Namespaces,
    direction: Direction,
    (pod, peer): (Pod<'_>, End<'_>),
    target: Target,
) -> Verdict {
    // A pod always reaches itself.
    if peer.address() == pod.address {
        return Verdict::NotIsolated;
    }
    let destination = match (direction, peer) {
        (Direction::Ingress, _) => Some(pod),
        (Direction::Egress, End::Pod(peer)) => Some(peer),
        (Direction::Egress, End::Other(_)) => None,
    };
    let mut isolating = Vec::new();
    for policy in policies {
        let Some(rules) = policy.rules(direction).filter(|_| policy.selects(pod)) else { continue };
        let name = format!("{}/{}", policy.namespace, policy.name);
        let admits = |rule: &Rule| {
            rule.peers.as_ref().is_none_or(|p| p.iter().any(|p| p.matches(&policy.namespace, namespaces, peer)))
                && rule.ports.as_ref().is_none_or(|p| p.iter().any(|p| p.matches(destination, target)))
        };
        if let Some(rule) = rules.iter().position(admits) {
            return Verdict::Allowed(RuleAt { policy: name, direction, rule });
        }
        isolating.push(name);
    }
    if isolating.is_empty() { Verdict::NotIsolated } else { Verdict::Isolated(direction, isolating) }
}

impl Policy {
    /// Its rules for a direction, if it isolates that.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// Whether it selects a pod.
    pub fn selects(&self, pod: Pod<'_>) -> bool {
        self.namespace == pod.namespace && self.pods.matches(pod.labels)
    }
}

impl Peer {
    fn matches(&self, own: &str, namespaces: &Namespaces, peer: End<'_>) -> bool {
        match (self, peer) {
            (Self::Pods { namespaces: wanted, pods }, End::Pod(pod)) => {
                let inside = match wanted {
                    None => pod.namespace == own,
                    Some(selector) => namespaces.get(pod.namespace).is_some_and(|labels| selector.matches(labels)),
                };
                inside && pods.matches(pod.labels)
            }
            (Self::Block { block, except }, peer) => {
                let address = peer.address();
                block.contains(address) && !except.iter().any(|e| e.contains(address))
            }
            _ => false,
        }
    }
}

impl PortMatch {
    fn matches(&self, destination: Option<Pod<'_>>, target: Target) -> bool {
        self.protocol == target.protocol
            && match &self.port {
                PortRange::All => true,
                PortRange::Numbers(first, last) => (*first..=*last).contains(&target.port),
                PortRange::Named(name) => destination.is_some_and(|pod| {
                    pod.ports.iter().any(|p| p.name == *name && p.protocol == self.protocol && p.number == target.port)
                }),
                PortRange::Nothing => false,
            }
    }
}

#[cfg(test)]
mod tests;
