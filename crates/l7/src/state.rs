//! Everything that decisions rest on, as one snapshot: the mesh, and what is said beside it.

use crate::compile::{Retry, Route};
use crate::jwt::Issuers;
use crate::upstream::endpoints::{EndpointSet, Wanted};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_mesh::{Service, Snapshot, Workload};
use trysail_policy::http::Policy;
use trysail_policy::{ROOT_NAMESPACE, authz};
use trysail_wire::l7 as wire;

/// The snapshot.
#[derive(Default)]
pub struct State {
    /// Workloads, services, policies at layer 4.
    pub mesh: Snapshot,
    /// What is said beside it.
    pub l7: Arc<L7>,
    /// Counts publications.
    pub generation: u64,
    /// Endpoints that were looked up, for this snapshot alone.
    pub(crate) endpoints: RwLock<HashMap<Wanted, Arc<EndpointSet>>>,
}

/// What is said beside the mesh.
#[derive(Clone, Default)]
pub struct L7 {
    /// By service.
    pub services: HashMap<ServiceKey, Arc<ServiceRoutes>>,
    /// By `namespace/name`.
    pub policies: BTreeMap<String, Arc<Attached>>,
    /// By `namespace/name`.
    pub tokens: BTreeMap<String, Arc<AttachedTokens>>,
    /// The own gateway's listeners.
    pub gateway: Option<Arc<Gateway>>,
}

/// Routes and use of endpoints of a service.
#[derive(Default)]
pub struct ServiceRoutes {
    /// For all callers.
    pub routes: Vec<Arc<Route>>,
    /// For callers of one namespace.
    pub consumers: HashMap<String, Vec<Arc<Route>>>,
    /// Use of endpoints, by namespace of the rule.
    pub destinations: HashMap<String, Destination>,
}

/// How endpoints are used.
pub struct Destination {
    /// Of all endpoints.
    pub traffic: Traffic,
    /// Named groups.
    pub subsets: HashMap<String, Subset>,
}

/// A named group of endpoints.
pub struct Subset {
    /// Its workloads.
    pub members: Vec<WorkloadUid>,
    /// How they are used.
    pub traffic: Traffic,
}

/// Settings, some of them of one port.
#[derive(Default)]
pub struct Traffic {
    all: Arc<wire::Settings>,
    ports: HashMap<u16, Arc<wire::Settings>>,
}

impl Traffic {
    /// From the wire.
    pub fn new(traffic: Option<wire::Traffic>) -> Self {
        let traffic = traffic.unwrap_or_default();
        let port = |p: wire::PortTraffic| Some((u16::try_from(p.port).ok()?, Arc::new(p.settings.unwrap_or_default())));
        Self {
            all: Arc::new(traffic.all.unwrap_or_default()),
            ports: traffic.ports.into_iter().filter_map(port).collect(),
        }
    }

    /// The settings of a port.
    pub fn of(&self, port: u16) -> Arc<wire::Settings> {
        self.ports.get(&port).unwrap_or(&self.all).clone()
    }
}

/// A policy and where it acts.
pub struct Attached {
    /// The policy.
    pub policy: Policy,
    /// Its namespace.
    pub namespace: String,
    /// Only where one of these is served; by scope when empty.
    pub targets: Vec<wire::Target>,
    /// Which workloads, when there are no targets.
    pub scope: wire::Scope,
}

/// Issuers and where their tokens are looked for.
pub struct AttachedTokens {
    /// The issuers.
    pub issuers: Issuers,
    /// Namespace of the object.
    pub namespace: String,
    /// Only where one of these is served; by scope when empty.
    pub targets: Vec<wire::Target>,
    /// Which workloads.
    pub scope: wire::Scope,
    /// Workloads, for a scope of workloads.
    pub members: Vec<WorkloadUid>,
}

/// A gateway's listeners.
pub struct Gateway {
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// Proxies in front of it that are believed.
    pub trusted_proxies: usize,
}

/// A listener.
pub struct Listener {
    /// Name.
    pub name: String,
    /// Port.
    pub port: u16,
    /// Host, any when empty.
    pub hostname: String,
    /// Its TLS certificates; `None`: plaintext.
    pub tls: Option<Vec<Arc<rustls::sign::CertifiedKey>>>,
    /// Routes.
    pub routes: Vec<Arc<Route>>,
}

/// No rule of the service names such a subset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSubset;

/// Where policies with targets are looked for.
#[derive(Clone, Debug, Default)]
pub struct Serving<'a> {
    /// The addressed service.
    pub service: Option<&'a Service>,
    /// Namespace and name of the gateway or waypoint.
    pub gateway: Option<(&'a str, &'a str)>,
    /// The gateway's class.
    pub class: &'a str,
    /// The workload itself: policies by scope act here.
    pub workload: Option<&'a Workload>,
}

