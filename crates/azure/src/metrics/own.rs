//! Metrics of calls to ARM under headgate's own names: types and suffixes as Prometheus recommends, and no labels of the subscription and
//! the group, which are one each in most clusters. [`super::Metrics`] counts them together with upstream's.

use headgate_core::telemetry::MetricTable;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::REQUEST_BUCKETS;
use crate::document::AdminState;

/// The labels `request` and `source`, and perhaps `code`.
type Labels = Vec<(&'static str, String)>;

fn labels(request: &str, source: &str) -> Labels {
    vec![("request", request.to_owned()), ("source", source.to_owned())]
}

/// The families. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct OwnMetrics {
    request_duration: Family<Labels, Histogram, fn() -> Histogram>,
    request_errors: Family<Labels, Counter>,
    throttled: Family<Labels, Counter>,
    rate_limited: Family<Labels, Counter>,
    admin_state_changes: Family<[(&'static str, &'static str); 2], Counter>,
}

impl OwnMetrics {
    pub(super) fn declare(table: &mut MetricTable<'_>) -> Self {
        Self {
            request_duration: table.described(
                "headgate_arm_request_duration_seconds",
                "Duration of HTTP requests to ARM in seconds, each retry counted separately, by request and source",
                Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            ),
            request_errors: table.described(
                "headgate_arm_request_errors",
                "HTTP requests to ARM with an error response or none, by request, source and code: ARM's error code, else the HTTP \
                status, or Connection or Deadline without a response",
                Family::default(),
            ),
            throttled: table.described(
                "headgate_arm_requests_throttled",
                "HTTP requests to ARM that ARM answered with 429 because of the rate of requests, by request and source",
                Family::default(),
            ),
            rate_limited: table.described(
                "headgate_arm_requests_rate_limited",
                "Requests to ARM that headgate's own rate limit (cloudProviderRateLimit) delayed or refused, by request and source",
                Family::default(),
            ),
            admin_state_changes: table.described(
                "headgate_admin_state_changes",
                "Admin states in writes to ARM that ended, by the admin state (to: Down or None) and result: succeeded, or failed, \
                after which it is tried again",
                Family::default(),
            ),
        }
    }

    pub(super) fn record_attempt(&self, request: &str, source: &str, seconds: f64, error_code: Option<&str>) {
        let mut labels = labels(request, source);
        self.request_duration.get_or_create(&labels).observe(seconds);
        if let Some(code) = error_code {
            labels.push(("code", code.to_owned()));
            self.request_errors.get_or_create(&labels).inc();
        }
    }

    pub(super) fn record_rate_limited(&self, request: &str, source: &str) {
        self.rate_limited.get_or_create(&labels(request, source)).inc();
    }

    pub(super) fn record_throttled(&self, request: &str, source: &str) {
        self.throttled.get_or_create(&labels(request, source)).inc();
    }

    pub(super) fn count_admin_state_change(&self, to: AdminState, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        let labels = [("to", to.as_str()), ("result", result)];
        self.admin_state_changes.get_or_create(&labels).inc();
    }
}
