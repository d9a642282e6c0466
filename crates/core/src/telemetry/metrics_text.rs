//! Metrics text in the two formats that Prometheus accepts, selected by the request's `Accept` header.
//!
//! The library writes OpenMetrics. The older Prometheus text has other metadata: a counter is described under its
//! full name with `_total`, and there are no units and no end mark. The samples are the same.

use std::fmt::{self, Write as _};

use prometheus_client::registry::Registry;

/// A format of metrics text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The OpenMetrics text format, version 1.0.
    OpenMetrics,
    /// The Prometheus text format, version 0.0.4.
    Prometheus,
}

impl MetricsFormat {
    /// The value of the `Content-Type` header for this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format for an `Accept` header: OpenMetrics if its quality is at least that of plain text, Prometheus text
    /// otherwise.
    pub fn from_accept(accept: Option<&str>) -> Self {
        let quality = |wanted: &str| {
            accept
                .unwrap_or_default()
                .split(',')
                .filter_map(|range| {
                    let mut parts = range.split(';').map(str::trim);
                    let media = parts.next()?;
                    let is_wanted = media.eq_ignore_ascii_case(wanted);
                    let quality = parts
                        .find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok())
                        .unwrap_or(1.0);
                    is_wanted.then_some(quality)
                })
                .fold(0.0, f32::max)
        };
        let open = quality("application/openmetrics-text");
        if open > 0.0 && open >= quality("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }
}

/// The metrics of `registry` as text.
///
/// # Errors
/// When a collector fails to write.
pub fn encode_metrics(registry: &Registry, format: MetricsFormat) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    match format {
        MetricsFormat::OpenMetrics => Ok(text),
        MetricsFormat::Prometheus => to_prometheus(&text),
    }
}

/// Converts OpenMetrics text to Prometheus text.
fn to_prometheus(open: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(open.len());
    // HELP precedes TYPE, and the type decides the name in HELP.
    let mut help: Option<(&str, &str)> = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').or(Some((rest, "")));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                writeln!(text, "# HELP {name}{suffix} {help}")?;
            }
            writeln!(text, "# TYPE {name}{suffix} {kind}")?;
        } else if !line.starts_with('#') {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn accept_header_selects_the_format() {
        let scraper = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let less_wanted = "application/openmetrics-text;q=0.1, text/plain";
        for (accept, want) in [
            (None, MetricsFormat::Prometheus),
            (Some("*/*"), MetricsFormat::Prometheus),
            (Some("text/plain"), MetricsFormat::Prometheus),
            (Some("application/openmetrics-text"), MetricsFormat::OpenMetrics),
            (Some(scraper), MetricsFormat::OpenMetrics),
            (Some(less_wanted), MetricsFormat::Prometheus),
            (Some("application/openmetrics-text;q=0"), MetricsFormat::Prometheus),
            (Some(";;;,,q=,"), MetricsFormat::Prometheus),
        ] {
            assert_eq!(MetricsFormat::from_accept(accept), want, "{accept:?}");
        }
    }

    #[test]
    fn metrics_in_both_formats() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        counter.inc();
        registry.register("a", "Things", counter);
        registry.register("b", "Level", Gauge::<i64>::default());
        let open = "# HELP a Things.\n# TYPE a counter\na_total 1\n# HELP b Level.\n# TYPE b gauge\nb 0\n# EOF\n";
        assert_eq!(encode_metrics(&registry, MetricsFormat::OpenMetrics).unwrap(), open);
        let plain = "# HELP a_total Things.\n# TYPE a_total counter\na_total 1\n# HELP b Level.\n# TYPE b gauge\nb 0\n";
        assert_eq!(encode_metrics(&registry, MetricsFormat::Prometheus).unwrap(), plain);
    }
}
