//! What all connections of the process share.

use crate::flows::Flows;
use crate::record::FlowMetrics;
use crate::settings::Settings;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_base::snapshot::SnapshotCell;
use trysail_base::tasks::Tasks;
use trysail_hbone::pool::Pool;
use trysail_identity::cache::Svids;
use trysail_mesh::{Snapshot, Workload};
use trysail_netns::socket::Sockets;
use trysail_wire::type_urls::ADDRESS;
use trysail_xds::client::Demand;

/// How long a new pod's connection waits for the pod's record before it is refused.
pub const RECORD_LIMIT: Duration = Duration::from_secs(5);
/// After this long without a record it is asked for by name.
const RECORD_REPAIR: Duration = Duration::from_millis(500);
/// How long a connection waits for a certificate.
pub const SVID_LIMIT: Duration = Duration::from_secs(5);

/// Shared by all pods.
pub struct Shared {
    /// Settings.
    pub settings: Settings,
    /// The mesh.
    pub mesh: Arc<SnapshotCell<Snapshot>>,
    /// Certificates of local pods.
    pub svids: Svids,
    /// Tunnels.
    pub pool: Pool,
    /// Open flows.
    pub flows: Flows,
    /// Metrics of flows.
    pub metrics: FlowMetrics,
    /// All tasks.
    pub tasks: Tasks,
    /// Asks for resources by name.
    pub demands: mpsc::Sender<Demand>,
}

/// One captured pod, as its connections see it.
pub struct Pod {
    /// What is shared.
    pub shared: Arc<Shared>,
    /// Key given by the node agent.
    pub uid: String,
    /// Names this serving of the pod among its tunnels: one that is captured anew shares none with its former self.
    pub incarnation: WorkloadUid,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Identity, from what the node agent said: never from an address.
    pub identity: SpiffeId,
    /// Makes sockets in the pod's network namespace.
    pub sockets: Sockets,
    /// The pod's tasks.
    pub tasks: Tasks,
    /// Key of its record, once that has been found by name.
    pub record_key: OnceLock<WorkloadUid>,
}

impl Pod {
    /// The pod's record in the newest snapshot, waiting for it at most [`RECORD_LIMIT`].
    pub async fn record(&self) -> Option<(Arc<Snapshot>, Arc<Workload>)> {
        let mesh = &self.shared.mesh;
        if self.find(&mesh.load()).is_none() && mesh.wait_for(RECORD_REPAIR, |s| self.find(s)).await.is_none() {
            let name = format!("{}//Pod/{}/{}", self.shared.settings.cluster, self.namespace, self.name);
            tracing::warn!(
                pod = self.name,
                namespace = self.namespace,
                "the pod's record has not arrived; asking for it"
            );
            if self.shared.demands.try_send(Demand { type_url: ADDRESS, name }).is_err() {
                tracing::debug!("too many records are asked for already");
            }
            mesh.wait_for(RECORD_LIMIT, |s| self.find(s)).await?;
        }
        let snapshot = mesh.load();
        let record = self.find(&snapshot)?;
        Some((snapshot, record))
    }

    fn find(&self, snapshot: &Snapshot) -> Option<Arc<Workload>> {
        let is_own = |w: &&Arc<Workload>| {
            w.name == self.name
                && w.namespace == self.namespace
                && w.identity.service_account == self.identity.service_account
        };
        if let Some(known) = self.record_key.get().and_then(|uid| snapshot.workload(uid)).filter(is_own) {
            return Some(known.clone());
        }
        let found = snapshot.workloads().find(is_own)?;
        self.record_key.get_or_init(|| found.uid.clone());
        Some(found.clone())
    }
}
