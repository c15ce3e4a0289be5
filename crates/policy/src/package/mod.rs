//! A Package's network part to the objects that make it true: NetworkPolicies, AuthorizationPolicies, routes at gateways and the way
//! out to hosts. Pure: the Packages and what is known of the cluster go in, objects come out.

mod check;
mod egress;
mod expose;
mod names;
mod rules;

pub use check::{Denied, check};
pub use egress::{Conflict, Shared, shared};
pub use names::sanitise;

use serde_json::{Map, Value, json};
use trysail_api::labels;
use trysail_api::package::{self, AdvancedHttp, Labels, Mode, Package};

/// What is known of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Blocks of the API server's endpoints, then of its service; `None` while they are not known.
    pub kube_api: Option<Vec<String>>,
    /// Blocks of the nodes' addresses; empty while they are not known.
    pub nodes: Vec<String>,
    /// Domain of exposed services.
    pub domain: String,
    /// Domain of what admin gateways show; `None` = `admin.` before the other.
    pub admin_domain: Option<String>,
    /// The mesh's trust domain.
    pub trust_domain: String,
}

impl Default for World {
    fn default() -> Self {
        Self {
            kube_api: None,
            nodes: Vec::new(),
            domain: "uds.dev".to_owned(),
            admin_domain: None,
            trust_domain: trysail_api::ids::DEFAULT_TRUST_DOMAIN.to_owned(),
        }
    }
}

impl World {
    fn principal(&self, namespace: &str, account: &str) -> String {
        format!("{}/ns/{namespace}/sa/{account}", self.trust_domain)
    }
}

/// What a Package becomes in its own namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expansion {
    /// The objects, in the order in which they are written: what denies first, then what admits, then routes.
    pub objects: Vec<Value>,
    /// Rules that wait for peers that are not known yet: their fields.
    pub waiting: Vec<String>,
    /// Names under which services are shown.
    pub endpoints: Vec<String>,
}

impl Expansion {
    /// How many objects are of `kind`.
    pub fn count(&self, kind: &str) -> usize {
        self.objects.iter().filter(|o| o["kind"] == kind).count()
    }
}

/// The objects of a Package that [`check`] has nothing against.
pub fn expand(given: &Package, world: &World) -> Expansion {
    let package = migrated(given);
    let maker = Maker { package: &package, world };
    let mut out = Expansion::default();
    let (mut policies, mut admissions) = rules::defaults(&maker);
    rules::allow(&maker, &mut policies, &mut admissions, &mut out.waiting);
    let mut routes = Vec::new();
    expose::expose(&maker, &mut policies, &mut admissions, &mut routes);
    routes.extend(egress::own(&maker));
    out.endpoints = expose::endpoints(&maker);
    out.objects = [policies, admissions, routes].concat();
    out
}

/// The Package with the older names of fields replaced by today's.
fn migrated(given: &Package) -> Package {
    let mut package = given.clone();
    for allow in &mut package.spec.network.allow {
        allow.selector = allow.pod_labels.take().or(allow.selector.take());
        allow.remote_selector = allow.remote_pod_labels.take().or(allow.remote_selector.take());
    }
    for expose in &mut package.spec.network.expose {
        // With UDP the older name is an error, and said to be one.
        expose.selector = expose.pod_labels.take().or(expose.selector.take());
        if let Some(matches) = expose.matches.take() {
            expose.advanced_http.get_or_insert_with(AdvancedHttp::default).matches = Some(matches);
        }
    }
    package
}

/// Makes objects for one Package.
struct Maker<'a> {
    package: &'a Package,
    world: &'a World,
}

/// A group, its version and a kind.
type Api = (&'static str, &'static str);

const NETWORK_POLICY: Api = ("networking.k8s.io/v1", "NetworkPolicy");
const AUTHORIZATION_POLICY: Api = ("security.istio.io/v1", "AuthorizationPolicy");
const VIRTUAL_SERVICE: Api = ("networking.istio.io/v1", "VirtualService");
const SERVICE_ENTRY: Api = ("networking.istio.io/v1", "ServiceEntry");
const SIDECAR: Api = ("networking.istio.io/v1", "Sidecar");
const ISTIO_GATEWAY: Api = ("networking.istio.io/v1", "Gateway");
const GATEWAY: Api = ("gateway.networking.k8s.io/v1", "Gateway");
const UDP_ROUTE: Api = ("gateway.networking.k8s.io/v1alpha2", "UDPRoute");

impl Maker<'_> {
    fn name(&self) -> &str {
        self.package.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.package.metadata.namespace.as_deref().unwrap_or("default")
    }

    fn mode(&self) -> Mode {
        self.package.spec.network.service_mesh.mode
    }

    /// An object of the Package's namespace, which goes when the Package goes.
    fn owned(&self, api: Api, name: &str, more: Labels, spec: Value) -> Value {
        let meta = &self.package.metadata;
        let mut labels = more;
        labels.insert(package::PACKAGE.into(), self.name().into());
        labels.insert(package::GENERATION.into(), meta.generation.unwrap_or(1).to_string());
        let mut made = json!({"name": name, "namespace": self.namespace(), "labels": labels});
        // A Package that no API server has seen owns nothing.
        if let Some(uid) = &meta.uid {
            let owner = json!({"apiVersion": package::API_VERSION, "kind": "Package", "name": self.name(), "uid": uid});
            made["ownerReferences"] = json!([owner]);
        }
        object(api, made, spec)
    }
}

fn object((api, kind): Api, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})
}

/// Adds an annotation.
fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"][key] = Value::from(value);
    object
}

/// Pods that carry `labels`; none = all pods.
fn pods(labels: &Labels) -> Value {
    json!({"matchLabels": labels})
}

/// A namespace by its name.
fn namespace_named(name: &str) -> Value {
    json!({"matchLabels": {labels::NAMESPACE_NAME: name}})
}

/// A map without the entries that are absent.
fn present(entries: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    Value::Object(entries.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests;
