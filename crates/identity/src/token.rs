//! Service account tokens: JSON Web Tokens (RFC 7519, ES256) bound to a pod and its node, with Kubernetes' claims.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The audience of tokens for the control plane.
pub const AUDIENCE: &str = "istio-ca";

/// Who a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Namespace.
    pub namespace: String,
    /// Service account.
    #[serde(rename = "serviceaccount")]
    pub service_account: Named,
    /// Pod.
    pub pod: Named,
    /// Node the pod runs on.
    pub node: Named,
}

/// A name with the object's uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The uid.
    #[serde(default)]
    pub uid: String,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: u64,
    iat: u64,
    iss: String,
    sub: String,
    #[serde(rename = "kubernetes.io")]
    bound: Bound,
}

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Why a token cannot be made or is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token is malformed, expired, of another audience, or its signature is wrong.
    #[error("the token is not valid")]
    Jwt(#[from] jsonwebtoken::errors::Error),
    /// No key could be made.
    #[error("no signing key could be made")]
    Key(#[from] rcgen::Error),
}

/// Signs tokens.
pub struct Signer {
    key: EncodingKey,
    public_pem: String,
}

impl Signer {
    /// A signer with a new key.
    pub fn generate() -> Result<Self, TokenError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes())?;
        Ok(Self { key, public_pem: pair.public_key_pem() })
    }

    /// What verifies its tokens, PEM.
    pub fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// A token for `bound`, valid for `ttl` from now.
    pub fn sign(&self, bound: &Bound, ttl: Duration) -> Result<String, TokenError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = Claims {
            aud: vec![AUDIENCE.to_owned()],
            exp: now + ttl.as_secs(),
            iat: now,
            iss: ISSUER.to_owned(),
            sub: format!("system:serviceaccount:{}:{}", bound.namespace, bound.service_account.name),
            bound: bound.clone(),
        };
        Ok(jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.key)?)
    }
}

/// Checks tokens.
pub struct Verifier {
    key: DecodingKey,
    validation: Validation,
}

impl Verifier {
    /// A verifier of the tokens that `public_pem`'s owner signs.
    pub fn new(public_pem: &str) -> Result<Self, TokenError> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.leeway = 0;
        // "Expires now" is expired.
        validation.reject_tokens_expiring_in_less_than = 1;
        Ok(Self { key: DecodingKey::from_ec_pem(public_pem.as_bytes())?, validation })
    }

    /// Who `token` speaks for.
    pub fn verify(&self, token: &str) -> Result<Bound, TokenError> {
        Ok(jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation)?.claims.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_speaks_for_its_pod_until_it_expires_and_only_under_its_key() {
        let signer = Signer::generate().unwrap();
        let named = |name: &str| Named { name: name.into(), uid: "u".into() };
        let bound =
            Bound { namespace: "ns".into(), service_account: named("sa"), pod: named("pod"), node: named("n1") };
        let token = signer.sign(&bound, Duration::from_secs(60)).unwrap();
        let verifier = Verifier::new(signer.public_pem()).unwrap();
        assert_eq!(verifier.verify(&token).unwrap(), bound);
        assert!(verifier.verify(&format!("{token}x")).is_err());
        assert!(Verifier::new(Signer::generate().unwrap().public_pem()).unwrap().verify(&token).is_err());
        let ended = signer.sign(&bound, Duration::ZERO).unwrap();
        assert!(verifier.verify(&ended).is_err());
    }
}
