//! Other protocols on a connection that began as HTTP: HTTP/1.1 upgrades, and extended CONNECT (RFC 8441) translated to them.

use crate::answer::Refusal;
use crate::reason::Reason;
use crate::send::{Failure, Sending};
use base64::Engine;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// What resolves to the client's side when the upgrade is agreed; none when the request asks for no other protocol.
pub fn asked(parts: &mut Parts) -> Result<Option<OnUpgrade>, Refusal> {
    let extended = parts.method == Method::CONNECT;
    if extended && parts.extensions.get::<Protocol>().is_none() {
        let refusal = Refusal::new(Reason::BadRequest, "CONNECT is not served");
        return Err(refusal.with_status(StatusCode::METHOD_NOT_ALLOWED));
    }
    let listed = parts.headers.get(CONNECTION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let upgrade = parts.headers.contains_key(UPGRADE)
        && listed.split(',').any(|t| t.trim().eq_ignore_ascii_case("upgrade"))
        && parts.version == http::Version::HTTP_11;
    if !upgrade && !extended {
        return Ok(None);
    }
    // HTTP/2 over an upgrade is never begun (RFC 9113, 3.1): such a request is answered as it is.
    let h2c = parts.headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"h2c"));
    if h2c {
        parts.headers.remove("http2-settings");
        return Ok(None);
    }
    Ok(parts.extensions.remove::<OnUpgrade>())
}

/// The method towards an endpoint.
pub fn method(parts: &Parts, upgrades: bool) -> Method {
    if upgrades && parts.method == Method::CONNECT { Method::GET } else { parts.method.clone() }
}

/// Says an extended CONNECT as an upgrade of HTTP/1.1.
pub fn translate(parts: &Parts, headers: &mut HeaderMap) {
    let Some(protocol) = parts.extensions.get::<Protocol>() else { return };
    if let Ok(value) = HeaderValue::from_str(protocol.as_str()) {
        headers.insert(UPGRADE, value);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let key = base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 16]>());
    if let Ok(value) = HeaderValue::from_str(&key) {
        headers.insert("sec-websocket-key", value);
    }
}

/// Joins the client's side and the endpoint's, which has agreed.
pub(crate) fn join(
    sending: &Sending<'_>,
    client: Option<OnUpgrade>,
    response: &mut Response<Incoming>,
) -> Result<(), Failure> {
    let Some(client) = client else {
        let detail = "the endpoint switched protocols unasked".to_owned();
        return Err(Failure::new(Reason::BadResponse, detail, false));
    };
    let endpoint = hyper::upgrade::on(response);
    let (tasks, down) = (sending.down.proxy.connections.clone(), sending.down.clone());
    let parts = sending.parts.clone();
    tasks.track(async move {
        let (client, endpoint) = match tokio::try_join!(client, endpoint) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
        };
        let (mut client, mut endpoint) = (TokioIo::new(client), TokioIo::new(endpoint));
        tokio::select! {
            end = tokio::io::copy_bidirectional(&mut client, &mut endpoint) => {
                if let Err(error) = end {
                    tracing::debug!(%error, "an upgraded connection failed");
                }
            }
            why = crate::tcp::revoked(&down, Some(&parts)) => tracing::info!(why, peer = %down.peer, "an open connection is ended"),
        }
    });
    Ok(())
}
