//! Delta xDS (the incremental variant), client and server. Does not know what the resources mean.

pub mod client;
pub mod server;
pub mod session;

/// The gRPC service.
#[allow(missing_docs, clippy::all, reason = "generated; the .proto files hold the comments")]
pub mod grpc {
    include!("gen/envoy.service.discovery.v3.rs");
}
