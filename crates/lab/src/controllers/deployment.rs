//! Deployments: how many pods of which template, step by step under a rolling update.

use std::collections::BTreeMap;
use trysail_api::k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use trysail_api::k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_api::labels::POD_TEMPLATE_HASH;

/// A pod, as far as its Deployment cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name.
    pub name: String,
    /// Hash of the template it was made from.
    pub hash: String,
    /// Passes its readiness probes.
    pub ready: bool,
    /// Is being deleted.
    pub terminating: bool,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// New pods of the current template.
    pub create: usize,
    /// Pods to delete, by name.
    pub delete: Vec<String>,
}

/// The next step towards `replicas` pods with `hash`, never with more than `surge` too many nor with more than `unavailable` not ready.
pub fn step(replicas: usize, (surge, unavailable): (usize, usize), hash: &str, members: &[Member]) -> Step {
    let live: Vec<&Member> = members.iter().filter(|m| !m.terminating).collect();
    let (new, old): (Vec<&Member>, Vec<&Member>) = live.iter().partition(|m| m.hash == hash);
    let room = (replicas + surge).saturating_sub(live.len());
    let create = replicas.saturating_sub(new.len()).min(if old.is_empty() { usize::MAX } else { room });
    let mut delete: Vec<String> = Vec::new();
    // Too many of the current template: those that are not ready go first.
    let mut surplus: Vec<&&Member> = new.iter().collect();
    surplus.sort_by_key(|m| (m.ready, m.name.clone()));
    delete.extend(surplus.iter().take(new.len().saturating_sub(replicas)).map(|m| m.name.clone()));
    // Old ones that are not ready cost nothing; of the others only as many as availability allows.
    delete.extend(old.iter().filter(|m| !m.ready).map(|m| m.name.clone()));
    let ready = live.iter().filter(|m| m.ready).count();
    let spare = ready.saturating_sub(replicas.saturating_sub(unavailable));
    delete.extend(old.iter().filter(|m| m.ready).take(spare).map(|m| m.name.clone()));
    Step { create, delete }
}

/// Replicas, surge and unavailable of a Deployment, with Kubernetes' defaults and rounding.
pub fn bounds(deployment: &Deployment) -> (usize, (usize, usize)) {
    let spec = deployment.spec.as_ref();
    let replicas = spec.and_then(|s| s.replicas).map_or(1, |r| usize::try_from(r).unwrap_or(0));
    let strategy = spec.and_then(|s| s.strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate") {
        return (replicas, (0, replicas));
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let amount = |given: Option<&IntOrString>, up: bool| {
        let percent = |p: usize| if up { (replicas * p).div_ceil(100) } else { replicas * p / 100 };
        match given {
            None => percent(25),
            Some(IntOrString::Int(n)) => usize::try_from(*n).unwrap_or(0),
            Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().map_or(0, percent),
        }
    };
    let surge = amount(rolling.and_then(|r| r.max_surge.as_ref()), true);
    let unavailable = amount(rolling.and_then(|r| r.max_unavailable.as_ref()), false);
    // Both zero would never move.
    (replicas, if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) })
}

/// Ten characters that depend on the template.
pub fn template_hash(template: &PodTemplateSpec) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = serde_json::to_string(template).unwrap_or_default();
    let mut hash = text.bytes().fold(0xcbf29ce484222325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3));
    let letter = |_| {
        let at = usize::try_from(hash % LETTERS.len() as u64).unwrap_or(0);
        hash /= LETTERS.len() as u64;
        LETTERS.get(at).copied().map_or('x', char::from)
    };
    (0..10).map(letter).collect()
}

/// A pod of the Deployment's template.
pub fn pod(deployment: &Deployment, hash: &str, suffix: &str) -> Pod {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let template = deployment.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let from = template.metadata.unwrap_or_default();
    let mut labels: BTreeMap<String, String> = from.labels.unwrap_or_default();
    labels.insert(POD_TEMPLATE_HASH.to_owned(), hash.to_owned());
    let owner = OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: format!("{name}-{hash}"),
        uid: deployment.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}-{suffix}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: from.annotations,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// The Deployment's status.
pub fn status(replicas: usize, hash: &str, members: &[Member], generation: Option<i64>) -> DeploymentStatus {
    let count = |keep: &dyn Fn(&&Member) -> bool| {
        let n = members.iter().filter(|m| !m.terminating).filter(keep).count();
        Some(i32::try_from(n).unwrap_or(i32::MAX))
    };
    let ready = count(&|m| m.ready);
    DeploymentStatus {
        observed_generation: generation,
        replicas: count(&|_| true),
        updated_replicas: count(&|m| m.hash == hash),
        ready_replicas: ready,
        available_replicas: ready,
        unavailable_replicas: Some(
            i32::try_from(replicas).unwrap_or(i32::MAX).saturating_sub(ready.unwrap_or(0)).max(0),
        ),
        ..DeploymentStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: usize, hash: &str, ready: bool) -> Member {
        Member { name: name.to_string(), hash: hash.into(), ready, terminating: false }
    }

    proptest! {
        #[test]
        fn a_rollout_keeps_its_bounds_and_ends(replicas in 0..8usize, surge in 0..3usize, unavailable in 0..3usize, seed: u64) {
            prop_assume!(surge + unavailable > 0);
            let mut members: Vec<Member> = (0..replicas).map(|i| member(i, "old", true)).collect();
            let (mut next, mut dice) = (replicas, seed);
            for _ in 0..200 {
                let step = step(replicas, (surge, unavailable), "new", &members);
                for _ in 0..step.create {
                    members.push(member(next, "new", false));
                    next += 1;
                }
                members.retain(|m| !step.delete.contains(&m.name));
                prop_assert!(members.len() <= replicas + surge);
                prop_assert!(members.iter().filter(|m| m.ready).count() + unavailable >= replicas);
                // One of the pods that wait becomes ready, some of the time.
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if dice >> 63 == 0 && let Some(waiting) = members.iter_mut().find(|m| !m.ready) {
                    waiting.ready = true;
                }
            }
            prop_assert!(members.len() == replicas && members.iter().all(|m| m.hash == "new" && m.ready));
        }
    }

    #[test]
    fn scaling_down_takes_pods_that_are_not_ready_first() {
        let members = [member(1, "new", true), member(2, "new", false), member(3, "new", true)];
        assert_eq!(step(2, (1, 0), "new", &members), Step { create: 0, delete: vec!["2".into()] });
    }
}
