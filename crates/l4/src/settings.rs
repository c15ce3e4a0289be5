//! The node proxy's settings, under the names that Istio's node proxy reads.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;
use trysail_base::settings::Reader;
use trysail_identity::client::ControlAddress;

/// How a node proxy runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Node it serves.
    pub node: String,
    /// Its pod's name.
    pub pod_name: String,
    /// Its pod's namespace.
    pub pod_namespace: String,
    /// Its own address.
    pub instance_ip: String,
    /// Cluster id, first part of workload uids.
    pub cluster: String,
    /// Trust domain of local pods' identities.
    pub trust_domain: String,
    /// Where discovery is.
    pub xds: ControlAddress,
    /// Where certificates are.
    pub ca: ControlAddress,
    /// Life of certificates that is asked for.
    pub secret_ttl: Duration,
    /// Unix socket of the node agent.
    pub zds_socket: PathBuf,
    /// How long open connections may take to finish at shutdown.
    pub termination_grace: Duration,
    /// Judge what is inside tunnels by NetworkPolicies; off with `NETWORK_POLICY=istio`.
    pub inner_gate: bool,
    /// Address of the metrics and readiness ports.
    pub stats_address: IpAddr,
    /// Log filter.
    pub log: String,
}

impl Settings {
    /// Reads the section.
    pub fn read(r: &mut Reader<'_>) -> Self {
        let root_file: PathBuf = r.text("CA_ROOT_CA", "/var/run/secrets/istio/root-cert.pem").into();
        let xds_root: PathBuf = r.text("XDS_ROOT_CA", "/var/run/secrets/istio/root-cert.pem").into();
        let token_file: PathBuf = r.text("AUTH_TOKEN", "/var/run/secrets/tokens/istio-token").into();
        let control = "https://istiod.istio-system.svc:15012";
        let address = |url: String, root_file: PathBuf| {
            let url = if url.contains("://") { url } else { format!("https://{url}") };
            ControlAddress { url, root_file, token_file: token_file.clone() }
        };
        Self {
            node: r.required("NODE_NAME"),
            pod_name: r.text("POD_NAME", "node-proxy"),
            pod_namespace: r.text("POD_NAMESPACE", "istio-system"),
            instance_ip: r.text("INSTANCE_IP", "127.0.0.1"),
            cluster: r.text("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            trust_domain: r.text("TRUST_DOMAIN", trysail_api::ids::DEFAULT_TRUST_DOMAIN),
            xds: address(r.text("XDS_ADDRESS", control), xds_root),
            ca: address(r.text("CA_ADDRESS", control), root_file),
            secret_ttl: Duration::from_secs(r.value("SECRET_TTL_SECONDS", 86_400)),
            zds_socket: r.text("INPOD_UDS", "/var/run/ztunnel/ztunnel.sock").into(),
            termination_grace: Duration::from_secs(r.value("TERMINATION_GRACE_PERIOD_SECONDS", 30)),
            inner_gate: r.text("NETWORK_POLICY", "trysail") != "istio",
            stats_address: r.value("STATS_ADDRESS", Ipv4Addr::UNSPECIFIED.into()),
            log: r.text("RUST_LOG", "info"),
        }
    }
}
