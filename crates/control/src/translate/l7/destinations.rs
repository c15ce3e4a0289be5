//! DestinationRule: how a service's endpoints are used.

use super::findings::Findings;
use super::units::{duration, header_name};
use crate::translate::objects::{Objects, name, namespace, service_of_host};
use std::collections::BTreeMap;
use trysail_api::ids::WorkloadUid;
use trysail_api::istio::destination_rule::{
    ConnectionPool, ConsistentHash, DestinationRule, LoadBalancer, Outlier, PortSettings, Tls, TrafficPolicy,
};
use trysail_api::object::labels;
use trysail_wire::l7::{self as wire, hash};

/// How often and how long, where a rule does not say (Istio's defaults), milliseconds.
const INTERVAL: u64 = 10_000;
const EJECTED: u64 = 30_000;

/// Use of endpoints by service: namespace, name, rule. Rules of the service's namespace, the root namespace and its callers' namespaces.
pub fn of_services(objects: &Objects, cluster: &str) -> Vec<(String, String, wire::Destination)> {
    let mut rules: Vec<&DestinationRule> = objects.destination_rules().collect();
    rules.sort_by_key(|r| (r.metadata.creation_timestamp.as_ref().map(|t| t.0), r.metadata.name.clone()));
    let mut out: BTreeMap<(String, String), Vec<wire::Destination>> = BTreeMap::new();
    for rule in rules {
        let own = namespace(&rule.metadata);
        for (place, service) in hosts(objects, &rule.spec.host, own) {
            let list = out.entry((place.clone(), service)).or_default();
            // Of two rules of one namespace the older counts.
            if list.iter().any(|d| d.namespace == own) {
                continue;
            }
            list.push(destination(objects, rule, &place, cluster));
        }
    }
    out.into_iter().flat_map(|((ns, n), list)| list.into_iter().map(move |d| (ns.clone(), n.clone(), d))).collect()
}

fn hosts(objects: &Objects, host: &str, own: &str) -> Vec<(String, String)> {
    match host.strip_prefix('*') {
        None => service_of_host(host, own).into_iter().collect(),
        Some(suffix) => objects
            .services()
            .map(|s| (namespace(&s.metadata).to_owned(), name(&s.metadata).to_owned()))
            .filter(|(ns, n)| trysail_api::ids::service_hostname(n, ns).ends_with(suffix))
            .collect(),
    }
}

fn destination(objects: &Objects, rule: &DestinationRule, place: &str, cluster: &str) -> wire::Destination {
    let findings = &mut Findings::default();
    let members = |wanted: &BTreeMap<String, String>| {
        let pods = objects.pods().filter(|p| namespace(&p.metadata) == place);
        let selected = pods.filter(|p| wanted.iter().all(|(k, v)| labels(&p.metadata).get(k) == Some(v)));
        selected.map(|p| WorkloadUid::pod(cluster, place, name(&p.metadata)).to_string()).collect()
    };
    let policy = rule.spec.traffic_policy.as_ref();
    let subsets = rule.spec.subsets.iter().map(|subset| wire::Subset {
        name: subset.name.clone(),
        members: members(&subset.labels),
        // A subset's own policy replaces the host's where it says something.
        traffic: Some(traffic(&merged(policy, subset.traffic_policy.as_ref()), "", findings)),
    });
    let subsets = subsets.collect();
    wire::Destination {
        namespace: namespace(&rule.metadata).to_owned(),
        name: name(&rule.metadata).to_owned(),
        subsets,
        traffic: policy.map(|p| traffic(p, "", findings)),
    }
}

fn merged(host: Option<&TrafficPolicy>, own: Option<&TrafficPolicy>) -> TrafficPolicy {
    let (host, own) = (host.cloned().unwrap_or_default(), own.cloned().unwrap_or_default());
    TrafficPolicy {
        load_balancer: own.load_balancer.or(host.load_balancer),
        connection_pool: own.connection_pool.or(host.connection_pool),
        outlier_detection: own.outlier_detection.or(host.outlier_detection),
        tls: own.tls.or(host.tls),
        port_level_settings: if own.port_level_settings.is_empty() {
            host.port_level_settings
        } else {
            own.port_level_settings
        },
    }
}

