//! The lab itself: its verbs, its pods' lives, and that nothing is left of it.

use crate::support::*;

pub const TESTS: &[Test] = &[
    ("the_verbs_work_as_kubectls_do", verbs),
    ("containers_start_live_and_end_as_the_kubelet_has_them", lives),
    ("nothing_is_left_of_a_lab_that_is_killed", killed),
    ("a_pod_that_takes_over_an_address_is_reached_at_once", taken_over),
];

fn verbs(user: User) {
    let lab = up(user, &[namespace("m", ""), echo("m", "web", 2), client("m", "default")].concat());
    assert_eq!(lab.lab(&["get", "pods", "-n", "m", "-l", "app=web", "-o", "name"]).lines().count(), 2);
    assert!(lab.lab(&["get", "deploy", "-n", "m"]).contains("2/2"));
    assert_eq!(lab.lab(&["get", "svc", "web", "-n", "m", "-o", "jsonpath={.spec.ports[*].port}"]), "80 9090");
    let name = lab.pod("m", "web", "metadata.name");
    let yaml = lab.lab(&["get", "pod", &name, "-n", "m", "-o", "yaml"]);
    assert!(yaml.contains("kind: Pod\n") && yaml.contains(&name), "{yaml}");
    assert!(lab.lab(&["describe", "pod", &name, "-n", "m"]).contains("Scheduled"));
    assert_eq!(lab.exec("m", "client", &["sh", "-c", "exit 7"]).0, 7);
    assert_eq!(lab.exec("m", "client", &["no-such-command"]).0, 127);
    assert!(lab.lab(&["logs", "-n", "m", &name, "-c", "main", "--tail", "1000"]).contains("listening"));
    lab.lab(&["label", "pod", &name, "-n", "m", "color=red"]);
    assert!(
        !lab.try_lab(&["label", "pod", &name, "-n", "m", "color=blue"]).status.success(),
        "a label is not replaced unasked"
    );
    assert_eq!(lab.lab(&["get", "pods", "-n", "m", "-l", "color=red", "-o", "name"]).trim(), format!("pod/{name}"));

    // A rollout replaces every pod; status waits for it.
    let before = lab.lab(&["get", "pods", "-n", "m", "-l", "app=web", "-o", "name"]);
    lab.lab(&["rollout", "restart", "-n", "m", "deployment/web"]);
    assert!(
        lab.lab(&["rollout", "status", "-n", "m", "deployment/web", "--timeout", "60s"])
            .contains("successfully rolled out")
    );
    lab.until("the old pods are gone", || {
        let now = lab.lab(&["get", "pods", "-n", "m", "-l", "app=web", "-o", "name"]);
        if now.lines().count() == 2 && now.lines().all(|l| !before.contains(l)) { Ok(()) } else { Err(now) }
    });
    lab.lab(&["delete", "deployment", "web", "-n", "m"]);
    lab.until("its pods are gone", || {
        let left = lab.lab(&["get", "pods", "-n", "m", "-l", "app=web", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    let missing = lab.try_lab(&["get", "pod", "nobody", "-n", "m"]);
    assert_eq!(
        String::from_utf8_lossy(&missing.stderr).trim(),
        "Error from server (NotFound): pods \"nobody\" not found"
    );
}

fn lives(user: User) {
    let manifest = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data: {greeting.txt: good morning, color: green}
---
apiVersion: v1
kind: Pod
metadata: {name: life, labels: {app: life}}
spec:
  terminationGracePeriodSeconds: 20
  volumes: [{name: files, configMap: {name: files}}, {name: shared, emptyDir: {}}]
  initContainers:
  - {name: first, image: busybox, command: [sh, -c, 'echo prepared > /shared/state'], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - name: main
    image: busybox
    command: [sh, -c, 'cat /shared/state; trap "cat /shared/stopped; echo got TERM; while [ ! -e /shared/seen ]; do sleep 0.1; done; exit 0" TERM; while :; do sleep 0.1; done']
    env: [{name: COLOR, valueFrom: {configMapKeyRef: {name: files, key: color}}}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    volumeMounts: [{name: files, mountPath: /etc/app/files}, {name: files, mountPath: /usr/share/app/files}, {name: shared, mountPath: /shared}]
    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo before-stop > /shared/stopped']}}}
  - {name: fragile, image: busybox, command: [sh, -c, 'sleep 0.5; test -e /shared/again && sleep 1000; touch /shared/again; exit 3'], volumeMounts: [{name: shared, mountPath: /shared}]}
  - name: sick
    image: busybox
    command: [sleep, '1000']
    livenessProbe: {exec: {command: [sh, -c, 'test ! -e /shared/sick']}, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: shared, mountPath: /shared}]
"#;
    let lab = up(user, manifest);
    let run = |command: &str| {
        let output = lab.try_lab(&["exec", "life", "-c", "main", "--", "sh", "-c", command]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(run("cat /etc/app/files/greeting.txt"), "good morning");
    assert_eq!(run("cat /usr/share/app/files/color"), "green");
    assert_eq!(run("ls /usr/share/doc >/dev/null && echo still there"), "still there");
    assert_eq!(run("echo $COLOR"), "green");
    assert_eq!(run("echo $IP"), lab.pod("default", "life", "status.podIP"));
    assert!(lab.lab(&["logs", "life", "-c", "main"]).contains("prepared"));
    let restarts = |index: usize| {
        lab.lab(&["get", "pod", "life", "-o", &format!("jsonpath={{.status.containerStatuses[{index}].restartCount}}")])
    };
    lab.until("the failed container is started again", || if restarts(1) == "1" { Ok(()) } else { Err(restarts(1)) });
    assert_eq!(restarts(2), "0");
    run("touch /shared/sick");
    lab.until(
        "the unhealthy container is started again",
        || if restarts(2) != "0" { Ok(()) } else { Err(restarts(2)) },
    );
    assert_eq!(restarts(0), "0");
    // preStop, then SIGTERM; the container ends by itself well before the grace period does.
    run("rm /shared/sick");
    lab.lab(&["delete", "pod", "life"]);
    let mut last = String::new();
    lab.until("the hook ran before the signal", || {
        last = String::from_utf8_lossy(&lab.try_lab(&["logs", "life", "-c", "main"]).stdout).into_owned();
        if last.find("before-stop").zip(last.find("got TERM")).is_some_and(|(hook, signal)| hook < signal) {
            Ok(())
        } else {
            Err(last.clone())
        }
    });
    // It ends when it is told that this was seen, well before the grace period does.
    run("touch /shared/seen");
    lab.until("the pod is gone", || {
        let left = lab.lab(&["get", "pods", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

fn killed(user: User) {
    let lab = up(user, &[namespace("m", AMBIENT), echo("m", "web", 2)].concat());
    let links = || {
        std::fs::read_to_string("/proc/net/dev")
            .unwrap()
            .lines()
            .map(|l| l.split(':').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts().contains("trysail") && !links().iter().any(|l| l.contains("node-")),
        "nothing of the lab shows outside"
    );
    let mark = lab.name.clone();
    let ours = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
        lines.filter(|l| String::from_utf8_lossy(l).contains(&mark)).count()
    };
    let pid = i32::try_from(lab.host_pid()).unwrap();
    let inside = std::fs::read_dir("/proc").unwrap().flatten();
    let namespace = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    let in_lab: Vec<_> = inside
        .filter(|e| std::fs::read_link(e.path().join("ns/pid")).is_ok_and(|n| n == namespace))
        .map(|e| e.path())
        .collect();
    assert!(in_lab.len() > 6, "{in_lab:?}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    lab.until("every process is gone", || {
        let left = in_lab
            .iter()
            .filter(|p| std::fs::read_to_string(p.join("stat")).is_ok_and(|s| !s.contains(") Z ")))
            .count();
        // `lab up --foreground` itself carries the name, and ends too.
        if left == 0 && ours() <= 1 { Ok(()) } else { Err(format!("{left} processes")) }
    });
    assert_eq!(lab.try_lab(&["get", "pods"]).status.code(), Some(1));
}

fn taken_over(user: User) {
    // All on one node, so that an address that was given back is taken by the next pod.
    let web = echo("m", "web", 1).replace("    spec:\n", "    spec:\n      nodeName: node-1\n");
    let lab = up(user, &[namespace("m", ""), web].concat());
    let mut addresses = vec![lab.pod("m", "web", "status.podIP")];
    for _ in 0..4 {
        lab.lab(&["rollout", "restart", "-n", "m", "deployment/web"]);
        // Ready: its node has reached it. What a table remembers of the last pod would last for half a minute.
        lab.lab(&["rollout", "status", "-n", "m", "deployment/web", "--timeout", "15s"]);
        lab.until("it is alone", || {
            let pods = lab.lab(&["get", "pods", "-n", "m", "-l", "app=web"]);
            if pods.lines().count() == 2 { Ok(()) } else { Err(pods) }
        });
        addresses.push(lab.pod("m", "web", "status.podIP"));
    }
    let count = addresses.len();
    addresses.sort();
    addresses.dedup();
    assert!(addresses.len() < count, "an address was used again: {addresses:?}");
}
