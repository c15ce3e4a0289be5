//! The contract's acceptance cases, by number.

use super::*;
use trysail_api::load::load;
use trysail_api::object::Object;

mod routes;

fn package_in(namespace: &str, name: &str, network: &str) -> Result<Package, String> {
    let text = format!(
        "apiVersion: uds.dev/v1alpha1\nkind: Package\nmetadata: {{name: {name}, namespace: {namespace}, uid: U, generation: 7}}\nspec:\n  network: {network}\n"
    );
    let mut loaded = load("case", &text);
    if let Some(diagnostic) = loaded.diagnostics.first() {
        return Err(diagnostic.to_string());
    }
    let Object::Package(package) = loaded.objects.remove(0).object else { unreachable!() };
    Ok(*package)
}

fn package(network: &str) -> Package {
    package_in("shop", "shop", network).unwrap()
}

fn sidecar(network: &str) -> String {
    let inner = network.trim().trim_start_matches('{').trim_end_matches('}');
    let comma = if inner.trim().is_empty() { "" } else { ", " };
    format!("{{serviceMesh: {{mode: sidecar}}{comma}{inner}}}")
}

/// What comes of a Package, without faults, in both modes: ambient first.
fn both(network: &str) -> [Expansion; 2] {
    [network.to_owned(), sidecar(network)].map(|text| made(&text, &World::default()))
}

fn made(network: &str, world: &World) -> Expansion {
    let package = package(network);
    assert_eq!(check(&package, &[]), vec![]);
    expand(&package, world)
}

fn names(expansion: &Expansion, kind: &str) -> Vec<String> {
    let of_kind = expansion.objects.iter().filter(|o| o["kind"] == kind);
    of_kind.map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn all_names(objects: &[Value]) -> Vec<String> {
    objects
        .iter()
        .map(|o| format!("{} {}", o["kind"].as_str().unwrap(), o["metadata"]["name"].as_str().unwrap()))
        .collect()
}

fn object_of<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name} among {:?}", all_names(objects)))
}

/// The spec of a named object must be as the YAML says.
fn spec(objects: &[Value], kind: &str, name: &str, wanted: &str) {
    let wanted = trysail_api::load::yaml(wanted).unwrap();
    assert_eq!(object_of(objects, kind, name)["spec"], wanted, "{kind} {name}");
}

const NP: &str = "NetworkPolicy";
const AP: &str = "AuthorizationPolicy";
const AMBIENT_DEFAULTS: [&str; 3] =
    ["deny-shop-default", "allow-shop-egress-dns-lookup-via-coredns", "allow-shop-ingress-ambient-healthprobes"];

#[test]
fn pk1_defaults() {
    let [ambient, sidecar] = both("{}");
    assert_eq!(names(&ambient, NP), AMBIENT_DEFAULTS);
    assert_eq!((ambient.count(NP), ambient.count(AP)), (3, 0));
    spec(
        &ambient.objects,
        NP,
        "deny-shop-default",
        "{podSelector: {matchLabels: {}}, policyTypes: [Ingress, Egress], ingress: [], egress: []}",
    );
    spec(
        &ambient.objects,
        NP,
        AMBIENT_DEFAULTS[1],
        "{podSelector: {matchLabels: {}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]}",
    );
    spec(
        &ambient.objects,
        NP,
        AMBIENT_DEFAULTS[2],
        "{podSelector: {matchLabels: {}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 169.254.7.127/32}}], ports: []}]}",
    );
    assert_eq!(
        names(&sidecar, NP),
        [
            "deny-shop-default",
            "allow-shop-egress-dns-lookup-via-coredns",
            "allow-shop-egress-istiod-communication",
            "allow-shop-ingress-sidecar-monitoring"
        ]
    );
    assert_eq!(names(&sidecar, AP), ["protect-shop-ingress-15020-sidecar-metric-scraping"]);
    spec(
        &sidecar.objects,
        NP,
        "allow-shop-egress-istiod-communication",
        "{podSelector: {matchLabels: {}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-system}}, podSelector: {matchLabels: {istio: pilot}}}], ports: [{port: 15012, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
    );
    spec(
        &sidecar.objects,
        AP,
        "protect-shop-ingress-15020-sidecar-metric-scraping",
        "{action: ALLOW, selector: {matchLabels: {}}, rules: [{from: [{source: {principals: [cluster.local/ns/monitoring/sa/kube-prometheus-stack-prometheus]}}], to: [{operation: {ports: ['15020']}}]}]}",
    );
    let error = package_in("shop", "shop", "{serviceMesh: {mode: none}}").unwrap_err();
    assert!(error.contains("spec.network.serviceMesh.mode"), "{error}");
    let meta = &object_of(&ambient.objects, NP, "deny-shop-default")["metadata"];
    assert_eq!(meta["labels"], json!({"uds/package": "shop", "uds/generation": "7"}));
    assert_eq!(
        meta["ownerReferences"],
        json!([{"apiVersion": "uds.dev/v1alpha1", "kind": "Package", "name": "shop", "uid": "U"}])
    );
}

