//! NetworkPolicies act on packets as Kubernetes says, on pods that already run, at once; and inside tunnels as if there were none.

use crate::support::*;
use std::fmt::Write;

pub const TESTS: &[Test] = &[
    ("network_policies_hold_for_pods_that_run", packets),
    ("tables_of_pods_in_three_namespaces", tables),
    ("network_policies_hold_inside_tunnels_as_they_are", inside),
    ("network_policies_hold_through_a_waypoint_and_for_sidecars", mixed),
    ("the_tunnels_port_alone_is_judged_on_request", as_istio),
];

/// A Deployment of one pod that listens on 80 and 81 (TCP) and runs the tool's commands; `more` are further labels.
fn pod(namespace: &str, name: &str, more: &str, node: &str) -> String {
    let node = if node.is_empty() { String::new() } else { format!("nodeName: {node}, ") };
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}{more}}}}}
    spec: {{{node}terminationGracePeriodSeconds: 1, containers: [
      {{name: main, image: test/tool, args: [listen, '80', '81'], readinessProbe: {{tcpSocket: {{port: 80}}, periodSeconds: 1}}, ports: [{{name: web, containerPort: 80}}, {{name: alt, containerPort: 81}}]}}]}}
"
    )
}

fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

/// Which of `targets` (`address:port/protocol`) a pod reaches.
fn reached(lab: &Lab, namespace: &str, pod: &str, targets: &[String]) -> Vec<bool> {
    let mut command = vec![tool(), "tool", "reach"];
    command.extend(targets.iter().map(String::as_str));
    let (_, text) = lab.exec(namespace, pod, &command);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), targets.len(), "{text}");
    lines.iter().map(|l| l.ends_with("yes")).collect()
}

const PODS: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 3] = ["x", "y", "z"];

/// Everything that some pod does not reach: `from to port/protocol`. All pods try at the same time.
fn refused(lab: &Lab, address: impl Fn(&str) -> String + Sync, ports: &[&str]) -> Vec<String> {
    let all = pairs(ports);
    let ends: Vec<String> = NAMESPACES.iter().flat_map(|ns| PODS.iter().map(move |p| format!("{ns}/{p}"))).collect();
    let of = |from: &str| {
        let mine: Vec<_> = all.iter().filter(|(f, _, _)| f == from).cloned().collect();
        let targets: Vec<String> = mine.iter().map(|(_, to, port)| format!("{}:{port}", address(to))).collect();
        let (ns, pod) = from.split_once('/').unwrap();
        let reached = reached(lab, ns, pod, &targets);
        mine.into_iter().zip(reached).filter(|(_, reached)| !reached).map(|(pair, _)| line(pair)).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let tries: Vec<_> = ends.iter().map(|from| scope.spawn(|| of(from))).collect();
        tries.into_iter().flat_map(|t| t.join().unwrap()).collect()
    })
}

/// A family: its policies, and whether `from` may reach `to` on a port (`80/tcp` and so on).
type Family = (&'static str, &'static [(&'static str, &'static str)], fn(&str, &str, &str) -> bool);

