//! report.json, schema `trysail.report/v1`.

use super::Results;
use crate::cases::rollout::Variant;
use crate::delivery::Delivery;
use crate::stage::Mode;
use crate::verdict::churn::Churn;
use crate::verdict::retry::{Executed, Retry};
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
            "rollout": {
                "qps": results.rollout_plan.qps, "connections": results.rollout_plan.connections,
                "baseline_s": results.rollout_plan.baseline_s, "hardened_s": results.rollout_plan.hardened_s,
            },
            "retry": {
                "qps": results.retry_plan.qps, "connections": results.retry_plan.connections,
                "seconds": results.retry_plan.seconds, "control_s": results.retry_plan.control_s,
            },
            "duration_s": results.seconds,
        },
        "cases": {"mtls": mtls, "netpol": netpol, "latency": latency, "canary": canary, "rollout": rollouts(&results.rollout), "retry": retries(&results.retry)},
        "unmeasured": results.unmeasured.iter().map(|(case, why)| json!({"case": case, "why": why})).collect::<Vec<_>>(),
        "wrong": results.wrong,
    })
}

fn retries(measured: &[(Mode, Retry)]) -> Value {
    let count = |e: &Executed| json!({"executed": e.orders, "executed_twice": e.twice.len(), "twice": e.twice});
    let one = |(mode, seen): &(Mode, Retry)| {
        let mut value = one_churn(&seen.churn);
        if let (Some(value), Value::Object(executed)) = (value.as_object_mut(), count(&seen.executed)) {
            value.extend(executed);
            value.insert("control".to_owned(), json!(seen.control.seen().map(count)));
        }
        (mode.key().to_owned(), value)
    };
    Value::Object(measured.iter().map(one).collect())
}

fn rollouts(measured: &[(Mode, Variant, Churn)]) -> Value {
    let mut modes = Map::new();
    for (mode, variant, seen) in measured {
        let entry = modes.entry(mode.key()).or_insert_with(|| json!({}));
        entry[variant.key()] = one_churn(seen);
    }
    Value::Object(modes)
}

fn one_churn(seen: &Churn) -> Value {
    let codes: Map<String, Value> = seen.codes.iter().map(|(c, n)| (c.to_string(), json!(n))).collect();
    let seconds: Vec<Value> = seen.seconds.iter().map(|s| json!([s.sent, s.failed, s.slowest_ms])).collect();
    let restarts: Vec<Value> = seen.cycles.iter().map(|c| json!([c.at_s, c.done_s])).collect();
    let kind = |(kind, count): (crate::delivery::Kind, u64)| {
        let mut value = serde_json::to_value(kind).unwrap_or_default();
        value["count"] = json!(count);
        value
    };
    let (low, high) = seen.spread();
    json!({
        "cycles": seen.completed(), "sent": seen.sent(), "codes": codes, "transport_errors": seen.transport_errors(),
        "sockets": seen.sockets, "connections": seen.connections,
        "mean_ms": seen.histogram.mean_ms(), "slowest_ms": seen.histogram.range_ms().1,
        "failed": seen.failed(), "failed_percent": seen.failed_percent(), "failed_spread": [low, high],
        "failed_by_cycle": seen.failed_by_cycle(),
        "never_delivered": seen.of(Delivery::Never), "delivered": seen.of(Delivery::Delivered),
        "unknown": seen.of(Delivery::Unknown), "received_twice": seen.evidence.doubled.len(),
        "kinds": seen.kinds().into_iter().map(kind).collect::<Vec<_>>(),
        "failures": serde_json::to_value(&seen.evidence.fates).unwrap_or_default(),
        "time_line": {"seconds": seconds, "restarts": restarts},
        "hdr_histogram": seen.histogram.encode(),
    })
}

fn one_netpol(n: &Netpol) -> Value {
    let mut value = serde_json::to_value(n).unwrap_or_default();
    value["works_as_is"] = json!(n.works_as_is());
    value
}
