//! `trysail load`: fortio's flags.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trysail_load::client::Template;
use trysail_load::flags::{Flags, Known, duration};
use trysail_load::open_loop::{self, Plan};

const KNOWN: &[Known] = &[
    ("qps", true),
    ("t", true),
    ("c", true),
    ("n", true),
    ("allow-initial-errors", false),
    ("H", true),
    ("payload", true),
    ("payload-size", true),
    ("json", true),
    ("timeout", true),
    ("keepalive", true),
    ("journal", false),
    ("quiet", false),
    ("h", false),
    ("help", false),
];
const USAGE: &str = "usage: trysail load [flags] URL
  -qps N                  requests a second over all connections; 0 = as many as possible (default 8)
  -t DURATION             length of the run (default 5s)
  -n N                    number of requests instead of a length
  -c N                    connections (default 4)
  -allow-initial-errors   go on when the first requests fail
  -H 'NAME: VALUE'        header, repeatable
  -payload TEXT           body, sent by POST
  -payload-size N         body of N bytes
  -keepalive=false        a new connection for each request
  -timeout DURATION       the longest wait for an answer (default 3s)
  -json FILE              results as JSON; - for standard output
  -journal                a name for each request (x-request-id), and in the JSON each second and each failure
  -quiet                  no text";

/// Runs a load; fails when nothing could be measured.
pub fn run(words: Vec<String>) -> Result<ExitCode> {
    let flags = Flags::parse(&words, KNOWN)?;
    if flags.on("h") || flags.on("help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let [url] = flags.rest.as_slice() else { bail!("one URL is needed\n{USAGE}") };
    fn number<T: std::str::FromStr>(text: &str) -> Result<T, String>
    where
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|e: T::Err| e.to_string())
    }
    let size = flags.value("payload-size", 0usize, number)?;
    let body = flags.text("payload").map_or_else(|| vec![b'x'; size], |text| text.as_bytes().to_vec());
    let timeout = flags.value("timeout", Duration::from_secs(3), duration)?;
    let mut template = Template::new(url, flags.all("H"), body.into(), timeout)?;
    template.new_connections = flags.text("keepalive") == Some("false");
    let plan = Plan {
        template,
        qps: flags.value("qps", 8.0, number)?,
        connections: flags.value("c", 4, number)?,
        duration: flags.value("t", Duration::from_secs(5), duration)?,
        count: flags.value("n", None, |text| number(text).map(Some))?.filter(|n| *n > 0),
        allow_initial_errors: flags.on("allow-initial-errors"),
        journal: flags.on("journal"),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(async {
        let (flag, tasks) = (stop.clone(), trysail_base::tasks::Tasks::default());
        tasks.spawn(async move {
            trysail_base::tasks::terminated().await;
            flag.store(true, Ordering::Relaxed);
        });
        open_loop::run(plan, stop).await
    })?;
    let json = flags.text("json");
    if json != Some("-") && !flags.on("quiet") {
        print!("{}", summary.text());
    }
    match json {
        Some("-") => println!("{}", summary.json()),
        Some(file) => std::fs::write(file, format!("{:#}\n", summary.json())).with_context(|| file.to_owned())?,
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}
