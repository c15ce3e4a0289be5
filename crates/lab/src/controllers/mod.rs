//! What makes pods and endpoints of what was asked for. Pure.

pub mod deployment;
pub mod endpoints;
