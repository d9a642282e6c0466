//! How long entrants waited for the shared Lease.

use std::time::Duration;

use headgate_telemetry::Announced;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    lock: String,
    caller: &'static str,
}

fn waits() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

/// The waits for locks.
#[derive(Clone, Debug)]
pub struct LockMetrics {
    waits: Family<Labels, Histogram, fn() -> Histogram>,
}

impl LockMetrics {
    /// Registers the histogram.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let waits = Family::new_with_constructor(waits as fn() -> Histogram);
        registry.register(
            "cloudprovider_azure_lock_wait_duration_seconds",
            "Time spent waiting for a lock, whether it was had in the end or not, by lock and by who waited",
            Announced(waits.clone()),
        );
        Self { waits }
    }

    pub(super) fn waited(&self, lock: &str, caller: &'static str, wait: Duration) {
        let lock = lock.to_owned();
        self.waits
            .get_or_create(&Labels { lock, caller })
            .observe(wait.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_are_those_of_the_cloud_provider() {
        let mut registry = Registry::default();
        let metrics = LockMetrics::register(&mut registry);
        metrics.waited("l", "c", Duration::from_millis(3));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let name = "cloudprovider_azure_lock_wait_duration_seconds";
        assert!(text.contains(&format!("# TYPE {name} histogram\n")), "{text}");
        let bounds: Vec<f64> = text
            .lines()
            .filter_map(|line| {
                let bound = line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?;
                bound.split_once('"')?.0.parse().ok()
            })
            .filter(|bound: &f64| bound.is_finite())
            .collect();
        let expected: Vec<f64> = (0..14).map(|k| 0.001 * 2_f64.powi(k)).collect();
        assert_eq!(bounds, expected);
        assert!(
            text.contains(&format!("{name}_count{{lock=\"l\",caller=\"c\"}} 1\n")),
            "{text}"
        );
    }
}
