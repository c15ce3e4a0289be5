//! The way out to hosts: by an egress gateway for sidecars, by a waypoint for ambient namespaces. What is shared is always made from
//! every Package at once, so that one Package's change never takes another's way away.

use super::expose::managed;
use super::{
    AUTHORIZATION_POLICY, GATEWAY, ISTIO_GATEWAY, Maker, SERVICE_ENTRY, SIDECAR, VIRTUAL_SERVICE, World, annotated,
    migrated, object, present, rules, sanitise,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use trysail_api::labels;
use trysail_api::package::{Allow, Direction, Generated, Labels, Mode, Package, RemoteProtocol};

const SIDECARS: &str = "istio-egress-gateway";
const AMBIENT: &str = "istio-egress-ambient";
const WAYPOINT: &str = "egress-waypoint";
const HBONE: u16 = labels::WAYPOINT_PORT;

/// What a host's port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Speaks {
    Tls,
    Http,
}

impl Speaks {
    fn of(rule: &Allow) -> Self {
        if rule.remote_protocol == Some(RemoteProtocol::Http) { Speaks::Http } else { Speaks::Tls }
    }

    fn upper(self) -> &'static str {
        match self {
            Speaks::Tls => "TLS",
            Speaks::Http => "HTTP",
        }
    }

    fn named(self, port: u16) -> String {
        format!("{}-{port}", self.upper().to_lowercase())
    }
}

/// The ports of a rule about a host.
fn host_ports(rule: &Allow) -> BTreeMap<u16, Speaks> {
    let speaks = Speaks::of(rule);
    let mut out: BTreeMap<u16, Speaks> =
        rule.ports.iter().flatten().chain(&rule.port).map(|p| (p.get(), speaks)).collect();
    if out.is_empty() {
        out.insert(if speaks == Speaks::Http { 80 } else { 443 }, speaks);
    }
    out
}

fn to_hosts(package: &Package) -> impl Iterator<Item = (&Allow, &str)> {
    package.spec.network.allow.iter().filter_map(|rule| Some((rule, rule.remote_host.as_deref()?)))
}

fn port_list(ports: &BTreeMap<u16, Speaks>) -> Value {
    let one = |(port, speaks): (&u16, &Speaks)| json!({"name": speaks.named(*port), "number": port, "protocol": speaks.upper()});
    ports.iter().map(one).collect()
}

/// What a Package with sidecars has in its own namespace: its hosts, and that its pods call no others.
pub fn own(maker: &Maker<'_>) -> Vec<Value> {
    if maker.mode() != Mode::Sidecar {
        return Vec::new();
    }
    let mut hosts: BTreeMap<&str, BTreeMap<u16, Speaks>> = BTreeMap::new();
    let mut selectors: BTreeSet<Labels> = BTreeSet::new();
    for (rule, host) in to_hosts(maker.package) {
        hosts.entry(host).or_default().extend(host_ports(rule));
        selectors.insert(rule.selector.clone().unwrap_or_default());
    }
    let entries = hosts.iter().map(|(host, ports)| {
        let words: Vec<String> = ports.iter().map(|(p, s)| format!("{p}-{}", s.upper())).collect();
        let name = sanitise(&format!("{}-egress-{host}-{}", maker.name(), words.join("-")));
        maker.owned(SERVICE_ENTRY, &name, Labels::new(), outside(host, ports))
    });
    let closed = selectors.iter().map(|selector| {
        let words: Vec<String> = selector.iter().map(|(k, v)| format!("{k}-{v}")).collect();
        let words = if words.is_empty() { "default".to_owned() } else { words.join("-") };
        let spec = present([
            ("workloadSelector", (!selector.is_empty()).then(|| json!({"labels": selector}))),
            ("outboundTrafficPolicy", Some(json!({"mode": "REGISTRY_ONLY"}))),
        ]);
        maker.owned(SIDECAR, &sanitise(&format!("{}-egress-{words}", maker.name())), Labels::new(), spec)
    });
    entries.chain(closed).collect()
}

fn outside(host: &str, ports: &BTreeMap<u16, Speaks>) -> Value {
    json!({
        "hosts": [host], "location": "MESH_EXTERNAL", "resolution": "DNS", "ports": port_list(ports), "exportTo": ["."],
    })
}

/// A Package that cannot have what it asks for, because an older one has it otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The Package's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The field.
    pub field: String,
    /// What is in the way.
    pub message: String,
}

/// What all Packages share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// The objects; none has an owner.
    pub objects: Vec<Value>,
    /// Who cannot have what it asks for.
    pub conflicts: Vec<Conflict>,
}

