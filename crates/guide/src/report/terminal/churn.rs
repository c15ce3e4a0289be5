//! Loads while a Deployment is restarted over and over: tables, time lines, and what became of failures.

use crate::cases::rollout::Variant;
use crate::delivery::Delivery;
use crate::report::Results;
use crate::verdict::churn::Churn;
use std::fmt::Write;
use trysail_lab::output::table;

/// Columns of a time line.
const COLUMNS: usize = 60;
/// Kinds of failures that are shown of one row; the report has all.
const KINDS: usize = 3;
/// What is said of every load.
const HEAD: [&str; 8] = ["cycles", "sent", "failed", "", "spread", "never delivered", "delivered", "unknown"];

/// What is shown of several loads.
#[derive(Default)]
struct Shown {
    rows: Vec<Vec<String>>,
    time_lines: String,
    failures: String,
}

impl Shown {
    fn with_head(title: &str, more: &[&str]) -> Self {
        let head = [title].iter().chain(&HEAD).chain(more).map(|word| (*word).to_owned()).collect();
        Self { rows: vec![head], ..Self::default() }
    }

    fn add(&mut self, case: &str, title: &str, seen: &Churn, more: Vec<String>) {
        let (low, high) = seen.spread();
        let mut row = vec![
            title.to_owned(),
            seen.completed().to_string(),
            seen.sent().to_string(),
            seen.failed().to_string(),
            format!("{:.2} %", seen.failed_percent()),
            format!("{low:.0}..{high:.0}"),
            seen.of(Delivery::Never).to_string(),
            seen.of(Delivery::Delivered).to_string(),
            seen.of(Delivery::Unknown).to_string(),
        ];
        row.extend(more);
        self.rows.push(row);
        let columns = seen.time_line(COLUMNS);
        let line: String = columns.iter().map(|(second, _)| mark(second.failed)).collect();
        let restarts: String = columns.iter().map(|(_, restarted)| if *restarted { '^' } else { ' ' }).collect();
        writeln!(self.time_lines, "  {title:20} {line}\n  {:20} {}", "", restarts.trim_end()).unwrap_or_default();
        if seen.failed() > 0 {
            let (failed, sent) = (seen.failed(), seen.sent());
            writeln!(self.failures, "FAILED: {case} {title}: {failed} of {sent} requests").unwrap_or_default();
        }
        for (kind, count) in seen.kinds().into_iter().take(KINDS) {
            let code = if kind.code < 0 { "no answer".to_owned() } else { kind.code.to_string() };
            let why = if kind.why.is_empty() { "no reason is logged" } else { &kind.why };
            writeln!(self.failures, "  {count} x {code}, {}: {why}", kind.delivery.as_str()).unwrap_or_default();
        }
    }

    fn text(self, what: &str) -> String {
        let (table, lines, failures) = (table(&self.rows), self.time_lines, self.failures);
        format!("{table}  {what}\n\nTime line (. all answered, 1 to 9 and + failures, ^ a restart)\n{lines}{failures}")
    }
}

/// So many failures, in one character.
fn mark(failed: u64) -> char {
    match failed {
        0 => '.',
        1..=9 => char::from(b'0' + u8::try_from(failed).unwrap_or(0)),
        _ => '+',
    }
}

/// Case `rollout`.
pub(super) fn rollout(results: &Results) -> String {
    let mut shown = Shown::with_head("ROLLOUT", &["sockets", "mean ms", "slowest ms"]);
    for (mode, variant, seen) in &results.rollout {
        let title = match variant {
            Variant::Baseline => mode.title().to_owned(),
            Variant::Hardened => format!("{}, hardened", mode.title()),
        };
        let (mean, slowest) = (seen.histogram.mean_ms(), seen.histogram.range_ms().1);
        let more = vec![seen.sockets.to_string(), format!("{mean:.3}"), format!("{slowest:.0}")];
        shown.add("rollout", &title, seen, more);
    }
    let plan = results.rollout_plan;
    shown.text(&format!(
        "{} requests/s over {} kept connections while 6 pods are replaced over and over.",
        plan.qps, plan.connections
    ))
}

/// Case `retry`.
pub(super) fn retry(results: &Results) -> String {
    let mut shown = Shown::with_head("RETRY", &["executed", "executed twice", "control run"]);
    for (mode, seen) in &results.retry {
        let control = seen
            .control
            .seen()
            .map_or_else(|| "-".to_owned(), |control| format!("{} of {} twice", control.twice.len(), control.orders));
        let more = vec![seen.executed.orders.to_string(), seen.executed.twice.len().to_string(), control];
        shown.add("retry", mode.title(), &seen.churn, more);
        if !seen.executed.twice.is_empty() {
            let names: Vec<&str> = seen.executed.twice.keys().map(String::as_str).collect();
            let (title, names) = (mode.title(), names.join(", "));
            writeln!(shown.failures, "FAILED: retry {title}: executed more than once: {names}").unwrap_or_default();
        }
    }
    shown.text(&format!(
        "{} orders/s, each on a connection of its own, with retries (3, 503,reset,connect-failure) while 6 pods are replaced over and over.",
        results.retry_plan.qps
    ))
}
