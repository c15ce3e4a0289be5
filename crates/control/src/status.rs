//! What the mesh makes of an object, for the object's own status. Pure: all objects in, the object with its conditions out.

use crate::translate::authorization;
use crate::translate::l7::gateways::{self, NotAttached};
use crate::translate::l7::routes::{self, Written};
use crate::translate::objects::{Objects, name, namespace};
use crate::translate::waypoint::{self, Addressed, Unbound};
use trysail_api::gateway::gateways::{Gateway, GatewayClass, Listener, ListenerStatus, RouteKind};
use trysail_api::gateway::route::{ParentRef, ParentStatus};
use trysail_api::istio::authorization_policy::{Action, AuthorizationPolicy, TargetRef};
use trysail_api::k8s_openapi::api::core::v1::Service;
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use trysail_api::object::{Kind, Object};
use trysail_policy::ROOT_NAMESPACE;

/// Who writes these conditions, in the form that Gateway API wants.
pub const CONTROLLER: &str = "trysail.dev/controller";
/// Condition of a Service that a waypoint is asked for.
pub const WAYPOINT_BOUND: &str = "istio.io/WaypointBound";

/// Kinds whose status is told here.
pub const KINDS: [Kind; 6] =
    [Kind::Service, Kind::AuthorizationPolicy, Kind::GatewayClass, Kind::Gateway, Kind::HTTPRoute, Kind::GRPCRoute];

/// Kinds that what is told here follows from.
pub const CAUSES: [Kind; 9] = [
    Kind::Namespace,
    Kind::Service,
    Kind::Secret,
    Kind::AuthorizationPolicy,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::HTTPRoute,
    Kind::GRPCRoute,
    Kind::ReferenceGrant,
];

/// A condition's status, reason and message.
type Said = (bool, &'static str, String);

/// The object with the status that follows from all objects; `None` when it has that already, or none is told here.
pub fn settled(objects: &Objects, object: &Object, now: &Time) -> Option<Object> {
    let mut new = object.clone();
    match &mut new {
        Object::Service(service) => {
            let said = bound(objects, service);
            let conditions = &mut service.status.get_or_insert_default().conditions;
            match said {
                Some(said) => set(conditions.get_or_insert_default(), WAYPOINT_BOUND, said, None, now),
                None => {
                    conditions.iter_mut().for_each(|c| c.retain(|c| c.type_ != WAYPOINT_BOUND));
                    *conditions = conditions.take().filter(|c| !c.is_empty());
                }
            }
            service.status = service.status.take().filter(|s| *s != Default::default());
        }
        Object::AuthorizationPolicy(policy) => {
            let said = policy_conditions(objects, policy);
            let conditions = &mut policy.status.get_or_insert_default().conditions;
            conditions.retain(|c| said.iter().any(|(kind, _)| c.type_ == *kind));
            for (kind, said) in said {
                set(conditions, kind, said, None, now);
            }
        }
        Object::GatewayClass(class) => {
            let said = class_accepted(class)?;
            set(&mut class.status.get_or_insert_default().conditions, "Accepted", said, None, now);
        }
        Object::Gateway(gateway) => listeners(objects, gateway, now),
        Object::HTTPRoute(route) => {
            let known = &mut route.status.get_or_insert_default().parents;
            *known = parents(objects, &routes::read(object)?, known, now);
        }
        Object::GRPCRoute(route) => {
            let known = &mut route.status.get_or_insert_default().parents;
            *known = parents(objects, &routes::read(object)?, known, now);
        }
        _ => return None,
    }
    (new != *object).then_some(new)
}

/// Sets a condition; its time changes only when its status does.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    (status, reason, message): Said,
    generation: Option<i64>,
    now: &Time,
) {
    let status = if status { "True" } else { "False" };
    let at = conditions.iter().position(|c| c.type_ == kind);
    let since = at.and_then(|at| conditions.get(at)).filter(|c| c.status == status);
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since.map_or_else(|| now.clone(), |c| c.last_transition_time.clone()),
    };
    match at.and_then(|at| conditions.get_mut(at)) {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
}

fn programmed(gateway: &Gateway) -> bool {
    let conditions = gateway.status.iter().flat_map(|s| &s.conditions);
    conditions.into_iter().any(|c| c.type_ == "Programmed" && c.status == "True")
}

