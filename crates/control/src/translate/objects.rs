//! All objects, by kind and name.

use std::collections::BTreeMap;
use trysail_api::gateway::ReferenceGrant;
use trysail_api::gateway::gateways::{Gateway, GatewayClass};
use trysail_api::gateway::route::{GrpcRoute, HttpRoute};
use trysail_api::ids::service_hostname;
use trysail_api::istio::authorization_policy::AuthorizationPolicy;
use trysail_api::istio::destination_rule::DestinationRule;
use trysail_api::istio::peer_authentication::PeerAuthentication;
use trysail_api::istio::request_authentication::RequestAuthentication;
use trysail_api::istio::virtual_service::VirtualService;
use trysail_api::k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use trysail_api::k8s_openapi::api::networking::v1::NetworkPolicy;
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use trysail_api::object::{Kind, Object, ObjectKey};

/// The objects.
#[derive(Clone, Debug, Default)]
pub struct Objects(BTreeMap<ObjectKey, Object>);

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident: $kind:ident($type:ty);)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self) -> impl Iterator<Item = &$type> {
                self.of(Kind::$kind).filter_map(|o| match o {
                    Object::$kind(object) => Some(&**object),
                    _ => None,
                })
            }
        )*
    };
}

impl Objects {
    /// Puts an object in, or takes it out.
    pub fn set(&mut self, key: ObjectKey, object: Option<Object>) {
        match object {
            Some(object) => self.0.insert(key, object),
            None => self.0.remove(&key),
        };
    }

    /// Takes an object out.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        self.0.remove(key)
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<&Object> {
        self.0.get(key)
    }

    /// All of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let from = ObjectKey { kind, namespace: String::new(), name: String::new() };
        self.0.range(from..).take_while(move |(key, _)| key.kind == kind).map(|(_, object)| object)
    }

    /// Keys of all of a kind.
    pub fn keys(&self, kind: Kind) -> impl Iterator<Item = &ObjectKey> {
        let from = ObjectKey { kind, namespace: String::new(), name: String::new() };
        self.0.range(from..).take_while(move |(key, _)| key.kind == kind).map(|(key, _)| key)
    }

    lists! {
        /// Pods.
        pods: Pod(Pod);
        /// Services.
        services: Service(Service);
        /// Namespaces.
        namespaces: Namespace(Namespace);
        /// PeerAuthentications.
        peer_authentications: PeerAuthentication(PeerAuthentication);
        /// AuthorizationPolicies.
        authorization_policies: AuthorizationPolicy(AuthorizationPolicy);
        /// RequestAuthentications.
        request_authentications: RequestAuthentication(RequestAuthentication);
        /// VirtualServices.
        virtual_services: VirtualService(VirtualService);
        /// DestinationRules.
        destination_rules: DestinationRule(DestinationRule);
        /// NetworkPolicies.
        network_policies: NetworkPolicy(NetworkPolicy);
        /// Gateway classes.
        gateway_classes: GatewayClass(GatewayClass);
        /// Gateways and waypoints.
        gateways: Gateway(Gateway);
        /// HTTPRoutes.
        http_routes: HTTPRoute(HttpRoute);
        /// GRPCRoutes.
        grpc_routes: GRPCRoute(GrpcRoute);
        /// ReferenceGrants.
        reference_grants: ReferenceGrant(ReferenceGrant);
    }

    /// The services of a namespace.
    pub fn services_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Service> {
        let from = ObjectKey::new(Kind::Service, namespace, "");
        let inside = self.0.range(from..).take_while(move |(k, _)| k.kind == Kind::Service && k.namespace == namespace);
        inside.filter_map(|(_, object)| match object {
            Object::Service(service) => Some(&**service),
            _ => None,
        })
    }

    /// A service by namespace and name.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        match self.get(&ObjectKey::new(Kind::Service, namespace, name)) {
            Some(Object::Service(service)) => Some(service),
            _ => None,
        }
    }

    /// A gateway by namespace and name.
    pub fn gateway(&self, namespace: &str, name: &str) -> Option<&Gateway> {
        match self.get(&ObjectKey::new(Kind::Gateway, namespace, name)) {
            Some(Object::Gateway(gateway)) => Some(gateway),
            _ => None,
        }
    }

    /// A secret by namespace and name.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Secret> {
        match self.get(&ObjectKey::new(Kind::Secret, namespace, name)) {
            Some(Object::Secret(secret)) => Some(secret),
            _ => None,
        }
    }

    /// A namespace.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        match self.get(&ObjectKey::new(Kind::Namespace, "", name)) {
            Some(Object::Namespace(namespace)) => Some(namespace),
            _ => None,
        }
    }
}

/// An object's namespace.
pub fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or("default")
}

/// An object's name.
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// The service that a host name of an object in `from` means: `name`, `name.namespace`, or with the cluster's domain in full.
pub fn service_of_host(host: &str, from: &str) -> Option<(String, String)> {
    let bare = host.strip_suffix(".svc.cluster.local").or_else(|| host.strip_suffix(".svc")).unwrap_or(host);
    match bare.split('.').collect::<Vec<_>>().as_slice() {
        [name] if !name.is_empty() && *name != "*" => Some((from.to_owned(), (*name).to_owned())),
        [name, namespace] => Some(((*namespace).to_owned(), (*name).to_owned())),
        _ => None,
    }
}

/// The record key of a service, `namespace/hostname`.
pub fn service_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{}", service_hostname(name, namespace))
}
