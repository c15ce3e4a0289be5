//! One verdict everywhere: random AuthorizationPolicies, put before a node's proxy, a waypoint and a sidecar, with real requests, against
//! the evaluator.

use crate::authorization::policy;
use crate::engine::{SIDECAR, WAYPOINT, tool_app, waypoint};
use crate::support::*;
use base64::Engine;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use trysail_api::istio::authorization_policy::AuthorizationPolicy;
use trysail_api::object::{Kind, Object};
use trysail_control::translate::authorization::translate;
use trysail_policy::authz::{self, Verdict};
use trysail_policy::{http, path::Readings};

pub const TESTS: &[Test] = &[("random_policies_have_one_verdict_everywhere", differential)];

/// Policies of one run; each is judged at three hops.
const POLICIES: u64 = 250;

/// Namespace, account, and whether it is in the mesh.
const CALLERS: [(&str, &str, bool); 3] = [("c", "web", true), ("d", "ops", true), ("out", "x", false)];
/// Namespace of the application behind each hop, and what makes a policy act there.
const HOPS: [(&str, &str); 3] = [
    ("l4", "selector: {matchLabels: {app: app}}"),
    ("l7", "targetRefs: [{group: '', kind: Service, name: app}]"),
    ("sc", "selector: {matchLabels: {app: app}}"),
];

/// A request: method, path, host, `x-env`.
type Asked = (&'static str, &'static str, &'static str, Option<&'static str>);

const REQUESTS: [Asked; 6] = [
    ("GET", "/a", "shop.example", None),
    ("POST", "/a/b", "shop.example", Some("prod-1")),
    ("GET", "/x/1", "app", Some("dev")),
    ("PUT", "/b", "a.example", None),
    ("GET", "/a/../x/1", "app", Some("prod-1")),
    ("DELETE", "/x//b", "shop.example", Some("dev")),
];

fn some(rng: &mut StdRng, pool: &[&str]) -> Vec<String> {
    let count = rng.random_range(1..=2);
    (0..count).map(|_| pool[rng.random_range(0..pool.len())].to_owned()).collect()
}

/// Up to two of these fields, each with one or two of its values, or of its opposite's.
fn fields(rng: &mut StdRng, pools: &[(&str, &[&str])]) -> Value {
    let mut out = serde_json::Map::new();
    for _ in 0..rng.random_range(1..=2) {
        let (name, pool) = pools[rng.random_range(0..pools.len())];
        let mut name = name.to_owned();
        if rng.random_bool(0.3) {
            name = format!("not{}{}", name[..1].to_uppercase(), &name[1..]);
        }
        out.insert(name, json!(some(rng, pool)));
    }
    Value::Object(out)
}

const SOURCES: [(&str, &[&str]); 3] = [
    ("principals", &["cluster.local/ns/c/sa/web", "*/sa/ops", "cluster.local/ns/c/*", "*", "cluster.local/ns/z/sa/z"]),
    ("namespaces", &["c", "d", "*", "out", "d*"]),
    ("ipBlocks", &["10.244.1.0/24", "10.244.0.0/16", "10.244.2.0/24", "192.0.2.0/24"]),
];
const OPERATIONS: [(&str, &[&str]); 4] = [
    ("ports", &["8080", "9090"]),
    ("methods", &["GET", "POST", "P*", "DELETE"]),
    ("paths", &["/a", "/a*", "*/b", "/x/{*}", "/x*"]),
    ("hosts", &["shop.example", "*.example", "app"]),
];
const CONDITIONS: [(&str, &[&str]); 5] = [
    ("source.namespace", &["c", "d"]),
    ("source.principal", &["cluster.local/ns/d/sa/ops", "*"]),
    ("source.ip", &["10.244.0.0/16", "192.0.2.0/24"]),
    ("destination.port", &["8080", "81"]),
    ("request.headers[x-env]", &["prod*", "dev", "*"]),
];

