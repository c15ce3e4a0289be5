//! What is to be done next for the Packages of a cluster. Level-triggered: it looks at what is there, whoever put it there, so that a
//! restart forgets nothing and a change by hand is repaired. What is new is put before what is old is removed, and while pods of the
//! other mode are left, what either mode needs stays.

use super::refusals;
use crate::status;
use crate::translate::objects::Objects;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use trysail_api::k8s_openapi::api::apps::v1::Deployment;
use trysail_api::k8s_openapi::api::core::v1::{Namespace, Pod};
use trysail_api::k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use trysail_api::labels::{
    DATAPLANE_MODE, GATEWAY_MANAGED, ISTIO_INJECTION, RESTARTED_AT, SIDECAR_STATUS, wants_sidecar,
};
use trysail_api::object::{Kind, Object, ObjectKey, annotation, label};
use trysail_api::package::{Mode, ORIGINAL_STATE, PACKAGE, Package, Phase, Status};
use trysail_policy::package::{World, expand, shared};

/// Before a Package's name: the namespace annotation that says that it is in effect there.
const IN_EFFECT: &str = "uds.dev/pkg-";
/// Kinds that are made.
const MADE: [Kind; 3] = [Kind::NetworkPolicy, Kind::AuthorizationPolicy, Kind::VirtualService];

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Objects that are new or different.
    pub put: Vec<Object>,
    /// Objects that are no longer wanted.
    pub remove: Vec<ObjectKey>,
}

impl Plan {
    /// Whether everything is as it should be.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.remove.is_empty()
    }
}

/// What is to be done next. `now` is the time that is written down.
pub fn plan(objects: &Objects, world: &World, now: &Time) -> Plan {
    let mut packages: Vec<&Package> = objects
        .of(Kind::Package)
        .filter_map(|o| match o {
            Object::Package(p) => Some(&**p),
            _ => None,
        })
        .collect();
    packages.sort_by_key(|p| {
        (p.metadata.creation_timestamp.clone(), p.metadata.namespace.clone(), p.metadata.name.clone())
    });
    let mut operator = Operator { objects, world, now, plan: Plan::default() };
    for package in &packages {
        operator.package(package, &packages);
    }
    operator.gone(&packages);
    operator.plan
}

struct Operator<'a> {
    objects: &'a Objects,
    world: &'a World,
    now: &'a Time,
    plan: Plan,
}

