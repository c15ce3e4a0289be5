//! What is wrong with an object: where, what, and what to do.

use std::fmt;
use std::sync::Arc;

/// A place in a file, 1-based.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// The file as the user named it.
    pub file: Arc<str>,
    /// The line; 0 when it is not known.
    pub line: usize,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Notice,
    /// Something the user wrote has no effect.
    Warning,
    /// The object is refused.
    Error,
}

/// One finding about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it stands.
    pub origin: Origin,
    /// `Kind namespace/name`; empty when the text is no object.
    pub object: String,
    /// Field path, e.g. `spec.replicas`; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do; empty when the message says it.
    pub cure: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}", self.origin.file)?;
        if self.origin.line > 0 {
            write!(f, ":{}", self.origin.line)?;
        }
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        write!(f, ": {}", self.message)?;
        if !self.cure.is_empty() {
            write!(f, "\n  help: {}", self.cure)?;
        }
        Ok(())
    }
}
