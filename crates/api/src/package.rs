//! Package (`uds.dev/v1alpha1`): what a team's namespace talks to and what it shows, in one object. The network part.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// The object's version.
pub const API_VERSION: &str = "uds.dev/v1alpha1";
/// Label of what is made for a Package: its name.
pub const PACKAGE: &str = "uds/package";
/// Label of what is made for a Package: its generation then.
pub const GENERATION: &str = "uds/generation";
/// Label of policies whose peers are found in the cluster: which.
pub const GENERATED: &str = "uds/generated";
/// Label of AuthorizationPolicies: what for.
pub const FOR: &str = "uds/for";
/// Label of AuthorizationPolicies: the mode they were made for.
pub const MESH_MODE: &str = "uds/mesh-mode";
/// Annotation: a rule's own words.
pub const DESCRIPTION: &str = "uds/description";
/// Namespace annotation: the mode before the first Package.
pub const ORIGINAL_STATE: &str = "uds.dev/original-istio-state";
/// Kept on a Package until what was made for it is gone.
pub const FINALIZER: &str = "uds.dev/trysail-package";

/// The object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name, namespace, generation.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Spec,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What is wanted. Only the network part is acted on; the others are kept and named as not acted on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Connections in and out.
    #[serde(default)]
    pub network: Network,
    /// Single sign-on clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sso: Option<Value>,
    /// Scraping by Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<Value>,
    /// Bundles of certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<Value>,
}

/// Connections in and out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// How the namespace is meshed.
    #[serde(default)]
    pub service_mesh: ServiceMesh,
    /// Connections that are admitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
    /// Services that are shown by a gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<Expose>,
}

/// How the namespace is meshed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceMesh {
    /// The mode.
    #[serde(default)]
    pub mode: Mode,
}

/// A mode of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Node proxies.
    #[default]
    Ambient,
    /// Sidecars.
    Sidecar,
}

impl Mode {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Ambient => "ambient",
            Mode::Sidecar => "sidecar",
        }
    }
}

/// Labels that pods must carry; none = all pods.
pub type Labels = BTreeMap<String, String>;

/// Which way a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Ingress => "Ingress",
            Direction::Egress => "Egress",
        }
    }
}

/// Peers that are found in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Generated {
    /// The API server.
    KubeAPI,
    /// The nodes.
    KubeNodes,
    /// Every pod of the namespace.
    IntraNamespace,
    /// The cloud's metadata service.
    CloudMetadata,
    /// Everything but the cloud's metadata service.
    Anywhere,
}

impl Generated {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Generated::KubeAPI => "KubeAPI",
            Generated::KubeNodes => "KubeNodes",
            Generated::IntraNamespace => "IntraNamespace",
            Generated::CloudMetadata => "CloudMetadata",
            Generated::Anywhere => "Anywhere",
        }
    }
}

/// What is spoken: of a host TLS or HTTP, of other peers TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the protocols'")]
pub enum RemoteProtocol {
    Tls,
    Http,
    Tcp,
    Udp,
}

/// Connections that are admitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allow {
    /// Which way.
    pub direction: Direction,
    /// The rule's own words; they become its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Labels for the NetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// The pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Labels>,
    /// The older name of `selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<Labels>,
    /// Peers that are found in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_generated: Option<Generated>,
    /// The peers' namespace; `*` or empty = every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace: Option<String>,
    /// The peers' labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_selector: Option<Labels>,
    /// The older name of `remoteSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_pod_labels: Option<Labels>,
    /// The peers' addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_cidr: Option<String>,
    /// A host outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
    /// What is spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_protocol: Option<RemoteProtocol>,
    /// A port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
    /// Ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<NonZeroU16>>,
    /// The caller's service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_service_account: Option<String>,
    /// Whose egress it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// What an exposed service speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the protocols'")]
pub enum ExposeProtocol {
    Http,
    Udp,
}

/// A service that is shown by a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expose {
    /// What it speaks; absent = HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ExposeProtocol>,
    /// The left part of its name; `.` = the domain itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The gateway; absent = `tenant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// The domain, for gateways of one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The service's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
    /// The pods' port, when it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port: Option<NonZeroU16>,
    /// The pods behind the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Labels>,
    /// The older name of `selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<Labels>,
    /// Parts of the route, as in VirtualService.
    #[serde(default, rename = "advancedHTTP", skip_serializing_if = "Option::is_none")]
    pub advanced_http: Option<AdvancedHttp>,
    /// The older place of `advancedHTTP.match`.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<Value>>,
    /// The entry's own words; they become part of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Annotations of monitors; they make no network object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Labels>,
    /// Checks from outside; they make no network object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime: Option<Value>,
}

/// Parts of VirtualService's HTTP route, handed on as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names are Istio's")]
pub struct AdvancedHttp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors_policy: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_response: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Value>,
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Value>,
}

/// How far a Package is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Being worked on.
    #[default]
    Pending,
    /// All of it is in effect.
    Ready,
    /// It cannot be had as it is.
    Failed,
    /// It will be tried again.
    Retrying,
    /// Being taken away.
    Removing,
    /// Could not be taken away; it will be tried again.
    RemovalFailed,
}

/// What came of a Package.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// How far it is.
    #[serde(default)]
    pub phase: Phase,
    /// The generation that the rest speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The mode in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh_mode: Option<Mode>,
    /// Names under which its services are shown.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// How many NetworkPolicies are made for it.
    #[serde(default)]
    pub network_policy_count: usize,
    /// How many AuthorizationPolicies are made for it.
    #[serde(default)]
    pub authorization_policy_count: usize,
    /// How often it was tried again.
    #[serde(default)]
    pub retry_attempt: u32,
}
