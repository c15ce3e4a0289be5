use super::*;
use std::collections::BTreeMap;
use trysail_api::ids::ServiceKey;
use trysail_mesh::model::{Health, OwnerKind, ServicePort, WaypointAt};
use trysail_mesh::{Builder, Change};

fn workload(name: &str, ip: &str, protocol: Protocol) -> Workload {
    Workload {
        uid: WorkloadUid::pod("c", "ns", name),
        name: name.into(),
        namespace: "ns".into(),
        identity: SpiffeId::new("cluster.local", "ns", name),
        addresses: vec![ip.parse().unwrap()],
        network: String::new(),
        protocol,
        native_tunnel: false,
        node: "n1".into(),
        cluster: "c".into(),
        canonical_name: name.into(),
        canonical_revision: "latest".into(),
        owner_kind: OwnerKind::Pod,
        owner: name.into(),
        health: Health::Healthy,
        host_network: false,
        policies: vec![],
        services: BTreeMap::from([(ServiceKey::new("ns", "svc.ns"), BTreeMap::from([(80, 8080)]))]),
        locality: Default::default(),
        capacity: 1,
        labels: Default::default(),
        named_ports: Vec::new(),
        waypoint: None,
    }
}

fn service(bound: bool) -> Service {
    let at = WaypointAt::Service(ServiceKey::new("ns", "hop.ns"));
    let waypoint = bound.then_some(Waypoint { at, port: 15008 });
    Service {
        key: ServiceKey::new("ns", "svc.ns"),
        name: "svc".into(),
        namespace: "ns".into(),
        hostname: "svc.ns".into(),
        addresses: vec![(String::new(), [10, 96, 0, 1].into())],
        ports: vec![ServicePort { port: 80, target: 8080, protocol: Default::default() }],
        subject_alt_names: vec![],
        balancing: Default::default(),
        waypoint,
    }
}

fn snapshot(workloads: Vec<Workload>, service: Service) -> Snapshot {
    let changes = workloads.into_iter().map(|w| Change::Workload(Arc::new(w)));
    Builder::default().apply(changes.chain([Change::Service(Arc::new(service))]))
}

const VIP: ([u8; 4], u16) = ([10, 96, 0, 1], 80);

#[test]
fn a_service_leads_to_an_endpoint_and_a_known_service_without_one_is_an_error() {
    let (me, peer) = (workload("me", "10.0.0.1", Protocol::Hbone), workload("peer", "10.0.0.2", Protocol::Hbone));
    let state = snapshot(vec![peer.clone()], service(false));
    let route = outbound(&state, &me, VIP.into(), &[], 0.0).unwrap();
    assert!(
        matches!(&route, Route::Tunnel { workload, target, .. } if workload.uid == peer.uid && target.port() == 8080)
    );
    assert!(matches!(outbound(&state, &me, VIP.into(), &[peer.uid], 0.0), Err(NoRoute::Endpoint { .. })));
    let empty = snapshot(vec![], service(false));
    assert!(matches!(outbound(&empty, &me, VIP.into(), &[], 0.0), Err(NoRoute::Endpoint { .. })));
}

#[test]
fn addresses_lead_to_their_workload_or_pass_through() {
    let me = workload("me", "10.0.0.1", Protocol::Hbone);
    let plain = workload("plain", "10.0.0.3", Protocol::Plain);
    let state = snapshot(vec![plain], service(false));
    assert!(matches!(
        outbound(&state, &me, ([10, 0, 0, 3], 99).into(), &[], 0.0),
        Ok(Route::Plain { workload: Some(_), .. })
    ));
    assert!(matches!(
        outbound(&state, &me, ([1, 1, 1, 1], 99).into(), &[], 0.0),
        Ok(Route::Plain { workload: None, .. })
    ));
}

#[test]
fn a_demanded_hop_that_is_not_there_stops_traffic() {
    let me = workload("me", "10.0.0.1", Protocol::Hbone);
    let state = snapshot(vec![workload("peer", "10.0.0.2", Protocol::Hbone)], service(true));
    assert!(matches!(outbound(&state, &me, VIP.into(), &[], 0.0), Err(NoRoute::Waypoint(_))));
}

#[test]
fn a_service_with_a_waypoint_is_reached_through_one_that_is_ready() {
    let me = workload("me", "10.0.0.1", Protocol::Hbone);
    let mut hop = workload("hop", "10.0.0.9", Protocol::Plain);
    hop.services = BTreeMap::from([(ServiceKey::new("ns", "hop.ns"), BTreeMap::from([(15008, 15008)]))]);
    let state = snapshot(vec![workload("peer", "10.0.0.2", Protocol::Hbone), hop.clone()], service(true));
    let route = outbound(&state, &me, VIP.into(), &[], 0.0).unwrap();
    let Route::Tunnel { workload, end, target, service: Some(_) } = route else { panic!("{route:?}") };
    assert_eq!((&workload.uid, end, target), (&hop.uid, ([10, 0, 0, 9], 15008).into(), VIP.into()));
    hop.health = Health::Unhealthy;
    let state = snapshot(vec![hop], service(true));
    assert!(matches!(outbound(&state, &me, VIP.into(), &[], 0.0), Err(NoRoute::Waypoint(_))));
}

#[test]
fn a_tunnel_leads_to_the_dialled_pods_own_application_alone() {
    let me = workload("me", "10.0.0.1", Protocol::Hbone);
    let local = [10, 0, 0, 1].into();
    let port = |text: &str| inner_port(&me, &text.parse().unwrap(), local);
    assert_eq!(port("10.0.0.1:8080"), Ok(8080));
    assert_eq!(port("svc.ns:80"), Ok(8080));
    assert!(matches!(port("10.0.0.2:8080"), Err(Refusal::OtherAddress(_))));
    assert!(matches!(port("other.ns:80"), Err(Refusal::UnknownHost(_))));
    for own in crate::OWN_PORTS {
        assert_eq!(port(&format!("10.0.0.1:{own}")), Err(Refusal::Port(own)));
    }
}

#[test]
fn a_peer_is_its_certificate_and_its_address_must_agree() {
    let web = workload("web", "10.0.0.9", Protocol::Hbone);
    let state = snapshot(vec![web.clone()], service(false));
    assert_eq!(peer(&state, &web.identity, [10, 0, 0, 9].into()).unwrap().unwrap().uid, web.uid);
    let other = SpiffeId::new("cluster.local", "ns", "other");
    assert!(matches!(peer(&state, &other, [10, 0, 0, 9].into()), Err(Refusal::OtherPeer { .. })));
    assert!(peer(&state, &other, [10, 0, 0, 8].into()).unwrap().is_none());
}
