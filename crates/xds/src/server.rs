//! The serving side: one task a stream; publications reach it as batches of names.

use crate::grpc::aggregated_discovery_service_server::AggregatedDiscoveryService;
pub use crate::grpc::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use crate::session::{Catalog, Outcome, Session};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use trysail_base::tasks::Tasks;
use trysail_wire::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

/// How many publications a slow stream may lag before it is compared as a whole.
const BACKLOG: usize = 256;
/// Responses under way on one stream; a client that does not read holds only itself up.
const IN_FLIGHT: usize = 16;

/// The names that one publication changed, by type.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Type URL.
    pub type_url: Arc<str>,
    /// Names.
    pub names: Arc<BTreeSet<String>>,
}

/// Wakes all streams.
#[derive(Clone)]
pub struct Publisher(broadcast::Sender<Batch>);

impl Default for Publisher {
    fn default() -> Self {
        Self(broadcast::channel(BACKLOG).0)
    }
}

impl Publisher {
    /// Tells the streams what changed; the catalog must hold the new state already.
    pub fn publish(&self, batch: Batch) {
        if self.0.send(batch).is_err() {
            tracing::trace!("no stream listens");
        }
    }
}

/// Decides who may open a stream.
pub trait Admission: Send + Sync + 'static {
    /// The caller, or a refusal.
    fn admit(&self, metadata: &tonic::metadata::MetadataMap) -> Result<Caller, Status>;
}

/// Who opened a stream.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For logs.
    pub name: String,
    /// `namespace/account`: of a private type it is sent what carries this name or alias, and nothing else.
    pub account: String,
}

/// The gRPC service.
pub struct Discovery {
    catalog: Arc<dyn Catalog>,
    publisher: Publisher,
    admission: Arc<dyn Admission>,
    private: &'static [&'static str],
    tasks: Tasks,
}

impl Discovery {
    /// Serves `catalog` to whom `admission` lets in.
    pub fn new(catalog: Arc<dyn Catalog>, publisher: Publisher, admission: Arc<dyn Admission>, tasks: &Tasks) -> Self {
        Self { catalog, publisher, admission, private: &[], tasks: tasks.clone() }
    }

    /// Resources of these types hold secrets: each goes to its own account alone.
    pub fn with_private(self, types: &'static [&'static str]) -> Self {
        Self { private: types, ..self }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type DeltaAggregatedResourcesStream = Responses;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let caller = self.admission.admit(request.metadata())?;
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let stream = ServerStream {
            who: caller.name,
            account: caller.account,
            private: self.private,
            catalog: self.catalog.clone(),
            batches: self.publisher.0.subscribe(),
            session: Session::default(),
            sender,
        };
        self.tasks.spawn(stream.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

struct ServerStream {
    who: String,
    account: String,
    private: &'static [&'static str],
    catalog: Arc<dyn Catalog>,
    batches: broadcast::Receiver<Batch>,
    session: Session,
    sender: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl ServerStream {
    async fn run(mut self, mut requests: Streaming<DeltaDiscoveryRequest>) {
        tracing::info!(client = self.who, "discovery stream opened");
        loop {
            let responses = tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(request)) => self.request(request),
                    Some(Err(status)) => {
                        tracing::debug!(client = self.who, %status, "discovery stream failed");
                        break;
                    }
                    None => break,
                },
                batch = self.batches.recv() => match batch {
                    Ok(batch) => self.batch(batch),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        tracing::debug!(client = self.who, missed, "a slow stream is compared as a whole");
                        self.compare()
                    }
                    Err(broadcast::error::RecvError::Closed) => break,
                },
            };
            for response in responses {
                if self.sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        }
        tracing::info!(client = self.who, "discovery stream closed");
    }

    fn request(&mut self, mut request: DeltaDiscoveryRequest) -> Vec<DeltaDiscoveryResponse> {
        if self.private.contains(&request.type_url.as_str()) && request.response_nonce.is_empty() {
            // Whatever is asked for: one's own, and by name.
            request.resource_names_subscribe = vec![self.account.clone()];
        }
        match self.session.request(request, &*self.catalog) {
            Outcome::Respond(response) => vec![response],
            Outcome::Quiet => Vec::new(),
            Outcome::Refused(message) => {
                tracing::warn!(client = self.who, message, "the client refused resources and keeps what it had");
                Vec::new()
            }
        }
    }

    fn batch(&mut self, batch: Batch) -> Vec<DeltaDiscoveryResponse> {
        self.session.published(&batch.type_url, Some(&batch.names), &*self.catalog).into_iter().collect()
    }

    fn compare(&mut self) -> Vec<DeltaDiscoveryResponse> {
        let types = self.session.types();
        types.iter().filter_map(|type_url| self.session.published(type_url, None, &*self.catalog)).collect()
    }
}
