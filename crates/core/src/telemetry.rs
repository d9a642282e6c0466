//! Tables of metrics and their text, logs, the words in them, and text for terminals.
//!
//! Each crate owns its metrics and declares them in a [`MetricTable`]; this module has the metrics of the process and of the build only.
//! Kubernetes events belong to `headgate-kubernetes`, spans to `headgate_http::otlp`.

mod build_info;
mod first_names;
mod logs;
mod metric_table;
mod metric_types;
mod metrics_text;
mod process_metrics;
mod reconcile_span;
mod terminal;
mod words;

pub use crate::{warn_if, words};
pub use build_info::{VERSION, register_build_info};
pub use first_names::first_names;
pub use logs::{LogFormat, error_chain, install_logs, install_logs_with};
pub use metric_table::{ByLabel, Gauges, MetricTable};
pub use metric_types::{DescribedFamily, UnsuffixedCounter};
pub use metrics_text::{MetricsFormat, encode_metrics};
pub use process_metrics::register_process_metrics;
pub use reconcile_span::{Reconcile, ReconcileSpan, Reconciled};
pub use terminal::{escape_json, escape_line, escape_lines};
