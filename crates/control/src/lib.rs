//! The control plane without a cluster client: objects to mesh state, mesh state to proxies, certificates to identities.

pub mod admin;
pub mod ca_server;
pub mod deploy;
pub mod explain;
pub mod files;
pub mod gate;
pub mod inject;
pub mod operator;
pub mod proxy_config;
pub mod publish;
pub mod serve;
pub mod status;
pub mod translate;

pub use serve::{ServeError, Settings, serve};
