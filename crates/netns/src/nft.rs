//! nftables: a ruleset, given as text in nft's own language, applied atomically.

use crate::ns::{NetNs, NsError};
use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Why a ruleset was not applied. Nothing of it is in force then.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The namespace cannot be entered.
    #[error(transparent)]
    Ns(#[from] NsError),
    /// The program is not installed.
    #[error("the program nft cannot be started: {0}\n  help: install the package nftables")]
    Start(io::Error),
    /// nft refuses the rules.
    #[error("nft refuses the rules: {0}")]
    Refused(String),
}

/// Applies `ruleset` inside `ns`, whole or not at all.
pub fn apply(ns: &NetNs, ruleset: String) -> Result<(), NftError> {
    ns.run(move || run(&ruleset))?
}

/// Whether `chain` of `table` (family and name) inside `ns` has a rule that is listed with `text`. No, when there is no such chain.
pub fn has_rule(ns: &NetNs, table: &'static str, chain: &'static str, text: &'static str) -> Result<bool, NftError> {
    ns.run(move || {
        let mut args = vec!["list", "chain"];
        args.extend(table.split(' '));
        args.push(chain);
        let output = start(&args).and_then(std::process::Child::wait_with_output).map_err(NftError::Start)?;
        Ok(String::from_utf8_lossy(&output.stdout).contains(text))
    })?
}

/// Where nft may be when it is not on PATH, as for users without `sbin` in it.
const PLACES: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Whether nft can be started.
pub fn available() -> Result<(), NftError> {
    start(&["--version"]).and_then(|mut child| child.wait()).map(drop).map_err(NftError::Start)
}

fn start(args: &[&str]) -> io::Result<std::process::Child> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in PLACES {
        let mut command = Command::new(place);
        match command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
            Ok(child) => return Ok(child),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn run(ruleset: &str) -> Result<(), NftError> {
    let mut child = start(&["-f", "-"]).map_err(NftError::Start)?;
    let fed = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(ruleset.as_bytes()));
    let output = child.wait_with_output().map_err(NftError::Start)?;
    if !output.status.success() {
        return Err(NftError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    fed.map_err(NftError::Start)
}
