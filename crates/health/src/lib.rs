//! What this node says: kube-proxy's status, the verdict, and the answers on the health port.
//!
//! The wire contract is kube-proxy's (upstream: `pkg/proxy/healthcheck/proxy_health.go`): statuses,
//! headers and fields are kept, fields are only ever added. `/livez` depends on the proxy alone, never
//! on taints or the API server. Nothing here talks to the API server or knows a taint.

mod answer;
mod changes;
mod kube_proxy;
mod metrics;
mod proxy;
mod routes;
pub mod services;
mod verdict;

pub use answer::{Answer, healthz, livez};
pub use changes::{LastChange, follow};
pub use kube_proxy::{ProxySettings, answered as kube_proxy_answered, follow as follow_kube_proxy};
pub use metrics::Metrics;
pub use proxy::{Family, Part, ProxyHealth, ProxyStatus};
pub use routes::router;
pub use verdict::{Inputs, STOPPING, Verdict};
