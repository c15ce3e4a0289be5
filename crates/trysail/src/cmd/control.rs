//! `trysail control`.

use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use trysail_control::translate::MeshConfig;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of objects.
    #[arg(long)]
    files: PathBuf,
    /// Folder of the certificate authority's keys; made when missing.
    #[arg(long)]
    ca_dir: PathBuf,
    /// Public key (PEM) that service account tokens are verified with.
    #[arg(long)]
    token_key: PathBuf,
    /// Where discovery and certificates are served.
    #[arg(long, default_value = "0.0.0.0:15012")]
    listen: SocketAddr,
    /// Where readiness and metrics are served.
    #[arg(long, default_value = "0.0.0.0:15014")]
    admin: SocketAddr,
    /// Trust domain.
    #[arg(long, default_value = trysail_api::ids::DEFAULT_TRUST_DOMAIN)]
    trust_domain: String,
    /// Cluster id.
    #[arg(long, default_value = "Kubernetes")]
    cluster: String,
    /// The longest life of a certificate, seconds.
    #[arg(long, default_value_t = 86_400)]
    cert_ttl: u64,
    /// `namespace/account` of node proxies.
    #[arg(long)]
    node_account: Vec<String>,
}

/// Runs until SIGTERM.
pub fn run(args: Args) -> Result<ExitCode> {
    let log = trysail_base::settings::from_env(|r| r.text("RUST_LOG", "info"))?;
    trysail_base::log::init(&log);
    let settings = trysail_control::Settings {
        files: args.files,
        ca_dir: args.ca_dir,
        token_key: args.token_key,
        listen: args.listen,
        admin: args.admin,
        mesh: MeshConfig { trust_domain: args.trust_domain, cluster: args.cluster },
        max_ttl: Duration::from_secs(args.cert_ttl),
        node_accounts: args.node_account,
    };
    super::runtime()?.block_on(trysail_control::serve(settings)).context("the control plane ended")?;
    Ok(ExitCode::SUCCESS)
}
