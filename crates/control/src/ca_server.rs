//! The certificate service: who may have which identity.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};
use trysail_api::ids::SpiffeId;
use trysail_base::snapshot::SnapshotCell;
use trysail_identity::ca::Authority;
use trysail_identity::client::IMPERSONATED;
use trysail_identity::grpc::istio_certificate_service_server::IstioCertificateService;
use trysail_identity::token::{Bound, Verifier};
use trysail_mesh::Snapshot;
use trysail_wire::ca::{IstioCertificateRequest, IstioCertificateResponse};
use trysail_xds::server::{Admission, Caller};

/// How long a request for a pod that is not known yet waits for it: its record may be on the way.
const RECORD_LIMIT: Duration = Duration::from_secs(2);

/// Checks callers' tokens.
#[derive(Clone)]
pub struct Callers {
    verifier: Arc<Verifier>,
}

impl Callers {
    /// Callers whose tokens `verifier` accepts.
    pub fn new(verifier: Verifier) -> Self {
        Self { verifier: Arc::new(verifier) }
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Bound, Status> {
        let header = metadata.get("authorization").and_then(|v| v.to_str().ok());
        let token = header
            .and_then(|v| v.strip_prefix("Bearer "))
            .ok_or_else(|| Status::unauthenticated("a bearer token is required"))?;
        self.verifier.verify(token).map_err(|error| {
            tracing::warn!(%error, "a caller's token was refused");
            Status::unauthenticated("the token is not accepted")
        })
    }
}

impl Admission for Callers {
    fn admit(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = |bound: Bound| Caller {
            name: format!("{}/{}", bound.namespace, bound.pod.name),
            account: format!("{}/{}", bound.namespace, bound.service_account.name),
        };
        self.caller(metadata).map(caller)
    }
}

/// The service.
pub struct CertificateServer {
    /// Signs.
    pub authority: Arc<Authority>,
    /// Checks tokens.
    pub callers: Callers,
    /// Which pods run where.
    pub mesh: Arc<SnapshotCell<Snapshot>>,
    /// `namespace/account` of node proxies, which may ask for the identities of their node's pods.
    pub node_accounts: Vec<String>,
    /// Trust domain.
    pub trust_domain: String,
    /// The longest life that is given.
    pub max_ttl: Duration,
}

impl CertificateServer {
    /// The identity that the caller may have; every refusal looks the same from outside.
    async fn identity(&self, caller: &Bound, wanted: Option<String>) -> Result<SpiffeId, Status> {
        let own = SpiffeId::new(&self.trust_domain, &caller.namespace, &caller.service_account.name);
        let Some(wanted) = wanted else { return Ok(own) };
        let refuse = |why: &str| {
            tracing::warn!(caller = %own, node = caller.node.name, wanted, why, "a certificate was refused");
            Err(Status::unauthenticated("the caller may not have this identity"))
        };
        let Ok(identity) = wanted.parse::<SpiffeId>() else { return refuse("not a SPIFFE id") };
        if identity == own {
            return Ok(own);
        }
        if !self.node_accounts.contains(&format!("{}/{}", caller.namespace, caller.service_account.name)) {
            return refuse("the caller is no node proxy");
        }
        let runs_there = |mesh: &Snapshot| {
            mesh.workloads().any(|w| w.identity == identity && w.node == caller.node.name).then_some(())
        };
        if self.mesh.wait_for(RECORD_LIMIT, runs_there).await.is_none() {
            return refuse("no pod with this identity runs on the caller's node");
        }
        Ok(identity)
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateServer {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let caller = self.callers.caller(request.metadata())?;
        let request = request.into_inner();
        let wanted = request.metadata.and_then(|m| m.fields.get(IMPERSONATED).cloned()).and_then(|v| match v.kind {
            Some(prost_types::value::Kind::StringValue(text)) => Some(text),
            _ => None,
        });
        let identity = self.identity(&caller, wanted).await?;
        let asked = u64::try_from(request.validity_duration).ok().filter(|s| *s > 0).map(Duration::from_secs);
        let ttl = asked.unwrap_or(self.max_ttl).min(self.max_ttl);
        let signed = self.authority.sign(&request.csr, &identity, ttl, SystemTime::now());
        let cert_chain = signed.map_err(|error| Status::invalid_argument(error.to_string()))?;
        tracing::info!(%identity, node = caller.node.name, ?ttl, "certificate issued");
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

#[cfg(test)]
mod tests;
