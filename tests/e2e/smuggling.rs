//! Requests that mean one thing to one parser and another to the next, and paths that servers read differently: none reaches the
//! application in a form that policy did not see. `/admin` is denied; a recorder behind each hop keeps every byte that arrives.

use crate::engine::{SIDECAR, WAYPOINT, gateway, tool_app, waypoint};
use crate::support::*;
use base64::Engine;

pub const TESTS: &[Test] = &[("no_odd_request_reaches_an_application_unseen", vectors)];

/// Technique, bytes, and the statuses of the answers.
type Vector = (String, Vec<u8>, &'static str);

/// A body that looks like a request, and is one for whoever loses count.
const INNER: &str = "GET /secret HTTP/1.1\r\nhost: app\r\n\r\n";

fn framing() -> Vec<Vector> {
    let hidden = "GET /admin HTTP/1.1\r\nhost: app\r\n\r\n";
    let post =
        |fields: &str, body: &str| format!("POST /public HTTP/1.1\r\nhost: app\r\n{fields}\r\n{body}").into_bytes();
    let both = format!("0\r\n\r\n{hidden}");
    let mut out: Vec<(&str, Vec<u8>, &'static str)> = vec![
        ("CL.TE", post("content-length: 6\r\ntransfer-encoding: chunked\r\n", &both), "400"),
        ("TE.CL", post("transfer-encoding: chunked\r\ncontent-length: 4\r\n", &format!("5c\r\n{hidden}\r\n0\r\n\r\n")), "400"),
        ("two lengths, equal", post("content-length: 0\r\ncontent-length: 0\r\n", hidden), "400"),
        ("two lengths, different", post("content-length: 0\r\ncontent-length: 37\r\n", hidden), "400"),
        ("list of lengths", post("content-length: 0, 0\r\n", hidden), "400"),
        ("length with sign", post("content-length: +0\r\n", hidden), "400"),
        ("negative length", post("content-length: -1\r\n", hidden), "400"),
        ("length in hexadecimal", post("content-length: 0x0\r\n", hidden), "400"),
        ("empty length", post("content-length:\r\n", hidden), "400"),
        ("length with a blank inside", post("content-length: 3 7\r\n", hidden), "400"),
        ("length beyond 64 bits", post("content-length: 18446744073709551616\r\n", hidden), "400"),
        ("length with a letter", post("content-length: 0a\r\n", hidden), "400"),
        ("blank before the colon of a length", post("content-length : 37\r\n", hidden), "400"),
        ("tab before the colon", post("content-length\t: 37\r\n", hidden), "400"),
        ("underscore for a dash is no length", post("content_length: 37\r\n", ""), "200"),
        ("TE identity", post("transfer-encoding: identity\r\n", hidden), "400"),
        ("TE gzip, chunked", post("transfer-encoding: gzip, chunked\r\n", &both), "400"),
        ("TE chunked, identity", post("transfer-encoding: chunked, identity\r\n", &both), "400"),
        ("TE twice", post("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", &both), "400"),
        ("TE chunked then identity", post("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", &both), "400"),
        ("TE xchunked", post("transfer-encoding: xchunked\r\n", &both), "400"),
        ("TE with a quote", post("transfer-encoding: \"chunked\"\r\n", &both), "400"),
        ("TE with a semicolon", post("transfer-encoding: chunked;q=1\r\n", &both), "400"),
        ("TE with vertical tab", post("transfer-encoding: \x0bchunked\r\n", &both), "400"),
        ("TE with a tab in front", post("transfer-encoding:\tchunked\r\n", "0\r\n\r\n"), "200"),
        ("TE in capitals", post("Transfer-Encoding: CHUNKED\r\n", "0\r\n\r\n"), "200"),
        ("blank before the colon of TE", post("transfer-encoding : chunked\r\n", &both), "400"),
        ("folded TE", post("transfer-encoding:\r\n chunked\r\n", &both), "400"),
        ("folded field", post("x-a: b\r\n content-length: 37\r\n", hidden), "400"),
        ("field that begins with a blank", post(" transfer-encoding: chunked\r\n", &both), "400"),
        ("TE in HTTP/1.0", b"POST /public HTTP/1.0\r\nhost: app\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n".to_vec(), "400"),
        ("bare line feed after a field", b"GET /public HTTP/1.1\r\nhost: app\r\nx-a: b\ncontent-length: 37\r\n\r\nGET /admin HTTP/1.1\r\nhost: app\r\n\r\n".to_vec(), "400"),
        ("bare line feeds throughout", b"GET /admin HTTP/1.1\nhost: app\n\n".to_vec(), "400"),
        ("bare carriage return in a field", b"GET /public HTTP/1.1\r\nhost: app\r\nx-a: b\rtransfer-encoding: chunked\r\n\r\n".to_vec(), "400"),
        ("line feed, then carriage return", b"GET /public HTTP/1.1\r\nhost: app\n\r\n\r\n".to_vec(), "400"),
        ("NUL in a field", b"GET /public HTTP/1.1\r\nhost: app\r\nx-a: a\0b\r\n\r\n".to_vec(), "400"),
        ("NUL in a name", b"GET /public HTTP/1.1\r\nhost: app\r\nx\0a: b\r\n\r\n".to_vec(), "400"),
        ("field without a colon", b"GET /public HTTP/1.1\r\nhost: app\r\nx-a\r\n\r\n".to_vec(), "400"),
        ("field without a name", b"GET /public HTTP/1.1\r\nhost: app\r\n: b\r\n\r\n".to_vec(), "400"),
        ("non-ASCII in a name", b"GET /public HTTP/1.1\r\nhost: app\r\ncontent-length\xa0: 37\r\n\r\n".to_vec(), "400"),
        ("chunk size beyond 64 bits", post("transfer-encoding: chunked\r\n", "fffffffffffffffff\r\nabc"), "400"),
        ("chunk size with a sign", post("transfer-encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n"), "400"),
        ("chunk size with 0x", post("transfer-encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"), "400"),
        ("chunk size with a blank", post("transfer-encoding: chunked\r\n", "3 \r\nabc\r\n0\r\n\r\n"), "400"),
        ("chunk size ended by a line feed", post("transfer-encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"), "400"),
        ("line feed in a chunk extension", post("transfer-encoding: chunked\r\n", "3;a\nxx\r\nabc\r\n0\r\n\r\n"), "400"),
        ("carriage return in a chunk extension", post("transfer-encoding: chunked\r\n", "3;a\rx\r\nabc\r\n0\r\n\r\n"), "400"),
        ("long chunk extension", post("transfer-encoding: chunked\r\n", &format!("3;{}\r\nabc\r\n0\r\n\r\n", "e".repeat(5000))), "400"),
        ("no end after a chunk", post("transfer-encoding: chunked\r\n", "3\r\nabcXX0\r\n\r\n"), "400"),
        ("chunk longer than its size", post("transfer-encoding: chunked\r\n", "2\r\nabc\r\n0\r\n\r\n"), "400"),
        ("length as a trailer", post("transfer-encoding: chunked\r\n", "0\r\ncontent-length: 37\r\n\r\n"), "400"),
        ("TE as a trailer", post("transfer-encoding: chunked\r\n", "0\r\ntransfer-encoding: chunked\r\n\r\n"), "400"),
        ("host as a trailer", post("transfer-encoding: chunked\r\n", "0\r\nhost: admin\r\n\r\n"), "400"),
        ("GET with a body that is a request", format!("GET /public HTTP/1.1\r\nhost: app\r\ncontent-length: {}\r\n\r\n{INNER}", INNER.len()).into_bytes(), "200"),
    ];
    out.push((
        "pipelined, the second denied",
        b"GET /public HTTP/1.1\r\nhost: app\r\n\r\nGET /admin HTTP/1.1\r\nhost: app\r\n\r\n".to_vec(),
        "200 403",
    ));
    out.push((
        "pipelined, the second malformed",
        b"GET /public HTTP/1.1\r\nhost: app\r\n\r\nGET /admin\r\n\r\n".to_vec(),
        "200 400",
    ));
    out.into_iter().map(|(name, bytes, status)| (name.to_owned(), bytes, status)).collect()
}

fn lines() -> Vec<Vector> {
    let mut out: Vec<Vector> = Vec::new();
    let mut line = |name: &str, line: &str, status| {
        out.push((name.to_owned(), format!("{line}\r\nhost: app\r\n\r\n").into_bytes(), status));
    };
    line("HTTP/0.9", "GET /admin", "400");
    line("HTTP/2.0 in a request line", "GET /admin HTTP/2.0", "400");
    line("HTTP/1.2", "GET /admin HTTP/1.2", "400");
    line("http/1.1 in small letters", "GET /admin http/1.1", "400");
    line("two blanks", "GET  /admin HTTP/1.1", "400");
    line("tab for a blank", "GET\t/admin HTTP/1.1", "400");
    line("blank at the end", "GET /admin HTTP/1.1 ", "400");
    line("blank in front", " GET /admin HTTP/1.1", "400");
    line("blank in the path", "GET /public /admin HTTP/1.1", "400");
    line("small letters", "get /admin HTTP/1.1", "400");
    line("CONNECT", "CONNECT app:8080 HTTP/1.1", "405");
    line("fragment", "GET /public#/../admin HTTP/1.1", "400");
    line("no slash", "GET admin HTTP/1.1", "400");
    line("asterisk with GET", "GET * HTTP/1.1", "400");
    line("absolute form of another host", "GET http://other/admin HTTP/1.1", "400");
    line("absolute form of the same host", "GET http://app/admin HTTP/1.1", "403");
    line("absolute form with a user", "GET http://user@app/admin HTTP/1.1", "400");
    line("other scheme", "GET ftp://app/admin HTTP/1.1", "400");
    line("non-ASCII in the path", "GET /\u{e4}dmin/admin HTTP/1.1", "400");
    let mut host = |name: &str, fields: &str, status| {
        out.push((name.to_owned(), format!("GET /public HTTP/1.1\r\n{fields}\r\n").into_bytes(), status));
    };
    host("no host", "", "400");
    host("two hosts", "host: app\r\nhost: app\r\n", "400");
    host("host with a path", "host: app/admin\r\n", "400");
    host("host with a user", "host: user@app\r\n", "400");
    host("host that is a list", "host: app, admin\r\n", "400");
    host("empty host", "host:\r\n", "400");
    out
}

fn paths() -> Vec<Vector> {
    let mut out: Vec<Vector> = Vec::new();
    let mut path = |path: &str, status| {
        let bytes = format!("GET {path} HTTP/1.1\r\nhost: app\r\n\r\n").into_bytes();
        out.push((format!("path {path}"), bytes, status));
    };
    for denied in [
        "/admin",
        "/admin/",
        "/admin/x?q=1",
        "/public/../admin",
        "/public/%2e%2e/admin",
        "/public/%2E%2e/admin",
        "/public/.%2e/admin",
        "/public%2f..%2fadmin",
        "/public%2F%2e%2e%2Fadmin",
        "/public/..;/admin",
        "/public/..;x=y/admin",
        "/public;/../admin",
        "//admin",
        "///admin",
        "/./admin",
        "/%2e/admin",
        "/public/..%2fadmin",
        "/public\\..\\admin",
        "/public%5c..%5cadmin",
        "/\\admin",
        "/%61dmin",
        "/a%64min",
        "/%61%64%6d%69%6e",
        "/admin%2f",
        "/admin;v=1",
        "/public/x/../../admin",
        "/../admin",
        "/public//../admin",
    ] {
        path(denied, "403");
    }
    for malformed in ["/admin%00", "/public%", "/public%2", "/public%zz", "/admin%0", "/%u0061dmin"] {
        path(malformed, "400");
    }
    // Escaped twice, a server that decodes once sees no `admin`; one that decodes twice is broken in every mesh alike.
    path("/public%252f..%252fx", "200");
    path("/public/a%2Fb", "200");
    out
}

fn policy(name: &str, namespace: &str, target: &str) -> String {
    format!(
        "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  {target}
  action: DENY
  rules: [{{to: [{{operation: {{paths: ['/admin*']}}}}]}}]
"
    )
}

fn vectors(user: User) {
    let all: Vec<Vector> = [framing(), lines(), paths()].concat();
    assert!(all.len() >= 60, "{}", all.len());
    let app = |ns| {
        tool_app(ns, "app", "recorder, '8080'", 8080)
            .replace("ports: [{port: 8080}]", "ports: [{name: http, port: 8080}]")
    };
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
        policy("gateway", "l4", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]"),
        policy("waypoint", "l7", "targetRefs: [{group: '', kind: Service, name: app}]"),
        policy("sidecar", "sc", "selector: {matchLabels: {app: app}}"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let engine = base64::engine::general_purpose::STANDARD;
    let list: Vec<String> = all.iter().map(|(_, bytes, _)| engine.encode(bytes)).collect();
    let list = list.join(",");
    let mut wrong = Vec::new();
    for (from, address) in [("outside", "edge-istio.l4:80"), ("l7", "app:8080"), ("sc", "app:8080")] {
        lab.until_call((from, "client"), &format!("http://{address}/admin"), 403);
        lab.until_call((from, "client"), &format!("http://{address}/public"), 200);
        lab.exec(
            from,
            "client",
            &[tool(), "tool", "raw", address, &engine.encode("GET /recorded HTTP/1.1\r\nhost: app\r\n\r\n")],
        );
        let (_, text) = lab.exec(from, "client", &[tool(), "tool", "raws", address, &list]);
        let answers: Vec<&str> = text.lines().collect();
        assert_eq!(answers.len(), all.len(), "{text}");
        for ((name, _, wanted), answer) in all.iter().zip(answers) {
            if answer != *wanted {
                wrong.push(format!("{address}, {name}: {answer}, not {wanted}"));
            }
        }
        let (_, seen) = lab.exec(
            from,
            "client",
            &[tool(), "tool", "raw", address, &engine.encode("GET /recorded HTTP/1.1\r\nhost: app\r\n\r\n")],
        );
        assert!(seen.contains("GET /public"), "{address}: the recorder has heard nothing: {seen}");
        for line in seen.lines().filter(|l| l.contains("admin")) {
            wrong.push(format!("{address}: this reached the application: {line}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
