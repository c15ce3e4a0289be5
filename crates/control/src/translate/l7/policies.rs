//! AuthorizationPolicy and RequestAuthentication for hops that understand HTTP.

use super::findings::Findings;
use super::units::header_name;
use crate::translate::objects::{Objects, name, namespace};
use trysail_api::ids::WorkloadUid;
use trysail_api::istio::authorization_policy::{Action, AuthorizationPolicy, Rule, TargetRef};
use trysail_api::istio::request_authentication::{JwtRule, RequestAuthentication};
use trysail_api::labels::DRY_RUN;
use trysail_api::object::{annotation, labels};
use trysail_policy::ROOT_NAMESPACE;
use trysail_wire::l7 as wire;

/// Every policy.
pub fn policies(objects: &Objects) -> impl Iterator<Item = wire::Policy> {
    objects.authorization_policies().map(policy)
}

/// Every set of issuers.
pub fn tokens(objects: &Objects, cluster: &str) -> impl Iterator<Item = wire::Tokens> {
    objects.request_authentications().map(move |r| wire::Tokens {
        namespace: namespace(&r.metadata).to_owned(),
        name: name(&r.metadata).to_owned(),
        targets: targets(&r.spec.target_refs, namespace(&r.metadata)),
        scope: scope(r.spec.selector.as_ref().is_some_and(|s| !s.match_labels.is_empty()), namespace(&r.metadata)),
        members: members(objects, r, cluster),
        issuers: r.spec.jwt_rules.iter().map(issuer).collect(),
    })
}

/// The workloads that a selector means.
fn members(objects: &Objects, r: &RequestAuthentication, cluster: &str) -> Vec<String> {
    let Some(selector) = r.spec.selector.as_ref().filter(|s| !s.match_labels.is_empty()) else { return Vec::new() };
    let own = namespace(&r.metadata);
    let pods = objects.pods().filter(|p| own == namespace(&p.metadata) || own == ROOT_NAMESPACE);
    let selected = pods.filter(|p| selector.matches(labels(&p.metadata)));
    selected.map(|p| WorkloadUid::pod(cluster, namespace(&p.metadata), name(&p.metadata)).to_string()).collect()
}

fn targets(refs: &[TargetRef], own: &str) -> Vec<wire::Target> {
    let one = |t: &TargetRef| wire::Target {
        kind: t.kind.clone(),
        namespace: t.namespace.clone().unwrap_or_else(|| own.to_owned()),
        name: t.name.clone(),
    };
    refs.iter().map(one).collect()
}

fn scope(selects: bool, own: &str) -> i32 {
    let scope = match (selects, own == ROOT_NAMESPACE) {
        (true, _) => wire::Scope::Selector,
        (false, true) => wire::Scope::Global,
        (false, false) => wire::Scope::Namespace,
    };
    scope as i32
}

fn policy(p: &AuthorizationPolicy) -> wire::Policy {
    let own = namespace(&p.metadata);
    let action = match p.spec.action {
        Action::Allow => wire::Action::Allow,
        Action::Deny => wire::Action::Deny,
        Action::Audit => wire::Action::Audit,
        Action::Custom => wire::Action::Custom,
    };
    wire::Policy {
        namespace: own.to_owned(),
        name: name(&p.metadata).to_owned(),
        targets: targets(&p.spec.target_refs, own),
        scope: scope(p.spec.selector.as_ref().is_some_and(|s| !s.match_labels.is_empty()), own),
        action: action as i32,
        rules: p.spec.rules.iter().map(rule).collect(),
        dry_run: annotation(&p.metadata, DRY_RUN) == Some("true"),
    }
}

fn rule(r: &Rule) -> wire::Rule {
    let source = |f: &trysail_api::istio::authorization_policy::From| {
        let s = f.source.clone();
        wire::Source {
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
        }
    };
    let operation = |t: &trysail_api::istio::authorization_policy::To| {
        let o = t.operation.clone();
        wire::Operation {
            hosts: o.hosts,
            not_hosts: o.not_hosts,
            ports: o.ports,
            not_ports: o.not_ports,
            methods: o.methods,
            not_methods: o.not_methods,
            paths: o.paths,
            not_paths: o.not_paths,
        }
    };
    wire::Rule {
        from: r.from.iter().flatten().map(source).collect(),
        any_source: r.from.is_none(),
        to: r.to.iter().flatten().map(operation).collect(),
        any_operation: r.to.is_none(),
        when: r
            .when
            .iter()
            .flatten()
            .map(|c| wire::When { key: c.key.clone(), values: c.values.clone(), not_values: c.not_values.clone() })
            .collect(),
    }
}

