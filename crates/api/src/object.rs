//! The kinds that are understood, as one type.

use crate::gateway::ReferenceGrant;
use crate::gateway::gateways::{Gateway, GatewayClass};
use crate::gateway::route::{GrpcRoute, HttpRoute};
use crate::istio::authorization_policy::AuthorizationPolicy;
use crate::istio::destination_rule::DestinationRule;
use crate::istio::peer_authentication::PeerAuthentication;
use crate::istio::request_authentication::RequestAuthentication;
use crate::istio::virtual_service::VirtualService;
use crate::package::Package;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Where a typed object could not be read from its JSON form.
#[derive(Debug)]
pub struct ShapeError {
    /// Field path.
    pub field: String,
    /// What is wrong there.
    pub message: String,
}

macro_rules! kinds {
    ($($kind:ident($type:ty): $versions:expr, $plural:literal, $short:expr, $namespaced:literal;)*) => {
        /// A kind of object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each is the kind of its name")]
        pub enum Kind { $($kind),* }

        /// An object of a kind that is understood.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each is the kind of its name")]
        pub enum Object { $($kind(Box<$type>)),* }

        impl Kind {
            /// Every kind, in the order of the manifest's needs: a namespace before what is in it.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// As in a manifest's `kind`.
            pub fn as_str(self) -> &'static str {
                match self { $(Kind::$kind => stringify!($kind)),* }
            }

            /// As in a URL or on a command line.
            pub fn plural(self) -> &'static str {
                match self { $(Kind::$kind => $plural),* }
            }

            /// API versions under which it is accepted, the preferred first.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $(Kind::$kind => &$versions),* }
            }

            fn short(self) -> &'static [&'static str] {
                match self { $(Kind::$kind => &$short),* }
            }

            /// Whether objects of this kind live in a namespace.
            pub fn namespaced(self) -> bool {
                match self { $(Kind::$kind => $namespaced),* }
            }
        }

        impl Object {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self { $(Object::$kind(_) => Kind::$kind),* }
            }

            /// Its metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self { $(Object::$kind(object) => &object.metadata),* }
            }

            /// Its metadata, to change.
            pub fn meta_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Object::$kind(object) => &mut object.metadata),* }
            }

            /// Its JSON form.
            pub fn to_json(&self) -> serde_json::Value {
                match self { $(Object::$kind(object) => serde_json::to_value(object).unwrap_or_default()),* }
            }

            /// The typed object, and the paths of fields that the type does not know.
            pub fn from_json(kind: Kind, value: serde_json::Value) -> Result<(Self, Vec<String>), ShapeError> {
                match kind {
                    $(Kind::$kind => typed::<$type>(value).map(|(object, ignored)| (Object::$kind(Box::new(object)), ignored))),*
                }
            }
        }
    };
}

kinds! {
    Namespace(Namespace): ["v1"], "namespaces", ["ns"], false;
    ServiceAccount(ServiceAccount): ["v1"], "serviceaccounts", ["sa"], true;
    ConfigMap(ConfigMap): ["v1"], "configmaps", ["cm"], true;
    Secret(Secret): ["v1"], "secrets", [], true;
    PeerAuthentication(PeerAuthentication): ["security.istio.io/v1", "security.istio.io/v1beta1"], "peerauthentications", ["pa"], true;
    AuthorizationPolicy(AuthorizationPolicy): ["security.istio.io/v1", "security.istio.io/v1beta1"], "authorizationpolicies", ["ap"], true;
    RequestAuthentication(RequestAuthentication): ["security.istio.io/v1", "security.istio.io/v1beta1"], "requestauthentications", ["ra"], true;
    VirtualService(VirtualService): ["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"], "virtualservices", ["vs"], true;
    DestinationRule(DestinationRule): ["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"], "destinationrules", ["dr"], true;
    GatewayClass(GatewayClass): ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "gatewayclasses", ["gc"], false;
    Gateway(Gateway): ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "gateways", ["gtw"], true;
    HTTPRoute(HttpRoute): ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "httproutes", [], true;
    GRPCRoute(GrpcRoute): ["gateway.networking.k8s.io/v1"], "grpcroutes", [], true;
    ReferenceGrant(ReferenceGrant): ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "referencegrants", ["refgrant"], true;
    NetworkPolicy(NetworkPolicy): ["networking.k8s.io/v1"], "networkpolicies", ["netpol"], true;
    Package(Package): [crate::package::API_VERSION], "packages", ["pkg"], true;
    Service(Service): ["v1"], "services", ["svc"], true;
    Job(Job): ["batch/v1"], "jobs", [], true;
    Deployment(Deployment): ["apps/v1"], "deployments", ["deploy"], true;
    Pod(Pod): ["v1"], "pods", ["po"], true;
}

fn typed<T: DeserializeOwned>(value: serde_json::Value) -> Result<(T, Vec<String>), ShapeError> {
    let mut ignored = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
    let read = serde_ignored::deserialize(deserializer, |path| ignored.push(plain_path(&path.to_string())));
    match read {
        Ok(object) => Ok((object, ignored)),
        Err(error) => Err(ShapeError { field: plain_path(&track.path().to_string()), message: error.to_string() }),
    }
}

/// `spec.ports[0].port` from either library's notation (`?` marks an `Option` in one, numbers are bare).
fn plain_path(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.').filter(|part| !part.is_empty() && *part != "?") {
        if part.chars().all(|c| c.is_ascii_digit()) {
            out.push_str(&format!("[{part}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(part);
        }
    }
    out
}

/// A kind that is not understood.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a kind that is supported here")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    /// Accepts what kubectl does: kind, plural, singular or short name, in any case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.to_ascii_lowercase();
        Kind::ALL
            .iter()
            .copied()
            .find(|kind| {
                kind.as_str().eq_ignore_ascii_case(&wanted)
                    || kind.plural() == wanted
                    || kind.short().contains(&wanted.as_str())
            })
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// What names an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for kinds that have none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// From the parts.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.namespaced() { namespace } else { "" };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{slash}{}", self.kind.as_str(), self.namespace, self.name)
    }
}

impl Object {
    /// Its key.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.kind(), self.namespace(), self.name())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// Its namespace; `default` when none is given.
    pub fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or("default")
    }
}

/// One label.
pub fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// One annotation.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// All labels; empty when there are none.
pub fn labels(meta: &ObjectMeta) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&NONE)
}
