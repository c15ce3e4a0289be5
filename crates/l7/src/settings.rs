//! Settings of a proxy that understands HTTP, under the names that Istio's proxies read where they have one.

use std::net::IpAddr;
use std::time::Duration;
use trysail_base::settings::Reader;
use trysail_identity::client::ControlAddress;

/// Which requests are written to the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Those that were refused or failed in the mesh.
    Failures,
    /// All.
    All,
    /// None.
    Off,
}

impl std::str::FromStr for AccessLog {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "failures" => Ok(Self::Failures),
            "all" => Ok(Self::All),
            "off" => Ok(Self::Off),
            _ => Err("not failures, all or off".to_owned()),
        }
    }
}

/// How a proxy runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its pod's name.
    pub pod_name: String,
    /// Its pod's namespace.
    pub pod_namespace: String,
    /// Its pod's address.
    pub instance_ip: IpAddr,
    /// Node it runs on.
    pub node: String,
    /// Its service account.
    pub service_account: String,
    /// The Gateway it serves, of a waypoint or a gateway.
    pub gateway: String,
    /// The class of that Gateway.
    pub gateway_class: String,
    /// Cluster id, first part of workload uids.
    pub cluster: String,
    /// Trust domain.
    pub trust_domain: String,
    /// Where discovery is.
    pub xds: ControlAddress,
    /// Where certificates are.
    pub ca: ControlAddress,
    /// Life of certificates that is asked for.
    pub secret_ttl: Duration,
    /// How long connections may go on after the end was asked for.
    pub drain: Duration,
    /// End as soon as no connection is open, instead of waiting the whole drain.
    pub exit_on_zero: bool,
    /// Which requests are logged.
    pub access_log: AccessLog,
    /// Where spans go, `http://host:port` of an OTLP receiver; nowhere when empty.
    pub otlp: String,
    /// Share of requests that begin a trace, percent; a caller's own decision is followed.
    pub sampling: f64,
    /// Ask NetworkPolicies about each request; off with `NETWORK_POLICY=istio`.
    pub inner_gate: bool,
    /// Log filter.
    pub log: String,
}

/// `5s` or `5`.
#[derive(Clone, Copy, Debug)]
struct Seconds(u64);

impl std::str::FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches('s');
        digits.parse().map(Self).map_err(|_| "not a number of seconds".to_owned())
    }
}

impl Settings {
    /// Reads the section.
    pub fn read(r: &mut Reader<'_>) -> Self {
        let token = r.text("AUTH_TOKEN", "/var/run/secrets/tokens/istio-token");
        let root = r.text("CA_ROOT_CA", "/var/run/secrets/istio/root-cert.pem");
        let mut control = |key: &str| ControlAddress {
            url: r.text(key, "https://istiod.istio-system.svc:15012"),
            root_file: root.clone().into(),
            token_file: token.clone().into(),
        };
        let (xds, ca) = (control("XDS_ADDRESS"), control("CA_ADDRESS"));
        let any = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        Self {
            pod_name: r.required("POD_NAME"),
            pod_namespace: r.required("POD_NAMESPACE"),
            instance_ip: r.value("INSTANCE_IP", any),
            node: r.text("NODE_NAME", ""),
            service_account: r.text("SERVICE_ACCOUNT", "default"),
            gateway: r.text("GATEWAY_NAME", ""),
            gateway_class: r.text("GATEWAY_CLASS", ""),
            cluster: r.text("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            trust_domain: r.text("TRUST_DOMAIN", trysail_api::ids::DEFAULT_TRUST_DOMAIN),
            xds,
            ca,
            secret_ttl: Duration::from_secs(r.value("SECRET_TTL_SECONDS", 86_400)),
            drain: Duration::from_secs(r.value("TERMINATION_DRAIN_DURATION", Seconds(5)).0),
            exit_on_zero: r.value("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", true),
            access_log: r.value("ACCESS_LOG", AccessLog::Failures),
            otlp: r.text("OTLP_ENDPOINT", ""),
            sampling: r.value("TRACE_SAMPLING", 1.0),
            inner_gate: r.text("NETWORK_POLICY", "trysail") != "istio",
            log: r.text("RUST_LOG", "info"),
        }
    }
}
