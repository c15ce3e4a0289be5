//! The kubelet's duties for one pod: network, capture, volumes, containers, probes, orderly end.

pub mod container;
pub mod context;
pub mod pod;
pub mod probes;

pub use context::{ContainerView, Phase, PodView};
