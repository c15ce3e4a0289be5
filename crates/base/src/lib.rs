//! Process plumbing that knows nothing of a mesh: owned tasks, readiness, settings, the snapshot cell, metrics, logs, byte relay,
//! admin port.

pub mod admin;
pub mod log;
pub mod metrics;
pub mod ready;
pub mod relay;
pub mod settings;
pub mod snapshot;
pub mod tasks;
