//! Requests of the command line.

use super::{Cluster, ExecTarget};
use crate::account;
use crate::api::{Answer, Manifest, Request, Target, Which};
use crate::controllers::deployment;
use crate::supervise::Process;
use crate::support;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use trysail_api::diagnostic::Severity;
use trysail_api::k8s_openapi::api::apps::v1::Deployment;
use trysail_api::k8s_openapi::api::core::v1::Pod;
use trysail_api::labels::{GATEWAY_MANAGED, REDIRECTION, RESTARTED_AT};
use trysail_api::load::{Load, load};
use trysail_api::object::{Kind, Object, ObjectKey, annotation, label, labels};

/// How long a node's own port may take to answer.
const NODE_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

impl Cluster {
    pub(super) async fn request(&mut self, request: Request) -> Answer {
        match request {
            Request::Apply { manifests, namespace } => self.apply(&manifests, &namespace),
            Request::DeleteManifests { manifests, namespace } => self.delete_manifests(&manifests, &namespace).await,
            Request::Delete { which, grace } => self.delete(&which, grace).await,
            Request::Get(which) => self.get(&which),
            Request::Describe(which) => self.describe(&which),
            Request::Label { which, changes, overwrite } => self.label(&which, &changes, overwrite),
            Request::RolloutRestart { namespace, name } => self.restart(&namespace, &name),
            Request::RolloutStatus { namespace, name, .. } => self.rollout(&namespace, &name),
            Request::WaitReady { .. } => self.ready(),
            Request::Logs { target, offset } => self.logs(&target, offset),
            Request::AllLogs { namespace, since } => self.all_logs(&namespace, since),
            Request::Account => Answer::ok(serde_json::to_value(account::measure(&self.groups())).unwrap_or_default()),
            Request::NodeGet { node, port, path } => self.node_get(&node, port, &path).await,
            Request::PodGet { namespace, pod, port, path } => {
                let target = Target { namespace, pod, container: None };
                self.pod_get(&target, port, &path).await
            }
            Request::System { .. }
            | Request::Exec { .. }
            | Request::CaptureStart { .. }
            | Request::CaptureStop
            | Request::Down => Answer::error("this request is not for the cluster"),
        }
    }

    /// Reads manifests; a default namespace is filled in.
    fn read(&self, manifests: &[Manifest], namespace: &str) -> Load {
        let mut all = Load::default();
        for manifest in manifests {
            all.merge(load(&manifest.file, &manifest.text));
        }
        for loaded in &mut all.objects {
            if loaded.object.kind().namespaced() {
                loaded.object.meta_mut().namespace.get_or_insert_with(|| namespace.to_owned());
            }
        }
        let found: Vec<_> = all.objects.iter().flat_map(|l| support::check(l, &self.images)).collect();
        all.diagnostics.extend(found);
        all
    }

    /// All or nothing: with an error anywhere, nothing is applied.
    fn apply(&mut self, manifests: &[Manifest], namespace: &str) -> Answer {
        let read = self.read(manifests, namespace);
        let errors: Vec<String> = read.diagnostics.iter().map(ToString::to_string).collect();
        if read.has_errors() {
            return Answer { code: 1, errors, value: Value::Null };
        }
        let missing = read.objects.iter().find(|l| {
            let namespace = l.object.namespace().to_owned();
            let named =
                |o: &trysail_api::load::Loaded| o.object.kind() == Kind::Namespace && o.object.name() == namespace;
            let known = self.store.get(&ObjectKey::new(Kind::Namespace, "", &namespace)).is_some();
            l.object.kind().namespaced() && !known && !read.objects.iter().any(named)
        });
        if let Some(loaded) = missing {
            let place = format!("{}:{}", loaded.origin.file, loaded.origin.line);
            return Answer::error(format!(
                "error: {place}: {}: namespace {:?} not found",
                loaded.object.key(),
                loaded.object.namespace()
            ));
        }
        let mut objects: Vec<Object> = read.objects.into_iter().map(|l| l.object).collect();
        objects.sort_by_key(Object::kind);
        let mut said = Vec::new();
        for object in objects {
            let key = object.key();
            let verb = match self.accept(object) {
                Some(verb) => verb,
                None => return Answer::error(format!("{key}: the lab's disk refuses the object")),
            };
            let line = format!("{}/{} {verb}", key.kind.as_str().to_ascii_lowercase(), key.name);
            said.push(Value::String(line));
        }
        Answer { code: 0, errors, value: Value::Array(said) }
    }

