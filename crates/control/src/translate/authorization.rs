//! AuthorizationPolicy to what a node proxy can evaluate. What it cannot evaluate makes a rule stricter, never weaker: an ALLOW rule
//! never matches then, a DENY rule matches whatever the rest of it matches.

use std::collections::BTreeMap;
use trysail_api::istio::authorization_policy::{Action, AuthorizationPolicy, Condition, Operation, Rule, Source};
use trysail_api::labels::DRY_RUN;
use trysail_api::object::annotation;
use trysail_policy::ROOT_NAMESPACE;
use trysail_policy::authz::{self, Cidr, Clause, Match, Policy, Scope, ServiceAccount, StringMatch};

/// A translated policy.
#[derive(Debug, Default)]
pub struct Translated {
    /// For node proxies; none when they do not enforce it.
    pub policy: Option<Policy>,
    /// What the user must know: fields that are not evaluated here, and the effect.
    pub notes: Vec<String>,
}

/// `namespace/name`.
pub fn full_name(policy: &AuthorizationPolicy) -> String {
    format!("{}/{}", namespace(policy), policy.metadata.name.as_deref().unwrap_or_default())
}

fn namespace(policy: &AuthorizationPolicy) -> &str {
    policy.metadata.namespace.as_deref().unwrap_or("default")
}

fn scope(policy: &AuthorizationPolicy) -> Scope {
    let selects = policy.spec.selector.as_ref().is_some_and(|s| !s.match_labels.is_empty());
    match (selects, namespace(policy) == ROOT_NAMESPACE) {
        (true, _) => Scope::Workload,
        (false, true) => Scope::Global,
        (false, false) => Scope::Namespace,
    }
}

/// Whether a pod's record lists the policy: it selects by label, in its own namespace or from the root namespace.
pub fn lists(policy: &AuthorizationPolicy, pod_namespace: &str, labels: &BTreeMap<String, String>) -> bool {
    let reaches = namespace(policy) == pod_namespace || namespace(policy) == ROOT_NAMESPACE;
    let selected = policy.spec.selector.as_ref().is_some_and(|s| s.matches(labels));
    policy.spec.target_refs.is_empty() && scope(policy) == Scope::Workload && reaches && selected
}

/// The policy as node proxies evaluate it.
pub fn translate(policy: &AuthorizationPolicy, trust_domain: &str) -> Translated {
    let mut notes = Vec::new();
    let spec = &policy.spec;
    if !spec.target_refs.is_empty() {
        // The waypoint or gateway that it names enforces it.
        return Translated { policy: None, notes };
    }
    let action = match spec.action {
        Action::Allow => authz::Action::Allow,
        Action::Deny => authz::Action::Deny,
        Action::Audit => return Translated { policy: None, notes },
        Action::Custom => {
            let provider = spec.provider.as_ref().map(|p| p.name.as_str()).unwrap_or_default();
            notes.push(format!(
                "action CUSTOM (provider {provider:?}) is not supported: acts as DENY with the same rules"
            ));
            authz::Action::Deny
        }
    };
    let mut rules = Vec::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        let mut reader = RuleReader { namespace: namespace(policy), trust_domain, skipped: Vec::new() };
        let clauses = reader.rule(rule);
        let deny = action == authz::Action::Deny;
        if reader.skipped.is_empty() || deny {
            rules.push(clauses);
        }
        if !reader.skipped.is_empty() {
            let effect = if deny {
                "fields ignored: refuses every connection that matches the rest"
            } else {
                "rule never matches here: stricter than written"
            };
            notes.push(format!(
                "rules[{index}]: {} cannot be evaluated by a node proxy; {effect}",
                reader.skipped.join(", ")
            ));
        }
    }
    let policy = Policy {
        namespace: namespace(policy).to_owned(),
        name: policy.metadata.name.clone().unwrap_or_default(),
        scope: scope(policy),
        action,
        rules,
        dry_run: annotation(&policy.metadata, DRY_RUN) == Some("true"),
    };
    Translated { policy: Some(policy), notes }
}

struct RuleReader<'a> {
    namespace: &'a str,
    trust_domain: &'a str,
    skipped: Vec<String>,
}

