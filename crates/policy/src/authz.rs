//! Layer 4 authorization, evaluated as Istio's node proxy does (`AuthorizationPolicy` and converted `PeerAuthentication`).

use std::fmt;
use std::net::IpAddr;
use trysail_api::ids::SpiffeId;

/// What is known of a connection.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The peer's identity from its certificate; `None` for plaintext.
    pub source: Option<SpiffeId>,
    /// The hop that spoke for the peer, if one did that may: it counts where a policy names it exactly.
    pub via: Option<SpiffeId>,
    /// The peer's address.
    pub source_ip: IpAddr,
    /// The address that was called.
    pub destination_ip: IpAddr,
    /// The workload's port that was called, never the tunnel's.
    pub destination_port: u16,
}

/// Where a policy applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every workload.
    Global,
    /// Every workload of its namespace.
    Namespace,
    /// Workloads whose record lists it.
    Workload,
}

/// What a match means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Admit.
    Allow,
    /// Refuse.
    Deny,
}

/// A compiled policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Where it applies.
    pub scope: Scope,
    /// What a match means.
    pub action: Action,
    /// Matches if any rule does; none never matches.
    pub rules: Vec<Rule>,
    /// Evaluated and counted, but without effect.
    pub dry_run: bool,
}

/// All clauses must hold; none holds always.
pub type Rule = Vec<Clause>;
/// Any match suffices; none holds always.
pub type Clause = Vec<Match>;

/// Every list that is given must hold: one of its values, or none of them for `not_`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Istio's")]
pub struct Match {
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub source_ips: Vec<Cidr>,
    pub not_source_ips: Vec<Cidr>,
    pub destination_ips: Vec<Cidr>,
    pub not_destination_ips: Vec<Cidr>,
    pub destination_ports: Vec<u16>,
    pub not_destination_ports: Vec<u16>,
    pub service_accounts: Vec<ServiceAccount>,
    pub not_service_accounts: Vec<ServiceAccount>,
}

/// How a text is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StringMatch {
    /// `abc`
    Exact(String),
    /// `abc*`
    Prefix(String),
    /// `*abc`
    Suffix(String),
    /// `*`: present and not empty.
    Present,
}

/// A service account in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// An address block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// Any address of the block.
    pub address: IpAddr,
    /// Leading bits that are compared.
    pub prefix: u8,
}

/// May the connection go on?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Allow,
    /// No: this policy denies it.
    DeniedBy(String),
    /// No: there are ALLOW policies, and none of them matches.
    NoAllowMatched,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allowed"),
            Self::DeniedBy(policy) => write!(f, "denied by policy {policy}"),
            Self::NoAllowMatched => f.write_str("isolated by ALLOW policies, no rule matched"),
        }
    }
}

/// The verdict of all `policies` that apply to the called workload: any DENY match denies, then some ALLOW must match if there is one.
pub fn evaluate<'a>(policies: impl IntoIterator<Item = &'a Policy>, facts: &Facts) -> Verdict {
    let (mut any_allow, mut allowed) = (false, false);
    for policy in policies {
        if policy.dry_run {
            continue;
        }
        let matched = policy.matches(facts);
        match policy.action {
            Action::Deny if matched => return Verdict::DeniedBy(format!("{}/{}", policy.namespace, policy.name)),
            Action::Deny => {}
            Action::Allow => {
                any_allow = true;
                allowed |= matched;
            }
        }
    }
    if allowed || !any_allow { Verdict::Allow } else { Verdict::NoAllowMatched }
}

impl Facts {
    /// Whether the peer's principal matches, or a pattern names the hop that spoke for it.
    pub(crate) fn principal_matches(&self, patterns: &[StringMatch]) -> bool {
        let named = |id: &SpiffeId, exact: bool| {
            let principal = id.principal();
            patterns.iter().any(|p| (!exact || matches!(p, StringMatch::Exact(_))) && p.holds(&principal))
        };
        !patterns.is_empty()
            && (self.source.as_ref().is_some_and(|id| named(id, false))
                || self.via.as_ref().is_some_and(|id| named(id, true)))
    }

