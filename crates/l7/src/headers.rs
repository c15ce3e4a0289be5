//! Headers on their way through a hop: what is added, changed, and never passed on.

use crate::compile::HeaderChanges;
use http::header::{CONNECTION, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;
use trysail_api::ids::SpiffeId;

/// Headers that speak of one connection alone (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 4] = ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"];
/// Headers that a `Connection` field must not take away.
const KEPT: [&str; 10] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "authorization",
    "cookie",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-request-id",
    "traceparent",
];
/// Headers of the mesh's own, which no application sends or sees.
const INTERNAL: [&str; 6] = [
    "x-envoy-peer-metadata",
    "x-envoy-peer-metadata-id",
    "x-trysail-delivery",
    "x-trysail-reason",
    "x-trysail-caller",
    "x-trysail-remote",
];
/// The caller's identity, as a hop has proven it (Istio's name).
pub const CLIENT_CERT: &str = "x-forwarded-client-cert";
/// Id of a request.
pub const REQUEST_ID: &str = "x-request-id";
/// Whether anything of a request may have arrived, on answers of a proxy's own.
pub const DELIVERY: &str = "x-trysail-delivery";
/// Why a proxy refused or failed.
pub const REASON: &str = "x-trysail-reason";
/// Addresses that a request came through.
pub const FORWARDED_FOR: &str = "x-forwarded-for";

/// Takes away what speaks of the last connection alone. `upgrade`: the request for another protocol goes on.
pub fn strip_hop(headers: &mut HeaderMap, upgrade: bool) {
    // The only coding of a transfer that goes on: whether trailers are welcome.
    let trailers = headers.remove(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let upgrade_to = if upgrade { headers.get(UPGRADE).cloned() } else { None };
    if let Some(names) = headers.remove(CONNECTION) {
        let names = names.to_str().unwrap_or_default().split(',').map(|n| n.trim().to_ascii_lowercase());
        for name in names.filter(|n| !KEPT.contains(&n.as_str())) {
            headers.remove(name.as_str());
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(UPGRADE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade_to {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Takes away what only the mesh says.
pub fn strip_internal(headers: &mut HeaderMap) {
    for name in INTERNAL {
        headers.remove(name);
    }
}

/// Makes a rule's changes.
pub fn change(headers: &mut HeaderMap, changes: &HeaderChanges) {
    for (name, value) in &changes.set {
        headers.insert(name.clone(), value.clone());
    }
    for (name, value) in &changes.add {
        headers.append(name.clone(), value.clone());
    }
    for name in &changes.remove {
        if *name != HOST {
            headers.remove(name);
        }
    }
}

/// States the caller's proven identity, or takes a statement away that nothing proves.
pub fn client_cert(headers: &mut HeaderMap, own: &SpiffeId, caller: Option<&SpiffeId>) {
    headers.remove(CLIENT_CERT);
    if let Some(value) = caller.and_then(|c| HeaderValue::from_str(&format!("By={own};URI={c}")).ok()) {
        headers.insert(CLIENT_CERT, value);
    }
}

/// The request's id, made if it has none.
pub fn request_id(headers: &mut HeaderMap) -> String {
    if let Some(id) = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok()) {
        return id.to_owned();
    }
    let bits: u128 = rand::random();
    let hex = format!("{:032x}", (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62));
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    let id = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-");
    put(headers, REQUEST_ID, &id);
    id
}

/// Adds an address to the list of those that the request came through.
pub fn forwarded_for(headers: &mut HeaderMap, address: IpAddr) {
    let before: Vec<&str> = headers.get_all(FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok()).collect();
    let list = if before.is_empty() { address.to_string() } else { format!("{}, {address}", before.join(", ")) };
    put(headers, FORWARDED_FOR, &list);
}

/// The client's address: the N-th from the right of the addresses received, or the peer's.
pub fn client_address(headers: &HeaderMap, trusted: usize, peer: IpAddr) -> IpAddr {
    if trusted == 0 {
        return peer;
    }
    let all: Vec<&str> =
        headers.get_all(FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).collect();
    let found = all.len().checked_sub(trusted).and_then(|at| all.get(at)).and_then(|a| a.trim().parse().ok());
    found.unwrap_or(peer)
}

/// Sets a header whose value may not be one.
pub fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Whether the body is gRPC's.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(http::header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// One cookie's value.
pub fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(http::header::COOKIE).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(';'));
    all.filter_map(|pair| pair.trim().split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
}
