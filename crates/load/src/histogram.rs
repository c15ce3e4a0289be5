//! Latencies: a mergeable histogram with three significant digits, in nanoseconds.

use base64::Engine;
use hdrhistogram::Histogram as Hdr;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use std::time::Duration;

/// The longest latency that is told apart.
const LONGEST: u64 = 3_600_000_000_000;

/// A histogram.
#[derive(Clone)]
pub struct Histogram(Hdr<u64>);

/// A histogram that cannot be read back.
#[derive(Debug, thiserror::Error)]
#[error("the histogram cannot be read: {0}")]
pub struct DecodeError(String);

impl Default for Histogram {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "constant arguments, which the tests of this module try")]
        Self(Hdr::new_with_bounds(1, LONGEST, 3).expect("three digits up to an hour is a valid configuration"))
    }
}

impl Histogram {
    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LONGEST).max(1));
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        // Both have the bounds of `default`, or of a histogram that this program encoded: adding cannot fail.
        self.0.add(&other.0).unwrap_or_default();
    }

    /// How many latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// A percentile (0 to 100), milliseconds.
    pub fn percentile_ms(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e6
    }

    /// The mean, milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.0.mean() / 1e6
    }

    /// The extremes, milliseconds.
    pub fn range_ms(&self) -> (f64, f64) {
        (self.0.min() as f64 / 1e6, self.0.max() as f64 / 1e6)
    }

    /// HdrHistogram's V2 encoding in base64.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        match V2Serializer::new().serialize(&self.0, &mut bytes) {
            Ok(_) => base64::engine::general_purpose::STANDARD.encode(bytes),
            Err(_) => String::new(),
        }
    }

    /// Reads [`Histogram::encode`]'s text.
    pub fn decode(text: &str) -> Result<Self, DecodeError> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|e| DecodeError(e.to_string()))?;
        let inner =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| DecodeError(format!("{e:?}")))?;
        Ok(Self(inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_histograms_have_the_percentiles_of_all_their_values() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        (1..=50).for_each(|ms| a.record(Duration::from_millis(ms)));
        (51..=100).for_each(|ms| b.record(Duration::from_millis(ms)));
        a.merge(&Histogram::decode(&b.encode()).unwrap());
        assert_eq!(a.count(), 100);
        assert!((a.percentile_ms(50.0) - 50.0).abs() < 0.1 && (a.percentile_ms(99.0) - 99.0).abs() < 0.1);
        assert!(Histogram::decode("nonsense").is_err());
    }
}
