//! PeerAuthentication: which connections must be mutual TLS.

use super::{Istio, WorkloadSelector};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The object.
pub type PeerAuthentication = Istio<Spec>;

/// What is wanted of peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The pods; absent = the whole namespace, or the mesh in the root namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// Mode of every port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls: Option<MutualTls>,
    /// Mode by the pod's port number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub port_level_mtls: BTreeMap<u16, MutualTls>,
}

/// A mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MutualTls {
    /// The mode.
    #[serde(default)]
    pub mode: Mode,
}

/// Istio's modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Inherit from the wider scope.
    #[default]
    #[serde(rename = "UNSET")]
    Unset,
    /// No TLS at sidecars; at a node proxy the same as permissive.
    #[serde(rename = "DISABLE")]
    Disable,
    /// Both plaintext and mutual TLS.
    #[serde(rename = "PERMISSIVE")]
    Permissive,
    /// Mutual TLS only.
    #[serde(rename = "STRICT")]
    Strict,
}
