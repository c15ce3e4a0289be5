use super::*;

fn container(pod: &str, container: &str, text: &str) -> ContainerLog {
    ContainerLog { pod: pod.to_owned(), container: container.to_owned(), text: text.to_owned(), cut: false }
}

fn failure(id: &str, code: i32, port: u16, error: Option<&str>) -> Failure {
    let local = Some(SocketAddr::from(([10, 244, 1, 9], port)));
    Failure { id: id.to_owned(), at_s: 1.0, took_ms: 2.0, code, local, error: error.map(str::to_owned) }
}

/// What a run with four failures wrote: two servers, one of which is gone, a waypoint, two node proxies.
fn recorded() -> (Vec<Failure>, Logs) {
    let waypoint = [
        r#"{"level":"info","message":"draining"}"#,
        r#"{"reporter":"waypoint","request_id":"r-2","reason":"connection_lost","detail":"10.244.2.5:8080: reset by peer","response_code":503}"#,
        r#"{"reporter":"waypoint","request_id":"r-1","reason":"-","detail":"","response_code":200}"#,
    ];
    let near = concat!(
        "2026-12-07T11:00:00Z WARN access: connection failed src.addr=10.244.1.9:4003 src.workload=\"client\" ",
        "dst.addr=10.244.2.5:8080 direction=\"outbound\" bytes_sent=0 duration=\"3ms\" ",
        "error=\"connect to 10.244.2.5:8080: Connection refused (os error 111)\"\n",
        "2026-12-07T11:00:00Z INFO access: connection complete src.addr=10.244.1.9:4004 direction=\"outbound\"\n",
        "2026-12-07T11:00:00Z INFO access: connection complete src.addr=10.244.1.9:4007 direction=\"inbound\"\n",
    );
    let logs = Logs {
        containers: vec![
            container(
                "rolling-a-1",
                "echo",
                "received r-1\nanswered r-1 200\nreceived r-4\nfailed r-4: 10.96.0.9:9090: no answer\n",
            ),
            container("rolling-b-2", "echo", "HTTP server listening\nreceived r-5\nreceived r-6\nreceived r-6\n"),
            container("canary-v1-0", "echo", "received r-3\n"),
            container("waypoint-0", "istio-proxy", &waypoint.join("\n")),
        ],
        nodes: vec![("proxy-node-1".to_owned(), near.to_owned()), ("proxy-node-2".to_owned(), String::new())],
        missing: false,
    };
    let failures = vec![
        failure("r-2", 503, 4002, None),
        failure("r-3", -1, 4003, Some("connection closed before message completed")),
        failure("r-4", -1, 4004, Some("no answer within 3s")),
        failure("r-7", -1, 4007, Some("connect to 10.96.0.20:8080: Connection refused")),
    ];
    (failures, logs)
}

#[test]
fn each_failure_is_looked_for_at_the_servers_and_at_the_proxies() {
    let (failures, logs) = recorded();
    let seen = join(&failures, &logs, ("rolling-", "echo"));
    let deliveries: Vec<_> = seen.fates.iter().map(|f| f.delivery).collect();
    assert_eq!(deliveries, [Delivery::Never, Delivery::Never, Delivery::Delivered, Delivery::Never]);
    let why: Vec<String> =
        seen.fates.iter().flat_map(|f| &f.reasons).map(|s| format!("{}: {}", s.by, s.reason)).collect();
    assert_eq!(
        why,
        [
            "waypoint: connection_lost: ADDRESS: reset by peer",
            "client's node proxy: connect to ADDRESS: Connection refused (os error 111)",
            "server: ADDRESS: no answer",
            "client's node proxy: connection complete",
        ]
    );
    assert_eq!((seen.received, seen.doubled.as_slice()), (4, ["r-6".to_owned()].as_slice()));
}

#[test]
fn nothing_is_proven_by_logs_that_are_not_complete() {
    let (failures, logs) = recorded();
    let cut = |edit: fn(&mut Logs)| {
        let mut logs = logs.clone();
        edit(&mut logs);
        join(&failures, &logs, ("rolling-", "echo")).fates.iter().map(|f| f.delivery).collect::<Vec<_>>()
    };
    let unsure = [Delivery::Unknown, Delivery::Unknown, Delivery::Delivered, Delivery::Unknown];
    assert_eq!(cut(|logs| logs.missing = true), unsure);
    assert_eq!(cut(|logs| logs.containers[1].cut = true), unsure);
    // What another Deployment or a proxy has lost says nothing of these servers.
    assert_eq!(cut(|logs| logs.containers[2].cut = true)[0], Delivery::Never);
}

#[test]
fn failures_that_look_alike_are_counted_together() {
    let (failures, logs) = recorded();
    let mut fates = join(&failures, &logs, ("rolling-", "echo")).fates;
    fates.push(Fate {
        id: "r-8".to_owned(),
        error: Some("connect to ADDRESS: Connection refused".to_owned()),
        ..fates[3].clone()
    });
    let kinds = kinds(&fates);
    assert_eq!(kinds.len(), 4);
    let (first, count) = &kinds[0];
    assert_eq!((first.why.as_str(), *count), ("client: connect to ADDRESS: Connection refused", 2));
}

#[test]
fn fields_are_read_as_they_are_written() {
    let line = "x.src.addr=1 src.addr=10.0.0.1:5 error=\"a b=c\" direction=outbound";
    assert_eq!(field(line, "src.addr"), Some("10.0.0.1:5"));
    assert_eq!((field(line, "error"), field(line, "direction")), (Some("a b=c"), Some("outbound")));
    assert_eq!((field(line, "addr"), field(line, "none")), (None, None));
}
