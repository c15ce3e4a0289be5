//! Hosts outside, and what gateways show.

use super::*;

#[test]
fn pk9_a_host() {
    let text = "{allow: [{direction: Egress, selector: {app: web}, remoteHost: api.example.com, port: 443}]}";
    let [ambient, with_sidecar] = both(text);
    for (expansion, peer) in [
        (
            &ambient,
            "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-egress-ambient}}, podSelector: {matchLabels: {gateway.networking.k8s.io/gateway-name: egress-waypoint}}}",
        ),
        (
            &with_sidecar,
            "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-egress-gateway}}, podSelector: {matchLabels: {app: egressgateway}}}",
        ),
    ] {
        spec(
            &expansion.objects,
            NP,
            "allow-shop-egress-web-all-pods-tcp",
            &format!(
                "{{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{{to: [{peer}], ports: [{{port: 443, protocol: TCP}}, {{port: 15008, protocol: TCP}}]}}]}}"
            ),
        );
    }
    let outside = "hosts: [api.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{name: tls-443, number: 443, protocol: TLS}]";
    spec(
        &with_sidecar.objects,
        "ServiceEntry",
        "shop-egress-api-example-com-443-tls",
        &format!("{{{outside}, exportTo: ['.']}}"),
    );
    spec(
        &with_sidecar.objects,
        "Sidecar",
        "shop-egress-app-web",
        "{workloadSelector: {labels: {app: web}}, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}",
    );
    assert_eq!(names(&ambient, "ServiceEntry"), Vec::<String>::new());

    let gateway = shared(&[&package(&sidecar(text))], &World::default());
    assert_eq!(
        all_names(&gateway.objects),
        [
            "Gateway gateway-api-example-com",
            "VirtualService egress-vs-api-example-com",
            "ServiceEntry service-entry-api-example-com"
        ]
    );
    assert!(gateway.objects.iter().all(|o| o["metadata"]["annotations"]["uds.dev/user-shop-shop"] == "shop/shop"
        && o["metadata"].get("ownerReferences").is_none()
        && o["metadata"]["namespace"] == "istio-egress-gateway"));
    assert_eq!(gateway.objects[1]["spec"]["tls"].as_array().unwrap().len(), 2);

    let waypoint = shared(&[&package(text)], &World::default());
    assert_eq!(
        all_names(&waypoint.objects),
        [
            "Gateway egress-waypoint",
            "ServiceEntry ambient-se-api-example-com",
            "AuthorizationPolicy ambient-ap-api-example-com"
        ]
    );
    assert_eq!(
        waypoint.objects[2]["spec"]["rules"],
        json!([{"from": [{"source": {"namespaces": ["shop"]}}], "to": [{"operation": {"ports": ["443"]}}]}])
    );

    let named = text.replace("port: 443", "serviceAccount: web");
    let waypoint = shared(&[&package(&named)], &World::default());
    assert_eq!(
        waypoint.objects[2]["spec"]["rules"][0],
        json!({"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/web"]}}], "to": [{"operation": {"ports": ["443"]}}]})
    );
    assert_eq!(
        object_of(&both(&named.replace("serviceAccount: web", "description: x"))[0].objects, NP, "allow-shop-egress-x")
            ["spec"]["egress"][0]["ports"],
        json!([])
    );
    denied(&format!("serviceMesh: {{mode: sidecar}}, {}", named.trim_matches(['{', '}'])), &["E10"]);
}

