//! What is wrong with an input is said with file, line, field and cure, before anything starts.

use crate::support::*;

pub const TESTS: &[Test] = &[("wrong_manifests_are_refused_with_a_clear_message", manifests)];

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