    /// Whether `is` holds of the peer's service account, or of that of the hop that spoke for it.
    pub(crate) fn account_matches(&self, is: impl Fn(&str, &str) -> bool) -> bool {
        self.source.iter().chain(&self.via).any(|id| is(&id.namespace, &id.service_account))
    }
}

impl Policy {
    /// Whether any rule holds.
    pub fn matches(&self, facts: &Facts) -> bool {
        self.rules.iter().any(|rule| {
            rule.iter().all(|clause| clause.is_empty() || clause.iter().any(|candidate| candidate.holds(facts)))
        })
    }
}

impl Match {
    /// Whether every list that is given holds. A match without any list never holds.
    pub fn holds(&self, facts: &Facts) -> bool {
        if *self == Self::default() {
            return false;
        }
        let namespace = facts.source.as_ref().map(|id| &*id.namespace);
        let text =
            |patterns: &[StringMatch], value: Option<&str>| value.is_some_and(|v| patterns.iter().any(|p| p.holds(v)));
        let inside = |blocks: &[Cidr], ip| blocks.iter().any(|block| block.contains(ip));
        let account = |accounts: &[ServiceAccount]| {
            facts.account_matches(|ns, sa| accounts.iter().any(|a| a.namespace == ns && a.name == sa))
        };
        let given = |empty: bool, holds: bool| empty || holds;
        let port = facts.destination_port;
        given(self.namespaces.is_empty(), text(&self.namespaces, namespace))
            && !text(&self.not_namespaces, namespace)
            && given(self.principals.is_empty(), facts.principal_matches(&self.principals))
            && !facts.principal_matches(&self.not_principals)
            && given(self.source_ips.is_empty(), inside(&self.source_ips, facts.source_ip))
            && !inside(&self.not_source_ips, facts.source_ip)
            && given(self.destination_ips.is_empty(), inside(&self.destination_ips, facts.destination_ip))
            && !inside(&self.not_destination_ips, facts.destination_ip)
            && given(self.destination_ports.is_empty(), self.destination_ports.contains(&port))
            && !self.not_destination_ports.contains(&port)
            && given(self.service_accounts.is_empty(), account(&self.service_accounts))
            && !account(&self.not_service_accounts)
    }
}

impl StringMatch {
    /// Istio's wildcard forms: `*`, `*suffix`, `prefix*`, exact; a leading `*` is looked at first.
    pub fn parse(pattern: &str) -> Self {
        if pattern == "*" {
            Self::Present
        } else if let Some(rest) = pattern.strip_prefix('*') {
            Self::Suffix(rest.to_owned())
        } else if let Some(rest) = pattern.strip_suffix('*') {
            Self::Prefix(rest.to_owned())
        } else {
            Self::Exact(pattern.to_owned())
        }
    }

    pub(crate) fn holds(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text.as_str()),
            Self::Suffix(text) => value.ends_with(text.as_str()),
            Self::Present => !value.is_empty(),
        }
    }
}

impl Cidr {
    /// `10.0.0.0/8`, or a bare address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address.parse::<IpAddr>().ok()?, prefix.parse().ok()?),
            None => {
                let address = text.parse::<IpAddr>().ok()?;
                (address, Self::bits(address))
            }
        };
        (prefix <= Self::bits(address)).then_some(Self { address, prefix })
    }

    /// Whether `ip` lies in the block; families never mix.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let shift = u32::from(Self::bits(self.address).saturating_sub(self.prefix));
        match (self.address, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).checked_shr(shift).unwrap_or(0) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).checked_shr(shift).unwrap_or(0) == 0,
            _ => false,
        }
    }

    fn bits(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

#[cfg(test)]
mod tests;
