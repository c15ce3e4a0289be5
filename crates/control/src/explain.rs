//! Whether one pod may call another, gate by gate, and which object says so. Pure: all objects in, the verdicts out; the records and the
//! evaluators are those that the proxies use.

use crate::inject;
use crate::translate::objects::{Objects, name, namespace};
use crate::translate::waypoint::{self, Addressed};
use crate::translate::{MeshConfig, Translator};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use trysail_api::ids::SpiffeId;
use trysail_api::istio::authorization_policy::AuthorizationPolicy;
use trysail_api::istio::peer_authentication::Mode;
use trysail_api::k8s_openapi::api::apps::v1::Deployment;
use trysail_api::k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, Service};
use trysail_api::labels::{self, REDIRECTION};
use trysail_api::object::{Kind, Object, ObjectKey, annotation, label};
use trysail_mesh::{Builder, Protocol, Snapshot, Workload};
use trysail_policy::authz::{self, Facts, Verdict};
use trysail_policy::network::Direction;
use trysail_policy::path::Readings;
use trysail_policy::{ROOT_NAMESPACE, http, peer_auth};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// Namespace and name of the calling pod, or of its Deployment.
    pub from: (String, String),
    /// The same of the called one.
    pub to: (String, String),
    /// The called pod's port.
    pub port: u16,
    /// Method and path, if it is HTTP.
    pub request: Option<(String, String)>,
}

/// What one gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The gate, and where it is.
    pub gate: String,
    /// `allow`, or the kind of no: `drop`, `refuse`, `reset`, `403`.
    pub verdict: &'static str,
    /// The object and why.
    pub reason: String,
}

/// A way to the called port, with all its gates; the first that says no decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// By address, or by which service.
    pub title: String,
    /// The gates in order.
    pub steps: Vec<Step>,
}

impl Way {
    /// The verdict of the whole way.
    pub fn verdict(&self) -> &'static str {
        self.steps.iter().map(|s| s.verdict).find(|v| *v != "allow").unwrap_or("allow")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.title, self.verdict())?;
        self.steps.iter().try_for_each(|s| writeln!(f, "  {:<8} {}: {}", s.verdict, s.gate, s.reason))
    }
}

/// Every way from the one to the other; an error names what is not there.
pub fn explain(objects: &Objects, config: &MeshConfig, question: &Question) -> Result<Vec<Way>, String> {
    let all = with_stand_ins(objects);
    let changes = Kind::ALL.iter().flat_map(|kind| all.of(*kind)).map(|o| (o.key(), Some(o.clone()))).collect();
    let records = Translator::new(config.clone()).apply(changes).records;
    let snapshot = Builder::default().apply(records);
    let find = |(ns, wanted): &(String, String)| {
        let named = |w: &&std::sync::Arc<Workload>| w.namespace == *ns && (w.name == *wanted || w.owner == *wanted);
        let found = snapshot.workloads().find(named).cloned();
        found.ok_or_else(|| format!("there is no pod, and no Deployment with a pod, named {wanted} in namespace {ns}"))
    };
    let (source, target) = (find(&question.from)?, find(&question.to)?);
    let (Some(from), Some(to)) = (source.addresses.first(), target.addresses.first()) else {
        return Err("a pod has no address yet".to_owned());
    };
    let pod = all.pods().find(|p| namespace(&p.metadata) == target.namespace && name(&p.metadata) == target.name);
    let call = Call {
        objects: &all,
        config,
        snapshot: &snapshot,
        source: &source,
        target: &target,
        pod: pod.ok_or("the called pod has gone")?,
        from: *from,
        to: *to,
        question,
    };
    Ok(call.ways())
}

/// The objects, and for each Deployment that no pod is of the pod that it would have: so that a folder of manifests can be asked about.
fn with_stand_ins(objects: &Objects) -> Objects {
    let mut all = objects.clone();
    let owned = |d: &Deployment| {
        let prefix = format!("{}-", name(&d.metadata));
        objects
            .pods()
            .any(|p| namespace(&p.metadata) == namespace(&d.metadata) && name(&p.metadata).starts_with(&prefix))
    };
    let mut next: u16 = 2;
    for object in objects.of(Kind::Deployment) {
        let Object::Deployment(deployment) = object else { continue };
        let Some(spec) = deployment.spec.as_ref().filter(|_| !owned(deployment)) else { continue };
        let mut pod = Pod { metadata: spec.template.metadata.clone().unwrap_or_default(), ..Pod::default() };
        pod.metadata.name = deployment.metadata.name.clone();
        pod.metadata.namespace = Some(namespace(&deployment.metadata).to_owned());
        pod.spec = spec.template.spec.clone();
        let [high, low] = next.to_be_bytes();
        next = next.saturating_add(1);
        let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        pod.status = Some(PodStatus {
            pod_ip: Some(Ipv4Addr::new(10, 244, high, low).to_string()),
            conditions: Some(vec![ready]),
            ..PodStatus::default()
        });
        let outer = objects.namespace(namespace(&deployment.metadata)).map(|n| n.metadata.clone()).unwrap_or_default();
        let own = pod.metadata.clone();
        let labels_of = (|key: &str| label(&outer, key), |key: &str| label(&own, key));
        if labels::wants_sidecar(labels_of.0, labels_of.1) {
            inject::inject(&mut pod);
        } else if labels::wants_ambient(labels_of.0, labels_of.1) {
            pod.metadata.annotations.get_or_insert_default().insert(REDIRECTION.to_owned(), "enabled".to_owned());
        }
        all.set(ObjectKey::new(Kind::Pod, namespace(&own), name(&own)), Some(Object::Pod(Box::new(pod))));
    }
    all
}

