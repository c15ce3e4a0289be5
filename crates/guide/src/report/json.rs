//! report.json, schema `trysail.report/v1`.

use super::Results;
use crate::verdict::{Netpol, overhead};
use serde_json::{Map, Value, json};

/// The document.
pub fn document(results: &Results) -> Value {
    let mtls: Map<String, Value> = results
        .mtls
        .iter()
        .map(|(mode, m)| (mode.key().to_owned(), serde_json::to_value(m).unwrap_or_default()))
        .collect();
    let latency: Map<String, Value> = results
        .latency
        .iter()
        .map(|(mode, l)| {
            let p = |percentile| l.histogram.percentile_ms(percentile);
            let (low, high) = l.spread();
            let codes: Map<String, Value> = l.codes.iter().map(|(c, n)| (c.to_string(), json!(n))).collect();
            let value = json!({
                "p50_ms": p(50.0), "p75_ms": p(75.0), "p90_ms": p(90.0), "p99_ms": p(99.0), "p999_ms": p(99.9),
                "count": l.histogram.count(), "codes": codes, "sockets": l.sockets,
                "p50_ms_rounds": l.p50_rounds, "p50_ms_spread": [low, high],
                "overhead_p50_ms": results.baseline().map(|b| overhead(b, l)),
                "hdr_histogram": l.histogram.encode(),
            });
            (mode.key().to_owned(), value)
        })
        .collect();
    let netpol: Map<String, Value> = results
        .netpol
        .iter()
        .map(|(mode, n)| {
            let mut value = one_netpol(n);
            if let Some((_, istio)) = results.netpol_istio.iter().find(|(m, _)| m == mode) {
                value["istio"] = one_netpol(istio);
            }
            (mode.key().to_owned(), value)
        })
        .collect();
    let canary: Map<String, Value> = results
        .canary
        .iter()
        .map(|(path, c)| {
            let value = json!({
                "wanted": c.wanted, "observed": c.observed(), "margin": c.margin(), "requests": c.requests,
                "new": c.new, "failed": c.failed, "followed": c.followed(),
            });
            (path.key.to_owned(), value)
        })
        .collect();
    json!({
        "schema": "trysail.report/v1",
        "settings": {
            "profile": results.profile,
            "nodes": 2,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
            "version": env!("CARGO_PKG_VERSION"),
            "latency": {"qps": results.plan.qps, "connections": results.plan.connections, "rounds": results.plan.rounds, "seconds": results.plan.seconds},
            "duration_s": results.seconds,
        },
        "cases": {"mtls": mtls, "netpol": netpol, "latency": latency, "canary": canary},
        "wrong": results.wrong,
    })
}

fn one_netpol(n: &Netpol) -> Value {
    let mut value = serde_json::to_value(n).unwrap_or_default();
    value["works_as_is"] = json!(n.works_as_is());
    value
}
