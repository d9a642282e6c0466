//! Whether the node may get new connections: kube-proxy's status, the verdict, and the answers on the health port.
//!
//! `verdict.rs` decides what makes `/healthz` and `/livez` answer 503. The wire contract is kube-proxy's (upstream:
//! `pkg/proxy/healthcheck/proxy_health.go`): status codes, headers and fields stay, and fields are only ever added.
//! `/livez` depends on kube-proxy alone, never on taints or the API server. `headgate_core::node` decides what a signal is.

mod answer;
mod failed_probes;
#[cfg(test)]
mod fixtures;
mod ip_family;
mod kube_proxy;
mod metrics;
mod probes_marker;
mod proxy_status;
mod routes;
pub mod services;
mod verdict;
mod verdict_changes;

pub use failed_probes::ServiceAnswers;
pub use ip_family::PerFamily;
pub use kube_proxy::{ProxySettings, apply_kube_proxy_answer, poll_kube_proxy};
pub use metrics::Metrics;
pub use probes_marker::ProbesMarker;
pub use proxy_status::{FamilyHealth, ProxyHealth, ProxyPart, ProxyStatus};
pub use routes::router;
pub use verdict::{Verdict, VerdictInputs};
pub use verdict_changes::{LastChange, publish_verdict_changes};
