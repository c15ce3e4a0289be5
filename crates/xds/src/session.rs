//! One client's view on the server's side: what it asked for, what it has. A pure state machine, driven by requests and publications.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use trysail_wire::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};

/// A published resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Changes with the content.
    pub version: String,
    /// The message, encoded.
    pub body: bytes::Bytes,
    /// Further names under which it can be asked for.
    pub aliases: Vec<String>,
}

/// What is published at one moment.
pub trait Catalog: Send + Sync + 'static {
    /// One resource.
    fn get(&self, type_url: &str, name: &str) -> Option<Arc<Published>>;
    /// The names of all resources of a type.
    fn names(&self, type_url: &str) -> Vec<String>;
    /// What a client that asks for `name` is to be given: the resource itself, or those that the name is an alias of.
    fn resolve(&self, type_url: &str, name: &str) -> Vec<String>;
    /// Whether this server publishes the type.
    fn knows(&self, type_url: &str) -> bool;
}

#[derive(Default)]
struct Subscription {
    wildcard: bool,
    /// On-demand name to what it resolved to when last looked at.
    names: BTreeMap<String, BTreeSet<String>>,
    /// Name to version, as acknowledged or under way.
    sent: HashMap<String, String>,
    answered: bool,
}

/// One stream's state.
#[derive(Default)]
pub struct Session {
    types: BTreeMap<String, Subscription>,
    next_nonce: u64,
}

/// What became of a request.
pub enum Outcome {
    /// Send this.
    Respond(DeltaDiscoveryResponse),
    /// Nothing to send.
    Quiet,
    /// The client refused an earlier response; it keeps what it had.
    Refused(String),
}

impl Session {
    /// Takes a request in and says what to answer.
    pub fn request(&mut self, request: DeltaDiscoveryRequest, catalog: &dyn Catalog) -> Outcome {
        if !catalog.knows(&request.type_url) {
            return Outcome::Quiet;
        }
        let first = !self.types.contains_key(&request.type_url);
        let subscription = self.types.entry(request.type_url.clone()).or_default();
        let refused = request.error_detail.map(|detail| detail.message);
        if first {
            subscription.sent = request.initial_resource_versions.into_iter().collect();
            subscription.wildcard = request.resource_names_subscribe.is_empty();
        }
        let mut asked = Vec::new();
        for name in request.resource_names_subscribe {
            if name == "*" {
                subscription.wildcard = true;
                subscription.answered = false;
            } else {
                asked.push(name);
            }
        }
        for name in request.resource_names_unsubscribe {
            if name == "*" {
                subscription.wildcard = false;
            } else {
                subscription.names.remove(&name);
            }
        }
        if let Some(message) = refused {
            return Outcome::Refused(message);
        }
        // The first request of a type, and every new subscription, gets an answer, be it empty.
        if first || !asked.is_empty() || !subscription.answered {
            let type_url = request.type_url;
            return self.full(&type_url, &asked, catalog).map_or(Outcome::Quiet, Outcome::Respond);
        }
        Outcome::Quiet
    }

    /// The types that the client asked for.
    pub fn types(&self) -> Vec<String> {
        self.types.keys().cloned().collect()
    }

    /// Compares everything the client asked for with what it has. `asked`: names it has just subscribed to.
    fn full(&mut self, type_url: &str, asked: &[String], catalog: &dyn Catalog) -> Option<DeltaDiscoveryResponse> {
        let subscription = self.types.get_mut(type_url)?;
        subscription.answered = true;
        let mut missing = Vec::new();
        let mut wanted: BTreeSet<String> = BTreeSet::new();
        for name in asked {
            let found: BTreeSet<String> = catalog.resolve(type_url, name).into_iter().collect();
            if found.is_empty() {
                missing.push(name.clone());
            }
            // Whoever asks by name gets an answer even if the version is the same.
            for resource in &found {
                subscription.sent.remove(resource);
            }
            subscription.names.insert(name.clone(), found);
        }
        for (name, found) in &mut subscription.names {
            *found = catalog.resolve(type_url, name).into_iter().collect();
            wanted.extend(found.iter().cloned());
        }
        if subscription.wildcard {
            wanted.extend(catalog.names(type_url));
        }
        let gone: Vec<String> = subscription.sent.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        for name in &gone {
            subscription.sent.remove(name);
        }
        missing.extend(gone);
        let resources = wanted.iter().filter_map(|name| fresh(subscription, type_url, name, catalog)).collect();
        Some(self.response(type_url, resources, missing))
    }

    /// After a publication: what changed of what the client asked for. `changed` names resources; `None` compares everything.
    pub fn published(
        &mut self,
        type_url: &str,
        changed: Option<&BTreeSet<String>>,
        catalog: &dyn Catalog,
    ) -> Option<DeltaDiscoveryResponse> {
        let Some(changed) = changed else {
            let response = self.full(type_url, &[], catalog)?;
            let empty = response.resources.is_empty() && response.removed_resources.is_empty();
            return (!empty).then_some(response);
        };
        let subscription = self.types.get_mut(type_url)?;
        let (mut resources, mut removed) = (Vec::new(), Vec::new());
        for name in changed {
            let interested = subscription.wildcard || {
                // A new resource may be what an on-demand name has waited for.
                let aliases = catalog.get(type_url, name).map(|r| r.aliases.clone()).unwrap_or_default();
                for alias in aliases.iter().chain([name]) {
                    if let Some(found) = subscription.names.get_mut(alias) {
                        found.insert(name.clone());
                    }
                }
                subscription.names.values().any(|found| found.contains(name))
            };
            if !interested {
                continue;
            }
            if catalog.get(type_url, name).is_none() {
                if subscription.sent.remove(name).is_some() {
                    removed.push(name.clone());
                }
            } else if let Some(resource) = fresh(subscription, type_url, name, catalog) {
                resources.push(resource);
            }
        }
        let quiet = resources.is_empty() && removed.is_empty();
        (!quiet).then(|| self.response(type_url, resources, removed))
    }

    fn response(&mut self, type_url: &str, resources: Vec<Resource>, removed: Vec<String>) -> DeltaDiscoveryResponse {
        self.next_nonce += 1;
        let nonce = self.next_nonce.to_string();
        DeltaDiscoveryResponse {
            system_version_info: String::new(),
            resources,
            type_url: type_url.to_owned(),
            nonce,
            removed_resources: removed,
        }
    }
}

/// The resource, unless the client has this version; from now on it has.
fn fresh(subscription: &mut Subscription, type_url: &str, name: &str, catalog: &dyn Catalog) -> Option<Resource> {
    let resource = catalog.get(type_url, name)?;
    if subscription.sent.get(name) == Some(&resource.version) {
        return None;
    }
    subscription.sent.insert(name.to_owned(), resource.version.clone());
    Some(Resource {
        version: resource.version.clone(),
        resource: Some(prost_types::Any { type_url: type_url.to_owned(), value: resource.body.to_vec() }),
        name: name.to_owned(),
        aliases: resource.aliases.clone(),
    })
}

#[cfg(test)]
mod tests;
