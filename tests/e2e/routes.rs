//! Every feature of HTTPRoute, GRPCRoute, VirtualService and DestinationRule, through the proxy that carries it; nonsense is refused
//! with the field's name.

use crate::engine::{SIDECAR, WAYPOINT, tool_app, waypoint};
use crate::support::*;
use base64::Engine;

pub const TESTS: &[Test] = &[
    ("http_and_grpc_routes_at_a_gateway", gateway_routes),
    ("virtual_services_at_a_waypoint_and_a_sidecar", virtual_services),
    ("destination_rules_balance_limit_and_eject", destination_rules),
    ("routes_that_make_no_sense_are_refused_by_field", nonsense),
];

/// An answer.
pub struct Said {
    pub status: u16,
    /// Head in lower case.
    pub head: String,
    pub body: String,
}

/// One request by the byte; `request` is its first line without version and its fields, one a line.
pub fn ask(lab: &Lab, from: &str, address: &str, request: &str) -> Said {
    let mut lines = request.lines();
    let first = lines.next().unwrap();
    let mut fields: Vec<&str> = lines.collect();
    if !fields.iter().any(|f| f.starts_with("host:")) {
        fields.push("host: app");
    }
    let text = format!("{first} HTTP/1.1\r\n{}\r\nconnection: close\r\n\r\n", fields.join("\r\n"));
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    let (_, text) = lab.exec(from, "client", &[tool(), "tool", "raws-whole", address, &encoded]);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.get(9..12).and_then(|c| c.parse().ok()).unwrap_or(0);
    Said { status, head: head.to_lowercase(), body: body.trim_end().to_owned() }
}

/// Request, status, and what must (or with `!` must not) occur in head or body.
type Row = (&'static str, u16, &'static [&'static str]);

fn check(lab: &Lab, from: &str, address: &str, rows: &[Row], wrong: &mut Vec<String>) {
    for (request, status, wanted) in rows {
        let said = ask(lab, from, address, request);
        let all = format!("{}\n{}", said.head, said.body);
        let fits = |w: &&str| match w.strip_prefix('!') {
            Some(not) => !all.contains(not),
            None => all.contains(*w),
        };
        if said.status != *status || !wanted.iter().all(fits) {
            wrong.push(format!(
                "{address}: {request:?}: {} {:?}, not {status} {wanted:?}\n{all}",
                said.status, said.body
            ));
        }
    }
}

fn app(namespace: &str, name: &str) -> String {
    tool_app(namespace, name, &format!("http, '8080', {name}"), 8080)
}

const HTTP_ROUTE: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: features, namespace: l4}
spec:
  parentRefs: [{name: edge, sectionName: http}]
  rules:
  - matches: [{path: {type: Exact, value: /exact}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {type: PathPrefix, value: /prefix}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {type: RegularExpression, value: '/re/[0-9]+'}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {value: /match}, headers: [{name: X-Env, value: prod}, {name: x-re, type: RegularExpression, value: 'a.c'}]}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {value: /match}, queryParams: [{name: v, value: '2'}]}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {value: /match}, method: DELETE}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{path: {value: /change}}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: x-set, value: s}], add: [{name: x-add, value: a}], remove: [x-gone]}
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: x-out, value: o}]}
    backendRefs: [{name: one, port: 8080, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-backend, value: b}]}}]}]
  - matches: [{path: {value: /rewrite/prefix}}]
    filters: [{type: URLRewrite, urlRewrite: {hostname: other.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /rewrite/full}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /whole}}}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /go/host}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: other.example, statusCode: 301}}]
  - matches: [{path: {value: /go/scheme}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]
  - matches: [{path: {value: /go/port}}]
    filters: [{type: RequestRedirect, requestRedirect: {port: 8443, statusCode: 307}}]
  - matches: [{path: {value: /go/path}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /there}, statusCode: 308}}]
  - matches: [{path: {value: /mirrored}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: two, port: 8080}}}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /cors}}]
    filters: [{type: CORS, cors: {allowOrigins: ['https://a.example'], allowMethods: [GET, PUT], allowHeaders: [x-a], exposeHeaders: [x-b], maxAge: 60, allowCredentials: true}}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /slow}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /flaky}}]
    retry: {attempts: 3, codes: [503], backoff: 10ms}
    backendRefs: [{name: one, port: 8080}]
  - matches: [{path: {value: /missing}}]
    backendRefs: [{name: nothing, port: 8080}]
  - matches: [{path: {value: /foreign}}]
    backendRefs: [{name: far, namespace: other, port: 8080}]
  - matches: [{path: {value: /granted}}]
    backendRefs: [{name: near, namespace: other, port: 8080}]
  - matches: [{path: {value: /none}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: l4}]
  to: [{group: '', kind: Service, name: near}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hosts, namespace: l4}
