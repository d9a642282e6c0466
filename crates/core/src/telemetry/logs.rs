//! Logs on standard error, as text or JSON; and spans, if a layer exports them.

use std::error::Error;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// The levels unless `RUST_LOG` sets others: `info` for headgate, warnings of libraries. kube's client logs errors
/// only, because headgate itself logs a lost connection.
pub(crate) const DEFAULT_FILTER: &str = "warn,headgate=info,kube_client=error";

crate::telemetry::words! {
    /// The format of logs.
    #[derive(Default)]
    pub enum LogFormat {
        /// Text on a terminal, JSON otherwise.
        #[default]
        Auto = "Auto",
        /// Text, with colours on a terminal only.
        Text = "Text",
        /// One JSON object a line.
        Json = "JSON",
    }
}

/// Installs the log output of the process. A second call has no effect.
pub fn install_logs(format: LogFormat) {
    install_logs_with(None::<tracing_subscriber::layer::Identity>, format);
}

/// Installs the log output of the process together with a layer that exports spans. A second call has no effect.
pub fn install_logs_with<L>(spans: Option<L>, format: LogFormat)
where
    L: Layer<Registry> + Send + Sync,
{
    // The only possible failure is that a subscriber is installed already.
    let _ = tracing_subscriber::registry()
        .with(spans)
        .with(output(format))
        .try_init();
}

fn output<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    layer(format, filter, io::stderr().is_terminal(), io::stderr)
}

/// Lines with the fields of the spans that they are in.
pub(crate) fn layer<S, W>(
    format: LogFormat,
    filter: EnvFilter,
    is_terminal: bool,
    writer: W,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> fmt::MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_writer(writer);
    let is_text = match format {
        LogFormat::Auto => is_terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    if is_text {
        layer
            .with_target(false)
            .with_ansi(is_terminal)
            .with_filter(filter)
            .boxed()
    } else {
        // The list has the present span, too.
        let layer = layer.json().flatten_event(true).with_current_span(false);
        layer.with_span_list(true).with_filter(filter).boxed()
    }
}

/// An error with its causes on one line. A cause whose text the error contains is not repeated.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
