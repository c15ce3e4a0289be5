use super::*;
use trysail_api::load::load;
use trysail_mesh::model::{Health, Protocol};

fn objects(text: &str) -> Vec<ObjectChange> {
    let loaded = load("case", text);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    loaded.objects.into_iter().map(|l| (l.object.key(), Some(l.object))).collect()
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: echo-5f-abc
  namespace: shop
  labels: {app: echo, pod-template-hash: 5f}
  annotations: {ambient.istio.io/redirection: enabled}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: echo-5f, uid: u, controller: true}]
spec:
  serviceAccountName: cart
  nodeName: n1
  containers: [{name: echo, ports: [{name: web, containerPort: 8080}]}]
status:
  podIP: 10.0.0.5
  conditions: [{type: Ready, status: 'True'}]
";
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec:
  clusterIP: 10.96.0.7
  selector: {app: echo}
  ports: [{port: 80, targetPort: web}]
";
const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

fn translator() -> Translator {
    Translator::new(MeshConfig { trust_domain: "cluster.local".into(), cluster: "c".into() })
}

#[test]
fn a_pod_becomes_a_workload_with_its_service_whatever_comes_first() {
    for texts in [[POD, SERVICE], [SERVICE, POD]] {
        let mut t = translator();
        let mut last = None;
        for text in texts {
            for change in t.apply(objects(text)).records {
                if let Change::Workload(w) = change {
                    last = Some(w);
                }
            }
        }
        let w = last.unwrap();
        assert_eq!((w.owner.as_str(), w.canonical_name.as_str(), w.node.as_str()), ("echo", "echo", "n1"));
        assert_eq!((w.protocol, w.health), (Protocol::Hbone, Health::Healthy));
        assert_eq!(w.identity.to_string(), "spiffe://cluster.local/ns/shop/sa/cart");
        assert_eq!(w.services.values().next().unwrap().get(&80), Some(&8080));
    }
}

#[test]
fn policies_come_before_the_workloads_that_list_them_and_nothing_is_sent_twice() {
    let mut t = translator();
    t.apply(objects(POD));
    let changes = t.apply(objects(STRICT)).records;
    assert!(
        matches!(&changes[..], [Change::Policy(_), Change::Workload(w)] if w.policies == ["istio-system/istio_converted_static_strict"])
    );
    assert!(t.apply(objects(STRICT)).records.is_empty() && t.apply(objects(POD)).records.is_empty());
    let gone = t.apply(vec![(objects(STRICT)[0].0.clone(), None)]).records;
    assert!(matches!(&gone[..], [Change::Workload(w), Change::PolicyGone(_)] if w.policies.is_empty()));
}

#[test]
fn a_terminating_pod_is_unhealthy_and_an_ended_one_has_no_record() {
    let mut t = translator();
    t.apply(objects(POD));
    let terminating = POD.replace("namespace: shop", "namespace: shop\n  deletionTimestamp: 2026-01-01T00:00:00Z");
    assert!(
        matches!(&t.apply(objects(&terminating)).records[..], [Change::Workload(w)] if w.health == Health::Unhealthy)
    );
    let ended = POD.replace("podIP:", "phase: Succeeded\n  podIP:");
    assert!(
        matches!(&t.apply(objects(&ended)).records[..], [Change::AddressGone(name)] if name == "c//Pod/shop/echo-5f-abc")
    );
}
