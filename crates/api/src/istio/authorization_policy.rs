//! AuthorizationPolicy: who may call whom.

use super::{Istio, WorkloadSelector};
use serde::{Deserialize, Serialize};

/// The object.
pub type AuthorizationPolicy = Istio<Spec>;

/// Target, action and rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The pods; absent = the whole namespace, or the mesh in the root namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// Waypoints, gateways or services that enforce it instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<TargetRef>,
    /// What a match means.
    #[serde(default)]
    pub action: Action,
    /// Absent or empty: never matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The extension of `CUSTOM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
}

/// What a match means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// Admit.
    #[default]
    Allow,
    /// Refuse.
    Deny,
    /// Log only.
    Audit,
    /// Ask an external authorizer.
    Custom,
}

/// An external authorizer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provider {
    /// Its name in the mesh's configuration.
    #[serde(default)]
    pub name: String,
}

/// The object a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetRef {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Namespace; must be the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// One rule: source AND operation AND conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Any of these sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<From>>,
    /// Any of these operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<To>>,
    /// All of these conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Vec<Condition>>,
}

/// A wrapper of one source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct From {
    /// The source.
    #[serde(default)]
    pub source: Source,
}

/// A wrapper of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct To {
    /// The operation.
    #[serde(default)]
    pub operation: Operation,
}

macro_rules! lists {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                #[doc = concat!("Istio's `", stringify!($field), "`.")]
                #[serde(default, skip_serializing_if = "Vec::is_empty")]
                pub $field: Vec<String>,
            )*
        }
    };
}

lists!(
    /// Who calls; every list that is given must hold.
    Source {
        principals, not_principals, request_principals, not_request_principals, namespaces, not_namespaces, ip_blocks,
        not_ip_blocks, remote_ip_blocks, not_remote_ip_blocks, service_accounts, not_service_accounts,
    }
);

lists!(
    /// What is called; every list that is given must hold.
    Operation { hosts, not_hosts, ports, not_ports, methods, not_methods, paths, not_paths }
);

/// A condition on one attribute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The attribute.
    pub key: String,
    /// Any of these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// None of these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_values: Vec<String>,
}