const FAMILIES: &[Family] = &[
    ("none", &[], |_, _, _| true),
    ("deny all ingress", &[("x", "{podSelector: {}}")], |_, to, _| !to.starts_with("x/")),
    ("deny all egress", &[("x", "{podSelector: {}, policyTypes: [Egress]}")], |from, _, _| !from.starts_with("x/")),
    ("deny both", &[("x", "{podSelector: {}, policyTypes: [Ingress, Egress]}")], |from, to, _| {
        !from.starts_with("x/") && !to.starts_with("x/")
    }),
    ("allow all ingress", &[("x", "{podSelector: {}, ingress: [{}]}"), ("x", "{podSelector: {}}")], |_, _, _| true),
    (
        "ingress from pods by label",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}")],
        |from, to, _| to != "x/a" || from == "x/b",
    ),
    (
        "ingress from namespaces by label",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}",
        )],
        |from, to, _| to != "x/a" || from.starts_with("y/"),
    ),
    (
        "the namespace's own name",
        &[(
            "x",
            "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: z}}}]}]}",
        )],
        |from, to, _| !to.starts_with("x/") || from.starts_with("z/"),
    ),
    (
        "pods and namespaces",
        &[(
            "x",
            "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {app: b}}}]}]}",
        )],
        |from, to, _| !to.starts_with("x/") || from == "y/b",
    ),
    (
        "pods or namespaces",
        &[(
            "x",
            "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}, {podSelector: {matchLabels: {app: b}}}]}]}",
        )],
        |from, to, _| !to.starts_with("x/") || from.starts_with("y/") || from == "x/b",
    ),
    (
        "expressions",
        &[(
            "x",
            "{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [a]}]}}]}]}",
        )],
        |from, to, _| !(to == "x/a" || to == "x/b") || !from.starts_with("x/") && !from.ends_with("/a"),
    ),
    ("all namespaces", &[("x", "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}")], |_, _, _| true),
    (
        "a number",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 81}]}]}")],
        |_, to, port| to != "x/a" || port == "81/tcp",
    ),
    ("a name", &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: alt}]}]}")], |_, to, port| {
        to != "x/a" || port == "81/tcp"
    }),
    (
        "a range",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 81, endPort: 90}]}]}")],
        |_, to, port| to != "x/a" || port == "81/tcp",
    ),
    (
        "a protocol",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{protocol: UDP}]}]}")],
        |_, to, port| to != "x/a" || port == "80/udp",
    ),
    (
        "UDP by number",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{protocol: UDP, port: 80}]}]}")],
        |_, to, port| to != "x/a" || port == "80/udp",
    ),
    (
        "policies stack",
        &[
            (
                "x",
                "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 80}]}]}",
            ),
            ("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{ports: [{port: 81}]}]}"),
        ],
        |from, to, port| to != "x/a" || port == "81/tcp" || (port == "80/tcp" && from == "x/b"),
    ),
    (
        "egress to pods by label",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]}",
        )],
        |from, to, _| from != "x/a" || to == "x/b",
    ),
    (
        "egress to namespaces",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: y}}}], ports: [{port: 80}]}]}",
        )],
        |from, to, port| from != "x/a" || to.starts_with("y/") && port == "80/tcp",
    ),
    (
        "egress by name",
        &[("x", "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: alt}]}]}")],
        |from, _, port| from != "x/a" || port == "81/tcp",
    ),
    (
        "both ends",
        &[
            (
                "x",
                "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}",
            ),
            (
                "y",
                "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}, podSelector: {matchLabels: {app: b}}}]}]}",
            ),
        ],
        |from, to, _| (from != "x/a" || to.starts_with("y/")) && (to != "y/a" || from == "x/b"),
    ),
    (
        "directions are apart",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], ingress: [{from: [{podSelector: {matchLabels: {app: none}}}]}]}",
        )],
        |from, _, _| from != "x/a",
    ),
    (
        "an egress rule adds Egress",
        &[("x", "{podSelector: {matchLabels: {app: a}}, egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}")],
        |from, to, _| to != "x/a" && (from != "x/a" || to == "x/c"),
    ),
    (
        "a block",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16}}]}]}")],
        |_, _, _| true,
    ),
    (
        "a block of nobody",
        &[("x", "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}")],
        |_, to, _| to != "x/a",
    ),
    (
        "a block of one node",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.2.0/24]}}]}]}",
        )],
        |from, to, _| to != "x/a" || on_first_node(from),
    ),
    (
        "egress to a block",
        &[(
            "x",
            "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.244.1.0/24}}], ports: [{port: 80}, {protocol: UDP, port: 80}]}]}",
        )],
        |from, to, port| from != "x/a" || on_first_node(to) && port != "81/tcp",
    ),
];

/// Pods a and c are on the first node, b on the second.
fn on_first_node(end: &str) -> bool {
    !end.ends_with("/b")
}

fn everyone(labels: &str) -> String {
    let mut out = String::new();
    for ns in NAMESPACES {
        let labels = if labels.is_empty() { format!("ns: {ns}") } else { format!("ns: {ns}, {labels}") };
        write!(out, "{}", namespace(ns, &labels)).unwrap();
        for p in PODS {
            let node = if on_first_node(p) && p != "b" { "node-1" } else { "node-2" };
            out += &pod(ns, p, "", node);
        }
    }
    out
}

