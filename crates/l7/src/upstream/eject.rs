//! Outlier ejection: an endpoint that fails in a row is left out for a while.

use super::endpoints::{Endpoint, EndpointSet, Stats};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trysail_wire::l7::{Outlier, Settings};

/// The endpoints that are not left out; all, if too few would be left.
pub fn usable<'a>(set: &'a EndpointSet, settings: &Settings, now: u64) -> Vec<&'a Arc<Endpoint>> {
    let all: Vec<&Arc<Endpoint>> = set.endpoints.iter().collect();
    let Some(outlier) = &settings.outlier else { return all };
    let left: Vec<&Arc<Endpoint>> = all.iter().copied().filter(|e| !is_out(&e.stats, now)).collect();
    let enough = left.len() * 100 >= set.endpoints.len() * outlier.min_health_percent as usize;
    if left.is_empty() || !enough { all } else { left }
}

fn is_out(stats: &Stats, now: u64) -> bool {
    stats.ejected_until.load(Ordering::Relaxed) > now
}

/// Takes an answer into account: its status, or none when the connection failed.
pub fn observe(set: &EndpointSet, endpoint: &Endpoint, status: Option<u16>, outlier: &Outlier, now: u64) {
    let stats = &endpoint.stats;
    let error = status.is_none_or(|s| s >= 500);
    let gateway = status.is_none_or(|s| (502..=504).contains(&s));
    let count = |counter: &std::sync::atomic::AtomicU32, failed: bool| {
        if failed {
            counter.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            counter.store(0, Ordering::Relaxed);
            0
        }
    };
    let (errors, gateways) = (count(&stats.errors, error), count(&stats.gateway_errors, gateway));
    let reached = |limit: u32, seen: u32| limit > 0 && seen >= limit;
    if !reached(outlier.consecutive_5xx, errors) && !reached(outlier.consecutive_gateway, gateways) {
        return;
    }
    let out = set.endpoints.iter().filter(|e| is_out(&e.stats, now)).count();
    // At least one may be out, however few there are.
    let most = (set.endpoints.len() * outlier.max_percent as usize / 100).max(1);
    if out >= most || is_out(stats, now) {
        return;
    }
    let times = u64::from(stats.ejections.fetch_add(1, Ordering::Relaxed) + 1);
    stats.errors.store(0, Ordering::Relaxed);
    stats.gateway_errors.store(0, Ordering::Relaxed);
    let length = outlier.base_ms.saturating_mul(times.min(10));
    stats.ejected_until.store(now.saturating_add(length), Ordering::Relaxed);
    tracing::info!(endpoint = %endpoint.workload.uid, errors, for_ms = length, "an endpoint is left out");
}
