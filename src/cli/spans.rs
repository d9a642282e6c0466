//! The process's logs, and the spans it sends where that is set.

use tokio::runtime::Handle;

use crate::config::Settings;

/// The sending of spans, if there is any.
pub(super) struct Spans {
    #[cfg(feature = "otlp")]
    traces: Option<headgate_otlp::Traces>,
}

impl Spans {
    /// Installs logs, and what sends spans. One that cannot be had is told of, and done without: health does not hang
    /// on it.
    #[cfg(feature = "otlp")]
    pub(super) fn install(settings: &Settings, node: &str, runtime: &Handle) -> Self {
        let to = settings.spans_to(&|name| std::env::var(name).ok());
        let started = match &to {
            Ok(Some(url)) => headgate_otlp::Traces::start(url, node, runtime.clone()).map(Some),
            Ok(None) | Err(_) => Ok(None),
        };
        headgate_telemetry::install_logs_with(
            started
                .as_ref()
                .ok()
                .and_then(Option::as_ref)
                .map(headgate_otlp::Traces::layer),
        );
        if let Err(variable) = to {
            tracing::warn!(
                variable,
                "no spans are sent: it is no address such as http://127.0.0.1:4318"
            );
        }
        let traces = started.unwrap_or_else(|error| {
            tracing::warn!(%error, "no spans are sent");
            None
        });
        Self { traces }
    }

    /// Installs logs; this program sends no spans.
    #[cfg(not(feature = "otlp"))]
    pub(super) fn install(settings: &Settings, _: &str, _: &Handle) -> Self {
        headgate_telemetry::install_logs();
        if settings.spans_to(&|name| std::env::var(name).ok()) != Ok(None) {
            tracing::warn!("no spans are sent: this program was built without the feature otlp");
        }
        Self {}
    }

    /// Sends what waits.
    #[cfg(feature = "otlp")]
    pub(super) async fn close(self) {
        if let Some(traces) = self.traces {
            traces.close().await;
        }
    }

    /// Nothing waits.
    #[cfg(not(feature = "otlp"))]
    pub(super) fn close(self) -> std::future::Ready<()> {
        let Self {} = self;
        std::future::ready(())
    }
}
