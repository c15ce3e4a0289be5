use super::*;
use crate::translate::objects::Objects;
use std::collections::BTreeMap;
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use trysail_api::object::{Kind, ObjectKey};
use trysail_api::package::Phase;

fn packages(text: &str) -> Vec<Package> {
    let loaded = trysail_api::load::load("case", text);
    assert_eq!(loaded.diagnostics, vec![]);
    let package = |l: trysail_api::load::Loaded| match l.object {
        trysail_api::Object::Package(package) => Some(*package),
        _ => None,
    };
    loaded.objects.into_iter().filter_map(package).collect()
}

#[test]
fn a_package_that_is_denied_takes_nothing_of_the_others_away() {
    let of = |name: &str, network: &str| {
        format!(
            "---\napiVersion: uds.dev/v1alpha1\nkind: Package\nmetadata: {{name: {name}, namespace: {name}}}\nspec: {{network: {network}, sso: []}}\n"
        )
    };
    let host = "{allow: [{direction: Egress, remoteHost: x.com, port: 443}]}";
    let good = packages(&of("a", host));
    let (alone, said) = objects(&good, &World::default());
    assert_eq!(said.iter().map(|f| (f.error, f.field.as_str())).collect::<Vec<_>>(), [(false, "spec.sso")]);
    let bad = "{allow: [{direction: Egress, remoteHost: x.com, remoteProtocol: TCP}]}";
    let (both, said) = objects(&packages(&(of("a", host) + &of("b", bad))), &World::default());
    assert_eq!(both, alone);
    assert!(said.iter().any(|f| f.index == 1 && f.error && f.message.contains("E6")), "{said:?}");
    let other = host.replace("443", "443, remoteProtocol: HTTP");
    let (_, said) = objects(&packages(&(of("a", host) + &of("b", &other))), &World::default());
    assert!(said.iter().any(|f| f.index == 1 && f.error && f.message.contains("Package a/a")), "{said:?}");
}

#[test]
fn found_f44_a_login_that_cannot_be_put_in_front_is_refused_by_name() {
    let with = |sso: &str| {
        let head = "apiVersion: uds.dev/v1alpha1\nkind: Package\nmetadata: {name: a, namespace: a}\nspec: ";
        packages(&format!("{head}{{network: {{}}, sso: {sso}}}\n"))
    };
    let guarded = with("[{clientId: x}, {clientId: y, enableAuthserviceSelector: {app: web}}]");
    let (made, said) = objects(&guarded, &World::default());
    assert_eq!((made.len(), said.len()), (0, 1), "{said:?}");
    assert!(said[0].error && said[0].field == "spec.sso[1].enableAuthserviceSelector", "{said:?}");
    assert_eq!(refusals(&with("[{clientId: x, enableAuthserviceSelector: {}}]")[0], &[]).len(), 1);
    assert_eq!(refusals(&with("[{clientId: x}]")[0], &[]), []);
}

/// A cluster as the operator sees it.
#[derive(Default)]
struct Cluster(Objects, i64);

impl Cluster {
    fn with(text: &str) -> Self {
        let mut cluster = Self::default();
        cluster.apply(text);
        cluster
    }

    fn apply(&mut self, text: &str) {
        let loaded = trysail_api::load::load("case", text);
        assert_eq!(loaded.diagnostics, vec![]);
        for mut object in loaded.objects.into_iter().map(|l| l.object) {
            if let trysail_api::Object::Package(new) = &mut object
                && let Some(trysail_api::Object::Package(old)) = self.0.get(&new_key(new))
            {
                new.status.clone_from(&old.status);
                new.metadata.generation = old.metadata.generation.map(|g| g + 1);
            }
            self.0.set(object.key(), Some(object));
        }
    }

    /// One step of the operator; whether it had something to do. What must never be seen is looked for after every single change.
    fn step(&mut self) -> bool {
        self.1 += 1;
        let now = Time(trysail_api::k8s_openapi::jiff::Timestamp::from_second(self.1).unwrap());
        let plan = plan(&self.0, &World::default(), &now);
        let done = plan.is_empty();
        for object in plan.put {
            self.0.set(object.key(), Some(object));
            self.sound();
        }
        for key in plan.remove {
            self.0.remove(&key);
        }
        !done
    }

    fn settle(&mut self) {
        for _ in 0..10 {
            if !self.step() {
                return;
            }
        }
        panic!("the operator does not come to rest");
    }

