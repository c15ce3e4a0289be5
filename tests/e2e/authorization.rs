//! Policies that speak of HTTP act where HTTP is understood; the original caller counts through a waypoint, and nobody else speaks
//! for it; what requires a waypoint is not reached around it.

use crate::engine::{SIDECAR, WAYPOINT, gateway, tool_app, waypoint};
use crate::routes::{Said, ask};
use crate::support::*;
use serde_json::json;

pub const TESTS: &[Test] = &[
    ("policies_of_http_act_at_waypoint_and_sidecar", http),
    ("the_original_caller_counts_through_a_waypoint", caller),
    ("what_requires_a_waypoint_is_not_reached_around_it", required),
    ("tokens_are_validated_and_their_claims_count", tokens),
];

pub fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

const TO_APP: &str = "targetRefs: [{group: '', kind: Service, name: app}]";

fn app(namespace: &str) -> String {
    tool_app(namespace, "app", "http, '8080'", 8080)
        .replace("ports: [{port: 8080}]", "ports: [{name: http, port: 8080}]")
}

fn http(user: User) {
    let manifests = [
        namespace("l7", WAYPOINT),
        namespace("sc", SIDECAR),
        waypoint("l7"),
        app("l7"),
        app("sc"),
        client("l7", "friend"),
        client("sc", "friend"),
    ]
    .concat();
    let lab = up(user, &manifests);
    for (ns, target) in [("l7", TO_APP), ("sc", "selector: {matchLabels: {app: app}}")] {
        lab.until_call((ns, "client"), "http://app:8080/hello", 200);
        lab.apply(&policy(
            ns,
            "rules",
            &format!(
                "{{{target}, rules: [
            {{from: [{{source: {{principals: [cluster.local/ns/{ns}/sa/friend]}}}}], to: [{{operation: {{methods: [GET], paths: ['/public*', '/v1/{{*}}/x']}}}}]}},
            {{to: [{{operation: {{hosts: ['*.open.example']}}}}]}},
            {{when: [{{key: 'request.headers[x-env]', values: ['prod*'], notValues: [prod-old]}}]}},
            {{from: [{{source: {{namespaces: [elsewhere]}}}}]}}]}}"
            ),
        ));
        lab.until_call((ns, "client"), "http://app:8080/hello", 403);
        for (request, status) in [
            ("GET /public/a", 200),
            ("POST /public/a", 403),
            ("GET /v1/7/x", 200),
            ("GET /v1//x", 403),
            ("GET /other", 403),
            ("GET /other\nhost: A.Open.Example:8080", 200),
            ("GET /other\nhost: open.example", 403),
            ("GET /other\nx-env: prod-1", 200),
            ("GET /other\nx-env: prod-old", 403),
            ("GET /other\nx-env: prod-1\nx-env: dev", 403),
        ] {
            let said = ask(&lab, ns, "app:8080", request);
            assert_eq!(said.status, status, "{ns}: {request:?}: {}{}", said.head, said.body);
            if status == 403 {
                assert_eq!(said.body, "RBAC: access denied", "{ns}: {request:?}");
                assert!(said.head.contains("x-trysail-reason: authorization"), "{}", said.head);
            }
        }
        // DENY before ALLOW; AUDIT and a dry run change nothing.
        lab.apply(&policy(
            ns,
            "deny",
            &format!("{{{target}, action: DENY, rules: [{{to: [{{operation: {{paths: ['/public/secret*']}}}}]}}]}}"),
        ));
        lab.apply(&policy(ns, "audit", &format!("{{{target}, action: AUDIT, rules: [{{}}]}}")));
        lab.until_call((ns, "client"), "http://app:8080/public/secret", 403);
        assert_eq!(ask(&lab, ns, "app:8080", "GET /public/a").status, 200);
        assert_eq!(ask(&lab, ns, "app:8080", "GET /public/x/../secret").status, 403);
    }
}

