//! Cross-origin sharing, as the Fetch standard asks of a server.

use crate::compile::Cors;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method};

/// The origin of a request, if the rule allows it.
fn allowed(cors: &Cors, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let text = origin.to_str().ok()?;
    let wanted = |t: &crate::compile::Text| t.holds(text) || matches!(t, crate::compile::Text::Exact(e) if e == "*");
    cors.origins.iter().any(wanted).then(|| origin.clone())
}

fn list(headers: &mut HeaderMap, name: HeaderName, values: &[String], asked: Option<&HeaderValue>) {
    let value = if values.iter().any(|v| v == "*") {
        asked.cloned().or_else(|| Some(HeaderValue::from_static("*")))
    } else if values.is_empty() {
        None
    } else {
        HeaderValue::from_str(&values.join(", ")).ok()
    };
    if let Some(value) = value {
        headers.insert(name, value);
    }
}

/// The answer's headers to a preflight; `None`: it is none, or its origin is not allowed.
pub fn preflight(cors: &Cors, method: &Method, headers: &HeaderMap) -> Option<HeaderMap> {
    if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let origin = allowed(cors, headers)?;
    let mut out = HeaderMap::new();
    mark(cors, origin, &mut out);
    list(&mut out, ACCESS_CONTROL_ALLOW_METHODS, &cors.rest.methods, headers.get(ACCESS_CONTROL_REQUEST_METHOD));
    list(&mut out, ACCESS_CONTROL_ALLOW_HEADERS, &cors.rest.headers, headers.get(ACCESS_CONTROL_REQUEST_HEADERS));
    if cors.rest.max_age_s > 0 {
        out.insert(ACCESS_CONTROL_MAX_AGE, cors.rest.max_age_s.into());
    }
    Some(out)
}

fn mark(cors: &Cors, origin: HeaderValue, out: &mut HeaderMap) {
    out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    out.append(VARY, HeaderValue::from_static("origin"));
    if cors.rest.credentials {
        out.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

/// Marks an answer for the origin that asked.
pub fn answer(cors: &Cors, request: &HeaderMap, out: &mut HeaderMap) {
    if let Some(origin) = allowed(cors, request) {
        mark(cors, origin, out);
        list(out, ACCESS_CONTROL_EXPOSE_HEADERS, &cors.rest.expose, None);
    }
}
