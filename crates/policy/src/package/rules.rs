//! What is admitted: NetworkPolicies, and the AuthorizationPolicies that keep port and identity where a tunnel hides them.

use super::{AUTHORIZATION_POLICY, Maker, NETWORK_POLICY, annotated, namespace_named, pods, present, sanitise};
use serde_json::{Value, json};
use trysail_api::labels;
use trysail_api::package::{self, Allow, Direction, Generated, Labels, Mode, RemoteProtocol};

/// The port of tunnels.
const TUNNEL: u16 = labels::WAYPOINT_PORT;
/// The address from which probes come into captured pods.
const PROBES: &str = "169.254.7.127/32";
/// The cloud's metadata service.
const METADATA: &str = "169.254.169.254/32";
/// Whose scraping is admitted.
const PROMETHEUS: (&str, &str) = ("monitoring", "kube-prometheus-stack-prometheus");

/// A port with its protocol.
pub type Port = (u16, &'static str);

/// The ports of a policy: the given ones, and the tunnel's where one of them is not UDP and `tunnels` holds.
pub fn ports(given: &[Port], tunnels: bool) -> Value {
    let tunnel = (tunnels && given.iter().any(|(_, protocol)| *protocol != "UDP")).then_some((TUNNEL, "TCP"));
    let mut all = given.to_vec();
    all.extend(tunnel.filter(|t| !all.contains(t)));
    all.iter().map(|(port, protocol)| json!({"port": port, "protocol": protocol})).collect()
}

/// One NetworkPolicy's content.
pub struct Gate<'a> {
    pub direction: Direction,
    pub selector: &'a Labels,
    pub peers: Vec<Value>,
    pub ports: Value,
}

impl Maker<'_> {
    /// A NetworkPolicy with one rule.
    pub(super) fn gate(&self, name: &str, labels: Labels, gate: &Gate<'_>) -> Value {
        let (list, side) = match gate.direction {
            Direction::Ingress => ("ingress", "from"),
            Direction::Egress => ("egress", "to"),
        };
        let rule = json!({side: gate.peers, "ports": gate.ports});
        let spec = json!({
            "podSelector": pods(gate.selector), "policyTypes": [gate.direction.as_str()], list: [rule],
        });
        self.owned(NETWORK_POLICY, name, labels, spec)
    }

    /// An AuthorizationPolicy that admits.
    pub(super) fn admission(&self, name: &str, mut labels: Labels, selector: Option<&Labels>, rule: Value) -> Value {
        labels.insert(package::FOR.into(), "network".into());
        labels.insert(package::MESH_MODE.into(), self.mode().as_str().into());
        let spec = present([
            ("action", Some("ALLOW".into())),
            ("selector", selector.map(pods)),
            ("rules", Some(Value::Array(vec![rule]))),
        ]);
        self.owned(AUTHORIZATION_POLICY, name, labels, spec)
    }
}

/// A rule of an AuthorizationPolicy; what is not given is not limited.
pub fn admits(source: Option<Value>, ports: &[u16]) -> Value {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    present([
        ("from", source.map(|s| json!([{"source": s}]))),
        ("to", (!ports.is_empty()).then(|| json!([{"operation": {"ports": ports}}]))),
    ])
}

