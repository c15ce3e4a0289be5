use super::flat::{Admitted, admitted};
use super::*;
use proptest::prelude::*;
use trysail_api::load::load;
use trysail_api::object::Object;

/// A pod as cases write it: `y/b app=b`, optionally an address and named ports.
#[derive(Clone, Debug)]
struct Case {
    namespace: String,
    labels: Labels,
    address: IpAddr,
    ports: Vec<NamedPort>,
}

impl Case {
    fn pod(&self) -> Pod<'_> {
        Pod { namespace: &self.namespace, labels: &self.labels, address: self.address, ports: &self.ports }
    }
}

fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// `y/b app=b @10.0.0.1 http:8080`; without an address one that follows from the name.
fn pod(text: &str) -> Case {
    let (named, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (namespace, name) = named.split_once('/').unwrap();
    let sum = name.bytes().fold(0u8, |sum, b| sum.wrapping_mul(31).wrapping_add(b));
    let own = format!("10.{}.9.{sum}", 100 + u32::from(namespace.as_bytes()[0] % 100));
    let address = rest.split_whitespace().find_map(|w| w.strip_prefix('@')).unwrap_or(&own).parse().unwrap();
    let ports = rest.split_whitespace().filter(|w| !w.starts_with('@')).filter_map(|w| w.split_once(':'));
    let ports = ports.map(|(name, number)| NamedPort {
        name: name.into(),
        protocol: Protocol::Tcp,
        number: number.parse().unwrap(),
    });
    Case { namespace: namespace.into(), labels: labels(rest), address, ports: ports.collect() }
}

/// Policies from their specs: `y: {podSelector: …}` a line.
fn policies(text: &str) -> Vec<Policy> {
    let each = text.lines().map(str::trim).filter(|l| !l.is_empty()).enumerate();
    let one = |(index, line): (usize, &str)| {
        let (namespace, spec) = line.split_once(": ").unwrap();
        let manifest = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p{index}, namespace: {namespace}}}\nspec: {spec}\n"
        );
        let loaded = load("case", &manifest);
        assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
        let Object::NetworkPolicy(object) = &loaded.objects[0].object else { unreachable!() };
        read::read(object)
    };
    let read: Vec<_> = each.map(one).collect();
    assert!(read.iter().all(|(_, problems)| problems.is_empty()), "{read:?}");
    read.into_iter().map(|(policy, _)| policy).collect()
}

fn namespaces() -> Namespaces {
    [("x", ""), ("y", ""), ("z", "team=red"), ("v", "team=blue")]
        .map(|(name, more)| {
            let mut all = labels(more);
            all.insert("kubernetes.io/metadata.name".into(), name.into());
            (name.to_owned(), all)
        })
        .into()
}

/// Both ends are asked; a pod is written as above, an outside address as itself.
fn allows(policies: &[Policy], from: &str, to: &str, (protocol, port): (Protocol, u16)) -> bool {
    let case = |text: &str| if text.contains('/') { Ok(pod(text)) } else { Err(text.parse::<IpAddr>().unwrap()) };
    let (from, to) = (case(from), case(to));
    fn end(case: &Result<Case, IpAddr>) -> End<'_> {
        match case {
            Ok(case) => End::Pod(case.pod()),
            Err(address) => End::Other(*address),
        }
    }
    let all = namespaces();
    let target = Target { protocol, port };
    let asked = |own: &Result<Case, IpAddr>, peer, direction| {
        let own = own.as_ref().ok();
        let pods: Vec<Pod<'_>> = [&from, &to].into_iter().filter_map(|c| c.as_ref().ok()).map(Case::pod).collect();
        own.is_none_or(|own| {
            let verdict = judge(policies, &all, direction, (own.pod(), peer), target).allows();
            // What is compiled for packets says the same.
            let flat = admitted(policies, &all, &pods, own.pod(), direction);
            let address = peer.address();
            let passes = flat.is_none_or(|f| address == own.address || f.iter().any(|a| a.admits(address, target)));
            assert_eq!(verdict, passes, "{direction} of {own:?} with {peer:?}");
            verdict
        })
    };
    asked(&from, end(&to), Direction::Egress) && asked(&to, end(&from), Direction::Ingress)
}