    /// Takes one object in, as the API server would complete it; what was done.
    pub(super) fn accept(&mut self, mut object: Object) -> Option<&'static str> {
        let key = object.key();
        let old = self.store.get(&key).cloned();
        match (&mut object, &old) {
            (Object::Namespace(namespace), _) => {
                let own = namespace.metadata.labels.get_or_insert_default();
                own.insert(trysail_api::labels::NAMESPACE_NAME.to_owned(), key.name.clone());
            }
            (Object::Service(service), old) => {
                let before = match old {
                    Some(Object::Service(s)) => s.spec.as_ref().and_then(|s| s.cluster_ip.clone()),
                    _ => None,
                };
                let vip = before.unwrap_or_else(|| self.new_vip());
                let spec = service.spec.get_or_insert_default();
                if spec.cluster_ip.is_none() && spec.type_.as_deref() != Some("ExternalName") {
                    spec.cluster_ip = Some(vip);
                }
                if let Some(Object::Service(old)) = old {
                    service.status.clone_from(&old.status);
                }
            }
            (Object::AuthorizationPolicy(new), Some(Object::AuthorizationPolicy(old))) => {
                new.status.clone_from(&old.status);
            }
            (Object::GatewayClass(new), Some(Object::GatewayClass(old))) => new.status.clone_from(&old.status),
            (Object::Deployment(new), Some(Object::Deployment(old))) => {
                new.status.clone_from(&old.status);
                let changed = new.spec != old.spec;
                new.metadata.generation = Some(old.metadata.generation.unwrap_or(1) + i64::from(changed));
            }
            (Object::Deployment(new), None) => new.metadata.generation = Some(1),
            (Object::Gateway(new), Some(Object::Gateway(old))) => {
                new.status.clone_from(&old.status);
                let changed = new.spec != old.spec;
                new.metadata.generation = Some(old.metadata.generation.unwrap_or(1) + i64::from(changed));
            }
            (Object::Gateway(new), None) => new.metadata.generation = Some(1),
            (Object::Package(new), Some(Object::Package(old))) => {
                new.status.clone_from(&old.status);
                let changed = new.spec != old.spec;
                new.metadata.generation = Some(old.metadata.generation.unwrap_or(1) + i64::from(changed));
            }
            (Object::Package(new), None) => new.metadata.generation = Some(1),
            (Object::HTTPRoute(new), Some(Object::HTTPRoute(old))) => new.status.clone_from(&old.status),
            (Object::GRPCRoute(new), Some(Object::GRPCRoute(old))) => new.status.clone_from(&old.status),
            (Object::Job(new), Some(Object::Job(old))) => {
                new.spec.clone_from(&old.spec);
                new.status.clone_from(&old.status);
            }
            // What runs in a pod cannot be changed, only what is said of it.
            (Object::Pod(new), Some(Object::Pod(old))) => {
                new.spec.clone_from(&old.spec);
                new.status.clone_from(&old.status);
                new.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
                // How it is captured is said by the agent, not by a manifest.
                let captured = annotation(&old.metadata, REDIRECTION).map(str::to_owned);
                let annotations = new.metadata.annotations.get_or_insert_default();
                annotations.remove(REDIRECTION);
                annotations.extend(captured.map(|value| (REDIRECTION.to_owned(), value)));
            }
            _ => {}
        }
        if object.kind() == Kind::Deployment
            && let Some(Object::Deployment(old)) = &old
            && let Object::Deployment(new) = &mut object
        {
            // A restart that was asked for stays in effect when the manifest is applied again.
            keep_restart(old, new);
        }
        let verb = match &old {
            None => "created",
            Some(before) if same(before, &object) => return Some("unchanged"),
            Some(_) => "configured",
        };
        self.put(object).map(|_| verb)
    }

    async fn delete_manifests(&mut self, manifests: &[Manifest], namespace: &str) -> Answer {
        let read = self.read(manifests, namespace);
        let mut errors: Vec<String> =
            read.diagnostics.iter().filter(|d| d.severity == Severity::Error).map(ToString::to_string).collect();
        let mut said = Vec::new();
        for loaded in read.objects.into_iter().rev() {
            let key = loaded.object.key();
            if self.remove(&key, None).await {
                said.push(Value::String(format!("{key} deleted")));
            } else {
                errors.push(format!("error: {key} not found"));
            }
        }
        Answer { code: i32::from(!errors.is_empty()), errors, value: Value::Array(said) }
    }

    async fn delete(&mut self, which: &Which, grace: Option<u64>) -> Answer {
        let keys = match self.matching(which) {
            Ok(keys) => keys,
            Err(error) => return Answer::error(error),
        };
        let mut said = Vec::new();
        for key in keys {
            if self.remove(&key, grace).await {
                said.push(Value::String(format!(
                    "{} \"{}\" deleted",
                    key.kind.as_str().to_ascii_lowercase(),
                    key.name
                )));
            }
        }
        Answer::ok(Value::Array(said))
    }

    /// Removes an object with what it owns.
    pub(super) async fn remove(&mut self, key: &ObjectKey, grace: Option<u64>) -> bool {
        let Some(object) = self.store.get(key).cloned() else { return false };
        match &object {
            Object::Pod(_) => self.delete_pod(key, grace).await,
            Object::Deployment(deployment) => {
                let members = self.members(deployment);
                self.store.remove(key);
                for member in members {
                    self.delete_pod(&ObjectKey::new(Kind::Pod, &key.namespace, &member.name), grace).await;
                }
            }
            Object::Job(job) => {
                let uid = job.metadata.uid.clone().unwrap_or_default();
                let mine = |p: &&&Pod| p.metadata.owner_references.iter().flatten().any(|o| o.uid == uid);
                let pods: Vec<String> =
                    self.all_pods().iter().filter(mine).filter_map(|p| p.metadata.name.clone()).collect();
                self.store.remove(key);
                for pod in pods {
                    self.delete_pod(&ObjectKey::new(Kind::Pod, &key.namespace, &pod), grace).await;
                }
            }
            Object::Namespace(_) => {
                let kinds = Kind::ALL.iter().copied().filter(|k| k.namespaced());
                let inside: Vec<ObjectKey> = kinds
                    .flat_map(|k| self.store.list(k, Some(&key.name)).into_iter().map(Object::key).collect::<Vec<_>>())
                    .collect();
                for inner in inside.iter().filter(|k| k.kind != Kind::Pod) {
                    self.store.remove(inner);
                }
                for inner in inside.iter().filter(|k| k.kind == Kind::Pod) {
                    self.delete_pod(inner, grace).await;
                }
                self.store.remove(key);
            }
            _ => {
                self.store.remove(key);
            }
        }
        true
    }

    /// Keys of the objects that are meant; a name that does not exist is an error.
    fn matching(&self, which: &Which) -> Result<Vec<ObjectKey>, String> {
        let of = |o: &&Object| which.selector.iter().all(|(k, v)| labels(o.meta()).get(k) == Some(v));
        let all: Vec<ObjectKey> =
            self.store.list(which.kind, which.namespace.as_deref()).into_iter().filter(of).map(Object::key).collect();
        if which.names.is_empty() {
            return Ok(all);
        }
        let find = |name: &String| {
            let found = all.iter().find(|k| k.name == *name).cloned();
            found.ok_or_else(|| format!("Error from server (NotFound): {} \"{name}\" not found", which.kind.plural()))
        };
        which.names.iter().map(find).collect()
    }

    fn get(&self, which: &Which) -> Answer {
        match self.matching(which) {
            Ok(keys) => Answer::ok(Value::Array(keys.iter().filter_map(|k| self.shown(k)).collect())),
            Err(error) => Answer::error(error),
        }
    }

    fn shown(&self, key: &ObjectKey) -> Option<Value> {
        let mut value = self.store.get(key)?.to_json();
        let map = value.as_object_mut()?;
        map.insert("kind".into(), key.kind.as_str().into());
        map.insert("apiVersion".into(), key.kind.versions().first().copied().unwrap_or_default().into());
        Some(value)
    }

    fn describe(&self, which: &Which) -> Answer {
        let keys = match self.matching(which) {
            Ok(keys) => keys,
            Err(error) => return Answer::error(error),
        };
        let one = |key: &ObjectKey| json!({"object": self.shown(key), "events": self.notes.get(key)});
        Answer::ok(Value::Array(keys.iter().map(one).collect()))
    }

    fn label(&mut self, which: &Which, changes: &BTreeMap<String, Option<String>>, overwrite: bool) -> Answer {
        let keys = match self.matching(which) {
            Ok(keys) => keys,
            Err(error) => return Answer::error(error),
        };
        let mut said = Vec::new();
        for key in &keys {
            let Some(mut object) = self.store.get(key).cloned() else { continue };
            let own = object.meta_mut().labels.get_or_insert_default();
            for (label, value) in changes {
                match value {
                    Some(value) if !overwrite && own.get(label).is_some_and(|old| old != value) => {
                        return Answer::error(format!(
                            "error: '{label}' already has a value, and --overwrite is false"
                        ));
                    }
                    Some(value) => own.insert(label.clone(), value.clone()),
                    None => own.remove(label),
                };
            }
            self.put(object);
            said.push(Value::String(format!("{}/{} labeled", key.kind.as_str().to_ascii_lowercase(), key.name)));
        }
        Answer::ok(Value::Array(said))
    }

    fn find_deployment(&self, namespace: &str, name: &str) -> Result<Deployment, Answer> {
        let name = name.rsplit('/').next().unwrap_or(name);
        match self.store.get(&ObjectKey::new(Kind::Deployment, namespace, name)) {
            Some(Object::Deployment(deployment)) => Ok((**deployment).clone()),
            _ => Err(Answer::error(format!("Error from server (NotFound): deployments.apps \"{name}\" not found"))),
        }
    }

    fn restart(&mut self, namespace: &str, name: &str) -> Answer {
        let mut deployment = match self.find_deployment(namespace, name) {
            Ok(deployment) => deployment,
            Err(answer) => return answer,
        };
        let spec = deployment.spec.get_or_insert_default();
        let annotations = spec.template.metadata.get_or_insert_default().annotations.get_or_insert_default();
        let stamp = jiff::Timestamp::now().to_string();
        annotations.insert(RESTARTED_AT.to_owned(), stamp);
        deployment.metadata.generation = Some(deployment.metadata.generation.unwrap_or(1) + 1);
        let said = format!("deployment.apps/{} restarted", deployment.metadata.name.clone().unwrap_or_default());
        self.put(Object::Deployment(Box::new(deployment)));
        Answer::ok(said)
    }

    /// Code 0 when it is rolled out, 2 while it is not.
    fn rollout(&self, namespace: &str, name: &str) -> Answer {
        let deployment = match self.find_deployment(namespace, name) {
            Ok(deployment) => deployment,
            Err(answer) => return answer,
        };
        let (replicas, _) = deployment::bounds(&deployment);
        let hash = deployment.spec.as_ref().map(|s| deployment::template_hash(&s.template)).unwrap_or_default();
        let members = self.members(&deployment);
        let live = members.iter().filter(|m| !m.terminating);
        let (ready, old) = live.fold((0, 0), |(ready, old), m| {
            (ready + usize::from(m.ready && m.hash == hash), old + usize::from(m.hash != hash))
        });
        let name = deployment.metadata.name.unwrap_or_default();
        if ready >= replicas && old == 0 {
            return Answer::ok(format!("deployment \"{name}\" successfully rolled out"));
        }
        let waiting = format!(
            "Waiting for deployment \"{name}\" rollout to finish: {ready} of {replicas} updated replicas are available, {old} old replicas are left"
        );
        Answer { code: 2, errors: vec![waiting], value: Value::Null }
    }

    /// Code 0 when everything is ready, 2 with what is not.
    fn ready(&self) -> Answer {
        let mut waiting = Vec::new();
        for object in self.store.list(Kind::Deployment, None) {
            let answer = self.rollout(object.namespace(), object.name());
            waiting.extend(answer.errors);
        }
        for pod in self.all_pods() {
            let key = ObjectKey::new(
                Kind::Pod,
                pod.metadata.namespace.as_deref().unwrap_or_default(),
                pod.metadata.name.as_deref().unwrap_or_default(),
            );
            let ready = self
                .pod_uid(&key)
                .and_then(|uid| self.pods.get(&uid))
                .is_some_and(|r| r.view.ready() || r.view.phase == crate::kubelet::Phase::Succeeded);
            if !ready && pod.metadata.deletion_timestamp.is_none() {
                let shown = self.shown(&key).unwrap_or_default();
                waiting.push(format!("{key}: {}", crate::output::pod_status(&shown)));
            }
        }
        if waiting.is_empty() {
            Answer::ok(self.pods.len())
        } else {
            Answer { code: 2, errors: waiting, value: Value::Null }
        }
    }

    /// A pod by name, or the first of a Deployment's.
    pub(super) fn find_pod(&self, target: &Target) -> Result<&super::Running, String> {
        let missing = || format!("Error from server (NotFound): pods \"{}\" not found", target.pod);
        let name = match target.pod.split_once('/') {
            Some(("deployment" | "deploy" | "deployments", name)) => {
                let deployment = self.find_deployment(&target.namespace, name).map_err(|a| a.errors.join("\n"))?;
                let members = self.members(&deployment);
                let live = members.into_iter().filter(|m| !m.terminating);
                live.max_by_key(|m| m.ready).map(|m| m.name).ok_or_else(missing)?
            }
            Some((_, name)) => name.to_owned(),
            None => target.pod.clone(),
        };
        let key = ObjectKey::new(Kind::Pod, &target.namespace, &name);
        self.pod_uid(&key).and_then(|uid| self.pods.get(&uid)).ok_or_else(missing)
    }

    pub(super) fn exec_target(&self, target: &Target) -> Result<ExecTarget, String> {
        let running = self.find_pod(target)?;
        let context = running.context.get().cloned().ok_or("error: the pod has not started yet")?;
        let containers = context.pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
        let index = match &target.container {
            None => 0,
            Some(name) => containers
                .iter()
                .position(|c| c.name == *name)
                .ok_or_else(|| format!("error: container {name} not found"))?,
        };
        let pid =
            running.view.containers.get(index).and_then(|c| c.pid).ok_or("error: the container is not running")?;
        Ok(ExecTarget { context, pid, container: index })
    }

    fn groups(&self) -> BTreeMap<u32, (String, String)> {
        let mut groups = BTreeMap::from([(std::process::id(), ("lab".to_owned(), "lab".to_owned()))]);
        for process in &self.processes {
            if let Some(pid) = process.view().pid {
                groups.insert(pid, (process.role.to_owned(), process.name.clone()));
            }
        }
        for running in self.pods.values() {
            let name = format!("{}/{}", running.key.namespace, running.key.name);
            let role = self.role_of(&running.key);
            for pid in running.view.containers.iter().filter_map(|c| c.pid) {
                groups.insert(pid, (role.to_owned(), name.clone()));
            }
            for pid in running.view.sidecars.values().filter_map(|c| c.pid) {
                groups.insert(pid, ("sidecar".to_owned(), name.clone()));
            }
        }
        groups
    }

    /// A pod's role in accounts: its application, or a proxy of the mesh.
    fn role_of(&self, key: &ObjectKey) -> &'static str {
        let managed = self.store.get(key).and_then(|o| label(o.meta(), GATEWAY_MANAGED));
        match managed {
            Some("istio.io-mesh-controller") => "waypoint",
            Some(_) => "gateway",
            None => "app",
        }
    }

    async fn pod_get(&self, target: &Target, port: u16, path: &str) -> Answer {
        let context = match self.find_pod(target).map(|running| running.context.get().cloned()) {
            Ok(Some(context)) => context,
            Ok(None) => return Answer::error("error: the pod has not started yet"),
            Err(error) => return Answer::error(error),
        };
        get(&context.ns, &target.pod, (port, path)).await
    }

    async fn node_get(&self, node: &str, port: u16, path: &str) -> Answer {
        let Some(found) = self.nodes.iter().find(|n| n.name == node) else {
            return Answer::error(format!("error: no node {node:?}"));
        };
        get(&found.ns, node, (port, path)).await
    }
}

