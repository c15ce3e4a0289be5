//! `package expand`: the objects that Packages stand for, printed.

use crate::api::Manifest;
use crate::cli::{CliError, read};
use crate::output::yaml;
use std::path::PathBuf;
use trysail_api::load::{Load, Loaded, load};
use trysail_api::object::Object;
use trysail_api::package::Package;
use trysail_api::{Diagnostic, Severity};
use trysail_control::operator::{self, Finding, World};

/// Arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Packages, and manifests of other kinds, which are left out: files or folders, `-` for standard input.
    #[arg(short, long, required = true)]
    pub filename: Vec<PathBuf>,
    /// Domain of exposed services.
    #[arg(long, default_value = "uds.dev")]
    pub domain: String,
    /// Domain of what admin gateways show [default: `admin.` before the other].
    #[arg(long)]
    pub admin_domain: Option<String>,
    /// Blocks of the API server's endpoints and of its service, for rules with KubeAPI.
    #[arg(long, value_delimiter = ',')]
    pub kube_api: Vec<String>,
    /// Blocks of the nodes, for rules with KubeNodes.
    #[arg(long, value_delimiter = ',')]
    pub kube_nodes: Vec<String>,
}

/// Prints the objects as YAML documents; fails when a Package is denied.
pub fn run(args: &Args) -> Result<i32, CliError> {
    let world = world(args)?;
    let mut all = Load::default();
    for Manifest { file, text } in read(&args.filename)? {
        all.merge(load(&file, &text));
    }
    let (mut packages, mut written): (Vec<Package>, Vec<&Loaded>) = Default::default();
    for loaded in &all.objects {
        if let Object::Package(package) = &loaded.object {
            let mut package = (**package).clone();
            package.metadata.namespace.get_or_insert_with(|| "default".to_owned());
            packages.push(package);
            written.push(loaded);
        }
    }
    if packages.is_empty() && all.diagnostics.is_empty() {
        return Err(CliError::Words("error: no Package among these manifests".to_owned()));
    }
    let (made, findings) = operator::objects(&packages, &world);
    let mut notes = all.diagnostics.clone();
    notes.extend(findings.iter().filter_map(|f| Some(note(written.get(f.index)?, f))));
    notes.iter().for_each(|n| eprintln!("{n}"));
    if notes.iter().any(|n| n.severity == Severity::Error) {
        return Ok(1);
    }
    for object in made {
        print!("---\n{}", yaml(&object));
    }
    Ok(0)
}

fn world(args: &Args) -> Result<World, CliError> {
    for (flag, blocks) in [("--kube-api", &args.kube_api), ("--kube-nodes", &args.kube_nodes)] {
        if let Some(bad) = blocks.iter().find(|b| !operator::is_block(b)) {
            return Err(CliError::Words(format!("error: {flag} {bad:?} is not a block such as 10.0.0.1/32")));
        }
    }
    Ok(World {
        kube_api: (!args.kube_api.is_empty()).then(|| args.kube_api.clone()),
        nodes: args.kube_nodes.clone(),
        domain: args.domain.clone(),
        admin_domain: args.admin_domain.clone(),
        ..World::default()
    })
}

fn note(loaded: &Loaded, finding: &Finding) -> Diagnostic {
    let mut origin = loaded.origin.clone();
    origin.line = loaded.lines.of(&finding.field);
    let waits = finding.field.ends_with("remoteGenerated") && !finding.error;
    Diagnostic {
        severity: if finding.error { Severity::Error } else { Severity::Warning },
        origin,
        object: loaded.object.key().to_string(),
        field: finding.field.clone(),
        message: finding.message.clone(),
        cure: if waits { "give them with --kube-api or --kube-nodes".to_owned() } else { String::new() },
    }
}
