//! `trysail policy`.

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;
use trysail_lab::explain;

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Say whether one pod may call another, gate by gate, and which object decides.
    Explain(explain::Args),
}

/// Runs a verb.
pub fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Explain(args) => super::lab::outcome(explain::run(&args)),
    }
}
