use super::*;
use crate::builder::tests::{service, workload};
use crate::builder::{Builder, Change};

fn snapshot(pods: Vec<Workload>) -> Snapshot {
    Builder::default().apply(pods.into_iter().map(|w| Change::Workload(Arc::new(w))))
}

#[test]
fn unhealthy_and_tried_endpoints_are_passed_over() {
    let sick = Workload { health: Health::Unhealthy, ..workload("sick", "10.0.0.1", Some("s")) };
    let well = workload("well", "10.0.0.2", Some("s"));
    let tried = [well.uid.clone()];
    let (state, s) = (snapshot(vec![sick, well]), service("s", "10.96.0.1"));
    for step in 0..10 {
        let found = pick(&state, (&s, 80), None, &[], f64::from(step) / 10.0).unwrap();
        assert_eq!((found.workload.name.as_str(), found.port), ("well", 8080));
    }
    assert_eq!(pick(&state, (&s, 80), None, &tried, 0.0).unwrap_err(), NoEndpoint::Unhealthy);
    assert_eq!(pick(&state, (&s, 81), None, &[], 0.0).unwrap_err(), NoEndpoint::NoSuchPort);
    assert_eq!(pick(&snapshot(vec![]), (&s, 80), None, &[], 0.0).unwrap_err(), NoEndpoint::None);
}

#[test]
fn preference_narrows_and_strict_excludes() {
    let here = workload("here", "10.0.0.1", Some("s"));
    let there = Workload { node: "n2".into(), ..workload("there", "10.0.0.2", Some("s")) };
    let state = snapshot(vec![here.clone(), there.clone()]);
    let mut s = service("s", "10.96.0.1");
    s.balancing.preference = vec![Scope::Node];
    assert_eq!(pick(&state, (&s, 80), Some(&here), &[], 0.9).unwrap().workload.name, "here");
    let failover = pick(&state, (&s, 80), Some(&here), std::slice::from_ref(&here.uid), 0.0).unwrap();
    assert_eq!(failover.workload.name, "there");
    s.balancing.strict = true;
    assert!(pick(&state, (&s, 80), Some(&here), std::slice::from_ref(&here.uid), 0.0).is_err());
}

#[test]
fn capacity_is_a_weight() {
    let heavy = Workload { capacity: 3, ..workload("heavy", "10.0.0.1", Some("s")) };
    let state = snapshot(vec![heavy, workload("light", "10.0.0.2", Some("s"))]);
    let s = service("s", "10.96.0.1");
    let picks =
        (0..100).filter(|i| pick(&state, (&s, 80), None, &[], f64::from(*i) / 100.0).unwrap().workload.name == "heavy");
    assert_eq!(picks.count(), 75);
}
