//! DestinationRule: how a host's endpoints are used.

use super::{Istio, WorkloadSelector};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The object.
pub type DestinationRule = Istio<Spec>;

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* #[serde(default, skip_serializing_if = "skip")] pub $field: $type,)* }
    };
}

/// Whether a value is what an absent field means.
fn skip<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fields!(
    /// A host, its policy and its subsets.
    Spec {
        /// Host name; a short one is in the object's namespace.
        host: String,
        /// For all of its endpoints.
        traffic_policy: Option<TrafficPolicy>,
        /// Named groups of endpoints.
        subsets: Vec<Subset>,
        /// Namespaces in which it counts.
        export_to: Vec<String>,
        /// Callers for which it counts.
        workload_selector: Option<WorkloadSelector>,
    }
);
fields!(
    /// A named group of endpoints.
    Subset {
        /// Name.
        name: String,
        /// Labels of its pods.
        labels: BTreeMap<String, String>,
        /// Its own policy, over the host's.
        traffic_policy: Option<TrafficPolicy>,
    }
);
fields!(
    /// How endpoints are used.
    TrafficPolicy {
        /// Choice.
        load_balancer: Option<LoadBalancer>,
        /// Limits.
        connection_pool: Option<ConnectionPool>,
        /// Ejection.
        outlier_detection: Option<Outlier>,
        /// TLS towards endpoints.
        tls: Option<Tls>,
        /// The same, of one port.
        port_level_settings: Vec<PortSettings>,
    }
);
fields!(
    /// A port's own settings; each replaces the host's.
    PortSettings {
        /// The port.
        port: Option<PortNumber>,
        /// Choice.
        load_balancer: Option<LoadBalancer>,
        /// Limits.
        connection_pool: Option<ConnectionPool>,
        /// Ejection.
        outlier_detection: Option<Outlier>,
        /// TLS towards endpoints.
        tls: Option<Tls>,
    }
);
fields!(
    /// A port.
    PortNumber {
        /// Its number.
        number: u16,
    }
);
fields!(
    /// How an endpoint is chosen.
    LoadBalancer {
        /// `LEAST_REQUEST`, `ROUND_ROBIN`, `RANDOM` or `PASSTHROUGH`.
        simple: Option<String>,
        /// By a property of the request.
        consistent_hash: Option<ConsistentHash>,
        /// By place.
        locality_lb_setting: Option<serde_json::Value>,
        /// Slow start.
        warmup: Option<serde_json::Value>,
    }
);
fields!(
    /// The property that is hashed: one of these.
    ConsistentHash {
        /// A header.
        http_header_name: Option<String>,
        /// A cookie, made when it is missing and has a life.
        http_cookie: Option<Cookie>,
        /// The caller's address.
        use_source_ip: Option<bool>,
        /// A query parameter.
        http_query_parameter_name: Option<String>,
        /// Ignored: the hash needs no ring of a set size.
        minimum_ring_size: Option<u64>,
    }
);
fields!(
    /// A cookie.
    Cookie {
        /// Name.
        name: String,
        /// Path.
        path: Option<String>,
        /// Life; a session's when `0s`, never made when absent.
        ttl: Option<String>,
    }
);
fields!(
    /// Limits.
    ConnectionPool {
        /// Of connections.
        tcp: Option<TcpPool>,
        /// Of requests.
        http: Option<HttpPool>,
    }
);
fields!(
    /// Limits of connections.
    TcpPool {
        /// Open connections to the host.
        max_connections: Option<u32>,
        /// Limit of connecting.
        connect_timeout: Option<String>,
        /// Longest life of a connection.
        max_connection_duration: Option<String>,
        /// Longest silence on a connection.
        idle_timeout: Option<String>,
        /// Keepalive probes.
        tcp_keepalive: Option<serde_json::Value>,
    }
);
fields!(
    /// Limits of requests.
    HttpPool {
        /// Requests that may wait for a connection.
        http1_max_pending_requests: Option<u32>,
        /// Requests under way.
        http2_max_requests: Option<u32>,
        /// Requests on one connection.
        max_requests_per_connection: Option<u32>,
        /// Tries again under way.
        max_retries: Option<u32>,
        /// Longest silence on a connection.
        idle_timeout: Option<String>,
        /// Whether HTTP/1.1 becomes HTTP/2: `DEFAULT`, `DO_NOT_UPGRADE`, `UPGRADE`.
        h2_upgrade_policy: Option<String>,
        /// Not honoured.
        use_client_protocol: Option<bool>,
        /// Streams on one connection.
        max_concurrent_streams: Option<u32>,
    }
);
fields!(
    /// When an endpoint is left out for a while.
    Outlier {
        /// Errors (5xx and failed connections) in a row.
        consecutive5xx_errors: Option<u32>,
        /// Gateway errors (502, 503, 504) in a row.
        consecutive_gateway_errors: Option<u32>,
        /// The same, older name.
        consecutive_errors: Option<u32>,
        /// How often it is looked at.
        interval: Option<String>,
        /// Least time out, times the number of ejections.
        base_ejection_time: Option<String>,
        /// Most endpoints out, percent.
        max_ejection_percent: Option<u32>,
        /// Below this share of healthy endpoints nothing is left out, percent.
        min_health_percent: Option<u32>,
        /// Not honoured.
        split_external_local_origin_errors: Option<bool>,
        /// Not honoured.
        consecutive_local_origin_failures: Option<u32>,
    }
);
fields!(
    /// TLS towards endpoints.
    Tls {
        /// `DISABLE`, `ISTIO_MUTUAL`, `SIMPLE` or `MUTUAL`.
        mode: String,
        /// Server name.
        sni: Option<String>,
        /// Names that the certificate may have.
        subject_alt_names: Vec<String>,
        /// Roots.
        ca_certificates: Option<String>,
        /// Secret with roots and certificate.
        credential_name: Option<String>,
        /// Certificate file.
        client_certificate: Option<String>,
        /// Key file.
        private_key: Option<String>,
        /// No verification.
        insecure_skip_verify: Option<bool>,
    }
);