    /// No rule has an empty list of peers, and where something is made for a Package, what denies is there.
    fn sound(&self) {
        for object in self.0.of(Kind::NetworkPolicy) {
            let json = object.to_json();
            let lists = [json["spec"]["ingress"][0]["from"].clone(), json["spec"]["egress"][0]["to"].clone()];
            assert!(lists.iter().all(|l| l.as_array().is_none_or(|l| !l.is_empty())), "{json}");
        }
    }

    fn names(&self, kind: Kind) -> Vec<String> {
        self.0.of(kind).map(|o| o.name().to_owned()).collect()
    }

    fn labels(&self) -> Vec<(String, String)> {
        let namespace = self.0.namespace("shop").unwrap();
        namespace.metadata.labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    fn status(&self) -> (Phase, String) {
        let Some(trysail_api::Object::Package(package)) = self.0.get(&ObjectKey::new(Kind::Package, "shop", "shop"))
        else {
            panic!("no Package")
        };
        let status = package.status.clone().unwrap();
        (status.phase, status.conditions[0].reason.clone())
    }
}

fn new_key(package: &Package) -> ObjectKey {
    ObjectKey::new(
        Kind::Package,
        package.metadata.namespace.as_deref().unwrap(),
        package.metadata.name.as_deref().unwrap(),
    )
}

fn shop(network: &str) -> String {
    format!(
        "---\napiVersion: uds.dev/v1alpha1\nkind: Package\nmetadata: {{name: shop, namespace: shop, uid: U, generation: 1}}\nspec: {{network: {network}}}\n"
    )
}

/// A pod of Deployment `web`, with a sidecar or without, from a template that was restarted at `stamp`.
fn pod(name: &str, sidecar: bool, stamp: Option<&str>) -> String {
    let status = if sidecar { "sidecar.istio.io/status: x, " } else { "" };
    let stamp = stamp.map(|s| format!("kubectl.kubernetes.io/restartedAt: '{s}'")).unwrap_or_default();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, annotations: {{{status}{stamp}}}, ownerReferences: [{{apiVersion: apps/v1, kind: Deployment, name: web, uid: D}}]}}\nspec: {{nodeName: n, containers: []}}\n"
    )
}

const NAMESPACE: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
const DEPLOYMENT: &str = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop, uid: D}\nspec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: []}}}\n";
const RULE: &str = "allow: [{direction: Ingress, selector: {app: web}, remoteNamespace: pay, port: 8080}]";

#[test]
fn a_package_comes_into_effect_is_repaired_and_leaves_no_orphan() {
    let mut cluster = Cluster::with(&(NAMESPACE.to_owned() + &shop(&format!("{{{RULE}}}"))));
    cluster.settle();
    assert_eq!(cluster.names(Kind::NetworkPolicy).len(), 4);
    assert_eq!(cluster.names(Kind::AuthorizationPolicy), ["protect-shop-ingress-web-pay-all-pods"]);
    assert_eq!(cluster.labels(), [("istio.io/dataplane-mode".to_owned(), "ambient".to_owned())]);
    assert_eq!(cluster.status(), (Phase::Ready, "Accepted".to_owned()));
    // Taken away, or changed, by hand.
    let whole = cluster.names(Kind::NetworkPolicy);
    cluster.0.remove(&ObjectKey::new(Kind::NetworkPolicy, "shop", "deny-shop-default"));
    cluster.settle();
    assert_eq!(cluster.names(Kind::NetworkPolicy), whole);
    // An edit: what is new is there before what is old goes.
    cluster.apply(&shop("{allow: [{direction: Ingress, selector: {app: api}, remoteNamespace: pay, port: 1}]}"));
    cluster.step();
    assert_eq!(cluster.names(Kind::NetworkPolicy).len(), 5);
    cluster.settle();
    assert_eq!(cluster.names(Kind::NetworkPolicy).len(), 4);
    assert_eq!(cluster.names(Kind::AuthorizationPolicy), ["protect-shop-ingress-api-pay-all-pods"]);
    // A denied edit changes nothing but what is said.
    cluster.apply(&shop("{allow: [{direction: Ingress, port: 1}]}"));
    cluster.settle();
    assert_eq!(cluster.status(), (Phase::Failed, "Denied".to_owned()));
    assert_eq!(cluster.names(Kind::NetworkPolicy).len(), 4);
    cluster.0.remove(&ObjectKey::new(Kind::Package, "shop", "shop"));
    cluster.settle();
    assert_eq!((cluster.names(Kind::NetworkPolicy).len(), cluster.names(Kind::AuthorizationPolicy).len()), (0, 0));
    assert_eq!(cluster.labels(), []);
    assert_eq!(cluster.0.namespace("shop").unwrap().metadata.annotations, Some(BTreeMap::new()));
}

