//! NetworkPolicy objects to policies. What is wrong is said with its field; it matches nothing, and the rest is kept.

use super::selector::{BadSelector, Selector};
use super::{Peer, Policy, PortMatch, PortRange, Protocol, Rule};
use crate::authz::Cidr;
use trysail_api::k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A field and what is wrong with it.
pub type Problem = (String, String);

/// Reads an object; the problems are all that is wrong with it.
pub fn read(object: &NetworkPolicy) -> (Policy, Vec<Problem>) {
    let mut reader = Reader::default();
    let spec = object.spec.clone().unwrap_or_default();
    let pods = reader.selector(spec.pod_selector.as_ref(), "spec.podSelector").unwrap_or_default();
    let (ingress, egress) = reader.types(&spec);
    let into = spec.ingress.iter().flatten().map(|r| (r.from.as_deref(), r.ports.as_deref()));
    let out = spec.egress.iter().flatten().map(|r| (r.to.as_deref(), r.ports.as_deref()));
    let into = reader.rules(into, ("ingress", "from"));
    let out = reader.rules(out, ("egress", "to"));
    let policy = Policy {
        namespace: object.metadata.namespace.clone().unwrap_or_else(|| "default".into()),
        name: object.metadata.name.clone().unwrap_or_default(),
        pods,
        ingress: ingress.then_some(into),
        egress: egress.then_some(out),
    };
    (policy, reader.problems)
}

/// Peers and ports of a rule as they are written.
type Written<'a> = (Option<&'a [NetworkPolicyPeer]>, Option<&'a [NetworkPolicyPort]>);

#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn problem(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push((field.into(), message.into()));
    }

    /// `None`: it cannot be read.
    fn selector(&mut self, selector: Option<&LabelSelector>, at: &str) -> Option<Selector> {
        let Some(selector) = selector else { return Some(Selector::default()) };
        match Selector::read(selector) {
            Ok(selector) => Some(selector),
            Err(BadSelector(field, message)) => {
                self.problem(format!("{at}.{field}"), message);
                None
            }
        }
    }

    /// Which directions are isolated.
    fn types(&mut self, spec: &NetworkPolicySpec) -> (bool, bool) {
        let given = spec.policy_types.as_deref().unwrap_or_default();
        if given.is_empty() {
            return (true, spec.egress.as_ref().is_some_and(|e| !e.is_empty()));
        }
        let mut unknown = false;
        for (index, kind) in given.iter().enumerate().filter(|(_, k)| !matches!(k.as_str(), "Ingress" | "Egress")) {
            self.problem(format!("spec.policyTypes[{index}]"), format!("{kind:?} is not Ingress or Egress"));
            unknown = true;
        }
        let has = |wanted: &str| unknown || given.iter().any(|k| k == wanted);
        (has("Ingress"), has("Egress"))
    }

    fn rules<'a>(&mut self, written: impl Iterator<Item = Written<'a>>, (list, side): (&str, &str)) -> Vec<Rule> {
        let mut out = Vec::new();
        for (index, (peers, ports)) in written.enumerate() {
            let at = format!("spec.{list}[{index}]");
            let peers = peers.filter(|p| !p.is_empty()).map(|peers| {
                peers.iter().enumerate().map(|(i, p)| self.peer(p, &format!("{at}.{side}[{i}]"))).collect()
            });
            let ports = ports.filter(|p| !p.is_empty()).map(|ports| {
                ports.iter().enumerate().map(|(i, p)| self.port(p, &format!("{at}.ports[{i}]"))).collect()
            });
            out.push(Rule { peers, ports });
        }
        out
    }

    fn peer(&mut self, peer: &NetworkPolicyPeer, at: &str) -> Peer {
        let selects = peer.pod_selector.is_some() || peer.namespace_selector.is_some();
        match (&peer.ip_block, selects) {
            (Some(block), false) => self.block(block, at),
            (Some(_), true) => {
                self.problem(format!("{at}.ipBlock"), "stands alone: not with podSelector or namespaceSelector");
                Peer::Nothing
            }
            (None, false) => {
                self.problem(at, "one of podSelector, namespaceSelector and ipBlock is needed");
                Peer::Nothing
            }
            (None, true) => {
                let pods = self.selector(peer.pod_selector.as_ref(), &format!("{at}.podSelector"));
                let field = format!("{at}.namespaceSelector");
                let namespaces = peer.namespace_selector.as_ref().map(|s| self.selector(Some(s), &field));
                match (pods, namespaces) {
                    (Some(pods), None) => Peer::Pods { namespaces: None, pods },
                    (Some(pods), Some(Some(namespaces))) => Peer::Pods { namespaces: Some(namespaces), pods },
                    _ => Peer::Nothing,
                }
            }
        }
    }

    fn block(&mut self, block: &IPBlock, at: &str) -> Peer {
        let Some(outer) = Cidr::parse(&block.cidr).filter(|_| block.cidr.contains('/')) else {
            self.problem(format!("{at}.ipBlock.cidr"), format!("{:?} is not a block such as 10.0.0.0/8", block.cidr));
            return Peer::Nothing;
        };
        let mut except = Vec::new();
        for (index, text) in block.except.iter().flatten().enumerate() {
            let field = format!("{at}.ipBlock.except[{index}]");
            match Cidr::parse(text).filter(|_| text.contains('/')) {
                Some(inner) if outer.contains(inner.address) && inner.prefix >= outer.prefix => except.push(inner),
                Some(_) => self.problem(&field, format!("{text} is not inside {}", block.cidr)),
                None => {
                    self.problem(&field, format!("{text:?} is not a block such as 10.1.0.0/16"));
                    return Peer::Nothing;
                }
            }
        }
        Peer::Block { block: outer, except }
    }

    fn port(&mut self, port: &NetworkPolicyPort, at: &str) -> PortMatch {
        let nothing = |protocol| PortMatch { protocol, port: PortRange::Nothing };
        let Some(protocol) = Protocol::parse(port.protocol.as_deref()) else {
            let given = port.protocol.as_deref().unwrap_or_default();
            self.problem(format!("{at}.protocol"), format!("{given:?} is not TCP, UDP or SCTP"));
            return nothing(Protocol::Tcp);
        };
        let number = |n: i32| u16::try_from(n).ok().filter(|n| *n > 0);
        let range = match (&port.port, port.end_port) {
            (None, None) => PortRange::All,
            (Some(IntOrString::String(name)), None) if !name.is_empty() => PortRange::Named(name.clone()),
            (Some(IntOrString::Int(first)), last) => match (number(*first), number(last.unwrap_or(*first))) {
                (Some(first), Some(last)) if first <= last => PortRange::Numbers(first, last),
                (Some(_), _) => {
                    self.problem(format!("{at}.endPort"), "not a port, or below port");
                    PortRange::Nothing
                }
                (None, _) => {
                    self.problem(format!("{at}.port"), format!("{first} is not a port"));
                    PortRange::Nothing
                }
            },
            (_, Some(_)) => {
                self.problem(format!("{at}.endPort"), "needs a numeric port");
                PortRange::Nothing
            }
            (Some(_), None) => {
                self.problem(format!("{at}.port"), "not a port or its name");
                PortRange::Nothing
            }
        };
        PortMatch { protocol, port: range }
    }
}
