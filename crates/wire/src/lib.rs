//! Messages on the wire, and nothing that behaves. Generated from `proto/` and checked in.
#![allow(missing_docs, clippy::all, reason = "generated; the .proto files hold the comments")]

/// Workload discovery.
pub mod workload {
    include!("gen/istio.workload.rs");
}
/// Layer 4 authorization.
pub mod security {
    include!("gen/istio.security.rs");
}
/// Delta xDS.
pub mod discovery {
    include!("gen/envoy.service.discovery.v3.rs");
}
/// Certificate issue.
pub mod ca {
    include!("gen/istio.v1.auth.rs");
}
/// Node agent to node proxy.
pub mod zds {
    include!("gen/istio.workload.zds.rs");
}
/// Routes, policies and gateways of proxies that understand HTTP.
pub mod l7 {
    include!("gen/trysail.l7.rs");
}
/// NetworkPolicies and what they ask for.
pub mod network {
    include!("gen/trysail.network.rs");
}
pub mod type_urls;