struct Call<'a> {
    objects: &'a Objects,
    config: &'a MeshConfig,
    snapshot: &'a Snapshot,
    source: &'a Workload,
    target: &'a Workload,
    pod: &'a Pod,
    from: IpAddr,
    to: IpAddr,
    question: &'a Question,
}

impl Call<'_> {
    fn ways(&self) -> Vec<Way> {
        let address = format!("{}/{}:{} by its address", self.target.namespace, self.target.name, self.question.port);
        let mut out = vec![Way { title: address, steps: self.direct(None) }];
        for (service, port) in self.services() {
            let title = format!("service {}/{}:{port}", namespace(&service.metadata), name(&service.metadata));
            let asked = waypoint::asked(self.objects, &service.metadata);
            let bound = asked.as_ref().and_then(|binding| {
                let from = namespace(&service.metadata);
                waypoint::bound(self.objects, binding, from, Addressed::Service).ok().map(|_| binding)
            });
            let way = match bound {
                Some(binding) if self.in_mesh() => {
                    let hop = SpiffeId::new(&self.config.trust_domain, &binding.namespace, &binding.name);
                    let mut steps = vec![self.at_waypoint(service, binding, port)];
                    steps.extend(self.direct(Some(hop)));
                    Way { title: format!("{title} through waypoint {}/{}", binding.namespace, binding.name), steps }
                }
                _ => Way { title, steps: self.direct(None) },
            };
            out.push(way);
        }
        out
    }

    /// The services that lead to the called port, with theirs.
    fn services(&self) -> Vec<(&Service, u16)> {
        let mut out = Vec::new();
        for (key, ports) in &self.target.services {
            let services = self.objects.services_in(&self.target.namespace);
            let found = services.filter(|s| key.hostname().split('.').next() == Some(name(&s.metadata)));
            for service in found {
                out.extend(ports.iter().filter(|(_, own)| **own == self.question.port).map(|(p, _)| (service, *p)));
            }
        }
        out
    }

    fn in_mesh(&self) -> bool {
        self.source.protocol == Protocol::Hbone
    }

    /// Whether what the called pod receives comes out of a tunnel to its node's proxy.
    fn tunnelled(&self) -> bool {
        self.in_mesh() && self.target.protocol == Protocol::Hbone && !self.target.native_tunnel
    }

    fn facts(&self, via: Option<SpiffeId>) -> Facts {
        Facts {
            source: (self.in_mesh() && self.target.protocol == Protocol::Hbone).then(|| self.source.identity.clone()),
            via,
            source_ip: self.from,
            destination_ip: self.to,
            destination_port: self.question.port,
        }
    }

    fn direct(&self, via: Option<SpiffeId>) -> Vec<Step> {
        let mut steps = Vec::new();
        let (gate, no) = if self.tunnelled() { ("inner gate", "refuse") } else { ("packet gate", "drop") };
        for (direction, own, peer) in [
            (Direction::Egress, (self.source, self.from), self.target.end(self.to)),
            (Direction::Ingress, (self.target, self.to), self.source.end(self.from)),
        ] {
            let verdict = self.snapshot.network_verdict(direction, own, peer, self.question.port);
            let place = format!("{gate}, {direction} of {}/{}", own.0.namespace, own.0.name);
            steps.push(step(place, if verdict.allows() { "allow" } else { no }, verdict.to_string()));
        }
        if self.target.protocol == Protocol::Plain {
            return steps;
        }
        let facts = self.facts(via);
        steps.push(self.peer_authentication(&facts));
        let ours = self.snapshot.policies_of(self.target);
        let (hops, rest): (Vec<_>, Vec<_>) = ours.partition(|p| p.name.starts_with(waypoint::HOP_REQUIRED));
        if !hops.is_empty() {
            let verdict = authz::evaluate(hops, &facts);
            let reason = match &verdict {
                Verdict::Allow => "not needed on this way, or taken".to_owned(),
                _ => "l7_hop_required: a policy is aimed at the service, so its port is reached through its waypoint"
                    .to_owned(),
            };
            steps.push(step("required hop", if verdict == Verdict::Allow { "allow" } else { "refuse" }, reason));
        }
        if self.target.native_tunnel {
            steps.push(self.at_sidecar(&facts));
        } else {
            let own = |p: &&authz::Policy| {
                p.name != peer_auth::STATIC_STRICT && !p.name.starts_with(peer_auth::CONVERTED_PREFIX)
            };
            let verdict = authz::evaluate(rest.into_iter().filter(own), &facts);
            let no = if verdict == Verdict::Allow { "allow" } else { "refuse" };
            steps.push(step("AuthorizationPolicy at the node's proxy", no, verdict.to_string()));
        }
        steps
    }

    fn peer_authentication(&self, facts: &Facts) -> Step {
        let all: Vec<_> = self.objects.peer_authentications().collect();
        let own = trysail_api::object::labels(&self.pod.metadata);
        let effective = peer_auth::effective(&all, &self.target.namespace, own);
        let mode = effective.ports.get(&self.question.port).copied().unwrap_or(effective.mode);
        let plaintext = facts.source.is_none();
        let refused = mode == Mode::Strict && plaintext;
        let how = if plaintext { "plaintext" } else { "mutual TLS" };
        let no = if self.target.native_tunnel { "reset" } else { "refuse" };
        step(
            "PeerAuthentication",
            if refused { no } else { "allow" },
            format!("mode {mode:?}, the caller comes by {how}"),
        )
    }

    /// Policies of the workload itself, with what HTTP adds.
    fn at_sidecar(&self, facts: &Facts) -> Step {
        let own = trysail_api::object::labels(&self.pod.metadata);
        let applies = |p: &&AuthorizationPolicy| {
            let place = namespace(&p.metadata);
            let selected = p.spec.selector.as_ref().is_none_or(|s| s.matches(own));
            p.spec.target_refs.is_empty() && selected && (place == self.target.namespace || place == ROOT_NAMESPACE)
        };
        self.http("AuthorizationPolicy at the sidecar", applies, facts)
    }

    /// Policies that are aimed at a service, or at the waypoint in front of it.
    fn at_waypoint(&self, service: &Service, binding: &waypoint::Binding, port: u16) -> Step {
        let class = self.objects.gateway(&binding.namespace, &binding.name).map(|g| g.spec.gateway_class_name.clone());
        let applies = |p: &&AuthorizationPolicy| {
            let place = namespace(&p.metadata);
            p.spec.target_refs.iter().any(|t| match t.kind.as_str() {
                "Service" => place == namespace(&service.metadata) && t.name == name(&service.metadata),
                "Gateway" => place == binding.namespace && t.name == binding.name,
                "GatewayClass" => place == ROOT_NAMESPACE && Some(&t.name) == class.as_ref(),
                _ => false,
            })
        };
        let facts = Facts { destination_port: port, source: Some(self.source.identity.clone()), ..self.facts(None) };
        self.http("AuthorizationPolicy at the waypoint", applies, &facts)
    }

    fn http(&self, gate: &str, applies: impl Fn(&&AuthorizationPolicy) -> bool, facts: &Facts) -> Step {
        let compile = |p: &AuthorizationPolicy| {
            let own = namespace(&p.metadata);
            let full = format!("{own}/{}", name(&p.metadata));
            let mut policy =
                http::Policy::compile(&full, p.spec.action, &p.spec.rules, (own, &self.config.trust_domain));
            policy.dry_run = annotation(&p.metadata, labels::DRY_RUN) == Some("true");
            policy
        };
        let policies: Vec<http::Policy> = self.objects.authorization_policies().filter(applies).map(compile).collect();
        let readings = match self.question.request.as_ref().map(|(_, path)| Readings::of(path)).transpose() {
            Ok(readings) => readings,
            Err(bad) => return step(gate, "400", bad.to_string()),
        };
        let headers = |_: &str| Vec::new();
        let request = self.question.request.as_ref().zip(readings.as_ref()).map(|((method, _), paths)| http::Request {
            method,
            host: "",
            port: facts.destination_port,
            paths,
            headers: &headers,
            claims: None,
        });
        let known = request.is_some();
        let asked = http::Facts { connection: facts, remote_ip: facts.source_ip, sni: None, request };
        let outcome = http::evaluate(&policies, &asked);
        let note = if known || policies.is_empty() { "" } else { " (as for TCP: no --method and --path are given)" };
        let no = if known { "403" } else { "reset" };
        let verdict = if outcome.verdict == Verdict::Allow { "allow" } else { no };
        step(gate, verdict, format!("{}{note}", outcome.verdict))
    }
}

fn step(gate: impl Into<String>, verdict: &'static str, reason: impl Into<String>) -> Step {
    Step { gate: gate.into(), verdict, reason: reason.into() }
}

/// Both answers side by side: the ways whose verdict, or reason, a change would alter.
pub fn differences(before: &[Way], after: &[Way]) -> Vec<(String, String, String)> {
    let by_title: BTreeMap<&str, &Way> = before.iter().map(|w| (w.title.as_str(), w)).collect();
    let each = after.iter().filter_map(|now| {
        let old = by_title.get(now.title.as_str()).map_or_else(String::new, ToString::to_string);
        let new = now.to_string();
        (old != new).then(|| (now.title.clone(), old, new))
    });
    each.collect()
}

#[cfg(test)]
mod tests;
