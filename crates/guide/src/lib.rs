//! The guide: the cases, what they show, and the report.

/// Arguments of `trysail guide`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder for report.json.
    #[arg(long)]
    pub out: Option<std::path::PathBuf>,
}

/// Why the guide could not run.
#[derive(Debug, thiserror::Error)]
#[error("guide")]
pub struct GuideError;

/// Runs.
pub fn run(_: Args) -> Result<i32, GuideError> {
    Err(GuideError)
}
