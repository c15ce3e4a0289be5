//! RequestAuthentication: tokens found, validated, and what they say (RFC 7515, 7517, 7519).

use crate::router::decoded;
use base64::Engine;
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use trysail_wire::l7 as wire;

/// How far clocks may differ, seconds.
const LEEWAY: u64 = 60;
/// How long fetched keys are used, and how soon a failed fetch is repeated.
const KEEP: Duration = Duration::from_secs(300);
const AGAIN: Duration = Duration::from_secs(2);
/// The largest key set, bytes, and the longest fetch.
const LARGEST: usize = 1 << 20;
const FETCH_LIMIT: Duration = Duration::from_secs(5);

/// Algorithms with a public key; no other is believed.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The issuers of one object.
pub struct Issuers(Vec<Issuer>);

struct Issuer {
    rule: wire::Issuer,
    keys: Keys,
}

enum Keys {
    Inline(Option<Arc<JwkSet>>),
    Fetched(RwLock<Fetched>),
}

#[derive(Default)]
struct Fetched {
    keys: Option<Arc<JwkSet>>,
    next: Option<Instant>,
}

/// Why a request is refused for its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// 401.
    #[error("a token is not valid")]
    Invalid,
    /// 401.
    #[error("two different tokens")]
    Several,
    /// 403.
    #[error("a token is for another audience")]
    Audience,
}

impl Refused {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        if self == Self::Audience { 403 } else { 401 }
    }
}

/// What was found in a request.
#[derive(Debug, Default)]
pub struct Found {
    /// Claims of the one valid token.
    pub claims: Option<Value>,
    /// Headers that held tokens and are not to be passed on.
    pub remove: Vec<HeaderName>,
    /// Headers that the rule wants for the application.
    pub add: Vec<(String, String)>,
}

/// One place of one rule in which a token was found.
struct Token<'a> {
    rule: &'a Issuer,
    text: String,
    header: Option<HeaderName>,
}

impl Issuers {
    /// From the wire.
    pub fn new(rules: Vec<wire::Issuer>) -> Self {
        let issuer = |rule: wire::Issuer| {
            let keys = if rule.jwks_uri.is_empty() {
                let set = serde_json::from_str(&rule.jwks).ok();
                if set.is_none() {
                    tracing::error!(issuer = rule.issuer, "the keys cannot be read: its tokens are refused");
                }
                Keys::Inline(set.map(Arc::new))
            } else {
                Keys::Fetched(RwLock::default())
            };
            Issuer { rule, keys }
        };
        Self(rules.into_iter().map(issuer).collect())
    }
}

