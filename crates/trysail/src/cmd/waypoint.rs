//! `trysail waypoint`: waypoints of a running lab, by the verbs and flags of Istio's command line; or, without a verb, the role.

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;
use trysail_lab::cli::Common;
use trysail_lab::waypoints;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Create a waypoint.
    Apply {
        /// The waypoint's own name.
        #[arg(long = "waypoint", default_value = "waypoint")]
        waypoint: String,
        /// service, workload, all or none.
        #[arg(long = "for", default_value = "service")]
        traffic: String,
        /// Bind the whole namespace to it.
        #[arg(long)]
        enroll_namespace: bool,
        /// Return when it is ready.
        #[arg(long)]
        wait: bool,
        /// Replace a binding to another waypoint.
        #[arg(long)]
        overwrite: bool,
    },
    /// List waypoints.
    List {
        /// Of all namespaces.
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Delete waypoints.
    Delete {
        /// Names.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Print what `apply` would apply.
    Generate {
        /// The waypoint's own name.
        #[arg(long = "waypoint", default_value = "waypoint")]
        waypoint: String,
        /// service, workload, all or none.
        #[arg(long = "for", default_value = "service")]
        traffic: String,
    },
}

/// Runs a verb, or the role.
pub fn run(args: Args) -> Result<ExitCode> {
    let common = &args.common;
    let outcome = match args.verb {
        None => return super::node::l7(trysail_l7::Role::Waypoint),
        Some(Verb::Apply { waypoint, traffic, enroll_namespace, wait, overwrite }) => {
            let enrol = enroll_namespace.then_some(overwrite);
            waypoints::apply(common, (&waypoint, &traffic), enrol, wait)
        }
        Some(Verb::List { all_namespaces }) => waypoints::list(common, all_namespaces),
        Some(Verb::Delete { names }) => waypoints::delete(common, names),
        Some(Verb::Generate { waypoint, traffic }) => {
            print!("{}", waypoints::manifest(&common.namespace, &waypoint, &traffic));
            Ok(0)
        }
    };
    super::lab::outcome(outcome)
}
