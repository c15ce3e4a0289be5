//! One file a verb.

pub mod control;
pub mod echo;
pub mod lab;
pub mod load;
pub mod node;
pub mod orders;
pub mod package;
pub mod policy;
pub mod waypoint;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "trysail", version, about = "A service mesh that is tried, measured and then run")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure the ways of meshing a workload on this machine, and say what they show.
    Guide(trysail_guide::Args),
    /// Measure what the node proxies cost, as ratios to the bare network.
    Bench(trysail_guide::bench::Args),
    /// Run a mesh on this machine.
    Lab {
        #[command(flatten)]
        common: trysail_lab::cli::Common,
        #[command(subcommand)]
        verb: trysail_lab::cli::Verb,
    },
    /// Ask policies.
    Policy {
        #[command(subcommand)]
        verb: policy::Verb,
    },
    /// Work with Packages.
    Package {
        #[command(subcommand)]
        verb: package::Verb,
    },
    /// Load an HTTP server (fortio's flags; see `trysail load -h`).
    Load,
    /// Answer HTTP requests (fortio server's flags).
    Echo,
    /// Serve or count orders that must not be executed twice (see `trysail orders -h`).
    Orders,
    /// Run the control plane.
    Control(control::Args),
    /// Run a node's agent (settings from the environment).
    Agent,
    /// Run a node's proxy (settings from the environment).
    NodeProxy,
    /// Run a sidecar (settings from the environment).
    Sidecar,
    /// Run an ingress gateway (settings from the environment).
    Gateway,
    /// Create, list and delete waypoints; without a verb: run one (settings from the environment).
    Waypoint(waypoint::Args),
}

/// Parses the arguments and runs the verb.
pub fn run() -> Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Guide(args) => trysail_guide::run(args).map(exit).map_err(Into::into),
        Verb::Bench(args) => trysail_guide::bench::run(&args).map(exit).map_err(Into::into),
        Verb::Lab { common, verb } => lab::run(&common, verb),
        Verb::Policy { verb } => policy::run(verb),
        Verb::Package { verb } => package::run(&verb),
        Verb::Load => load::run(vec!["-h".to_owned()]),
        Verb::Echo => echo::run(vec!["-h".to_owned()]),
        Verb::Orders => orders::run(vec!["-h".to_owned()]),
        Verb::Control(args) => control::run(args),
        Verb::Agent => node::agent(),
        Verb::NodeProxy => node::proxy(),
        Verb::Sidecar => node::l7(trysail_l7::Role::Sidecar),
        Verb::Gateway => node::l7(trysail_l7::Role::Gateway),
        Verb::Waypoint(args) => waypoint::run(args),
    }
}

/// An exit code from a number.
pub fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The runtime of a long-lived role. Two workers are enough for a node; one more would only add switches.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().min(2));
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
}
