//! Which endpoint takes a request. Randomness and time are passed in.

use super::eject;
use super::endpoints::{Endpoint, EndpointSet};
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trysail_mesh::pick::NoEndpoint;
use trysail_wire::l7::{Balance, Settings};

/// What a choice rests on beside the endpoints.
pub struct Choice<'a> {
    /// How endpoints are used.
    pub settings: &'a Settings,
    /// Hash of the request's property that decides, if one does.
    pub hash: Option<u64>,
    /// Endpoints that were tried without success.
    pub tried: &'a [Arc<Endpoint>],
    /// Milliseconds on the process's clock.
    pub now: u64,
    /// Two numbers, uniform.
    pub random: (usize, usize),
}

/// The endpoint for a request. Those that were tried come last; without any other they are taken again.
pub fn choose(set: &EndpointSet, choice: &Choice<'_>) -> Result<Arc<Endpoint>, NoEndpoint> {
    if let Some(none) = set.none {
        return Err(none);
    }
    let tried = |e: &Arc<Endpoint>| choice.tried.iter().any(|t| t.workload.uid == e.workload.uid);
    // Only where something is left out is a list made.
    if !choice.tried.is_empty() || choice.settings.outlier.is_some() {
        let usable = eject::usable(set, choice.settings, choice.now);
        let fresh: Vec<&Arc<Endpoint>> = usable.iter().copied().filter(|e| !tried(e)).collect();
        let among = if fresh.is_empty() { usable } else { fresh };
        return pick(&among, set, choice).cloned().ok_or(NoEndpoint::Unhealthy);
    }
    let all: &[Arc<Endpoint>] = &set.endpoints;
    pick_from(all.len(), |i| all.get(i), set, choice).cloned().ok_or(NoEndpoint::Unhealthy)
}

fn pick<'a>(list: &[&'a Arc<Endpoint>], set: &EndpointSet, choice: &Choice<'_>) -> Option<&'a Arc<Endpoint>> {
    pick_from(list.len(), |i| list.get(i).copied(), set, choice)
}

fn pick_from<'a>(
    count: usize,
    get: impl Fn(usize) -> Option<&'a Arc<Endpoint>>,
    set: &EndpointSet,
    choice: &Choice<'_>,
) -> Option<&'a Arc<Endpoint>> {
    if count == 0 {
        return None;
    }
    match (choice.settings.balance(), choice.hash) {
        (Balance::Hash, Some(hash)) => {
            // Rendezvous: each endpoint has its own score for a hash, so that one that comes or goes moves only its own share.
            (0..count).filter_map(&get).max_by_key(|e| score(hash, e.workload.uid.as_str()))
        }
        (Balance::RoundRobin, _) => get(set.turn.fetch_add(1, Ordering::Relaxed) % count),
        (Balance::Random | Balance::Hash, _) => get(choice.random.0 % count),
        (Balance::LeastRequest, _) => {
            // Of two at random, the one with less under way.
            let first = get(choice.random.0 % count)?;
            let second = get((choice.random.0 % count + 1 + choice.random.1 % count.max(2).saturating_sub(1)) % count)?;
            let load = |e: &Arc<Endpoint>| e.stats.active.load(Ordering::Relaxed);
            Some(if load(second) < load(first) { second } else { first })
        }
    }
}

fn score(hash: u64, uid: &str) -> u64 {
    let mut hasher = Fnv(hash ^ 0xcbf2_9ce4_8422_2325);
    hasher.write(uid.as_bytes());
    // FNV alone leaves similar names close together.
    let mixed = (hasher.0 ^ (hasher.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// FNV-1a, the same in every process and version: two proxies choose the same endpoint.
pub struct Fnv(pub u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The hash of a text.
pub fn hash(text: &str) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    hasher.write(text.as_bytes());
    hasher.finish()
}
