//! The load: requests are due at fixed moments whatever the server does, so that a stall is counted for every request it delays.

use crate::client::{Connection, Template};
use crate::histogram::Histogram;
use crate::journal::{Failure, Journal, answered};
use crate::result::Summary;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use trysail_base::tasks::Tasks;

/// What to run.
#[derive(Clone)]
pub struct Plan {
    /// What is sent.
    pub template: Template,
    /// Requests a second over all connections; 0 = each as soon as the last is answered.
    pub qps: f64,
    /// Connections.
    pub connections: usize,
    /// How long; ignored when `count` is given.
    pub duration: Duration,
    /// How many requests in all.
    pub count: Option<u64>,
    /// Errors of the first request of each connection do not end the run.
    pub allow_initial_errors: bool,
    /// Name each request, and keep a journal of the run.
    pub journal: bool,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The first request failed.
    #[error("the first request failed (code {code}{}): use -allow-initial-errors to go on all the same", .error.as_ref().map(|e| format!(", {e}")).unwrap_or_default())]
    Initial {
        /// Status, or -1.
        code: i32,
        /// What happened.
        error: Option<String>,
    },
}

struct Worker {
    plan: Arc<Plan>,
    index: usize,
    next: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    connection: Connection,
}

/// Runs the plan. Setting `stop` ends it early.
pub async fn run(plan: Plan, stop: Arc<AtomicBool>) -> Result<Summary, RunError> {
    let tasks = Tasks::default();
    let plan = Arc::new(plan);
    let mut workers = Vec::new();
    for index in 0..plan.connections.max(1) {
        let mut connection = Connection::new(&tasks);
        if !plan.allow_initial_errors {
            let code = connection.call(&plan.template, None).await;
            if !answered(code) {
                return Err(RunError::Initial { code, error: connection.last_error });
            }
        }
        workers.push(Worker { plan: plan.clone(), index, next: Arc::default(), stop: stop.clone(), connection });
    }
    let next = Arc::new(AtomicU64::new(0));
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let began_ms = u64::try_from(began.as_millis()).unwrap_or(u64::MAX);
    let (sender, mut results) = mpsc::channel(workers.len());
    let start = Instant::now();
    for mut worker in workers {
        worker.next = next.clone();
        let sender = sender.clone();
        tasks.track(async move {
            let summary = worker.work(start, began_ms).await;
            if sender.send(summary).await.is_err() {
                // The run was given up.
            }
        });
    }
    drop(sender);
    let mut total = Summary { requested_qps: plan.qps, connections: plan.connections, ..Summary::default() };
    while let Some(part) = results.recv().await {
        total.add(&part);
    }
    total.seconds = start.elapsed().as_secs_f64();
    tasks.stop();
    Ok(total)
}

impl Worker {
    /// The moment request `k` of this worker is due, or `None` when the run is over.
    fn due(&self, start: Instant, k: u64) -> Option<Instant> {
        let plan = &self.plan;
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(count) = plan.count
            && self.next.fetch_add(1, Ordering::Relaxed) >= count
        {
            return None;
        }
        let due = if plan.qps > 0.0 {
            let position = k as f64 * plan.connections as f64 + self.index as f64;
            start + Duration::from_secs_f64(position / plan.qps)
        } else {
            Instant::now()
        };
        (plan.count.is_some() || due < start + plan.duration).then_some(due)
    }

    async fn work(mut self, start: Instant, began_ms: u64) -> Summary {
        let journal = self.plan.journal.then(|| Journal { began_ms, ..Journal::default() });
        let mut summary = Summary { histogram: Histogram::default(), journal, ..Summary::default() };
        let mut k = 0;
        while let Some(due) = self.due(start, k) {
            k += 1;
            let now = Instant::now();
            // A request that is due while its connection still waits for an earlier answer is counted from when it was due. One whose
            // connection is free is counted from when it is sent: the timer's own lateness is not the server's.
            let from = if due > now {
                tokio::time::sleep_until(due.into()).await;
                let sent = Instant::now();
                summary.late_timer = summary.late_timer.max(sent - due);
                sent
            } else if self.plan.qps > 0.0 {
                summary.late_sends += 1;
                due
            } else {
                now
            };
            // Unique among the runs of a lab: the moment of this one, its connection, the request's number on it.
            let id = self.plan.journal.then(|| format!("{began_ms:x}-{}-{k}", self.index));
            let code = self.connection.call(&self.plan.template, id.as_deref()).await;
            let took = from.elapsed();
            if let (Some(journal), Some(id)) = (&mut summary.journal, id) {
                let at = due.saturating_duration_since(start);
                journal.sent(at, took, code);
                if !answered(code) {
                    let (local, at_s, took_ms) = (self.connection.local, at.as_secs_f64(), took.as_secs_f64() * 1e3);
                    let error = if code < 0 { self.connection.last_error.clone() } else { None };
                    journal.failed(Failure { id, at_s, took_ms, code, local, error });
                }
            }
            summary.histogram.record(took);
            *summary.codes.entry(code).or_default() += 1;
        }
        summary.sockets = self.connection.sockets;
        summary.last_error = self.connection.last_error.take();
        summary
    }
}
