//! What the control plane says, applied to the state.

use crate::compile;
use crate::jwt::Issuers;
use crate::settings::Settings;
use crate::state::{
    Attached, AttachedTokens, Destination, Gateway, L7, Listener, ServiceRoutes, State, Subset, Traffic,
};
use prost::Message;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_api::istio::authorization_policy as written;
use trysail_base::ready::Gate;
use trysail_base::snapshot::SnapshotCell;
use trysail_identity::client::ControlAddress;
use trysail_mesh::{Builder, codec};
use trysail_policy::http::Policy;
use trysail_wire::discovery::{Node, Resource};
use trysail_wire::l7 as wire;
use trysail_wire::type_urls::{
    ADDRESS, AUTHORIZATION, L7_GATEWAY, L7_POLICY, L7_SERVICE, L7_TOKENS, NAMESPACE, NETWORK_POLICY,
};
use trysail_xds::client::{Connect, Handler, Rejected, Want};

/// What a proxy wants, policies before what they protect. A gateway also wants its own listeners.
pub fn wants(settings: &Settings, gateway: bool) -> Vec<Want> {
    let own = format!("{}/{}", settings.pod_namespace, settings.service_account);
    let listeners = gateway.then(|| Want { type_url: L7_GATEWAY, names: vec![own] });
    let all = [AUTHORIZATION, L7_POLICY, L7_TOKENS, ADDRESS, L7_SERVICE].map(Want::all);
    let gate = [NAMESPACE, NETWORK_POLICY].into_iter().filter(|_| settings.inner_gate).map(Want::all);
    gate.chain(all).chain(listeners).collect()
}

/// Applies responses.
pub struct Apply {
    builder: Builder,
    mesh: trysail_mesh::Snapshot,
    l7: L7,
    generation: u64,
    state: Arc<SnapshotCell<State>>,
    waiting: BTreeSet<&'static str>,
    gate: Option<Gate>,
    trust_domain: String,
}

impl Apply {
    /// Publishes to `state` and opens `gate` once every type was answered.
    pub fn new(state: Arc<SnapshotCell<State>>, wants: &[Want], gate: Gate, trust_domain: &str) -> Self {
        Self {
            builder: Builder::default(),
            mesh: trysail_mesh::Snapshot::default(),
            l7: L7::default(),
            generation: 0,
            state,
            waiting: wants.iter().map(|w| w.type_url).collect(),
            gate: Some(gate),
            trust_domain: trust_domain.to_owned(),
        }
    }

    fn put(&mut self, type_url: &str, name: &str, body: &[u8]) -> Result<(), compile::CompileError> {
        match type_url {
            L7_SERVICE => {
                let service = service(wire::Service::decode(body)?);
                self.l7.services.insert(ServiceKey::from_wire(name), Arc::new(service));
            }
            L7_POLICY => {
                let policy = policy(wire::Policy::decode(body)?, &self.trust_domain);
                self.l7.policies.insert(name.to_owned(), Arc::new(policy));
            }
            L7_TOKENS => {
                let tokens = tokens(wire::Tokens::decode(body)?);
                self.l7.tokens.insert(name.to_owned(), Arc::new(tokens));
            }
            _ => self.l7.gateway = Some(Arc::new(gateway(wire::Gateway::decode(body)?))),
        }
        Ok(())
    }

    fn remove(&mut self, type_url: &str, name: &str) {
        match type_url {
            L7_SERVICE => drop(self.l7.services.remove(&ServiceKey::from_wire(name))),
            L7_POLICY => drop(self.l7.policies.remove(name)),
            L7_TOKENS => drop(self.l7.tokens.remove(name)),
            _ => self.l7.gateway = None,
        }
    }
}

impl Handler for Apply {
    fn apply(&mut self, type_url: &str, resources: &[Resource], removed: &[String], _: bool) -> Vec<Rejected> {
        let (mut changes, mut rejected) = (Vec::new(), Vec::new());
        let of_mesh = codec::TYPES.contains(&type_url);
        for resource in resources {
            let body = resource.resource.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
            let mut reject = |error: &dyn std::error::Error| {
                rejected.push(Rejected { name: resource.name.clone(), reason: trysail_base::log::chain(error) });
            };
            if of_mesh {
                match codec::resource(type_url, body) {
                    Ok(change) => changes.push(change),
                    Err(error) => reject(&error),
                }
            } else if let Err(error) = self.put(type_url, &resource.name, body) {
                reject(&error);
            }
        }
        for name in removed {
            if of_mesh {
                changes.push(codec::gone(type_url, name));
            } else {
                self.remove(type_url, name);
            }
        }
        if !changes.is_empty() {
            self.mesh = self.builder.apply(changes);
        }
        if !resources.is_empty() || !removed.is_empty() {
            self.generation += 1;
            self.state.publish(State {
                mesh: self.mesh.clone(),
                l7: Arc::new(self.l7.clone()),
                generation: self.generation,
                endpoints: Default::default(),
            });
        }
        if self.waiting.remove(type_url) && self.waiting.is_empty() {
            tracing::info!("the mesh state is complete");
            if let Some(gate) = self.gate.take() {
                gate.open();
            }
        }
        rejected
    }
}

