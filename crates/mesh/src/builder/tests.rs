use super::*;
use crate::model::{Health, OwnerKind, Protocol, ServicePort};
use proptest::prelude::*;
use std::collections::BTreeMap;
use trysail_api::ids::SpiffeId;

/// A workload with as much as tests need to vary.
pub(crate) fn workload(name: &str, ip: &str, service: Option<&str>) -> Workload {
    Workload {
        uid: WorkloadUid::pod("c", "ns", name),
        name: name.into(),
        namespace: "ns".into(),
        identity: SpiffeId::new("cluster.local", "ns", "default"),
        addresses: vec![ip.parse().unwrap()],
        network: String::new(),
        protocol: Protocol::Hbone,
        native_tunnel: false,
        node: "n1".into(),
        cluster: "c".into(),
        canonical_name: "echo".into(),
        canonical_revision: "latest".into(),
        owner_kind: OwnerKind::Deployment,
        owner: "echo".into(),
        health: Health::Healthy,
        host_network: false,
        policies: vec![],
        services: service.map(|s| (ServiceKey::new("ns", s), BTreeMap::from([(80, 8080)]))).into_iter().collect(),
        locality: Default::default(),
        capacity: 1,
        waypoint: None,
        labels: BTreeMap::from([("app".into(), "echo".into())]),
        named_ports: vec![],
    }
}

/// A service with one port 80.
pub(crate) fn service(host: &str, vip: &str) -> Service {
    Service {
        key: ServiceKey::new("ns", host),
        name: host.into(),
        namespace: "ns".into(),
        hostname: host.into(),
        addresses: vec![(String::new(), vip.parse().unwrap())],
        ports: vec![ServicePort { port: 80, target: 8080, protocol: Default::default() }],
        subject_alt_names: vec![],
        balancing: Default::default(),
        waypoint: None,
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..4u8, 0..3u8, proptest::option::of(0..2u8)).prop_map(|(name, ip, to)| {
            let to = to.map(|s| format!("s{s}"));
            Change::Workload(Arc::new(workload(&format!("w{name}"), &format!("10.0.0.{ip}"), to.as_deref())))
        }),
        (0..2u8, 0..2u8).prop_map(|(s, ip)| Change::Service(Arc::new(service(
            &format!("s{s}"),
            &format!("10.96.0.{}", s * 2 + ip)
        )))),
        (0..4u8).prop_map(|w| Change::AddressGone(format!("c//Pod/ns/w{w}"))),
        (0..2u8).prop_map(|s| Change::AddressGone(format!("ns/s{s}"))),
    ]
}

fn view(s: &Snapshot) -> String {
    let ips = (0..3u8).map(|i| {
        let mut at: Vec<_> = s.at_address([10, 0, 0, i].into()).map(|w| w.uid.to_string()).collect();
        at.sort();
        at
    });
    let ends = (0..2u8).map(|i| {
        let mut of: Vec<_> = s.endpoints(&ServiceKey::new("ns", &format!("s{i}"))).map(|w| w.uid.to_string()).collect();
        of.sort();
        of
    });
    let vips = (0..4u8).map(|i| s.service_at([10, 96, 0, i].into()).map(|s| s.hostname.clone()));
    format!("{:?} {:?} {:?}", ips.collect::<Vec<_>>(), ends.collect::<Vec<_>>(), vips.collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn deltas_in_any_batching_end_where_a_build_from_scratch_ends(
        changes in proptest::collection::vec(change(), 0..40),
        batch in 1..8usize,
    ) {
        let mut live = Builder::default();
        let mut last = live.apply([]);
        for part in changes.chunks(batch) {
            last = live.apply(part.iter().cloned());
        }
        let mut scratch = Builder::default();
        let kept: Vec<Change> = last.services().map(|s| Change::Service(s.clone()))
            .chain(last.workloads().map(|w| Change::Workload(w.clone()))).collect();
        prop_assert_eq!(view(&last), view(&scratch.apply(kept)));
    }
}

#[test]
fn host_network_workloads_have_no_address_of_their_own() {
    let mut builder = Builder::default();
    let pod = Workload { host_network: true, ..workload("w", "10.0.0.1", None) };
    let snapshot = builder.apply([Change::Workload(Arc::new(pod))]);
    assert_eq!(snapshot.at_address([10, 0, 0, 1].into()).count(), 0);
}