/// One host for one mode: its ports, and who uses it.
#[derive(Default)]
struct Host {
    ports: BTreeMap<u16, (Speaks, String)>,
    users: BTreeMap<String, BTreeSet<String>>,
    callers: BTreeMap<u16, Vec<Value>>,
}

impl Host {
    fn ports(&self) -> BTreeMap<u16, Speaks> {
        self.ports.iter().map(|(port, (speaks, _))| (*port, *speaks)).collect()
    }

    /// The annotations that name its users.
    fn noted(&self, mut object: Value) -> Value {
        for (key, users) in &self.users {
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            object = annotated(object, key, &users.join(","));
        }
        object
    }
}

/// What `packages`, the oldest first, share.
pub fn shared(packages: &[&Package], world: &World) -> Shared {
    let packages: Vec<Package> = packages.iter().map(|p| migrated(p)).collect();
    let mut out = Shared::default();
    for mode in [Mode::Sidecar, Mode::Ambient] {
        let hosts = hosts(&packages, (mode, world), &mut out.conflicts);
        match mode {
            Mode::Sidecar => out.objects.extend(hosts.iter().flat_map(|(name, host)| by_gateway(name, host))),
            Mode::Ambient if hosts.is_empty() => {}
            Mode::Ambient => {
                out.objects.push(waypoint());
                out.objects.extend(hosts.iter().flat_map(|(name, host)| by_waypoint(name, host)));
            }
        }
    }
    let shown = packages.iter().flat_map(|p| {
        let namespace = p.metadata.namespace.as_deref().unwrap_or("default");
        p.spec.network.expose.iter().map(move |entry| (namespace, entry))
    });
    out.objects.extend(managed(shown));
    out
}

fn hosts(packages: &[Package], (mode, world): (Mode, &World), conflicts: &mut Vec<Conflict>) -> BTreeMap<String, Host> {
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    let of_mode = || packages.iter().filter(|p| p.spec.network.service_mesh.mode == mode);
    for package in of_mode() {
        let (namespace, name) = identity(package);
        if let Some(conflict) = conflict(package, &hosts) {
            conflicts.push(conflict);
            continue;
        }
        for (rule, host) in to_hosts(package) {
            let entry = hosts.entry(host.to_owned()).or_default();
            let key = format!("uds.dev/user-{name}-{namespace}");
            entry.users.entry(key).or_default().insert(format!("{namespace}/{name}"));
            for (port, speaks) in host_ports(rule) {
                entry.ports.entry(port).or_insert_with(|| (speaks, format!("{namespace}/{name}")));
                callers(entry.callers.entry(port).or_default(), rule, namespace, world);
            }
        }
    }
    if mode == Mode::Ambient {
        for package in of_mode() {
            wide(package, world, &mut hosts);
        }
    }
    hosts
}

fn identity(package: &Package) -> (&str, &str) {
    let meta = &package.metadata;
    (meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default())
}

/// The first of a Package's hosts whose port is spoken otherwise by an older one.
fn conflict(package: &Package, hosts: &BTreeMap<String, Host>) -> Option<Conflict> {
    let (namespace, name) = identity(package);
    for (index, rule) in package.spec.network.allow.iter().enumerate() {
        let Some(host) = rule.remote_host.as_deref() else { continue };
        let Some(known) = hosts.get(host) else { continue };
        for (port, speaks) in host_ports(rule) {
            if let Some((other, user)) = known.ports.get(&port).filter(|(other, _)| *other != speaks) {
                return Some(Conflict {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    field: format!("spec.network.allow[{index}].remoteProtocol"),
                    message: format!(
                        "{host}:{port} is {} here and {} in Package {user}: one host and port has one protocol",
                        speaks.upper(),
                        other.upper()
                    ),
                });
            }
        }
    }
    None
}

/// Adds who may call by `rule`, once.
fn callers(known: &mut Vec<Value>, rule: &Allow, namespace: &str, world: &World) {
    let source = match &rule.service_account {
        Some(account) => json!({"source": {"principals": [world.principal(namespace, account)]}}),
        None => json!({"source": {"namespaces": [namespace]}}),
    };
    if !known.contains(&source) {
        known.push(source);
    }
}

/// A Package that may call anything, or addresses of which these hosts may be, may go on to call hosts that others have routed.
fn wide(package: &Package, world: &World, hosts: &mut BTreeMap<String, Host>) {
    let (namespace, _) = identity(package);
    for rule in &package.spec.network.allow {
        let anywhere = rule.remote_generated == Some(Generated::Anywhere) || rule.remote_cidr.is_some();
        let out = rule.direction == Direction::Egress && rule.remote_protocol != Some(RemoteProtocol::Udp);
        if !anywhere || !out {
            continue;
        }
        let limits: BTreeSet<u16> = rule.ports.iter().flatten().chain(&rule.port).map(|p| p.get()).collect();
        for host in hosts.values_mut() {
            for (port, known) in &mut host.callers {
                if limits.is_empty() || limits.contains(port) {
                    callers(known, rule, namespace, world);
                }
            }
        }
    }
}

