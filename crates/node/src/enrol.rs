//! A pod's way into the mesh and out of it: the kernel's part.

use crate::redirect::{self, MASK, REPLY_MARK, TABLE};
use trysail_netns::link::{LinkError, Links};
use trysail_netns::nft::{self, NftError};
use trysail_netns::ns::{NetNs, NsError};

/// Why a pod's traffic cannot be captured or let go.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The namespace.
    #[error(transparent)]
    Ns(#[from] NsError),
    /// The rules.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The routes.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Captures the traffic of the pod in `ns`. Until a proxy listens there, new connections are refused.
pub fn capture(ns: &NetNs) -> Result<(), RedirectError> {
    // The rules come whole or not at all. Where they are, as for an agent that has restarted, replacing them under open connections
    // could only do harm.
    if nft::has_rule(ns, "inet trysail", "capture_out", "redirect to :15001")? {
        return Ok(());
    }
    ns.run_async(|| async { Links::open()?.deliver_marked(REPLY_MARK, MASK, TABLE).await })??;
    Ok(nft::apply(ns, redirect::capture())?)
}

/// Redirects the traffic of the pod in `ns` to the sidecar that will be started in it.
pub fn sidecar(ns: &NetNs) -> Result<(), RedirectError> {
    Ok(nft::apply(ns, redirect::sidecar())?)
}

/// Lets new connections of the pod in `ns` go as they are.
pub fn release(ns: &NetNs) -> Result<(), RedirectError> {
    Ok(nft::apply(ns, redirect::release())?)
}