#[track_caller]
fn table(text: &str, cases: &[(&str, &str, u16, bool)]) {
    let policies = policies(text);
    for (from, to, port, wanted) in cases {
        assert_eq!(allows(&policies, from, to, (Protocol::Tcp, *port)), *wanted, "{from} -> {to}:{port}");
    }
}

#[test]
fn np1_to_np4_selection_and_types() {
    table(
        "y: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]}",
        &[("x/a", "y/b app=b", 80, true)],
    );
    table("y: {podSelector: {}}", &[("y/b", "y/c", 80, false), ("y/c", "z/d", 80, true)]);
    table(
        "y: {podSelector: {matchLabels: {app: w}}, egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}]}",
        &[
            ("y/x", "y/w app=w", 80, false),
            ("y/w app=w", "y/d app=db", 5432, true),
            ("y/w app=w", "y/d app=db", 80, false),
        ],
    );
    table(
        "y: {podSelector: {matchLabels: {app: w}}, policyTypes: [Egress], ingress: [{from: [{podSelector: {matchLabels: {app: x}}}], ports: [{port: 80}]}]}",
        &[("y/q", "y/w app=w", 9999, true), ("y/w app=w", "y/q", 80, false)],
    );
}

#[test]
fn np5_to_np8_both_ends_and_unions() {
    table(
        "x: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}], ports: [{port: 80}]}]}
         y: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 80}]}]}",
        &[("x/a app=a", "y/b app=b", 80, false)],
    );
    table(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}]}]}
         y: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 443}]}]}",
        &[
            ("y/d app=d", "y/b app=b", 443, true),
            ("y/d app=d", "y/b app=b", 80, false),
            ("y/c app=c", "y/b app=b", 443, true),
        ],
    );
    table(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [], ports: [{port: 80}]}]}
         y: {podSelector: {matchLabels: {app: c}}, policyTypes: [Ingress], ingress: []}",
        &[("203.0.113.9", "y/b app=b", 80, true), ("203.0.113.9", "y/c app=c", 80, false)],
    );
    table(
        "y: {podSelector: {}, policyTypes: [Ingress, Egress]}
         y: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{}]}",
        &[("z/q", "y/b app=b", 7777, true), ("y/b app=b", "z/q", 80, false)],
    );
}

#[test]
fn np9_to_np12_selectors_of_peers() {
    let b = "podSelector: {matchLabels: {app: b}}";
    table(
        &format!(
            "y: {{{b}, ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{team: red}}}}}}, {{podSelector: {{matchLabels: {{app: c}}}}}}]}}]}}"
        ),
        &[
            ("y/c app=c", "y/b app=b", 80, true),
            ("z/d app=d", "y/b app=b", 80, true),
            ("v/c app=c", "y/b app=b", 80, false),
        ],
    );
    table(
        &format!(
            "y: {{{b}, ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{team: red}}}}, podSelector: {{matchLabels: {{app: c}}}}}}]}}]}}"
        ),
        &[
            ("y/c app=c", "y/b app=b", 80, false),
            ("z/d app=d", "y/b app=b", 80, false),
            ("z/c app=c", "y/b app=b", 80, true),
        ],
    );
    table(
        &format!("y: {{{b}, ingress: [{{from: [{{namespaceSelector: {{}}}}], ports: [{{port: 80}}]}}]}}"),
        &[("z/q", "y/b app=b", 80, true), ("203.0.113.9", "y/b app=b", 80, false)],
    );
    table(
        &format!(
            "y: {{{b}, ingress: [{{from: [{{podSelector: {{matchExpressions: [{{key: tier, operator: NotIn, values: [gold]}}]}}}}]}}]}}"
        ),
        &[("y/q", "y/b app=b", 80, true), ("y/r tier=gold", "y/b app=b", 80, false)],
    );
}