#[test]
fn pk2_a_named_caller() {
    let rule = "{allow: [{direction: Ingress, selector: {app: web}, remoteNamespace: pay, remoteSelector: {app: api}, remoteServiceAccount: api, port: 8080, ports: [8443]}]}";
    let [ambient, sidecar] = both(rule);
    for (expansion, mode, counts) in [(&ambient, "ambient", (4, 1)), (&sidecar, "sidecar", (5, 2))] {
        assert_eq!((expansion.count(NP), expansion.count(AP)), counts);
        spec(
            &expansion.objects,
            NP,
            "allow-shop-ingress-web-pay-api-tcp",
            "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: pay}}, podSelector: {matchLabels: {app: api}}}], ports: [{port: 8443, protocol: TCP}, {port: 8080, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
        );
        spec(
            &expansion.objects,
            AP,
            "protect-shop-ingress-web-pay-api",
            "{action: ALLOW, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {principals: [cluster.local/ns/pay/sa/api]}}], to: [{operation: {ports: ['8080', '8443']}}]}]}",
        );
        let labels = &object_of(&expansion.objects, AP, "protect-shop-ingress-web-pay-api")["metadata"]["labels"];
        assert_eq!(
            labels,
            &json!({"uds/package": "shop", "uds/generation": "7", "uds/for": "network", "uds/mesh-mode": mode})
        );
    }
}

#[test]
fn pk3_everyone_and_the_own_namespace() {
    for expansion in both(
        "{allow: [{direction: Ingress, remoteNamespace: \"*\"}, {direction: Ingress, selector: {app: web}, remoteSelector: {app: worker}, port: 9000}]}",
    ) {
        let objects = &expansion.objects;
        spec(
            objects,
            NP,
            "allow-shop-ingress-all-pods-all-pods-tcp",
            "{podSelector: {matchLabels: {}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}], ports: []}]}",
        );
        spec(objects, AP, "protect-shop-ingress-all-pods-all-pods", "{action: ALLOW, rules: [{}]}");
        spec(
            objects,
            NP,
            "allow-shop-ingress-web-worker-tcp",
            "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: worker}}}], ports: [{port: 9000, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
        );
        spec(
            objects,
            AP,
            "protect-shop-ingress-web-default-worker",
            "{action: ALLOW, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {namespaces: [shop]}}], to: [{operation: {ports: ['9000']}}]}]}",
        );
    }
    // Of any namespace, by service account.
    let wide = made(
        "{allow: [{direction: Ingress, remoteNamespace: '', remoteServiceAccount: x, port: 1}]}",
        &World::default(),
    );
    let policy = object_of(&wide.objects, AP, "protect-shop-ingress-all-pods-default-all-pods");
    assert_eq!(policy["spec"]["rules"][0]["from"], json!([{"source": {"principals": ["*/sa/x"]}}]));
}