fn rule(rng: &mut StdRng) -> Value {
    let mut out = serde_json::Map::new();
    if rng.random_bool(0.6) {
        let entries: Vec<Value> =
            (0..rng.random_range(1..=2)).map(|_| json!({"source": fields(rng, &SOURCES)})).collect();
        out.insert("from".into(), json!(entries));
    }
    if rng.random_bool(0.6) {
        let entries: Vec<Value> =
            (0..rng.random_range(1..=2)).map(|_| json!({"operation": fields(rng, &OPERATIONS)})).collect();
        out.insert("to".into(), json!(entries));
    }
    if rng.random_bool(0.4) {
        let (key, pool) = CONDITIONS[rng.random_range(0..CONDITIONS.len())];
        let list = if rng.random_bool(0.3) { "notValues" } else { "values" };
        out.insert("when".into(), json!([{"key": key, list: some(rng, pool)}]));
    }
    Value::Object(out)
}

fn spec(rng: &mut StdRng) -> Value {
    let rules: Vec<Value> = (0..rng.random_range(0..=2)).map(|_| rule(rng)).collect();
    let action = if rng.random_bool(0.5) { "ALLOW" } else { "DENY" };
    json!({"action": action, "rules": rules})
}

/// What the evaluator says of a request at a hop.
fn expected(written: &AuthorizationPolicy, hop: &str, connection: &authz::Facts, asked: &Asked) -> bool {
    if hop == "l4" {
        let policy = translate(written, "cluster.local").policy;
        return authz::evaluate(policy.iter(), connection) == Verdict::Allow;
    }
    let spec = &written.spec;
    let policy = http::Policy::compile("p", spec.action, &spec.rules, (hop, "cluster.local"));
    let (method, path, host, env) = *asked;
    let paths = Readings::of(path).unwrap();
    let headers = |name: &str| env.filter(|_| name == "x-env").map(|e| vec![e.to_owned()]).unwrap_or_default();
    let request = http::Request { method, host, port: 80, paths: &paths, headers: &headers, claims: None };
    let facts = http::Facts { connection, remote_ip: connection.source_ip, sni: None, request: Some(request) };
    http::evaluate([&policy], &facts).verdict == Verdict::Allow
}

struct World {
    lab: Lab,
    /// Address of each caller.
    callers: [String; 3],
    /// Address and node of each application.
    apps: [(String, String); 3],
}

