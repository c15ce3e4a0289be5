//! Services to endpoints: for the nodes' rules and the resolver.

use crate::dns::Names;
use crate::services::Forward;
use std::net::Ipv4Addr;
use trysail_api::ids::service_hostname;
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_api::object::labels;

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn address(pod: &Pod) -> Option<Ipv4Addr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

fn selected<'a>(service: &Service, pods: &[&'a Pod]) -> Vec<&'a Pod> {
    let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()).filter(|s| !s.is_empty()) else {
        return Vec::new();
    };
    let unready = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let of = |pod: &&&Pod| {
        let own = labels(&pod.metadata);
        pod.metadata.namespace == service.metadata.namespace
            && selector.iter().all(|(k, v)| own.get(k) == Some(v))
            && (unready || is_ready(pod))
    };
    pods.iter().filter(of).copied().collect()
}

/// The virtual address; none for a headless service.
fn vip(service: &Service) -> Option<Ipv4Addr> {
    service.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok()
}

/// The rules' input for one service.
pub fn forwards(service: &Service, pods: &[&Pod]) -> Vec<Forward> {
    let (Some(vip), Some(spec)) = (vip(service), service.spec.as_ref()) else { return Vec::new() };
    let members = selected(service, pods);
    let port = |p: &trysail_api::k8s_openapi::api::core::v1::ServicePort| {
        let target = |pod: &Pod| match &p.target_port {
            None => u16::try_from(p.port).ok(),
            Some(IntOrString::Int(n)) => u16::try_from(*n).ok(),
            Some(IntOrString::String(name)) => {
                let containers = pod.spec.as_ref()?.containers.iter();
                let mut declared = containers.flat_map(|c| c.ports.iter().flatten());
                declared.find(|d| d.name.as_deref() == Some(name)).and_then(|d| u16::try_from(d.container_port).ok())
            }
        };
        let mut endpoints: Vec<_> = members.iter().filter_map(|pod| Some((address(pod)?, target(pod)?))).collect();
        endpoints.sort_unstable();
        Some(Forward { vip, port: u16::try_from(p.port).ok()?, endpoints })
    };
    spec.ports.iter().flatten().filter_map(port).collect()
}

/// The resolver's names of all services.
pub fn names(services: &[&Service], pods: &[&Pod]) -> Names {
    let each = |service: &&Service| {
        let (name, namespace) = (service.metadata.name.as_deref()?, service.metadata.namespace.as_deref()?);
        let addresses = match vip(service) {
            Some(vip) => vec![vip],
            None => selected(service, pods).into_iter().filter_map(address).collect(),
        };
        Some((service_hostname(name, namespace), addresses))
    };
    services.iter().filter_map(each).collect()
}