#[test]
fn pk10_a_host_shared() {
    let of = |name: &str, rules: &str| package_in(name, name, &format!("{{allow: [{rules}]}}")).unwrap();
    let a = of("a", "{direction: Egress, remoteHost: api.example.com, port: 443, serviceAccount: s}");
    let b = of("b", "{direction: Egress, remoteHost: api.example.com, port: 80, remoteProtocol: HTTP}");
    let c = of("c", "{direction: Egress, remoteGenerated: Anywhere, port: 443}");
    let all = shared(&[&a, &b, &c], &World::default());
    assert_eq!(all.conflicts, vec![]);
    let entry = object_of(&all.objects, "ServiceEntry", "ambient-se-api-example-com");
    assert_eq!(
        entry["spec"]["ports"],
        json!([{"name": "http-80", "number": 80, "protocol": "HTTP"}, {"name": "tls-443", "number": 443, "protocol": "TLS"}])
    );
    assert_eq!(entry["metadata"]["annotations"], json!({"uds.dev/user-a-a": "a/a", "uds.dev/user-b-b": "b/b"}));
    let policy = object_of(&all.objects, AP, "ambient-ap-api-example-com");
    assert_eq!(
        policy["spec"]["rules"],
        json!([
            {"from": [{"source": {"namespaces": ["b"]}}], "to": [{"operation": {"ports": ["80"]}}]},
            {"from": [{"source": {"principals": ["cluster.local/ns/a/sa/s"]}}, {"source": {"namespaces": ["c"]}}], "to": [{"operation": {"ports": ["443"]}}]},
        ])
    );
    let d = of("d", "{direction: Egress, remoteHost: api.example.com, port: 443, remoteProtocol: HTTP}");
    let conflicting = shared(&[&a, &b, &c, &d], &World::default());
    assert_eq!(conflicting.objects, all.objects);
    assert_eq!((conflicting.conflicts.len(), conflicting.conflicts[0].name.as_str()), (1, "d"));
    assert!(conflicting.conflicts[0].message.contains("Package a/a"), "{:?}", conflicting.conflicts);
    let fewer = shared(&[&b, &c], &World::default());
    let policy = object_of(&fewer.objects, AP, "ambient-ap-api-example-com");
    assert_eq!(policy["spec"]["rules"].as_array().unwrap().len(), 1);
    assert_eq!(policy["metadata"]["annotations"], json!({"uds.dev/user-b-b": "b/b"}));

    let in_sidecars = |name: &str, rules: &str| {
        package_in(name, name, &format!("{{serviceMesh: {{mode: sidecar}}, allow: [{rules}]}}")).unwrap()
    };
    let a = in_sidecars("a", "{direction: Egress, remoteHost: api.example.com, port: 443}");
    let b = in_sidecars("b", "{direction: Egress, remoteHost: api.example.com, port: 80, remoteProtocol: HTTP}");
    let all = shared(&[&a, &b], &World::default());
    let servers = &object_of(&all.objects, "Gateway", "gateway-api-example-com")["spec"]["servers"];
    assert_eq!(
        (servers.as_array().unwrap().len(), &servers[0].get("tls").is_none(), &servers[1]["tls"]["mode"]),
        (2, &true, &json!("PASSTHROUGH"))
    );
    let routes = &object_of(&all.objects, "VirtualService", "egress-vs-api-example-com")["spec"];
    assert_eq!((routes["tls"].as_array().unwrap().len(), routes["http"].as_array().unwrap().len()), (2, 2));
}

#[test]
fn pk11_exposed() {
    let text = "{expose: [{host: www, service: web, selector: {app: web}, port: 80, targetPort: 8080}]}";
    for text in [text.to_owned(), sidecar(text), text.replace("selector", "podLabels")] {
        let expansion = made(&text, &World::default());
        let objects = &expansion.objects;
        spec(
            objects,
            NP,
            "allow-shop-ingress-8080-web-istio-tenant-gateway",
            "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-tenant-gateway}}, podSelector: {matchLabels: {app: tenant-ingressgateway}}}], ports: [{port: 8080, protocol: TCP}, {port: 15008, protocol: TCP}]}]}",
        );
        spec(
            objects,
            AP,
            "protect-shop-ingress-8080-web-istio-tenant-gateway",
            "{action: ALLOW, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {principals: [cluster.local/ns/istio-tenant-gateway/sa/tenant-ingressgateway]}}], to: [{operation: {ports: ['8080']}}]}]}",
        );
        spec(
            objects,
            "VirtualService",
            "shop-tenant-www-80-web",
            "{hosts: [www.uds.dev], gateways: [istio-tenant-gateway/tenant-gateway], http: [{route: [{destination: {host: web.shop.svc.cluster.local, port: {number: 80}}}]}]}",
        );
        spec(
            objects,
            "ServiceEntry",
            "shop-tenant-www",
            "{hosts: [www.uds.dev], location: MESH_INTERNAL, resolution: DNS, ports: [{name: https, number: 443, protocol: HTTPS}], endpoints: [{address: tenant-ingressgateway.istio-tenant-gateway.svc.cluster.local}]}",
        );
        assert_eq!(expansion.endpoints, ["www.uds.dev"]);
        let gate = object_of(objects, NP, "allow-shop-ingress-8080-web-istio-tenant-gateway");
        assert_eq!(gate["metadata"]["annotations"]["uds/description"], "8080-web Istio tenant gateway");
    }
    let two = made(
        "{expose: [{host: app1, service: web, selector: {app: web}, port: 80}, {host: app2, service: web, selector: {app: web}, port: 80}]}",
        &World::default(),
    );
    assert_eq!(names(&two, "VirtualService"), ["shop-tenant-app1-80-web", "shop-tenant-app2-80-web"]);
    let marks = ["app1.uds.dev", "app2.uds.dev"].map(|host| format!("shop-tenant-app-{}", names::mark(host)));
    assert_eq!(names(&two, "ServiceEntry"), marks);
}

