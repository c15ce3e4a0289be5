//! The open flows: what each was admitted on, so that a change of policy can end those that it no longer admits.

use crate::decide;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;
use trysail_api::ids::WorkloadUid;
use trysail_mesh::Snapshot;
use trysail_policy::authz::Facts;

/// Which way a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into a pod, judged here.
    Inbound,
    /// Out of a pod.
    Outbound,
}

/// One open flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Key of the captured pod.
    pub pod: String,
    /// Which way.
    pub direction: Direction,
    /// The far end.
    pub peer: SocketAddr,
    /// Where it goes.
    pub target: SocketAddr,
    /// Through a tunnel.
    pub tunnel: bool,
    /// Inbound: the called workload and what the verdict rested on.
    pub judged: Option<(WorkloadUid, Facts)>,
    stop: CancellationToken,
}

/// All open flows.
#[derive(Default)]
pub struct Flows {
    open: Mutex<HashMap<u64, Flow>>,
    next: AtomicU64,
}

/// Keeps a flow in the list until dropped.
pub struct Open {
    flows: Arc<crate::state::Shared>,
    id: u64,
    /// Resolves when the flow is to end.
    pub stop: CancellationToken,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.flows.flows.lock().remove(&self.id);
    }
}

impl Flow {
    /// A flow of a captured pod.
    pub fn new(pod: &str, direction: Direction, (peer, target): (SocketAddr, SocketAddr), tunnel: bool) -> Self {
        let stop = CancellationToken::new();
        Self { pod: pod.to_owned(), direction, peer, target, tunnel, judged: None, stop }
    }
}

impl Flows {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Flow>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a flow.
    pub fn open(shared: &Arc<crate::state::Shared>, flow: Flow) -> Open {
        let flows = &shared.flows;
        let id = flows.next.fetch_add(1, Ordering::Relaxed);
        let stop = flow.stop.clone();
        flows.lock().insert(id, flow);
        Open { flows: shared.clone(), id, stop }
    }

    /// Ends the inbound flows that `snapshot` no longer admits; returns how many.
    pub fn recheck(&self, snapshot: &Snapshot) -> usize {
        let mut ended = 0;
        for flow in self.lock().values() {
            let Some((uid, facts)) = &flow.judged else { continue };
            // A pod whose record has gone is judged again when it has one.
            let Some(workload) = snapshot.workload(uid) else { continue };
            if let Err(refusal) = decide::still_admitted(snapshot, workload, facts) {
                tracing::info!(peer = %flow.peer, target = %flow.target, %refusal, "an open connection is ended");
                flow.stop.cancel();
                ended += 1;
            }
        }
        ended
    }

    /// The same for one flow that has just been added.
    pub fn recheck_one(&self, open: &Open, snapshot: &Snapshot) {
        let flow = self.lock().get(&open.id).cloned();
        if let Some((uid, facts)) = flow.and_then(|f| f.judged)
            && let Some(workload) = snapshot.workload(&uid)
            && decide::still_admitted(snapshot, workload, &facts).is_err()
        {
            open.stop.cancel();
        }
    }

    /// The flows of one pod.
    pub fn of_pod(&self, pod: &str) -> Vec<Flow> {
        self.lock().values().filter(|f| f.pod == pod).cloned().collect()
    }

    /// How many flows are open.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
