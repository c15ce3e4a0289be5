use super::*;
use std::sync::Mutex;

const TYPE: &str = "type.googleapis.com/test";

#[derive(Default)]
struct Fake(Mutex<BTreeMap<String, Arc<Published>>>);

impl Fake {
    fn put(&self, name: &str, version: &str, aliases: &[&str]) {
        let aliases = aliases.iter().map(|a| (*a).to_owned()).collect();
        let published = Published { version: version.into(), body: Default::default(), aliases };
        self.0.lock().unwrap().insert(name.into(), Arc::new(published));
    }

    fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
}

impl Catalog for Fake {
    fn get(&self, _: &str, name: &str) -> Option<Arc<Published>> {
        self.0.lock().unwrap().get(name).cloned()
    }
    fn names(&self, _: &str) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
    fn resolve(&self, _: &str, name: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|(n, r)| *n == name || r.aliases.iter().any(|a| a == name)).map(|(n, _)| n.clone()).collect()
    }
    fn knows(&self, type_url: &str) -> bool {
        type_url == TYPE
    }
}

fn request(subscribe: &[&str], unsubscribe: &[&str], has: &[(&str, &str)]) -> DeltaDiscoveryRequest {
    let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    DeltaDiscoveryRequest {
        type_url: TYPE.into(),
        resource_names_subscribe: list(subscribe),
        resource_names_unsubscribe: list(unsubscribe),
        initial_resource_versions: has.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        ..Default::default()
    }
}

/// Names sent and names removed.
fn said(outcome: Outcome) -> Option<(Vec<String>, Vec<String>)> {
    match outcome {
        Outcome::Respond(response) => Some(names(response)),
        _ => None,
    }
}

fn names(response: DeltaDiscoveryResponse) -> (Vec<String>, Vec<String>) {
    (response.resources.into_iter().map(|r| r.name).collect(), response.removed_resources)
}

fn some(sent: &[&str], removed: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    Some((list(sent), list(removed)))
}

#[test]
fn a_wildcard_gets_everything_then_changes_alone() {
    let catalog = Fake::default();
    catalog.put("a", "1", &[]);
    let mut session = Session::default();
    assert_eq!(said(session.request(request(&[], &[], &[]), &catalog)), some(&["a"], &[]));
    assert_eq!(said(session.request(request(&[], &[], &[]), &catalog)), None, "an acknowledgement is not answered");
    catalog.put("b", "1", &[]);
    catalog.remove("a");
    let changed = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(session.published(TYPE, Some(&changed), &catalog).map(names), some(&["b"], &["a"]));
    assert!(session.published(TYPE, Some(&changed), &catalog).is_none());
}

#[test]
fn a_reconnecting_client_is_told_the_difference() {
    let catalog = Fake::default();
    catalog.put("same", "1", &[]);
    catalog.put("newer", "2", &[]);
    let mut session = Session::default();
    let has = [("same", "1"), ("newer", "1"), ("gone", "1")];
    assert_eq!(said(session.request(request(&[], &[], &has), &catalog)), some(&["newer"], &["gone"]));
    let mut empty = Session::default();
    assert_eq!(said(empty.request(request(&[], &[], &[("same", "1"), ("newer", "2")]), &catalog)), some(&[], &[]));
}

#[test]
fn on_demand_names_are_answered_even_if_there_is_nothing() {
    let catalog = Fake::default();
    catalog.put("ns/svc", "1", &["/10.96.0.1"]);
    catalog.put("pod", "1", &["/10.0.0.1", "ns/svc"]);
    let mut session = Session::default();
    assert_eq!(said(session.request(request(&["*"], &["*"], &[]), &catalog)), some(&[], &[]));
    assert_eq!(said(session.request(request(&["/10.9.9.9"], &[], &[]), &catalog)), some(&[], &["/10.9.9.9"]));
    assert_eq!(said(session.request(request(&["ns/svc"], &[], &[]), &catalog)), some(&["ns/svc", "pod"], &[]));
    catalog.put("late", "1", &["/10.9.9.9"]);
    catalog.put("other", "1", &[]);
    let changed = BTreeSet::from(["late".to_owned(), "other".to_owned()]);
    assert_eq!(session.published(TYPE, Some(&changed), &catalog).map(names), some(&["late"], &[]));
    catalog.remove("pod");
    let changed = BTreeSet::from(["pod".to_owned()]);
    assert_eq!(session.published(TYPE, Some(&changed), &catalog).map(names), some(&[], &["pod"]));
}

#[test]
fn a_named_subscription_beside_a_wildcard_is_sent_again() {
    let catalog = Fake::default();
    catalog.put("pod", "1", &[]);
    let mut session = Session::default();
    session.request(request(&[], &[], &[]), &catalog);
    assert_eq!(said(session.request(request(&["pod"], &[], &[]), &catalog)), some(&["pod"], &[]));
}

#[test]
fn a_refusal_is_told_and_not_answered() {
    let catalog = Fake::default();
    let mut session = Session::default();
    session.request(request(&[], &[], &[]), &catalog);
    let detail = trysail_wire::discovery::Status { message: "bad".into(), ..Default::default() };
    let nack =
        DeltaDiscoveryRequest { response_nonce: "1".into(), error_detail: Some(detail), ..request(&[], &[], &[]) };
    assert!(matches!(session.request(nack, &catalog), Outcome::Refused(message) if message == "bad"));
}
