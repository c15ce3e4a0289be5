//! Loads while a Deployment is restarted over and over, of the cases `rollout` and `retry`: numbers to verdicts.

use crate::delivery::{Delivery, Evidence, Kind, kinds};
use std::collections::BTreeMap;
use trysail_load::histogram::Histogram;
use trysail_load::journal::{Second, answered};

/// One restart of a Deployment; moments in seconds from the start of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cycle {
    /// When it was asked for.
    pub at_s: f64,
    /// When the last pod had been replaced; `None`: it was given up.
    pub done_s: Option<f64>,
}

/// What was measured in one mode while a Deployment was restarted over and over.
#[derive(Clone, Default)]
pub struct Churn {
    /// The restarts, in order.
    pub cycles: Vec<Cycle>,
    /// Latencies of all requests, failed ones included.
    pub histogram: Histogram,
    /// Answers by status; -1: none.
    pub codes: BTreeMap<i32, u64>,
    /// Connections that the client opened.
    pub sockets: u64,
    /// Connections that would do.
    pub connections: u64,
    /// Each second.
    pub seconds: Vec<Second>,
    /// What the logs say.
    pub evidence: Evidence,
    /// Failures beyond those that are named.
    pub unnamed: u64,
}

/// Standard deviations of a spread: one run in 20 lies outside by chance.
const DEVIATIONS: f64 = 2.0;
/// With no failure at all, as many are still compatible with the run (one in 20, Poisson).
const NONE_SEEN: f64 = 3.0;

impl Churn {
    /// Requests.
    pub fn sent(&self) -> u64 {
        self.codes.values().sum()
    }

    /// Requests that were answered with a status from 200 to 399.
    pub fn answered(&self) -> u64 {
        self.codes.iter().filter(|(code, _)| answered(**code)).map(|(_, count)| count).sum()
    }

    /// All others.
    pub fn failed(&self) -> u64 {
        self.sent() - self.answered()
    }

    /// Failures in percent of all requests.
    pub fn failed_percent(&self) -> f64 {
        self.failed() as f64 * 100.0 / self.sent().max(1) as f64
    }

    /// Requests that got no answer at all.
    pub fn transport_errors(&self) -> u64 {
        self.codes.get(&-1).copied().unwrap_or(0)
    }

    /// Restarts that came to their end.
    pub fn completed(&self) -> u64 {
        self.cycles.iter().filter(|c| c.done_s.is_some()).count() as u64
    }

    /// Failures of one sort. Those that are not named are unknown.
    pub fn of(&self, delivery: Delivery) -> u64 {
        let named = self.evidence.fates.iter().filter(|f| f.delivery == delivery).count() as u64;
        named + if delivery == Delivery::Unknown { self.unnamed } else { 0 }
    }

    /// Failures by kind, the most frequent first.
    pub fn kinds(&self) -> Vec<(Kind, u64)> {
        kinds(&self.evidence.fates)
    }

    /// Failures of each cycle: from its restart to the next one.
    pub fn failed_by_cycle(&self) -> Vec<u64> {
        let ends = self.cycles.iter().skip(1).map(|c| c.at_s).chain([f64::INFINITY]);
        let within = |(cycle, end): (&Cycle, f64)| {
            self.evidence.fates.iter().filter(|f| f.at_s >= cycle.at_s && f.at_s < end).count() as u64
        };
        self.cycles.iter().zip(ends).map(within).collect()
    }

    /// Between how many and how many failures another run of the same length is to be expected (95 %). Failures come in clusters, a
    /// cluster a cycle, so the deviation is taken from the cycles; it is never below that of independent failures.
    pub fn spread(&self) -> (f64, f64) {
        let (failed, by_cycle) = (self.failed() as f64, self.failed_by_cycle());
        if failed == 0.0 {
            return (0.0, NONE_SEEN);
        }
        let count = by_cycle.len() as f64;
        let mean = by_cycle.iter().sum::<u64>() as f64 / count.max(1.0);
        let squares: f64 = by_cycle.iter().map(|n| (*n as f64 - mean).powi(2)).sum();
        let clustered = if count > 1.0 { count * squares / (count - 1.0) } else { 0.0 };
        let deviation = DEVIATIONS * clustered.max(failed).sqrt();
        ((failed - deviation).max(0.0), failed + deviation)
    }

    /// The seconds in so many columns at most: what was sent and failed in each, and whether a restart was asked for in it.
    pub fn time_line(&self, columns: usize) -> Vec<(Second, bool)> {
        let each = self.seconds.len().div_ceil(columns.max(1)).max(1);
        let restarted = |from: usize| {
            let (from, to) = (from as f64, (from + each) as f64);
            self.cycles.iter().any(|c| c.at_s >= from && c.at_s < to)
        };
        let column = |(index, seconds): (usize, &[Second])| {
            let add = |sum: Second, s: &Second| Second {
                sent: sum.sent + s.sent,
                failed: sum.failed + s.failed,
                slowest_ms: sum.slowest_ms.max(s.slowest_ms),
            };
            (seconds.iter().fold(Second::default(), add), restarted(index * each))
        };
        self.seconds.chunks(each).enumerate().map(column).collect()
    }
}

/// What keeps the case from being a measurement; failed requests do not, they are what it measures.
pub fn unmeasured(seen: &Churn) -> Vec<String> {
    let mut wrong = Vec::new();
    if seen.sent() == 0 {
        wrong.push("no request was sent".to_owned());
    }
    if seen.completed() == 0 {
        wrong.push("no restart came to its end".to_owned());
    }
    let answered = seen.answered();
    if seen.evidence.received < answered {
        wrong.push(format!(
            "the servers have logged {} requests although {answered} were answered: their logs are not complete",
            seen.evidence.received
        ));
    }
    wrong
}

#[cfg(test)]
mod tests;
