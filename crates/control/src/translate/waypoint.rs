//! Which waypoint a service or workload is bound to, and when it is required.

use super::objects::{Objects, name, namespace, service_key};
use std::collections::BTreeMap;
use trysail_api::gateway::gateways::Gateway;
use trysail_api::ids::{ServiceKey, SpiffeId};
use trysail_api::istio::authorization_policy::{Action, AuthorizationPolicy};
use trysail_api::k8s_openapi::api::core::v1::{Pod, Service};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use trysail_api::labels::{self, WAYPOINT_PORT};
use trysail_api::object::{annotation, label};
use trysail_mesh::model::{Waypoint, WaypointAt};
use trysail_policy::authz::{self, Match, Policy, Scope, StringMatch};

/// Prefix of the policies that keep traffic from going around a hop.
pub const HOP_REQUIRED: &str = "trysail_l7_hop_required_";

/// What traffic is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressed {
    /// A service.
    Service,
    /// A workload itself.
    Workload,
}

/// The binding that labels ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The waypoint's namespace.
    pub namespace: String,
    /// The waypoint's name.
    pub name: String,
}

/// Whether a class is one of waypoints.
pub fn is_waypoint_class(class: &str) -> bool {
    matches!(class, "istio-waypoint" | "trysail-waypoint")
}

/// Whether a class is one of ingress gateways.
pub fn is_gateway_class(class: &str) -> bool {
    matches!(class, "istio" | "trysail")
}

/// What the labels of an object, else of its namespace, ask for.
pub fn asked(objects: &Objects, meta: &ObjectMeta) -> Option<Binding> {
    // What a gateway is made of has no waypoint itself.
    if label(meta, labels::GATEWAY_NAME).is_some() {
        return None;
    }
    let own = namespace(meta);
    let outer = objects.namespace(own).map(|n| &n.metadata);
    let holder = if label(meta, labels::USE_WAYPOINT).is_some() { Some(meta) } else { outer };
    let wanted = holder.and_then(|m| label(m, labels::USE_WAYPOINT)).filter(|w| *w != "none" && !w.is_empty())?;
    let place = holder.and_then(|m| label(m, labels::USE_WAYPOINT_NAMESPACE)).unwrap_or(own);
    Some(Binding { namespace: place.to_owned(), name: wanted.to_owned() })
}

/// Why a binding that is asked for is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// There is no such gateway, or it is none of waypoints.
    Missing,
    /// It is not for this kind of traffic.
    OtherTraffic,
    /// It does not take bindings from this namespace.
    NotAllowed,
}

/// The waypoint of a binding, if it is there and takes it.
pub fn bound<'a>(
    objects: &'a Objects,
    binding: &Binding,
    from: &str,
    addressed: Addressed,
) -> Result<&'a Gateway, Unbound> {
    let gateway = objects.gateway(&binding.namespace, &binding.name).ok_or(Unbound::Missing)?;
    if !is_waypoint_class(&gateway.spec.gateway_class_name) {
        return Err(Unbound::Missing);
    }
    let serves = label(&gateway.metadata, labels::WAYPOINT_FOR).unwrap_or("service");
    let fits = match addressed {
        Addressed::Service => matches!(serves, "service" | "all"),
        Addressed::Workload => matches!(serves, "workload" | "all"),
    };
    if !fits {
        return Err(Unbound::OtherTraffic);
    }
    let allowed = gateway.spec.listeners.iter().any(|l| {
        let namespaces = l.allowed_routes.as_ref().and_then(|r| r.namespaces.as_ref());
        super::l7::gateways::namespace_allowed(objects, namespaces, &binding.namespace, from)
    });
    if allowed { Ok(gateway) } else { Err(Unbound::NotAllowed) }
}

fn record(binding: &Binding) -> Waypoint {
    let key = ServiceKey::from_wire(&service_key(&binding.namespace, &binding.name));
    Waypoint { at: WaypointAt::Service(key), port: WAYPOINT_PORT }
}

/// The waypoint in a service's record. One that is required by a policy stands there also when it is missing: then nothing gets through.
pub fn of_service(objects: &Objects, service: &Service) -> Option<Waypoint> {
    let own = namespace(&service.metadata);
    let asked = asked(objects, &service.metadata);
    if let Some(binding) = &asked
        && bound(objects, binding, own, Addressed::Service).is_ok()
    {
        return Some(record(binding));
    }
    let nowhere = || Binding { namespace: own.to_owned(), name: "no-waypoint".to_owned() };
    required(objects, service).then(|| record(&asked.unwrap_or_else(nowhere)))
}

/// The waypoint in a pod's record.
pub fn of_pod(objects: &Objects, pod: &Pod) -> Option<Waypoint> {
    let binding = asked(objects, &pod.metadata)?;
    bound(objects, &binding, namespace(&pod.metadata), Addressed::Workload).ok().map(|_| record(&binding))
}

/// Whether a policy acts at an L7 hop on the way to `service`: then nothing may reach its ports around that hop.
pub fn required(objects: &Objects, service: &Service) -> bool {
    // Policies of the waypoint itself count only where it is the service's.
    let binding = asked(objects, &service.metadata)
        .filter(|b| bound(objects, b, namespace(&service.metadata), Addressed::Service).is_ok());
    objects.authorization_policies().any(|policy| {
        acts(policy)
            && policy.spec.target_refs.iter().any(|target| {
                let own = namespace(&policy.metadata);
                match target.kind.as_str() {
                    "Service" => own == namespace(&service.metadata) && target.name == name(&service.metadata),
                    "Gateway" => binding.as_ref().is_some_and(|b| b.namespace == own && b.name == target.name),
                    "GatewayClass" => binding.as_ref().is_some_and(|b| {
                        let gateway = objects.gateway(&b.namespace, &b.name);
                        gateway.is_some_and(|g| g.spec.gateway_class_name == target.name)
                    }),
                    _ => false,
                }
            })
    })
}

fn acts(policy: &AuthorizationPolicy) -> bool {
    policy.spec.action != Action::Audit && annotation(&policy.metadata, labels::DRY_RUN) != Some("true")
}

/// The policies that keep traffic from going around the hop that a pod's services require, one a service.
pub fn hop_policies(objects: &Objects, services: &[&Service], pod: &Pod, trust_domain: &str) -> Vec<Policy> {
    let own = namespace(&pod.metadata);
    let mut out: BTreeMap<String, Policy> = BTreeMap::new();
    for service in services.iter().filter(|s| required(objects, s)) {
        let binding = asked(objects, &service.metadata).filter(|b| bound(objects, b, own, Addressed::Service).is_ok());
        // No principal has this name: without a waypoint nobody passes.
        let principal =
            binding.map_or_else(|| "-".to_owned(), |b| SpiffeId::new(trust_domain, &b.namespace, &b.name).principal());
        let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
        let targets: Vec<u16> = ports.filter_map(|p| super::service::resolve_target(p, pod)).collect();
        let numbers: Vec<String> = targets.iter().map(u16::to_string).collect();
        let around = Match { not_principals: vec![StringMatch::Exact(principal)], ..Match::default() };
        let at = Match { destination_ports: targets, ..Match::default() };
        // Pods of one service may resolve a named port to different numbers.
        let policy_name = format!("{HOP_REQUIRED}{}_{}", name(&service.metadata), numbers.join("_"));
        let policy = Policy {
            namespace: own.to_owned(),
            name: policy_name.clone(),
            scope: Scope::Workload,
            action: authz::Action::Deny,
            rules: vec![vec![vec![around], vec![at]]],
            dry_run: false,
        };
        out.insert(policy_name, policy);
    }
    out.into_values().collect()
}