/// What every Package has.
pub fn defaults(maker: &Maker<'_>) -> (Vec<Value>, Vec<Value>) {
    let all = Labels::new();
    let named =
        |direction: &str, description: &str| sanitise(&format!("allow-{}-{direction}-{description}", maker.name()));
    let gate = |description: &str, direction: Direction, peer: Value, ports: Value| {
        let name = named(direction.as_str(), description);
        let gate = Gate { direction, selector: &all, peers: vec![peer], ports };
        annotated(maker.gate(&name, Labels::new(), &gate), package::DESCRIPTION, description)
    };
    let group = |namespace: &str, key: &str, value: &str| json!({"namespaceSelector": namespace_named(namespace), "podSelector": {"matchLabels": {key: value}}});
    let deny = maker.owned(
        NETWORK_POLICY,
        &sanitise(&format!("deny-{}-default", maker.name())),
        Labels::new(),
        json!({"podSelector": pods(&all), "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []}),
    );
    let dns = gate(
        "DNS lookup via CoreDNS",
        Direction::Egress,
        group("kube-system", "k8s-app", "kube-dns"),
        ports(&[(53, "UDP")], false),
    );
    let mut policies = vec![deny, dns];
    let mut admissions = Vec::new();
    match maker.mode() {
        Mode::Ambient => policies.push(gate(
            "Ambient healthprobes",
            Direction::Ingress,
            json!({"ipBlock": {"cidr": PROBES}}),
            ports(&[], false),
        )),
        Mode::Sidecar => {
            let tcp = |port| ports(&[(port, "TCP")], true);
            let istiod = group("istio-system", "istio", "pilot");
            policies.push(gate("Istiod communication", Direction::Egress, istiod, tcp(15012)));
            let scraper = group(PROMETHEUS.0, "app", "prometheus");
            policies.push(gate("Sidecar monitoring", Direction::Ingress, scraper, tcp(15020)));
            let description = "15020-sidecar metric scraping";
            let name = sanitise(&format!("protect-{}-ingress-{description}", maker.name()));
            let source = json!({"principals": [maker.world.principal(PROMETHEUS.0, PROMETHEUS.1)]});
            let admission = maker.admission(&name, Labels::new(), Some(&all), admits(Some(source), &[15020]));
            admissions.push(annotated(admission, package::DESCRIPTION, description));
        }
    }
    (policies, admissions)
}

/// What the Package's `allow` admits.
pub fn allow(maker: &Maker<'_>, policies: &mut Vec<Value>, admissions: &mut Vec<Value>, waiting: &mut Vec<String>) {
    for (index, rule) in maker.package.spec.network.allow.iter().enumerate() {
        let Some(peers) = peers(maker, rule) else {
            waiting.push(format!("spec.network.allow[{index}].remoteGenerated"));
            continue;
        };
        policies.push(policy(maker, rule, peers));
        if rule.direction == Direction::Ingress && rule.remote_protocol != Some(RemoteProtocol::Udp) {
            admissions.push(admission(maker, rule));
        }
    }
}

fn values(labels: Option<&Labels>) -> String {
    match labels {
        Some(labels) if !labels.is_empty() => labels.values().cloned().collect::<Vec<_>>().join("-"),
        _ => "all pods".to_owned(),
    }
}

/// The NetworkPolicy's name of a rule.
pub fn policy_name(package: &str, rule: &Allow) -> String {
    let tail = rule.description.clone().unwrap_or_else(|| {
        let remote = match rule.remote_generated {
            Some(generated) => generated.as_str().to_owned(),
            None => format!(
                "{}-{}",
                rule.remote_namespace.as_deref().unwrap_or_default(),
                values(rule.remote_selector.as_ref())
            ),
        };
        let protocol = if rule.remote_protocol == Some(RemoteProtocol::Udp) { "UDP" } else { "TCP" };
        format!("{}-{remote}-{protocol}", values(rule.selector.as_ref()))
    });
    sanitise(&format!("allow-{package}-{}-{tail}", rule.direction.as_str()))
}

/// The AuthorizationPolicy's name of a rule.
fn admission_name(package: &str, rule: &Allow) -> String {
    let tail = rule.description.clone().unwrap_or_else(|| {
        let remote = match rule.remote_generated {
            Some(generated) => generated.as_str().to_owned(),
            None => {
                let namespace = rule.remote_namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
                format!("{namespace}-{}", values(rule.remote_selector.as_ref()))
            }
        };
        format!("{}-{remote}", values(rule.selector.as_ref()))
    });
    sanitise(&format!("protect-{package}-ingress-{tail}"))
}

fn marked(rule: &Allow) -> Labels {
    rule.remote_generated.map(|g| (package::GENERATED.to_owned(), g.as_str().to_owned())).into_iter().collect()
}

fn policy(maker: &Maker<'_>, rule: &Allow, peers: Vec<Value>) -> Value {
    use Generated::{CloudMetadata, KubeAPI, KubeNodes};
    let protocol = if rule.remote_protocol == Some(RemoteProtocol::Udp) { "UDP" } else { "TCP" };
    let given: Vec<Port> = rule.ports.iter().flatten().chain(&rule.port).map(|p| (p.get(), protocol)).collect();
    let outside = matches!(rule.remote_generated, Some(KubeAPI | KubeNodes | CloudMetadata));
    let tunnels = !(rule.direction == Direction::Egress && outside);
    let mut labels = rule.labels.clone().unwrap_or_default();
    labels.extend(marked(rule));
    let none = Labels::new();
    let gate = Gate {
        direction: rule.direction,
        selector: rule.selector.as_ref().unwrap_or(&none),
        peers,
        ports: ports(&given, tunnels),
    };
    described(maker.gate(&policy_name(maker.name(), rule), labels, &gate), rule.description.as_deref())
}

fn described(object: Value, description: Option<&str>) -> Value {
    match description {
        Some(text) => annotated(object, package::DESCRIPTION, text),
        None => object,
    }
}

fn everywhere(namespace: &str) -> bool {
    matches!(namespace, "*" | "")
}

/// The peers of a rule; `None` while they are not known. Never empty: an empty list would mean everyone.
fn peers(maker: &Maker<'_>, rule: &Allow) -> Option<Vec<Value>> {
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let blocks = |cidrs: &[String]| cidrs.iter().map(|c| block(c)).collect::<Vec<_>>();
    if let Some(generated) = rule.remote_generated {
        let peers = match generated {
            Generated::KubeAPI => blocks(maker.world.kube_api.as_deref()?),
            Generated::KubeNodes => blocks(&maker.world.nodes),
            Generated::CloudMetadata => vec![block(METADATA)],
            Generated::IntraNamespace => vec![json!({"podSelector": {"matchLabels": {}}})],
            Generated::Anywhere => {
                let outside = json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": [METADATA]}});
                vec![outside, json!({"namespaceSelector": {}})]
            }
        };
        return (!peers.is_empty()).then_some(peers);
    }
    if let Some(cidr) = &rule.remote_cidr {
        return Some(vec![block(cidr)]);
    }
    if rule.remote_host.is_some() {
        let (namespace, key, value) = match maker.mode() {
            Mode::Sidecar => ("istio-egress-gateway", "app", "egressgateway"),
            Mode::Ambient => ("istio-egress-ambient", labels::GATEWAY_NAME, "egress-waypoint"),
        };
        let group =
            json!({"namespaceSelector": namespace_named(namespace), "podSelector": {"matchLabels": {key: value}}});
        return Some(vec![group]);
    }
    let namespace =
        rule.remote_namespace.as_deref().map(|n| if everywhere(n) { json!({}) } else { namespace_named(n) });
    Some(vec![present([("namespaceSelector", namespace), ("podSelector", rule.remote_selector.as_ref().map(pods))])])
}

fn admission(maker: &Maker<'_>, rule: &Allow) -> Value {
    let given: Vec<u16> = rule.port.iter().chain(rule.ports.iter().flatten()).map(|p| p.get()).collect();
    let rule_of = admits(source(maker, rule), &given);
    let selector = rule.selector.as_ref().filter(|s| !s.is_empty());
    let object = maker.admission(&admission_name(maker.name(), rule), marked(rule), selector, rule_of);
    described(object, rule.description.as_deref())
}

/// Who may call by a rule; `None` = anyone whom the NetworkPolicy lets through.
fn source(maker: &Maker<'_>, rule: &Allow) -> Option<Value> {
    let own = maker.namespace();
    let namespace = rule.remote_namespace.as_deref();
    if let Some(account) = &rule.remote_service_account {
        let principal = match namespace {
            Some(name) if everywhere(name) => format!("*/sa/{account}"),
            name => maker.world.principal(name.unwrap_or(own), account),
        };
        return Some(json!({"principals": [principal]}));
    }
    if let Some(cidr) = &rule.remote_cidr {
        return Some(json!({"ipBlocks": [cidr]}));
    }
    match rule.remote_generated {
        Some(Generated::KubeAPI) => return Some(json!({"ipBlocks": maker.world.kube_api})),
        Some(Generated::KubeNodes) => return Some(json!({"ipBlocks": maker.world.nodes})),
        Some(Generated::CloudMetadata) => return Some(json!({"ipBlocks": [METADATA]})),
        Some(Generated::IntraNamespace) => return Some(json!({"namespaces": [own]})),
        Some(Generated::Anywhere) => return None,
        None => {}
    }
    match namespace {
        Some(name) if everywhere(name) => None,
        Some(name) => Some(json!({"namespaces": [name]})),
        None => Some(json!({"namespaces": [own]})),
    }
}