/// Whether the waypoint that a service asks for, or needs, serves it. `None`: it has to do with none.
fn bound(objects: &Objects, service: &Service) -> Option<Said> {
    let required = waypoint::required(objects, service);
    let consequence = match required {
        true => "a policy requires it: traffic to this service is refused",
        false => "traffic goes to the pods without it",
    };
    let Some(binding) = waypoint::asked(objects, &service.metadata) else {
        return required.then(|| (false, "WaypointMissing", format!("no waypoint is asked for; {consequence}")));
    };
    let name = format!("{}/{}", binding.namespace, binding.name);
    Some(match waypoint::bound(objects, &binding, namespace(&service.metadata), Addressed::Service) {
        Ok(gateway) if programmed(gateway) => {
            (true, "WaypointAccepted", format!("Successfully attached to waypoint {name}"))
        }
        Ok(_) => {
            (false, "WaypointNotReady", format!("waypoint {name} is not ready; traffic to this service is refused"))
        }
        Err(Unbound::Missing) => (false, "WaypointMissing", format!("there is no waypoint {name}; {consequence}")),
        Err(Unbound::OtherTraffic) => {
            let message = format!("waypoint {name} is not for services (label istio.io/waypoint-for); {consequence}");
            (false, "UnsupportedTrafficType", message)
        }
        Err(Unbound::NotAllowed) => {
            let own = namespace(&service.metadata);
            let message = format!("waypoint {name} does not take namespace {own} (allowedRoutes); {consequence}");
            (false, "AttachmentDenied", message)
        }
    })
}