#[test]
fn np13_and_np14_blocks_and_exceptions() {
    let block = "y: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}";
    table(
        block,
        &[
            ("10.2.3.4", "y/b app=b", 80, true),
            ("10.1.2.3", "y/b app=b", 80, false),
            ("2001:db8::1", "y/b app=b", 80, false),
        ],
    );
    table(
        &format!(
            "{block}\ny: {{podSelector: {{matchLabels: {{app: b}}}}, ingress: [{{from: [{{ipBlock: {{cidr: 10.1.2.0/24}}}}]}}]}}"
        ),
        &[("10.1.2.3", "y/b app=b", 80, true), ("z/q @10.1.2.8", "y/b app=b", 80, true)],
    );
}

#[test]
fn np15_to_np19_ports() {
    table(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: http}]}]}",
        &[
            ("x/a", "y/b1 app=b http:8080", 8080, true),
            ("x/a", "y/b2 app=b http:9090", 8080, false),
            ("x/a", "y/b2 app=b http:9090", 9090, true),
            ("x/a", "y/b3 app=b", 8080, false),
        ],
    );
    table(
        "x: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}",
        &[("x/a app=a", "y/b2 http:9090", 9090, true), ("x/a app=a", "203.0.113.9", 80, false)],
    );
    let tcp_udp = |text: &str, cases: &[(&str, Protocol, u16, bool)]| {
        for (from, protocol, port, wanted) in cases {
            let asked = allows(&policies(text), from, "y/b app=b", (*protocol, *port));
            assert_eq!(asked, *wanted, "{from} {protocol:?} {port}");
        }
    };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    tcp_udp(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{protocol: TCP, port: 30000, endPort: 30010}]}]}",
        &[("x/a", tcp, 30010, true), ("x/a", tcp, 30011, false), ("x/a", udp, 30005, false)],
    );
    tcp_udp(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 53}]}]}",
        &[("x/a", tcp, 53, true), ("x/a", udp, 53, false)],
    );
    tcp_udp(
        "y: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: []}, {from: [{podSelector: {matchLabels: {app: e}}}], ports: [{protocol: UDP}]}]}",
        &[("y/c app=c", udp, 999, true), ("y/e app=e", udp, 999, true), ("y/e app=e", tcp, 999, false)],
    );
}

#[test]
fn np22_to_np24_endpoints_and_self() {
    let to_y = "x: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}], ports: [{port: 8080}]}]}";
    table(to_y, &[("x/a app=a", "y/b", 8080, true), ("x/a app=a", "y/b", 80, false)]);
    table(
        "x: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.9/32}}], ports: [{port: 80}]}]}",
        &[("x/a app=a", "y/b", 8080, false)],
    );
    // A pod in its node's network is an address.
    table(
        "y: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: h}}}]}]}",
        &[("10.255.0.2", "y/b", 80, false)],
    );
    table("y: {podSelector: {}}", &[("y/k", "y/k", 80, true)]);
}

#[test]
fn a_verdict_names_the_rule_or_who_isolates() {
    let policies = policies(
        "y: {podSelector: {}}
         y: {podSelector: {}, ingress: [{ports: [{port: 1}]}, {ports: [{port: 80}]}]}",
    );
    let (b, c) = (pod("y/b"), pod("y/c"));
    let asked = |port| {
        let target = Target { protocol: Protocol::Tcp, port };
        judge(&policies, &namespaces(), Direction::Ingress, (b.pod(), End::Pod(c.pod())), target).to_string()
    };
    assert_eq!(asked(80), "NetworkPolicy y/p1 ingress[1] allows");
    assert_eq!(asked(81), "isolated for ingress by y/p0, y/p1, no rule matched");
}

