//! NetworkPolicy in the lab: the packet gates of all nodes follow pods, namespaces and policies.

use super::Cluster;
use crate::system::DISCOVERY;
use crate::world::CONTROL;
use std::collections::BTreeSet;
use std::sync::Arc;
use trysail_api::object::{Kind, Object};
use trysail_control::gate::{self, Member, Terms};

/// What the gates were made of the last time.
pub type Seen = (Vec<Member>, u64);

impl Cluster {
    /// Makes the gates anew when anything that they follow from has changed.
    pub(super) fn publish_gates(&mut self) {
        let mut members = Vec::new();
        let mut uids: Vec<BTreeSet<String>> = vec![BTreeSet::new(); self.nodes.len()];
        for (uid, running) in &self.pods {
            if let Some(own) = uids.get_mut(running.node) {
                own.insert(uid.clone());
            }
            let Some(Object::Pod(pod)) = self.store.get(&running.key) else { continue };
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            if !running.view.ended
                && !matches!(phase, Some("Succeeded" | "Failed"))
                && !running.address.is_unspecified()
            {
                members.push(Member::of(pod, running.node, running.address));
            }
        }
        members.sort();
        let seen = (members, self.store.changed(&[Kind::Namespace, Kind::NetworkPolicy]));
        let fresh = self.gated.as_ref() != Some(&seen);
        let rules = fresh.then(|| {
            let objects = self.store.objects();
            let terms = Terms { companions: self.companions, control: (CONTROL, DISCOVERY) };
            let (namespaces, policies) =
                (gate::namespaces(objects.namespaces()), gate::policies(objects.network_policies()));
            gate::rulesets(self.links.len(), &seen.0, &namespaces, &policies, terms)
        });
        self.gated = Some(seen);
        for (index, (link, pods)) in self.links.iter().zip(uids).enumerate() {
            let policies = rules.as_ref().and_then(|r| r.get(index));
            link.rules.send_if_modified(|old| {
                let differs = *old.pods != pods || policies.is_some_and(|p| *p != old.policies);
                if differs {
                    old.pods = Arc::new(pods);
                    if let Some(policies) = policies {
                        old.policies.clone_from(policies);
                    }
                }
                differs
            });
        }
    }
}