#[test]
fn pk12_passthrough_redirect_and_answers() {
    let expansion = made(
        "{expose: [{host: files, gateway: corp-passthrough, domain: corp.test, service: web, selector: {app: web}, port: 443, targetPort: 8443}, {host: \".\", gateway: admin, advancedHTTP: {redirect: {uri: /ui}}}, {host: old, advancedHTTP: {directResponse: {status: 410}}}]}",
        &World::default(),
    );
    let objects = &expansion.objects;
    let admission = object_of(objects, AP, "protect-shop-ingress-8443-web-istio-corp-passthrough-gateway");
    assert_eq!(
        admission["spec"]["rules"][0]["from"][0]["source"]["principals"][0],
        "cluster.local/ns/istio-corp-passthrough-gateway/sa/corp-passthrough-ingressgateway"
    );
    let route = "route: [{destination: {host: web.shop.svc.cluster.local, port: {number: 443}}}]";
    spec(
        objects,
        "VirtualService",
        "shop-corp-passthrough-files-443-web",
        &format!(
            "{{hosts: [files.corp.test], gateways: [istio-corp-passthrough-gateway/corp-passthrough-gateway], http: [{{{route}}}], tls: [{{match: [{{port: 443, sniHosts: [files.corp.test]}}], {route}}}]}}"
        ),
    );
    spec(
        objects,
        "VirtualService",
        "shop-admin-root-domain-undefined-undefined",
        "{hosts: [admin.uds.dev], gateways: [istio-admin-gateway/admin-gateway], http: [{redirect: {uri: /ui}}]}",
    );
    spec(
        objects,
        "VirtualService",
        "shop-tenant-old-undefined-undefined",
        "{hosts: [old.uds.dev], gateways: [istio-tenant-gateway/tenant-gateway], http: [{directResponse: {status: 410}}]}",
    );
    assert_eq!(
        names(&expansion, "ServiceEntry"),
        ["shop-corp-passthrough-files", "shop-admin-root-domain", "shop-tenant-old"]
    );
    assert_eq!((expansion.count(NP), expansion.count(AP)), (4, 1));
    assert_eq!(names(&expansion, NP)[3], "allow-shop-ingress-8443-web-istio-corp-passthrough-gateway");
    assert_eq!(expansion.endpoints, ["files.corp.test", "admin.uds.dev", "old.uds.dev"]);
}

#[test]
fn pk13_exposed_by_udp() {
    let text = "{expose: [{protocol: UDP, service: dns, selector: {app: dns}, port: 5353}]}";
    let expansion = made(text, &World::default());
    spec(
        &expansion.objects,
        NP,
        "allow-shop-ingress-5353-dns-envoy-gateway-envoy-default-gateway",
        "{podSelector: {matchLabels: {app: dns}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: envoy-default-gateway}}, podSelector: {matchLabels: {gateway.envoyproxy.io/owning-gateway-name: envoy-default-gateway, gateway.envoyproxy.io/owning-gateway-namespace: envoy-default-gateway}}}], ports: [{port: 5353, protocol: UDP}]}]}",
    );
    spec(
        &expansion.objects,
        "UDPRoute",
        "shop-udp",
        "{parentRefs: [{name: envoy-default-gateway, namespace: envoy-default-gateway, sectionName: udp-5353}], rules: [{backendRefs: [{name: dns, port: 5353}]}]}",
    );
    assert_eq!(expansion.count(AP) + expansion.count("VirtualService") + expansion.count("ServiceEntry"), 0);
    let gateway = shared(&[&package(text)], &World::default());
    assert_eq!(gateway.objects[0]["spec"]["listeners"][0]["name"], "udp-5353");
    assert_eq!(
        gateway.objects[0]["spec"]["listeners"][0]["allowedRoutes"]["namespaces"]["selector"]["matchLabels"],
        json!({"kubernetes.io/metadata.name": "shop"})
    );
    assert_eq!(shared(&[&package("{}")], &World::default()).objects, Vec::<Value>::new());
    denied(
        "expose: [{protocol: UDP, service: dns, selector: {app: dns}, port: 5353}, {protocol: UDP, service: dns, selector: {app: dns}, port: 5354}]",
        &["E24"],
    );
}
