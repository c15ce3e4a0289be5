//! When to renew: a pure schedule.

use std::time::Duration;

/// The first pause after a failed issue.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// The longest pause after failed issues.
const BACKOFF_MOST: Duration = Duration::from_secs(15);

/// How long after its start a certificate is renewed: half its life, up to a tenth earlier. `jitter` is uniform in 0..1.
pub fn renewal(lifetime: Duration, jitter: f64) -> Duration {
    lifetime.mul_f64(0.5 - 0.1 * jitter.clamp(0.0, 1.0))
}

/// The pause after `failures` failed issues in a row: doubled each time, jittered to between half and all of it.
pub fn backoff(failures: u32, jitter: f64) -> Duration {
    let full = BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MOST);
    full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_near_half_life_and_backoff_is_bounded() {
        let life = Duration::from_secs(100);
        assert_eq!((renewal(life, 0.0), renewal(life, 1.0)), (Duration::from_secs(50), Duration::from_secs(40)));
        assert_eq!(backoff(0, 1.0), BACKOFF_FIRST);
        assert!((0..40).all(|n| backoff(n, 1.0) <= BACKOFF_MOST && backoff(n, 0.0) >= BACKOFF_FIRST / 2));
    }
}
