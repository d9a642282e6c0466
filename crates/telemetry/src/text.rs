//! Metric text in the two forms Prometheus asks for, chosen by the request's Accept header.
//!
//! The library writes OpenMetrics. The older Prometheus text differs in what it says *about* a metric:
//! a counter is described under its full name with `_total`, and there is neither a unit nor an end
//! mark. Samples are the same in both.

use std::fmt::{self, Write as _};

use prometheus_client::registry::Registry;

/// A form of metric text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

/// The Content-Type of a form.
#[must_use]
pub fn content_type(format: Format) -> &'static str {
    match format {
        Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
    }
}

impl Format {
    /// The form an Accept header asks for: OpenMetrics where it is named and preferred at least as much
    /// as plain text, Prometheus text otherwise.
    #[must_use]
    pub fn from_accept(accept: Option<&str>) -> Self {
        let quality = |wanted: &str| {
            accept
                .unwrap_or_default()
                .split(',')
                .filter_map(|range| {
                    let mut parts = range.split(';').map(str::trim);
                    let media = parts.next()?;
                    let named = media.eq_ignore_ascii_case(wanted);
                    let quality = parts
                        .find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok())
                        .unwrap_or(1.0);
                    named.then_some(quality)
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

/// The registry's metrics as text.
///
/// # Errors
/// When a collector fails to write.
pub fn encode(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    match format {
        Format::OpenMetrics => Ok(text),
        Format::Prometheus => to_prometheus(&text),
    }
}

/// OpenMetrics text as Prometheus text.
fn to_prometheus(open: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(open.len());
    // HELP comes before TYPE, so it waits until the type, and with it the name, is known.
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
    fn accept_headers() {
        let scraper = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, want) in [
            (None, Format::Prometheus),
            (Some("*/*"), Format::Prometheus),
            (Some("text/plain"), Format::Prometheus),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (Some(scraper), Format::OpenMetrics),
            (
                Some("application/openmetrics-text;q=0.1, text/plain"),
                Format::Prometheus,
            ),
            (Some("application/openmetrics-text;q=0"), Format::Prometheus),
            (Some(";;;,,q=,"), Format::Prometheus),
        ] {
            assert_eq!(Format::from_accept(accept), want, "{accept:?}");
        }
    }

    #[test]
    fn both_forms() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        counter.inc();
        registry.register("a", "Things", counter);
        registry.register("b", "Level", Gauge::<i64>::default());
        let open = "# HELP a Things.\n# TYPE a counter\na_total 1\n# HELP b Level.\n# TYPE b gauge\nb 0\n# EOF\n";
        assert_eq!(encode(&registry, Format::OpenMetrics).unwrap(), open);
        let plain = "# HELP a_total Things.\n# TYPE a_total counter\na_total 1\n# HELP b Level.\n# TYPE b gauge\nb 0\n";
        assert_eq!(encode(&registry, Format::Prometheus).unwrap(), plain);
    }
}
