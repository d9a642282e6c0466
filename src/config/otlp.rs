//! The endpoint that spans are exported to: from the settings, or from OpenTelemetry's environment variables. Pure.

use headgate_core::settings::EnvironmentLookup;

use super::Settings;
use super::value::parse_collector;

/// The path for spans below the base address of a collector.
const TRACES_PATH: &str = "/v1/traces";

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
                let base = parse_collector(&text).ok_or(name)?;
                return Ok(Some(format!("{base}{path}")));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_yaml::Value;

    use super::super::value::{optional, otlp_endpoint};
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
        let endpoint = optional(otlp_endpoint());
        for (text, good) in [
            ("http://127.0.0.1:4318", true),
            ("https://collector.monitoring.svc:4318/base/", true),
            ("127.0.0.1:4318", false),
            ("grpc://127.0.0.1:4317", false),
            ("http://me@127.0.0.1", false),
            ("http://127.0.0.1?x", false),
            ("", false),
        ] {
            let read = (endpoint.parse)(&Value::String(text.to_owned()));
            assert_eq!(read.is_ok(), good && cfg!(feature = "otlp"), "{text}");
        }
        assert_eq!((endpoint.parse)(&Value::Null), Ok(None));
        assert!((endpoint.parse)(&Value::Bool(false)).is_err());
    }
}
