use super::*;
use crate::builder::tests::{service as a_service, workload as a_workload};
use proptest::prelude::*;
use prost::Message;

#[test]
fn records_survive_the_wire() {
    let mut w = a_workload("w", "10.0.0.1", Some("s"));
    w.locality = ["r".into(), "z".into(), String::new()];
    w.policies = vec!["ns/p".into()];
    w.health = Health::Unhealthy;
    let bytes = wds::Address { r#type: Some(wds::address::Type::Workload(workload_to_wire(&w))) }.encode_to_vec();
    assert!(matches!(address(&bytes).unwrap(), Change::Workload(read) if *read == w));
    let mut s = a_service("s", "10.96.0.1");
    s.balancing = LoadBalancing { preference: vec![Scope::Zone, Scope::Node], ..LoadBalancing::default() };
    let bytes = wds::Address { r#type: Some(wds::address::Type::Service(service_to_wire(&s))) }.encode_to_vec();
    assert!(matches!(address(&bytes).unwrap(), Change::Service(read) if *read == s));
    let p = trysail_policy::peer_auth::static_strict();
    assert!(matches!(authorization(&policy_to_wire(&p).encode_to_vec()).unwrap(), Change::Policy(read) if *read == p));
}

#[test]
fn field_numbers_are_the_contract() {
    let w = wds::Workload { uid: "u".into(), tunnel_protocol: 1, status: 1, node: "n".into(), ..Default::default() };
    assert_eq!(w.encode_to_vec(), [40, 1, 74, 1, b'n', 136, 1, 1, 162, 1, 1, b'u']);
    let m = sec::Match { destination_ports: vec![80], ..Default::default() };
    let policy = sec::Authorization {
        rules: vec![sec::Rule { clauses: vec![sec::Clause { matches: vec![m] }] }],
        action: 1,
        ..Default::default()
    };
    assert_eq!(policy.encode_to_vec(), [32, 1, 42, 7, 10, 5, 18, 3, 74, 1, 80]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let w = |edit: fn(&mut wds::Workload)| {
        let mut w = wds::Workload { uid: "u".into(), ..Default::default() };
        edit(&mut w);
        let bytes = wds::Address { r#type: Some(wds::address::Type::Workload(w)) }.encode_to_vec();
        address(&bytes).unwrap_err().to_string()
    };
    assert_eq!(w(|w| w.uid.clear()), "field uid is missing");
    assert_eq!(w(|w| w.addresses.push(vec![1, 2, 3])), "an address of 3 bytes (4 or 16 are possible)");
    assert_eq!(w(|w| w.tunnel_protocol = 2), "2 is not a known value of tunnel_protocol");
}

proptest! {
    #[test]
    fn no_bytes_crash_a_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (address(&bytes), authorization(&bytes));
    }
}