#[test]
fn what_was_expanded_elsewhere_and_applied_by_hand_stays() {
    let text = shop(&format!("{{{RULE}}}")).replace("uid: U, ", "");
    let made = objects(&packages(&text), &World::default()).0;
    let mut cluster = Cluster::with(NAMESPACE);
    made.iter().for_each(|object| cluster.apply(&object.to_string()));
    let before = cluster.names(Kind::NetworkPolicy);
    cluster.settle();
    assert_eq!((before.len(), &before), (4, &cluster.names(Kind::NetworkPolicy)));
}

#[test]
fn pk15_both_modes_needs_stay_until_the_last_pod_of_the_old_one_is_gone() {
    let network = |mode: &str| format!("{{serviceMesh: {{mode: {mode}}}, {RULE}}}");
    let mut cluster =
        Cluster::with(&(NAMESPACE.to_owned() + &shop(&network("sidecar")) + DEPLOYMENT + &pod("old", true, None)));
    cluster.settle();
    assert_eq!(cluster.status().0, Phase::Ready);
    let in_sidecars = cluster.names(Kind::NetworkPolicy);
    cluster.apply(&shop(&network("ambient")));
    cluster.settle();
    assert_eq!(cluster.labels(), [("istio.io/dataplane-mode".to_owned(), "ambient".to_owned())]);
    assert_eq!(cluster.status(), (Phase::Pending, "Reconciling".to_owned()));
    let union = cluster.names(Kind::NetworkPolicy);
    assert!(
        in_sidecars.iter().all(|n| union.contains(n)) && union.iter().any(|n| n.contains("healthprobes")),
        "{union:?}"
    );
    assert_eq!(cluster.names(Kind::AuthorizationPolicy).len(), 2);
    // Rolled out anew, once; the old pod ends when the new one is there.
    let stamp = |cluster: &Cluster| {
        let Some(trysail_api::Object::Deployment(d)) = cluster.0.get(&ObjectKey::new(Kind::Deployment, "shop", "web"))
        else {
            panic!("no Deployment")
        };
        let meta = d.spec.as_ref().unwrap().template.metadata.clone().unwrap();
        meta.annotations.unwrap()["kubectl.kubernetes.io/restartedAt"].clone()
    };
    let asked = stamp(&cluster);
    cluster.apply(&pod("new", false, Some(&asked)));
    cluster.settle();
    assert_eq!(stamp(&cluster), asked);
    assert_eq!(cluster.names(Kind::NetworkPolicy), union);
    cluster.0.remove(&ObjectKey::new(Kind::Pod, "shop", "old"));
    cluster.settle();
    assert_eq!(cluster.status(), (Phase::Ready, "Accepted".to_owned()));
    let mut fresh = Cluster::with(&(NAMESPACE.to_owned() + &shop(&network("ambient"))));
    fresh.settle();
    assert_eq!(cluster.names(Kind::NetworkPolicy), fresh.names(Kind::NetworkPolicy));
    assert_eq!(cluster.names(Kind::AuthorizationPolicy), fresh.names(Kind::AuthorizationPolicy));
}

#[test]
fn peers_that_are_not_known_any_more_take_nothing_away() {
    let rule = "{allow: [{direction: Ingress, selector: {app: web}, remoteGenerated: KubeNodes, port: 9443}]}";
    let mut cluster = Cluster::with(&(NAMESPACE.to_owned() + &shop(rule)));
    let known = World { nodes: vec!["10.2.0.1/32".to_owned()], ..World::default() };
    let now = Time(trysail_api::k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    for object in plan(&cluster.0, &known, &now).put {
        cluster.0.set(object.key(), Some(object));
    }
    let before = cluster.names(Kind::NetworkPolicy);
    assert!(before.contains(&"allow-shop-ingress-web-kubenodes-tcp".to_owned()));
    cluster.settle();
    assert_eq!(cluster.names(Kind::NetworkPolicy), before);
    assert_eq!(cluster.status(), (Phase::Pending, "PeersUnknown".to_owned()));
}
