//! Logging set-up. Levels: error = someone must act, warn = the user's configuration, info = life cycle, debug = per flow.

use tracing_subscriber::EnvFilter;

/// Sends logs to stderr. `filter` has `tracing`'s directive syntax, e.g. `info,trysail_l4=debug`; what cannot be read is reported and
/// replaced by `info`.
pub fn init(filter: &str) {
    let (directives, problem) = match EnvFilter::try_new(filter) {
        Ok(directives) => (directives, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let set =
        tracing_subscriber::fmt().with_env_filter(directives).with_writer(std::io::stderr).with_ansi(false).try_init();
    if let Some(error) = problem {
        tracing::warn!("log filter {filter:?} cannot be read ({error}); logging at info");
    }
    if set.is_err() {
        tracing::debug!("logging was set up before");
    }
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
