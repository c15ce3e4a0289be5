use super::*;
use crate::delivery::Fate;

fn failure(at_s: f64, delivery: Delivery) -> Fate {
    let id = format!("r-{at_s}");
    Fate { id, at_s, took_ms: 1.0, code: -1, error: None, delivery, reasons: Vec::new() }
}

/// A run of ten seconds with a restart in seconds 1, 4 and 7, the last one given up.
fn run(failures: &[(f64, Delivery)]) -> Churn {
    let fates: Vec<Fate> = failures.iter().map(|(at, delivery)| failure(*at, *delivery)).collect();
    let failed = fates.len() as u64;
    let mut seconds = vec![Second { sent: 100, failed: 0, slowest_ms: 2.0 }; 10];
    for fate in &fates {
        seconds[fate.at_s as usize].failed += 1;
    }
    Churn {
        cycles: [(1.2, Some(4.0)), (4.1, Some(7.4)), (7.5, None)].map(|(at_s, done_s)| Cycle { at_s, done_s }).to_vec(),
        codes: BTreeMap::from([(200, 1000 - failed), (-1, failed)]),
        seconds,
        evidence: Evidence { received: 1000, fates, doubled: Vec::new() },
        ..Churn::default()
    }
}

#[test]
fn failures_are_counted_by_what_became_of_them_and_by_cycle() {
    let mut seen =
        run(&[(1.5, Delivery::Never), (1.6, Delivery::Never), (4.2, Delivery::Delivered), (9.9, Delivery::Never)]);
    seen.unnamed = 2;
    assert_eq!((seen.sent(), seen.failed(), seen.transport_errors(), seen.completed()), (1000, 4, 4, 2));
    assert_eq!(seen.failed_percent(), 0.4);
    let by = [Delivery::Never, Delivery::Delivered, Delivery::Unknown].map(|d| seen.of(d));
    assert_eq!(by, [3, 1, 2]);
    assert_eq!(seen.failed_by_cycle(), [2, 1, 1]);
}

#[test]
fn a_spread_is_as_wide_as_the_cycles_differ_and_never_narrower_than_chance() {
    assert_eq!(run(&[]).spread(), (0.0, 3.0));
    let even = run(&[(1.5, Delivery::Never), (4.5, Delivery::Never), (8.0, Delivery::Never)]);
    let (low, high) = even.spread();
    assert!(low == 0.0 && (high - (3.0 + 2.0 * 3f64.sqrt())).abs() < 1e-9, "{low} {high}");
    let all_at_once: Vec<_> = (0..12).map(|n| (1.3 + f64::from(n) / 100.0, Delivery::Never)).collect();
    // By cycle 12, 0, 0: the variance of the sum is 3 · 48.
    let (low, high) = run(&all_at_once).spread();
    assert!(low == 0.0 && (high - 36.0).abs() < 1e-9, "{low} {high}");
}

#[test]
fn a_time_line_has_no_more_columns_than_asked_for_and_loses_nothing() {
    let seen = run(&[(1.5, Delivery::Never), (9.9, Delivery::Never)]);
    let full = seen.time_line(60);
    assert_eq!(full.len(), 10);
    assert_eq!(full.iter().map(|(_, r)| u8::from(*r)).collect::<Vec<_>>(), [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]);
    let short = seen.time_line(4);
    assert_eq!(short.iter().map(|(s, _)| s.failed).collect::<Vec<_>>(), [1, 0, 0, 1]);
    assert_eq!(short.iter().map(|(_, r)| u8::from(*r)).collect::<Vec<_>>(), [1, 1, 1, 0]);
    assert_eq!(short.iter().map(|(s, _)| s.sent).sum::<u64>(), 1000);
    assert!(Churn::default().time_line(60).is_empty());
}

#[test]
fn a_run_without_restarts_requests_or_logs_is_no_measurement() {
    assert!(unmeasured(&run(&[(1.5, Delivery::Delivered)])).is_empty());
    let mut still = run(&[]);
    still.cycles.iter_mut().for_each(|c| c.done_s = None);
    assert_eq!(unmeasured(&still).len(), 1);
    assert_eq!(unmeasured(&Churn::default()).len(), 2);
    let mut blind = run(&[]);
    blind.evidence.received = 999;
    assert_eq!(unmeasured(&blind).len(), 1);
}