spec:
  parentRefs: [{name: edge}]
  hostnames: ['*.wild.example', exact.example]
  rules: [{backendRefs: [{name: two, port: 8080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: grpc, namespace: l4}
spec:
  parentRefs: [{name: edge}]
  hostnames: [grpc.example]
  rules:
  - matches: [{method: {service: pkg.Svc, method: Do}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{method: {service: pkg.Svc}, headers: [{name: x-env, value: prod}]}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-grpc, value: g}]}}]
    backendRefs: [{name: one, port: 8080}]
";

const HTTP_ROWS: &[Row] = &[
    ("GET /exact", 200, &["two: GET /exact"]),
    ("GET /exact/", 404, &["x-trysail-reason: no_route"]),
    ("GET /prefix", 200, &["two:"]),
    ("GET /prefix/x", 200, &["two:"]),
    ("GET /prefixed", 404, &[]),
    ("GET /re/42", 200, &["two:"]),
    ("GET /re/42x", 404, &[]),
    ("GET /match\nx-env: prod\nx-re: abc", 200, &["two:"]),
    ("GET /match\nx-env: prod\nx-re: abcd", 404, &[]),
    ("GET /match?v=2", 200, &["two:"]),
    ("GET /match?v=3", 404, &[]),
    ("DELETE /match", 200, &["two: DELETE"]),
    (
        "GET /change\nx-set: was\nx-add: was\nx-gone: was",
        200,
        &["x-set=s", "!x-set=was", "x-add=was", "x-add=a", "!x-gone", "x-backend=b", "x-out: o"],
    ),
    ("GET /rewrite/prefix/rest?q=1", 200, &["one: GET /new/rest?q=1", "host=other.example"]),
    ("GET /rewrite/full/rest", 200, &["one: GET /whole "]),
    ("GET /go/host/x?q=1", 301, &["location: http://other.example/go/host/x?q=1"]),
    ("GET /go/scheme", 302, &["location: https://app/go/scheme"]),
    ("GET /go/port", 307, &["location: http://app:8443/go/port"]),
    ("GET /go/path/x", 308, &["location: http://app/there/x"]),
    (
        "OPTIONS /cors\norigin: https://a.example\naccess-control-request-method: PUT",
        200,
        &[
            "access-control-allow-origin: https://a.example",
            "access-control-allow-methods: get, put",
            "access-control-max-age: 60",
            "access-control-allow-credentials: true",
        ],
    ),
    (
        "GET /cors\norigin: https://a.example",
        200,
        &["access-control-allow-origin: https://a.example", "access-control-expose-headers: x-b"],
    ),
    ("GET /cors\norigin: https://b.example", 200, &["!access-control-allow-origin"]),
    ("GET /slow?ms=10", 200, &["slept"]),
    ("GET /slow?ms=2000", 504, &["x-trysail-reason: timeout"]),
    ("GET /flaky", 200, &["one: GET /flaky"]),
    ("GET /missing", 500, &["x-trysail-reason: invalid_backend"]),
    ("GET /foreign", 500, &["x-trysail-reason: invalid_backend"]),
    ("GET /granted", 200, &["near:"]),
    ("GET /none", 500, &[]),
    ("GET /x\nhost: a.wild.example", 200, &["two:"]),
    ("GET /x\nhost: exact.example:80", 200, &["two:"]),
    ("GET /x\nhost: wild.example", 404, &[]),
    ("POST /pkg.Svc/Do\nhost: grpc.example", 200, &["two:"]),
    ("POST /pkg.Svc/Other\nhost: grpc.example\nx-env: prod", 200, &["one:", "x-grpc=g"]),
    ("POST /pkg.Svc/Other\nhost: grpc.example", 404, &[]),
];

