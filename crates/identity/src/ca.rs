//! The certificate authority: a root, an intermediate that signs, and the checks on what it signs.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use trysail_api::ids::SpiffeId;

/// The longest life of an SVID, in effect whatever a request asks for.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// How far a certificate's start lies before its issue, for clocks that differ.
const BACKDATE: Duration = Duration::from_secs(60);
const ROOT_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
const INTERMEDIATE_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The authority of one trust domain.
pub struct Authority {
    root_pem: String,
    intermediate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Why the authority cannot be set up or a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The request cannot be read or its signature is wrong.
    #[error("the certificate request is not valid: {0}")]
    Request(String),
    /// The request's key is not of the one kind that is signed.
    #[error("the certificate request's key is not ECDSA P-256")]
    KeyKind,
    /// The cryptographic library failed.
    #[error("signing failed")]
    Sign(#[from] rcgen::Error),
    /// A file of the authority cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
}

impl Authority {
    /// Loads the authority kept in `dir`, or makes one and keeps it there (files readable by the owner alone).
    pub fn load_or_create(dir: &Path, trust_domain: &str) -> Result<Self, CaError> {
        let files = ["root-cert.pem", "ca-cert.pem", "ca-key.pem"].map(|name| dir.join(name));
        let [root, certificate, key] = &files;
        if !key.exists() {
            let made = Self::create(trust_domain)?;
            fs::create_dir_all(dir).map_err(|source| CaError::File { path: dir.to_owned(), source })?;
            write_private(root, &made.root_pem)?;
            write_private(certificate, &made.intermediate_pem)?;
            write_private(key, &made.issuer.key().serialize_pem())?;
            return Ok(made);
        }
        let read =
            |path: &PathBuf| fs::read_to_string(path).map_err(|source| CaError::File { path: path.clone(), source });
        let (root_pem, intermediate_pem, key_pem) = (read(root)?, read(certificate)?, read(key)?);
        let issuer = Issuer::from_ca_cert_pem(&intermediate_pem, KeyPair::from_pem(&key_pem)?)?;
        Ok(Self { root_pem, intermediate_pem, issuer })
    }

    /// A new authority. The root's key signs the intermediate and is then forgotten.
    pub fn create(trust_domain: &str) -> Result<Self, CaError> {
        let root_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let root = authority_params(trust_domain, "root", ROOT_LIFE);
        let root_pem = root.self_signed(&root_key)?.pem();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let intermediate = authority_params(trust_domain, "intermediate", INTERMEDIATE_LIFE);
        let intermediate_pem = intermediate.signed_by(&key, &Issuer::new(root, root_key))?.pem();
        Ok(Self { root_pem, intermediate_pem, issuer: Issuer::new(intermediate, key) })
    }

    /// The root certificate, PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Signs a request (PEM) for `identity`; its own names and lifetime do not count. Returns PEM, leaf first, root last.
    pub fn sign(
        &self,
        csr_pem: &str,
        identity: &SpiffeId,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Vec<String>, CaError> {
        let mut request =
            CertificateSigningRequestParams::from_pem(csr_pem).map_err(|e| CaError::Request(e.to_string()))?;
        if *request.public_key.algorithm() != PKCS_ECDSA_P256_SHA256 {
            return Err(CaError::KeyKind);
        }
        let uri = identity.to_string().try_into().map_err(CaError::Sign)?;
        request.params = leaf_params(vec![SanType::URI(uri)], ttl.min(MAX_TTL), now);
        let leaf = request.signed_by(&self.issuer)?;
        Ok(vec![leaf.pem(), self.intermediate_pem.clone(), self.root_pem.clone()])
    }

    /// A certificate for a server of the control plane: PEM chain and PKCS#8 key.
    pub fn serving(&self, names: &[String]) -> Result<(String, String), CaError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let named = CertificateParams::new(names.to_vec())?;
        let leaf = leaf_params(named.subject_alt_names, INTERMEDIATE_LIFE / 2, SystemTime::now());
        let pem = leaf.signed_by(&key, &self.issuer)?.pem();
        Ok((format!("{pem}{}", self.intermediate_pem), key.serialize_pem()))
    }
}

fn authority_params(trust_domain: &str, role: &str, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, trust_domain);
    params.distinguished_name.push(DnType::CommonName, format!("Trysail {role} CA"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + life).into();
    params
}

fn leaf_params(names: Vec<SanType>, life: Duration, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    // A short-lived certificate is backdated by no more than its own life, so that half-life stays ahead of now.
    params.not_before = (now - BACKDATE.min(life / 10)).into();
    params.not_after = (now + life).into();
    params
}

fn write_private(path: &Path, text: &str) -> Result<(), CaError> {
    let fail = |source| CaError::File { path: path.to_owned(), source };
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).map_err(fail)
}

/// A new key and a request that states `identity` (P-256, one URI SAN, no common name): key PEM and CSR PEM.
pub fn request(identity: &SpiffeId) -> Result<(String, String), CaError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into().map_err(CaError::Sign)?)];
    let csr = params.serialize_request(&key)?.pem()?;
    Ok((key.serialize_pem(), csr))
}

#[cfg(test)]
mod tests;
