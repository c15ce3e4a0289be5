//! `policy explain`: whether one pod may call another, of a running lab or of a folder of manifests.

use crate::CLUSTER_ID;
use crate::api::{self, Manifest, Request, Which};
use crate::cli::CliError;
use std::collections::BTreeMap;
use std::path::PathBuf;
use trysail_api::ids::DEFAULT_TRUST_DOMAIN;
use trysail_api::load::{Load, load};
use trysail_api::object::{Kind, Object};
use trysail_control::explain::{Question, Way, differences, explain};
use trysail_control::translate::MeshConfig;
use trysail_control::translate::objects::Objects;

/// Arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The calling pod, or its Deployment: NAMESPACE/NAME.
    #[arg(long)]
    pub from: String,
    /// The called pod, or its Deployment, and its port: NAMESPACE/NAME:PORT.
    #[arg(long)]
    pub to: String,
    /// The request's method, for policies that ask for it.
    #[arg(long, requires = "path")]
    pub method: Option<String>,
    /// The request's path.
    #[arg(long, requires = "method")]
    pub path: Option<String>,
    /// Manifests to ask about, files or folders, instead of a running lab.
    #[arg(short, long)]
    pub filename: Vec<PathBuf>,
    /// Manifests that would be applied: what they would change is shown.
    #[arg(long)]
    pub what_if: Vec<PathBuf>,
    /// Which lab.
    #[arg(long, default_value = "default")]
    pub name: String,
}

/// Prints the verdicts; 0 when every way is open, 3 when one is not.
pub fn run(args: &Args) -> Result<i32, CliError> {
    let question = question(args)?;
    let mut objects = Objects::default();
    if args.filename.is_empty() {
        from_lab(&args.name, &mut objects)?;
    } else {
        from_files(&args.filename, &mut objects)?;
    }
    let config = MeshConfig { trust_domain: DEFAULT_TRUST_DOMAIN.to_owned(), cluster: CLUSTER_ID.to_owned() };
    let ask =
        |objects: &Objects| explain(objects, &config, &question).map_err(|e| CliError::Words(format!("error: {e}")));
    let mut ways = ask(&objects)?;
    ways.iter().for_each(|way| print!("{way}"));
    if !args.what_if.is_empty() {
        from_files(&args.what_if, &mut objects)?;
        let after = ask(&objects)?;
        let changed = differences(&ways, &after);
        if changed.is_empty() {
            println!("\nThe change alters nothing of this.");
        }
        for (_, _, now) in changed {
            print!("\nwith the change, {now}");
        }
        ways = after;
    }
    let open = |way: &Way| way.verdict() == "allow";
    Ok(if ways.iter().all(open) { 0 } else { 3 })
}

fn question(args: &Args) -> Result<Question, CliError> {
    let pair = |text: &str, flag: &str| {
        let found = text.split_once('/').filter(|(a, b)| !a.is_empty() && !b.is_empty());
        let wrong = || CliError::Words(format!("error: {flag} {text:?}: NAMESPACE/NAME is needed"));
        found.map(|(a, b)| (a.to_owned(), b.to_owned())).ok_or_else(wrong)
    };
    let to = args.to.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let wrong = || CliError::Words(format!("error: --to {:?}: NAMESPACE/NAME:PORT is needed", args.to));
    let (to, port) = to.ok_or_else(wrong)?;
    let request = args.method.clone().zip(args.path.clone());
    Ok(Question { from: pair(&args.from, "--from")?, to: pair(to, "--to")?, port, request })
}

fn from_files(paths: &[PathBuf], into: &mut Objects) -> Result<(), CliError> {
    let mut all = Load::default();
    for Manifest { file, text } in crate::cli::read(paths)? {
        all.merge(load(&file, &text));
    }
    if all.has_errors() {
        let lines: Vec<String> = all.diagnostics.iter().map(ToString::to_string).collect();
        return Err(CliError::Words(lines.join("\n")));
    }
    for mut loaded in all.objects {
        if loaded.object.kind().namespaced() {
            loaded.object.meta_mut().namespace.get_or_insert_with(|| "default".to_owned());
        }
        into.set(loaded.object.key(), Some(loaded.object));
    }
    Ok(())
}

fn from_lab(name: &str, into: &mut Objects) -> Result<(), CliError> {
    for kind in Kind::ALL {
        let which = Which { kind: *kind, namespace: None, names: Vec::new(), selector: BTreeMap::new() };
        let answer = api::ask(name, &Request::Get(which), &[])?;
        for value in answer.value.as_array().into_iter().flatten() {
            let (object, _) = Object::from_json(*kind, value.clone()).map_err(|e| {
                CliError::Words(format!("error: {} of the lab: {}: {}", kind.as_str(), e.field, e.message))
            })?;
            into.set(object.key(), Some(object));
        }
    }
    Ok(())
}
