//! Two metric types that prometheus-client does not have.
//!
//! - The library appends `_total` to the name of every counter. An [`UnsuffixedCounter`] keeps a name that dashboards
//!   know without the suffix. Its type is `unknown`, because OpenMetrics has no counter without the suffix and
//!   linters reject one.
//! - The library omits a family without series. A [`DescribedFamily`] is described from the start, before it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A counter without the suffix `_total`. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct UnsuffixedCounter(Arc<AtomicI64>);

impl UnsuffixedCounter {
    /// Adds one to the count.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TypedMetric for UnsuffixedCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for UnsuffixedCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // The encoding of a gauge is the name without a suffix, and the number.
        encoder.encode_gauge(&self.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// A family whose name, help and type are part of the metrics before it has a series.
#[derive(Clone, Debug)]
pub struct DescribedFamily<F>(pub F);

impl<F: EncodeMetric> EncodeMetric for DescribedFamily<F> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::family::Family;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::telemetry::{MetricsFormat, encode_metrics};

    #[test]
    fn name_is_unchanged_and_described_from_the_start() {
        let mut registry = Registry::default();
        let family = Family::<[(&str, &str); 1], UnsuffixedCounter>::default();
        registry.register("a_count", "Things", DescribedFamily(family.clone()));
        let described = "# HELP a_count Things.\n# TYPE a_count unknown\n";
        let open = |registry| encode_metrics(registry, MetricsFormat::OpenMetrics).unwrap();
        assert_eq!(open(&registry), format!("{described}# EOF\n"));
        family.get_or_create(&[("of", "x")]).inc();
        family.get_or_create(&[("of", "x")]).inc();
        assert_eq!(open(&registry), format!("{described}a_count{{of=\"x\"}} 2\n# EOF\n"));
        let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
        assert_eq!(
            text,
            "# HELP a_count Things.\n# TYPE a_count untyped\na_count{of=\"x\"} 2\n"
        );
    }
}
