//! `trysail echo`: answers as `fortio server` does.

use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpListener;
use trysail_base::tasks::{Tasks, terminated};
use trysail_load::echo::Logged;
use trysail_load::flags::{Flags, Known};

const KNOWN: &[Known] = &[
    ("http-port", true),
    ("redirect-port", true),
    ("grpc-port", true),
    ("tcp-port", true),
    ("udp-port", true),
    ("log-connections", false),
    ("log-requests", false),
    ("echo-server-default-params", true),
    ("h", false),
    ("help", false),
];
const USAGE: &str = "usage: trysail echo [-http-port PORT] [-log-connections] [-log-requests]
  -http-port PORT    port, or address:port (default 8080)
  -log-connections   say where each connection came from
  -log-requests      say what was received and answered, of requests with x-request-id
  -echo-server-default-params QUERY   what a request without a query asks for, e.g. status=503:10
other ports of fortio's server are accepted as flags and not opened";

/// Serves until SIGTERM.
pub fn run(words: Vec<String>) -> Result<ExitCode> {
    let flags = Flags::parse(&words, KNOWN)?;
    if flags.on("h") || flags.on("help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let port = flags.text("http-port").unwrap_or("8080");
    let full = if port.contains(':') { port.to_owned() } else { format!("0.0.0.0:{port}") };
    let address: SocketAddr = full.parse().with_context(|| format!("-http-port {port}"))?;
    // One text for the whole life of the process.
    let default: &'static str = flags.text("echo-server-default-params").unwrap_or_default().to_owned().leak();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        println!("HTTP server listening on {address}");
        let tasks = Tasks::default();
        let logged = Logged { connections: flags.on("log-connections"), requests: flags.on("log-requests") };
        tokio::select! {
            () = trysail_load::echo::serve(listener, logged, default, &tasks) => {}
            () = terminated() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
