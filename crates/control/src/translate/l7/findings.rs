//! What must be said of an object's fields.

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Field path.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// The object is refused for it; otherwise the field has no effect.
    pub error: bool,
}

/// All findings of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// The object cannot be taken.
    pub fn error(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), message: message.into(), error: true });
    }

    /// A field is accepted and has no effect.
    pub fn ignored(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), message: message.into(), error: false });
    }

    /// Says of a field that is given that it is not supported.
    pub fn unsupported(&mut self, given: bool, field: impl Into<String>) {
        if given {
            self.error(field, "not supported in this version");
        }
    }

    /// Whether something was refused.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|f| f.error)
    }
}