/// A GET from inside a namespace to itself.
async fn get(ns: &trysail_netns::ns::NetNs, name: &str, (port, path): (u16, &str)) -> Answer {
    let to = std::net::SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), port);
    match tokio::time::timeout(NODE_LIMIT, crate::http::get(ns, to, path, &[])).await {
        Ok(Ok((status, body))) => Answer::ok(json!({"status": status, "body": body})),
        Ok(Err(error)) => Answer::error(format!("error: {name} port {port}: {error}")),
        Err(_) => Answer::error(format!("error: {name} port {port}: no answer within {NODE_LIMIT:?}")),
    }
}

/// How long a process may take to stop or to start.
const PROCESS_LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

/// Shows, stops or starts one of the mesh's own processes.
pub(super) async fn system(processes: &[Process], action: &str, name: &str) -> Answer {
    if action == "list" {
        let one = |p: &Process| json!({"name": p.name, "role": p.role, "pid": p.view().pid, "starts": p.view().starts});
        return Answer::ok(Value::Array(processes.iter().map(one).collect()));
    }
    let Some(process) = processes.iter().find(|p| p.name == name) else {
        let known: Vec<&str> = processes.iter().map(|p| p.name.as_str()).collect();
        return Answer::error(format!("error: no process {name:?}; there are {}", known.join(", ")));
    };
    match action {
        "logs" => {
            let (bytes, _) = process.output.since(0);
            return Answer::ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        "stop" | "start" | "restart" => {
            let change = async {
                if action != "start" {
                    process.want(false).await;
                }
                if action != "stop" {
                    process.want(true).await;
                }
            };
            if tokio::time::timeout(PROCESS_LIMIT, change).await.is_err() {
                return Answer::error(format!("error: {name} did not {action} within {PROCESS_LIMIT:?}"));
            }
        }
        other => return Answer::error(format!("error: {other:?} is not list, logs, stop, start or restart")),
    }
    Answer::ok(format!("{name} {action}ed").replace("stoped", "stopped"))
}

fn keep_restart(old: &Deployment, new: &mut Deployment) {
    let stamp =
        old.spec.as_ref().and_then(|s| s.template.metadata.as_ref()?.annotations.as_ref()?.get(RESTARTED_AT).cloned());
    if let (Some(stamp), Some(spec)) = (stamp, new.spec.as_mut()) {
        let annotations = spec.template.metadata.get_or_insert_default().annotations.get_or_insert_default();
        annotations.entry(RESTARTED_AT.to_owned()).or_insert(stamp);
    }
}

/// Whether an object says the same, apart from what the lab itself fills in.
fn same(old: &Object, new: &Object) -> bool {
    let plain = |object: &Object| {
        let mut object = object.clone();
        let meta = object.meta_mut();
        (meta.uid, meta.resource_version, meta.creation_timestamp, meta.generation) = (None, None, None, None);
        object
    };
    plain(old) == plain(new)
}
