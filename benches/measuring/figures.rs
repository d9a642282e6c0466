//! Statistics: medians over rounds, percentiles over trials.

use std::time::Duration;

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "what is counted here stays far below 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Milliseconds, with fractions.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Bytes as MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    float(bytes) / 1024.0 / 1024.0
}

/// The median, the upper one of an even number of values; zero without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Fewer samples have no 99th percentile: it would be the largest or the second.
const SAMPLES_OF_P99: usize = 300;

/// A quantile as a per mille value with its name, such as `p50`; in the place of a 99th percentile of too few samples the largest,
/// `max of 25`.
pub(crate) fn quantile(values: &[Duration], per_mille: usize) -> (String, Duration) {
    if per_mille > 500 && values.len() < SAMPLES_OF_P99 {
        return (format!("max of {}", values.len()), percentile(values, 1000));
    }
    (format!("p{}", per_mille / 10), percentile(values, per_mille))
}

/// The percentile as a per mille value, by nearest rank; zero without values.
pub(crate) fn percentile(values: &[Duration], per_mille: usize) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Rounded to its significant digits.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
