//! Packages in the lab: the operator's plan is followed as soon as anything that it looks at has changed.

use super::Cluster;
use trysail_api::object::Kind;
use trysail_control::operator::{World, plan};

/// What Packages are seen through.
const CAUSES: [Kind; 7] = [
    Kind::Package,
    Kind::Namespace,
    Kind::NetworkPolicy,
    Kind::AuthorizationPolicy,
    Kind::VirtualService,
    Kind::Deployment,
    Kind::Pod,
];

/// How many steps may follow from one another at once.
const STEPS: u8 = 8;

impl Cluster {
    pub(super) async fn packages(&mut self) {
        let nodes = self.nodes.iter().map(|node| format!("{}/32", node.address)).collect();
        let world = World { nodes, ..World::default() };
        for _ in 0..STEPS {
            let causes = self.store.changed(&CAUSES);
            if self.packaged == causes {
                return;
            }
            self.packaged = causes;
            let plan = plan(self.store.objects(), &world, &crate::store::now());
            for object in plan.put {
                self.put(object);
            }
            for key in plan.remove {
                self.remove(&key, None).await;
            }
        }
    }
}