#[test]
fn what_is_wrong_is_named_and_matches_nothing() {
    for (spec, field) in [
        ("{policyTypes: [Ingres]}", "spec.policyTypes[0]"),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}",
            "spec.podSelector.matchExpressions[0].operator",
        ),
        ("{podSelector: {matchExpressions: [{key: a, operator: In}]}}", "spec.podSelector.matchExpressions[0].values"),
        ("{ingress: [{from: [{}]}]}", "spec.ingress[0].from[0]"),
        ("{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}", "spec.ingress[0].from[0].ipBlock"),
        ("{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]}", "spec.ingress[0].from[0].ipBlock.cidr"),
        (
            "{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}",
            "spec.ingress[0].from[0].ipBlock.except[0]",
        ),
        ("{egress: [{ports: [{protocol: ICMP}]}]}", "spec.egress[0].ports[0].protocol"),
        ("{egress: [{ports: [{port: 0}]}]}", "spec.egress[0].ports[0].port"),
        ("{egress: [{ports: [{port: 80, endPort: 79}]}]}", "spec.egress[0].ports[0].endPort"),
        ("{egress: [{ports: [{port: http, endPort: 79}]}]}", "spec.egress[0].ports[0].endPort"),
        ("{egress: [{ports: [{endPort: 79}]}]}", "spec.egress[0].ports[0].endPort"),
    ] {
        let manifest = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: y}}\nspec: {spec}\n"
        );
        let loaded = load("case", &manifest);
        let Object::NetworkPolicy(object) = &loaded.objects[0].object else { unreachable!() };
        let (policy, problems) = read::read(object);
        assert_eq!(problems.iter().map(|p| p.0.as_str()).collect::<Vec<_>>(), [field], "{spec}");
        let (b, c) = (pod("y/b"), pod("y/c"));
        for direction in [Direction::Ingress, Direction::Egress] {
            let target = Target { protocol: Protocol::Tcp, port: 80 };
            let verdict = judge([&policy], &namespaces(), direction, (b.pod(), End::Pod(c.pod())), target);
            let isolates = policy.rules(direction).is_some();
            assert!(!isolates || !verdict.allows() || spec.contains("except"), "{spec}: {verdict}");
        }
    }
}

#[test]
fn packets_are_filtered_by_few_rules() {
    let pods = [pod("y/b app=b http:8080 @10.244.1.2"), pod("y/c app=b http:8080 @10.244.1.3"), pod("x/a @10.244.2.2")];
    let all: Vec<Pod<'_>> = pods.iter().map(Case::pod).collect();
    let policies = policies(
        "y: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{namespaceSelector: {}}], ports: [{port: http}, {port: 90, endPort: 99}, {protocol: UDP}]}, {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}], egress: [{ports: [{port: http}]}]}",
    );
    let of = |direction| admitted(&policies, &namespaces(), &all, pods[0].pod(), direction).map(std::sync::Arc::from);
    let (ingress, egress): (Option<std::sync::Arc<[Admitted]>>, _) = (of(Direction::Ingress), of(Direction::Egress));
    let isolated = |case: &Case| {
        let IpAddr::V4(address) = case.address else { unreachable!() };
        nft::Isolated { address, ingress: ingress.clone(), egress: egress.clone() }
    };
    let rules = nft::ruleset(&[isolated(&pods[0]), isolated(&pods[1])]);
    let wanted = "\
add table ip netpol
delete table ip netpol
add table ip netpol
add chain ip netpol egress0
add rule ip netpol egress0 ip daddr . tcp dport { 10.244.1.2 . 8080, 10.244.1.3 . 8080 } return
add rule ip netpol egress0 drop
add chain ip netpol ingress1
add set ip netpol peers0 { type ipv4_addr; elements = { 10.244.1.2, 10.244.1.3, 10.244.2.2 }; }
add rule ip netpol ingress1 ip saddr @peers0 tcp dport { 90-99, 8080 } return
add rule ip netpol ingress1 ip saddr @peers0 udp dport { 0-65535 } return
add rule ip netpol ingress1 ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 return
add rule ip netpol ingress1 drop
add chain ip netpol pods { type filter hook forward priority filter; policy accept; }
add rule ip netpol pods ct state established,related accept
add rule ip netpol pods ip saddr . ip daddr { 10.244.1.2 . 10.244.1.2, 10.244.1.3 . 10.244.1.3 } accept
add rule ip netpol pods ip saddr vmap { 10.244.1.2 : jump egress0, 10.244.1.3 : jump egress0 }
add rule ip netpol pods ip daddr vmap { 10.244.1.2 : jump ingress1, 10.244.1.3 : jump ingress1 }
";
    assert_eq!(rules, wanted);
    assert_eq!(nft::ruleset(&[]), "add table ip netpol\ndelete table ip netpol\n");
}

