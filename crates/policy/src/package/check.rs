//! What a Package must not say. Each finding has its field and a code, the same as the original's.

use super::expose::{gateway, route_name, udp, udp_route_name};
use super::rules::policy_name;
use super::{World, expand, migrated, sanitise};
use std::collections::BTreeMap;
use std::net::IpAddr;
use trysail_api::package::{Allow, Direction, Expose, Generated, Mode, Package, RemoteProtocol};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// `E1` to `E29`, or `schema`.
    pub code: &'static str,
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// Namespaces that no Package may be in.
const RESERVED: [&str; 3] = ["kube-system", "kube-public", "pepr-system"];
/// The gateways that come with the platform; their domains are the platform's.
const STANDARD: [&str; 3] = ["tenant", "admin", "passthrough"];

/// All that is wrong with a Package, by itself and beside `others`.
pub fn check(given: &Package, others: &[&Package]) -> Vec<Denied> {
    let mut findings = Findings::default();
    let meta = &given.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or("default");
    let name = meta.name.as_deref().unwrap_or_default();
    if RESERVED.contains(&namespace) {
        findings.add("E25", "metadata.namespace", format!("no Package may be in {namespace}"));
    }
    let leaves = |p: &&&Package| p.metadata.deletion_timestamp.is_some();
    let beside = |p: &&&Package| p.metadata.namespace == meta.namespace && p.metadata.name != meta.name;
    if let Some(other) = others.iter().filter(|p| !leaves(p)).find(beside) {
        let other = other.metadata.name.as_deref().unwrap_or_default();
        findings.add("E25", "metadata.namespace", format!("{namespace} has a Package already: {other}"));
    }
    let aliases = given.spec.network.expose.iter().enumerate().filter(|(_, e)| udp(e));
    for (index, entry) in aliases {
        let at = format!("spec.network.expose[{index}]");
        findings.udp(entry, &at);
    }
    let package = migrated(given);
    for (index, rule) in package.spec.network.allow.iter().enumerate() {
        findings.allow(rule, package.spec.network.service_mesh.mode, &format!("spec.network.allow[{index}]"));
    }
    for (index, entry) in package.spec.network.expose.iter().enumerate() {
        findings.expose(entry, &format!("spec.network.expose[{index}]"));
    }
    findings.names(&package, name);
    findings.listeners(&package, others);
    if findings.0.is_empty() {
        findings.collisions(&package);
    }
    findings.0
}

#[derive(Default)]
struct Findings(Vec<Denied>);

impl Findings {
    fn add(&mut self, code: &'static str, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Denied { code, field: field.into(), message: message.into() });
    }

    fn allow(&mut self, rule: &Allow, mode: Mode, at: &str) {
        use RemoteProtocol::{Http, Tcp, Tls, Udp};
        let field = |name: &str| format!("{at}.{name}");
        let named = rule.remote_namespace.is_some() || rule.remote_selector.is_some();
        let (block, host) = (rule.remote_cidr.is_some(), rule.remote_host.is_some());
        let of_hosts = matches!(rule.remote_protocol, Some(Tls | Http));
        if rule.remote_generated.is_none() && !named && !block && !host {
            let remotes = "remoteGenerated, remoteNamespace, remoteSelector, remoteCidr or remoteHost";
            self.add("E1", at, format!("no peer is given: {remotes} is needed"));
        }
        if let Some(generated) = rule.remote_generated {
            if named || block || host || of_hosts {
                let message = "stands alone: not with another remote, and not with TLS or HTTP";
                self.add("E2", field("remoteGenerated"), message);
            }
            let outside = matches!(generated, Generated::KubeAPI | Generated::KubeNodes | Generated::CloudMetadata);
            if outside && rule.remote_protocol == Some(Udp) {
                self.add("E5", field("remoteProtocol"), format!("{} is not reached by UDP", generated.as_str()));
            }
        }
        if named && (rule.remote_generated.is_some() || block || host || of_hosts) {
            let name = if rule.remote_namespace.is_some() { "remoteNamespace" } else { "remoteSelector" };
            self.add("E3", field(name), "not with remoteGenerated, remoteCidr or remoteHost, and not with TLS or HTTP");
        }
        if block && (rule.remote_generated.is_some() || named || host || of_hosts) {
            self.add("E4", field("remoteCidr"), "stands alone: not with another remote, and not with TLS or HTTP");
        }
        match (host, rule.remote_protocol) {
            (true, Some(Tcp)) => self.add("E6", field("remoteProtocol"), "a host is called by TLS or HTTP, not TCP"),
            (true, Some(Udp)) => self.add("E7", field("remoteProtocol"), "a host is called by TLS or HTTP, not UDP"),
            _ => {}
        }
        if rule.direction == Direction::Ingress && (host || of_hosts) {
            let name = if host { "remoteHost" } else { "remoteProtocol" };
            self.add("E8", field(name), "hosts, and TLS and HTTP to them, are for Egress");
        }
        let to_any = rule.remote_generated == Some(Generated::Anywhere) && rule.direction == Direction::Egress;
        if rule.service_account.is_some() && !(mode == Mode::Ambient && (host || to_any)) {
            self.add(
                "E10",
                field("serviceAccount"),
                "only in ambient mode, with remoteHost or with Egress to Anywhere",
            );
        }
        self.texts(rule, at);
    }

