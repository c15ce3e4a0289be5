//! `trysail lab`, and the stages that it starts itself in.

use anyhow::{Result, bail};
use std::process::ExitCode;
use trysail_lab::cli::{CliError, Common, Verb};

/// Runs a verb.
pub fn run(common: &Common, verb: Verb) -> Result<ExitCode> {
    outcome(trysail_lab::cli::run(common, verb))
}

/// The exit code of something that was asked of a lab; errors that are lines already are printed as they are.
pub fn outcome(outcome: Result<i32, CliError>) -> Result<ExitCode> {
    match outcome {
        Ok(code) => Ok(super::exit(code)),
        Err(CliError::Words(text)) => {
            eprintln!("{text}");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

/// Enters a stage.
pub fn stage(args: &[String]) -> Result<ExitCode> {
    let [_, _, stage, options] = args else { bail!("this command is for the lab's own use") };
    Ok(super::exit(trysail_lab::up::enter(stage, options)?))
}
