//! PeerAuthentication: the effective mode of a workload and its ports, and its form as a policy for node proxies.

use crate::ROOT_NAMESPACE;
use crate::authz::{Action, Match, Policy, Scope, StringMatch};
use std::collections::BTreeMap;
use trysail_api::istio::peer_authentication::{Mode, PeerAuthentication};

/// Name, in the root namespace, of the policy that refuses plaintext on every port.
pub const STATIC_STRICT: &str = "istio_converted_static_strict";
/// Prefix of policies converted from port-level modes.
pub const CONVERTED_PREFIX: &str = "converted_peer_authentication_";

/// The mode of a workload; UNSET never occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Mode of every port that has none of its own.
    pub mode: Mode,
    /// Ports whose mode differs from it.
    pub ports: BTreeMap<u16, Mode>,
    /// The workload-level object the ports come from.
    pub from: Option<String>,
}

/// The effective mode for a workload in `namespace` with `labels`. Within a level the oldest object counts, then the lower name.
pub fn effective(all: &[&PeerAuthentication], namespace: &str, labels: &BTreeMap<String, String>) -> Effective {
    let selects_some = |p: &PeerAuthentication| p.spec.selector.as_ref().is_some_and(|s| !s.match_labels.is_empty());
    let oldest = |level: &dyn Fn(&PeerAuthentication) -> bool| {
        all.iter().copied().filter(|p| level(p)).min_by_key(|p| (created(p), p.metadata.name.clone()))
    };
    let within = |p: &PeerAuthentication, ns: &str| p.metadata.namespace.as_deref() == Some(ns);
    let mesh = oldest(&|p| within(p, ROOT_NAMESPACE) && !selects_some(p));
    let own = oldest(&|p| namespace != ROOT_NAMESPACE && within(p, namespace) && !selects_some(p));
    let workload = oldest(&|p| {
        namespace != ROOT_NAMESPACE
            && within(p, namespace)
            && selects_some(p)
            && p.spec.selector.as_ref().is_some_and(|s| s.matches(labels))
    });
    let set =
        |p: Option<&PeerAuthentication>| p.and_then(|p| p.spec.mtls).map(|m| m.mode).filter(|m| *m != Mode::Unset);
    let mode = set(workload).or_else(|| set(own)).or_else(|| set(mesh)).unwrap_or(Mode::Permissive);
    let ports = workload
        .map(|p| &p.spec.port_level_mtls)
        .into_iter()
        .flatten()
        .map(|(port, tls)| (*port, tls.mode))
        .filter(|(_, port_mode)| *port_mode != Mode::Unset && strict(*port_mode) != strict(mode))
        .collect();
    Effective { mode, ports, from: workload.and_then(|p| p.metadata.name.clone()) }
}

fn strict(mode: Mode) -> bool {
    mode == Mode::Strict
}

fn created(policy: &PeerAuthentication) -> Option<String> {
    // RFC 3339 in UTC sorts as text; an object without a time is as new as can be.
    Some(policy.metadata.creation_timestamp.as_ref().map_or_else(|| "~".to_owned(), |t| t.0.to_string()))
}

/// The policies that enforce `effective` on a workload of `namespace`; none when plaintext is accepted everywhere.
pub fn as_policy(effective: &Effective, namespace: &str) -> Option<Policy> {
    let no_identity = Match { not_principals: vec![StringMatch::Present], ..Match::default() };
    let ports: Vec<u16> = effective.ports.keys().copied().collect();
    match (strict(effective.mode), ports.is_empty()) {
        (false, true) => None,
        (true, true) => Some(static_strict()),
        (is_strict, false) => {
            let port_match = if is_strict {
                Match { not_destination_ports: ports, ..Match::default() }
            } else {
                Match { destination_ports: ports, ..Match::default() }
            };
            Some(Policy {
                namespace: namespace.to_owned(),
                name: format!("{CONVERTED_PREFIX}{}", effective.from.as_deref().unwrap_or_default()),
                scope: Scope::Workload,
                action: Action::Deny,
                rules: vec![vec![vec![no_identity], vec![port_match]]],
                dry_run: false,
            })
        }
    }
}

/// The policy that refuses plaintext on every port.
pub fn static_strict() -> Policy {
    let no_identity = Match { not_principals: vec![StringMatch::Present], ..Match::default() };
    Policy {
        namespace: ROOT_NAMESPACE.to_owned(),
        name: STATIC_STRICT.to_owned(),
        scope: Scope::Workload,
        action: Action::Deny,
        rules: vec![vec![vec![no_identity]]],
        dry_run: false,
    }
}

#[cfg(test)]
mod tests;
