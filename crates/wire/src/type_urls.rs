//! Type URLs of the resources that are published.

/// Workloads and services.
pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";
/// Workloads alone.
pub const WORKLOAD: &str = "type.googleapis.com/istio.workload.Workload";
/// Layer 4 policies.
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";
/// Routes of a service and the use of its endpoints.
pub const L7_SERVICE: &str = "type.googleapis.com/trysail.l7.Service";
/// Policies at layer 7.
pub const L7_POLICY: &str = "type.googleapis.com/trysail.l7.Policy";
/// Token issuers.
pub const L7_TOKENS: &str = "type.googleapis.com/trysail.l7.Tokens";
/// Listeners of one gateway.
pub const L7_GATEWAY: &str = "type.googleapis.com/trysail.l7.Gateway";
/// NetworkPolicies.
pub const NETWORK_POLICY: &str = "type.googleapis.com/trysail.network.Policy";
/// Labels of namespaces.
pub const NAMESPACE: &str = "type.googleapis.com/trysail.network.Namespace";
