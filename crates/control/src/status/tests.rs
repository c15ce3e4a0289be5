use super::*;
use trysail_api::load::load;

const WAYPOINT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: w, namespace: m}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";
const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: s, namespace: m, labels: {istio.io/use-waypoint: w}}
spec: {ports: [{port: 80}]}
";
const POLICY: &str = "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: m}
spec:
  targetRefs: [{kind: Service, group: '', name: s}]
  rules: [{to: [{operation: {methods: [GET]}}]}]
";

fn objects(text: &str) -> Objects {
    let loaded = load("case", text);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let mut out = Objects::default();
    loaded.objects.into_iter().for_each(|l| out.set(l.object.key(), Some(l.object)));
    out
}

fn now() -> Time {
    Time(serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap())
}

/// Tells every status until none changes; then `kind/name`, condition, status, reason and message, a line each.
fn told(mut all: Objects, ready: bool) -> Vec<String> {
    let gateways: Vec<Gateway> = all.gateways().cloned().collect();
    for mut gateway in gateways {
        let conditions = &mut gateway.status.get_or_insert_default().conditions;
        set(conditions, "Programmed", (ready, "Pending", String::new()), None, &now());
        let object = Object::Gateway(Box::new(gateway));
        all.set(object.key(), Some(object));
    }
    for _ in 0..4 {
        let each = KINDS.iter().flat_map(|k| all.of(*k)).filter_map(|o| settled(&all, o, &now()));
        let changed: Vec<Object> = each.collect();
        changed.into_iter().for_each(|o| all.set(o.key(), Some(o)));
    }
    assert!(KINDS.iter().flat_map(|k| all.of(*k)).all(|o| settled(&all, o, &now()).is_none()), "it comes to rest");
    let mut out = Vec::new();
    for object in KINDS.iter().flat_map(|k| all.of(*k)) {
        let value = object.to_json();
        let at = |path: &str| value.pointer(path).and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
        let nested = [at("/status/parents"), at("/status/listeners")].concat();
        let nested = nested.iter().flat_map(|p| p["conditions"].as_array().cloned().unwrap_or_default());
        for c in at("/status/conditions").into_iter().chain(nested) {
            let text = |key: &str| c[key].as_str().unwrap_or_default().to_owned();
            let line =
                format!("{} {}={} {} {}", object.name(), text("type"), text("status"), text("reason"), text("message"));
            out.push(line.trim_end().to_owned());
        }
    }
    out
}

#[track_caller]
fn says(lines: &[String], wanted: &str) {
    assert!(lines.iter().any(|l| l.contains(wanted)), "{wanted}: {lines:#?}");
}

#[test]
fn a_service_says_whether_its_waypoint_serves_it() {
    let bound = |text: &[&str], ready| told(objects(&text.concat()), ready);
    says(&bound(&[WAYPOINT, SERVICE], true), "s istio.io/WaypointBound=True WaypointAccepted Successfully attached");
    says(
        &bound(&[WAYPOINT, SERVICE], false),
        "WaypointBound=False WaypointNotReady waypoint m/w is not ready; traffic",
    );
    says(&bound(&[SERVICE], true), "WaypointMissing there is no waypoint m/w; traffic goes to the pods without it");
    says(&bound(&[SERVICE, POLICY], true), "WaypointMissing there is no waypoint m/w; a policy requires it: traffic");
    let workloads = WAYPOINT.replace("namespace: m}", "namespace: m, labels: {istio.io/waypoint-for: workload}}");
    says(&bound(&[&workloads, SERVICE], true), "WaypointBound=False UnsupportedTrafficType");
    let unasked = SERVICE.replace(", labels: {istio.io/use-waypoint: w}", "");
    says(&bound(&[&unasked, POLICY], true), "WaypointMissing no waypoint is asked for; a policy requires it");
    assert!(bound(&[&unasked], true).is_empty());
}

