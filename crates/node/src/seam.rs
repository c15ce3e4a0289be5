//! Where pods come from: JSON lines on a unix socket. The other side is the kubelet's part of a lab, or a cluster's watch.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use trysail_api::labels::wants_ambient;

/// A pod on this node, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// The pod's uid.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Service account.
    pub service_account: String,
    /// Its address.
    pub address: IpAddr,
    /// Path of its network namespace.
    pub netns: PathBuf,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its namespace's labels.
    pub namespace_labels: BTreeMap<String, String>,
    /// No process of it runs yet: it is captured before anything else is done.
    pub starting: bool,
    /// It has a sidecar, which its traffic is redirected to; the node's proxy has nothing to do with it.
    #[serde(default)]
    pub sidecar: bool,
}

impl PodState {
    /// Whether it is to be captured.
    pub fn wants_capture(&self) -> bool {
        let of = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned();
        let (namespace, pod) = (&self.namespace_labels, &self.labels);
        let key = trysail_api::labels::DATAPLANE_MODE;
        let (namespace, pod) = (of(namespace, key), of(pod, key));
        !self.sidecar && wants_ambient(|_| namespace.as_deref(), |_| pod.as_deref())
    }
}

/// What the agent is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// A pod is there, or has changed.
    Put(Box<PodState>),
    /// A pod has ended.
    Gone {
        /// Its uid.
        uid: String,
    },
    /// Every pod that is there has been told.
    Synced,
}

/// A pod's capture, as the data path has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redirection {
    /// Not captured, and not meant to be.
    None,
    /// To be captured, and not served yet: its traffic stops.
    Pending,
    /// Captured and served.
    Enabled,
}

/// What the agent says of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The pod's uid.
    pub uid: String,
    /// Its capture.
    pub redirection: Redirection,
    /// Why it is not what it should be.
    pub error: Option<String>,
}
