//! AuthorizationPolicy at a hop that understands HTTP: a waypoint, a sidecar, a gateway. The same order and combination as at layer 4.

use crate::authz::{Cidr, Facts as Connection, StringMatch, Verdict};
use crate::path::Readings;
use serde_json::Value;
use std::net::IpAddr;
use trysail_api::istio::authorization_policy::{Action, Condition, Operation, Rule as Written, Source};

/// What is known of a request.
pub struct Request<'a> {
    /// Method, as it came.
    pub method: &'a str,
    /// Host of the authority, lower case, without trailing dot.
    pub host: &'a str,
    /// Port of the authority, or the scheme's own.
    pub port: u16,
    /// What the path may mean.
    pub paths: &'a Readings,
    /// All values of a header, by its name in lower case.
    pub headers: &'a dyn Fn(&str) -> Vec<String>,
    /// Claims of the validated token.
    pub claims: Option<&'a Value>,
}

/// What is known of a connection, and of the request on it when it is HTTP.
pub struct Facts<'a> {
    /// The connection.
    pub connection: &'a Connection,
    /// The client's address as the ingress gateway decided it; elsewhere the peer's.
    pub remote_ip: IpAddr,
    /// Server name of the TLS handshake.
    pub sni: Option<&'a str>,
    /// The request.
    pub request: Option<Request<'a>>,
}

/// A policy made ready.
#[derive(Clone, Debug)]
pub struct Policy {
    /// `namespace/name`.
    pub name: String,
    /// What a match means.
    pub action: Action,
    /// Evaluated and logged, without effect.
    pub dry_run: bool,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// All clauses; of each any entry; of each all tests.
    clauses: Vec<Vec<Vec<Test>>>,
    /// Something in it cannot be read: an ALLOW rule never matches, another ignores that part.
    unreadable: bool,
    /// Something in it speaks of HTTP.
    http: bool,
}

/// One test: some value matches, or with `not` none does.
#[derive(Clone, Debug)]
struct Test {
    what: What,
    not: bool,
}

#[derive(Clone, Debug)]
enum What {
    Principals(Vec<StringMatch>),
    Namespaces(Vec<StringMatch>),
    Accounts(Vec<(String, String)>),
    SourceIps(Vec<Cidr>),
    RemoteIps(Vec<Cidr>),
    DestinationIps(Vec<Cidr>),
    Ports(Vec<u16>),
    Sni(Vec<StringMatch>),
    RequestPrincipals(Vec<StringMatch>),
    Hosts(Vec<HostMatch>),
    Methods(Vec<StringMatch>),
    Paths(Vec<PathMatch>),
    Header(String, Vec<StringMatch>),
    Audiences(Vec<StringMatch>),
    Presenter(Vec<StringMatch>),
    Claim(Vec<String>, Vec<StringMatch>),
}

impl What {
    fn is_http(&self) -> bool {
        !matches!(
            self,
            Self::Principals(_)
                | Self::Namespaces(_)
                | Self::Accounts(_)
                | Self::SourceIps(_)
                | Self::RemoteIps(_)
                | Self::DestinationIps(_)
                | Self::Ports(_)
                | Self::Sni(_)
        )
    }
}

#[derive(Clone, Debug)]
struct HostMatch {
    host: StringMatch,
    /// `None`: not compared; `Some(None)`: any.
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum PathMatch {
    Text(StringMatch),
    Template(Vec<Segment>),
}

#[derive(Clone, Debug)]
enum Segment {
    Literal(String),
    /// `{*}`
    One,
    /// `{**}`
    Any,
}

/// The verdict, and policies that matched without effect (AUDIT and dry runs), for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// May it go on?
    pub verdict: Verdict,
    /// `namespace/name` of those that matched and have no effect.
    pub noted: Vec<String>,
}

/// The verdict of the policies that apply here: under every reading of the path it must be the same for the request to pass.
pub fn evaluate<'p>(policies: impl IntoIterator<Item = &'p Policy> + Clone, facts: &Facts<'_>) -> Outcome {
    let mut noted = Vec::new();
    let readings = facts.request.as_ref().map(|r| r.paths.distinct()).unwrap_or_else(|| vec![""]);
    for path in readings {
        let (mut any_allow, mut allowed) = (false, false);
        for policy in policies.clone() {
            if policy.dry_run || policy.action == Action::Audit {
                if policy.matches(facts, path) && !noted.contains(&policy.name) {
                    noted.push(policy.name.clone());
                }
                continue;
            }
            match policy.action {
                Action::Allow => {
                    any_allow = true;
                    allowed = allowed || policy.matches(facts, path);
                }
                _ if policy.matches(facts, path) => {
                    return Outcome { verdict: Verdict::DeniedBy(policy.name.clone()), noted };
                }
                _ => {}
            }
        }
        if any_allow && !allowed {
            return Outcome { verdict: Verdict::NoAllowMatched, noted };
        }
    }
    Outcome { verdict: Verdict::Allow, noted }
}

