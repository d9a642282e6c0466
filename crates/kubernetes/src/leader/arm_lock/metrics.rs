//! The metrics of the ARM lock: waits for it, and errors of the watch of its Lease.

use std::time::Duration;

use headgate_core::telemetry::MetricTable;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::WatchErrorCounter;

/// The lock and the caller.
type Labels = [(&'static str, String); 2];

/// The buckets of cloud-provider-azure's metric of this name.
fn wait_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

/// The metrics of the ARM lock. Clones share the counts.
#[derive(Clone, Debug)]
pub struct LockMetrics {
    waits: Family<Labels, Histogram, fn() -> Histogram>,
    watch_errors: WatchErrorCounter,
}

impl LockMetrics {
    /// Registers the histogram of waits and the counter of watch errors.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        Self {
            waits: table.described(
                "cloudprovider_azure_lock_wait_duration_seconds",
                "Seconds that a caller waited for a lock, whether it acquired the lock or not, by lock and caller",
                Family::new_with_constructor(wait_histogram),
            ),
            watch_errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_arm_lock_watch_errors",
                "Errors of the watch of the Lease shared with cloud-controller-manager, by reason",
            ),
        }
    }

    pub(super) fn watch_errors(&self) -> WatchErrorCounter {
        self.watch_errors.clone()
    }

    pub(super) fn waited(&self, lock: &str, caller: &'static str, wait: Duration) {
        let labels = [("lock", lock.to_owned()), ("caller", caller.to_owned())];
        self.waits.get_or_create(&labels).observe(wait.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_series_are_those_of_cloud_provider_azure() {
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
        headgate_test_kubernetes::assert_contains!(text, format!("{name}_count{{lock=\"l\",caller=\"c\"}} 1\n"));
    }
}
