//! Developer tasks: generated files and checks of the layout. Never linked into the product.

mod check;
mod generate;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let root = root()?;
    match std::env::args().nth(1).as_deref() {
        Some("gen") => generate::write(&root),
        Some("gen-check") => generate::check(&root),
        Some("check") => check::run(&root),
        other => bail!("usage: xtask gen | gen-check | check (got {other:?})"),
    }
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().unwrap_or(here).to_path_buf())
}