fn some_selector() -> impl Strategy<Value = Selector> {
    let text = prop_oneof![
        Just("{}"),
        Just("{matchLabels: {app: a}}"),
        Just("{matchLabels: {app: b, tier: t}}"),
        Just("{matchExpressions: [{key: app, operator: NotIn, values: [a]}]}"),
        Just("{matchExpressions: [{key: tier, operator: Exists}]}"),
        Just("{matchExpressions: [{key: team, operator: DoesNotExist}]}"),
    ];
    text.prop_map(|text| {
        let value = trysail_api::load::yaml(text).unwrap();
        Selector::read(&serde_json::from_value(value).unwrap()).unwrap()
    })
}

fn some_peer() -> impl Strategy<Value = Peer> {
    let block = |text: &str| Cidr::parse(text).unwrap();
    prop_oneof![
        (proptest::option::of(some_selector()), some_selector())
            .prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods }),
        Just(Peer::Block { block: block("10.0.0.0/8"), except: vec![block("10.120.0.0/14")] }),
        Just(Peer::Block { block: block("203.0.113.0/24"), except: vec![] }),
        Just(Peer::Nothing),
    ]
}

fn some_port() -> impl Strategy<Value = PortMatch> {
    let range = prop_oneof![
        Just(PortRange::All),
        Just(PortRange::Numbers(80, 80)),
        Just(PortRange::Numbers(75, 85)),
        Just(PortRange::Named("http".into())),
        Just(PortRange::Nothing),
    ];
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    (protocol, range).prop_map(|(protocol, port)| PortMatch { protocol, port })
}

fn some_rules() -> impl Strategy<Value = Option<Vec<Rule>>> {
    let rule = (
        proptest::option::of(proptest::collection::vec(some_peer(), 1..3)),
        proptest::option::of(proptest::collection::vec(some_port(), 1..3)),
    );
    proptest::option::of(proptest::collection::vec(rule.prop_map(|(peers, ports)| Rule { peers, ports }), 0..3))
}

fn some_policy() -> impl Strategy<Value = Policy> {
    let namespace = prop_oneof![Just("x"), Just("y"), Just("z")];
    (namespace, some_selector(), some_rules(), some_rules()).prop_map(|(namespace, pods, ingress, egress)| Policy {
        namespace: namespace.into(),
        name: "p".into(),
        pods,
        ingress,
        egress,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The packet gate and the evaluator agree, for every pair of ends and several ports: some hundred connections a case.
    #[test]
    fn compiled_rules_say_what_the_evaluator_says(policies in proptest::collection::vec(some_policy(), 0..5)) {
        let cases = ["x/a app=a http:80", "x/b app=b tier=t http:81", "y/c app=a team=q", "y/d tier=t http:75", "z/e app=b"].map(pod);
        let pods: Vec<Pod<'_>> = cases.iter().map(Case::pod).collect();
        let outside = ["203.0.113.9", "10.121.0.1", "2001:db8::1"].map(|a| End::Other(a.parse().unwrap()));
        let all = namespaces();
        for own in &pods {
            for direction in [Direction::Ingress, Direction::Egress] {
                let flat: Option<Vec<Admitted>> = admitted(&policies, &all, &pods, *own, direction);
                for peer in pods.iter().map(|p| End::Pod(*p)).chain(outside).filter(|p| p.address() != own.address) {
                    for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Tcp, 81), (Protocol::Udp, 75)] {
                        let target = Target { protocol, port };
                        let verdict = judge(&policies, &all, direction, (*own, peer), target);
                        let passes = flat.as_ref().is_none_or(|f| f.iter().any(|a| a.admits(peer.address(), target)));
                        prop_assert_eq!(verdict.allows(), passes, "{} {:?} {:?} {:?}", direction, own, peer, target);
                    }
                }
            }
        }
    }
}
