//! Declares the metrics of a crate: one call names a metric, registers it, creates its series and returns it.
//!
//! Invariant: a family with known label values has a series for each of them from the start. A table without a registry
//! declares the same metrics, and nothing shows them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::telemetry::DescribedFamily;

/// Where metrics are declared.
#[derive(Debug)]
pub struct MetricTable<'a>(Option<&'a mut Registry>);

impl MetricTable<'_> {
    /// A table whose metrics nothing shows.
    pub fn unregistered() -> Self {
        Self(None)
    }

    /// A counter, a gauge, or a family of them whose series appear with their first value. A counter's name is without the
    /// suffix `_total`.
    pub fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    /// A family whose name and help are shown before it has a series.
    pub fn described<F>(&mut self, name: &str, help: &str, family: F) -> F
    where
        F: Clone,
        DescribedFamily<F>: Metric,
    {
        if let Some(registry) = &mut self.0 {
            registry.register(name, help, DescribedFamily(family.clone()));
        }
        family
    }

    /// A histogram with these upper bounds.
    pub fn histogram(&mut self, name: &str, help: &str, buckets: impl IntoIterator<Item = f64>) -> Histogram {
        self.add(name, help, Histogram::new(buckets))
    }

    /// Counters or gauges, one for each of the values of `label`.
    pub fn by_label<M>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> ByLabel<M>
    where
        M: Clone + Default,
        Family<Labels, M>: Metric,
    {
        self.by_label_with(name, help, label, values, M::default)
    }

    /// The same for metrics that `new` makes, such as histograms.
    pub fn by_label_with<M>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        new: fn() -> M,
    ) -> ByLabel<M>
    where
        M: Clone,
        Family<Labels, M>: Metric,
    {
        let family = self.add(name, help, Family::new_with_constructor(new));
        let by_label = ByLabel { label, family };
        for value in values {
            drop(by_label.of(value));
        }
        by_label
    }

    /// Gauges that `write` computes at each scrape.
    pub fn at_scrape(&mut self, write: impl Fn(&mut Gauges<'_>) -> fmt::Result + Send + Sync + 'static) {
        if let Some(registry) = &mut self.0 {
            registry.register_collector(Box::new(AtScrape(write)));
        }
    }

    /// A metric that exists, under a name.
    pub fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        if let Some(registry) = &mut self.0 {
            registry.register(name, help, metric.clone());
        }
        metric
    }
}

impl<'a> From<&'a mut Registry> for MetricTable<'a> {
    fn from(registry: &'a mut Registry) -> Self {
        Self(Some(registry))
    }
}

struct AtScrape<F>(F);

impl<F> fmt::Debug for AtScrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtScrape")
    }
}

impl<F: Fn(&mut Gauges<'_>) -> fmt::Result + Send + Sync + 'static> Collector for AtScrape<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0(&mut Gauges::from(encoder))
    }
}

/// The gauges of one scrape.
#[derive(Debug)]
pub struct Gauges<'a>(DescriptorEncoder<'a>);

impl<'a> From<DescriptorEncoder<'a>> for Gauges<'a> {
    fn from(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }
}

impl Gauges<'_> {
    /// A gauge without labels.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        let gauge = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(gauge)
    }

    /// Gauges, each with its value of `label`. They are described without a series, too.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn by_label<'v, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &'v str,
        values: impl IntoIterator<Item = (&'v str, V)>,
    ) -> fmt::Result {
        let series = values.into_iter().map(|(word, value)| ([(label, word)], value));
        self.by_labels(name, help, series)
    }

    /// The same, each with its values of several labels.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn by_labels<'v, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = ([(&'v str, &'v str); N], V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

type Labels = [(&'static str, &'static str); 1];

/// The metrics of a family with one label. Clones share them.
#[derive(Clone, Debug)]
pub struct ByLabel<M> {
    label: &'static str,
    family: Family<Labels, M>,
}

impl<M: Clone> ByLabel<M> {
    /// The metric with this value of the label.
    pub fn of(&self, value: &'static str) -> M {
        self.family.get_or_create_owned(&[(self.label, value)])
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::telemetry::{MetricsFormat, encode_metrics};

    #[test]
    fn known_series_exist_from_the_start() {
        let mut registry = Registry::default();
        for mut table in [MetricTable::from(&mut registry), MetricTable::unregistered()] {
            let ends: ByLabel<Counter> = table.by_label("ends", "Ends", "by", ["a", "b"]);
            ends.of("b").inc();
            let gauge: Gauge = table.metric("open", "Open ones");
            gauge.set(3);
            table.histogram("took_seconds", "Took", [1.0]).observe(0.5);
        }
        let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
        for line in [
            "ends_total{by=\"a\"} 0",
            "ends_total{by=\"b\"} 1",
            "open 3",
            "took_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
    }
}
