//! `trysail orders`: the harness for requests that must not be executed twice.

use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use trysail_base::tasks::{Tasks, terminated};
use trysail_load::flags::{Flags, Known, duration};
use trysail_load::orders::{Server, collect};

const KNOWN: &[Known] =
    &[("port", true), ("delay", true), ("collector", true), ("reset-every", true), ("h", false), ("help", false)];
const USAGE: &str = "usage: trysail orders server -collector URL [flags] | trysail orders collector [flags]
  server      acts on each POST /order, tells the collector its x-request-id, answers 201
    -collector URL    where each act is told, e.g. http://collector:9090/record
    -delay DURATION   how long an order takes (default 100ms)
    -reset-every N    of N orders one is acted on and its connection then reset (default 0: none)
    -port PORT        (default 8080)
  collector   counts POST /record by name; GET /dupes shows the names that were counted more than once
    -port PORT        (default 9090)";

/// Serves until SIGTERM.
pub fn run(words: Vec<String>) -> Result<ExitCode> {
    let flags = Flags::parse(&words, KNOWN)?;
    if flags.on("h") || flags.on("help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let [role] = flags.rest.as_slice() else { bail!("server or collector is needed\n{USAGE}") };
    let server = match (role.as_str(), flags.text("collector")) {
        ("collector", _) => None,
        ("server", Some(url)) => Some(Server {
            delay: flags.value("delay", Duration::from_millis(100), duration)?,
            collector: url.to_owned(),
            reset_every: flags.value("reset-every", 0, |t| t.parse().map_err(|e| format!("{e}")))?,
        }),
        ("server", None) => bail!("-collector URL is needed\n{USAGE}"),
        (other, _) => bail!("{other:?} is not server or collector\n{USAGE}"),
    };
    let default = if server.is_some() { 8080 } else { 9090 };
    let port = flags.value("port", default, |t| t.parse().map_err(|e| format!("{e}")))?;
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        println!("{role} listening on {address}");
        let tasks = Tasks::default();
        let serve = async {
            match server {
                Some(server) => server.serve(listener, &tasks).await,
                None => collect(listener, &tasks).await,
            }
        };
        tokio::select! {
            () = serve => {}
            () = terminated() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
