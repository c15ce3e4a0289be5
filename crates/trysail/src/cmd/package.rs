//! `trysail package`.

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;
use trysail_lab::packages;

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Print the objects that Packages (`uds.dev/v1alpha1`) stand for.
    Expand(packages::Args),
}

/// Runs a verb.
pub fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Expand(args) => super::lab::outcome(packages::run(args)),
    }
}