#[test]
fn a_policy_says_whether_it_acts_where_it_is_aimed() {
    let told = |text: &[&str], ready| told(objects(&text.concat()), ready);
    says(&told(&[WAYPOINT, SERVICE, POLICY], true), "p WaypointAccepted=True Accepted");
    says(&told(&[WAYPOINT, SERVICE, POLICY], false), "p WaypointAccepted=False AncestorNotBound service m/s: waypoint");
    says(&told(&[POLICY], true), "p WaypointAccepted=False TargetNotFound service m/s does not exist");
    let class = POLICY.replace("kind: Service, group: '', name: s", "kind: GatewayClass, name: istio-waypoint");
    says(
        &told(&[&class], true),
        "WaypointAccepted=False Invalid a GatewayClass is targeted from namespace istio-system",
    );
    let node = POLICY.replace("targetRefs: [{kind: Service, group: '', name: s}]", "action: DENY");
    says(
        &told(&[&node], true),
        "ZtunnelAccepted=True PartiallyInvalid rules[0]: methods cannot be evaluated by a node proxy",
    );
    let custom =
        POLICY.replace("targetRefs: [{kind: Service, group: '', name: s}]", "action: CUSTOM\n  provider: {name: x}");
    says(&told(&[&custom], true), "ZtunnelAccepted=False Invalid action CUSTOM, provider \"x\"");
    says(&told(&[&custom], true), "WaypointAccepted=False Invalid action CUSTOM, provider \"x\"");
}

const EDGE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: m}
spec:
  gatewayClassName: istio
  listeners:
  - {name: plain, port: 80, protocol: HTTP, hostname: '*.example'}
  - {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: c}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: x}
";

fn route(namespace: &str, parent: &str, more: &str) -> String {
    format!(
        "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r, namespace: {namespace}}}\nspec: {{parentRefs: [{parent}], {more}rules: [{{backendRefs: [{{name: s, port: 80}}]}}]}}\n"
    )
}

#[test]
fn routes_and_listeners_say_what_came_of_them() {
    let told = |text: &[&str]| told(objects(&text.concat()), true);
    let both = [EDGE, SERVICE, &route("m", "{name: edge}", "")];
    for wanted in [
        "r Accepted=True Accepted",
        "r ResolvedRefs=True ResolvedRefs",
        "edge Programmed=True Programmed",
        "edge ResolvedRefs=False InvalidCertificateRef secret m/c does not exist",
        "istio Accepted=True Accepted",
    ] {
        says(&told(&both), wanted);
    }
    for (parent, more, wanted) in [
        ("{name: none}", "", "Accepted=False NoMatchingParent gateway m/none does not exist"),
        ("{name: edge, sectionName: x}", "", "Accepted=False NoMatchingParent no listener has this sectionName"),
        ("{name: edge, sectionName: plain}", "hostnames: [a.test], ", "Accepted=False NoMatchingListenerHostname"),
        ("{kind: Service, group: '', name: t}", "", "Accepted=False NoMatchingParent service m/t does not exist"),
    ] {
        says(&told(&[EDGE, SERVICE, &route("m", parent, more)]), wanted);
    }
    says(&told(&[EDGE, &route("m", "{name: edge}", "")]), "ResolvedRefs=False BackendNotFound service m/s");
    let away = route("n", "{name: edge, namespace: m}", "");
    says(&told(&[EDGE, SERVICE, &away]), "Accepted=False NotAllowedByListeners");
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let later = Time(serde_json::from_value(serde_json::json!("2026-02-01T00:00:00Z")).unwrap());
    let mut conditions = Vec::new();
    set(&mut conditions, "Accepted", (true, "A", String::new()), None, &now());
    set(&mut conditions, "Accepted", (true, "B", String::new()), None, &later);
    assert_eq!((conditions.len(), conditions[0].reason.as_str()), (1, "B"));
    assert_eq!(conditions[0].last_transition_time, now());
    set(&mut conditions, "Accepted", (false, "C", String::new()), None, &later);
    assert_eq!(conditions[0].last_transition_time, later);
}