fn traffic(policy: &TrafficPolicy, at: &str, findings: &mut Findings) -> wire::Traffic {
    let all = PortSettings {
        port: None,
        load_balancer: policy.load_balancer.clone(),
        connection_pool: policy.connection_pool.clone(),
        outlier_detection: policy.outlier_detection.clone(),
        tls: policy.tls.clone(),
    };
    let ports = policy.port_level_settings.iter().enumerate().map(|(index, port)| {
        let at = format!("{at}.portLevelSettings[{index}]");
        if port.port.is_none() {
            findings.error(format!("{at}.port.number"), "needed");
        }
        wire::PortTraffic {
            port: port.port.as_ref().map_or(0, |p| p.number.into()),
            settings: Some(settings(port, &at, findings)),
        }
    });
    let ports = ports.collect();
    wire::Traffic { all: Some(settings(&all, at, findings)), ports }
}

fn settings(given: &PortSettings, at: &str, findings: &mut Findings) -> wire::Settings {
    let mut out = wire::Settings::default();
    if let Some(balancer) = &given.load_balancer {
        balance(balancer, &format!("{at}.loadBalancer"), &mut out, findings);
    }
    if let Some(pool) = &given.connection_pool {
        limits(pool, &format!("{at}.connectionPool"), &mut out, findings);
    }
    out.outlier = given.outlier_detection.as_ref().map(|o| outlier(o, &format!("{at}.outlierDetection"), findings));
    if let Some(tls) = &given.tls {
        out.plaintext = plaintext(tls, &format!("{at}.tls"), findings);
    }
    out
}

fn balance(given: &LoadBalancer, at: &str, out: &mut wire::Settings, findings: &mut Findings) {
    findings.unsupported(given.locality_lb_setting.is_some(), format!("{at}.localityLbSetting"));
    findings.unsupported(given.warmup.is_some(), format!("{at}.warmup"));
    let kind = match (given.simple.as_deref(), &given.consistent_hash) {
        (Some(_), Some(_)) => {
            findings.error(at, "simple and consistentHash exclude each other");
            wire::Balance::LeastRequest
        }
        (None, Some(hash)) => {
            out.hash = hashed(hash, &format!("{at}.consistentHash"), findings);
            wire::Balance::Hash
        }
        (Some("ROUND_ROBIN"), None) => wire::Balance::RoundRobin,
        (Some("RANDOM"), None) => wire::Balance::Random,
        (None | Some("UNSPECIFIED" | "LEAST_REQUEST" | "LEAST_CONN"), None) => wire::Balance::LeastRequest,
        (Some(other), None) => {
            let known = "LEAST_REQUEST, ROUND_ROBIN or RANDOM";
            findings.error(format!("{at}.simple"), format!("{other:?} is not {known}"));
            wire::Balance::LeastRequest
        }
    };
    out.balance = kind as i32;
}

fn hashed(given: &ConsistentHash, at: &str, findings: &mut Findings) -> Option<wire::Hash> {
    let cookie = given.http_cookie.as_ref().map(|cookie| {
        let ttl = cookie.ttl.as_ref().map(|_| duration(cookie.ttl.as_ref(), &format!("{at}.httpCookie.ttl"), findings));
        let ttl_s = ttl.map(|ms| ms.div_ceil(1000));
        wire::Cookie { name: cookie.name.clone(), path: cookie.path.clone().unwrap_or_default(), ttl_s }
    });
    if let Some(header) = &given.http_header_name {
        header_name(header, &format!("{at}.httpHeaderName"), findings);
    }
    let kinds = [
        given.http_header_name.clone().map(|h| hash::Kind::Header(h.to_ascii_lowercase())),
        cookie.map(hash::Kind::Cookie),
        given.use_source_ip.filter(|yes| *yes).map(hash::Kind::SourceIp),
        given.http_query_parameter_name.clone().map(hash::Kind::Query),
    ];
    let mut given = kinds.into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(kind), None) => Some(wire::Hash { kind: Some(kind) }),
        _ => {
            findings.error(
                at,
                "exactly one of httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName is needed",
            );
            None
        }
    }
}

