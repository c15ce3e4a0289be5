//! The user's objects and the names everything shares: text in, typed objects and diagnostics out. No I/O, no async.

pub mod diagnostic;
pub mod gateway;
pub mod ids;
pub mod istio;
pub mod labels;
pub mod load;
pub mod object;
pub mod package;

pub use diagnostic::{Diagnostic, Origin, Severity};
pub use k8s_openapi;
pub use object::{Kind, Object, ObjectKey};
