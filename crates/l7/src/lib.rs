//! The HTTP engine in its three roles: waypoint, sidecar, gateway. One life of a request for all; a role says where connections come
//! from, who may speak for whom, and what is enforced. Does not program the kernel and knows nothing of the node proxy.

pub mod access;
pub mod aim;
pub mod answer;
pub mod authorize;
pub mod body;
pub mod compile;
pub mod connection;
pub mod cors;
pub mod exchange;
pub mod framing;
pub mod gate;
pub mod headers;
pub mod jwt;
pub mod mirror;
pub mod proxy;
pub mod reason;
pub mod record;
pub mod replay;
pub mod role;
pub mod router;
pub mod send;
pub mod settings;
pub mod sniff;
pub mod state;
pub mod tcp;
pub mod trace;
pub mod upgrade;
pub mod upstream;
pub mod xds;

pub use proxy::{ProxyError, Role, run};
pub use settings::Settings;
