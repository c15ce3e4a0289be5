//! Keys and trust: the CA, SVID issue and renewal, TLS configurations of mesh peers. Knows nothing of proxies.

pub mod ca;
pub mod cache;
pub mod client;
pub mod renew;
pub mod svid;
pub mod tls;
pub mod token;

/// The gRPC service of certificate issue.
#[allow(missing_docs, clippy::all, reason = "generated; the .proto files hold the comments")]
pub mod grpc {
    include!("gen/istio.v1.auth.rs");
}

/// The host name on the control plane's certificate.
pub const CONTROL_HOST: &str = "istiod.istio-system.svc";
