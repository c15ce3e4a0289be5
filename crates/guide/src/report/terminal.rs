//! The tables on the terminal.

use super::Results;
use crate::cases::rollout::Variant;
use crate::delivery::Delivery;
use crate::stage::Mode;
use crate::verdict::{Netpol, Reach, overhead, stands_out};
use std::fmt::Write;
use trysail_lab::output::table;

/// The whole report.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    let yes_no = |value: bool, yes: &str, no: &str| if value { yes } else { no }.to_owned();
    let mut rows = vec![
        ["MUTUAL TLS", "plaintext from outside", "in the mesh", "payload on the wire", "caller proven as", "one root"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (mode, m) in &results.mtls {
        rows.push(vec![
            mode.title().to_owned(),
            yes_no(m.plaintext_blocked, "blocked", "answered"),
            m.in_mesh_code.to_string(),
            yes_no(m.marker_on_wire, "readable", "not readable"),
            m.client_id.clone().unwrap_or_else(|| "-".to_owned()),
            m.same_root.map_or_else(|| "-".to_owned(), |same| yes_no(same, "yes", "no")),
        ]);
    }
    if !results.mtls.is_empty() {
        writeln!(out, "{}", table(&rows)).unwrap_or_default();
    }
    if !results.netpol.is_empty() {
        writeln!(out, "{}", netpol(results)).unwrap_or_default();
    }
    let mut rows = vec![
        ["LATENCY (ms)", "P50", "P75", "P90", "P99", "P99.9", "over no mesh", "P50 of rounds", "answers"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (mode, l) in &results.latency {
        let p = |percentile| format!("{:.3}", l.histogram.percentile_ms(percentile));
        let over = match results.baseline() {
            Some(baseline) if *mode != Mode::None => {
                let note = if stands_out(baseline, l) { "" } else { " (within the spread)" };
                format!("{:+.3}{note}", overhead(baseline, l))
            }
            _ => "-".to_owned(),
        };
        let (low, high) = l.spread();
        let codes: Vec<String> = l.codes.iter().map(|(c, n)| format!("{n}x{c}")).collect();
        rows.push(vec![
            mode.title().to_owned(),
            p(50.0),
            p(75.0),
            p(90.0),
            p(99.0),
            p(99.9),
            over,
            format!("{low:.3}..{high:.3}"),
            codes.join(" "),
        ]);
    }
    if !results.latency.is_empty() {
        let plan = results.plan;
        writeln!(
            out,
            "{}  {} requests/s over {} connections, open loop, {} rounds of {} s a mode, in turn.\n",
            table(&rows),
            plan.qps,
            plan.connections,
            plan.rounds,
            plan.seconds
        )
        .unwrap_or_default();
    }
    if !results.canary.is_empty() {
        writeln!(out, "{}", canary(results)).unwrap_or_default();
    }
    if !results.rollout.is_empty() {
        writeln!(out, "{}", rollout(results)).unwrap_or_default();
    }
    let (profile, seconds) = (results.profile, results.seconds);
    writeln!(out, "Profile {profile}; two nodes on this machine; {seconds:.0} s in all.").unwrap_or_default();
    for (case, why) in &results.unmeasured {
        writeln!(out, "NOT MEASURED: {case}: {why}").unwrap_or_default();
    }
    for line in &results.wrong {
        writeln!(out, "NOT AS IT MUST BE: {line}").unwrap_or_default();
    }
    out
}

fn netpol(results: &Results) -> String {
    let head = ["NETWORKPOLICY", "8080 only", "8080 + 15008", "9090 then", "on running pods", "rules work as they are"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut add = |title: String, n: &Netpol| {
        rows.push(vec![
            title,
            n.app_port_only.as_str().to_owned(),
            n.with_15008.as_str().to_owned(),
            n.other_port_after_15008.as_str().to_owned(),
            if n.retroactive == Reach::Blocked { "enforced" } else { "not enforced" }.to_owned(),
            if n.works_as_is() { "yes" } else { "no" }.to_owned(),
        ]);
    };
    results.netpol.iter().for_each(|(mode, n)| add(mode.title().to_owned(), n));
    results.netpol_istio.iter().for_each(|(mode, n)| add(format!("{}, as with Istio", mode.title()), n));
    table(&rows)
}

fn canary(results: &Results) -> String {
    let mut rows = vec![
        ["CANARY (weights 90:10)", "new version wanted", "observed", "by chance", "weights", "answers"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (path, c) in &results.canary {
        rows.push(vec![
            path.title.to_owned(),
            format!("{:.1} %", c.wanted * 100.0),
            format!("{:.1} %", c.observed() * 100.0),
            format!("±{:.1} %", c.margin() * 100.0),
            if c.followed() { "followed" } else { "no effect" }.to_owned(),
            c.requests.to_string(),
        ]);
    }
    table(&rows)
}

/// Columns of a time line.
const COLUMNS: usize = 60;
/// Kinds of failures that are shown of one row; the report has all.
const KINDS: usize = 3;

fn rollout(results: &Results) -> String {
    let plan = results.rollout_plan;
    let head = [
        "ROLLOUT",
        "cycles",
        "sent",
        "failed",
        "",
        "spread",
        "never delivered",
        "delivered",
        "unknown",
        "sockets",
        "mean ms",
        "slowest ms",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let (mut lines, mut failed) = (String::new(), String::new());
    for (mode, variant, seen) in &results.rollout {
        let title = match variant {
            Variant::Baseline => mode.title().to_owned(),
            Variant::Hardened => format!("{}, hardened", mode.title()),
        };
        let (low, high) = seen.spread();
        rows.push(vec![
            title.clone(),
            seen.completed().to_string(),
            seen.sent().to_string(),
            seen.failed().to_string(),
            format!("{:.2} %", seen.failed_percent()),
            format!("{low:.0}..{high:.0}"),
            seen.of(Delivery::Never).to_string(),
            seen.of(Delivery::Delivered).to_string(),
            seen.of(Delivery::Unknown).to_string(),
            seen.sockets.to_string(),
            format!("{:.3}", seen.histogram.mean_ms()),
            format!("{:.0}", seen.histogram.range_ms().1),
        ]);
        let columns = seen.time_line(COLUMNS);
        let line: String = columns.iter().map(|(second, _)| mark(second.failed)).collect();
        let restarts: String = columns.iter().map(|(_, restarted)| if *restarted { '^' } else { ' ' }).collect();
        writeln!(lines, "  {title:20} {line}\n  {:20} {}", "", restarts.trim_end()).unwrap_or_default();
        if seen.failed() > 0 {
            writeln!(failed, "FAILED: rollout {title}: {} of {} requests", seen.failed(), seen.sent())
                .unwrap_or_default();
        }
        for (kind, count) in seen.kinds().into_iter().take(KINDS) {
            let code = if kind.code < 0 { "no answer".to_owned() } else { kind.code.to_string() };
            let why = if kind.why.is_empty() { "no reason is logged" } else { &kind.why };
            writeln!(failed, "  {count} x {code}, {}: {why}", kind.delivery.as_str()).unwrap_or_default();
        }
    }
    format!(
        "{}  {} requests/s over {} kept connections while 6 pods are replaced over and over; a failure is a request without a 200.\n\n\
         Time line (. all answered, 1 to 9 and + failures, ^ a restart)\n{lines}{failed}",
        table(&rows),
        plan.qps,
        plan.connections
    )
}

/// So many failures, in one character.
fn mark(failed: u64) -> char {
    match failed {
        0 => '.',
        1..=9 => char::from(b'0' + u8::try_from(failed).unwrap_or(0)),
        _ => '+',
    }
}
