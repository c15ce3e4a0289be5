//! Service to service record.

use trysail_api::ids::{ServiceKey, service_hostname};
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service as K8sService, ServicePort as K8sPort};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_api::object::labels;
use trysail_mesh::model::{AppProtocol, LoadBalancing, Scope, Service, ServicePort};

/// The record's key.
pub fn key(service: &K8sService) -> ServiceKey {
    let (name, namespace) = names(service);
    ServiceKey::new(namespace, &service_hostname(name, namespace))
}

fn names(service: &K8sService) -> (&str, &str) {
    let meta = &service.metadata;
    (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or("default"))
}

/// The record; none for ExternalName services.
pub fn service(service: &K8sService) -> Option<Service> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let (name, namespace) = names(service);
    let given = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let mut addresses: Vec<_> = given.filter_map(|ip| ip.parse().ok()).map(|ip| (String::new(), ip)).collect();
    addresses.dedup();
    let target = |p: &K8sPort| match &p.target_port {
        Some(IntOrString::Int(number)) => u16::try_from(*number).unwrap_or(0),
        Some(IntOrString::String(_)) => 0,
        None => u16::try_from(p.port).unwrap_or(0),
    };
    let tcp = |p: &&K8sPort| p.protocol.as_deref().unwrap_or("TCP") == "TCP";
    let ports = spec.ports.iter().flatten().filter(tcp);
    let mut balancing = LoadBalancing {
        allow_unhealthy: spec.publish_not_ready_addresses.unwrap_or(false),
        ..LoadBalancing::default()
    };
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        balancing.preference = vec![Scope::Node];
        balancing.strict = true;
    } else {
        balancing.preference = match spec.traffic_distribution.as_deref() {
            Some("PreferClose" | "PreferSameZone") => vec![Scope::Network, Scope::Region, Scope::Zone],
            Some("PreferSameNode") => vec![Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node],
            _ => Vec::new(),
        };
    }
    Some(Service {
        key: key(service),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        hostname: service_hostname(name, namespace),
        addresses,
        ports: ports
            .filter_map(|p| {
                Some(ServicePort { port: u16::try_from(p.port).ok()?, target: target(p), protocol: protocol(p) })
            })
            .collect(),
        subject_alt_names: Vec::new(),
        balancing,
        waypoint: None,
    })
}

/// What a port declares: its `appProtocol`, else its name up to the first dash (Istio's rule).
fn protocol(port: &K8sPort) -> AppProtocol {
    let declared = port.app_protocol.as_deref();
    let named = || port.name.as_deref().map(|n| n.split('-').next().unwrap_or(n));
    match declared.or_else(named).unwrap_or_default().to_ascii_lowercase().as_str() {
        "http" | "kubernetes.io/ws" => AppProtocol::Http1,
        "http2" | "h2c" | "kubernetes.io/h2c" => AppProtocol::Http2,
        "grpc" | "kubernetes.io/grpc" => AppProtocol::Grpc,
        "tcp" | "mongo" | "mysql" | "redis" | "udp" => AppProtocol::Tcp,
        "https" | "tls" | "kubernetes.io/wss" => AppProtocol::Tls,
        _ => AppProtocol::Unknown,
    }
}

/// Whether a service of the pod's namespace selects the pod. A service without selector selects none.
pub fn selects(service: &K8sService, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    let pod_labels = labels(&pod.metadata);
    selector.is_some_and(|s| !s.is_empty() && s.iter().all(|(k, v)| pod_labels.get(k) == Some(v)))
}

/// The pod's port behind a service port; named ports are looked up in the pod.
pub fn resolve_target(port: &K8sPort, pod: &Pod) -> Option<u16> {
    let number = |n: i32| u16::try_from(n).ok();
    match &port.target_port {
        None => number(port.port),
        Some(IntOrString::Int(n)) => number(*n),
        Some(IntOrString::String(name)) => {
            let containers = pod.spec.as_ref()?.containers.iter();
            let mut declared = containers.flat_map(|c| c.ports.iter().flatten());
            declared.find(|p| p.name.as_deref() == Some(name)).and_then(|p| number(p.container_port))
        }
    }
}
