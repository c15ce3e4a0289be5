//! The cases, one file each.

pub mod latency;
pub mod mtls;
