//! The asking side: one stream, kept open for ever; tells the handler what came and the server what was taken.

use crate::grpc::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use trysail_wire::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource, Status};

/// The largest message that is read.
const MESSAGE_LIMIT: usize = 200 << 20;
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_MOST: Duration = Duration::from_secs(15);

/// A resource that the handler refuses.
#[derive(Debug)]
pub struct Rejected {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Takes what the server sends.
pub trait Handler: Send + 'static {
    /// Applies one response whole: what cannot be used is returned, the rest is in effect. `first` marks the first answer to a
    /// type's subscription since the stream opened.
    fn apply(&mut self, type_url: &str, resources: &[Resource], removed: &[String], first: bool) -> Vec<Rejected>;
    /// The stream is gone; what was received stays in effect.
    fn disconnected(&mut self) {}
}

/// How to reach the server.
pub trait Connect: Send + Sync + 'static {
    /// A connection, and the metadata to send with the call.
    fn connect(&self) -> impl Future<Output = Result<(Channel, tonic::metadata::MetadataMap), String>> + Send;
}

/// A type that is wanted.
#[derive(Clone, Debug)]
pub struct Want {
    /// Type URL.
    pub type_url: &'static str,
    /// Resources by name or alias; all when empty.
    pub names: Vec<String>,
}

impl Want {
    /// All resources of a type.
    pub fn all(type_url: &'static str) -> Self {
        Self { type_url, names: Vec::new() }
    }
}

/// Asks for one more resource by name, beside the wildcards.
pub struct Demand {
    /// Type URL.
    pub type_url: &'static str,
    /// Resource name or alias.
    pub name: String,
}

/// The client. `run` never returns.
pub struct Client<C, H> {
    connect: C,
    handler: H,
    node: Node,
    types: Vec<Want>,
    versions: BTreeMap<&'static str, HashMap<String, String>>,
}

impl<C: Connect, H: Handler> Client<C, H> {
    /// A client that wants the resources of `types`.
    pub fn new(connect: C, handler: H, node: Node, types: Vec<Want>) -> Self {
        Self { connect, handler, node, types, versions: BTreeMap::new() }
    }

    /// Keeps a stream open for ever. `demands` adds subscriptions by name.
    pub async fn run(mut self, mut demands: mpsc::Receiver<Demand>) {
        let mut pause = BACKOFF_FIRST;
        loop {
            let mut heard = false;
            let reason = match self.stream(&mut demands, &mut heard).await {
                Ok(()) => "closed by the server".to_owned(),
                Err(reason) => reason,
            };
            self.handler.disconnected();
            if heard {
                pause = BACKOFF_FIRST;
            }
            tracing::warn!(reason, retry_in = ?pause, "no discovery stream; the last state stays in effect");
            tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
            pause = (pause * 2).min(BACKOFF_MOST);
        }
    }

    async fn stream(&mut self, demands: &mut mpsc::Receiver<Demand>, heard: &mut bool) -> Result<(), String> {
        let (channel, metadata) = self.connect.connect().await?;
        let (sender, receiver) = mpsc::channel(16);
        for want in &self.types {
            let initial = self.versions.get(want.type_url).cloned().unwrap_or_default();
            let request = DeltaDiscoveryRequest {
                node: Some(self.node.clone()),
                type_url: want.type_url.to_owned(),
                resource_names_subscribe: want.names.clone(),
                initial_resource_versions: initial.into_iter().collect(),
                ..DeltaDiscoveryRequest::default()
            };
            sender.send(request).await.map_err(|e| e.to_string())?;
        }
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        *request.metadata_mut() = metadata;
        let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        let answer = client.delta_aggregated_resources(request).await;
        let mut responses = answer.map_err(|status| status.message().to_owned())?.into_inner();
        let mut waiting: Vec<&str> = self.types.iter().map(|want| want.type_url).collect();
        loop {
            let reply = tokio::select! {
                response = next(&mut responses) => {
                    let Some(response) = response? else { return Ok(()) };
                    *heard = true;
                    let first = waiting.iter().position(|t| *t == response.type_url).map(|at| waiting.swap_remove(at));
                    self.take(response, first.is_some())
                }
                Some(demand) = demands.recv() => DeltaDiscoveryRequest {
                    type_url: demand.type_url.to_owned(),
                    resource_names_subscribe: vec![demand.name],
                    ..DeltaDiscoveryRequest::default()
                },
            };
            sender.send(reply).await.map_err(|e| e.to_string())?;
        }
    }

    /// Applies a response and makes its acknowledgement, or its refusal that lists every bad resource.
    fn take(&mut self, response: DeltaDiscoveryResponse, first: bool) -> DeltaDiscoveryRequest {
        let rejected = self.handler.apply(&response.type_url, &response.resources, &response.removed_resources, first);
        if let Some(want) = self.types.iter().find(|want| want.type_url == response.type_url) {
            let versions = self.versions.entry(want.type_url).or_default();
            for resource in &response.resources {
                if rejected.iter().any(|r| r.name == resource.name) {
                    versions.remove(&resource.name);
                } else {
                    versions.insert(resource.name.clone(), resource.version.clone());
                }
            }
            for name in &response.removed_resources {
                versions.remove(name);
            }
        }
        let message = rejected.iter().map(|r| format!("{}: {}", r.name, r.reason)).collect::<Vec<_>>().join("; ");
        if !rejected.is_empty() {
            tracing::warn!(message, "resources refused");
        }
        DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            error_detail: (!rejected.is_empty()).then_some(Status { code: 3, message, details: Vec::new() }),
            ..DeltaDiscoveryRequest::default()
        }
    }
}

async fn next(responses: &mut Streaming<DeltaDiscoveryResponse>) -> Result<Option<DeltaDiscoveryResponse>, String> {
    responses.message().await.map_err(|status| status.message().to_owned())
}
