//! An X.509 SVID: chain, key and what it was issued for.

use crate::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use trysail_api::ids::SpiffeId;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A certificate with its key, ready for use in TLS.
pub struct Svid {
    /// The identity that the certificate states.
    pub identity: SpiffeId,
    /// Leaf first; the root is not part of it.
    pub chain: Vec<CertificateDer<'static>>,
    /// What peers' certificates must lead to.
    pub roots: Vec<CertificateDer<'static>>,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Serial number, hexadecimal.
    pub serial: String,
    pub(crate) certified: Arc<CertifiedKey>,
    /// For accepting connections of mesh peers.
    pub server: Arc<rustls::ServerConfig>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SvidError {
    /// Not PEM, or not a certificate.
    #[error("the certificate chain cannot be read: {0}")]
    Unreadable(String),
    /// The chain has no root at its end.
    #[error("the certificate chain has {0} certificates; at least a leaf and a root are needed")]
    TooShort(usize),
    /// It states another identity than was asked for.
    #[error("the certificate is for {got:?}, not for {wanted}")]
    OtherIdentity {
        /// What it states.
        got: Vec<String>,
        /// What was asked for.
        wanted: SpiffeId,
    },
    /// The TLS library refuses it.
    #[error("the certificate cannot be used for TLS")]
    Tls(#[from] rustls::Error),
    /// No verifier can be made of the roots.
    #[error("the root certificates cannot be used: {0}")]
    Roots(String),
}

impl Svid {
    /// From a CA's answer (PEM, leaf first, root last) and the key that the CSR was signed with (PKCS#8 PEM).
    pub fn from_pem(wanted: &SpiffeId, chain_pem: &[String], key_pem: &str) -> Result<Self, SvidError> {
        let unreadable = |e: &dyn std::fmt::Display| SvidError::Unreadable(e.to_string());
        let mut chain = Vec::new();
        for part in chain_pem {
            for certificate in CertificateDer::pem_slice_iter(part.as_bytes()) {
                chain.push(certificate.map_err(|e| unreadable(&e))?);
            }
        }
        if chain.len() < 2 {
            return Err(SvidError::TooShort(chain.len()));
        }
        let roots = chain.split_off(chain.len() - 1);
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| unreadable(&e))?;
        let leaf = chain.first().ok_or(SvidError::TooShort(0))?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|e| unreadable(&e))?;
        let names = uri_names(&parsed);
        if names != [wanted.to_string()] {
            return Err(SvidError::OtherIdentity { got: names, wanted: wanted.clone() });
        }
        let provider = tls::provider();
        let certified = Arc::new(CertifiedKey::from_der(chain.clone(), key, &provider)?);
        let server = tls::server_config(certified.clone(), &roots, &wanted.trust_domain)?;
        Ok(Self {
            identity: wanted.clone(),
            roots,
            not_before: time_of(parsed.validity().not_before.timestamp()),
            not_after: time_of(parsed.validity().not_after.timestamp()),
            serial: parsed.raw_serial_as_string().replace(':', ""),
            chain,
            certified,
            server,
        })
    }

    /// Length of its validity.
    pub fn lifetime(&self) -> Duration {
        self.not_after.duration_since(self.not_before).unwrap_or_default()
    }

    /// Whether it has ended at `now`.
    pub fn expired(&self, now: SystemTime) -> bool {
        now >= self.not_after
    }
}

fn time_of(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0))
}

/// The URI names of a certificate.
pub fn uri_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(uri).collect()
}

/// The SPIFFE id in a certificate's DER form: the one URI name it has.
pub fn spiffe_id(der: &[u8]) -> Option<SpiffeId> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    match uri_names(&parsed).as_slice() {
        [name] => name.parse().ok(),
        _ => None,
    }
}
