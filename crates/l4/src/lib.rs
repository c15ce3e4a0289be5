//! The node proxy: captures the pods of one node, carries their connections through tunnels, decides at layer 4. Parses no HTTP.

pub mod admin;
pub mod decide;
pub mod dump;
pub mod flows;
pub mod inbound;
pub mod outbound;
pub mod passthrough;
pub mod pods;
pub mod proxy;
pub mod record;
pub mod settings;
pub mod state;
pub mod xds;
pub mod zds;

pub use proxy::{ProxyError, run};
pub use settings::Settings;

/// Captured outbound connections arrive here.
pub const OUTBOUND_PORT: u16 = 15001;
/// Captured plaintext inbound connections arrive here.
pub const PLAINTEXT_PORT: u16 = 15006;
/// Ports of the proxy itself, which no tunnel may lead to.
pub const OWN_PORTS: [u16; 5] = [OUTBOUND_PORT, PLAINTEXT_PORT, trysail_hbone::PORT, 15053, 15080];