#[test]
fn pk4_the_way_out() {
    for expansion in both(
        "{allow: [{direction: Egress, selector: {app: web}, remoteNamespace: db, remoteSelector: {app: pg}, port: 5432, labels: {team: a}}]}",
    ) {
        spec(
            &expansion.objects,
            NP,
            "allow-shop-egress-web-db-pg-tcp",
            "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: db}}, podSelector: {matchLabels: {app: pg}}}], ports: [{port: 5432, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
        );
        assert_eq!(
            object_of(&expansion.objects, NP, "allow-shop-egress-web-db-pg-tcp")["metadata"]["labels"]["team"],
            "a"
        );
        assert!(names(&expansion, AP).iter().all(|n| n.contains("15020")));
        assert_eq!(names(&expansion, "ServiceEntry"), Vec::<String>::new());
    }
    denied("allow: [{direction: Egress, remoteNamespace: db, labels: {uds/generated: KubeAPI}}]", &["E29"]);
}

fn api_at(addresses: &[&str]) -> World {
    let blocks = addresses.iter().map(|a| format!("{a}/32")).collect();
    World { kube_api: Some(blocks), ..World::default() }
}

#[test]
fn pk5_the_api_server() {
    let text = "{allow: [{direction: Egress, selector: {app: web}, remoteGenerated: KubeAPI, port: 6443}, {direction: Ingress, selector: {app: hook}, remoteGenerated: KubeAPI, port: 9443}]}";
    let known = made(text, &api_at(&["10.1.0.5", "10.1.0.6", "10.43.0.1"]));
    let peers = "[{ipBlock: {cidr: 10.1.0.5/32}}, {ipBlock: {cidr: 10.1.0.6/32}}, {ipBlock: {cidr: 10.43.0.1/32}}]";
    spec(
        &known.objects,
        NP,
        "allow-shop-egress-web-kubeapi-tcp",
        &format!(
            "{{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{{to: {peers}, ports: [{{port: 6443, protocol: TCP}}]}}]}}"
        ),
    );
    spec(
        &known.objects,
        NP,
        "allow-shop-ingress-hook-kubeapi-tcp",
        &format!(
            "{{podSelector: {{matchLabels: {{app: hook}}}}, policyTypes: [Ingress], ingress: [{{from: {peers}, ports: [{{port: 9443, protocol: TCP}}, {{port: 15008, protocol: TCP}}]}}]}}"
        ),
    );
    spec(
        &known.objects,
        AP,
        "protect-shop-ingress-hook-kubeapi",
        "{action: ALLOW, selector: {matchLabels: {app: hook}}, rules: [{from: [{source: {ipBlocks: [10.1.0.5/32, 10.1.0.6/32, 10.43.0.1/32]}}], to: [{operation: {ports: ['9443']}}]}]}",
    );
    for (kind, name) in [(NP, "allow-shop-egress-web-kubeapi-tcp"), (AP, "protect-shop-ingress-hook-kubeapi")] {
        assert_eq!(object_of(&known.objects, kind, name)["metadata"]["labels"]["uds/generated"], "KubeAPI");
    }
    let fewer = made(text, &api_at(&["10.1.0.5", "10.43.0.1"]));
    assert_eq!(
        object_of(&fewer.objects, NP, "allow-shop-ingress-hook-kubeapi-tcp")["spec"]["ingress"][0]["from"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let unknown = made(text, &World::default());
    assert_eq!(names(&unknown, NP), AMBIENT_DEFAULTS);
    assert_eq!(unknown.count(AP), 0);
    assert_eq!(unknown.waiting, ["spec.network.allow[0].remoteGenerated", "spec.network.allow[1].remoteGenerated"]);
}

#[test]
fn pk6_generated_peers() {
    let text = "{allow: [{direction: Ingress, remoteGenerated: IntraNamespace}, {direction: Egress, remoteGenerated: IntraNamespace}, {direction: Egress, selector: {app: web}, remoteGenerated: Anywhere, port: 443}, {direction: Egress, selector: {app: web}, remoteGenerated: CloudMetadata, port: 80}, {direction: Ingress, selector: {app: web}, remoteGenerated: KubeNodes, port: 9443}]}";
    let world = World { nodes: vec!["10.2.0.1/32".into()], ..World::default() };
    let objects = made(text, &world).objects;
    spec(
        &objects,
        NP,
        "allow-shop-ingress-all-pods-intranamespace-tcp",
        "{podSelector: {matchLabels: {}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {}}}], ports: []}]}",
    );
    spec(
        &objects,
        AP,
        "protect-shop-ingress-all-pods-intranamespace",
        "{action: ALLOW, rules: [{from: [{source: {namespaces: [shop]}}]}]}",
    );
    spec(
        &objects,
        NP,
        "allow-shop-egress-all-pods-intranamespace-tcp",
        "{podSelector: {matchLabels: {}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {}}}], ports: []}]}",
    );
    spec(
        &objects,
        NP,
        "allow-shop-egress-web-anywhere-tcp",
        "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [169.254.169.254/32]}}, {namespaceSelector: {}}], ports: [{port: 443, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
    );
    spec(
        &objects,
        NP,
        "allow-shop-egress-web-cloudmetadata-tcp",
        "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 169.254.169.254/32}}], ports: [{port: 80, protocol: TCP}]}]}",
    );
    spec(
        &objects,
        NP,
        "allow-shop-ingress-web-kubenodes-tcp",
        "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 10.2.0.1/32}}], ports: [{port: 9443, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
    );
    spec(
        &objects,
        AP,
        "protect-shop-ingress-web-kubenodes",
        "{action: ALLOW, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {ipBlocks: [10.2.0.1/32]}}], to: [{operation: {ports: ['9443']}}]}]}",
    );
    // No node is known: the rule waits, and no list of peers is ever empty.
    let none = made(text, &World::default());
    assert_eq!(none.waiting, ["spec.network.allow[4].remoteGenerated"]);
    let lists = none
        .objects
        .iter()
        .filter(|o| o["kind"] == NP)
        .flat_map(|o| [("ingress", "from"), ("egress", "to")].map(|(list, side)| o["spec"][list][0][side].clone()));
    assert!(lists.filter(|l| !l.is_null()).all(|l| !l.as_array().unwrap().is_empty()));
}

#[test]
fn pk7_udp() {
    let objects = &both("{allow: [{direction: Ingress, selector: {app: log}, remoteNamespace: edge, remoteProtocol: UDP, port: 5514}, {direction: Ingress, selector: {app: log}, remoteNamespace: edge, port: 5514}]}")[0].objects;
    let from = "from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}}]";
    spec(
        objects,
        NP,
        "allow-shop-ingress-log-edge-all-pods-udp",
        &format!(
            "{{podSelector: {{matchLabels: {{app: log}}}}, policyTypes: [Ingress], ingress: [{{{from}, ports: [{{port: 5514, protocol: UDP}}]}}]}}"
        ),
    );
    spec(
        objects,
        NP,
        "allow-shop-ingress-log-edge-all-pods-tcp",
        &format!(
            "{{podSelector: {{matchLabels: {{app: log}}}}, policyTypes: [Ingress], ingress: [{{{from}, ports: [{{port: 5514, protocol: TCP}}, {{port: 15008, protocol: TCP}}]}}]}}"
        ),
    );
    spec(
        objects,
        AP,
        "protect-shop-ingress-log-edge-all-pods",
        "{action: ALLOW, selector: {matchLabels: {app: log}}, rules: [{from: [{source: {namespaces: [edge]}}], to: [{operation: {ports: ['5514']}}]}]}",
    );
    assert_eq!(objects.iter().filter(|o| o["kind"] == AP).count(), 1);
}

#[test]
fn pk8_blocks() {
    let objects = &both("{allow: [{direction: Ingress, selector: {app: web}, remoteCidr: 10.9.0.0/16, port: 8080}, {direction: Egress, selector: {app: web}, remoteCidr: 10.8.0.0/16, port: 5432, description: to warehouse}]}")[0].objects;
    spec(
        objects,
        NP,
        "allow-shop-ingress-web-all-pods-tcp",
        "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 10.9.0.0/16}}], ports: [{port: 8080, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
    );
    spec(
        objects,
        AP,
        "protect-shop-ingress-web-default-all-pods",
        "{action: ALLOW, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {ipBlocks: [10.9.0.0/16]}}], to: [{operation: {ports: ['8080']}}]}]}",
    );
    spec(
        objects,
        NP,
        "allow-shop-egress-to-warehouse",
        "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.8.0.0/16}}], ports: [{port: 5432, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
    );
    assert_eq!(
        object_of(objects, NP, "allow-shop-egress-to-warehouse")["metadata"]["annotations"]["uds/description"],
        "to warehouse"
    );
    assert!(objects.iter().all(|o| o["kind"] != "PeerAuthentication"));
}

/// The codes of what is wrong must be exactly `codes`.
fn denied(network: &str, codes: &[&str]) {
    denied_as(&package(&format!("{{{network}}}")), &[], codes);
}

fn denied_as(package: &Package, others: &[&Package], codes: &[&str]) {
    let found = check(package, others);
    assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), codes, "{found:?}");
    assert!(found.iter().all(|d| !d.field.is_empty() && !d.message.is_empty()));
}

