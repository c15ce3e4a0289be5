//! `trysail agent` and `trysail node-proxy`.

use anyhow::{Context, Result};
use std::process::ExitCode;

/// Runs the agent until SIGTERM.
pub fn agent() -> Result<ExitCode> {
    let settings = trysail_base::settings::from_env(trysail_node::Settings::read)?;
    trysail_base::log::init(&settings.log);
    super::runtime()?.block_on(trysail_node::run(settings)).context("the node agent ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a proxy that understands HTTP until SIGTERM.
pub fn l7(role: trysail_l7::Role) -> Result<ExitCode> {
    let settings = trysail_base::settings::from_env(trysail_l7::Settings::read)?;
    trysail_base::log::init(&settings.log);
    super::runtime()?.block_on(trysail_l7::run(settings, role)).context("the proxy ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the node proxy until SIGTERM.
pub fn proxy() -> Result<ExitCode> {
    let settings = trysail_base::settings::from_env(trysail_l4::Settings::read)?;
    trysail_base::log::init(&settings.log);
    super::runtime()?.block_on(trysail_l4::run(settings)).context("the node proxy ended")?;
    Ok(ExitCode::SUCCESS)
}
