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
        Auto = "auto",
        /// Text, with colours on a terminal only.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions<'a> {
    /// Text or JSON.
    pub format: LogFormat,
    /// Levels by target; `RUST_LOG` wins, and `None` is the default.
    pub filter: Option<&'a str>,
}

/// Whether a text names levels by target, in the form of `RUST_LOG`.
#[must_use]
pub fn is_log_filter(text: &str) -> bool {
    !text.trim().is_empty() && EnvFilter::try_new(text).is_ok()
}

/// Installs the log output of the process. A second call has no effect.
pub fn install_logs(options: LogOptions<'_>) {
    install_logs_with(None::<tracing_subscriber::layer::Identity>, options);
}

/// Installs the log output of the process together with a layer that exports spans. A second call has no effect.
pub fn install_logs_with<L>(spans: Option<L>, options: LogOptions<'_>)
where
    L: Layer<Registry> + Send + Sync,
{
    // The only possible failure is that a subscriber is installed already.
    let _ = tracing_subscriber::registry()
        .with(spans)
        .with(output(options))
        .try_init();
}

fn output<S>(options: LogOptions<'_>) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    let configured = || options.filter.and_then(|filter| EnvFilter::try_new(filter).ok());
    let filter = EnvFilter::try_from_default_env()
        .ok()
        .or_else(configured)
        .unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER));
    layer(options.format, filter, io::stderr().is_terminal(), io::stderr)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filters() {
        for (text, good) in [
            ("info", true),
            ("warn,headgate=debug", true),
            ("headgate[term]=trace", true),
            ("", false),
            (" ", false),
            ("headgate=loud", false),
        ] {
            assert_eq!(is_log_filter(text), good, "{text}");
        }
    }
}