impl World {
    /// The statuses of all requests of all callers at all hops, in that order; 0 where there was no answer.
    fn ask(&self, requests: &[Asked]) -> Vec<Vec<Vec<u16>>> {
        let of = |caller: usize| {
            let mut items = Vec::new();
            for (ns, _) in HOPS {
                for (method, path, host, env) in requests {
                    let env = env.map(|e| format!("x-env: {e}\r\n")).unwrap_or_default();
                    let text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{env}connection: close\r\n\r\n");
                    let text = base64::engine::general_purpose::STANDARD.encode(text);
                    items.push(format!("app.{ns}:8080|{text}"));
                }
            }
            let (ns, _, _) = CALLERS[caller];
            let (_, text) = self.lab.exec(ns, "client", &[tool(), "tool", "each", &items.join(",")]);
            let statuses: Vec<u16> = text.lines().map(|l| l.parse().unwrap_or(0)).collect();
            assert_eq!(statuses.len(), items.len(), "{text}");
            statuses.chunks(requests.len()).map(<[u16]>::to_vec).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let each: Vec<_> = (0..CALLERS.len()).map(|caller| scope.spawn(move || of(caller))).collect();
            each.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn facts(&self, caller: usize, hop: usize) -> authz::Facts {
        let (ns, account, meshed) = CALLERS[caller];
        authz::Facts {
            source: meshed.then(|| format!("spiffe://cluster.local/ns/{ns}/sa/{account}").parse().unwrap()),
            via: None,
            source_ip: self.callers[caller].parse().unwrap(),
            destination_ip: self.apps[hop].0.parse().unwrap(),
            destination_port: 8080,
        }
    }

    /// What differs, each said; empty when every hop says what the evaluator says.
    fn differences(&self, written: &AuthorizationPolicy, requests: &[Asked]) -> Vec<String> {
        let seen = self.ask(requests);
        let mut out = Vec::new();
        for (caller, by_hop) in seen.iter().enumerate() {
            for (hop, statuses) in by_hop.iter().enumerate() {
                // From outside the mesh nobody goes through a waypoint, and what requires it is not reached around it.
                if HOPS[hop].0 == "l7" && !CALLERS[caller].2 {
                    continue;
                }
                for (asked, status) in requests.iter().zip(statuses) {
                    let wanted = expected(written, HOPS[hop].0, &self.facts(caller, hop), asked);
                    if (*status == 200) != wanted {
                        let (caller, hop) = (CALLERS[caller], HOPS[hop].0);
                        out.push(format!("{caller:?} at {hop}: {asked:?}: {status}, to be allowed: {wanted}"));
                    }
                }
            }
        }
        out
    }
}

fn world(user: User) -> World {
    let manifests = [
        namespace("l4", AMBIENT),
        namespace("l7", WAYPOINT),
        namespace("sc", SIDECAR),
        namespace("c", AMBIENT),
        namespace("d", AMBIENT),
        namespace("out", ""),
        waypoint("l7"),
        tool_app("l4", "app", "http, '8080'", 8080),
        tool_app("l7", "app", "http, '8080'", 8080).replace("{port: 8080}]}\n", "{name: http, port: 8080}]}\n"),
        tool_app("sc", "app", "http, '8080'", 8080).replace("{port: 8080}]}\n", "{name: http, port: 8080}]}\n"),
        client("c", "web"),
        client("d", "ops"),
        client("out", "x"),
    ];
    let lab = up(user, &manifests.concat());
    for (from, _, _) in CALLERS {
        for (ns, _) in HOPS {
            lab.until_call((from, "client"), &format!("http://app.{ns}:8080/hello"), 200);
        }
    }
    let callers = CALLERS.map(|(ns, _, _)| lab.pod(ns, "client", "status.podIP"));
    let apps = HOPS.map(|(ns, _)| (lab.pod(ns, "app", "status.podIP"), lab.pod(ns, "app", "spec.nodeName")));
    World { lab, callers, apps }
}

fn differential(user: User) {
    let world = world(user);
    let first = if user == User::Nobody { POLICIES } else { 0 };
    let mut wrong = Vec::new();
    for seed in first..first + POLICIES {
        let mut rng = StdRng::seed_from_u64(seed);
        let spec = spec(&mut rng);
        let inner = spec.to_string();
        let inner = inner.trim_start_matches('{').trim_end_matches('}');
        let name = "p";
        let all: String = HOPS.iter().map(|(ns, target)| policy(ns, name, &format!("{{{target}, {inner}}}"))).collect();
        world.lab.apply(&all);
        let object = json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": name, "namespace": "l4"}, "spec": spec});
        let (object, _) = Object::from_json(Kind::AuthorizationPolicy, object).unwrap();
        let Object::AuthorizationPolicy(written) = object else { unreachable!() };
        // A policy takes a moment to arrive; what differs after that, differs. Twice in a row: the first time it may still be the last one
        // that says the same.
        let (mut last, mut agreed) = (Vec::new(), 0);
        for _ in 0..20 {
            last = world.differences(&written, &REQUESTS);
            agreed = if last.is_empty() { agreed + 1 } else { 0 };
            if agreed == 2 {
                break;
            }
        }
        if !last.is_empty() {
            wrong.push(format!("seed {seed}: {spec}\n  {}", last.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {POLICIES}:\n{}", wrong.len(), wrong.join("\n"));
}