impl RuleReader<'_> {
    fn rule(&mut self, rule: &Rule) -> authz::Rule {
        let mut clauses = Vec::new();
        if let Some(from) = &rule.from {
            let matches: Vec<_> = from.iter().map(|f| self.source(&f.source)).collect();
            clauses.extend(self.clause("from", matches));
        }
        if let Some(to) = &rule.to {
            let matches: Vec<_> = to.iter().map(|t| self.operation(&t.operation)).collect();
            clauses.extend(self.clause("to", matches));
        }
        for condition in rule.when.iter().flatten() {
            let matched = self.condition(condition);
            clauses.extend(self.clause("when", vec![matched]));
        }
        clauses
    }

    /// Alternatives as a clause. One of which nothing is left to evaluate holds always, and so does the whole clause.
    fn clause(&mut self, name: &str, matches: Vec<Match>) -> Option<Clause> {
        if matches.is_empty() {
            self.skipped.push(format!("an empty {name}"));
        }
        let holds_always = matches.is_empty() || matches.contains(&Match::default());
        (!holds_always).then_some(matches)
    }

    fn unsupported(&mut self, fields: &[(&str, &Vec<String>)]) {
        self.skipped.extend(fields.iter().filter(|(_, values)| !values.is_empty()).map(|(name, _)| (*name).to_owned()));
    }

    fn source(&mut self, s: &Source) -> Match {
        self.unsupported(&[
            ("requestPrincipals", &s.request_principals),
            ("notRequestPrincipals", &s.not_request_principals),
            ("remoteIpBlocks", &s.remote_ip_blocks),
            ("notRemoteIpBlocks", &s.not_remote_ip_blocks),
        ]);
        if *s == Source::default() {
            self.skipped.push("an empty source".to_owned());
        }
        Match {
            namespaces: texts(&s.namespaces),
            not_namespaces: texts(&s.not_namespaces),
            principals: self.principals(&s.principals),
            not_principals: self.principals(&s.not_principals),
            source_ips: self.blocks("ipBlocks", &s.ip_blocks),
            not_source_ips: self.blocks("notIpBlocks", &s.not_ip_blocks),
            service_accounts: self.accounts(&s.service_accounts),
            not_service_accounts: self.accounts(&s.not_service_accounts),
            ..Match::default()
        }
    }

    fn operation(&mut self, o: &Operation) -> Match {
        self.unsupported(&[
            ("hosts", &o.hosts),
            ("notHosts", &o.not_hosts),
            ("methods", &o.methods),
            ("notMethods", &o.not_methods),
            ("paths", &o.paths),
            ("notPaths", &o.not_paths),
        ]);
        if *o == Operation::default() {
            self.skipped.push("an empty operation".to_owned());
        }
        Match {
            destination_ports: self.ports("ports", &o.ports),
            not_destination_ports: self.ports("notPorts", &o.not_ports),
            ..Match::default()
        }
    }

    fn condition(&mut self, c: &Condition) -> Match {
        let mut m = Match::default();
        match c.key.as_str() {
            "source.ip" => {
                m.source_ips = self.blocks("source.ip", &c.values);
                m.not_source_ips = self.blocks("source.ip", &c.not_values);
            }
            "source.namespace" => {
                m.namespaces = texts(&c.values);
                m.not_namespaces = texts(&c.not_values);
            }
            "source.principal" => {
                m.principals = self.principals(&c.values);
                m.not_principals = self.principals(&c.not_values);
            }
            "destination.ip" => {
                m.destination_ips = self.blocks("destination.ip", &c.values);
                m.not_destination_ips = self.blocks("destination.ip", &c.not_values);
            }
            "destination.port" => {
                m.destination_ports = self.ports("destination.port", &c.values);
                m.not_destination_ports = self.ports("destination.port", &c.not_values);
            }
            other => self.skipped.push(format!("when key {other}")),
        }
        if c.values.is_empty() && c.not_values.is_empty() {
            self.skipped.push(format!("when key {} without values", c.key));
        }
        m
    }

    fn principals(&mut self, values: &[String]) -> Vec<StringMatch> {
        let mut out = Vec::new();
        for value in values {
            let bare = value.strip_prefix("spiffe://");
            if bare.is_some() {
                self.skipped.push(format!("principal {value} (write it without spiffe://)"));
            }
            let value = bare.unwrap_or(value);
            // cluster.local stands for the mesh's own trust domain.
            let own = value.strip_prefix("cluster.local/").map(|rest| format!("{}/{rest}", self.trust_domain));
            out.push(StringMatch::parse(own.as_deref().unwrap_or(value)));
        }
        out
    }

    fn blocks(&mut self, field: &str, values: &[String]) -> Vec<Cidr> {
        self.parsed(field, values, Cidr::parse)
    }

    fn ports(&mut self, field: &str, values: &[String]) -> Vec<u16> {
        self.parsed(field, values, |text| text.parse().ok().filter(|port| *port != 0))
    }

    /// A list with an unreadable value falls away whole, and the rule is marked.
    fn parsed<T>(&mut self, field: &str, values: &[String], parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut out = Vec::new();
        for value in values {
            match parse(value) {
                Some(parsed) => out.push(parsed),
                None => {
                    self.skipped.push(format!("{field} {value:?}"));
                    return Vec::new();
                }
            }
        }
        out
    }

    fn accounts(&self, values: &[String]) -> Vec<ServiceAccount> {
        let account = |value: &String| {
            let (namespace, name) = value.split_once('/').unwrap_or((self.namespace, value));
            ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() }
        };
        values.iter().map(account).collect()
    }
}

fn texts(values: &[String]) -> Vec<StringMatch> {
    values.iter().map(|v| StringMatch::parse(v)).collect()
}

#[cfg(test)]
mod tests;
