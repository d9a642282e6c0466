//! Metrics that keep the names others gave them.
//!
//! The library appends `_total` to every counter. A name that somebody else's dashboards know without it is a
//! [`Tally`]: the same number, described as of unknown type, since OpenMetrics knows no counter without the suffix
//! and linters accept none. And the library leaves out a family without series, so that nobody would learn of it before
//! it counts: [`Announced`] describes it from the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A counter whose name has no suffix. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicI64>);

impl Tally {
    /// One more.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many so far.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TypedMetric for Tally {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for Tally {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // As a gauge is written: the name as it is, and the number.
        encoder.encode_gauge(&self.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// A family that is described before it has a series.
#[derive(Clone, Debug)]
pub struct Announced<F>(pub F);

impl<F: EncodeMetric> EncodeMetric for Announced<F> {
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
    use crate::{Format, encode};

    #[test]
    fn a_name_stays_as_it_is_and_is_there_from_the_start() {
        let mut registry = Registry::default();
        let family = Family::<[(&str, &str); 1], Tally>::default();
        registry.register("a_count", "Things", Announced(family.clone()));
        let described = "# HELP a_count Things.\n# TYPE a_count unknown\n";
        let open = |registry| encode(registry, Format::OpenMetrics).unwrap();
        assert_eq!(open(&registry), format!("{described}# EOF\n"));
        family.get_or_create(&[("of", "x")]).inc();
        family.get_or_create(&[("of", "x")]).inc();
        assert_eq!(open(&registry), format!("{described}a_count{{of=\"x\"}} 2\n# EOF\n"));
        assert_eq!(
            encode(&registry, Format::Prometheus).unwrap(),
            "# HELP a_count Things.\n# TYPE a_count untyped\na_count{of=\"x\"} 2\n"
        );
    }
}
