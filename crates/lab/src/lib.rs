//! A mesh on one machine: nodes and pods as network namespaces, the kubelet's and controllers' duties, a command line. Links no proxy:
//! the mesh's own processes are this binary, started in a role.

pub mod account;
pub mod agent_link;
pub mod api;
pub mod capture;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod dns;
pub mod explain;
pub mod http;
pub mod images;
pub mod kubelet;
pub mod output;
pub mod packages;
pub mod rootfs;
pub mod server;
pub mod services;
pub mod spawn;
pub mod store;
pub mod supervise;
pub mod support;
pub mod system;
pub mod up;
pub mod waypoints;
pub mod world;

/// Namespace of the mesh's own pods and root namespace of its policies.
pub const SYSTEM_NAMESPACE: &str = "istio-system";
/// Service account of node proxies.
pub const PROXY_ACCOUNT: &str = "node-proxy";
/// The cluster's id in workload uids.
pub const CLUSTER_ID: &str = "Kubernetes";
