//! The conversation with the node agent (ZDS): which pods to serve. The agent listens; this side connects, and again whenever it is gone.

use crate::pods::{Info, Pods};
use prost::Message;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trysail_base::ready::Gate;
use trysail_netns::fd_pass::Seqpacket;
use trysail_netns::ns::NetNs;
use trysail_wire::zds::{
    Ack, Version, WorkloadRequest, WorkloadResponse, ZdsHello, workload_request::Payload, workload_response,
};

/// The longest message.
const MESSAGE: usize = 1024;
/// Pause before connecting again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often pods that could not be served are tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Why the conversation ended.
#[derive(Debug, thiserror::Error)]
enum ZdsError {
    #[error("the agent's socket")]
    Io(#[from] io::Error),
    #[error("a message cannot be read")]
    Decode(#[from] prost::DecodeError),
    #[error("the agent broke the protocol: {0}")]
    Protocol(&'static str),
}

/// Serves the pods that the agent at `path` names, for ever.
pub async fn run(path: PathBuf, pods: Arc<Pods>, gate: Gate) {
    let mut gate = Some(gate);
    let mut quiet = false;
    loop {
        let end = conversation(&path, &pods, &mut gate).await;
        // An agent that is not there yet is said once, not ten times a second.
        match end {
            Ok(()) => tracing::info!("the node agent closed the conversation"),
            Err(error) if !quiet => {
                tracing::warn!(socket = %path.display(), error = trysail_base::log::chain(&error), "no node agent; local pods stay as they are");
                quiet = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn conversation(path: &std::path::Path, pods: &Arc<Pods>, gate: &mut Option<Gate>) -> Result<(), ZdsError> {
    let socket = Seqpacket::connect(path)?;
    socket.send(&ZdsHello { version: Version::V1.into() }.encode_to_vec(), None).await?;
    tracing::info!(socket = %path.display(), "connected to the node agent");
    pods.begin_snapshot();
    let mut snapshot = true;
    let mut buffer = [0; MESSAGE];
    let mut retry = tokio::time::interval(RETRY);
    loop {
        let received = tokio::select! {
            received = socket.recv(&mut buffer) => received?,
            _ = retry.tick() => {
                pods.retry_pending();
                continue;
            }
        };
        let (length, mut descriptors) = received;
        if length == 0 {
            return Ok(());
        }
        let request = WorkloadRequest::decode(buffer.get(..length).unwrap_or_default())?;
        let is_add = matches!(request.payload, Some(Payload::Add(_)));
        if descriptors.len() != usize::from(is_add) {
            return Err(ZdsError::Protocol("a descriptor belongs to an add, and to nothing else"));
        }
        let outcome = match request.payload.ok_or(ZdsError::Protocol("an empty request"))? {
            Payload::Add(add) => {
                let info = add.workload_info.ok_or(ZdsError::Protocol("an add without workload info"))?;
                let descriptor = descriptors.pop().ok_or(ZdsError::Protocol("an add without descriptor"))?;
                let info = Info { name: info.name, namespace: info.namespace, service_account: info.service_account };
                pods.add(&add.uid, info, NetNs::from_fd(descriptor))
            }
            Payload::Keep(keep) if snapshot => pods.keep(&keep.uid),
            Payload::Keep(_) => return Err(ZdsError::Protocol("a keep after the snapshot")),
            Payload::Del(del) => {
                pods.remove(&del.uid);
                Ok(())
            }
            Payload::SnapshotSent(_) if snapshot => {
                snapshot = false;
                pods.end_snapshot();
                if let Some(gate) = gate.take() {
                    gate.open();
                }
                Ok(())
            }
            Payload::SnapshotSent(_) => return Err(ZdsError::Protocol("a second snapshot")),
        };
        let ack = Ack { error: outcome.err().unwrap_or_default() };
        let response = WorkloadResponse { payload: Some(workload_response::Payload::Ack(ack)) };
        socket.send(&response.encode_to_vec(), None).await?;
    }
}