impl Policy {
    /// Makes the rules of a policy of `namespace` ready; `trust_domain` is the mesh's own.
    pub fn compile(name: &str, action: Action, rules: &[Written], (namespace, trust_domain): (&str, &str)) -> Self {
        let rule = |rule: &Written| {
            let mut reader = Reader { namespace, trust_domain, allow: action == Action::Allow, unreadable: false };
            let clauses = reader.rule(rule);
            let http = clauses.iter().flatten().flatten().any(|t: &Test| t.what.is_http());
            Rule { clauses, unreadable: reader.unreadable, http }
        };
        Self { name: name.to_owned(), action, dry_run: false, rules: rules.iter().map(rule).collect() }
    }

    /// Whether any rule holds under this reading of the path.
    fn matches(&self, facts: &Facts<'_>, path: &str) -> bool {
        let allow = self.action == Action::Allow;
        self.rules.iter().any(|rule| {
            if allow && (rule.unreadable || (rule.http && facts.request.is_none())) {
                return false;
            }
            rule.clauses
                .iter()
                .all(|entries| entries.iter().any(|tests| tests.iter().all(|t| t.holds(facts, path, allow))))
        })
    }
}

fn any(patterns: &[StringMatch], value: Option<&str>) -> bool {
    value.is_some_and(|v| patterns.iter().any(|p| p.holds(v)))
}

impl Test {
    /// A test that cannot be made holds: whoever asks has refused an ALLOW rule with such a test before.
    fn holds(&self, facts: &Facts<'_>, path: &str, allow: bool) -> bool {
        if self.what.is_http() && facts.request.is_none() {
            return true;
        }
        if let What::Header(name, patterns) = &self.what {
            return self.header(facts, name, patterns, allow);
        }
        self.what.matches(facts, path) != self.not
    }

    /// A header that was sent more than once has several readings; a rule that admits must hold for all, one that denies for any.
    fn header(&self, facts: &Facts<'_>, name: &str, patterns: &[StringMatch], allow: bool) -> bool {
        let values = facts.request.as_ref().map(|r| (r.headers)(name)).unwrap_or_default();
        let mut readings = values.clone();
        if values.len() > 1 {
            readings.push(values.join(","));
        }
        if readings.is_empty() {
            return self.not;
        }
        let mut each = readings.iter().map(|v| patterns.iter().any(|p| p.holds(v)) != self.not);
        if allow { each.all(|holds| holds) } else { each.any(|holds| holds) }
    }
}

impl What {
    fn matches(&self, facts: &Facts<'_>, path: &str) -> bool {
        let connection = facts.connection;
        let inside = |blocks: &[Cidr], ip| blocks.iter().any(|block| block.contains(ip));
        let request = facts.request.as_ref();
        let claim = |keys: &[&str]| -> Vec<&str> {
            let claims = request.and_then(|r| r.claims);
            let found = claims.and_then(|c| keys.iter().try_fold(c, |at, key| at.get(*key)));
            match found {
                Some(Value::String(text)) => vec![text],
                Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            }
        };
        let among = |patterns: &[StringMatch], values: Vec<&str>| values.iter().any(|v| any(patterns, Some(v)));
        match self {
            Self::Principals(patterns) => connection.principal_matches(patterns),
            Self::Namespaces(patterns) => any(patterns, connection.source.as_ref().map(|id| &*id.namespace)),
            Self::Accounts(accounts) => {
                connection.account_matches(|ns, sa| accounts.iter().any(|a| a.0 == ns && a.1 == sa))
            }
            Self::SourceIps(blocks) => inside(blocks, connection.source_ip),
            Self::RemoteIps(blocks) => inside(blocks, facts.remote_ip),
            Self::DestinationIps(blocks) => inside(blocks, connection.destination_ip),
            Self::Ports(ports) => ports.contains(&connection.destination_port),
            Self::Sni(patterns) => any(patterns, facts.sni),
            Self::RequestPrincipals(patterns) => {
                let principal = match (claim(&["iss"]).first(), claim(&["sub"]).first()) {
                    (Some(issuer), Some(subject)) => Some(format!("{issuer}/{subject}")),
                    _ => None,
                };
                any(patterns, principal.as_deref())
            }
            Self::Hosts(hosts) => request.is_some_and(|r| hosts.iter().any(|h| h.holds(r.host, r.port))),
            Self::Methods(patterns) => any(patterns, request.map(|r| r.method)),
            Self::Paths(patterns) => patterns.iter().any(|p| p.holds(path)),
            Self::Audiences(patterns) => among(patterns, claim(&["aud"])),
            Self::Presenter(patterns) => among(patterns, claim(&["azp"])),
            Self::Claim(keys, patterns) => among(patterns, claim(&keys.iter().map(String::as_str).collect::<Vec<_>>())),
            // Looked at by the test itself.
            Self::Header(..) => false,
        }
    }
}