fn tables(user: User) {
    for (mode, labels, ports) in
        [("no mesh", "", &["80/tcp", "81/tcp", "80/udp"][..]), ("ambient", AMBIENT, &["80/tcp", "81/tcp"])]
    {
        let lab = up(user, &everyone(labels));
        let mut addresses = std::collections::BTreeMap::new();
        for ns in NAMESPACES {
            for p in PODS {
                addresses.insert(format!("{ns}/{p}"), lab.pod(ns, p, "status.podIP"));
            }
        }
        let mut wrong = Vec::new();
        for (name, policies, allowed) in FAMILIES {
            for (index, (ns, spec)) in policies.iter().enumerate() {
                lab.apply(&policy(ns, &format!("p{index}"), spec));
            }
            let expected: Vec<String> =
                pairs(ports).into_iter().filter(|(f, t, p)| !allowed(f, t, p)).map(line).collect();
            let mut seen = Vec::new();
            // What is not as it must be may still be on its way; a second look decides.
            for _ in 0..3 {
                seen = refused(&lab, |end| addresses[end].clone(), ports);
                if seen == expected {
                    break;
                }
            }
            if seen != expected {
                wrong.push(format!("{mode}, {name}: refused {seen:?}\n  must be {expected:?}"));
            }
            for (index, (ns, _)) in policies.iter().enumerate() {
                lab.lab(&["delete", "networkpolicy", "-n", ns, &format!("p{index}")]);
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

fn line((from, to, port): (String, String, &str)) -> String {
    format!("{from} {to} {port}")
}

fn pairs<'a>(ports: &[&'a str]) -> Vec<(String, String, &'a str)> {
    let ends: Vec<String> = NAMESPACES.iter().flat_map(|ns| PODS.iter().map(move |p| format!("{ns}/{p}"))).collect();
    let mut out = Vec::new();
    for from in &ends {
        for to in ends.iter().filter(|to| *to != from) {
            out.extend(ports.iter().map(|port| (from.clone(), to.clone(), *port)));
        }
    }
    out
}

/// A new pod instead of the one of a Deployment of namespace y, ready and alone.
fn renew(lab: &Lab, deployment: &str) {
    let target = format!("deployment/{deployment}");
    lab.lab(&["rollout", "restart", "-n", "y", &target]);
    lab.lab(&["rollout", "status", "-n", "y", &target, "--timeout", "30s"]);
    lab.until("the old pod is gone", || {
        let pods = lab.lab(&["get", "pods", "-n", "y", "-l", &format!("app={deployment}")]);
        if pods.lines().count() == 2 { Ok(()) } else { Err(pods) }
    });
}

fn packets(user: User) {
    let manifests = [
        namespace("y", ""),
        namespace("x", ""),
        pod("y", "b", "", "node-1"),
        pod("y", "b2", "", "node-2"),
        pod("x", "a", "", "node-2"),
        pod("x", "near", "", "node-1"),
    ];
    let lab = up(user, &manifests.concat());
    let b = lab.pod("y", "b", "status.podIP");
    let target = [format!("{b}:80/tcp")];
    let reach = |ns: &str, from: &str| reached(&lab, ns, from, &target)[0];
    assert!(reach("x", "a") && reach("x", "near"));
    // NP20, NP21: at once, for pods that run; probes and the pod itself still get through.
    lab.apply(&policy("y", "deny", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress]}"));
    lab.until("the policy acts", || if reach("x", "a") { Err("reached".into()) } else { Ok(()) });
    assert!(!reach("x", "near"), "on the same node too");
    assert!(reach("y", "b"), "a pod reaches itself");
    let b2 = lab.pod("y", "b2", "status.podIP");
    assert!(!reached(&lab, "y", "b", &[format!("{b2}:80/tcp")])[0], "egress");
    // A new pod becomes ready: the probes of its node pass.
    renew(&lab, "b");
    let b = lab.pod("y", "b", "status.podIP");
    let target = [format!("{b}:80/tcp")];
    let reach = |ns: &str, from: &str| reached(&lab, ns, from, &target)[0];
    assert!(!reach("x", "a"));
    // Labels count when they change.
    lab.apply(&policy(
        "y",
        "deny",
        "{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: red}}}]}]}",
    ));
    assert!(!reach("x", "a"));
    lab.lab(&["label", "namespace", "x", "team=red"]);
    lab.until("the namespace's label acts", || if reach("x", "a") { Ok(()) } else { Err("not reached".into()) });
    // A new pod is isolated from its first packet on.
    lab.apply(&policy("y", "all", "{podSelector: {}}"));
    renew(&lab, "b2");
    let b2 = lab.pod("y", "b2", "status.podIP");
    assert!(!reached(&lab, "x", "a", &[format!("{b2}:80/tcp")])[0]);
    lab.lab(&["delete", "networkpolicy", "-n", "y", "all"]);
    lab.until("a policy that is gone is gone", || {
        if reached(&lab, "x", "a", &[format!("{b2}:80/tcp")])[0] { Ok(()) } else { Err("not reached".into()) }
    });
    // What is wrong is refused with its field, and what was there stays.
    let said = lab.try_apply(&policy("y", "deny", "{podSelector: {}, ingress: [{ports: [{protocol: ICMP}]}]}"));
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.contains("spec.ingress[0].ports[0].protocol"), "{text}");
    assert!(reach("x", "a"));
}

/// The namespaces of the cases, both captured: `y/srv` listens on 80 and 81, `x/cli` and `x/oth` call.
fn enrolled() -> String {
    [
        namespace("x", AMBIENT),
        namespace("y", AMBIENT),
        pod("y", "srv", "", "node-1"),
        pod("x", "cli", "", "node-2"),
        pod("x", "oth", "", "node-1"),
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: y}\nspec: {selector: {app: srv}, ports: [{port: 8000, targetPort: 80}]}\n".to_owned(),
    ]
    .concat()
}

