//! The endpoint that spans are exported to: from the settings, or from OpenTelemetry's environment variables. Pure.

use headgate_settings::EnvironmentLookup;
use serde_yaml::Value;

use super::Settings;
use super::value::{NONE, Parsed};

/// The path for spans below the base address of a collector.
const TRACES_PATH: &str = "/v1/traces";

/// Reads the base address of a collector, or `none`.
pub(super) fn endpoint(value: &Value) -> Parsed<Option<String>> {
    let base = match value {
        Value::String(text) if text == NONE => return Ok(None),
        Value::String(text) => parse_base(text),
        _ => None,
    };
    let allowed = || {
        if cfg!(feature = "otlp") {
            "none, or the base address of an OpenTelemetry collector, such as http://127.0.0.1:4318".to_owned()
        } else {
            "none, since this program was built without the feature otlp".to_owned()
        }
    };
    base.filter(|_| cfg!(feature = "otlp")).map(Some).ok_or_else(allowed)
}

/// An http or https URL without query, user and trailing slash.
fn parse_base(text: &str) -> Option<String> {
    let uri: hyper::Uri = text.trim().parse().ok()?;
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    (scheme && host && uri.query().is_none()).then(|| text.trim().trim_end_matches('/').to_owned())
}

impl Settings {
    /// The URL that spans are exported to: from `telemetry.otlpEndpoint`, else from OpenTelemetry's variables.
    ///
    /// # Errors
    /// The name of a variable whose value is not a URL.
    pub fn otlp_traces_url(&self, environment: &EnvironmentLookup<'_>) -> Result<Option<String>, &'static str> {
        if let Some(base) = &self.otlp_endpoint {
            return Ok(Some(format!("{base}{TRACES_PATH}")));
        }
        for (name, path) in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", TRACES_PATH),
        ] {
            if let Some(text) = environment(name).filter(|text| !text.is_empty()) {
                let base = parse_base(&text).ok_or(name)?;
                return Ok(Some(format!("{base}{path}")));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_wins_over_the_environment() {
        let at = |setting: Option<&str>, traces: &str, all: &str| {
            let settings = Settings {
                otlp_endpoint: setting.map(ToOwned::to_owned),
                ..Settings::default()
            };
            settings.otlp_traces_url(&|name| match name {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" => Some(traces.to_owned()),
                "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(all.to_owned()),
                _ => None,
            })
        };
        let to = |url: &str| Ok(Some(url.to_owned()));
        assert_eq!(at(None, "", ""), Ok(None));
        assert_eq!(at(Some("http://a"), "http://b/x", "http://c"), to("http://a/v1/traces"));
        assert_eq!(at(None, "http://b/x", "http://c"), to("http://b/x"));
        assert_eq!(at(None, "", "https://c:4318/"), to("https://c:4318/v1/traces"));
        assert_eq!(at(None, "", "c:4318"), Err("OTEL_EXPORTER_OTLP_ENDPOINT"));
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
            let read = endpoint(&Value::String(text.to_owned()));
            assert_eq!(read.is_ok(), good && cfg!(feature = "otlp"), "{text}");
        }
        assert_eq!(endpoint(&Value::String("none".to_owned())), Ok(None));
        assert!(endpoint(&Value::Null).is_err() && endpoint(&Value::Bool(false)).is_err());
    }
}