fn issuer(rule: &JwtRule) -> wire::Issuer {
    wire::Issuer {
        issuer: rule.issuer.clone(),
        audiences: rule.audiences.clone(),
        jwks: rule.jwks.clone().unwrap_or_default(),
        jwks_uri: rule.jwks_uri.clone().unwrap_or_default(),
        headers: rule
            .from_headers
            .iter()
            .map(|h| wire::Header { name: h.name.to_ascii_lowercase(), value: h.prefix.clone() })
            .collect(),
        params: rule.from_params.clone(),
        cookies: rule.from_cookies.clone(),
        forward: rule.forward_original_token,
        payload_header: rule.output_payload_to_header.clone().unwrap_or_default(),
        claim_headers: rule
            .output_claim_to_headers
            .iter()
            .map(|c| wire::Header { name: c.header.to_ascii_lowercase(), value: c.claim.clone() })
            .collect(),
    }
}

fn check_targets(refs: &[TargetRef], (selector, own): (bool, &str), findings: &mut Findings) {
    if selector && !refs.is_empty() {
        findings.error("spec.targetRefs", "selector and targetRefs exclude each other");
    }
    for (index, target) in refs.iter().enumerate() {
        let at = format!("spec.targetRefs[{index}]");
        match (target.kind.as_str(), target.group.as_str()) {
            ("Service", "" | "core") | ("Gateway", "gateway.networking.k8s.io") => {}
            ("GatewayClass", "gateway.networking.k8s.io") if own == ROOT_NAMESPACE => {}
            ("GatewayClass", _) => findings.error(
                format!("{at}.kind"),
                format!(
                    "GatewayClass can be targeted from {ROOT_NAMESPACE} alone, with group gateway.networking.k8s.io"
                ),
            ),
            (kind, group) => findings.error(
                format!("{at}.kind"),
                format!("{group:?} {kind} is not Service, Gateway or GatewayClass with its group"),
            ),
        }
        if target.namespace.as_ref().is_some_and(|n| n != own) {
            findings.error(format!("{at}.namespace"), "must be the policy's own namespace");
        }
        if target.name.is_empty() {
            findings.error(format!("{at}.name"), "needed");
        }
    }
}

/// Checks an AuthorizationPolicy by itself.
pub fn check(policy: &AuthorizationPolicy, findings: &mut Findings) {
    let spec = &policy.spec;
    check_targets(&spec.target_refs, (spec.selector.is_some(), namespace(&policy.metadata)), findings);
    if spec.action == Action::Custom {
        let provider = spec.provider.as_ref().map(|p| p.name.as_str()).unwrap_or_default();
        findings.error(
            "spec.action",
            format!("CUSTOM (provider {provider:?}) is not supported: there are no external authorizers"),
        );
    }
    for (index, rule) in spec.rules.iter().enumerate() {
        let at = format!("spec.rules[{index}]");
        for (c, condition) in rule.when.iter().flatten().enumerate() {
            let at = format!("{at}.when[{c}]");
            if !trysail_policy::http::knows(&condition.key) {
                findings.error(format!("{at}.key"), format!("{:?} is not a key that is known", condition.key));
            }
            if condition.values.is_empty() && condition.not_values.is_empty() {
                findings.error(at, "values or notValues are needed");
            }
        }
        for (field, empty) in [
            ("from", rule.from.as_ref().is_some_and(Vec::is_empty)),
            ("to", rule.to.as_ref().is_some_and(Vec::is_empty)),
        ] {
            if empty {
                findings.error(format!("{at}.{field}"), "must not be empty: leave it out to match everything");
            }
        }
    }
}

/// Checks a RequestAuthentication by itself.
pub fn check_tokens(object: &RequestAuthentication, findings: &mut Findings) {
    let spec = &object.spec;
    check_targets(&spec.target_refs, (spec.selector.is_some(), namespace(&object.metadata)), findings);
    for (index, rule) in spec.jwt_rules.iter().enumerate() {
        let at = format!("spec.jwtRules[{index}]");
        if rule.issuer.is_empty() {
            findings.error(format!("{at}.issuer"), "needed");
        }
        match (&rule.jwks, &rule.jwks_uri) {
            (Some(_), Some(_)) => findings.error(&at, "jwks and jwksUri exclude each other"),
            (None, None) => findings.error(&at, "keys are needed: jwks or jwksUri"),
            (Some(text), None) => {
                let keys = serde_json::from_str::<serde_json::Value>(text).ok();
                if !keys.is_some_and(|k| k.get("keys").is_some_and(serde_json::Value::is_array)) {
                    findings.error(format!("{at}.jwks"), "not a JSON Web Key Set: {\"keys\": […]}");
                }
            }
            (None, Some(uri)) if !(uri.starts_with("http://") || uri.starts_with("https://")) => {
                findings.error(format!("{at}.jwksUri"), "not an http:// or https:// address");
            }
            (None, Some(_)) => {}
        }
        findings.unsupported(rule.timeout.is_some(), format!("{at}.timeout"));
        for (h, header) in rule.from_headers.iter().enumerate() {
            header_name(&header.name, &format!("{at}.fromHeaders[{h}].name"), findings);
        }
    }
}
