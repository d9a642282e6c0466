//! Metrics of a test.

use std::str::FromStr;

use headgate_core::telemetry::{MetricsFormat, encode_metrics};
use prometheus_client::registry::Registry;

/// The value of a series, such as `name_total{label="value"}`. Panics if the registry has none.
pub fn series_value<T: FromStr>(registry: &Registry, series: &str) -> T {
    let text = encode_metrics(registry, MetricsFormat::OpenMetrics).unwrap();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {text}"))
}