impl HostMatch {
    fn parse(pattern: &str) -> Self {
        let lower = pattern.to_ascii_lowercase();
        let (host, port) = match lower.rsplit_once(':') {
            Some((host, "*")) => (host, None),
            Some((host, digits)) if digits.parse::<u16>().is_ok() => (host, digits.parse().ok()),
            _ => (lower.as_str(), None),
        };
        Self { host: StringMatch::parse(host.strip_suffix('.').unwrap_or(host)), port }
    }

    fn holds(&self, host: &str, port: u16) -> bool {
        self.port.is_none_or(|wanted| wanted == port) && self.host.holds(host)
    }
}

impl PathMatch {
    fn parse(pattern: &str) -> Result<Self, ()> {
        if !pattern.contains(['{', '}']) {
            return Ok(Self::Text(StringMatch::parse(pattern)));
        }
        let (mut segments, mut any) = (Vec::new(), false);
        for part in pattern.split('/') {
            segments.push(match part {
                "{**}" if !any => {
                    any = true;
                    Segment::Any
                }
                "{*}" if !any => Segment::One,
                part if part.contains(['{', '}', '*']) => return Err(()),
                literal => Segment::Literal(literal.to_owned()),
            });
        }
        Ok(Self::Template(segments))
    }

    fn holds(&self, path: &str) -> bool {
        let segments = match self {
            Self::Text(text) => return text.holds(path),
            Self::Template(segments) => segments,
        };
        let parts: Vec<&str> = path.split('/').collect();
        let Some(at) = segments.iter().position(|s| matches!(s, Segment::Any)) else {
            return segments.len() == parts.len() && segments.iter().zip(&parts).all(|(s, p)| s.holds(p));
        };
        // Any characters, slashes included, also none: but what stands before and after has its own places.
        let after = segments.len() - at - 1;
        parts.len() > at + after
            && segments.iter().zip(&parts).take(at).all(|(s, p)| s.holds(p))
            && segments.iter().rev().zip(parts.iter().rev()).take(after).all(|(s, p)| s.holds(p))
    }
}

impl Segment {
    fn holds(&self, part: &str) -> bool {
        match self {
            Self::Literal(text) => text == part,
            Self::One => !part.is_empty(),
            Self::Any => true,
        }
    }
}

struct Reader<'a> {
    namespace: &'a str,
    trust_domain: &'a str,
    allow: bool,
    unreadable: bool,
}