/// Looks for tokens under all rules and validates what is found. No token is no error.
pub async fn authenticate(all: &[&Issuers], headers: &HeaderMap, query: Option<&str>) -> Result<Found, Refused> {
    let rules: Vec<&Issuer> = all.iter().flat_map(|i| &i.0).collect();
    let tokens: Vec<Token<'_>> = rules.iter().flat_map(|rule| rule.tokens(headers, query)).collect();
    let mut found = Found::default();
    let mut texts: Vec<&str> = tokens.iter().map(|t| t.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut valid: Vec<&str> = Vec::new();
    for text in texts {
        // Any rule that looks in a place where it was found may validate it.
        let mut outcome = Err(Refused::Invalid);
        for token in tokens.iter().filter(|t| t.text == text) {
            match token.rule.validate(text).await {
                Ok(claims) => {
                    token.rule.passed(token, &claims, &mut found);
                    outcome = Ok(claims);
                    break;
                }
                Err(Refused::Audience) => outcome = Err(Refused::Audience),
                Err(_) => {}
            }
        }
        found.claims = Some(outcome?);
        valid.push(text);
    }
    if valid.len() > 1 { Err(Refused::Several) } else { Ok(found) }
}

impl Issuer {
    fn tokens(&self, headers: &HeaderMap, query: Option<&str>) -> Vec<Token<'_>> {
        let rule = &self.rule;
        let mut out = Vec::new();
        let mut header = |name: &str, prefix: &str| {
            let Ok(name) = name.parse::<HeaderName>() else { return };
            for value in headers.get_all(&name).iter().filter_map(|v| v.to_str().ok()) {
                if let Some(text) = value.strip_prefix(prefix) {
                    out.push(Token { rule: self, text: text.trim().to_owned(), header: Some(name.clone()) });
                }
            }
        };
        let elsewhere = !rule.headers.is_empty() || !rule.params.is_empty() || !rule.cookies.is_empty();
        if elsewhere {
            rule.headers.iter().for_each(|h| header(&h.name, &h.value));
        } else {
            header(AUTHORIZATION.as_str(), "Bearer ");
        }
        let default = ["access_token".to_owned()];
        let params: &[String] = if elsewhere { &rule.params } else { &default };
        for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            if params.iter().any(|p| *p == decoded(name)) {
                out.push(Token { rule: self, text: decoded(value).into_owned(), header: None });
            }
        }
        let cookies = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(';'));
        for (name, value) in cookies.filter_map(|pair| pair.trim().split_once('=')) {
            if rule.cookies.iter().any(|c| c == name) {
                out.push(Token { rule: self, text: value.to_owned(), header: None });
            }
        }
        out
    }

    async fn validate(&self, token: &str) -> Result<Value, Refused> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| Refused::Invalid)?;
        if !ALGORITHMS.contains(&header.alg) || unverified_issuer(token).as_deref() != Some(&self.rule.issuer) {
            return Err(Refused::Invalid);
        }
        let keys = self.keys().await.ok_or(Refused::Invalid)?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        validation.set_issuer(&[&self.rule.issuer]);
        let fits = |kid: Option<&String>| header.kid.is_none() || kid.is_none() || header.kid.as_ref() == kid;
        let candidates = keys.keys.iter().filter(|k| fits(k.common.key_id.as_ref()));
        let decoded = candidates
            .filter_map(|k| DecodingKey::from_jwk(k).ok())
            .find_map(|key| jsonwebtoken::decode::<Value>(token, &key, &validation).ok());
        let claims = decoded.ok_or(Refused::Invalid)?.claims;
        let audiences: Vec<&str> = match claims.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let wanted = &self.rule.audiences;
        if !wanted.is_empty() && !wanted.iter().any(|w| audiences.contains(&w.as_str())) {
            return Err(Refused::Audience);
        }
        Ok(claims)
    }

    fn passed(&self, token: &Token<'_>, claims: &Value, found: &mut Found) {
        let rule = &self.rule;
        if !rule.forward
            && let Some(header) = &token.header
        {
            found.remove.push(header.clone());
        }
        if !rule.payload_header.is_empty() {
            let payload = token.text.split('.').nth(1).unwrap_or_default();
            found.add.push((rule.payload_header.to_ascii_lowercase(), payload.to_owned()));
        }
        for h in &rule.claim_headers {
            let claim = match claims.get(&h.value) {
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                _ => continue,
            };
            found.add.push((h.name.clone(), claim));
        }
    }

    async fn keys(&self) -> Option<Arc<JwkSet>> {
        let cell = match &self.keys {
            Keys::Inline(keys) => return keys.clone(),
            Keys::Fetched(cell) => cell,
        };
        {
            let now = cell.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            if now.next.is_some_and(|next| Instant::now() < next) {
                return now.keys.clone();
            }
        }
        let fetched = tokio::time::timeout(FETCH_LIMIT, fetch(&self.rule.jwks_uri, machine)).await;
        let fetched = fetched.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let mut cell = cell.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        match fetched {
            Ok(set) => {
                cell.keys = Some(Arc::new(set));
                cell.next = Some(Instant::now() + KEEP);
            }
            Err(why) => {
                // Keys that were there stay in use.
                tracing::warn!(uri = self.rule.jwks_uri, why, "keys cannot be fetched");
                cell.next = Some(Instant::now() + AGAIN);
            }
        }
        cell.keys.clone()
    }
}

/// The issuer that a token states, before anything is believed of it.
fn unverified_issuer(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<Value>(&bytes).ok()?.get("iss")?.as_str().map(str::to_owned)
}

/// A stream to a server of keys.
trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

/// The machine's own roots, or those of `SSL_CERT_FILE`.
fn machine() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// Connects, by TLS for https.
async fn connect(uri: &http::Uri, roots: fn() -> Vec<CertificateDer<'static>>) -> Result<Box<dyn Io>, String> {
    let host = uri.host().ok_or("no host")?;
    let tls = uri.scheme_str() == Some("https");
    let to = format!("{host}:{}", uri.port_u16().unwrap_or(if tls { 443 } else { 80 }));
    let stream = tokio::net::TcpStream::connect(&to).await.map_err(|e| format!("{to}: {e}"))?;
    if !tls {
        return Ok(Box::new(stream));
    }
    let mut trusted = rustls::RootCertStore::empty();
    trusted.add_parsable_certificates(roots());
    let mut config = rustls::ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|e| format!("{host}: {e}"))?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|e| format!("{to}: {e}"))?))
}

async fn fetch(uri: &str, roots: fn() -> Vec<CertificateDer<'static>>) -> Result<JwkSet, String> {
    use http_body_util::{BodyExt, Empty, Limited};
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let uri: http::Uri = uri.parse().map_err(|e| text(&e))?;
    let authority = uri.authority().ok_or("no host")?.as_str().to_owned();
    let stream = connect(&uri, roots).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let request = http::Request::get(path).header("host", authority).body(Empty::<bytes::Bytes>::new());
    let request = request.map_err(|e| text(&e))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        if response.status() != http::StatusCode::OK {
            return Err(format!("status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|e| text(&e))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|e| text(&e))
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        biased;
        done = &mut exchange => done,
        // The connection may end in the same moment as the answer: what has come of it is still there.
        _ = connection => exchange.await,
    }
}

#[cfg(test)]
mod tests;