#[test]
fn pk14_denials() {
    for (rule, codes) in [
        ("{direction: Ingress, port: 80}", vec!["E1"]),
        ("{direction: Egress, remoteGenerated: Anywhere, remoteCidr: 10.0.0.0/8}", vec!["E2", "E4"]),
        ("{direction: Egress, remoteNamespace: a, remoteHost: x.com}", vec!["E3"]),
        ("{direction: Egress, remoteCidr: 10.0.0.0/8, remoteProtocol: HTTP}", vec!["E4"]),
        ("{direction: Egress, remoteGenerated: KubeAPI, remoteProtocol: UDP}", vec!["E5"]),
        ("{direction: Egress, remoteHost: x.com, remoteProtocol: TCP}", vec!["E6"]),
        ("{direction: Egress, remoteHost: x.com, remoteProtocol: UDP}", vec!["E7"]),
        ("{direction: Ingress, remoteHost: x.com}", vec!["E8"]),
        ("{direction: Egress, remoteHost: '*.x.com'}", vec!["E9"]),
        ("{direction: Egress, remoteNamespace: a, serviceAccount: s}", vec!["E10"]),
        ("{direction: Egress, remoteCidr: 10.0.0.0/8}, {direction: Egress, remoteCidr: 11.0.0.0/8}", vec!["E11"]),
        (
            "{direction: Egress, remoteCidr: 10.0.0.0/8, description: db 1}, {direction: Egress, remoteCidr: 11.0.0.0/8, description: db 2}",
            vec!["E11"],
        ),
        ("{direction: Egress, remoteCidr: 10.0.0/8}", vec!["E28"]),
        ("{direction: Egress, remoteHost: 10.0.0.1}", vec!["E28"]),
        ("{direction: Egress, remoteHost: 'not a host'}", vec!["E28"]),
        // A default's name, for something else.
        ("{direction: Egress, remoteNamespace: a, description: DNS lookup via CoreDNS}", vec!["E11"]),
    ] {
        denied(&format!("allow: [{rule}]"), &codes);
    }
    for (entry, codes) in [
        ("{protocol: UDP, host: a, service: s, selector: {a: b}, port: 1}", vec!["E12"]),
        ("{protocol: UDP, domain: a, service: s, selector: {a: b}, port: 1}", vec!["E13"]),
        ("{protocol: UDP, service: s, selector: {a: b}, port: 1, uptime: {checks: {paths: [/]}}}", vec!["E16"]),
        ("{protocol: UDP, service: s, selector: {a: b}, podLabels: {a: b}, port: 1}", vec!["E17"]),
        ("{protocol: HTTP, service: s, selector: {a: b}, port: 1}", vec!["E18"]),
        ("{host: a, gateway: gw1, service: s, selector: {a: b}, port: 1}", vec!["E19"]),
        ("{host: a, gateway: tenant, domain: x.y, service: s, selector: {a: b}, port: 1}", vec!["E20"]),
        ("{host: a, domain: x.y, service: s, selector: {a: b}, port: 1}", vec!["E20"]),
        ("{host: a, gateway: passthrough, advancedHTTP: {timeout: 1s}}", vec!["E21"]),
        ("{host: a, gateway: passthrough, service: s, selector: {a: b}, port: 1, match: [{name: x}]}", vec!["E21"]),
        ("{host: a, port: 1, advancedHTTP: {directResponse: {status: 200}}}", vec!["E22"]),
        (
            "{host: a, service: s, selector: {a: b}, port: 1}, {host: a, service: s, selector: {a: b}, port: 1}",
            vec!["E23"],
        ),
        ("{host: a, service: s, selector: {a: b}, port: 1, uptime: {checks: {paths: [x]}}}", vec!["E26"]),
        (
            "{host: a, service: s, selector: {a: b}, port: 1, uptime: {}}, {host: a, service: s, selector: {a: b}, port: 2, uptime: {}}",
            vec!["E27"],
        ),
        ("{host: a}", vec!["schema"]),
    ] {
        denied(&format!("expose: [{entry}]"), &codes);
    }
    for (text, field) in [
        ("{allow: [{direction: Ingress, remoteNamespace: a, port: 0}]}", "spec.network.allow[0].port"),
        ("{allow: [{direction: Ingress, remoteNamespace: a, port: 70000}]}", "spec.network.allow[0].port"),
        ("{allow: [{direction: Ingress, remoteNamespace: a, port: 80.5}]}", "spec.network.allow[0].port"),
        ("{allow: [{remoteNamespace: a}]}", "direction"),
        ("{allow: [{direction: Ingress, remoteNamespce: a}]}", "remoteNamespce"),
    ] {
        let error = package_in("shop", "shop", text).unwrap_err();
        assert!(error.contains(field), "{error}");
    }
    denied_as(&package_in("kube-system", "x", "{}").unwrap(), &[], &["E25"]);
    denied_as(&package("{}"), &[&package_in("shop", "other", "{}").unwrap()], &["E25"]);
    denied_as(
        &package("{expose: [{protocol: UDP, service: s, selector: {a: b}, port: 53}]}"),
        &[&package_in("b", "b", "{expose: [{protocol: UDP, service: s, selector: {a: b}, port: 53}]}").unwrap()],
        &["E24"],
    );
    for admitted in [
        "{allow: [{direction: Ingress, remoteNamespace: ''}]}",
        "{allow: [{direction: Ingress, podLabels: {a: b}, remotePodLabels: {c: d}}]}",
        "{allow: [{direction: Ingress, remoteSelector: {}}]}",
        "{allow: [{direction: Egress, remoteNamespace: a, remoteServiceAccount: s}]}",
    ] {
        made(admitted, &World::default());
    }
    let migrated =
        made("{allow: [{direction: Ingress, podLabels: {a: b}, remotePodLabels: {c: d}}]}", &World::default());
    assert_eq!(names(&migrated, NP)[3], "allow-shop-ingress-b-d-tcp");
}