fn gateway_routes(user: User) {
    let edge = "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: l4}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: 80, protocol: HTTP}]
";
    let manifests = [
        namespace("outside", ""),
        namespace("l4", AMBIENT),
        namespace("other", AMBIENT),
        edge.to_owned(),
        app("l4", "one"),
        app("l4", "two"),
        app("other", "near"),
        app("other", "far"),
        client("outside", "default"),
        HTTP_ROUTE.to_owned(),
    ]
    .concat();
    let lab = up(user, &manifests);
    lab.until_call(("outside", "client"), "http://edge-istio.l4/exact", 200);
    let mut wrong = Vec::new();
    check(&lab, "outside", "edge-istio.l4:80", HTTP_ROWS, &mut wrong);
    assert_eq!(ask(&lab, "outside", "edge-istio.l4:80", "GET /mirrored/x").body, "copied");
    lab.until("the copy arrives", || {
        let seen = ask(&lab, "outside", "edge-istio.l4:80", "GET /mirrors\nhost: exact.example").body;
        if seen == "1" { Ok(()) } else { Err(seen) }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const VIRTUAL_SERVICE: &str = "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: features, namespace: NS}
spec:
  hosts: [app]
  http:
  - match: [{uri: {exact: /exact}}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /pre}}]
    route: [{destination: {host: two, port: {number: 8080}}}]
  - match: [{uri: {regex: '/re/[0-9]+'}}, {uri: {exact: /CASE}, ignoreUriCase: true}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /named}, headers: {x-env: {prefix: pro}, x-any: {}}, withoutHeaders: {x-not: {exact: 'yes'}}}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /query}, queryParams: {v: {exact: '2'}}}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /method}, method: {exact: PUT}}]
    route: [{destination: {host: two}}]
  - match: [{authority: {exact: named.example}}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /port}, port: 8080}]
    route: [{destination: {host: two}}]
  - match: [{uri: {prefix: /subset}}]
    route: [{destination: {host: app, subset: blue}}]
  - match: [{uri: {prefix: /nosubset}}]
    route: [{destination: {host: app, subset: none}}]
  - match: [{uri: {prefix: /change}}]
    headers: {request: {set: {x-set: s}, add: {x-add: a}, remove: [x-gone]}, response: {set: {x-out: o}}}
    route: [{destination: {host: app}, headers: {request: {set: {x-backend: b}}}}]
  - match: [{uri: {prefix: /rewrite/}}]
    rewrite: {uri: /new/, authority: other.example}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /regex/}}]
    rewrite: {uriRegexRewrite: {match: '^/regex/([a-z]+)/(.*)$', rewrite: '/\\2/\\1'}}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /go}}]
    redirect: {uri: /there, authority: other.example, redirectCode: 302}
  - match: [{uri: {prefix: /direct}}]
    directResponse: {status: 418, body: {string: teapot}}
  - match: [{uri: {prefix: /abort}}]
    fault: {abort: {httpStatus: 555, percentage: {value: 100}}}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /delay}}]
    fault: {delay: {fixedDelay: 300ms, percentage: {value: 100}}}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /slow}}]
    timeout: 300ms
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /flaky}}]
    retries: {attempts: 3, perTryTimeout: 2s, retryOn: '503,reset,connect-failure'}
    route: [{destination: {host: app, subset: blue}}]
  - match: [{uri: {prefix: /503}}]
    retries: {attempts: 0}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /mirrored}}]
    mirror: {host: two}
    mirrorPercentage: {value: 100}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /cors}}]
    corsPolicy: {allowOrigins: [{regex: 'https://.*\\.example'}], allowMethods: [GET], maxAge: 1m}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /missing}}]
    route: [{destination: {host: nothing}}]
  - match: [{uri: {prefix: /}}]
    route: [{destination: {host: app}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: app, namespace: NS}
spec:
  host: app
  subsets: [{name: blue, labels: {color: blue}}]
";

const VIRTUAL_ROWS: &[Row] = &[
    ("GET /exact", 200, &["two:"]),
    ("GET /exact/", 200, &["!two:"]),
    ("GET /prefix-of-characters", 200, &["two:"]),
    ("GET /re/42", 200, &["two:"]),
    ("GET /re/42x", 200, &["!two:"]),
    ("GET /case", 200, &["two:"]),
    ("GET /named\nx-env: prod\nx-any: 1", 200, &["two:"]),
    ("GET /named\nx-env: prod", 200, &["!two:"]),
    ("GET /named\nx-env: prod\nx-any: 1\nx-not: yes", 200, &["!two:"]),
    ("GET /query?v=2", 200, &["two:"]),
    ("GET /query?v=3", 200, &["!two:"]),
    ("PUT /method", 200, &["two:"]),
    ("GET /method", 200, &["!two:"]),
    ("GET /x\nhost: named.example", 200, &["two:"]),
    ("GET /port", 200, &["two:"]),
    ("GET /subset", 200, &["blue:"]),
    ("GET /subset?again", 200, &["blue:"]),
    ("GET /nosubset", 500, &["invalid_backend"]),
    (
        "GET /change\nx-set: was\nx-add: was\nx-gone: was",
        200,
        &["x-set=s", "!x-set=was", "x-add=was", "x-add=a", "!x-gone", "x-backend=b", "x-out: o"],
    ),
    ("GET /rewrite/rest?q=1", 200, &["GET /new/rest?q=1", "host=other.example"]),
    ("GET /regex/abc/def", 200, &["GET /def/abc"]),
    ("GET /go/x", 302, &["location: http://other.example/there"]),
    ("GET /direct", 418, &["teapot"]),
    ("GET /abort", 555, &["x-trysail-reason: fault"]),
    ("GET /delay", 200, &["GET /delay"]),
    ("GET /slow?ms=2000", 504, &["x-trysail-reason: timeout"]),
    ("GET /flaky", 200, &["GET /flaky"]),
    ("GET /503", 503, &[]),
    (
        "OPTIONS /cors\norigin: https://a.example\naccess-control-request-method: GET",
        200,
        &["access-control-allow-origin: https://a.example", "access-control-max-age: 60"],
    ),
    ("GET /cors\norigin: https://a.other", 200, &["!access-control-allow-origin"]),
    ("GET /missing", 500, &["invalid_backend"]),
    ("GET /anything", 200, &["!two:"]),
];

/// A second Deployment behind the service `app`, of another colour.
fn blue(namespace: &str) -> String {
    tool_app(namespace, "blue", "http, '8080', blue", 8080)
        .split("---\napiVersion: v1")
        .next()
        .unwrap()
        .replace("{app: blue}", "{app: app, color: blue}")
}

fn virtual_services(user: User) {
    let one = |ns: &str| {
        let green = app(ns, "app").replacen("{app: app}", "{app: app, color: green}", 2);
        [green, blue(ns), app(ns, "two"), client(ns, "default"), VIRTUAL_SERVICE.replace("NS", ns)].concat()
    };
    let manifests =
        [namespace("l7", WAYPOINT), namespace("sc", SIDECAR), waypoint("l7"), one("l7"), one("sc")].concat();
    let lab = up(user, &manifests);
    let mut wrong = Vec::new();
    for ns in ["l7", "sc"] {
        lab.until_call((ns, "client"), "http://app:8080/direct", 418);
        check(&lab, ns, "app:8080", VIRTUAL_ROWS, &mut wrong);
        assert_eq!(ask(&lab, ns, "app:8080", "GET /mirrored").body, "copied");
        lab.until("the copy arrives", || {
            let seen = ask(&lab, ns, "two:8080", "GET /mirrors").body;
            if seen == "1" { Ok(()) } else { Err(seen) }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn destination_rules(user: User) {
    let rule = |ns: &str, policy: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: app, namespace: {ns}}}\nspec: {{host: app, trafficPolicy: {policy}}}\n"
        )
    };
    let one =
        |ns: &str| [app(ns, "app").replacen("spec:\n", "spec:\n  replicas: 3\n", 1), client(ns, "default")].concat();
    let manifests =
        [namespace("l7", WAYPOINT), namespace("sc", SIDECAR), waypoint("l7"), one("l7"), one("sc")].concat();
    let lab = up(user, &manifests);
    for ns in ["l7", "sc"] {
        // The endpoint that answered, by the pod's own name in the answer.
        let answered = |request: &str| ask(&lab, ns, "app:8080", request).head;
        let hosts = |requests: &[String]| {
            let mut seen: Vec<String> = requests
                .iter()
                .map(|r| answered(r).lines().find(|l| l.starts_with("x-pod:")).unwrap_or_default().to_owned())
                .collect();
            seen.sort();
            seen.dedup();
            seen
        };
        let some = |field: &str| (0..12).map(|n| format!("GET /hello\n{field}{n}")).collect::<Vec<_>>();
        lab.until_call((ns, "client"), "http://app:8080/hello", 200);
        lab.apply(&rule(ns, "{loadBalancer: {simple: ROUND_ROBIN}}"));
        assert_eq!(hosts(&some("x-user: ")).len(), 3, "{ns}: taking turns reaches every endpoint");
        lab.apply(&rule(ns, "{loadBalancer: {consistentHash: {httpHeaderName: x-user}}}"));
        lab.until("a user stays at one endpoint", || {
            let seen = hosts(&vec!["GET /hello\nx-user: 7".to_owned(); 8]);
            if seen.len() == 1 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        assert!(hosts(&some("x-user: ")).len() > 1, "{ns}: users are spread");
        lab.apply(&rule(ns, "{loadBalancer: {consistentHash: {httpCookie: {name: stick, ttl: 0s}}}}"));
        let cookie = lab.until("a cookie is given", || {
            let head = answered("GET /hello");
            let found = head.lines().find_map(|l| l.strip_prefix("set-cookie: stick="));
            found.and_then(|v| v.split(';').next()).map(str::to_owned).ok_or(head.clone())
        });
        assert_eq!(hosts(&vec![format!("GET /hello\ncookie: stick={cookie}"); 8]).len(), 1, "{ns}: the cookie sticks");
        // One request at a time; the others are told so.
        lab.apply(&rule(ns, "{connectionPool: {http: {http2MaxRequests: 1}}}"));
        lab.until("a limit is kept", || {
            let run = lab.load(ns, "client", &["-n", "12", "-c", "6", "-qps", "0", "http://app:8080/slow?ms=200"]);
            let codes = run["RetCodes"].as_object().unwrap().clone();
            let both = codes.contains_key("503") && codes.contains_key("200");
            if both && codes.len() == 2 { Ok(()) } else { Err(format!("{codes:?}")) }
        });
        lab.apply(&rule(
            ns,
            "{outlierDetection: {consecutive5xxErrors: 2, baseEjectionTime: 30s, maxEjectionPercent: 50}}",
        ));
        lab.until("an endpoint that fails is left out", || {
            for _ in 0..8 {
                ask(&lab, ns, "app:8080", "POST /503");
            }
            let seen = hosts(&some("x-user: "));
            if seen.len() == 2 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
}

fn nonsense(user: User) {
    let lab = up(user, &namespace("m", AMBIENT));
    let route = |rule: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r, namespace: m}}\nspec:\n  parentRefs: [{{name: g}}]\n  rules: [{rule}]\n"
        )
    };
    let service = |http: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: m}}\nspec:\n  hosts: [app]\n  http: [{http}]\n"
        )
    };
    let rule = |policy: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: d, namespace: m}}\nspec:\n  host: app\n  trafficPolicy: {policy}\n"
        )
    };
    let to = "backendRefs: [{name: a, port: 80}]";
    for (manifest, field) in [
        (route(&format!("{{matches: [{{path: {{type: Regex, value: /}}}}], {to}}}")), "spec.rules[0].matches[0].path.type"),
        (route(&format!("{{matches: [{{path: {{type: RegularExpression, value: '/('}}}}], {to}}}")), "spec.rules[0].matches[0].path.value"),
        (route(&format!("{{matches: [{{method: get}}], {to}}}")), "spec.rules[0].matches[0].method"),
        (route(&format!("{{matches: [{{headers: [{{name: 'a b', value: c}}]}}], {to}}}")), "spec.rules[0].matches[0].headers[0].name"),
        (route(&format!("{{timeouts: {{request: soon}}, {to}}}")), "spec.rules[0].timeouts.request"),
        (route(&format!("{{timeouts: {{request: 1s, backendRequest: 2s}}, {to}}}")), "spec.rules[0].timeouts.backendRequest"),
        (route(&format!("{{retry: {{codes: [200]}}, {to}}}")), "spec.rules[0].retry.codes[0]"),
        (route(&format!("{{filters: [{{type: ExtensionRef}}], {to}}}")), "spec.rules[0].filters[0].type"),
        (route("{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]}"), "spec.rules[0].filters[0].requestRedirect.statusCode"),
        (route("{backendRefs: [{name: a}]}"), "spec.rules[0].backendRefs[0].port"),
        (route(&format!("{{sessionPersistence: {{}}, {to}}}")), "spec.rules[0].sessionPersistence"),
        (service("{route: [{destination: {host: a}}], timeout: 5}"), "spec.http[0].timeout"),
        (service("{route: [{destination: {host: a}}], retries: {attempts: 1, retryOn: whenever}}"), "spec.http[0].retries.retryOn"),
        (service("{route: [{destination: {host: a}}], redirect: {uri: /}}"), "spec.http[0]"),
        (service("{route: [{destination: {host: a}, weight: 0}, {destination: {host: b}, weight: 0}]}"), "spec.http[0].route"),
        (service("{match: [{uri: {exact: a, prefix: b}}], route: [{destination: {host: a}}]}"), "spec.http[0].match[0].uri"),
        (service("{match: [{sourceLabels: {a: b}}], route: [{destination: {host: a}}]}"), "spec.http[0].match[0].sourceLabels"),
        (service("{fault: {abort: {httpStatus: 99}}, route: [{destination: {host: a}}]}"), "spec.http[0].fault.abort"),
        (service("{fault: {delay: {fixedDelay: 1s, percentage: {value: 101}}}, route: [{destination: {host: a}}]}"), "spec.http[0].fault.delay.percentage"),
        (service("{delegate: {name: other}}"), "spec.http[0].delegate"),
        (service("{route: [{destination: {host: a}}], mirrors: [{destination: {host: www.example.com}}]}"), "spec.http[0].mirrors[0].destination.host"),
        (service("{}").replace("hosts: [app]", "hosts: [app]\n  tcp: [{}]"), "spec.tcp"),
        (service("{}").replace("hosts: [app]", "hosts: [app]\n  gateways: [edge]"), "spec.gateways[0]"),
        (rule("{loadBalancer: {simple: BEST}}"), "spec.trafficPolicy.loadBalancer.simple"),
        (rule("{loadBalancer: {consistentHash: {}}}"), "spec.trafficPolicy.loadBalancer.consistentHash"),
        (rule("{loadBalancer: {warmup: {}}}"), "spec.trafficPolicy.loadBalancer.warmup"),
        (rule("{tls: {mode: SIMPLE}}"), "spec.trafficPolicy.tls.mode"),
        (rule("{outlierDetection: {maxEjectionPercent: 101}}"), "spec.trafficPolicy.outlierDetection.maxEjectionPercent"),
        ("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: m}\nspec: {gatewayClassName: istio, listeners: [{name: a, port: 80, protocol: UDP}]}\n".into(), "spec.listeners[0].protocol"),
        ("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: m}\nspec: {gatewayClassName: nginx, listeners: [{name: a, port: 80, protocol: HTTP}]}\n".into(), "spec.gatewayClassName"),
        ("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: m}\nspec: {action: CUSTOM, provider: {name: ext}, rules: [{}]}\n".into(), "spec.action"),
        ("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: p, namespace: m}\nspec: {jwtRules: [{issuer: a}]}\n".into(), "spec.jwtRules[0]"),
    ] {
        let output = lab.try_apply(&manifest);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{manifest} was accepted");
        assert!(text.contains(&format!(": {field}: ")), "{field} is not named: {text}\n{manifest}");
    }
}
