//! Which route a request takes. Pure.

use crate::compile::{Backend, Match, Path, PathChange, Route, Value};
use http::HeaderMap;
use std::borrow::Cow;
use std::sync::Arc;

/// What routes are matched against.
pub struct Asked<'a> {
    /// Path with dot segments resolved: the reading that policy has seen too.
    pub path: &'a str,
    /// Query, without the question mark.
    pub query: Option<&'a str>,
    /// Method.
    pub method: &'a str,
    /// Host, lower case, without port.
    pub host: &'a str,
    /// Authority as it came.
    pub authority: &'a str,
    /// `http` or `https`.
    pub scheme: &'a str,
    /// Port that was called.
    pub port: u16,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Namespace of the caller.
    pub source_namespace: &'a str,
}

/// The first route that matches.
pub fn find<'a>(routes: &'a [Arc<Route>], asked: &Asked<'_>) -> Option<&'a Arc<Route>> {
    routes.iter().find(|route| route.matched.holds(asked))
}

/// Whether any of the routes speaks of a port: one that none speaks of goes on without routes.
pub fn speaks_of(routes: &[Arc<Route>], port: u16) -> bool {
    routes.iter().any(|r| r.matched.port == 0 || r.matched.port == port)
}

impl Match {
    fn holds(&self, a: &Asked<'_>) -> bool {
        (self.port == 0 || self.port == a.port)
            && self.path.as_ref().is_none_or(|p| self.path_holds(p, a.path))
            && (self.hosts.is_empty() || self.hosts.iter().any(|h| host_holds(h, a.host)))
            && self.method.as_ref().is_none_or(|m| m.holds(a.method))
            && self.authority.as_ref().is_none_or(|t| t.holds(a.authority) || t.holds(a.host))
            && self.scheme.as_ref().is_none_or(|s| s.holds(a.scheme))
            && (self.source_namespace.is_empty() || self.source_namespace == a.source_namespace)
            && self.headers.iter().all(|h| header_holds(h, a.headers))
            && self.query.iter().all(|q| query_holds(q, a.query))
    }

    fn path_holds(&self, wanted: &Path, path: &str) -> bool {
        let path: Cow<'_, str> = if self.ignore_case { path.to_ascii_lowercase().into() } else { path.into() };
        match wanted {
            Path::Exact(text) => *path == **text,
            Path::Prefix(text) => path.starts_with(text.as_str()),
            Path::Segments(text) => {
                path.strip_prefix(text.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Path::Regex(regex) => regex.is_match(&path),
        }
    }

    /// The part of the path that a prefix matched.
    pub fn prefix_length(&self) -> usize {
        match &self.path {
            Some(Path::Segments(text) | Path::Prefix(text)) => text.len(),
            _ => 0,
        }
    }
}

/// Whether `host` is what a name, or `*.` with a domain, covers.
pub fn host_holds(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => pattern == host,
    }
}

fn header_holds(wanted: &Value, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(wanted.name.as_str()).iter().filter_map(|v| v.to_str().ok());
    let found = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(first), None) => Some(Cow::Borrowed(first)),
        // Several lines are one list.
        (Some(first), Some(second)) => {
            Some(Cow::Owned([first, second].into_iter().chain(values).collect::<Vec<_>>().join(",")))
        }
    };
    found.is_some_and(|v| wanted.text.holds(&v)) != wanted.not
}

fn query_holds(wanted: &Value, query: Option<&str>) -> bool {
    let mut pairs = query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // The first of several counts.
    pairs.find(|(name, _)| decoded(name) == wanted.name).is_some_and(|(_, value)| wanted.text.holds(&decoded(value)))
}

/// A query's text with its escapes decoded.
pub fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (byte, hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(code)) => {
                out.push(code);
                at += 3;
                continue;
            }
            (b'+', _) => out.push(b' '),
            (other, _) => out.push(*other),
        }
        at += 1;
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// One of the backends by weight; `random` is uniform in 0..1.
pub fn weighted(backends: &[Backend], random: f64) -> Option<&Backend> {
    let total: f64 = backends.iter().map(|b| f64::from(b.weight)).sum();
    let mut left = random * total;
    let mut last = None;
    for backend in backends.iter().filter(|b| b.weight > 0) {
        left -= f64::from(backend.weight);
        if left < 0.0 {
            return Some(backend);
        }
        last = Some(backend);
    }
    last
}

/// The path after a change; `matched` is the length of the prefix that the route matched.
pub fn changed_path(change: &PathChange, path: &str, matched: usize) -> String {
    match change {
        PathChange::Full(text) => text.clone(),
        PathChange::Regex(regex, replacement) => regex.replace_all(path, replacement.as_str()).into_owned(),
        PathChange::Prefix(text) => {
            let rest = path.get(matched..).unwrap_or_default();
            let joined = match (text.ends_with('/'), rest.starts_with('/')) {
                (true, true) => format!("{text}{}", rest.trim_start_matches('/')),
                _ => format!("{text}{rest}"),
            };
            if joined.starts_with('/') { joined } else { format!("/{joined}") }
        }
    }
}