#[test]
fn every_tunnel_port_that_is_opened_has_an_admission_that_keeps_the_port() {
    let text = "{allow: [{direction: Ingress, selector: {app: web}, remoteNamespace: pay, port: 8080}, {direction: Ingress, remoteCidr: 10.0.0.0/8, ports: [1, 2]}, {direction: Ingress, selector: {app: x}, remoteGenerated: Anywhere, port: 7}], expose: [{host: www, service: web, selector: {app: web}, port: 80}]}";
    for expansion in both(text) {
        let numbers = |ports: &Value| -> std::collections::BTreeSet<String> {
            let given = ports.as_array().unwrap().iter().map(|p| p["port"].to_string());
            given.filter(|p| p != "15008").collect()
        };
        for gate in expansion.objects.iter().filter(|o| o["kind"] == NP) {
            let rule = &gate["spec"]["ingress"][0];
            let opens = rule["ports"].as_array().is_some_and(|p| p.iter().any(|p| p["port"] == 15008));
            let same = |o: &&Value| {
                let selector = o["spec"]["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
                let to = &o["spec"]["rules"][0]["to"][0]["operation"]["ports"];
                let ports = to.as_array().into_iter().flatten().filter_map(|p| p.as_str().map(str::to_owned)).collect();
                Value::Object(selector) == gate["spec"]["podSelector"]["matchLabels"]
                    && numbers(&rule["ports"]) == ports
            };
            assert!(!opens || expansion.objects.iter().filter(|o| o["kind"] == AP).any(|o| same(&o)), "{gate}");
        }
    }
}
