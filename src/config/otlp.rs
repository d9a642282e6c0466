//! The endpoint that spans are exported to, from OpenTelemetry's environment variables. Pure.

use headgate_core::settings::EnvironmentLookup;
use hyper::Uri;

/// The path for spans below the base address of a collector.
const TRACES_PATH: &str = "/v1/traces";

/// The URL that spans are exported to.
///
/// # Errors
/// The name of a variable whose value is not a URL.
pub fn otlp_traces_url(environment: &EnvironmentLookup<'_>) -> Result<Option<String>, &'static str> {
    for (name, path) in [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", TRACES_PATH),
    ] {
        if let Some(text) = environment(name).filter(|text| !text.is_empty()) {
            let base = parse_collector(&text).ok_or(name)?;
            return Ok(Some(format!("{base}{path}")));
        }
    }
    Ok(None)
}

/// An http or https URL without query, user and trailing slash.
fn parse_collector(text: &str) -> Option<String> {
    let uri: Uri = text.trim().parse().ok()?;
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    (scheme && host && uri.query().is_none()).then(|| text.trim().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_for_traces_wins_over_that_for_all() {
        let at = |traces: &str, all: &str| {
            otlp_traces_url(&|name| match name {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" => Some(traces.to_owned()),
                "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(all.to_owned()),
                _ => None,
            })
        };
        let to = |url: &str| Ok(Some(url.to_owned()));
        assert_eq!(at("", ""), Ok(None));
        assert_eq!(at("http://b/x", "http://c"), to("http://b/x"));
        assert_eq!(at("", "https://c:4318/"), to("https://c:4318/v1/traces"));
        assert_eq!(at("", "c:4318"), Err("OTEL_EXPORTER_OTLP_ENDPOINT"));
    }

    #[test]
    fn endpoint_addresses() {
        for (text, good) in [
            ("http://127.0.0.1:4318", true),
            ("https://collector.monitoring.svc:4318/base/", true),
            ("127.0.0.1:4318", false),
            ("grpc://127.0.0.1:4317", false),
            ("http://me@127.0.0.1", false),
            ("http://127.0.0.1?x", false),
            ("", false),
        ] {
            assert_eq!(parse_collector(text).is_some(), good, "{text}");
        }
    }
}
