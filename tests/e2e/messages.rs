//! What is wrong with an input is said with file, line, field and cure, before anything starts.

use crate::support::*;
use std::process::Stdio;

pub const TESTS: &[Test] = &[
    ("wrong_manifests_are_refused_with_a_clear_message", manifests),
    ("packages_are_expanded_to_objects_that_the_lab_takes", packages),
];

/// Runs a verb of the binary with `manifest` as its input.
fn given(user: User, manifest: &str, args: &[&str]) -> std::process::Output {
    let mut command = trysail(user);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifest.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(user: User, manifest: &str, flags: &[&str]) -> String {
    let output = given(user, manifest, &[&["lab", "up", "--name", "never", "-f", "-"], flags].concat());
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn manifests(user: User) {
    let good = echo("m", "web", 1);
    let mut all = Vec::new();
    for (manifest, flags) in [
        ("kind: [\n".to_owned(), vec![]),
        (good.replace("image: fortio/fortio", "image: acme/shop:1.2"), vec![]),
        (good.clone(), vec!["--image", "fortio/fortio=no-such-program"]),
        (good.clone(), vec!["--image", "nonsense"]),
        (good.replace("replicas: 1", "replicas: one"), vec![]),
        (good.replace("terminationGracePeriodSeconds: 2", "hostNetwork: true"), vec![]),
        (good.replace("app: web}}\n  template", "app: other}}\n  template"), vec![]),
        ("apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: x}\n".to_owned(), vec![]),
    ] {
        all.push(said(user, &manifest, &flags));
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("messages", all.join("\n")));
}

fn packages(user: User) {
    let package = "apiVersion: uds.dev/v1alpha1
kind: Package
metadata: {name: shop, namespace: shop}
spec:
  network:
    allow:
      - {direction: Ingress, selector: {app: web}, remoteNamespace: pay, remoteServiceAccount: default, port: 8080}
";
    let denied = given(user, &package.replace("remoteNamespace: pay, ", ""), &["package", "expand", "-f", "-"]);
    let words = String::from_utf8_lossy(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1));
    assert!(
        words.starts_with("error: stdin:7: Package shop/shop: spec.network.allow[0]: ") && words.contains("(E1)"),
        "{words}"
    );

    let expanded = given(user, package, &["package", "expand", "-f", "-"]);
    assert!(expanded.status.success(), "{}", String::from_utf8_lossy(&expanded.stderr));
    // What is printed is in effect once it is applied: as it says, with traffic, in ambient mode.
    let objects = String::from_utf8(expanded.stdout).unwrap();
    let callers = |name: &str| namespace(name, AMBIENT) + &client(name, "default");
    let manifests = [callers("pay"), callers("spy"), namespace("shop", AMBIENT), echo("shop", "web", 1)].concat();
    let lab = up(user, &manifests);
    lab.apply(&objects);
    lab.until_call(("pay", "client"), "http://web.shop/", 200);
    assert_eq!(lab.call("spy", "client", "http://web.shop/"), -1);
    // Another port of the same pod, by the same caller and the same tunnel.
    let address = lab.pod("shop", "web", "status.podIP");
    assert_eq!(lab.call("pay", "client", &format!("http://{address}:9090/")), -1);
}
