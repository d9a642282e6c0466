//! Logs: to standard error, as lines for people on a terminal and as JSON elsewhere. Spans, where they are to be sent.

use std::error::Error;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// Levels unless `RUST_LOG` says otherwise: ours in full, libraries' troubles only, and of kube's client
/// errors only: that a connection was cut is told by whoever lost it.
const DEFAULT_FILTER: &str = "warn,headgate=info,kube_client=error";

/// Installs the process's log output. A second call does nothing.
pub fn install() {
    install_with(None::<tracing_subscriber::layer::Identity>);
}

/// Installs the process's log output, and what takes spans besides. A second call does nothing.
pub fn install_with<L>(spans: Option<L>)
where
    L: Layer<Registry> + Send + Sync,
{
    // The only failure is that there is a subscriber already.
    let _ = tracing_subscriber::registry().with(spans).with(output()).try_init();
}

fn output<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let layer = fmt::layer().with_writer(io::stderr);
    if io::stderr().is_terminal() {
        layer.with_target(false).with_filter(filter).boxed()
    } else {
        let layer = layer.json().flatten_event(true).with_current_span(false);
        layer.with_span_list(false).with_filter(filter).boxed()
    }
}

/// An error with its causes, on one line; a cause that its effect has told already is not told again.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
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
