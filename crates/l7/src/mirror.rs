//! Copies of requests: sent on the side, their answers read and forgotten.

use crate::connection::Downstream;
use crate::send::{Copy, Destined, Sending, send_copy};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// How long a copy may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Sends copies of a request to those that want one.
pub fn mirror(down: &Arc<Downstream>, sending: &Sending<'_>, body: Bytes) {
    for (backend, share) in &sending.mirrors {
        if backend.invalid.is_some() || rand::random::<f64>() * 100.0 >= *share {
            continue;
        }
        let state = down.proxy.state.load();
        let Some(service) = state.mesh.service(&backend.service).cloned() else { continue };
        let port = if backend.port > 0 { backend.port } else { down.port };
        let destined = Destined::Service { service, port, subset: backend.subset.clone() };
        let copy =
            Copy { destined, parts: sending.parts.clone(), authority: sending.authority.clone(), body: body.clone() };
        let (tasks, down) = (down.proxy.connections.clone(), down.clone());
        tasks.spawn(async move {
            if tokio::time::timeout(LIMIT, send_copy(&down, copy)).await.is_err() {
                tracing::debug!("a copy of a request took too long");
            }
        });
    }
}
