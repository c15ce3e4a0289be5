//! Type URLs of the resources that are published.

/// Workloads and services.
pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";
/// Workloads alone.
pub const WORKLOAD: &str = "type.googleapis.com/istio.workload.Workload";
/// Layer 4 policies.
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";