fn limits(given: &ConnectionPool, at: &str, out: &mut wire::Settings, findings: &mut Findings) {
    if let Some(tcp) = &given.tcp {
        let at = format!("{at}.tcp");
        out.max_connections = tcp.max_connections.unwrap_or(0);
        out.connect_timeout_ms = duration(tcp.connect_timeout.as_ref(), &format!("{at}.connectTimeout"), findings);
        findings.unsupported(tcp.max_connection_duration.is_some(), format!("{at}.maxConnectionDuration"));
        findings.unsupported(tcp.idle_timeout.is_some(), format!("{at}.idleTimeout"));
        if tcp.tcp_keepalive.is_some() {
            findings.ignored(format!("{at}.tcpKeepalive"), "proxies probe every connection on their own terms");
        }
    }
    if let Some(http) = &given.http {
        let at = format!("{at}.http");
        out.max_pending = http.http1_max_pending_requests.unwrap_or(0);
        out.max_requests = http.http2_max_requests.unwrap_or(0);
        out.max_requests_per_connection = http.max_requests_per_connection.unwrap_or(0);
        out.max_retries = http.max_retries.unwrap_or(0);
        out.idle_timeout_ms = duration(http.idle_timeout.as_ref(), &format!("{at}.idleTimeout"), findings);
        findings.unsupported(http.use_client_protocol.is_some(), format!("{at}.useClientProtocol"));
        findings.unsupported(http.max_concurrent_streams.is_some(), format!("{at}.maxConcurrentStreams"));
        match http.h2_upgrade_policy.as_deref() {
            None | Some("DEFAULT" | "DO_NOT_UPGRADE") => {}
            Some("UPGRADE") => out.upgrade_h2 = true,
            Some(other) => findings
                .error(format!("{at}.h2UpgradePolicy"), format!("{other:?} is not DEFAULT, DO_NOT_UPGRADE or UPGRADE")),
        }
    }
}

fn outlier(given: &Outlier, at: &str, findings: &mut Findings) -> wire::Outlier {
    findings.unsupported(
        given.split_external_local_origin_errors == Some(true),
        format!("{at}.splitExternalLocalOriginErrors"),
    );
    findings
        .unsupported(given.consecutive_local_origin_failures.is_some(), format!("{at}.consecutiveLocalOriginFailures"));
    for (percent, field) in
        [(given.max_ejection_percent, "maxEjectionPercent"), (given.min_health_percent, "minHealthPercent")]
    {
        if percent.is_some_and(|p| p > 100) {
            findings.error(format!("{at}.{field}"), "above 100");
        }
    }
    let of = |given: u64, default: u64| if given == 0 { default } else { given };
    wire::Outlier {
        consecutive_5xx: given.consecutive5xx_errors.or(given.consecutive_errors).unwrap_or(5),
        consecutive_gateway: given.consecutive_gateway_errors.unwrap_or(0),
        interval_ms: of(duration(given.interval.as_ref(), &format!("{at}.interval"), findings), INTERVAL),
        base_ms: of(duration(given.base_ejection_time.as_ref(), &format!("{at}.baseEjectionTime"), findings), EJECTED),
        max_percent: given.max_ejection_percent.unwrap_or(10),
        min_health_percent: given.min_health_percent.unwrap_or(0),
    }
}

fn plaintext(tls: &Tls, at: &str, findings: &mut Findings) -> bool {
    match tls.mode.as_str() {
        "DISABLE" => return true,
        // Between mesh peers mutual TLS is there without being asked for.
        "ISTIO_MUTUAL" => {}
        other => findings.error(format!("{at}.mode"), format!("{other:?} is not supported: DISABLE or ISTIO_MUTUAL")),
    }
    for (given, field) in [
        (tls.sni.is_some(), "sni"),
        (!tls.subject_alt_names.is_empty(), "subjectAltNames"),
        (tls.ca_certificates.is_some(), "caCertificates"),
        (tls.credential_name.is_some(), "credentialName"),
        (tls.client_certificate.is_some(), "clientCertificate"),
        (tls.private_key.is_some(), "privateKey"),
        (tls.insecure_skip_verify.is_some(), "insecureSkipVerify"),
    ] {
        findings.unsupported(given, format!("{at}.{field}"));
    }
    false
}

/// Checks a DestinationRule by itself.
pub fn check(rule: &DestinationRule, findings: &mut Findings) {
    let spec = &rule.spec;
    if spec.host.is_empty() {
        findings.error("spec.host", "a host is needed");
    }
    findings.unsupported(spec.workload_selector.is_some(), "spec.workloadSelector");
    findings.unsupported(spec.export_to.iter().any(|e| e != "*"), "spec.exportTo");
    if let Some(policy) = &spec.traffic_policy {
        traffic(policy, "spec.trafficPolicy", findings);
    }
    for (index, subset) in spec.subsets.iter().enumerate() {
        let at = format!("spec.subsets[{index}]");
        if subset.name.is_empty() || spec.subsets.iter().take(index).any(|s| s.name == subset.name) {
            findings.error(format!("{at}.name"), "every subset needs a name of its own");
        }
        if let Some(policy) = &subset.traffic_policy {
            traffic(policy, &format!("{at}.trafficPolicy"), findings);
        }
    }
}
