//! The call for a certificate (`istio.v1.auth.IstioCertificateService`).

use crate::ca;
use crate::cache::{IssueError, Issuer};
use crate::grpc::istio_certificate_service_client::IstioCertificateServiceClient;
use crate::svid::Svid;
use prost_types::value::Kind;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use trysail_api::ids::SpiffeId;
use trysail_base::log::chain;
use trysail_wire::ca::IstioCertificateRequest;

/// The request's metadata key that names the identity a node proxy asks for.
pub const IMPERSONATED: &str = "ImpersonatedIdentity";

/// Where the control plane is and what proves the caller. Files are read at each use, since both change.
#[derive(Clone, Debug)]
pub struct ControlAddress {
    /// `https://host:port`.
    pub url: String,
    /// PEM file of the roots that its certificate must lead to.
    pub root_file: PathBuf,
    /// File with the service account token.
    pub token_file: PathBuf,
}

/// Why the control plane cannot be called.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A file is not readable.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The address cannot be used or reached.
    #[error("{url}: {message}")]
    Connect {
        /// The address.
        url: String,
        /// What happened, to the root cause.
        message: String,
    },
    /// The token cannot be sent.
    #[error("{0}: the token is not text that a header can carry")]
    Token(PathBuf),
}

impl ControlAddress {
    /// A new connection.
    pub async fn connect(&self) -> Result<Channel, CallError> {
        let root = self.read(&self.root_file).await?;
        let fail = |e: tonic::transport::Error| CallError::Connect { url: self.url.clone(), message: chain(&e) };
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root)).domain_name(crate::CONTROL_HOST);
        let endpoint = Endpoint::from_shared(self.url.clone()).map_err(fail)?.tls_config(tls).map_err(fail)?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true);
        endpoint.connect().await.map_err(fail)
    }

    /// Puts the token into a request.
    pub async fn authorize<T>(&self, request: &mut tonic::Request<T>) -> Result<(), CallError> {
        let token = self.read(&self.token_file).await?;
        let value = format!("Bearer {}", token.trim()).parse();
        let value = value.map_err(|_| CallError::Token(self.token_file.clone()))?;
        request.metadata_mut().insert("authorization", value);
        Ok(())
    }

    async fn read(&self, path: &PathBuf) -> Result<String, CallError> {
        tokio::fs::read_to_string(path).await.map_err(|source| CallError::File { path: path.clone(), source })
    }
}

/// Issues by asking the control plane.
pub struct CaClient {
    address: ControlAddress,
    ttl: Duration,
}

impl CaClient {
    /// A client that asks for certificates of `ttl`.
    pub fn new(address: ControlAddress, ttl: Duration) -> Self {
        Self { address, ttl }
    }

    async fn call(&self, identity: &SpiffeId) -> Result<Svid, IssueError> {
        let tell = |e: &dyn std::error::Error| IssueError(chain(e));
        let (key, csr) = ca::request(identity).map_err(|e| tell(&e))?;
        let wanted = prost_types::Value { kind: Some(Kind::StringValue(identity.to_string())) };
        let metadata = prost_types::Struct { fields: [(IMPERSONATED.to_owned(), wanted)].into() };
        let mut request = tonic::Request::new(IstioCertificateRequest {
            csr,
            validity_duration: self.ttl.as_secs().try_into().unwrap_or(i64::MAX),
            metadata: Some(metadata),
        });
        request.set_timeout(Duration::from_secs(10));
        self.address.authorize(&mut request).await.map_err(|e| tell(&e))?;
        let channel = self.address.connect().await.map_err(|e| tell(&e))?;
        let answer = IstioCertificateServiceClient::new(channel).create_certificate(request).await;
        let pem = answer.map_err(|status| IssueError(status.message().to_owned()))?.into_inner().cert_chain;
        Svid::from_pem(identity, &pem, &key).map_err(|e| tell(&e))
    }
}

impl Issuer for CaClient {
    fn issue<'a>(
        &'a self,
        identity: &'a SpiffeId,
    ) -> Pin<Box<dyn Future<Output = Result<Svid, IssueError>> + Send + 'a>> {
        Box::pin(self.call(identity))
    }
}