fn policy_conditions(objects: &Objects, policy: &AuthorizationPolicy) -> Vec<(&'static str, Said)> {
    let (node, hop) = ("ZtunnelAccepted", "WaypointAccepted");
    if policy.spec.action == Action::Custom {
        let provider = policy.spec.provider.as_ref().map(|p| p.name.as_str()).unwrap_or_default();
        let said = || {
            let message = format!("action CUSTOM, provider {provider:?}, is not supported: acts as DENY");
            (false, "Invalid", message)
        };
        return vec![(node, said()), (hop, said())];
    }
    if policy.spec.target_refs.is_empty() {
        let notes = authorization::translate(policy, "").notes;
        let reason = if notes.is_empty() { "Accepted" } else { "PartiallyInvalid" };
        return vec![(node, (true, reason, notes.join("; ")))];
    }
    let wrong = policy.spec.target_refs.iter().filter_map(|target| target_at(objects, policy, target).err());
    let wrong: Vec<(&'static str, String)> = wrong.collect();
    let said = match wrong.first() {
        None => (true, "Accepted", String::new()),
        Some((reason, _)) => {
            (false, *reason, wrong.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; "))
        }
    };
    vec![(hop, said)]
}

/// Whether a policy acts where it is aimed at; else the reason and a message.
fn target_at(
    objects: &Objects,
    policy: &AuthorizationPolicy,
    target: &TargetRef,
) -> Result<(), (&'static str, String)> {
    let own = namespace(&policy.metadata);
    let missing = |what: &str| Err(("TargetNotFound", format!("{what} {own}/{} does not exist", target.name)));
    match target.kind.as_str() {
        "Service" => match objects.service(own, &target.name) {
            None => missing("service"),
            Some(service) => match bound(objects, service) {
                Some((false, _, message)) => {
                    Err(("AncestorNotBound", format!("service {own}/{}: {message}", target.name)))
                }
                _ => Ok(()),
            },
        },
        "Gateway" => match objects.gateway(own, &target.name) {
            None => missing("gateway"),
            Some(gateway) if programmed(gateway) => Ok(()),
            Some(_) => Err(("AncestorNotBound", format!("gateway {own}/{} is not ready", target.name))),
        },
        "GatewayClass" if own != ROOT_NAMESPACE => {
            Err(("Invalid", format!("a GatewayClass is targeted from namespace {ROOT_NAMESPACE} only")))
        }
        "GatewayClass" if !waypoint::is_waypoint_class(&target.name) => missing("waypoint class"),
        "GatewayClass" => Ok(()),
        other => Err(("Invalid", format!("targets of kind {other} are not supported"))),
    }
}

/// A class of ours is taken; of another nothing is said.
fn class_accepted(class: &GatewayClass) -> Option<Said> {
    let name = name(&class.metadata);
    let ours = waypoint::is_waypoint_class(name) || waypoint::is_gateway_class(name);
    ours.then(|| (true, "Accepted", String::new()))
}

fn listeners(objects: &Objects, gateway: &mut Gateway, now: &Time) {
    if !waypoint::is_gateway_class(&gateway.spec.gateway_class_name) {
        return;
    }
    let written = routes::all(objects);
    let up = programmed(gateway);
    let before = gateway.status.take().unwrap_or_default();
    let one = |listener: &Listener| {
        let attached = written.iter().filter(|route| {
            let named = route.parents.iter().any(|p| gateways::names(p, route, gateway, listener));
            named && gateways::attaches(objects, gateway, listener, route).is_ok()
        });
        let old = before.listeners.iter().find(|l| l.name == listener.name);
        let mut conditions = old.map(|l| l.conditions.clone()).unwrap_or_default();
        let resolved = match (listener.protocol.as_str(), gateways::certificates(objects, gateway, listener)) {
            ("HTTPS", Err(problem)) => reason(&problem),
            _ => (true, "ResolvedRefs", String::new()),
        };
        let serves = up && resolved.0;
        let generation = gateway.metadata.generation;
        set(&mut conditions, "Accepted", (true, "Accepted", String::new()), generation, now);
        let why = if serves { "Programmed" } else { "Pending" };
        set(&mut conditions, "Programmed", (serves, why, resolved.2.clone()), generation, now);
        set(&mut conditions, "ResolvedRefs", resolved, generation, now);
        let group = Some(trysail_api::gateway::GROUP.to_owned());
        let kinds = ["HTTPRoute", "GRPCRoute"].map(|kind| RouteKind { group: group.clone(), kind: kind.to_owned() });
        ListenerStatus {
            name: listener.name.clone(),
            attached_routes: i32::try_from(attached.count()).unwrap_or(i32::MAX),
            supported_kinds: kinds.to_vec(),
            conditions,
        }
    };
    let listeners = gateway.spec.listeners.iter().map(one).collect();
    gateway.status = Some(trysail_api::gateway::gateways::Status { listeners, ..before });
}

/// What the routes' translation says of a reference, `Reason: message`, as a condition.
fn reason(problem: &str) -> Said {
    let (reason, message) = problem.split_once(": ").unwrap_or(("Invalid", problem));
    let known = ["InvalidKind", "RefNotPermitted", "BackendNotFound", "InvalidCertificateRef"];
    let reason = known.into_iter().find(|k| *k == reason).unwrap_or("Invalid");
    (false, reason, message.to_owned())
}

fn parents(objects: &Objects, route: &Written<'_>, before: &[ParentStatus], now: &Time) -> Vec<ParentStatus> {
    let resolved = match route.unresolved(objects) {
        None => (true, "ResolvedRefs", String::new()),
        Some(problem) => reason(&problem),
    };
    let one = |parent: &ParentRef| {
        let old = before.iter().find(|p| p.parent_ref == *parent && p.controller_name == CONTROLLER);
        let mut conditions = old.map(|p| p.conditions.clone()).unwrap_or_default();
        set(&mut conditions, "Accepted", accepted(objects, route, parent), route.meta.generation, now);
        set(&mut conditions, "ResolvedRefs", resolved.clone(), route.meta.generation, now);
        ParentStatus { parent_ref: parent.clone(), controller_name: CONTROLLER.to_owned(), conditions }
    };
    route.parents.iter().map(one).collect()
}

/// Whether a parent takes a route.
fn accepted(objects: &Objects, route: &Written<'_>, parent: &ParentRef) -> Said {
    let place = parent.namespace.as_deref().unwrap_or(namespace(route.meta));
    let absent = |what: &str| (false, "NoMatchingParent", format!("{what} {place}/{} does not exist", parent.name));
    match parent.kind.as_deref().unwrap_or("Gateway") {
        "Service" if objects.service(place, &parent.name).is_none() => absent("service"),
        "Service" => (true, "Accepted", String::new()),
        "Gateway" => {
            let Some(gateway) = objects.gateway(place, &parent.name) else { return absent("gateway") };
            let named = gateway.spec.listeners.iter().filter(|l| gateways::names(parent, route, gateway, l));
            let each: Vec<_> = named.map(|l| gateways::attaches(objects, gateway, l, route)).collect();
            match each.first() {
                None => (false, "NoMatchingParent", "no listener has this sectionName or port".to_owned()),
                Some(_) if each.iter().any(Result::is_ok) => (true, "Accepted", String::new()),
                Some(Err(NotAttached::NoMatchingListenerHostname)) => {
                    (false, "NoMatchingListenerHostname", "no listener has a host name in common with it".to_owned())
                }
                Some(_) => {
                    (false, "NotAllowedByListeners", "no listener takes routes of its kind from here".to_owned())
                }
            }
        }
        other => (false, "InvalidKind", format!("parents of kind {other} are not supported")),
    }
}

#[cfg(test)]
mod tests;
