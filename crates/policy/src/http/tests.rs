use super::*;
use serde_json::json;

/// A request of `c/web` from 10.1.0.5 to port 8080, changed by the cases.
struct Case {
    source: Option<&'static str>,
    source_ip: &'static str,
    remote_ip: &'static str,
    destination_port: u16,
    request: Option<(&'static str, &'static str, u16, &'static str)>,
    headers: &'static [(&'static str, &'static str)],
    claims: Option<Value>,
}

const WEB: Case = Case {
    source: Some("c/web"),
    source_ip: "10.1.0.5",
    remote_ip: "10.1.0.5",
    destination_port: 8080,
    request: Some(("GET", "s.m", 80, "/x")),
    headers: &[],
    claims: None,
};

fn from(source: &'static str) -> Case {
    Case { source: Some(source), ..WEB }
}

fn get(path: &'static str) -> Case {
    Case { request: Some(("GET", "s.m", 80, path)), ..WEB }
}

fn post() -> Case {
    Case { request: Some(("POST", "s.m", 80, "/x")), ..WEB }
}

fn host(name: &'static str, port: u16) -> Case {
    Case { request: Some(("GET", name, port, "/x")), ..WEB }
}

fn with(headers: &'static [(&'static str, &'static str)]) -> Case {
    Case { headers, ..WEB }
}

const PLAIN: Case = Case { source: None, ..WEB };
const TCP: Case = Case { request: None, destination_port: 3306, ..WEB };

fn judged(policies: &[Policy], case: &Case) -> Outcome {
    let connection = Connection {
        source: case.source.map(|s| {
            let (namespace, account) = s.split_once('/').unwrap();
            format!("spiffe://cluster.local/ns/{namespace}/sa/{account}").parse().unwrap()
        }),
        via: None,
        source_ip: case.source_ip.parse().unwrap(),
        destination_ip: "10.9.9.9".parse().unwrap(),
        destination_port: case.destination_port,
    };
    let readings = case.request.map(|r| Readings::of(r.3).unwrap());
    let headers = |name: &str| {
        case.headers.iter().filter(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()).collect::<Vec<_>>()
    };
    let request = case.request.zip(readings.as_ref()).map(|((method, host, port, _), paths)| Request {
        method,
        host,
        port,
        paths,
        headers: &headers,
        claims: case.claims.as_ref(),
    });
    let remote_ip = case.remote_ip.parse().unwrap();
    evaluate(policies, &Facts { connection: &connection, remote_ip, sni: None, request })
}

/// `[{"action": …, "rules": […]}, …]` of namespace m.
fn compiled(policies: &Value) -> Vec<Policy> {
    let one = |(at, written): (usize, &Value)| {
        let action = match written["action"].as_str().unwrap_or("ALLOW") {
            "ALLOW" => Action::Allow,
            "DENY" => Action::Deny,
            "AUDIT" => Action::Audit,
            other => unreachable!("{other}"),
        };
        let rules: Vec<Written> = match &written["rules"] {
            Value::Null => Vec::new(),
            rules => serde_json::from_value(rules.clone()).unwrap(),
        };
        let mut policy = Policy::compile(&format!("m/p{at}"), action, &rules, ("m", "cluster.local"));
        policy.dry_run = written["dry"] == true;
        policy
    };
    policies.as_array().unwrap().iter().enumerate().map(one).collect()
}

#[track_caller]
fn table(policies: Value, cases: &[(Case, bool)]) {
    let policies = compiled(&policies);
    for (at, (case, allowed)) in cases.iter().enumerate() {
        let outcome = judged(&policies, case);
        assert_eq!(outcome.verdict == Verdict::Allow, *allowed, "case {at}: {outcome:?}");
    }
}

fn p(account: &str) -> String {
    let (namespace, name) = account.split_once('/').unwrap();
    format!("cluster.local/ns/{namespace}/sa/{name}")
}

#[test]
fn az1_to_az4_order_of_actions_and_empty_rules() {
    table(json!([]), &[(WEB, true), (PLAIN, true), (TCP, true)]);
    table(json!([{}]), &[(WEB, false), (PLAIN, false)]);
    table(json!([{}, {"rules": [{}]}]), &[(WEB, true)]);
    table(json!([{"action": "DENY"}]), &[(WEB, true)]);
    table(json!([{"action": "DENY", "rules": [{}]}, {"rules": [{}]}]), &[(WEB, false)]);
    let web = json!([{"source": {"principals": [p("c/web")]}}]);
    let both = json!([{"source": {"principals": [p("c/web"), p("c/ops")]}}]);
    table(
        json!([{"action": "DENY", "rules": [{"from": web}]}, {"rules": [{"from": both}]}]),
        &[(WEB, false), (from("c/ops"), true), (from("c/x"), false)],
    );
}

#[test]
fn az5_to_az8_or_in_a_field_and_between_fields() {
    table(
        json!([{"rules": [{
            "from": [{"source": {"principals": [p("c/web"), p("d/web")]}}],
            "to": [{"operation": {"ports": ["8080"]}}],
            "when": [{"key": "source.namespace", "values": ["c"]}]
        }]}]),
        &[(WEB, true), (Case { destination_port: 9090, ..WEB }, false), (from("d/web"), false)],
    );
    table(
        json!([{"rules": [{"from": [
            {"source": {"principals": [p("c/web")], "ipBlocks": ["10.1.0.0/16"]}},
            {"source": {"namespaces": ["d"]}}
        ]}]}]),
        &[
            (WEB, true),
            (Case { source_ip: "10.2.0.5", ..WEB }, false),
            (Case { source_ip: "10.9.9.9", ..from("d/x") }, true),
        ],
    );
    let named = json!([{"source": {"namespaces": ["*"], "notNamespaces": ["dev"]}}]);
    table(json!([{"rules": [{"from": named}]}]), &[(from("dev/bot"), false), (PLAIN, false), (WEB, true)]);
    let negated = json!([{"source": {"notPrincipals": [p("dev/bot")]}}]);
    table(json!([{"rules": [{"from": negated}]}]), &[(PLAIN, true), (from("dev/bot"), false)]);
    let patterns = json!(["cluster.local/ns/c/*", "*/sa/ops", "cluster.local/ns/*/sa/batch"]);
    table(
        json!([{"rules": [{"from": [{"source": {"principals": patterns}}]}]}]),
        &[(WEB, true), (from("d/ops"), true), (from("d/batch"), false)],
    );
}

#[test]
fn az9_and_az10_names_of_callers() {
    let source = |field: &str, values: &[&str]| json!([{"rules": [{"from": [{"source": {field: values}}]}]}]);
    let scheme = format!("spiffe://{}", p("c/web"));
    table(source("principals", &[&scheme]), &[(WEB, false)]);
    let mut denied = source("principals", &[&scheme]);
    denied[0]["action"] = json!("DENY");
    table(denied, &[(WEB, false), (from("c/ops"), true)]);
    table(source("serviceAccounts", &["web", "c/ops"]), &[(from("m/web"), true), (from("c/ops"), true), (WEB, false)]);
    let policy = Policy::compile(
        "m/p",
        Action::Allow,
        &serde_json::from_value::<Vec<Written>>(source("principals", &[&p("c/web")])[0]["rules"].clone()).unwrap(),
        ("m", "td1"),
    );
    assert!(format!("{policy:?}").contains("td1/ns/c/sa/web"), "cluster.local is the own trust domain: {policy:?}");
}

#[test]
fn az12_the_remote_address_is_the_gateways_word() {
    table(
        json!([{"rules": [{"from": [{"source": {"remoteIpBlocks": ["203.0.113.0/24"]}}]}]}]),
        &[(Case { remote_ip: "203.0.113.9", ..WEB }, true), (with(&[("x-forwarded-for", "203.0.113.9")]), false)],
    );
}

fn operation(field: &str, values: &[&str]) -> Value {
    json!([{"rules": [{"to": [{"operation": {field: values}}]}]}])
}

fn denying(mut policies: Value) -> Value {
    policies[0]["action"] = json!("DENY");
    policies
}

#[test]
fn az13_and_az14_hosts_and_methods() {
    table(
        operation("hosts", &["Shop.example", "*.svc.example", "adm.example:8443"]),
        &[
            (host("shop.example", 8080), true),
            (host("a.svc.example", 80), true),
            (host("svc.example", 80), false),
            (host("adm.example", 8443), true),
            (host("adm.example", 9443), false),
        ],
    );
    table(denying(operation("methods", &["POST"])), &[(post(), false), (WEB, true)]);
}

#[test]
fn az15_to_az18_every_reading_of_a_path() {
    table(
        operation("paths", &["/public*"]),
        &[(get("/public/a"), true), (get("/public/../admin"), false), (get("/public/%2e%2e/admin"), false)],
    );
    table(
        denying(operation("paths", &["/admin*"])),
        &[(get("/x%2f..%2fadmin"), false), (get("//admin"), false), (get("/files/a%2Fb"), true)],
    );
    table(
        operation("paths", &["/a", "/public/*"]),
        &[(get("/a"), true), (get("/a;v=1"), false), (get("/public/..;/admin"), false)],
    );
    table(
        operation("paths", &["/v1/{*}/items/{**}"]),
        &[
            (get("/v1/7/items/x/y"), true),
            (get("/v1/7/items/"), true),
            (get("/v1/7/items"), false),
            (get("/v1/7/8/items/x"), false),
            (get("/v1//items/x"), false),
        ],
    );
}

#[test]
fn az20_headers_have_several_readings_and_unknown_keys_fail_closed() {
    let key = "request.headers[x-env]";
    table(
        json!([{"rules": [{"when": [{"key": key, "values": ["prod*"], "notValues": ["prod-old"]}]}]}]),
        &[
            (with(&[("x-env", "prod-1")]), true),
            (WEB, false),
            (with(&[("x-env", "prod-old")]), false),
            (with(&[("x-env", "prod-1"), ("x-env", "dev")]), false),
        ],
    );
    let unknown = json!([{"key": "request.body", "values": ["x"]}]);
    table(json!([{"rules": [{"when": unknown}]}]), &[(WEB, false)]);
    let web = json!([{"source": {"principals": [p("c/web")]}}]);
    table(
        json!([{"action": "DENY", "rules": [{"from": web, "when": unknown}]}]),
        &[(WEB, false), (from("c/ops"), true)],
    );
    for (key, known) in [
        ("request.headers[a]", true),
        ("request.headers[a][b]", false),
        ("request.headers[]", false),
        ("request.auth.claims[a][b]", true),
        ("request.auth.claims", false),
        ("destination.port", true),
        ("source.labels[a]", false),
    ] {
        assert_eq!(knows(key), known, "{key}");
    }
}

#[test]
fn az24_dry_runs_and_audit_are_noted_and_do_nothing() {
    let policies = compiled(&json!([
        {"dry": true},
        {"dry": true, "action": "DENY", "rules": [{}]},
        {"action": "AUDIT", "rules": [{}]}
    ]));
    let outcome = judged(&policies, &WEB);
    assert_eq!(outcome, Outcome { verdict: Verdict::Allow, noted: vec!["m/p1".into(), "m/p2".into()] });
}

#[test]
fn az27_without_http_an_allow_rule_goes_and_a_deny_rule_keeps_the_rest() {
    let methods = |field: &str| json!([{"operation": {"methods": [field]}}]);
    table(json!([{"rules": [{"to": methods("GET")}]}]), &[(TCP, false), (WEB, true)]);
    let web = json!([{"source": {"principals": [p("c/web")]}}]);
    let ops = || Case { source: Some("c/ops"), ..TCP };
    table(
        json!([{"action": "DENY", "rules": [{"from": web, "to": methods("POST")}]}]),
        &[(TCP, false), (ops(), true), (WEB, true), (post(), false)],
    );
    table(json!([{"action": "DENY", "rules": [{"to": methods("POST")}]}]), &[(ops(), false)]);
    let ported = json!([{"operation": {"methods": ["POST"], "ports": ["8080"]}}]);
    table(json!([{"action": "DENY", "rules": [{"to": ported}]}]), &[(ops(), true)]);
}

#[test]
fn tokens_give_principals_audiences_and_claims() {
    let with = |claims: Value| Case { claims: Some(claims), ..WEB };
    let principals = json!([{"source": {"requestPrincipals": ["A/*"]}}]);
    table(
        json!([{"rules": [{"from": principals}]}]),
        &[(with(json!({"iss": "A", "sub": "u"})), true), (with(json!({"iss": "A"})), false), (WEB, false)],
    );
    let when = |key: &str, values: &[&str]| json!([{"rules": [{"when": [{"key": key, "values": values}]}]}]);
    table(
        when("request.auth.audiences", &["pay"]),
        &[(with(json!({"aud": ["x", "pay"]})), true), (with(json!({"aud": "x"})), false)],
    );
    table(
        when("request.auth.presenter", &["app"]),
        &[(with(json!({"azp": "app"})), true), (with(json!({"azp": 1})), false)],
    );
    table(
        when("request.auth.claims[org][unit]", &["ops*"]),
        &[(with(json!({"org": {"unit": "ops-1"}})), true), (with(json!({"org": {"unit": true}})), false)],
    );
}