    /// Texts that must be of a form.
    fn texts(&mut self, rule: &Allow, at: &str) {
        let field = |name: &str| format!("{at}.{name}");
        if let Some(host) = &rule.remote_host {
            if host.contains('*') {
                self.add("E9", field("remoteHost"), format!("{host:?}: a host is named whole, without *"));
            } else if host.parse::<IpAddr>().is_ok() || !is_host(host) {
                self.add(
                    "E28",
                    field("remoteHost"),
                    format!("{host:?} is not a host name; for addresses use remoteCidr"),
                );
            }
        }
        if let Some(cidr) = rule.remote_cidr.as_deref()
            && !(cidr.contains('/') && crate::authz::Cidr::parse(cidr).is_some())
        {
            self.add("E28", field("remoteCidr"), format!("{cidr:?} is not a block such as 10.0.0.0/8"));
        }
        for key in rule.labels.iter().flat_map(|l| l.keys()).filter(|k| k.starts_with("uds/")) {
            self.add("E29", format!("{at}.labels.{key}"), "labels under uds/ are the operator's");
        }
    }

    /// What UDP entries must not have.
    fn udp(&mut self, entry: &Expose, at: &str) {
        let given = [
            ("E12", "host", entry.host.is_some()),
            ("E13", "domain", entry.domain.is_some()),
            ("E14", "match", entry.matches.is_some()),
            ("E15", "advancedHTTP", entry.advanced_http.is_some()),
            ("E16", "uptime", entry.uptime.is_some()),
            ("E17", "podLabels", entry.pod_labels.is_some()),
        ];
        for (code, name, _) in given.into_iter().filter(|(_, _, given)| *given) {
            self.add(code, format!("{at}.{name}"), "has no meaning with protocol UDP");
        }
    }

    fn expose(&mut self, entry: &Expose, at: &str) {
        let field = |name: &str| format!("{at}.{name}");
        let backend = entry.service.is_some() && entry.selector.is_some() && entry.port.is_some();
        let named = entry.host.is_some() && (backend || entry.advanced_http.is_some());
        if udp(entry) {
            if !backend {
                self.add("schema", at, "service, selector and port are needed");
            }
        } else {
            match (entry.host.is_some(), named) {
                (false, _) => self.add("E18", field("host"), "needed, unless protocol is UDP"),
                (true, false) => self.add("schema", at, "service, selector and port are needed, or advancedHTTP"),
                (true, true) => {}
            }
            self.http(entry, at);
        }
        if let Some(name) = entry.gateway.as_deref()
            && (name.is_empty() || sanitise(name) != name)
        {
            let message = format!("{name:?}: lower-case letters, digits and dashes, with a letter at both ends");
            self.add("E19", field("gateway"), message);
        }
    }

