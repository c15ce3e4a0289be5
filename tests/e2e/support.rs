//! A lab for a test: its own name, gone when the test is.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Who runs the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Root,
    Nobody,
    Own,
}

/// A test: its name, and what it does as a user.
pub type Test = (&'static str, fn(User));

/// Ids of `nobody`.
const NOBODY: u32 = 65534;
/// How long anything may take that should take a moment.
pub const SOON: Duration = Duration::from_secs(20);

/// Copies of the binary and of this executable that every user can run.
fn executables() -> &'static (PathBuf, PathBuf) {
    static COPIES: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    COPIES.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("trysail-e2e-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = |from: &Path, name: &str| {
            let to = dir.join(name);
            std::fs::copy(from, &to).unwrap();
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
            to
        };
        let own = std::env::current_exe().unwrap();
        (copy(Path::new(env!("CARGO_BIN_EXE_trysail")), "trysail"), copy(&own, "tool"))
    })
}

/// The binary, as `user`.
pub fn trysail(user: User) -> Command {
    let mut command = Command::new(&executables().0);
    command.env("RUST_BACKTRACE", "0").current_dir("/");
    if user == User::Nobody {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// This executable, as pods see it.
pub fn tool() -> &'static str {
    executables().1.to_str().unwrap()
}

/// A running lab.
pub struct Lab {
    user: User,
    pub name: String,
    child: Child,
}

/// A lab with `manifests`, all ready.
pub fn up(user: User, manifests: &str) -> Lab {
    up_with(user, manifests, &[])
}

/// The same with further flags.
pub fn up_with(user: User, manifests: &str, flags: &[&str]) -> Lab {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let tool = format!("test/tool={} tool", executables().1.display());
    let mut command = trysail(user);
    command.args(["lab", "up", "--foreground", "--name", &name, "-f", "-", "--image", &tool]).args(flags);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifests.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if !line.contains(" is up: ") {
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("the lab did not come up: {line}{errors}");
    }
    Lab { user, name, child }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in ["control", "agent-node-1", "proxy-node-1", "agent-node-2", "proxy-node-2"] {
                let logs = self.try_lab(&["system", "logs", process]);
                let text = String::from_utf8_lossy(&logs.stdout).into_owned();
                // What went well is not what is looked for.
                let lines: Vec<&str> = text.lines().filter(|l| !l.contains("connection complete")).collect();
                eprintln!(
                    "--- {process}\n{}",
                    lines.get(lines.len().saturating_sub(60)..).unwrap_or_default().join("\n")
                );
            }
        }
        self.try_lab(&["down"]);
        let _ = self.child.wait();
    }
}

