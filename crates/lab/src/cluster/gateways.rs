//! Gateways: what they are made of is put in place and taken away, and their status says where they are reached.

use super::Cluster;
use std::collections::BTreeSet;
use trysail_api::gateway::gateways::{Address, Gateway};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use trysail_api::labels::GATEWAY_MANAGED;
use trysail_api::object::{Kind, Object, ObjectKey, label};
use trysail_control::deploy;
use trysail_control::translate::waypoint::{is_gateway_class, is_waypoint_class};

impl Cluster {
    pub(super) async fn gateways(&mut self) {
        let gateways: Vec<Gateway> = self
            .store
            .list(Kind::Gateway, None)
            .into_iter()
            .filter_map(|o| match o {
                Object::Gateway(g) => Some((**g).clone()),
                _ => None,
            })
            .filter(|g| is_gateway_class(&g.spec.gateway_class_name) || is_waypoint_class(&g.spec.gateway_class_name))
            .collect();
        let mut wanted: BTreeSet<ObjectKey> = BTreeSet::new();
        for gateway in gateways {
            for object in deploy::objects(&gateway) {
                wanted.insert(object.key());
                self.accept(object);
            }
            self.gateway_status(gateway);
        }
        for kind in [Kind::Deployment, Kind::Service, Kind::ServiceAccount] {
            let managed = |o: &&Object| label(o.meta(), GATEWAY_MANAGED).is_some();
            let orphans: Vec<ObjectKey> = self
                .store
                .list(kind, None)
                .into_iter()
                .filter(managed)
                .map(Object::key)
                .filter(|k| !wanted.contains(k))
                .collect();
            for key in orphans {
                self.remove(&key, None).await;
            }
        }
    }

    fn gateway_status(&mut self, gateway: Gateway) {
        let namespace = gateway.metadata.namespace.clone().unwrap_or_default();
        let made = deploy::made_name(&gateway);
        let Some(Object::Service(service)) = self.store.get(&ObjectKey::new(Kind::Service, &namespace, &made)) else {
            return;
        };
        let ip = service.spec.as_ref().and_then(|s| s.cluster_ip.clone()).unwrap_or_default();
        let ready = match self.store.get(&ObjectKey::new(Kind::Deployment, &namespace, &made)) {
            Some(Object::Deployment(d)) => d.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0) > 0,
            _ => false,
        };
        let address = |kind: &str, value: String| Address { kind: kind.to_owned(), value };
        let mut status = gateway.status.clone().unwrap_or_default();
        status.addresses =
            vec![address("Hostname", trysail_api::ids::service_hostname(&made, &namespace)), address("IPAddress", ip)];
        let programmed =
            if ready { ("True", "Programmed", "") } else { ("False", "Pending", "no proxy of it is ready") };
        set(&mut status.conditions, "Accepted", ("True", "Accepted", ""), gateway.metadata.generation);
        set(&mut status.conditions, "Programmed", programmed, gateway.metadata.generation);
        if gateway.status.as_ref() != Some(&status) {
            self.put(Object::Gateway(Box::new(Gateway { status: Some(status), ..gateway })));
        }
    }
}

/// Sets a condition; its time changes only when its status does.
fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    (status, reason, message): (&str, &str, &str),
    generation: Option<i64>,
) {
    let before =
        conditions.iter().find(|c| c.type_ == kind && c.status == status).map(|c| c.last_transition_time.clone());
    conditions.retain(|c| c.type_ != kind);
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: before.unwrap_or_else(crate::store::now),
    });
}
