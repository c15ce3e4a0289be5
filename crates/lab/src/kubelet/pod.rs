//! One pod from its network to its end.

use super::container::{Restart, Task};
use super::context::{ContainerView, Context, Data, Phase, PodView};
use crate::images::Images;
use crate::spawn::{Output, kill_inside};
use crate::world::{PodNet, PodPlan};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use trysail_api::k8s_openapi::api::core::v1::{Container, Pod};
use trysail_base::tasks::Tasks;
use trysail_identity::token::Signer;
use trysail_netns::ns::NetNs;
use trysail_node::seam::{Redirection, Status};

/// What a pod's task is given.
pub struct PodTask {
    /// The object.
    pub pod: Pod,
    /// Its uid.
    pub uid: String,
    /// Its place in the network.
    pub plan: PodPlan,
    /// Its node's namespace.
    pub node: NetNs,
    /// Its node's address.
    pub node_address: Ipv4Addr,
    /// Folder for its files.
    pub dir: PathBuf,
    /// Images.
    pub images: Arc<Images>,
    /// ConfigMaps of its namespace.
    pub configs: Arc<Data>,
    /// Secrets of its namespace.
    pub secrets: Arc<Data>,
    /// Output of its containers.
    pub outputs: BTreeMap<String, Output>,
    /// Signs service account tokens.
    pub signer: Arc<Signer>,
    /// What the node agent says of it.
    pub capture: watch::Receiver<Option<Status>>,
    /// Pods that the rules of its node in effect know: before, it does not start.
    pub gated: watch::Receiver<Arc<BTreeSet<String>>>,
    /// Set to end it: the moment by which it must have ended.
    pub stop: watch::Receiver<Option<Instant>>,
    /// Hears of every change, by uid.
    pub events: mpsc::Sender<(String, PodView)>,
    /// Filled once the network is there; used by exec.
    pub context: Arc<OnceLock<Arc<Context>>>,
}

/// How long a pod's network outlives its processes.
const GOODBYE: Duration = Duration::from_millis(200);
/// How often and how long a pod's left-overs are looked for at its end.
const CLEAN: (u32, Duration) = (50, Duration::from_millis(10));

impl PodTask {
    async fn tell(&self, view: &PodView) {
        if self.events.send((self.uid.clone(), view.clone())).await.is_err() {
            tracing::debug!(uid = self.uid, "nobody listens to a pod's changes");
        }
    }

    /// Runs the pod to its end.
    pub async fn run(mut self) {
        let tasks = Tasks::default();
        let mut view = PodView::default();
        let net = match self.network().await {
            Ok(net) => net,
            Err(error) => {
                view.phase = Phase::Failed;
                view.reason = format!("FailedCreatePodSandBox: {error}");
                self.tell(&view).await;
                let _ = self.stop.wait_for(Option::is_some).await;
                view.gone = true;
                return self.tell(&view).await;
            }
        };
        view.address = Some(net.address);
        view.netns.clone_from(&net.path);
        view.reason = "ContainerCreating".to_owned();
        self.tell(&view).await;
        if self.gated().await && self.captured(&mut view).await {
            let context = Arc::new(self.make_context(&net));
            match context.write_files() {
                Ok(()) => {
                    let _ = self.context.set(context.clone());
                    self.containers(&context, &mut view, &tasks).await;
                }
                Err(error) => {
                    view.phase = Phase::Failed;
                    view.reason = format!("volumes cannot be written: {error}");
                    self.tell(&view).await;
                }
            }
        }
        if self.stop.borrow().is_none() {
            let _ = self.stop.wait_for(Option::is_some).await;
        }
        if let Ok(inode) = net.ns.inode() {
            kill_inside(inode);
        }
        // The node proxy says goodbye to the pod's peers while its network is still there.
        view.ended = true;
        self.tell(&view).await;
        tokio::time::sleep(GOODBYE).await;
        let net = Arc::new(net);
        let detached = net.clone();
        match tokio::task::spawn_blocking(move || detached.detach()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(uid = self.uid, %error, "a pod's link could not be removed"),
            Err(error) => tracing::error!(uid = self.uid, %error, "a pod's link was not removed"),
        }
        clean(&net).await;
        tasks.stop();
        if let Err(error) = std::fs::remove_dir_all(&self.dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::debug!(uid = self.uid, %error, "a pod's folder could not be removed");
        }
        view.gone = true;
        for container in &mut view.containers {
            *container =
                ContainerView { restarts: container.restarts, exit: container.exit, ..ContainerView::default() };
        }
        self.tell(&view).await;
    }

