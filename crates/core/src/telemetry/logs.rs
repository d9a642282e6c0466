//! Logs on standard error, as text or JSON; and spans, if a layer exports them.

use std::error::Error;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

/// The environment variable with levels.
const VARIABLE: &str = "RUST_LOG";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The areas whose level can be set on its own, and the modules that they are.
const AREAS: [(&str, &[&str]); 11] = [
    (
        "health",
        &[
            "headgate_agent::health",
            "headgate::agent::health_tasks",
            "headgate::agent::health_thread",
            "headgate::agent::service_health",
        ],
    ),
    (
        "node",
        &["headgate_agent::own_node", "headgate_kubernetes::node_writer"],
    ),
    (
        "connections",
        &["headgate_agent::connections", "headgate::cli::connections"],
    ),
    (
        "evictions",
        &[
            "headgate_agent::spot",
            "headgate_controller::preempt_events",
            "headgate::agent::scheduled_events",
        ],
    ),
    (
        "notifications",
        &["headgate_agent::notify", "headgate::agent::notifications"],
    ),
    (
        "election",
        &["headgate_kubernetes::leader", "headgate::agent::leader_election"],
    ),
    ("pools", &["headgate_controller"]),
    ("maintenance", &["headgate_maintenance", "headgate::agent::maintenance"]),
    ("azure", &["headgate_azure", "headgate::agent::azure_access"]),
    ("kubernetes", &["headgate_kubernetes"]),
    ("listeners", &["headgate_http"]),
];

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

/// Logs a warning if somebody has to act, and information otherwise: what is retried and ends by itself needs nobody.
///
/// ```
/// let is_refused = false;
/// headgate_core::telemetry::warn_if!(is_refused, node = "n", "field of the Node not written");
/// ```
#[macro_export]
macro_rules! warn_if {
    ($needs_somebody:expr, $($event:tt)+) => {
        if $needs_somebody {
            tracing::warn!($($event)+);
        } else {
            tracing::info!($($event)+);
        }
    };
}

/// The levels by target that a level, and levels of areas, stand for; `None` if a text is something else. Of two about the same target the
/// longer one counts, as in `headgate_kubernetes` and `headgate_kubernetes::leader`.
fn by_area(text: &str) -> Option<Targets> {
    let (mut general, mut areas) = (LevelFilter::INFO, Vec::new());
    for item in text.split(',').map(str::trim) {
        let (area, level) = item
            .split_once('=')
            .map_or((None, item), |(area, level)| (Some(area), level));
        let level: LevelFilter = LEVELS.into_iter().find(|known| *known == level)?.parse().ok()?;
        match area {
            None => general = level,
            Some(area) => {
                let (_, targets) = AREAS.iter().find(|(known, _)| *known == area)?;
                areas.extend(targets.iter().map(|target| (*target, level)));
            }
        }
    }
    Some(with_libraries(general).with_targets(areas))
}

/// The level of headgate. Libraries log warnings, whatever levels areas have; kube's client errors only, because headgate itself logs a
/// lost connection.
fn with_libraries(general: LevelFilter) -> Targets {
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_targets([("kube_client", LevelFilter::ERROR), ("headgate", general)])
}

/// The levels of a process whose `RUST_LOG` is this: a level, and levels of areas, such as `info,azure=debug`; or levels by target.
fn levels(variable: Option<&str>) -> Targets {
    let set = variable.and_then(|text| by_area(text).or_else(|| text.parse().ok()));
    set.unwrap_or_else(default_levels)
}

/// The levels by target without a setting.
pub(crate) fn default_levels() -> Targets {
    with_libraries(LevelFilter::INFO)
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
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = levels(variable.as_deref());
    layer(format, filter, io::stderr().is_terminal(), io::stderr)
}

/// Lines with the fields of the spans that they are in.
pub(crate) fn layer<S, W>(
    format: LogFormat,
    filter: Targets,
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
    use std::path::Path;

    use tracing::Level;

    use super::*;

    #[test]
    fn log_levels() {
        for (text, is_good) in [
            ("info", true),
            ("info,azure=debug", true),
            ("azure=debug, election=trace", true),
            ("off", true),
            ("", false),
            (" ", false),
            ("info,", false),
            ("loud", false),
            ("azure=loud", false),
            ("INFO", false),
            ("headgate_azure=debug", false),
            ("azure", false),
        ] {
            assert_eq!(by_area(text).is_some(), is_good, "{text}");
        }
    }

    #[test]
    fn the_variable_has_areas_or_targets() {
        for (variable, expected) in [
            (None, "headgate=info"),
            (Some("info,azure=debug"), "headgate_azure=debug"),
            (Some("headgate_azure=trace"), "headgate_azure=trace"),
            (Some("a=loud"), "headgate=info"),
        ] {
            let found = levels(variable).to_string();
            assert!(found.split(',').any(|one| one == expected), "{variable:?}: {found}");
        }
    }

    #[test]
    fn a_level_counts_for_its_area_and_for_no_library() {
        let (pools, evictions) = ("warn,pools=info", "pools=trace,evictions=off");
        let (election, reversed) = ("kubernetes=off,election=debug", "election=debug,kubernetes=off");
        let rows = [
            ("info", "headgate_azure::client::write", Level::INFO, true),
            ("info", "headgate_azure::client::write", Level::DEBUG, false),
            ("info", "headgate::reconcile", Level::INFO, true),
            ("debug", "headgate_http::server::serve", Level::DEBUG, true),
            ("debug", "hyper::proto", Level::DEBUG, false),
            ("trace", "kube_client::client", Level::WARN, false),
            ("error", "kube_runtime::watcher", Level::WARN, true),
            ("warn", "headgate::agent", Level::INFO, false),
            ("off", "headgate::agent", Level::ERROR, false),
            ("azure=debug", "headgate_azure::client::write", Level::DEBUG, true),
            ("azure=debug", "headgate_controller::pool", Level::DEBUG, false),
            ("azure=debug", "headgate_controller::pool", Level::INFO, true),
            (pools, "headgate_controller::pool::writer", Level::INFO, true),
            (pools, "headgate_maintenance::controller", Level::INFO, false),
            // The longer target counts, in any order.
            (evictions, "headgate_controller::preempt_events", Level::ERROR, false),
            (election, "headgate_kubernetes::leader::leader_task", Level::DEBUG, true),
            (reversed, "headgate_kubernetes::watch", Level::WARN, false),
            ("health=debug", "headgate_agent::health::kube_proxy", Level::DEBUG, true),
            ("health=debug", "headgate_agent::own_node::watch", Level::DEBUG, false),
        ];
        for (level, target, record, is_logged) in rows {
            let found = by_area(level).unwrap().would_enable(target, &record);
            assert_eq!(found, is_logged, "{level}: {record} of {target}");
        }
    }

    #[test]
    fn areas_are_modules_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for target in AREAS.iter().flat_map(|(_, targets)| *targets) {
            let (package, module) = target.split_once("::").unwrap_or((target, "lib"));
            let sources = match package.strip_prefix("headgate_") {
                Some(package) => root.join("crates").join(package).join("src"),
                None => root.join("src"),
            };
            let file = sources.join(module.replace("::", "/")).with_extension("rs");
            assert!(file.exists(), "{target}: {}", file.display());
        }
    }
}
