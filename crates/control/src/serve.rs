//! The control plane as a process.

use crate::admin::Admin;
use crate::ca_server::{Callers, CertificateServer};
use crate::files::{Folder, FolderError};
use crate::publish::Resources;
use crate::translate::{MeshConfig, Translator};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use trysail_base::metrics::Metrics;
use trysail_base::ready::Readiness;
use trysail_base::snapshot::SnapshotCell;
use trysail_base::tasks::Tasks;
use trysail_identity::ca::{Authority, CaError};
use trysail_identity::grpc::istio_certificate_service_server::IstioCertificateServiceServer;
use trysail_identity::token::{TokenError, Verifier};
use trysail_mesh::{Builder, Snapshot};
use trysail_xds::server::{AggregatedDiscoveryServiceServer, Discovery, Publisher};

/// How the control plane runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of objects.
    pub files: PathBuf,
    /// Folder of the authority's keys, made when it is missing.
    pub ca_dir: PathBuf,
    /// Public key (PEM) that tokens are verified with.
    pub token_key: PathBuf,
    /// Where discovery and certificates are served, with TLS.
    pub listen: SocketAddr,
    /// Where readiness and metrics are served, plaintext.
    pub admin: SocketAddr,
    /// What all records share.
    pub mesh: MeshConfig,
    /// The longest life of a certificate.
    pub max_ttl: Duration,
    /// `namespace/account` of node proxies.
    pub node_accounts: Vec<String>,
}

/// Why the control plane cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The folder of objects.
    #[error("objects cannot be read")]
    Folder(#[from] FolderError),
    /// The authority.
    #[error("the certificate authority cannot be set up")]
    Ca(#[from] CaError),
    /// The token key.
    #[error("tokens cannot be verified with {0}")]
    Token(PathBuf, #[source] TokenError),
    /// A file.
    #[error("{0}")]
    File(PathBuf, #[source] std::io::Error),
    /// A port.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The gRPC server.
    #[error("serving failed")]
    Grpc(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM.
pub async fn serve(settings: Settings) -> Result<(), ServeError> {
    let tasks = Tasks::default();
    let ready = Readiness::default();
    let loaded = ready.gate("objects");
    let authority = Arc::new(Authority::load_or_create(&settings.ca_dir, &settings.mesh.trust_domain)?);
    let key = settings.token_key.clone();
    let pem = std::fs::read_to_string(&key).map_err(|e| ServeError::File(key.clone(), e))?;
    let callers = Callers::new(Verifier::new(&pem).map_err(|e| ServeError::Token(key, e))?);
    let mesh = Arc::new(SnapshotCell::new(Snapshot::default()));
    let (resources, publisher) = (Arc::new(Resources::default()), Publisher::default());

    let mut folder = Folder::open(&settings.files)?;
    let mut pipeline = Pipeline {
        translator: Translator::new(settings.mesh.clone()),
        builder: Builder::default(),
        mesh: mesh.clone(),
        resources: resources.clone(),
        publisher: publisher.clone(),
    };
    pipeline.apply(folder.all()?);
    loaded.open();
    tasks.spawn(async move {
        loop {
            match folder.changes().await {
                Ok(changes) => pipeline.apply(changes),
                Err(error) => {
                    tracing::error!(%error, "objects cannot be followed any more; the last state stays in effect");
                    return;
                }
            }
        }
    });

    let listen = |address| async move { TcpListener::bind(address).await.map_err(|e| ServeError::Listen(address, e)) };
    let admin = Admin { ready, metrics: Metrics::default(), resources: resources.clone() };
    admin.serve(listen(settings.admin).await?, &tasks);
    let discovery = Discovery::new(resources, publisher, Arc::new(callers.clone()), &tasks)
        .with_private(&[trysail_wire::type_urls::L7_GATEWAY]);
    let certificates = CertificateServer {
        authority: authority.clone(),
        callers,
        mesh,
        node_accounts: settings.node_accounts.clone(),
        trust_domain: settings.mesh.trust_domain.clone(),
        max_ttl: settings.max_ttl,
    };
    let names = [trysail_identity::CONTROL_HOST.to_owned(), "localhost".to_owned(), settings.listen.ip().to_string()];
    let (chain, key) = authority.serving(&names)?;
    let listener = listen(settings.listen).await?;
    tracing::info!(address = %settings.listen, "control plane serves");
    Server::builder()
        .tls_config(ServerTlsConfig::new().identity(Identity::from_pem(chain, key)))?
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_service(AggregatedDiscoveryServiceServer::new(discovery))
        .add_service(IstioCertificateServiceServer::new(certificates))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop(tasks.clone()))
        .await?;
    Ok(())
}

/// At SIGTERM the streams are ended first: a server that waits for endless streams would never stop.
async fn stop(tasks: Tasks) {
    trysail_base::tasks::terminated().await;
    if !tasks.drain(Duration::from_secs(2)).await {
        tracing::warn!("some tasks did not stop in time");
    }
}

/// Objects in, published records out.
struct Pipeline {
    translator: Translator,
    builder: Builder,
    mesh: Arc<SnapshotCell<Snapshot>>,
    resources: Arc<Resources>,
    publisher: Publisher,
}

impl Pipeline {
    fn apply(&mut self, changes: Vec<crate::files::ObjectChange>) {
        let outcome = self.translator.apply(changes);
        if !outcome.records.is_empty() {
            self.mesh.publish(self.builder.apply(outcome.records.iter().cloned()));
        }
        if !outcome.records.is_empty() || !outcome.resources.is_empty() {
            self.resources.publish(&outcome, &self.publisher);
        }
    }
}