impl Reader<'_> {
    fn rule(&mut self, rule: &Written) -> Vec<Vec<Vec<Test>>> {
        let mut clauses = Vec::new();
        if let Some(from) = &rule.from {
            self.unreadable |= from.is_empty();
            let entries: Vec<_> = from.iter().map(|f| self.source(&f.source)).collect();
            clauses.push(entries);
        }
        if let Some(to) = &rule.to {
            self.unreadable |= to.is_empty();
            let entries: Vec<_> = to.iter().map(|t| self.operation(&t.operation)).collect();
            clauses.push(entries);
        }
        for condition in rule.when.iter().flatten() {
            clauses.push(vec![self.condition(condition)]);
        }
        // A clause of which nothing could be read holds; in an ALLOW rule it is not asked.
        clauses.retain(|entries| !entries.is_empty());
        clauses
    }

    /// Tests of a field and of its opposite; an empty list is no test.
    fn pair<T>(
        &mut self,
        (given, not): (&[String], &[String]),
        read: impl Fn(&mut Self, &str) -> Option<T>,
        make: impl Fn(Vec<T>) -> What,
    ) -> Vec<Test> {
        let mut tests = Vec::new();
        for (values, not) in [(given, false), (not, true)] {
            if values.is_empty() {
                continue;
            }
            let parsed: Option<Vec<T>> = values.iter().map(|v| read(self, v)).collect();
            match parsed {
                Some(list) => tests.push(Test { what: make(list), not }),
                None => self.unreadable = true,
            }
        }
        tests
    }

    fn source(&mut self, s: &Source) -> Vec<Test> {
        self.unreadable |= *s == Source::default();
        let mut tests = self.pair((&s.principals, &s.not_principals), Self::principal, What::Principals);
        tests.extend(self.pair((&s.namespaces, &s.not_namespaces), text, What::Namespaces));
        tests.extend(self.pair((&s.service_accounts, &s.not_service_accounts), Self::account, What::Accounts));
        tests.extend(self.pair((&s.ip_blocks, &s.not_ip_blocks), block, What::SourceIps));
        tests.extend(self.pair((&s.remote_ip_blocks, &s.not_remote_ip_blocks), block, What::RemoteIps));
        let requests = (s.request_principals.as_slice(), s.not_request_principals.as_slice());
        tests.extend(self.pair(requests, text, What::RequestPrincipals));
        tests
    }

    fn operation(&mut self, o: &Operation) -> Vec<Test> {
        self.unreadable |= *o == Operation::default();
        let mut tests = self.pair((&o.ports, &o.not_ports), port, What::Ports);
        tests.extend(self.pair((&o.hosts, &o.not_hosts), |_, v| Some(HostMatch::parse(v)), What::Hosts));
        tests.extend(self.pair((&o.methods, &o.not_methods), text, What::Methods));
        tests.extend(self.pair((&o.paths, &o.not_paths), |_, v| PathMatch::parse(v).ok(), What::Paths));
        tests
    }

    fn condition(&mut self, c: &Condition) -> Vec<Test> {
        self.unreadable |= c.values.is_empty() && c.not_values.is_empty();
        let values = (c.values.as_slice(), c.not_values.as_slice());
        match c.key.as_str() {
            "source.ip" => self.pair(values, block, What::SourceIps),
            "source.namespace" => self.pair(values, text, What::Namespaces),
            "source.principal" => self.pair(values, Self::principal, What::Principals),
            "destination.ip" => self.pair(values, block, What::DestinationIps),
            "destination.port" => self.pair(values, port, What::Ports),
            "remote.ip" => self.pair(values, block, What::RemoteIps),
            "connection.sni" => self.pair(values, text, What::Sni),
            "request.auth.principal" => self.pair(values, text, What::RequestPrincipals),
            "request.auth.audiences" => self.pair(values, text, What::Audiences),
            "request.auth.presenter" => self.pair(values, text, What::Presenter),
            key => {
                if let Some(name) =
                    brackets(key, "request.headers").and_then(|mut n| (n.len() == 1).then(|| n.remove(0)))
                {
                    let name = name.to_ascii_lowercase();
                    self.pair(values, text, |list| What::Header(name.clone(), list))
                } else if let Some(path) = brackets(key, "request.auth.claims") {
                    self.pair(values, text, |list| What::Claim(path.clone(), list))
                } else {
                    self.unreadable = true;
                    Vec::new()
                }
            }
        }
    }

    fn principal(&mut self, value: &str) -> Option<StringMatch> {
        let bare = value.strip_prefix("spiffe://");
        // Written with its scheme a principal never admits; in a rule that denies it is read without.
        if bare.is_some() && self.allow {
            return None;
        }
        let value = bare.unwrap_or(value);
        let own = value.strip_prefix("cluster.local/").map(|rest| format!("{}/{rest}", self.trust_domain));
        Some(StringMatch::parse(own.as_deref().unwrap_or(value)))
    }

    fn account(&mut self, value: &str) -> Option<(String, String)> {
        let (namespace, name) = value.split_once('/').unwrap_or((self.namespace, value));
        Some((namespace.to_owned(), name.to_owned()))
    }
}

fn text(_: &mut Reader<'_>, value: &str) -> Option<StringMatch> {
    Some(StringMatch::parse(value))
}

fn block(_: &mut Reader<'_>, value: &str) -> Option<Cidr> {
    Cidr::parse(value)
}

fn port(_: &mut Reader<'_>, value: &str) -> Option<u16> {
    value.parse().ok().filter(|p| *p != 0)
}

/// Whether `key` is one that a condition can ask for.
pub fn knows(key: &str) -> bool {
    matches!(
        key,
        "source.ip"
            | "source.namespace"
            | "source.principal"
            | "destination.ip"
            | "destination.port"
            | "remote.ip"
            | "connection.sni"
            | "request.auth.principal"
            | "request.auth.audiences"
            | "request.auth.presenter"
    ) || brackets(key, "request.headers").is_some_and(|names| names.len() == 1)
        || brackets(key, "request.auth.claims").is_some()
}

/// `a[b][c]` with the given head: `b` and `c`.
fn brackets(key: &str, head: &str) -> Option<Vec<String>> {
    let rest = key.strip_prefix(head)?.strip_prefix('[')?.strip_suffix(']')?;
    let parts: Vec<String> = rest.split("][").map(str::to_owned).collect();
    parts.iter().all(|p| !p.is_empty() && !p.contains(['[', ']'])).then_some(parts)
}

#[cfg(test)]
mod tests;
