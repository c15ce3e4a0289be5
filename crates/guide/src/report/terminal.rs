//! The tables on the terminal.

mod churn;

use super::Results;
use crate::stage::Mode;
use crate::verdict::{Netpol, Reach, overhead, stands_out};
use std::fmt::Write;
use trysail_lab::output::table;

/// The tables of a case.
struct Section {
    /// Nothing was measured.
    empty: bool,
    text: fn(&Results) -> String,
}

/// The whole report.
pub fn text(results: &Results) -> String {
    let sections = [
        Section { empty: results.mtls.is_empty(), text: mtls },
        Section { empty: results.netpol.is_empty(), text: netpol },
        Section { empty: results.latency.is_empty(), text: latency },
        Section { empty: results.canary.is_empty(), text: canary },
        Section { empty: results.rollout.is_empty(), text: churn::rollout },
        Section { empty: results.retry.is_empty(), text: churn::retry },
    ];
    let mut out = String::new();
    for section in sections.iter().filter(|section| !section.empty) {
        writeln!(out, "{}", (section.text)(results)).unwrap_or_default();
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

fn mtls(results: &Results) -> String {
    let yes_no = |value: bool, yes: &str, no: &str| if value { yes } else { no }.to_owned();
    let head =
        ["MUTUAL TLS", "plaintext from outside", "in the mesh", "payload on the wire", "caller proven as", "one root"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
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
    table(&rows)
}

fn latency(results: &Results) -> String {
    let head = ["LATENCY (ms)", "P50", "P75", "P90", "P99", "P99.9", "over no mesh", "P50 of rounds", "answers"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
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
    let plan = results.plan;
    format!(
        "{}  {} requests/s over {} connections, open loop, {} rounds of {} s a mode, in turn.\n",
        table(&rows),
        plan.qps,
        plan.connections,
        plan.rounds,
        plan.seconds
    )
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
