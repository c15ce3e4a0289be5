//! Packages to objects: what each stands for, what all share, and what is wrong with them.

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
        let denials = check(package, &others);
        let said = denials.iter().map(|d| (true, d.field.clone(), format!("{} ({})", d.message, d.code)));
        findings.extend(said.map(|(error, field, message)| Finding { index, error, field, message }));
        if !denials.is_empty() {
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

/// Whether a text is a block of addresses such as `10.0.0.1/32`.
pub fn is_block(text: &str) -> bool {
    text.contains('/') && Cidr::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(text: &str) -> Vec<Package> {
        let loaded = trysail_api::load::load("case", text);
        assert_eq!(loaded.diagnostics, vec![]);
        let package = |l: trysail_api::load::Loaded| match l.object {
            trysail_api::Object::Package(package) => Some(*package),
            _ => None,
        };
        loaded.objects.into_iter().filter_map(package).collect()
    }

    #[test]
    fn a_package_that_is_denied_takes_nothing_of_the_others_away() {
        let of = |name: &str, network: &str| {
            format!(
                "---\napiVersion: uds.dev/v1alpha1\nkind: Package\nmetadata: {{name: {name}, namespace: {name}}}\nspec: {{network: {network}, sso: []}}\n"
            )
        };
        let host = "{allow: [{direction: Egress, remoteHost: x.com, port: 443}]}";
        let good = packages(&of("a", host));
        let (alone, said) = objects(&good, &World::default());
        assert_eq!(said.iter().map(|f| (f.error, f.field.as_str())).collect::<Vec<_>>(), [(false, "spec.sso")]);
        let bad = "{allow: [{direction: Egress, remoteHost: x.com, remoteProtocol: TCP}]}";
        let (both, said) = objects(&packages(&(of("a", host) + &of("b", bad))), &World::default());
        assert_eq!(both, alone);
        assert!(said.iter().any(|f| f.index == 1 && f.error && f.message.contains("E6")), "{said:?}");
        let other = host.replace("443", "443, remoteProtocol: HTTP");
        let (_, said) = objects(&packages(&(of("a", host) + &of("b", &other))), &World::default());
        assert!(said.iter().any(|f| f.index == 1 && f.error && f.message.contains("Package a/a")), "{said:?}");
    }
}
