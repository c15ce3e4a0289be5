//! Verdicts. Pure: what is known of a flow goes in, a verdict with its reason comes out.

pub mod authz;
pub mod http;
pub mod network;
pub mod package;
pub mod path;
pub mod peer_auth;

/// Namespace whose policies apply to the whole mesh.
pub const ROOT_NAMESPACE: &str = "istio-system";