fn by_gateway(name: &str, host: &Host) -> Vec<Value> {
    let word = sanitise(name);
    let gateway_name = format!("gateway-{word}");
    let ports = host.ports();
    let meta = |name: String| json!({"name": name, "namespace": SIDECARS});
    let server = |(port, speaks): (&u16, &Speaks)| {
        let tls = (*speaks == Speaks::Tls).then(|| json!({"mode": "PASSTHROUGH"}));
        let port = json!({"name": speaks.named(*port), "number": port, "protocol": speaks.upper()});
        present([("port", Some(port)), ("hosts", Some(json!([name]))), ("tls", tls)])
    };
    let servers: Vec<Value> = ports.iter().map(server).collect();
    let gateway = object(
        ISTIO_GATEWAY,
        meta(gateway_name.clone()),
        json!({"selector": {"app": "egressgateway"}, "servers": servers}),
    );
    let legs = |wanted: Speaks| {
        let ports = ports.iter().filter(|(_, speaks)| **speaks == wanted);
        let all: Vec<Value> = ports.flat_map(|(port, _)| both_legs(name, (*port, wanted), &gateway_name)).collect();
        (!all.is_empty()).then_some(Value::Array(all))
    };
    let routes = present([
        ("hosts", Some(json!([name]))),
        ("gateways", Some(json!(["mesh", gateway_name]))),
        ("tls", legs(Speaks::Tls)),
        ("http", legs(Speaks::Http)),
    ]);
    let entry = json!({
        "hosts": [name], "location": "MESH_EXTERNAL", "resolution": "DNS", "ports": port_list(&ports),
    });
    [
        gateway,
        object(VIRTUAL_SERVICE, meta(format!("egress-vs-{word}")), routes),
        object(SERVICE_ENTRY, meta(format!("service-entry-{word}")), entry),
    ]
    .into_iter()
    .map(|o| host.noted(o))
    .collect()
}

/// From the mesh to the gateway, and from the gateway to the host.
fn both_legs(host: &str, (port, speaks): (u16, Speaks), gateway: &str) -> [Value; 2] {
    let through = format!("egressgateway.{SIDECARS}.svc.cluster.local");
    [("mesh", through.as_str()), (gateway, host)].map(|(from, to)| {
        let names = (speaks == Speaks::Tls).then(|| json!([host]));
        let matches = present([("gateways", Some(json!([from]))), ("port", Some(port.into())), ("sniHosts", names)]);
        json!({"match": [matches], "route": [{"destination": {"host": to, "port": {"number": port}}}]})
    })
}

fn waypoint() -> Value {
    let listener = json!({
        "name": "mesh", "port": HBONE, "protocol": "HBONE",
        "allowedRoutes": {
            "namespaces": {"from": "All"}, "kinds": [{"group": "networking.istio.io", "kind": "ServiceEntry"}],
        },
    });
    let parameters = json!({"group": "", "kind": "ConfigMap", "name": "egress-waypoint-config"});
    object(
        GATEWAY,
        json!({"name": WAYPOINT, "namespace": AMBIENT}),
        json!({
            "gatewayClassName": "istio-waypoint", "listeners": [listener],
            "infrastructure": {"parametersRef": parameters},
        }),
    )
}

fn by_waypoint(name: &str, host: &Host) -> Vec<Value> {
    let word = sanitise(name);
    let entry_name = format!("ambient-se-{word}");
    let labels = json!({labels::USE_WAYPOINT: WAYPOINT, labels::USE_WAYPOINT_NAMESPACE: AMBIENT});
    let entry = object(
        SERVICE_ENTRY,
        json!({"name": entry_name, "namespace": AMBIENT, "labels": labels}),
        outside(name, &host.ports()),
    );
    let rule = |(port, from): (&u16, &Vec<Value>)| {
        let mut rule = rules::admits(None, &[*port]);
        rule["from"] = Value::Array(from.clone());
        rule
    };
    let rules: Vec<Value> = host.callers.iter().map(rule).collect();
    let target = json!({"group": "networking.istio.io", "kind": "ServiceEntry", "name": entry_name});
    let policy = object(
        AUTHORIZATION_POLICY,
        json!({"name": format!("ambient-ap-{word}"), "namespace": AMBIENT, "labels": {"uds/for": "egress"}}),
        json!({"action": "ALLOW", "targetRefs": [target], "rules": rules}),
    );
    [entry, policy].into_iter().map(|o| host.noted(o)).collect()
}
