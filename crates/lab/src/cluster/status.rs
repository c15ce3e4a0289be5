//! News of pods to the objects' status.

use super::Cluster;
use crate::kubelet::{ContainerView, Phase, PodView};
use crate::store::now;
use trysail_api::k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod,
    PodCondition, PodIP, PodStatus,
};
use trysail_api::labels::{REDIRECTION, SIDECAR_STATUS};
use trysail_api::object::{Object, annotation};
use trysail_node::seam::{PodState, Redirection, Status};

impl Cluster {
    pub(super) async fn pod_changed(&mut self, uid: &str, view: PodView) {
        let Some(running) = self.pods.get_mut(uid) else { return };
        let key = running.key.clone();
        let before = std::mem::replace(&mut running.view, view.clone());
        if view.ended
            && !before.ended
            && let Some(link) = self.links.get(running.node)
        {
            link.agent.gone(uid).await;
        }
        if view.gone {
            return self.pod_gone(uid);
        }
        if view.ended {
            return;
        }
        if !view.reason.is_empty() && view.reason != before.reason {
            self.note(&key, &view.reason);
        }
        if view.ready() && !before.ready() {
            self.note(&key, "Ready");
        }
        if let Some(Object::Pod(pod)) = self.store.get(&key).cloned() {
            let mut pod = *pod;
            set_status(&mut pod, &view);
            self.put(Object::Pod(Box::new(pod)));
        }
        // Only now that its address is published is the agent told: what it captures has a record by then.
        self.tell_agent(uid).await;
    }

    fn pod_gone(&mut self, uid: &str) {
        let Some(running) = self.pods.remove(uid) else { return };
        if let Some(node) = self.nodes.get_mut(running.node)
            && !running.address.is_unspecified()
        {
            node.free(running.address);
        }
        self.store.remove(&running.key);
        self.notes.remove(&running.key);
        self.past.keep(running);
    }

    /// Tells the agent of a pod whose network is there, if there is something new to tell.
    pub(super) async fn tell_agent(&mut self, uid: &str) {
        let Some(running) = self.pods.get(uid).filter(|r| !r.view.ended) else { return };
        let (Some(address), Some(Object::Pod(pod))) = (running.view.address, self.store.get(&running.key)) else {
            return;
        };
        let namespace = trysail_api::ObjectKey::new(trysail_api::Kind::Namespace, "", &running.key.namespace);
        // A pod that is ending stays as it is to its end, also when its namespace has gone before it.
        let Some(namespace_labels) = self.store.get(&namespace).map(|n| n.meta().labels.clone().unwrap_or_default())
        else {
            return;
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let state = PodState {
            uid: uid.to_owned(),
            name: running.key.name.clone(),
            namespace: running.key.namespace.clone(),
            service_account: pod
                .spec
                .as_ref()
                .and_then(|s| s.service_account_name.clone())
                .unwrap_or_else(|| "default".to_owned()),
            address: address.into(),
            netns: running.view.netns.clone(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            namespace_labels,
            starting: running.view.phase == Phase::Pending,
            sidecar: annotation(&pod.metadata, SIDECAR_STATUS).is_some(),
        };
        // Whether it is starting matters at its first telling alone.
        let same = running.told.as_ref().is_some_and(|t| PodState { starting: t.starting, ..state.clone() } == *t);
        if same {
            return;
        }
        if let Some(link) = self.links.get(running.node) {
            link.agent.put(state.clone()).await;
        }
        if let Some(running) = self.pods.get_mut(uid) {
            running.told = Some(state);
        }
    }

    pub(super) async fn capture_changed(&mut self, status: Status) {
        let Some(running) = self.pods.get(&status.uid) else { return };
        let key = running.key.clone();
        if let Some(Object::Pod(pod)) = self.store.get(&key).cloned() {
            let mut pod = *pod;
            let annotations = pod.metadata.annotations.get_or_insert_default();
            let before = annotations.get(REDIRECTION).cloned();
            let value = match status.redirection {
                Redirection::None => None,
                // An agent that has just started does not know yet what it will find: what was captured still is.
                Redirection::Pending if before.as_deref() == Some("enabled") && status.error.is_none() => {
                    Some("enabled")
                }
                Redirection::Pending => Some("pending"),
                Redirection::Enabled => Some("enabled"),
            };
            match value {
                Some(value) => annotations.insert(REDIRECTION.to_owned(), value.to_owned()),
                None => annotations.remove(REDIRECTION),
            };
            if before.as_deref() != value {
                self.put(Object::Pod(Box::new(pod)));
            }
        }
        if let Some(error) = &status.error {
            self.note(&key, &format!("capture: {error}"));
        }
        // The pod goes on only after the record says how it is reached.
        if let Some(running) = self.pods.get(&status.uid) {
            running.capture.send_replace(Some(status));
        }
    }
}

fn set_status(pod: &mut Pod, view: &PodView) {
    let names: Vec<(String, String)> = pod
        .spec
        .iter()
        .flat_map(|s| &s.containers)
        .map(|c| (c.name.clone(), c.image.clone().unwrap_or_default()))
        .collect();
    let old = pod.status.take().unwrap_or_default();
    let ready = view.ready();
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let before = old.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == status);
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(now())),
            ..PodCondition::default()
        }
    };
    let address = view.address.map(|a| a.to_string());
    pod.status = Some(PodStatus {
        phase: Some(format!("{:?}", view.phase)),
        pod_ip: address.clone(),
        pod_ips: address.map(|ip| vec![PodIP { ip }]),
        reason: Some(view.reason.clone()).filter(|r| !r.is_empty()),
        conditions: Some(vec![
            condition("PodScheduled", true),
            condition("Initialized", view.phase != Phase::Pending),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ]),
        container_statuses: Some(
            view.containers.iter().zip(names).map(|(c, (name, image))| container_status(c, name, image)).collect(),
        ),
        start_time: old.start_time.or_else(|| Some(now())),
        ..PodStatus::default()
    });
}

fn container_status(c: &ContainerView, name: String, image: String) -> ContainerStatus {
    let mut state = ContainerState::default();
    if c.pid.is_some() {
        state.running = Some(ContainerStateRunning::default());
    } else if !c.waiting.is_empty() || c.exit.is_none() {
        let reason = if c.waiting.is_empty() { "ContainerCreating" } else { &c.waiting };
        state.waiting = Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message: None });
    } else {
        let exit_code = c.exit.unwrap_or_default();
        let reason = if exit_code == 0 { "Completed" } else { "Error" };
        state.terminated = Some(ContainerStateTerminated {
            exit_code,
            reason: Some(reason.to_owned()),
            ..ContainerStateTerminated::default()
        });
    }
    ContainerStatus {
        name,
        image_id: image.clone(),
        image,
        ready: c.ready,
        restart_count: i32::try_from(c.restarts).unwrap_or(i32::MAX),
        started: Some(c.pid.is_some()),
        state: Some(state),
        ..ContainerStatus::default()
    }
}
