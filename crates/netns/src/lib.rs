//! Kernel plumbing: namespaces, links, routes, nftables, sockets inside a namespace, descriptors over unix sockets. Knows nothing of a mesh.

pub mod capture;
pub mod fd_pass;
pub mod link;
pub mod memory;
pub mod nft;
pub mod ns;
pub mod socket;
pub mod user_ns;
