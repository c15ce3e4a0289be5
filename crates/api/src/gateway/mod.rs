//! Gateway API kinds, group `gateway.networking.k8s.io`.

pub mod gateways;
pub mod route;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The group of these kinds.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// An object with metadata, a spec and a status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource<S, T> {
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
    pub status: Option<T>,
}

/// A kind without a status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoStatus {}

/// Whom a ReferenceGrant lets refer, and to what.
pub type ReferenceGrant = Resource<GrantSpec, NoStatus>;

/// Content of a ReferenceGrant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GrantSpec {
    /// Who may refer.
    #[serde(default)]
    pub from: Vec<GrantFrom>,
    /// To what.
    #[serde(default)]
    pub to: Vec<GrantTo>,
}

/// A kind of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GrantFrom {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
}

/// A kind, or one object of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GrantTo {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