fn service(s: wire::Service) -> ServiceRoutes {
    let destination = |d: wire::Destination| {
        let subset = |s: wire::Subset| {
            let members = s.members.iter().map(|uid| WorkloadUid::new(uid)).collect();
            (s.name, Subset { members, traffic: Traffic::new(s.traffic) })
        };
        let subsets = d.subsets.into_iter().map(subset).collect();
        (d.namespace, Destination { traffic: Traffic::new(d.traffic), subsets })
    };
    ServiceRoutes {
        routes: compile::routes(s.routes),
        consumers: s.consumers.into_iter().map(|c| (c.namespace, compile::routes(c.routes))).collect(),
        destinations: s.destinations.into_iter().map(destination).collect(),
    }
}

fn policy(p: wire::Policy, trust_domain: &str) -> Attached {
    let action = match p.action() {
        wire::Action::Allow => written::Action::Allow,
        wire::Action::Deny => written::Action::Deny,
        wire::Action::Audit => written::Action::Audit,
        wire::Action::Custom => written::Action::Custom,
    };
    let scope = p.scope();
    let rules: Vec<written::Rule> = p.rules.into_iter().map(rule).collect();
    let name = format!("{}/{}", p.namespace, p.name);
    let mut policy = Policy::compile(&name, action, &rules, (&p.namespace, trust_domain));
    policy.dry_run = p.dry_run;
    Attached { policy, namespace: p.namespace, targets: p.targets, scope }
}

fn rule(r: wire::Rule) -> written::Rule {
    let source = |s: wire::Source| written::From {
        source: written::Source {
            principals: s.principals,
            not_principals: s.not_principals,
            request_principals: s.request_principals,
            not_request_principals: s.not_request_principals,
            namespaces: s.namespaces,
            not_namespaces: s.not_namespaces,
            ip_blocks: s.ip_blocks,
            not_ip_blocks: s.not_ip_blocks,
            remote_ip_blocks: s.remote_ip_blocks,
            not_remote_ip_blocks: s.not_remote_ip_blocks,
            service_accounts: s.service_accounts,
            not_service_accounts: s.not_service_accounts,
        },
    };
    let operation = |o: wire::Operation| written::To {
        operation: written::Operation {
            hosts: o.hosts,
            not_hosts: o.not_hosts,
            ports: o.ports,
            not_ports: o.not_ports,
            methods: o.methods,
            not_methods: o.not_methods,
            paths: o.paths,
            not_paths: o.not_paths,
        },
    };
    let when = |w: wire::When| written::Condition { key: w.key, values: w.values, not_values: w.not_values };
    written::Rule {
        from: (!r.any_source).then(|| r.from.into_iter().map(source).collect()),
        to: (!r.any_operation).then(|| r.to.into_iter().map(operation).collect()),
        when: Some(r.when.into_iter().map(when).collect()),
    }
}

fn tokens(t: wire::Tokens) -> AttachedTokens {
    let scope = t.scope();
    AttachedTokens {
        issuers: Issuers::new(t.issuers),
        namespace: t.namespace,
        targets: t.targets,
        scope,
        members: t.members.iter().map(|uid| WorkloadUid::new(uid)).collect(),
    }
}

fn gateway(g: wire::Gateway) -> Gateway {
    let listener = |l: wire::Listener| {
        let keys = |c: &wire::Certificate| match certified(c) {
            Ok(key) => Some(Arc::new(key)),
            Err(why) => {
                tracing::error!(listener = l.name, why, "a certificate cannot be used");
                None
            }
        };
        Listener {
            tls: l.tls.then(|| l.certificates.iter().filter_map(keys).collect()),
            port: u16::try_from(l.port).unwrap_or(0),
            routes: compile::routes(l.routes),
            name: l.name,
            hostname: l.hostname,
        }
    };
    Gateway {
        listeners: g.listeners.into_iter().map(listener).collect(),
        trusted_proxies: usize::try_from(g.trusted_proxies).unwrap_or(0),
    }
}

fn certified(c: &wire::Certificate) -> Result<rustls::sign::CertifiedKey, String> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&c.chain).collect::<Result<_, _>>().map_err(|e| format!("tls.crt: {e}"))?;
    let key = PrivateKeyDer::from_pem_slice(&c.key).map_err(|e| format!("tls.key: {e}"))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    rustls::sign::CertifiedKey::from_der(chain, key, &provider).map_err(|e| e.to_string())
}

/// Connects to the control plane.
pub struct ToControl(pub ControlAddress, pub String);

impl Connect for ToControl {
    async fn connect(&self) -> Result<(Channel, MetadataMap), String> {
        let mut request = tonic::Request::new(());
        self.0.authorize(&mut request).await.map_err(|e| trysail_base::log::chain(&e))?;
        if let Ok(cluster) = self.1.parse() {
            request.metadata_mut().insert("clusterid", cluster);
        }
        let channel = self.0.connect().await.map_err(|e| trysail_base::log::chain(&e))?;
        Ok((channel, request.into_parts().0))
    }
}

/// How this proxy introduces itself.
pub fn node(settings: &Settings, role: &str) -> Node {
    let text = |value: &str| prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(value.to_owned())) };
    let ip = settings.instance_ip.to_string();
    let fields = [
        ("NAME", &settings.pod_name),
        ("NAMESPACE", &settings.pod_namespace),
        ("NODE_NAME", &settings.node),
        ("INSTANCE_IPS", &ip),
        ("CLUSTER_ID", &settings.cluster),
    ];
    let (pod, ns) = (&settings.pod_name, &settings.pod_namespace);
    Node {
        id: format!("{role}~{ip}~{pod}.{ns}~{ns}.svc.cluster.local"),
        cluster: String::new(),
        metadata: Some(prost_types::Struct {
            fields: fields.into_iter().map(|(key, value)| (key.to_owned(), text(value))).collect(),
        }),
    }
}