/// Admits `x/cli` to port 80 of `y/srv`; `more` are further ports.
fn p80(more: &str) -> String {
    policy(
        "y",
        "p",
        &format!(
            "{{podSelector: {{matchLabels: {{app: srv}}}}, policyTypes: [Ingress], ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: x}}}}, podSelector: {{matchLabels: {{app: cli}}}}}}], ports: [{{port: 80}}{more}]}}]}}"
        ),
    )
}

/// `y/srv` as it is seen from the callers: each case is a caller, a port of the pod or `s`, and whether it answers.
struct Srv<'a> {
    lab: &'a Lab,
    address: String,
    vip: String,
}

impl<'a> Srv<'a> {
    fn of(lab: &'a Lab) -> Self {
        let vip = lab.lab(&["get", "service", "s", "-n", "y", "-o", "jsonpath={.spec.clusterIP}"]);
        Self { lab, address: lab.pod("y", "srv", "status.podIP"), vip }
    }

    fn answers(&self, from: &str, to: &str) -> bool {
        let (ns, pod) = from.split_once('/').unwrap();
        let target = if to == "s" { format!("{}:8000/tcp", self.vip) } else { format!("{}:{to}/tcp", self.address) };
        reached(self.lab, ns, pod, &[target])[0]
    }

    /// The first case may take a moment to come about; the others then hold.
    #[track_caller]
    fn hold(&self, what: &str, cases: &[(&str, &str, bool)]) {
        for (from, to, wanted) in cases {
            self.lab.until(&format!("{what}: {from} to {to} is {wanted}"), || {
                if self.answers(from, to) == *wanted { Ok(()) } else { Err("not so".to_owned()) }
            });
        }
        for (from, to, wanted) in cases {
            assert_eq!(self.answers(from, to), *wanted, "{what}: {from} to {to}");
        }
    }

    fn gone(&self, namespace: &str) {
        self.lab.lab(&["delete", "networkpolicy", "-n", namespace, "p"]);
    }
}