    async fn network(&mut self) -> Result<PodNet, String> {
        // The plan is used up by building it.
        let plan = std::mem::replace(&mut self.plan, PodPlan::used());
        let built = tokio::task::spawn_blocking(move || plan.build()).await;
        built.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    /// Waits until the node's rules know the pod. False when it is ended first.
    async fn gated(&mut self) -> bool {
        tokio::select! {
            known = self.gated.wait_for(|pods| pods.contains(&self.uid)) => known.is_ok(),
            _ = self.stop.wait_for(Option::is_some) => false,
        }
    }

    /// Waits until the pod is captured, or need not be. False when it is ended first.
    async fn captured(&mut self, view: &mut PodView) -> bool {
        loop {
            let status = self.capture.borrow_and_update().clone();
            match status {
                Some(status) if status.redirection != Redirection::Pending => return true,
                Some(status) => {
                    let why = status.error.unwrap_or_else(|| "the node proxy does not serve it yet".to_owned());
                    view.reason = format!("waiting to be captured: {why}");
                    self.tell(view).await;
                }
                None => {}
            }
            tokio::select! {
                changed = self.capture.changed() => if changed.is_err() { return false },
                _ = self.stop.wait_for(Option::is_some) => return false,
            }
        }
    }

    fn make_context(&self, net: &PodNet) -> Context {
        Context {
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            ns: net.ns.clone(),
            node: self.node.clone(),
            node_address: self.node_address,
            address: net.address,
            dir: self.dir.clone(),
            images: self.images.clone(),
            configs: self.configs.clone(),
            secrets: self.secrets.clone(),
            outputs: self.outputs.clone(),
            signer: self.signer.clone(),
        }
    }

    async fn containers(&mut self, context: &Arc<Context>, view: &mut PodView, tasks: &Tasks) {
        let Some(spec) = self.pod.spec.clone() else { return };
        let restart = match spec.restart_policy.as_deref() {
            Some("Never") => Restart::Never,
            Some("OnFailure") => Restart::OnFailure,
            _ => Restart::Always,
        };
        let once = if restart == Restart::Never { Restart::Never } else { Restart::OnFailure };
        // Native sidecars outlive the others: they have a stop signal of their own.
        let (mut side, (end_side, side_stop)) = (JoinSet::new(), watch::channel(None));
        for (index, container) in spec.init_containers.iter().flatten().enumerate() {
            let (report, state) = watch::channel(ContainerView::default());
            if container.restart_policy.as_deref() == Some("Always") {
                // A native sidecar: the next one starts when it is ready.
                let mut state = state;
                let task =
                    Task { stop: side_stop.clone(), ..self.task(context, container, Restart::Always, (report, tasks)) };
                side.spawn(task.run());
                tokio::select! {
                    started = state.wait_for(|v| v.ready) => {
                        let now = started.map(|v| v.clone()).unwrap_or_default();
                        view.sidecars.insert(container.name.clone(), now);
                        continue;
                    }
                    _ = self.stop.wait_for(Option::is_some) => break,
                }
            }
            view.reason = format!("Init:{index}");
            self.tell(view).await;
            if self.task(context, container, once, (report, tasks)).run().await != Some(0) {
                view.phase = Phase::Failed;
                view.reason = "Init:Error".to_owned();
                end_side.send_replace(Some(Instant::now()));
                while side.join_next().await.is_some() {}
                return self.tell(view).await;
            }
        }
        if self.stop.borrow().is_none() {
            self.main_containers(context, view, (&spec.containers, restart, tasks)).await;
        }
        let grace =
            Duration::from_secs(spec.termination_grace_period_seconds.and_then(|s| s.try_into().ok()).unwrap_or(30));
        let latest = self.stop.borrow().unwrap_or_else(|| Instant::now() + grace);
        end_side.send_replace(Some(latest));
        while side.join_next().await.is_some() {}
    }

    fn task(
        &self,
        context: &Arc<Context>,
        container: &Container,
        restart: Restart,
        (report, tasks): (watch::Sender<ContainerView>, &Tasks),
    ) -> Task {
        Task {
            context: context.clone(),
            container: container.clone(),
            restart,
            stop: self.stop.clone(),
            report,
            tasks: tasks.clone(),
        }
    }

    async fn main_containers(
        &self,
        context: &Arc<Context>,
        view: &mut PodView,
        (list, restart, tasks): (&[Container], Restart, &Tasks),
    ) {
        let mut running = JoinSet::new();
        let (changed, mut changes) = mpsc::channel(16);
        for (index, container) in list.iter().enumerate() {
            let (report, mut state) = watch::channel(ContainerView::default());
            view.containers.push(ContainerView::default());
            running.spawn(self.task(context, container, restart, (report, tasks)).run());
            let changed = changed.clone();
            tasks.spawn(async move {
                while state.changed().await.is_ok() {
                    let now = state.borrow_and_update().clone();
                    if changed.send((index, now)).await.is_err() {
                        return;
                    }
                }
            });
        }
        drop(changed);
        view.phase = Phase::Running;
        view.reason.clear();
        let mut failed = false;
        loop {
            tokio::select! {
                Some((index, now)) = changes.recv() => {
                    if let Some(slot) = view.containers.get_mut(index) {
                        *slot = now;
                    }
                }
                ended = running.join_next() => match ended {
                    Some(code) => failed |= code.ok().flatten() != Some(0),
                    None => break,
                },
            }
            self.tell(view).await;
        }
        view.phase = if failed { Phase::Failed } else { Phase::Succeeded };
        for container in &mut view.containers {
            container.ready = false;
            container.pid = None;
        }
        self.tell(view).await;
    }
}

/// Takes the path of the pod's namespace away.
async fn clean(net: &PodNet) {
    let path = net.path.clone();
    for _ in 0..CLEAN.0 {
        if !path.exists() {
            break;
        }
        NetNs::unbind(&path);
        if path.exists() {
            tokio::time::sleep(CLEAN.1).await;
        }
    }
}
