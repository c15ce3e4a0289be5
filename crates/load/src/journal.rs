//! What became of each request of a run: how many were sent and failed in each second, and every failure by name, so that it can be
//! looked for in the logs of servers and proxies.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// The header that names a request; proxies write it into their logs.
pub const REQUEST_ID: &str = "x-request-id";
/// Failures that are named; more are only counted.
const NAMED: usize = 10_000;

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// Requests that were due in it.
    pub sent: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// The slowest of them, milliseconds.
    pub slowest_ms: f64,
}

/// A request that was not answered with a status from 200 to 399.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failure {
    /// Its name, as sent in [`REQUEST_ID`].
    pub id: String,
    /// When it was due, seconds from the start of the run.
    pub at_s: f64,
    /// How long it took to fail, milliseconds.
    pub took_ms: f64,
    /// Status, or -1 when there was no answer.
    pub code: i32,
    /// The client's end of the connection that it was sent on.
    pub local: Option<SocketAddr>,
    /// What the client saw, when there was no answer.
    pub error: Option<String>,
}

/// The journal of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// When the run began, milliseconds since 1970.
    pub began_ms: u64,
    /// Its seconds, in order.
    pub seconds: Vec<Second>,
    /// Its failures, in order.
    pub failures: Vec<Failure>,
    /// Failures beyond those that are named.
    pub unnamed: u64,
}

/// Whether an answer counts as one.
pub fn answered(code: i32) -> bool {
    (200..400).contains(&code)
}

impl Journal {
    /// Adds a request that was due `at` and ended `took` later.
    pub fn sent(&mut self, at: Duration, took: Duration, code: i32) {
        let index = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(86_400);
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Second::default());
        }
        if let Some(second) = self.seconds.get_mut(index) {
            second.sent += 1;
            second.failed += u64::from(!answered(code));
            second.slowest_ms = second.slowest_ms.max(took.as_secs_f64() * 1e3);
        }
    }

    /// Names a failure.
    pub fn failed(&mut self, failure: Failure) {
        if self.failures.len() < NAMED {
            self.failures.push(failure);
        } else {
            self.unnamed += 1;
        }
    }

    /// Adds another part of the same run.
    pub fn add(&mut self, other: &Self) {
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), Second::default());
        }
        for (own, more) in self.seconds.iter_mut().zip(&other.seconds) {
            own.sent += more.sent;
            own.failed += more.failed;
            own.slowest_ms = own.slowest_ms.max(more.slowest_ms);
        }
        self.unnamed += other.unnamed;
        other.failures.iter().for_each(|failure| self.failed(failure.clone()));
        self.failures.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let seconds: Vec<Value> = self.seconds.iter().map(|s| json!([s.sent, s.failed, s.slowest_ms])).collect();
        let failure = |f: &Failure| {
            json!({
                "id": f.id, "at_s": f.at_s, "took_ms": f.took_ms, "code": f.code,
                "local": f.local.map(|a| a.to_string()), "error": f.error,
            })
        };
        let failures: Vec<Value> = self.failures.iter().map(failure).collect();
        json!({"BeganUnixMs": self.began_ms, "Seconds": seconds, "Failures": failures, "Unnamed": self.unnamed})
    }

    /// Reads [`Journal::json`] back.
    pub fn from_json(value: &Value) -> Option<Self> {
        let second = |v: &Value| {
            Some(Second { sent: v.get(0)?.as_u64()?, failed: v.get(1)?.as_u64()?, slowest_ms: v.get(2)?.as_f64()? })
        };
        let failure = |v: &Value| {
            Some(Failure {
                id: v.get("id")?.as_str()?.to_owned(),
                at_s: v.get("at_s")?.as_f64()?,
                took_ms: v.get("took_ms")?.as_f64()?,
                code: i32::try_from(v.get("code")?.as_i64()?).ok()?,
                local: v.get("local").and_then(Value::as_str).and_then(|text| text.parse().ok()),
                error: v.get("error").and_then(Value::as_str).map(str::to_owned),
            })
        };
        Some(Self {
            began_ms: value.get("BeganUnixMs")?.as_u64()?,
            seconds: value.get("Seconds")?.as_array()?.iter().map(second).collect::<Option<_>>()?,
            failures: value.get("Failures")?.as_array()?.iter().map(failure).collect::<Option<_>>()?,
            unnamed: value.get("Unnamed")?.as_u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_are_read_back() {
        let (mut a, mut b) = (Journal { began_ms: 7, ..Journal::default() }, Journal::default());
        a.sent(Duration::from_millis(2100), Duration::from_millis(3), 200);
        b.sent(Duration::from_millis(100), Duration::from_millis(5), 503);
        b.sent(Duration::from_millis(2900), Duration::from_millis(9), -1);
        for (at_s, code, error) in [(2.9, -1, Some("reset")), (0.1, 503, None)] {
            let local = Some("10.0.0.1:5".parse().unwrap());
            b.failed(Failure { id: "r-1".into(), at_s, took_ms: 5.0, code, local, error: error.map(str::to_owned) });
        }
        a.add(&b);
        let counts: Vec<_> = a.seconds.iter().map(|s| (s.sent, s.failed)).collect();
        assert_eq!(counts, [(1, 1), (0, 0), (2, 1)]);
        assert_eq!(a.seconds[2].slowest_ms, 9.0);
        assert_eq!(a.failures.iter().map(|f| f.code).collect::<Vec<_>>(), [503, -1]);
        assert_eq!(Journal::from_json(&a.json()), Some(a));
        assert_eq!(Journal::from_json(&json!({"Seconds": [[1]]})), None);
    }

    #[test]
    fn failures_beyond_the_bound_are_counted() {
        let mut journal = Journal::default();
        (0..NAMED + 3).for_each(|_| journal.failed(Failure::default()));
        assert_eq!((journal.failures.len(), journal.unnamed), (NAMED, 3));
    }
}