/// How far a Package is, and why.
type Said = (Phase, &'static str, String);

fn namespace_of(package: &Package) -> &str {
    package.metadata.namespace.as_deref().unwrap_or("default")
}

fn name_of(package: &Package) -> &str {
    package.metadata.name.as_deref().unwrap_or_default()
}

impl Operator<'_> {
    fn package(&mut self, package: &Package, all: &[&Package]) {
        let others: Vec<&Package> = all.iter().copied().filter(|p| !std::ptr::eq(*p, package)).collect();
        // Of two in one namespace the older is in effect.
        let elders: Vec<&Package> = all.iter().copied().take_while(|p| !std::ptr::eq(*p, package)).collect();
        if let Some((field, message)) = refusals(package, &elders).into_iter().next() {
            return self.say(package, (Phase::Failed, "Denied", format!("{field}: {message}")), None);
        }
        let conflicts = shared(&[&others[..], &[package]].concat(), self.world).conflicts;
        let own =
            |c: &&trysail_policy::package::Conflict| c.name == name_of(package) && c.namespace == namespace_of(package);
        if let Some(conflict) = conflicts.iter().find(own) {
            let said = format!("{}: {}", conflict.field, conflict.message);
            return self.say(package, (Phase::Retrying, "EgressConflict", said), None);
        }
        let expansion = expand(package, self.world);
        let (wanted, mut unread) = understood(&expansion.objects);
        let hosts = package.spec.network.allow.iter().filter_map(|rule| rule.remote_host.as_ref());
        unread.extend(hosts.map(|host| format!("the way out to {host}")));
        let left = self.left(package);
        let before = self.plan.put.len();
        for object in &wanted {
            self.apply(object, !left.is_empty());
        }
        self.namespace(package);
        let applied = self.plan.put.len() == before;
        self.restart(namespace_of(package), package.spec.network.service_mesh.mode == Mode::Sidecar);
        let mut old = Vec::new();
        if applied && left.is_empty() {
            old = self.surplus(package, &wanted);
            self.plan.remove.extend(old.iter().cloned());
        }
        let said = if !applied || !old.is_empty() {
            (Phase::Pending, "Reconciling", "objects are being written".to_owned())
        } else if !left.is_empty() {
            let names = left.into_iter().collect::<Vec<_>>().join(", ");
            (Phase::Pending, "Reconciling", format!("pods of the other mode are left: {names}"))
        } else if !expansion.waiting.is_empty() {
            let fields = expansion.waiting.join(", ");
            (Phase::Pending, "PeersUnknown", format!("the addresses of these peers are not known: {fields}"))
        } else if unread.is_empty() {
            (Phase::Ready, "Accepted", String::new())
        } else {
            (Phase::Ready, "Accepted", format!("without what is not supported here: {}", unread.join(", ")))
        };
        self.say(package, said, Some(&expansion));
    }

    /// Puts an object unless it is there as it should be.
    fn apply(&mut self, wanted: &Object, changing: bool) {
        let stored = self.objects.get(&wanted.key());
        let mut wanted = wanted.clone();
        if let (true, Object::NetworkPolicy(new), Some(Object::NetworkPolicy(old))) = (changing, &mut wanted, stored) {
            widen(new, old);
        }
        let said = |o: &Object| {
            let json = o.to_json();
            (
                o.meta().labels.clone(),
                o.meta().annotations.clone(),
                o.meta().owner_references.clone(),
                json["spec"].clone(),
            )
        };
        if stored.is_some_and(|stored| said(stored) == said(&wanted)) {
            return;
        }
        self.plan.put.push(wanted);
    }

    /// Objects of the Package that it no longer stands for. Rules that wait for their peers keep what they had.
    fn surplus(&self, package: &Package, wanted: &[Object]) -> Vec<ObjectKey> {
        let block = || vec!["192.0.2.0/32".to_owned()];
        let known = World { kube_api: Some(block()), nodes: block(), ..self.world.clone() };
        let (all, _) = understood(&expand(package, &known).objects);
        let kept: BTreeSet<ObjectKey> = wanted.iter().chain(&all).map(Object::key).collect();
        self.made_for(namespace_of(package), name_of(package)).filter(|key| !kept.contains(key)).collect()
    }

    fn made_for(&self, namespace: &str, name: &str) -> impl Iterator<Item = ObjectKey> {
        let made = MADE.iter().flat_map(|kind| self.objects.of(*kind));
        made.filter(move |o| o.namespace() == namespace && label(o.meta(), PACKAGE) == Some(name)).map(Object::key)
    }

    fn pods(&self, namespace: &str) -> impl Iterator<Item = &Pod> {
        let all = self.objects.of(Kind::Pod).filter_map(|o| match o {
            Object::Pod(pod) => Some(&**pod),
            _ => None,
        });
        // What has no node yet is made as the namespace says when it gets one.
        let placed = |p: &&Pod| p.spec.as_ref().is_some_and(|s| s.node_name.is_some());
        let own = move |p: &&Pod| p.metadata.namespace.as_deref().unwrap_or("default") == namespace;
        all.filter(placed).filter(own).filter(|p| label(&p.metadata, GATEWAY_MANAGED).is_none())
    }

    /// Pods that do not run as the Package's mode has them.
    fn left(&self, package: &Package) -> BTreeSet<String> {
        let sidecars = package.spec.network.service_mesh.mode == Mode::Sidecar;
        let pods = self.pods(namespace_of(package)).filter(|p| wrong(p, sidecars));
        pods.filter_map(|p| p.metadata.name.clone()).collect()
    }

    /// Deployments whose pods run as the other mode has them are rolled out anew, once.
    fn restart(&mut self, namespace: &str, sidecars: bool) {
        let stamp =
            |annotations: Option<&BTreeMap<String, String>>| annotations.and_then(|a| a.get(RESTARTED_AT)).cloned();
        let mut again: Vec<Deployment> = Vec::new();
        for object in self.objects.of(Kind::Deployment).filter(|o| o.namespace() == namespace) {
            let Object::Deployment(deployment) = object else { continue };
            let uid = deployment.metadata.uid.as_deref();
            let template = deployment.spec.as_ref().and_then(|s| s.template.metadata.as_ref());
            let current = stamp(template.and_then(|m| m.annotations.as_ref()));
            let stale = self.pods(namespace).any(|pod| {
                let owners = pod.metadata.owner_references.iter().flatten();
                wrong(pod, sidecars)
                    && pod.metadata.deletion_timestamp.is_none()
                    && stamp(pod.metadata.annotations.as_ref()) == current
                    && owners.into_iter().any(|o| Some(o.uid.as_str()) == uid)
            });
            if stale {
                again.push((**deployment).clone());
            }
        }
        for mut deployment in again {
            let spec = deployment.spec.get_or_insert_default();
            let annotations = spec.template.metadata.get_or_insert_default().annotations.get_or_insert_default();
            annotations.insert(RESTARTED_AT.to_owned(), self.now.0.to_string());
            deployment.metadata.generation = Some(deployment.metadata.generation.unwrap_or(1) + 1);
            self.plan.put.push(Object::Deployment(Box::new(deployment)));
        }
    }

    fn stored_namespace(&self, name: &str) -> Option<Namespace> {
        match self.objects.get(&ObjectKey::new(Kind::Namespace, "", name)) {
            Some(Object::Namespace(namespace)) => Some((**namespace).clone()),
            _ => None,
        }
    }

    /// The namespace is meshed as the Package says, and remembers how it was.
    fn namespace(&mut self, package: &Package) {
        let Some(before) = self.stored_namespace(namespace_of(package)) else { return };
        let mut after = before.clone();
        let original = state(&before);
        let annotations = after.metadata.annotations.get_or_insert_default();
        annotations.entry(ORIGINAL_STATE.to_owned()).or_insert_with(|| original.to_owned());
        annotations.insert(format!("{IN_EFFECT}{}", name_of(package)), "true".to_owned());
        set_state(&mut after, package.spec.network.service_mesh.mode.as_str());
        if after != before {
            self.plan.put.push(Object::Namespace(Box::new(after)));
        }
    }

    /// What Packages that are gone have left behind.
    fn gone(&mut self, packages: &[&Package]) {
        let there: BTreeSet<(&str, &str)> = packages.iter().map(|p| (namespace_of(p), name_of(p))).collect();
        let namespaces: Vec<&Object> = self.objects.of(Kind::Namespace).collect();
        for object in namespaces {
            let Object::Namespace(before) = object else { continue };
            let name = object.name();
            let marks = before.metadata.annotations.iter().flat_map(|a| a.keys());
            let gone = |mark: &&String| mark.strip_prefix(IN_EFFECT).is_some_and(|p| !there.contains(&(name, p)));
            let marks: Vec<String> = marks.filter(gone).cloned().collect();
            if marks.is_empty() {
                continue;
            }
            let mut after = (**before).clone();
            let annotations = after.metadata.annotations.get_or_insert_default();
            marks.iter().for_each(|mark| _ = annotations.remove(mark));
            if !there.iter().any(|(namespace, _)| *namespace == name) {
                let original = annotations.remove(ORIGINAL_STATE).unwrap_or_else(|| "none".to_owned());
                set_state(&mut after, &original);
                self.plan.put.push(Object::Namespace(Box::new(after)));
                self.restart(name, original == "sidecar");
            } else {
                self.plan.put.push(Object::Namespace(Box::new(after)));
            }
        }
        let made = MADE.iter().flat_map(|kind| self.objects.of(*kind));
        // What was expanded elsewhere and applied by hand has no owner: it is the user's.
        let owned = |o: &Object| o.meta().owner_references.iter().flatten().any(|r| r.kind == Kind::Package.as_str());
        let orphan =
            |o: &&Object| owned(o) && label(o.meta(), PACKAGE).is_some_and(|p| !there.contains(&(o.namespace(), p)));
        self.plan.remove.extend(made.filter(orphan).map(Object::key));
    }

    fn say(
        &mut self,
        package: &Package,
        (phase, reason, message): Said,
        made: Option<&trysail_policy::package::Expansion>,
    ) {
        let before = package.status.clone().unwrap_or_default();
        let generation = package.metadata.generation;
        let mut after = Status { phase, observed_generation: generation, ..before };
        if let Some(made) = made {
            after.mesh_mode = Some(package.spec.network.service_mesh.mode);
            after.endpoints.clone_from(&made.endpoints);
            after.network_policy_count = made.count("NetworkPolicy");
            after.authorization_policy_count = made.count("AuthorizationPolicy");
        }
        status::set(&mut after.conditions, "Ready", (phase == Phase::Ready, reason, message), generation, self.now);
        if package.status.as_ref() != Some(&after) {
            self.plan.put.push(Object::Package(Box::new(Package { status: Some(after), ..package.clone() })));
        }
    }
}

