//! The access log: one JSON object a line on standard output, written by a thread of its own. The keys are stable.

use serde_json::Value;
use std::io::Write;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Lines that may wait to be written; more are dropped, and the next line says how many.
const QUEUE: usize = 4096;

/// Writes lines; clones share it.
#[derive(Clone)]
pub struct Access(Option<SyncSender<Value>>);

impl Access {
    /// A log; none that writes anything when `on` is not set.
    pub fn new(on: bool) -> Self {
        if !on {
            return Self(None);
        }
        let (sender, lines) = sync_channel::<Value>(QUEUE);
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(move || {
            let mut out = std::io::stdout();
            while let Ok(line) = lines.recv() {
                // Standard output that is closed takes nothing, and there is nobody to tell.
                writeln!(out, "{line}").unwrap_or_default();
            }
        });
        match thread {
            Ok(_) => Self(Some(sender)),
            Err(error) => {
                tracing::error!(%error, "the access log cannot be written");
                Self(None)
            }
        }
    }

    /// Whether lines are written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes a line.
    pub fn write(&self, line: Value) {
        if let Some(sender) = &self.0
            && let Err(TrySendError::Full(_)) = sender.try_send(line)
        {
            tracing::warn!("access log lines are dropped: standard output is too slow");
        }
    }
}