fn inside(user: User) {
    let lab = up(user, &enrolled());
    let srv = Srv::of(&lab);
    srv.hold("none", &[("x/cli", "80", true), ("x/oth", "81", true), ("x/cli", "s", true)]);
    lab.apply(&p80(""));
    srv.hold(
        "NA1, NA2",
        &[("x/oth", "80", false), ("x/cli", "81", false), ("x/cli", "80", true), ("x/cli", "s", true)],
    );
    lab.until("the log names the policy", || {
        let text = lab.lab(&["system", "logs", "proxy-node-1"]);
        if text.contains("isolated for ingress by y/p") { Ok(()) } else { Err(text) }
    });
    // What is explained is what happens.
    for (from, to, wanted) in [("x/cli", "y/srv:80", 0), ("x/oth", "y/srv:80", 3), ("x/cli", "y/srv:81", 3)] {
        let asked = trysail(user).args(["policy", "explain", "--name", &lab.name, "--from", from, "--to", to]).output();
        let asked = asked.unwrap();
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert_eq!(asked.status.code(), Some(wanted), "{from} to {to}: {text}");
        let why = if wanted == 0 { "NetworkPolicy y/p ingress[0] allows" } else { "isolated for ingress by y/p" };
        assert!(text.contains(why), "{text}");
    }
    lab.apply(&p80(", {port: 15008}"));
    srv.hold("NA3", &[("x/cli", "81", false), ("x/cli", "80", true)]);
    let only_tunnels =
        "{podSelector: {matchLabels: {app: srv}}, policyTypes: [Ingress], ingress: [{ports: [{port: 15008}]}]}";
    lab.apply(&policy("y", "p", only_tunnels));
    srv.hold("NA4", &[("x/cli", "80", false)]);
    lab.apply(&policy("y", "p", "{podSelector: {}, policyTypes: [Ingress, Egress]}"));
    srv.hold("NA5", &[("x/cli", "80", false)]);
    let back = format!("{}:80/tcp", lab.pod("x", "oth", "status.podIP"));
    assert!(!reached(&lab, "y", "srv", &[back])[0], "NA5 b: egress");
    renew(&lab, "srv");
    let srv = Srv::of(&lab);
    srv.gone("y");
    srv.hold("gone", &[("x/cli", "81", true)]);
    lab.apply(&policy(
        "x",
        "p",
        "{podSelector: {matchLabels: {app: cli}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}], ports: [{port: 80}]}]}",
    ));
    srv.hold("NA6", &[("x/cli", "81", false), ("x/cli", "s", true), ("x/cli", "80", true), ("x/oth", "81", true)]);
    srv.gone("x");
    // NA11: the caller's own address counts.
    let cli = lab.pod("x", "cli", "status.podIP");
    lab.apply(&policy(
        "y",
        "p",
        &format!("{{podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 10.244.0.0/16, except: [{cli}/32]}}}}], ports: [{{port: 80}}]}}]}}"),
    ));
    srv.hold("NA11", &[("x/cli", "80", false), ("x/oth", "80", true)]);
}

fn mixed(user: User) {
    let waypoint = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: w, namespace: y}\nspec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}\n";
    let others = [
        namespace("side", "istio-injection: enabled, kubernetes.io/metadata.name: side"),
        pod("side", "cli", "", "node-2"),
        pod("side", "oth", "", "node-2"),
        pod("x", "um", ", istio.io/dataplane-mode: none", "node-2"),
        waypoint.to_owned(),
    ];
    let lab = up(user, &(enrolled() + &others.concat()));
    let srv = Srv::of(&lab);
    let admits = |app: &str, ns: &str| {
        policy(
            "y",
            "p",
            &format!(
                "{{podSelector: {{matchLabels: {{app: srv}}}}, ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}, podSelector: {{matchLabels: {{app: {app}}}}}}}], ports: [{{port: 80}}]}}]}}"
            ),
        )
    };
    lab.apply(&admits("cli", "side"));
    srv.hold("NA7", &[("side/oth", "80", false), ("side/cli", "80", true), ("side/cli", "81", false)]);
    lab.apply(&admits("um", "x"));
    srv.hold("NA8", &[("x/cli", "80", false), ("x/um", "80", true), ("x/um", "15008", false)]);
    lab.apply(&peer_authentication("y", "strict", "{mtls: {mode: STRICT}}"));
    srv.hold("NA8 c", &[("x/um", "80", false)]);
    // NA9: through a waypoint the caller counts, and the waypoint needs no rule.
    lab.lab(&["label", "service", "s", "-n", "y", "istio.io/use-waypoint=w"]);
    lab.apply(&p80(""));
    srv.hold("NA9", &[("x/oth", "s", false), ("x/cli", "s", true), ("x/cli", "80", true)]);
}

fn as_istio(user: User) {
    let lab = up_with(user, &enrolled(), &["--networkpolicy", "istio"]);
    let srv = Srv::of(&lab);
    lab.apply(&p80(""));
    srv.hold("NA12 a", &[("x/cli", "80", false)]);
    lab.apply(&p80(", {port: 15008}"));
    srv.hold("NA12 b, c", &[("x/cli", "80", true), ("x/cli", "81", true)]);
}
