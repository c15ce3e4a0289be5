//! What a Gateway is made of: an account, a Deployment of the proxy, a Service. Pure; whoever owns the objects puts them in place.

use crate::inject::{self, Proxy};
use crate::proxy_config;
use crate::translate::objects::{name, namespace};
use crate::translate::waypoint::is_waypoint_class;
use std::collections::BTreeMap;
use trysail_api::gateway::gateways::Gateway;
use trysail_api::k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use trysail_api::k8s_openapi::api::core::v1::{
    PodSpec, PodTemplateSpec, Service, ServiceAccount, ServicePort, ServiceSpec,
};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_api::labels::{
    DATAPLANE_MODE, GATEWAY_CLASS, GATEWAY_MANAGED, GATEWAY_NAME, SIDECAR_INJECT, WAYPOINT_PORT,
};
use trysail_api::object::{Object, annotation};

/// The longest name of a Service (RFC 1035 label).
const LONGEST: usize = 63;

/// The name of what is made: a waypoint's is the Gateway's, another's has its class at the end, as Istio's have.
pub fn made_name(gateway: &Gateway) -> String {
    let (own, class) = (name(&gateway.metadata), &gateway.spec.gateway_class_name);
    let full = if is_waypoint_class(class) { own.to_owned() } else { format!("{own}-{class}") };
    if full.len() <= LONGEST {
        return full;
    }
    // Too long: cut, with a mark that depends on the whole.
    let hash = full.bytes().fold(0xcbf29ce484222325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3));
    format!("{}-{:08x}", full.get(..LONGEST - 9).unwrap_or(&full), hash as u32)
}

/// The objects of a gateway or a waypoint.
pub fn objects(gateway: &Gateway) -> Vec<Object> {
    let made = made_name(gateway);
    let waypoint = is_waypoint_class(&gateway.spec.gateway_class_name);
    let account = ServiceAccount { metadata: meta(gateway, &made), ..ServiceAccount::default() };
    vec![
        Object::ServiceAccount(Box::new(account)),
        Object::Service(Box::new(service(gateway, &made, waypoint))),
        Object::Deployment(Box::new(deployment(gateway, &made, waypoint))),
    ]
}

/// The annotation with the proxy's settings: the Gateway's own, or the one that it wants on what is made of it.
pub fn config(gateway: &Gateway) -> Option<&str> {
    let wanted = gateway.spec.infrastructure.as_ref().and_then(|i| i.annotations.get(proxy_config::ANNOTATION));
    wanted.map(String::as_str).or_else(|| annotation(&gateway.metadata, proxy_config::ANNOTATION))
}

fn own_labels(gateway: &Gateway) -> BTreeMap<String, String> {
    let extra = gateway.spec.infrastructure.as_ref().map(|i| i.labels.clone()).unwrap_or_default();
    let waypoint = is_waypoint_class(&gateway.spec.gateway_class_name);
    let controller = if waypoint { "istio.io-mesh-controller" } else { "istio.io-gateway-controller" };
    let own = [
        (GATEWAY_NAME, name(&gateway.metadata)),
        (GATEWAY_CLASS, gateway.spec.gateway_class_name.as_str()),
        (GATEWAY_MANAGED, controller),
    ];
    extra.into_iter().chain(own.map(|(k, v)| (k.to_owned(), v.to_owned()))).collect()
}

fn meta(gateway: &Gateway, made: &str) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: gateway.api_version.clone(),
        kind: "Gateway".to_owned(),
        name: name(&gateway.metadata).to_owned(),
        uid: gateway.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    ObjectMeta {
        name: Some(made.to_owned()),
        namespace: Some(namespace(&gateway.metadata).to_owned()),
        labels: Some(own_labels(gateway)),
        annotations: gateway.spec.infrastructure.as_ref().map(|i| i.annotations.clone()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

fn selector(gateway: &Gateway) -> BTreeMap<String, String> {
    BTreeMap::from([(GATEWAY_NAME.to_owned(), name(&gateway.metadata).to_owned())])
}

fn service(gateway: &Gateway, made: &str, waypoint: bool) -> Service {
    let port = |name: &str, number: u16| ServicePort {
        name: Some(name.to_owned()),
        port: number.into(),
        target_port: Some(IntOrString::Int(number.into())),
        ..ServicePort::default()
    };
    let mut ports = vec![port("status-port", inject::READY_PORT)];
    if waypoint {
        ports.push(port("mesh", WAYPOINT_PORT));
    } else {
        for listener in &gateway.spec.listeners {
            // Listeners with other host names share their port.
            if !ports.iter().any(|p| p.port == i32::from(listener.port)) {
                let protocol = listener.protocol.to_ascii_lowercase();
                ports.push(port(&format!("{protocol}-{}", listener.name), listener.port));
            }
        }
    }
    let spec = ServiceSpec { selector: Some(selector(gateway)), ports: Some(ports), ..ServiceSpec::default() };
    Service { metadata: meta(gateway, made), spec: Some(spec), status: None }
}

fn deployment(gateway: &Gateway, made: &str, waypoint: bool) -> Deployment {
    let mut labels = own_labels(gateway);
    // The proxy itself is neither captured nor given a sidecar.
    labels.insert(DATAPLANE_MODE.to_owned(), "none".to_owned());
    labels.insert(SIDECAR_INJECT.to_owned(), "false".to_owned());
    labels.insert("service.istio.io/canonical-name".to_owned(), made.to_owned());
    let role = if waypoint { Proxy::Waypoint } else { Proxy::Gateway };
    let mut container = inject::container(role, (name(&gateway.metadata), &gateway.spec.gateway_class_name));
    inject::configure(&mut container, config(gateway));
    let spec = PodSpec {
        service_account_name: Some(made.to_owned()),
        termination_grace_period_seconds: Some(10),
        containers: vec![container],
        volumes: Some(inject::volumes()),
        ..PodSpec::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
        spec: Some(spec),
    };
    let selector = LabelSelector { match_labels: Some(selector(gateway)), match_expressions: None };
    let spec = DeploymentSpec { replicas: Some(1), selector, template, ..DeploymentSpec::default() };
    Deployment { metadata: meta(gateway, made), spec: Some(spec), status: None }
}
