//! What proxies that understand HTTP are told: routes, use of endpoints, policies, gateways. Pure: objects in, resources and findings out.

pub mod destinations;
pub mod findings;
pub mod gateways;
pub mod policies;
pub mod routes;
pub mod units;
pub mod virtual_services;

use super::objects::{Objects, service_key};
use findings::Findings;
use prost::Message;
use std::collections::BTreeMap;
use trysail_api::object::Object;
use trysail_wire::l7 as wire;
use trysail_wire::type_urls::{L7_GATEWAY, L7_POLICY, L7_SERVICE, L7_TOKENS};

/// Resources by type and name.
pub type Resources = BTreeMap<(&'static str, String), Vec<u8>>;

/// Everything that follows from the objects.
pub fn resources(objects: &Objects, cluster: &str) -> Resources {
    let mut out = Resources::new();
    for (name, service) in services(objects, cluster) {
        out.insert((L7_SERVICE, name), service.encode_to_vec());
    }
    for policy in policies::policies(objects) {
        out.insert((L7_POLICY, format!("{}/{}", policy.namespace, policy.name)), policy.encode_to_vec());
    }
    for tokens in policies::tokens(objects, cluster) {
        out.insert((L7_TOKENS, format!("{}/{}", tokens.namespace, tokens.name)), tokens.encode_to_vec());
    }
    for gateway in gateways::gateways(objects) {
        out.insert((L7_GATEWAY, format!("{}/{}", gateway.namespace, gateway.name)), gateway.encode_to_vec());
    }
    out
}

/// The services for which anything but the default is said.
fn services(objects: &Objects, cluster: &str) -> BTreeMap<String, wire::Service> {
    let mut out: BTreeMap<String, wire::Service> = BTreeMap::new();
    for (namespace, name, routes) in routes::of_services(objects) {
        let entry = entry(&mut out, &namespace, &name);
        match routes {
            routes::For::Everyone(routes) => entry.routes = routes,
            routes::For::Namespace(caller, routes) => {
                entry.consumers.push(wire::Consumer { namespace: caller, routes });
            }
        }
    }
    for (namespace, name, routes) in virtual_services::of_services(objects) {
        // Gateway API's routes come first where a service has both.
        entry(&mut out, &namespace, &name).routes.extend(routes);
    }
    for (namespace, name, destination) in destinations::of_services(objects, cluster) {
        entry(&mut out, &namespace, &name).destinations.push(destination);
    }
    out
}

fn entry<'a>(all: &'a mut BTreeMap<String, wire::Service>, namespace: &str, name: &str) -> &'a mut wire::Service {
    let key = service_key(namespace, name);
    let hostname = key.split_once('/').map(|(_, host)| host.to_owned()).unwrap_or_default();
    let fresh = || wire::Service { namespace: namespace.to_owned(), hostname, ..wire::Service::default() };
    all.entry(key).or_insert_with(fresh)
}

/// What is wrong with an object by itself: fields that cannot be read or are not honoured.
pub fn check(object: &Object) -> Findings {
    let mut findings = Findings::default();
    match object {
        Object::VirtualService(o) => virtual_services::check(o, &mut findings),
        Object::DestinationRule(o) => destinations::check(o, &mut findings),
        Object::HTTPRoute(o) => routes::check_http(o, &mut findings),
        Object::GRPCRoute(o) => routes::check_grpc(o, &mut findings),
        Object::Gateway(o) => gateways::check(o, &mut findings),
        Object::AuthorizationPolicy(o) => policies::check(o, &mut findings),
        Object::RequestAuthentication(o) => policies::check_tokens(o, &mut findings),
        _ => {}
    }
    findings
}
