//! Gateways: what they are made of is put in place and taken away, and their status says where they are reached.

use super::Cluster;
use std::collections::BTreeSet;
use trysail_api::gateway::gateways::{Address, Gateway};
use trysail_api::labels::GATEWAY_MANAGED;
use trysail_api::object::{Kind, Object, ObjectKey, label};
use trysail_control::translate::waypoint::{is_gateway_class, is_waypoint_class};
use trysail_control::{deploy, status};

/// How often statuses may follow from one another.
const SETTLES: u8 = 4;

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

    /// Every object's status, after what runs has its own.
    pub(super) fn statuses(&mut self) {
        let ours: Vec<Gateway> = self.store.objects().gateways().cloned().collect();
        for gateway in ours {
            self.gateway_status(gateway);
        }
        // A status may follow from another's.
        for _ in 0..SETTLES {
            let causes = self.store.changed(&status::CAUSES);
            if causes == self.settled {
                return;
            }
            self.settled = causes;
            let (objects, now) = (self.store.objects(), crate::store::now());
            let all = status::KINDS.iter().flat_map(|kind| objects.of(*kind));
            let changed: Vec<Object> = all.filter_map(|object| status::settled(objects, object, &now)).collect();
            for object in changed {
                self.put(object);
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
        let programmed = match ready {
            true => (true, "Programmed", String::new()),
            false => (false, "Pending", "no proxy of it is ready".to_owned()),
        };
        let (generation, now) = (gateway.metadata.generation, crate::store::now());
        status::set(&mut status.conditions, "Accepted", (true, "Accepted", String::new()), generation, &now);
        status::set(&mut status.conditions, "Programmed", programmed, generation, &now);
        if gateway.status.as_ref() != Some(&status) {
            self.put(Object::Gateway(Box::new(Gateway { status: Some(status), ..gateway })));
        }
    }
}