/// The objects of kinds that are understood, and the names of the others.
fn understood(made: &[Value]) -> (Vec<Object>, Vec<String>) {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for value in made {
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        let kind = MADE.into_iter().find(|k| k.as_str() == text("kind") && k.versions().contains(&text("apiVersion")));
        match kind.map(|kind| Object::from_json(kind, value.clone())) {
            Some(Ok((object, _))) => known.push(object),
            _ => unknown.push(format!("{} {}", text("kind"), value["metadata"]["name"].as_str().unwrap_or_default())),
        }
    }
    (known, unknown)
}

/// Whether a pod has a sidecar and should have none, or the other way round.
fn wrong(pod: &Pod, sidecars: bool) -> bool {
    let injection = sidecars.then_some("enabled");
    let wants = wants_sidecar(|key| injection.filter(|_| key == ISTIO_INJECTION), |key| label(&pod.metadata, key));
    wants != annotation(&pod.metadata, SIDECAR_STATUS).is_some()
}

/// Adds the peers that a policy has to those that it is to have: while the mode changes, both ways are open.
fn widen(new: &mut NetworkPolicy, old: &NetworkPolicy) {
    fn add(new: Option<&mut Vec<NetworkPolicyPeer>>, old: Option<&Vec<NetworkPolicyPeer>>) {
        let (Some(new), Some(old)) = (new, old) else { return };
        let more: Vec<_> = old.iter().filter(|peer| !new.contains(peer)).cloned().collect();
        new.extend(more);
    }
    let (Some(new), Some(old)) = (&mut new.spec, &old.spec) else { return };
    for (new, old) in new.ingress.iter_mut().flatten().zip(old.ingress.iter().flatten()) {
        add(new.from.as_mut(), old.from.as_ref());
    }
    for (new, old) in new.egress.iter_mut().flatten().zip(old.egress.iter().flatten()) {
        add(new.to.as_mut(), old.to.as_ref());
    }
}

/// How a namespace is meshed.
fn state(namespace: &Namespace) -> &'static str {
    if label(&namespace.metadata, ISTIO_INJECTION) == Some("enabled") {
        "sidecar"
    } else if label(&namespace.metadata, DATAPLANE_MODE) == Some("ambient") {
        "ambient"
    } else {
        "none"
    }
}

fn set_state(namespace: &mut Namespace, state: &str) {
    let labels = namespace.metadata.labels.get_or_insert_default();
    labels.remove(ISTIO_INJECTION);
    labels.remove(DATAPLANE_MODE);
    match state {
        "sidecar" => _ = labels.insert(ISTIO_INJECTION.to_owned(), "enabled".to_owned()),
        "ambient" => _ = labels.insert(DATAPLANE_MODE.to_owned(), "ambient".to_owned()),
        _ => {}
    }
}
