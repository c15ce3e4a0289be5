use super::*;
use crate::authz::{Facts, Verdict, evaluate};
use trysail_api::load::load;
use trysail_api::object::Object;

/// Each policy: namespace, name, age order, `app` selector, mode, port and its mode.
type Given<'a> = (&'a str, &'a str, u8, Option<&'a str>, Option<&'a str>, Option<(u16, &'a str)>);

fn parse(given: &[Given<'_>]) -> Vec<PeerAuthentication> {
    given
        .iter()
        .map(|(namespace, name, age, app, mode, port)| {
            let mut text = format!(
                "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  \
                 creationTimestamp: 2026-01-01T00:00:0{age}Z\nspec:\n"
            );
            if let Some(app) = app {
                text += &format!("  selector:\n    matchLabels:\n      app: {app}\n");
            }
            if let Some(mode) = mode {
                text += &format!("  mtls:\n    mode: {mode}\n");
            }
            if let Some((port, mode)) = port {
                text += &format!("  portLevelMtls:\n    {port}:\n      mode: {mode}\n");
            }
            let loaded = load("case", &text);
            assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
            match &loaded.objects[0].object {
                Object::PeerAuthentication(object) => (**object).clone(),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// Whether a plaintext connection to `app` in namespace m on `port` is admitted.
fn plain(given: &[Given<'_>], app: &str, port: u16) -> bool {
    let objects = parse(given);
    let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
    let effective = effective(&objects.iter().collect::<Vec<_>>(), "m", &labels);
    let facts = Facts {
        source: None,
        via: None,
        source_ip: "10.0.0.1".parse().unwrap(),
        destination_ip: "10.0.0.2".parse().unwrap(),
        destination_port: port,
    };
    evaluate(as_policy(&effective, "m").iter(), &facts) == Verdict::Allow
}

const MESH_STRICT: Given<'_> = (ROOT_NAMESPACE, "default", 0, None, Some("STRICT"), None);

#[test]
fn levels_and_ports() {
    let m = |mode| ("m", "default", 0, None, Some(mode), None);
    let web = |mode, port| ("m", "web", 1, Some("web"), mode, port);
    let cases: &[(&str, &[Given<'_>], &str, u16, bool)] = &[
        ("PA1", &[], "web", 8080, true),
        ("PA2", &[MESH_STRICT], "web", 8080, false),
        ("PA3", &[MESH_STRICT, m("PERMISSIVE")], "web", 8080, true),
        ("PA4a", &[m("STRICT"), web(Some("PERMISSIVE"), None)], "web", 8080, true),
        ("PA4b", &[m("STRICT"), web(Some("PERMISSIVE"), None)], "api", 8080, false),
        ("PA5a", &[MESH_STRICT, m("UNSET")], "web", 8080, false),
        ("PA5b", &[MESH_STRICT, ("m", "default", 0, None, None, None)], "web", 8080, false),
        ("PA6a", &[m("STRICT"), web(None, Some((9090, "PERMISSIVE")))], "web", 9090, true),
        ("PA6b", &[m("STRICT"), web(None, Some((9090, "PERMISSIVE")))], "web", 8080, false),
        ("PA7a", &[m("PERMISSIVE"), web(Some("UNSET"), Some((9090, "STRICT")))], "web", 9090, false),
        ("PA7b", &[m("PERMISSIVE"), web(Some("UNSET"), Some((8080, "UNSET")))], "web", 8080, true),
        ("PA8", &[web(Some("STRICT"), Some((80, "PERMISSIVE")))], "web", 8080, false),
        ("PA9", &[("m", "default", 0, None, Some("STRICT"), Some((8080, "PERMISSIVE")))], "web", 8080, false),
        ("PA12c", &[MESH_STRICT, web(Some("DISABLE"), None)], "web", 8080, true),
        ("PA13", &[(ROOT_NAMESPACE, "x", 0, Some("web"), Some("STRICT"), None)], "web", 8080, true),
    ];
    for (name, given, app, port, admitted) in cases {
        assert_eq!(plain(given, app, *port), *admitted, "{name}");
    }
}

#[test]
fn the_oldest_of_a_level_counts_whole() {
    let old = ("m", "old", 1, Some("web"), Some("STRICT"), None);
    let new = ("m", "new", 2, Some("web"), Some("PERMISSIVE"), Some((9090, "PERMISSIVE")));
    assert!(!plain(&[new, old], "web", 8080), "PA10a");
    assert!(!plain(&[new, old], "web", 9090), "PA10b");
    let a = ("m", "a", 1, None, Some("PERMISSIVE"), None);
    let b = ("m", "b", 1, None, Some("STRICT"), None);
    assert!(plain(&[MESH_STRICT, b, a], "web", 8080), "PA11");
}
