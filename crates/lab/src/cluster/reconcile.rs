//! From what was asked for to what runs.

use super::{Cluster, Running};
use crate::controllers::deployment::{self, Member};
use crate::controllers::endpoints;
use crate::kubelet::PodView;
use crate::kubelet::context::Data;
use crate::kubelet::pod::PodTask;
use crate::services::ruleset;
use crate::spawn::Output;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use trysail_api::k8s_openapi::api::apps::v1::Deployment;
use trysail_api::k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Namespace, Pod, Service};
use trysail_api::labels::{self, POD_TEMPLATE_HASH};
use trysail_api::object::{Kind, Object, ObjectKey, label};
use trysail_control::inject;

/// Seconds that a pod may take to end when it does not say.
const GRACE: u64 = 30;

impl Cluster {
    pub(super) async fn reconcile(&mut self) {
        self.roots();
        self.packages().await;
        self.gateways().await;
        self.jobs().await;
        let deployments: Vec<Deployment> = self
            .store
            .list(Kind::Deployment, None)
            .into_iter()
            .filter_map(|o| match o {
                Object::Deployment(d) => Some((**d).clone()),
                _ => None,
            })
            .collect();
        for deployment in deployments {
            self.deployment(deployment).await;
        }
        let waiting: Vec<Pod> = self
            .all_pods()
            .into_iter()
            .filter(|p| !self.pods.contains_key(p.metadata.uid.as_deref().unwrap_or_default()))
            .cloned()
            .collect();
        for pod in waiting {
            self.launch(pod);
        }
        self.publish_services();
        self.publish_gates();
        self.statuses();
        // Labels of namespaces and pods decide on capture, however they came about.
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            self.tell_agent(&uid).await;
        }
    }

    /// Every namespace has the mesh's root certificate, for the proxies in it.
    fn roots(&mut self) {
        let namespaces: Vec<String> =
            self.store.list(Kind::Namespace, None).into_iter().map(|o| o.name().to_owned()).collect();
        for namespace in namespaces {
            let key = ObjectKey::new(Kind::ConfigMap, &namespace, inject::ROOT_CONFIG);
            if self.store.get(&key).is_none() {
                let mut map = ConfigMap::default();
                map.metadata.name = Some(key.name.clone());
                map.metadata.namespace = Some(namespace);
                map.data = Some(BTreeMap::from([("root-cert.pem".to_owned(), self.root.clone())]));
                self.put(Object::ConfigMap(Box::new(map)));
            }
        }
    }

    pub(super) fn all_pods(&self) -> Vec<&Pod> {
        self.store
            .list(Kind::Pod, None)
            .into_iter()
            .filter_map(|o| match o {
                Object::Pod(pod) => Some(&**pod),
                _ => None,
            })
            .collect()
    }

    pub(super) fn members(&self, deployment: &Deployment) -> Vec<Member> {
        let uid = deployment.metadata.uid.as_deref();
        let mine = |p: &&&Pod| p.metadata.owner_references.iter().flatten().any(|o| Some(o.uid.as_str()) == uid);
        let member = |p: &&Pod| Member {
            name: p.metadata.name.clone().unwrap_or_default(),
            hash: label(&p.metadata, POD_TEMPLATE_HASH).unwrap_or_default().to_owned(),
            ready: p
                .status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "True"),
            terminating: p.metadata.deletion_timestamp.is_some(),
        };
        self.all_pods().iter().filter(mine).map(member).collect()
    }

    async fn deployment(&mut self, deployment: Deployment) {
        let Some(spec) = &deployment.spec else { return };
        let hash = deployment::template_hash(&spec.template);
        let (replicas, bounds) = deployment::bounds(&deployment);
        let namespace = deployment.metadata.namespace.clone().unwrap_or_default();
        let members = self.members(&deployment);
        let step = deployment::step(replicas, bounds, &hash, &members);
        for _ in 0..step.create {
            let pod = deployment::pod(&deployment, &hash, &crate::store::suffix());
            self.put(Object::Pod(Box::new(pod)));
        }
        for name in step.delete {
            self.delete_pod(&ObjectKey::new(Kind::Pod, &namespace, &name), None).await;
        }
        let status = deployment::status(replicas, &hash, &self.members(&deployment), deployment.metadata.generation);
        if deployment.status.as_ref() != Some(&status) {
            self.put(Object::Deployment(Box::new(Deployment { status: Some(status), ..deployment })));
        }
    }

    /// Starts a pod that has been asked for, unless something it needs is missing: then it says what and waits.
    fn launch(&mut self, pod: Pod) {
        let key = Object::Pod(Box::new(pod.clone())).key();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let placed = self.placed(&pod);
        let node = match placed {
            Ok(node) => node,
            Err(reason) => return self.pending(&key, reason),
        };
        let Some(gated) = self.links.get(node).map(|link| link.gated.clone()) else { return };
        let Some(place) = self.nodes.get_mut(node) else { return };
        let plan = match place.plan(&uid, &crate::system::scratch()) {
            Ok(plan) => plan,
            Err(error) => return self.pending(&key, error.to_string()),
        };
        let (node_name, node_ns, node_address) = (place.name.clone(), place.ns.clone(), place.address);
        let address = plan.address;
        let mut pod = pod;
        self.complete(&mut pod);
        let spec = pod.spec.get_or_insert_default();
        spec.node_name = Some(node_name);
        spec.service_account_name.get_or_insert_with(|| "default".to_owned());
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let outputs: BTreeMap<String, Output> = containers.map(|c| (c.name.clone(), Output::default())).collect();
        self.put(Object::Pod(Box::new(pod.clone())));
        let ((stop, stopped), (capture, captured)) = (watch::channel(None), watch::channel(None));
        let context = Arc::default();
        let task = PodTask {
            uid: uid.clone(),
            plan,
            node: node_ns,
            node_address,
            dir: crate::system::scratch().join("pods").join(&uid),
            images: self.images.clone(),
            configs: Arc::new(self.data(&key.namespace, Kind::ConfigMap)),
            secrets: Arc::new(self.data(&key.namespace, Kind::Secret)),
            outputs: outputs.clone(),
            signer: self.signer.clone(),
            capture: captured,
            gated,
            stop: stopped,
            events: self.pod_events.clone(),
            context: Arc::clone(&context),
            pod,
        };
        self.note(&key, "Scheduled");
        self.tasks.track(task.run());
        let running =
            Running { key, node, address, view: PodView::default(), outputs, context, stop, capture, told: None };
        self.pods.insert(uid, running);
    }

    fn pending(&mut self, key: &ObjectKey, reason: String) {
        self.note(key, &reason);
        let Some(Object::Pod(pod)) = self.store.get(key).cloned() else { return };
        let mut pod = *pod;
        let status = pod.status.get_or_insert_default();
        if status.reason.as_deref() == Some(&reason) {
            return;
        }
        status.phase = Some("Pending".to_owned());
        status.reason = Some(reason);
        self.put(Object::Pod(Box::new(pod)));
    }

    /// The node for a pod, or what is in the way.
    fn placed(&self, pod: &Pod) -> Result<usize, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(spec) = &pod.spec else { return Err("the pod has no spec".to_owned()) };
        for volume in spec.volumes.iter().flatten() {
            let (kind, name, optional) = match (&volume.config_map, &volume.secret) {
                (Some(c), _) => (Kind::ConfigMap, c.name.clone(), c.optional),
                (_, Some(s)) => (Kind::Secret, s.secret_name.clone().unwrap_or_default(), s.optional),
                _ => continue,
            };
            if optional != Some(true) && self.store.get(&ObjectKey::new(kind, namespace, &name)).is_none() {
                return Err(format!("FailedMount: {} {name:?} not found", kind.as_str()));
            }
        }
        let fits = |index: &usize| {
            self.nodes.get(*index).is_some_and(|node| selected(node.name.as_str(), spec.node_selector.as_ref()))
        };
        let wanted = spec.node_name.as_deref();
        let candidates =
            (0..self.nodes.len()).filter(|i| wanted.is_none_or(|w| self.nodes.get(*i).is_some_and(|n| n.name == w)));
        let load = |index: &usize| {
            let on_node = |r: &&Running| r.node == *index;
            // Pods of one owner are spread first, as the scheduler does.
            let owner = pod.metadata.owner_references.as_ref().and_then(|o| o.first()).map(|o| o.name.as_str());
            let siblings =
                self.pods.values().filter(on_node).filter(|r| owner.is_some_and(|o| r.key.name.starts_with(o))).count();
            (siblings, self.pods.values().filter(on_node).count())
        };
        candidates
            .filter(fits)
            .min_by_key(load)
            .ok_or_else(|| "FailedScheduling: no node matches the pod's node selector".to_owned())
    }

    /// Puts a sidecar into a pod that is to have one, and the mesh's settings into every proxy's container.
    fn complete(&self, pod: &mut Pod) {
        let namespace = ObjectKey::new(Kind::Namespace, "", pod.metadata.namespace.as_deref().unwrap_or_default());
        let outer = self.store.get(&namespace).map(Object::meta).cloned().unwrap_or_default();
        let own = pod.metadata.clone();
        if labels::wants_sidecar(|key| label(&outer, key), |key| label(&own, key)) {
            inject::inject(pod);
        }
        let Some(spec) = &mut pod.spec else { return };
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if container.image.as_deref() == Some(inject::IMAGE) {
                let env = container.env.get_or_insert_default();
                env.extend(self.proxy_env.iter().map(|(name, value)| EnvVar {
                    name: name.clone(),
                    value: Some(value.clone()),
                    value_from: None,
                }));
            }
        }
    }

    fn data(&self, namespace: &str, kind: Kind) -> Data {
        let bytes = |object: &Object| -> Option<(String, BTreeMap<String, Vec<u8>>)> {
            let entries = match object {
                Object::ConfigMap(map) => {
                    let text = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
                    text.chain(map.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()))).collect()
                }
                Object::Secret(secret) => {
                    let text = secret.string_data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
                    secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).chain(text).collect()
                }
                _ => return None,
            };
            Some((object.name().to_owned(), entries))
        };
        self.store.list(kind, Some(namespace)).into_iter().filter_map(bytes).collect()
    }

    /// Marks a pod as ending, at once and everywhere; its processes end within the grace period.
    pub(super) async fn delete_pod(&mut self, key: &ObjectKey, grace: Option<u64>) {
        let Some(Object::Pod(pod)) = self.store.get(key).cloned() else { return };
        let mut pod = *pod;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let own =
            pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).and_then(|s| u64::try_from(s).ok());
        let seconds = grace.or(own).unwrap_or(GRACE);
        if pod.metadata.deletion_timestamp.is_none() {
            pod.metadata.deletion_timestamp = Some(crate::store::now());
            pod.metadata.deletion_grace_period_seconds = i64::try_from(seconds).ok();
            self.put(Object::Pod(Box::new(pod)));
            self.note(key, "Killing");
        }
        match self.pods.get(&uid) {
            Some(running) => {
                let deadline = Instant::now() + Duration::from_secs(seconds);
                running.stop.send_modify(|stop| *stop = Some(stop.map_or(deadline, |earlier| earlier.min(deadline))));
            }
            None => {
                self.store.remove(key);
            }
        }
    }

    fn publish_services(&mut self) {
        let pods = self.all_pods();
        let services: Vec<&Service> = self
            .store
            .list(Kind::Service, None)
            .into_iter()
            .filter_map(|o| match o {
                Object::Service(s) => Some(&**s),
                _ => None,
            })
            .collect();
        let forwards: Vec<_> = services.iter().flat_map(|s| endpoints::forwards(s, &pods)).collect();
        let names = endpoints::names(&services, &pods);
        let rules = ruleset(&forwards);
        self.names.send_if_modified(|old| {
            let differs = **old != names;
            if differs {
                *old = Arc::new(names);
            }
            differs
        });
        for link in &self.links {
            link.rules.send_if_modified(|old| {
                let differs = old.services != rules;
                if differs {
                    old.services.clone_from(&rules);
                }
                differs
            });
        }
    }

    pub(super) fn ensure_namespace(&mut self, name: &str) {
        let key = ObjectKey::new(Kind::Namespace, "", name);
        if self.store.get(&key).is_none() {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            namespace.metadata.labels = Some(BTreeMap::from([(labels::NAMESPACE_NAME.to_owned(), name.to_owned())]));
            self.put(Object::Namespace(Box::new(namespace)));
        }
    }

    pub(super) fn new_vip(&mut self) -> String {
        let taken: Vec<String> = self
            .store
            .list(Kind::Service, None)
            .iter()
            .filter_map(|o| match o {
                Object::Service(s) => s.spec.as_ref()?.cluster_ip.clone(),
                _ => None,
            })
            .collect();
        loop {
            let [high, low] = self.next_vip.to_be_bytes();
            self.next_vip = if self.next_vip == u16::MAX { 20 } else { self.next_vip + 1 };
            let vip = Ipv4Addr::new(10, 96, high, low).to_string();
            if !taken.contains(&vip) {
                return vip;
            }
        }
    }
}

/// Whether a node fits. A lab's images are local programs: any architecture is this one.
fn selected(node: &str, selector: Option<&BTreeMap<String, String>>) -> bool {
    selector.into_iter().flatten().all(|(key, value)| match key.as_str() {
        labels::ARCH => true,
        labels::OS => value == "linux",
        labels::HOSTNAME => value == node,
        labels::ZONE => value == "lab",
        _ => false,
    })
}
