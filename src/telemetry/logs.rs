//! Logs: to standard error, as lines for people on a terminal and as JSON elsewhere.

use std::error::Error;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Levels unless `RUST_LOG` says otherwise: ours in full, libraries' troubles only, and of kube's client
/// errors only: that a connection was cut is told by whoever lost it.
const DEFAULT_FILTER: &str = "warn,headgate=info,kube_client=error";

/// Installs the process's log output. A second call does nothing.
pub fn install() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    // The only failure is that there is a subscriber already.
    let _ = if io::stderr().is_terminal() {
        builder.with_target(false).finish().try_init()
    } else {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .finish()
            .try_init()
    };
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
