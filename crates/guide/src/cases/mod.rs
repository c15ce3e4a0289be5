//! The cases, one file each.

pub mod canary;
pub mod churn;
pub mod latency;
pub mod mtls;
pub mod netpol;
pub mod retry;
pub mod rollout;
