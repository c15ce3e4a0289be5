//! TLS between mesh peers: 1.3 only, mutual, ALPN `h2`, no SNI, no resumption, identity by URI SAN.

mod verify;

use crate::svid::{Svid, SvidError};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use std::sync::Arc;
use trysail_api::ids::SpiffeId;

/// A certificate in DER form.
pub type Certificate = CertificateDer<'static>;

/// The protocol that a tunnel speaks inside TLS.
pub const ALPN_H2: &[u8] = b"h2";

/// The one crypto provider, narrowed to AES-GCM suites.
pub fn provider() -> Arc<CryptoProvider> {
    use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
    let suites = vec![cipher_suite::TLS13_AES_256_GCM_SHA384, cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(CryptoProvider { cipher_suites: suites, ..default_provider() })
}

fn root_store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, SvidError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).map_err(|e| SvidError::Roots(e.to_string()))?;
    }
    Ok(Arc::new(store))
}

/// For accepting connections: the peer must have a certificate of the same roots and trust domain.
pub(crate) fn server_config(
    certified: Arc<CertifiedKey>,
    roots: &[CertificateDer<'static>],
    trust_domain: &str,
) -> Result<Arc<ServerConfig>, SvidError> {
    let provider = provider();
    let chain = WebPkiClientVerifier::builder_with_provider(root_store(roots)?, provider.clone())
        .build()
        .map_err(|e| SvidError::Roots(e.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verify::TrustDomain { chain, trust_domain: trust_domain.into() }))
        .with_cert_resolver(Arc::new(Fixed(certified)));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What a sidecar's mutual TLS on an application's own port speaks, by ALPN (Istio's names).
pub const ALPN_ISTIO: &[u8] = b"istio";
/// HTTP/1.1 between sidecars.
pub const ALPN_ISTIO_HTTP1: &[u8] = b"istio-http/1.1";
/// HTTP/2 between sidecars.
pub const ALPN_ISTIO_H2: &[u8] = b"istio-h2";

/// For accepting mesh peers on an application's own port: as [`Svid::server`], with the ALPN names of sidecars.
pub fn sidecar_server_config(svid: &Svid) -> Arc<ServerConfig> {
    let mut config = (*svid.server).clone();
    config.alpn_protocols =
        [ALPN_ISTIO_H2, ALPN_ISTIO_HTTP1, b"istio-http/1.0", ALPN_ISTIO].iter().map(|p| p.to_vec()).collect();
    Arc::new(config)
}

/// For dialling a sidecar on its application's own port: as [`client_config`], with one ALPN name.
pub fn sidecar_client_config(
    svid: &Svid,
    expected: Vec<SpiffeId>,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>, SvidError> {
    let mut config = (*client_config(svid, expected)?).clone();
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}

/// For dialling: the peer must be one of `expected`.
pub fn client_config(svid: &Svid, expected: Vec<SpiffeId>) -> Result<Arc<ClientConfig>, SvidError> {
    let provider = provider();
    let verifier = verify::ExpectedPeer::new(root_store(&svid.roots)?, &provider, expected);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(Fixed(svid.certified.clone())));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// Presents one certificate whatever is asked.
#[derive(Debug)]
struct Fixed(Arc<CertifiedKey>);

impl ResolvesClientCert for Fixed {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Fixed {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[cfg(test)]
mod tests;
