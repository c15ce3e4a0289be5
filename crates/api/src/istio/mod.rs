//! Istio's own kinds, API groups `security.istio.io` and `networking.istio.io`.

pub mod authorization_policy;
pub mod destination_rule;
pub mod peer_authentication;
pub mod request_authentication;
pub mod virtual_service;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An Istio object: metadata and a spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Istio<S> {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name, namespace, labels.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: S,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What came of an Istio object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Conditions.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Pods by label; an empty selector selects all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSelector {
    /// Labels that a pod must carry.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

impl WorkloadSelector {
    /// Whether a pod with `labels` is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}
