//! What a run found, as text in fortio's words and as JSON in its keys.

use crate::histogram::Histogram;
use crate::journal::Journal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Percentiles that are shown.
pub const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 99.0, 99.9];

/// The outcome of a run.
#[derive(Clone, Default)]
pub struct Summary {
    /// Latencies.
    pub histogram: Histogram,
    /// Answers by status; -1 = none.
    pub codes: BTreeMap<i32, u64>,
    /// Connections opened.
    pub sockets: u64,
    /// Connections that would do.
    pub connections: usize,
    /// Requests a second that were asked for; 0 = as many as possible.
    pub requested_qps: f64,
    /// Length of the run.
    pub seconds: f64,
    /// Requests that were due while an earlier answer was waited for.
    pub late_sends: u64,
    /// The worst lateness of the timer.
    pub late_timer: Duration,
    /// The last error.
    pub last_error: Option<String>,
    /// What became of each request, if that was asked for.
    pub journal: Option<Journal>,
}

impl Summary {
    /// Adds another part of the same run.
    pub fn add(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        for (code, count) in &other.codes {
            *self.codes.entry(*code).or_default() += count;
        }
        self.sockets += other.sockets;
        self.late_sends += other.late_sends;
        self.late_timer = self.late_timer.max(other.late_timer);
        self.last_error = self.last_error.take().or_else(|| other.last_error.clone());
        match (&mut self.journal, &other.journal) {
            (Some(own), Some(more)) => own.add(more),
            (own, more) => *own = own.take().or_else(|| more.clone()),
        }
    }

    /// How many requests.
    pub fn count(&self) -> u64 {
        self.codes.values().sum()
    }

    /// Requests a second that were reached.
    pub fn qps(&self) -> f64 {
        if self.seconds > 0.0 { self.count() as f64 / self.seconds } else { 0.0 }
    }

    /// fortio's closing lines.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (min, max) = self.histogram.range_ms();
        let mut line = |text: String| writeln!(out, "{text}").unwrap_or_default();
        let total = self.count();
        line(format!(
            "Aggregated Function Time : count {total} avg {:.9} min {:.9} max {:.9}",
            self.histogram.mean_ms() / 1e3,
            min / 1e3,
            max / 1e3
        ));
        for p in PERCENTILES {
            line(format!("# target {p}% {:.6}", self.histogram.percentile_ms(p) / 1e3));
        }
        line(format!("Sockets used: {} (for perfect keepalive, would be {})", self.sockets, self.connections));
        for (code, count) in &self.codes {
            line(format!("Code {code:3} : {count} ({:.1} %)", *count as f64 * 100.0 / total.max(1) as f64));
        }
        if let Some(error) = &self.last_error {
            line(format!("Last error: {error}"));
        }
        line(format!(
            "All done {total} calls (plus 0 warmup) {:.3} ms avg, {:.1} qps ({} sent late behind an earlier answer)",
            self.histogram.mean_ms(),
            self.qps(),
            self.late_sends
        ));
        out
    }

    /// fortio's keys, and the whole histogram.
    pub fn json(&self) -> Value {
        let (min, max) = self.histogram.range_ms();
        let percentiles: Vec<Value> = PERCENTILES
            .iter()
            .map(|p| json!({"Percentile": p, "Value": self.histogram.percentile_ms(*p) / 1e3}))
            .collect();
        let codes: BTreeMap<String, u64> = self.codes.iter().map(|(c, n)| (c.to_string(), *n)).collect();
        json!({
            "RunType": "HTTP",
            "RequestedQPS": if self.requested_qps > 0.0 { self.requested_qps.to_string() } else { "max".to_owned() },
            "ActualQPS": self.qps(),
            "ActualDuration": (self.seconds * 1e9) as u64,
            "NumThreads": self.connections,
            "DurationHistogram": {
                "Count": self.count(),
                "Min": min / 1e3,
                "Max": max / 1e3,
                "Avg": self.histogram.mean_ms() / 1e3,
                "Percentiles": percentiles,
            },
            "RetCodes": codes,
            "Sockets": self.sockets,
            "LateSends": self.late_sends,
            "LastError": self.last_error,
            "HdrHistogram": self.histogram.encode(),
            "Journal": self.journal.as_ref().map(Journal::json),
        })
    }

    /// Reads [`Summary::json`] back.
    pub fn from_json(value: &Value) -> Option<Self> {
        let codes = value.get("RetCodes")?.as_object()?.iter();
        Some(Self {
            histogram: Histogram::decode(value.get("HdrHistogram")?.as_str()?).ok()?,
            codes: codes.filter_map(|(c, n)| Some((c.parse().ok()?, n.as_u64()?))).collect(),
            sockets: value.get("Sockets")?.as_u64()?,
            connections: usize::try_from(value.get("NumThreads")?.as_u64()?).ok()?,
            requested_qps: value.get("RequestedQPS")?.as_str()?.parse().unwrap_or(0.0),
            seconds: value.get("ActualDuration")?.as_f64()? / 1e9,
            late_sends: value.get("LateSends")?.as_u64()?,
            late_timer: Duration::ZERO,
            last_error: value.get("LastError").and_then(Value::as_str).map(str::to_owned),
            journal: value.get("Journal").and_then(Journal::from_json),
        })
    }
}