impl Lab {
    /// `trysail lab …`, whatever comes of it.
    pub fn try_lab(&self, args: &[&str]) -> Output {
        trysail(self.user).arg("lab").args(["--name", &self.name]).args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// `trysail lab …`, which must succeed; its output.
    pub fn lab(&self, args: &[&str]) -> String {
        let output = self.try_lab(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Applies manifests, whatever comes of it.
    pub fn try_apply(&self, manifests: &str) -> Output {
        let mut command = trysail(self.user);
        command.args(["lab", "--name", &self.name, "apply", "-f", "-"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifests.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) {
        let mut command = trysail(self.user);
        let mut child = command
            .args(["lab", "--name", &self.name, "apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifests.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// One field of the first pod with `app=app`.
    pub fn pod(&self, namespace: &str, app: &str, path: &str) -> String {
        let path = format!("jsonpath={{.items[0].{path}}}");
        self.lab(&["get", "pods", "-n", namespace, "-l", &format!("app={app}"), "-o", &path])
    }

    /// Runs a command in a Deployment's pod; exit code and standard output.
    pub fn exec(&self, namespace: &str, deployment: &str, command: &[&str]) -> (i32, String) {
        let target = format!("deployment/{deployment}");
        let mut args = vec!["exec", "-n", namespace, &target, "--"];
        args.extend(command);
        let output = self.try_lab(&args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    /// Runs a command in a pod; what it prints.
    pub fn exec_pod(&self, namespace: &str, pod: &str, command: &[&str]) -> String {
        let mut args = vec!["exec", "-n", namespace, pod, "--"];
        args.extend(command);
        let output = self.try_lab(&args);
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// One HTTP request from a Deployment's pod: its status, or -1.
    pub fn call(&self, namespace: &str, deployment: &str, url: &str) -> i64 {
        let run = self.load(namespace, deployment, &["-n", "1", "-c", "1", "-qps", "0", url]);
        run.get("RetCodes").unwrap().as_object().unwrap().keys().next().unwrap().parse().unwrap()
    }

    /// A load from a Deployment's pod; its JSON.
    pub fn load(&self, namespace: &str, deployment: &str, flags: &[&str]) -> Value {
        let mut command = vec!["fortio", "load", "-allow-initial-errors", "-json", "-"];
        command.extend(flags);
        let (code, text) = self.exec(namespace, deployment, &command);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Runs `work` while a load runs in a pod; the load's JSON. The load goes on until `work` is done.
    pub fn under_load(&self, (namespace, deployment, url): (&str, &str, &str), work: impl FnOnce()) -> Value {
        let target = format!("deployment/{deployment}");
        let command = [
            "exec",
            "-n",
            namespace,
            &target,
            "--",
            "fortio",
            "load",
            "-allow-initial-errors",
            "-json",
            "-",
            "-qps",
            "100",
            "-c",
            "8",
            "-t",
            "300s",
            url,
        ];
        let child = trysail(self.user)
            .arg("lab")
            .args(["--name", &self.name])
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The load is under way when its pod's process is.
        self.until("the load runs", || {
            let (_, list) =
                self.exec(namespace, deployment, &["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]);
            list.contains("-t 300s").then_some(()).ok_or(list)
        });
        work();
        let (_, stopped) = self.exec(namespace, deployment, &["sh", "-c", "for p in /proc/[0-9]*; do if tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q -e '-t 300s' && readlink $p/exe | grep -q trysail && [ $(readlink $p/ns/net) = $(readlink /proc/self/ns/net) ]; then kill -TERM ${p#/proc/}; fi; done"]);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {stopped}"))
    }

    /// Tries until `attempt` gives something; fails with the nearest miss.
    pub fn until<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            match attempt() {
                Ok(found) => return found,
                Err(last) if Instant::now() >= deadline => panic!("{what}: not within {SOON:?}; last seen: {last}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits until a call gives `wanted`.
    pub fn until_call(&self, from: (&str, &str), url: &str, wanted: i64) {
        self.until(&format!("{url} from {}/{} answers {wanted}", from.0, from.1), || {
            let code = self.call(from.0, from.1, url);
            if code == wanted { Ok(()) } else { Err(code.to_string()) }
        });
    }

    /// Output of a container of the first pod with `app=app`.
    pub fn logs(&self, namespace: &str, app: &str, container: &str) -> String {
        self.lab(&["logs", "-n", namespace, &self.pod(namespace, app, "metadata.name"), "-c", container])
    }

    /// The proxy's metrics of the node that a pod runs on.
    pub fn metrics(&self, namespace: &str, app: &str) -> String {
        self.lab(&["system", "get", &format!("{}:15020/metrics", self.pod(namespace, app, "spec.nodeName"))])
    }

    /// The pid, as this test sees it, of the lab's process.
    pub fn host_pid(&self) -> u32 {
        let mark = format!("\"name\":\"{}\"", self.name);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let stage = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let text = String::from_utf8_lossy(&line).replace('\0', " ");
            text.contains("lab-stage run") && text.contains(&mark)
        };
        pids.into_iter().find(stage).expect("the lab's process")
    }
}

/// Runs a verb of the binary with `manifest` as its input.
pub fn given(user: User, manifest: &str, args: &[&str]) -> Output {
    let mut command = trysail(user);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifest.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The only status of a load's answers, and how many; panics when there were others.
pub fn only(run: &Value, status: &str) -> u64 {
    let codes = run.get("RetCodes").unwrap().as_object().unwrap();
    assert!(
        codes.len() == 1 && codes.contains_key(status),
        "answers: {codes:?}; last error: {:?}",
        run.get("LastError")
    );
    codes[status].as_u64().unwrap()
}

/// A namespace, with labels as `key: value` lines.
pub fn namespace(name: &str, labels: &str) -> String {
    let labels = if labels.is_empty() { String::new() } else { format!("  labels: {{{labels}}}\n") };
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n{labels}")
}

pub const AMBIENT: &str = "istio.io/dataplane-mode: ambient";

/// A Deployment of the echo server on 8080, and on 9090 in a second container, with a Service `NAME`; connections are logged.
pub fn echo(namespace: &str, name: &str, replicas: u32) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: main
        image: fortio/fortio
        args: [server, -http-port, '8080', -log-connections]
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{httpGet: {{path: /fortio/, port: http}}, periodSeconds: 1}}
      - name: second
        image: fortio/fortio
        args: [server, -http-port, '9090', -log-connections]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80, targetPort: http}}, {{name: second, port: 9090}}]
"
    )
}

/// A Deployment of one client, under a service account.
pub fn client(namespace: &str, account: &str) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: client, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: client}}}}
  template:
    metadata: {{labels: {{app: client}}}}
    spec:
      serviceAccountName: {account}
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: test/tool, args: [sleep]}}]
"
    )
}

/// A PeerAuthentication.
pub fn peer_authentication(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}