impl Serving<'_> {
    fn serves(&self, target: &wire::Target) -> bool {
        match target.kind.as_str() {
            "Service" => self.service.is_some_and(|s| s.namespace == target.namespace && s.name == target.name),
            "Gateway" => self.gateway == Some((target.namespace.as_str(), target.name.as_str())),
            "GatewayClass" => target.namespace == ROOT_NAMESPACE && self.class == target.name,
            _ => false,
        }
    }

    /// Whether an object with these targets, scope and namespace acts here. `listed`: a scope of workloads includes this one.
    fn acts(
        &self,
        targets: &[wire::Target],
        (scope, namespace): (wire::Scope, &str),
        listed: impl Fn(&Workload) -> bool,
    ) -> bool {
        if !targets.is_empty() {
            return targets.iter().any(|t| self.serves(t));
        }
        self.workload.is_some_and(|w| match scope {
            wire::Scope::Global => true,
            wire::Scope::Namespace => w.namespace == namespace,
            wire::Scope::Selector => listed(w),
        })
    }
}

impl State {
    /// The policies that act where `serving` says.
    pub fn policies<'a>(&'a self, serving: &'a Serving<'_>) -> impl Iterator<Item = &'a Policy> + Clone {
        self.l7.policies.iter().filter_map(move |(name, p)| {
            let listed = |w: &Workload| w.policies.iter().any(|listed| listed == name);
            serving.acts(&p.targets, (p.scope, &p.namespace), listed).then_some(&p.policy)
        })
    }

    /// Whether any policy acts where `serving` says.
    pub fn has_policies(&self, serving: &Serving<'_>) -> bool {
        self.policies(serving).next().is_some()
    }

    /// Policies at layer 4 that no object states: PeerAuthentication and required hops.
    pub fn implied<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a authz::Policy> {
        self.mesh
            .policies_of(workload)
            .filter(|p| !self.l7.policies.contains_key(&format!("{}/{}", p.namespace, p.name)))
    }

    /// The issuers whose tokens are believed where `serving` says.
    pub fn tokens<'a>(&'a self, serving: &Serving<'_>) -> Vec<&'a AttachedTokens> {
        let all = self.l7.tokens.values();
        let mine = all.filter(|t| {
            let listed = |w: &Workload| t.members.contains(&w.uid);
            serving.acts(&t.targets, (t.scope, &t.namespace), listed)
        });
        mine.map(Arc::as_ref).collect()
    }

    /// The routes of a service's port for a caller in `namespace`; none: straight to the service.
    pub fn routes(&self, service: &ServiceKey, port: u16, namespace: &str) -> Option<&[Arc<Route>]> {
        let routes = self.l7.services.get(service)?;
        let list = routes.consumers.get(namespace).unwrap_or(&routes.routes);
        crate::router::speaks_of(list, port).then_some(list.as_slice())
    }

    /// How a caller in `namespace` uses a service's endpoints: the rule of its own namespace, else of the service's, else of the root's.
    pub fn destination(&self, service: &ServiceKey, namespace: &str) -> Option<&Destination> {
        let rules = &self.l7.services.get(service)?.destinations;
        [namespace, service.namespace(), ROOT_NAMESPACE].iter().find_map(|ns| rules.get(*ns))
    }

    /// The settings of a port or a subset's port. `Err`: there is no such subset.
    pub fn traffic(
        &self,
        service: &ServiceKey,
        namespace: &str,
        (port, subset): (u16, &str),
    ) -> Result<Arc<wire::Settings>, NoSubset> {
        match (self.destination(service, namespace), subset) {
            (None, "") => Ok(Arc::default()),
            (Some(d), "") => Ok(d.traffic.of(port)),
            (Some(d), subset) => d.subsets.get(subset).map(|s| s.traffic.of(port)).ok_or(NoSubset),
            (None, _) => Err(NoSubset),
        }
    }
}

/// The retries of a route that says nothing: what is safe, twice.
pub fn default_retry() -> Retry {
    Retry {
        attempts: 2,
        per_try: None,
        statuses: Vec::new(),
        conditions: Vec::new(),
        backoff: Duration::from_millis(25),
        any_method: false,
    }
}

/// The set that was looked up for `wanted`, or the one that `find` makes.
pub(crate) fn cached(
    cache: &RwLock<HashMap<Wanted, Arc<EndpointSet>>>,
    wanted: &Wanted,
    find: impl FnOnce() -> EndpointSet,
) -> Arc<EndpointSet> {
    if let Some(found) = cache.read().unwrap_or_else(PoisonError::into_inner).get(wanted) {
        return found.clone();
    }
    let made = Arc::new(find());
    let mut cache = cache.write().unwrap_or_else(PoisonError::into_inner);
    cache.entry(wanted.clone()).or_insert(made).clone()
}