    fn http(&mut self, entry: &Expose, at: &str) {
        let field = |name: &str| format!("{at}.{name}");
        let name = gateway(entry);
        if entry.domain.is_some() && STANDARD.contains(&name) {
            self.add(
                "E20",
                field("domain"),
                format!("gateway {name} has the platform's domain; name a gateway of yours"),
            );
        }
        if let Some(advanced) = &entry.advanced_http {
            if name.contains("passthrough") {
                self.add("E21", field("advancedHTTP"), "a passthrough gateway does not see HTTP");
            }
            let backend = [
                ("service", entry.service.is_some()),
                ("selector", entry.selector.is_some()),
                ("port", entry.port.is_some()),
                ("targetPort", entry.target_port.is_some()),
            ];
            for (name, _) in backend.iter().filter(|(_, given)| *given && advanced.direct_response.is_some()) {
                self.add("E22", field(name), "not with advancedHTTP.directResponse: nothing is called");
            }
        }
        let paths = entry.uptime.as_ref().and_then(|u| u["checks"]["paths"].as_array());
        for (index, path) in paths.into_iter().flatten().enumerate() {
            if !path.as_str().is_some_and(|p| p.starts_with('/')) {
                self.add("E26", format!("{at}.uptime.checks.paths[{index}]"), format!("{path} does not start with /"));
            }
        }
    }

    /// Rules and entries that would have one name.
    fn names(&mut self, package: &Package, name: &str) {
        let network = &package.spec.network;
        let cure = "give one of them a description of its own";
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for (index, rule) in network.allow.iter().enumerate() {
            let (at, made) = (format!("spec.network.allow[{index}]"), policy_name(name, rule));
            if let Some(first) = seen.get(&made) {
                self.add("E11", &at, format!("the same name as {first}: {made}; {cure}"));
            }
            seen.entry(made).or_insert(at);
        }
        let mut routes: BTreeMap<String, String> = BTreeMap::new();
        let mut datagrams: BTreeMap<String, String> = BTreeMap::new();
        let mut watched: BTreeMap<(String, String, String), String> = BTreeMap::new();
        for (index, entry) in network.expose.iter().enumerate() {
            let at = format!("spec.network.expose[{index}]");
            let (code, made, seen) = if udp(entry) {
                ("E24", udp_route_name(name, entry), &mut datagrams)
            } else {
                ("E23", route_name(name, entry), &mut routes)
            };
            if let Some(first) = seen.get(&made) {
                self.add(code, &at, format!("the same name as {first}: {made}; {cure}"));
            }
            seen.entry(made).or_insert_with(|| at.clone());
            if entry.uptime.is_some() {
                let text = |t: &Option<String>| t.clone().unwrap_or_default();
                let host = (text(&entry.host), text(&entry.domain), gateway(entry).to_owned());
                if let Some(first) = watched.insert(host, at.clone()) {
                    self.add("E27", format!("{at}.uptime"), format!("{first} watches this host already"));
                }
            }
        }
    }

    /// One port of a UDP gateway for one entry.
    fn listeners(&mut self, package: &Package, others: &[&Package]) {
        let key = |entry: &Expose| (gateway(entry).to_owned(), entry.port);
        let taken = others.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).flat_map(|p| {
            let who = format!(
                "Package {}/{}",
                p.metadata.namespace.as_deref().unwrap_or("default"),
                p.metadata.name.as_deref().unwrap_or_default()
            );
            p.spec.network.expose.iter().filter(|e| udp(e)).map(move |e| (key(e), who.clone()))
        });
        let mut taken: BTreeMap<_, String> = taken.collect();
        for (index, entry) in package.spec.network.expose.iter().enumerate().filter(|(_, e)| udp(e)) {
            let at = format!("spec.network.expose[{index}]");
            if let Some(who) = taken.get(&key(entry)) {
                self.add("E24", format!("{at}.port"), format!("taken at gateway {} by {who}", gateway(entry)));
            }
            taken.entry(key(entry)).or_insert(at);
        }
    }

    /// Objects of one kind and name with different content, such as a rule that has a default's name.
    fn collisions(&mut self, package: &Package) {
        // Every rule is made, whatever is known of the cluster.
        let block = || vec!["192.0.2.0/32".to_owned()];
        let world = World { kube_api: Some(block()), nodes: block(), ..World::default() };
        let mut seen = BTreeMap::new();
        for object in expand(package, &world).objects {
            let key = (object["kind"].to_string(), object["metadata"]["name"].to_string());
            if seen.get(&key).is_some_and(|other| *other != object["spec"]) {
                let message = format!("two of the {} to be made have the name {} and differ", key.0, key.1);
                self.add("E11", "spec.network", format!("{message}; give one of the rules a description of its own"));
            }
            seen.entry(key).or_insert_with(|| object["spec"].clone());
        }
    }
}

/// Whether a text is a host name (RFC 1123).
fn is_host(text: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label) && !text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}
