//! Installs the logs of the process and, if configured, the export of spans.

#[cfg(feature = "otlp")]
use headgate_http::proxies::Proxies;
use tokio::runtime::Handle;

use crate::config::{Settings, otlp_traces_url};

/// The export of spans, if any.
pub(super) struct Spans {
    #[cfg(feature = "otlp")]
    exporter: Option<headgate_http::otlp::TraceExporter>,
}

impl Spans {
    /// Installs logs and the export of spans. An export that cannot start is logged; the agent runs without it.
    #[cfg(feature = "otlp")]
    pub(super) fn install(settings: &Settings, node: &str, runtime: &Handle) -> Self {
        let url = otlp_traces_url(&|name| std::env::var(name).ok());
        let started = match &url {
            Ok(Some(url)) => {
                headgate_http::otlp::TraceExporter::start(url, node, Proxies::from_env(), runtime.clone()).map(Some)
            }
            Ok(None) | Err(_) => Ok(None),
        };
        headgate_core::telemetry::install_logs_with(
            started
                .as_ref()
                .ok()
                .and_then(Option::as_ref)
                .map(headgate_http::otlp::TraceExporter::layer),
            settings.log_format,
        );
        if let Err(variable) = url {
            tracing::warn!(
                variable,
                "spans not exported: the variable is not an address such as http://127.0.0.1:4318"
            );
        }
        let exporter = started.unwrap_or_else(|error| {
            tracing::warn!(%error, "spans not exported");
            None
        });
        Self { exporter }
    }

    /// Installs logs. This program cannot export spans.
    #[cfg(not(feature = "otlp"))]
    pub(super) fn install(settings: &Settings, _: &str, _: &Handle) -> Self {
        headgate_core::telemetry::install_logs(settings.log_format);
        if otlp_traces_url(&|name| std::env::var(name).ok()) != Ok(None) {
            tracing::warn!("spans not exported: this program was built without the feature otlp");
        }
        Self {}
    }

    /// Exports the queued spans.
    #[cfg(feature = "otlp")]
    pub(super) async fn shutdown(self) {
        if let Some(exporter) = self.exporter {
            exporter.shutdown().await;
        }
    }

    /// Does nothing: without the feature `otlp` there is no exporter.
    #[cfg(not(feature = "otlp"))]
    pub(super) fn shutdown(self) -> std::future::Ready<()> {
        let Self {} = self;
        std::future::ready(())
    }
}
