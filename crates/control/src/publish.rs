//! What proxies are told: records as resources, with versions and aliases, and the batches that wake their streams.

use crate::translate::Outcome;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use trysail_mesh::codec::{self, policy_to_wire, service_to_wire, workload_to_wire};
use trysail_mesh::{Change, Service, Workload};
use trysail_wire::network as net;
use trysail_wire::type_urls::{
    ADDRESS, AUTHORIZATION, L7_GATEWAY, L7_POLICY, L7_SERVICE, L7_TOKENS, NAMESPACE, NETWORK_POLICY,
};
use trysail_wire::workload::{Address, address::Type};
use trysail_xds::server::{Batch, Publisher};
use trysail_xds::session::{Catalog, Published};

/// The published resources.
#[derive(Default)]
pub struct Resources {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    by_type: HashMap<&'static str, BTreeMap<String, Arc<Published>>>,
    /// Alias to resource names, for types of addresses.
    aliases: HashMap<String, BTreeSet<String>>,
}

impl Resources {
    /// Puts `changes` in effect, then wakes the streams.
    pub fn publish(&self, outcome: &Outcome, publisher: &Publisher) {
        let (mut policies, mut addresses, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut others: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        {
            let mut state = self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            for resource in &outcome.resources {
                let (type_url, name) = match &resource.body {
                    Some(body) => state.put(
                        resource.type_url,
                        resource.name.clone(),
                        body.clone(),
                        resource.alias.iter().cloned().collect(),
                    ),
                    None => state.remove(resource.type_url, &resource.name),
                };
                others.entry(type_url).or_default().insert(name);
            }
            for change in &outcome.records {
                let (type_url, name) = state.apply(change);
                let to = match (type_url, change) {
                    (_, Change::PolicyGone(_)) => &mut gone,
                    (ADDRESS, _) => &mut addresses,
                    (AUTHORIZATION, _) => &mut policies,
                    (other, _) => others.entry(other).or_default(),
                };
                to.insert(name);
            }
        }
        // A workload's record lists policies by name, and a name that is not known is skipped: policies come before the records that
        // list them and leave after those that no longer do.
        // Policies at layer 7 come before the records that lead traffic to where they act; routes before what they lead to is used.
        let mut of = |type_url: &'static str| (type_url, others.remove(type_url).unwrap_or_default());
        let l7 = [of(NAMESPACE), of(NETWORK_POLICY), of(L7_POLICY), of(L7_TOKENS), of(L7_SERVICE), of(L7_GATEWAY)];
        let records = [(AUTHORIZATION, policies), (ADDRESS, addresses), (AUTHORIZATION, gone)];
        for (type_url, names) in l7.into_iter().chain(records) {
            if !names.is_empty() {
                publisher.publish(Batch { type_url: type_url.into(), names: Arc::new(names) });
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many resources of each type are published.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        self.read().by_type.iter().map(|(t, all)| (*t, all.len())).collect()
    }
}

impl State {
    fn apply(&mut self, change: &Change) -> (&'static str, String) {
        match change {
            Change::Workload(w) => {
                let body = Address { r#type: Some(Type::Workload(workload_to_wire(w))) }.encode_to_vec();
                self.put(ADDRESS, w.uid.to_string(), body, workload_aliases(w))
            }
            Change::Service(s) => {
                let body = Address { r#type: Some(Type::Service(service_to_wire(s))) }.encode_to_vec();
                self.put(ADDRESS, s.key.to_string(), body, service_aliases(s))
            }
            Change::Policy(p) => {
                let name = format!("{}/{}", p.namespace, p.name);
                self.put(AUTHORIZATION, name, policy_to_wire(p).encode_to_vec(), Vec::new())
            }
            Change::NetworkPolicy(p, spec) => {
                let (namespace, name) = (p.namespace.clone(), p.name.clone());
                let full = format!("{namespace}/{name}");
                let body = net::Policy { namespace, name, spec: spec.to_vec() }.encode_to_vec();
                self.put(NETWORK_POLICY, full, body, Vec::new())
            }
            Change::Namespace(name, labels) => {
                let body = net::Namespace { name: name.clone(), labels: labels.clone() }.encode_to_vec();
                self.put(NAMESPACE, name.clone(), body, Vec::new())
            }
            Change::NetworkPolicyGone(name) => self.remove(NETWORK_POLICY, name),
            Change::NamespaceGone(name) => self.remove(NAMESPACE, name),
            Change::AddressGone(name) => self.remove(ADDRESS, name),
            Change::PolicyGone(name) => self.remove(AUTHORIZATION, name),
        }
    }

    fn put(
        &mut self,
        type_url: &'static str,
        name: String,
        body: Vec<u8>,
        aliases: Vec<String>,
    ) -> (&'static str, String) {
        self.remove(type_url, &name);
        for alias in &aliases {
            self.aliases.entry(alias.clone()).or_default().insert(name.clone());
        }
        let version = version(&body);
        let resource = Published { version, body: body.into(), aliases };
        self.by_type.entry(type_url).or_default().insert(name.clone(), Arc::new(resource));
        (type_url, name)
    }

    fn remove(&mut self, type_url: &'static str, name: &str) -> (&'static str, String) {
        let old = self.by_type.get_mut(type_url).and_then(|all| all.remove(name));
        for alias in old.iter().flat_map(|r| &r.aliases) {
            if let Some(names) = self.aliases.get_mut(alias) {
                names.remove(name);
                if names.is_empty() {
                    self.aliases.remove(alias);
                }
            }
        }
        (type_url, name.to_owned())
    }
}

/// A version that depends on the content alone, so that a client that reconnects, to this or a restarted control plane, is sent only
/// what differs (FNV-1a, 128 bit).
fn version(body: &[u8]) -> String {
    let hash = body.iter().fold(0x6c62272e07bb014262b821756295c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000000001000000000000000000013b)
    });
    format!("{hash:032x}")
}

fn workload_aliases(w: &Workload) -> Vec<String> {
    w.addresses.iter().map(|a| format!("{}/{a}", w.network)).collect()
}

fn service_aliases(s: &Service) -> Vec<String> {
    s.addresses.iter().map(|(network, a)| format!("{network}/{a}")).collect()
}

impl Catalog for Resources {
    fn get(&self, type_url: &str, name: &str) -> Option<Arc<Published>> {
        self.read().by_type.get(type_url)?.get(name).cloned()
    }

    fn names(&self, type_url: &str) -> Vec<String> {
        self.read().by_type.get(type_url).map(|all| all.keys().cloned().collect()).unwrap_or_default()
    }

    fn resolve(&self, type_url: &str, name: &str) -> Vec<String> {
        let state = self.read();
        let Some(all) = state.by_type.get(type_url) else { return Vec::new() };
        let mut found: BTreeSet<String> = state.aliases.get(name).cloned().unwrap_or_default();
        if all.contains_key(name) {
            found.insert(name.to_owned());
        }
        // Whoever asks for a service is given its endpoints too.
        let services: Vec<String> = found.iter().filter(|n| !n.contains("//")).cloned().collect();
        if type_url == ADDRESS && !services.is_empty() {
            found.extend(all.iter().filter(|(_, r)| serves(r, &services)).map(|(n, _)| n.clone()));
        }
        found.into_iter().collect()
    }

    fn knows(&self, type_url: &str) -> bool {
        codec::TYPES.contains(&type_url) || [L7_SERVICE, L7_POLICY, L7_TOKENS, L7_GATEWAY].contains(&type_url)
    }
}

fn serves(resource: &Published, services: &[String]) -> bool {
    match Address::decode(resource.body.clone()).map(|a| a.r#type) {
        Ok(Some(Type::Workload(w))) => services.iter().any(|s| w.services.contains_key(s)),
        _ => false,
    }
}
