//! Who the peer is: the chain as WebPKI checks it, then the URI SAN against what is expected.

use crate::svid::spiffe_id;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;
use trysail_api::ids::SpiffeId;

type SignatureResult = Result<HandshakeSignatureValid, Error>;

fn not_expected() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

/// Accepts a server that is one of the expected identities.
#[derive(Debug)]
pub struct ExpectedPeer {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    expected: Vec<SpiffeId>,
}

impl ExpectedPeer {
    /// A verifier for one connection's peer.
    pub fn new(roots: Arc<RootCertStore>, provider: &CryptoProvider, expected: Vec<SpiffeId>) -> Self {
        Self { roots, algorithms: provider.signature_verification_algorithms, expected }
    }
}

impl ServerCertVerifier for ExpectedPeer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, self.algorithms.all)?;
        let identity = spiffe_id(leaf).ok_or_else(not_expected)?;
        if self.expected.contains(&identity) { Ok(ServerCertVerified::assertion()) } else { Err(not_expected()) }
    }

    fn verify_tls12_signature(&self, m: &[u8], c: &CertificateDer<'_>, d: &DigitallySignedStruct) -> SignatureResult {
        verify_tls12_signature(m, c, d, &self.algorithms)
    }

    fn verify_tls13_signature(&self, m: &[u8], c: &CertificateDer<'_>, d: &DigitallySignedStruct) -> SignatureResult {
        verify_tls13_signature(m, c, d, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts a client whose chain is good and whose identity is of the own trust domain.
#[derive(Debug)]
pub struct TrustDomain {
    /// Checks the chain.
    pub chain: Arc<dyn ClientCertVerifier>,
    /// The own trust domain.
    pub trust_domain: Arc<str>,
}

impl ClientCertVerifier for TrustDomain {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(leaf, intermediates, now)?;
        let identity = spiffe_id(leaf).ok_or_else(not_expected)?;
        if identity.trust_domain == self.trust_domain { Ok(verified) } else { Err(not_expected()) }
    }

    fn verify_tls12_signature(&self, m: &[u8], c: &CertificateDer<'_>, d: &DigitallySignedStruct) -> SignatureResult {
        self.chain.verify_tls12_signature(m, c, d)
    }

    fn verify_tls13_signature(&self, m: &[u8], c: &CertificateDer<'_>, d: &DigitallySignedStruct) -> SignatureResult {
        self.chain.verify_tls13_signature(m, c, d)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