fn caller(user: User) {
    let manifests = [
        namespace("l7", WAYPOINT),
        namespace("c", AMBIENT),
        namespace("d", SIDECAR),
        waypoint("l7"),
        app("l7"),
        client("c", "web"),
        client("d", "web"),
        client("l7", "other"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let url = "http://app.l7:8080/hello";
    lab.until_call(("c", "client"), url, 200);
    // At the destination's node, by the pod's labels: the waypoint does not evaluate it, and is not the caller.
    lab.apply(&policy(
        "l7",
        "callers",
        "{selector: {matchLabels: {app: app}}, rules: [{from: [{source: {principals: [cluster.local/ns/c/sa/web]}}]}]}",
    ));
    lab.until_call(("d", "client"), url, 403);
    assert_eq!(lab.call("c", "client", url), 200);
    // By address: the caller's own, not the waypoint's.
    let address = lab.pod("d", "client", "status.podIP");
    lab.apply(&policy(
        "l7",
        "callers",
        &format!(
            "{{selector: {{matchLabels: {{app: app}}}}, rules: [{{from: [{{source: {{ipBlocks: ['{address}']}}}}]}}]}}"
        ),
    ));
    lab.until_call(("c", "client"), url, 403);
    assert_eq!(lab.call("d", "client", url), 200);
    // The waypoint counts where it is named exactly, and not by a wildcard.
    lab.apply(&policy("l7", "callers", "{selector: {matchLabels: {app: app}}, rules: [{from: [{source: {principals: [cluster.local/ns/l7/sa/waypoint]}}]}]}"));
    lab.until_call(("c", "client"), url, 200);
    let direct = format!("http://{}:8080/hello", lab.pod("l7", "app", "status.podIP"));
    assert_eq!(lab.call("c", "client", &direct), -1);
    lab.apply(&policy(
        "l7",
        "callers",
        "{selector: {matchLabels: {app: app}}, rules: [{from: [{source: {principals: ['cluster.local/ns/l7/*']}}]}]}",
    ));
    lab.until_call(("c", "client"), url, 403);
    // Whoever states a caller without being the hop of the called speaks for itself.
    lab.lab(&["delete", "authorizationpolicy", "-n", "l7", "callers"]);
    let said = ask(
        &lab,
        "c",
        "app.l7:8080",
        "GET /hello\nx-trysail-caller: 10.0.0.1;spiffe://cluster.local/ns/d/sa/web\nx-forwarded-client-cert: URI=spiffe://cluster.local/ns/d/sa/web",
    );
    assert!(said.body.contains("URI=spiffe://cluster.local/ns/c/sa/web"), "{}", said.body);
    assert!(!said.body.contains("ns/d/sa/web"), "{}", said.body);
}

fn required(user: User) {
    let manifests = [namespace("l7", WAYPOINT), namespace("c", AMBIENT), app("l7"), client("c", "web")].concat();
    let lab = up(user, &manifests);
    let url = "http://app.l7:8080/hello";
    let direct = format!("http://{}:8080/hello", lab.pod("l7", "app", "status.podIP"));
    // A binding to a waypoint that is not there is no obstacle by itself.
    lab.until_call(("c", "client"), url, 200);
    lab.apply(&policy("l7", "get", &format!("{{{TO_APP}, rules: [{{to: [{{operation: {{methods: [GET]}}}}]}}]}}")));
    // With a policy that needs it, it is.
    lab.until_call(("c", "client"), url, -1);
    lab.until_call(("c", "client"), &direct, -1);
    lab.apply(&waypoint("l7"));
    lab.until_call(("c", "client"), url, 200);
    assert_eq!(lab.call("c", "client", &direct), -1, "around the waypoint");
    assert_eq!(ask(&lab, "c", "app.l7:8080", "POST /hello").status, 403);
    lab.lab(&["delete", "gateway", "-n", "l7", "waypoint"]);
    lab.until_call(("c", "client"), url, -1);
    lab.lab(&["delete", "authorizationpolicy", "-n", "l7", "get"]);
    lab.until_call(("c", "client"), url, 200);
}

/// A key pair of an issuer, and its tokens.
struct Issuer {
    name: &'static str,
    key: jsonwebtoken::EncodingKey,
    jwks: String,
}

impl Issuer {
    fn new(name: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = jsonwebtoken::EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, jsonwebtoken::Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(name.to_owned());
        Self { name, key, jwks: serde_json::to_string(&json!({"keys": [jwk]})).unwrap() }
    }

    fn token(&self, extra: serde_json::Value) -> String {
        let mut claims = json!({"iss": self.name, "sub": "u", "exp": now() + 600});
        claims.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
        header.kid = Some(self.name.to_owned());
        jsonwebtoken::encode(&header, &claims, &self.key).unwrap()
    }
}

/// Seconds since 1970, as tokens count.
fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// One hop that looks at tokens, and who asks through it.
struct Door<'a> {
    lab: &'a Lab,
    from: &'a str,
    namespace: &'a str,
    address: &'a str,
    target: &'a str,
}

impl Door<'_> {
    fn authenticate(&self, name: &str, rule: &str) {
        self.lab.apply(&format!(
            "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: {name}, namespace: {}}}\nspec: {{{}, jwtRules: [{rule}]}}\n",
            self.namespace, self.target
        ));
    }

    fn allow(&self, name: &str, rules: &str) {
        self.lab.apply(&policy(self.namespace, name, &format!("{{{}, rules: [{rules}]}}", self.target)));
    }

    fn ask(&self, token: Option<&str>) -> Said {
        let field = token.map(|t| format!("\nauthorization: Bearer {t}")).unwrap_or_default();
        ask(self.lab, self.from, self.address, &format!("GET /hello{field}"))
    }

    fn status(&self, token: &str) -> u16 {
        self.ask(Some(token)).status
    }

    /// RA1, RA2, RA4: none is no error; what cannot be validated is.
    fn validated(&self, a: &Issuer, b: &Issuer) {
        self.lab.until_call((self.from, "client"), &format!("http://{}/hello", self.address), 200);
        self.authenticate("a", &format!("{{issuer: A, jwks: '{}'}}", a.jwks));
        let bad = a.token(json!({})) + "x";
        self.lab.until("tokens are looked at", || match self.status(&bad) {
            401 => Ok(()),
            other => Err(other.to_string()),
        });
        assert_eq!(self.ask(None).status, 200);
        let said = self.ask(Some(&a.token(json!({}))));
        assert_eq!(said.status, 200);
        assert!(!said.body.contains("authorization="), "the token is not passed on: {}", said.body);
        let refused = self.ask(Some(&a.token(json!({"exp": 1}))));
        assert_eq!(refused.status, 401);
        assert!(refused.head.contains("www-authenticate: bearer"), "{}", refused.head);
        assert_eq!(self.status(&b.token(json!({}))), 401, "an issuer that no rule knows");
        assert_eq!(self.status(&b.token(json!({"iss": "A"}))), 401, "another's key");
        assert_eq!(self.status(&a.token(json!({"exp": now() - 30}))), 200, "within the leeway");
        let unsigned = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJBIn0.";
        assert_eq!(self.status(unsigned), 401);
    }

    /// Keys that are fetched do as well as keys that are written down.
    fn fetched(&self, a: &Issuer, b: &Issuer) {
        use base64::Engine;
        let keys = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&a.jwks);
        let uri = format!("http://app.l4.svc.cluster.local:8080/decoded/{keys}");
        self.authenticate("a", &format!("{{issuer: A, jwksUri: '{uri}'}}"));
        self.lab.until("the keys are there", || match self.status(&a.token(json!({}))) {
            200 => Ok(()),
            other => Err(other.to_string()),
        });
        assert_eq!(self.status(&b.token(json!({"iss": "A"}))), 401, "another's key");
        // Keys that cannot be had: no token is believed, and without one nothing changes.
        self.authenticate("a", "{issuer: A, jwksUri: 'http://nowhere.l4.svc.cluster.local/keys'}");
        self.lab.until("no key, no belief", || match self.status(&a.token(json!({}))) {
            401 => Ok(()),
            other => Err(other.to_string()),
        });
        assert_eq!(self.ask(None).status, 200);
        self.authenticate("a", &format!("{{issuer: A, jwks: '{}'}}", a.jwks));
        self.lab.until("the written keys count again", || match self.status(&a.token(json!({}))) {
            200 => Ok(()),
            other => Err(other.to_string()),
        });
    }

    /// RA5: claims count, nested and listed.
    fn claims(&self, a: &Issuer) {
        self.allow(
            "claims",
            "{when: [{key: 'request.auth.claims[groups]', values: [admin]}]}, {when: [{key: 'request.auth.claims[org][unit]', values: ['ops*']}]}",
        );
        self.lab.until_call((self.from, "client"), &format!("http://{}/hello", self.address), 403);
        for (claims, wanted) in [
            (json!({"groups": ["dev", "admin"]}), 200),
            (json!({"groups": "admin"}), 200),
            (json!({"groups": "dev admin"}), 403),
            (json!({"org": {"unit": "ops-1"}}), 200),
            (json!({}), 403),
        ] {
            assert_eq!(self.status(&a.token(claims.clone())), wanted, "{}: {claims}", self.namespace);
        }
        self.lab.lab(&["delete", "authorizationpolicy", "-n", self.namespace, "claims"]);
    }

    /// RA3: one audience in common.
    fn audiences(&self, a: &Issuer) {
        self.authenticate("a", &format!("{{issuer: A, audiences: [shop, pay], jwks: '{}'}}", a.jwks));
        self.lab.until("audiences are asked for", || match self.status(&a.token(json!({"aud": "x"}))) {
            403 => Ok(()),
            other => Err(other.to_string()),
        });
        assert_eq!(self.status(&a.token(json!({"aud": ["pay", "x"]}))), 200);
    }

    /// RA6: two rules, each in its own place.
    fn two_rules(&self, a: &Issuer, b: &Issuer) {
        self.authenticate("b", &format!("{{issuer: B, jwks: '{}', fromHeaders: [{{name: x-b}}]}}", b.jwks));
        self.authenticate("a", &format!("{{issuer: A, jwks: '{}'}}", a.jwks));
        self.allow("principals", "{from: [{source: {requestPrincipals: [A/u, B/u]}}]}");
        let ask = |fields: &str| ask(self.lab, self.from, self.address, &format!("GET /hello\n{fields}")).status;
        self.lab.until("both rules act", || {
            let codes = (self.ask(None).status, ask(&format!("x-b: {}", b.token(json!({})))));
            if codes == (403, 200) { Ok(()) } else { Err(format!("{codes:?}")) }
        });
        assert_eq!(self.status(&a.token(json!({}))), 200);
        assert_eq!(self.status(&b.token(json!({}))), 401, "nobody looks there for B");
        let two = |a: &str, b: &str| ask(&format!("authorization: Bearer {a}\nx-b: {b}"));
        assert_eq!(two(&a.token(json!({})), &b.token(json!({}))), 401, "two principals");
        assert_eq!(two(&a.token(json!({})), &b.token(json!({"exp": 1}))), 401, "one of them expired");
    }
}

fn tokens(user: User) {
    let (a, b) = (Issuer::new("A"), Issuer::new("B"));
    let manifests = [
        namespace("outside", ""),
        namespace("l4", AMBIENT),
        namespace("l7", WAYPOINT),
        namespace("sc", SIDECAR),
        waypoint("l7"),
        gateway("l4", "app", 8080),
        app("l4"),
        app("l7"),
        app("sc"),
        client("outside", "default"),
        client("l7", "default"),
        client("sc", "default"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let edge = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]";
    for (from, namespace, address, target) in [
        ("l7", "l7", "app:8080", TO_APP),
        ("sc", "sc", "app:8080", "selector: {matchLabels: {app: app}}"),
        ("outside", "l4", "edge-istio.l4:80", edge),
    ] {
        let door = Door { lab: &lab, from, namespace, address, target };
        door.validated(&a, &b);
        door.fetched(&a, &b);
        door.claims(&a);
        door.audiences(&a);
        door.two_rules(&a, &b);
    }
}
