//! The state of the mesh: one immutable snapshot of workloads, services and policies, its single writer, endpoint choice, wire codecs.

pub mod builder;
pub mod codec;
pub mod model;
pub mod pick;
pub mod state;

pub use builder::{Builder, Change};
pub use model::{Health, Protocol, Service, Workload};
pub use state::Snapshot;
