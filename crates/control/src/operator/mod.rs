//! Packages to objects: what each stands for, what all share, and what is wrong with them.

mod plan;

pub use plan::{Plan, plan};

use serde_json::Value;
use trysail_api::package::Package;
use trysail_policy::authz::Cidr;
use trysail_policy::package::{check, expand, shared};

pub use trysail_policy::package::World;

/// What is to be said of one Package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which of the Packages.
    pub index: usize,
    /// Whether it keeps the Package from being acted on.
    pub error: bool,
    /// The field.
    pub field: String,
    /// What is to be said.
    pub message: String,
}

/// The objects of all `packages`, the oldest first, and what is to be said of them. What is shared comes last.
pub fn objects(packages: &[Package], world: &World) -> (Vec<Value>, Vec<Finding>) {
    let mut findings = Vec::new();
    let (mut out, mut sound) = (Vec::new(), Vec::new());
    for (index, package) in packages.iter().enumerate() {
        let others: Vec<&Package> = packages.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, p)| p).collect();
        let refused = refusals(package, &others);
        if !refused.is_empty() {
            let finding = |(field, message)| Finding { index, error: true, field, message };
            findings.extend(refused.into_iter().map(finding));
            continue;
        }
        sound.push(package);
        let made = expand(package, world);
        let waits = made.waiting.into_iter().map(|field| (field, "left out: these peers are not known"));
        let spec = &package.spec;
        let parts =
            [("sso", spec.sso.is_some()), ("monitor", spec.monitor.is_some()), ("caBundle", spec.ca_bundle.is_some())];
        let unread = parts.into_iter().filter(|(_, given)| *given);
        let unread = unread.map(|(name, _)| (format!("spec.{name}"), "not acted on: only spec.network is"));
        findings.extend(waits.chain(unread).map(|(field, message)| Finding {
            index,
            error: false,
            field,
            message: message.to_owned(),
        }));
        out.extend(made.objects);
    }
    let common = shared(&sound, world);
    for conflict in common.conflicts {
        let own = |p: &Package| {
            p.metadata.name.as_deref() == Some(&conflict.name)
                && p.metadata.namespace.as_deref().unwrap_or("default") == conflict.namespace
        };
        let index = packages.iter().position(own).unwrap_or_default();
        findings.push(Finding { index, error: true, field: conflict.field, message: conflict.message });
    }
    out.extend(common.objects);
    (out, findings)
}

/// Why a Package is not acted on beside `others`: fields and words; empty when it is. A login in front of an application that cannot be
/// put there is among them, since without it the application would be open.
pub fn refusals(package: &Package, others: &[&Package]) -> Vec<(String, String)> {
    let denials = check(package, others).into_iter().map(|d| (d.field, format!("{} ({})", d.message, d.code)));
    let clients = package.spec.sso.as_ref().and_then(Value::as_array).into_iter().flatten().enumerate();
    let guarded = clients.filter(|(_, client)| client.get("enableAuthserviceSelector").is_some_and(|s| !s.is_null()));
    let closed = guarded.map(|(index, _)| {
        let message =
            "no identity provider is configured, and without a login in front of it the application would be open";
        (format!("spec.sso[{index}].enableAuthserviceSelector"), message.to_owned())
    });
    denials.chain(closed).collect()
}

/// Whether a text is a block of addresses such as `10.0.0.1/32`.
pub fn is_block(text: &str) -> bool {
    text.contains('/') && Cidr::parse(text).is_some()
}

#[cfg(test)]
mod tests;
