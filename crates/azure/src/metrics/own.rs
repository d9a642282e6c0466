//! Metrics of calls to ARM under headgate's own names: types and suffixes as Prometheus recommends, and no labels of the subscription and
//! the group, which are one each in most clusters. [`super::Metrics`] counts them together with upstream's.

use headgate_core::telemetry::{ByLabel, MetricTable};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::REQUEST_BUCKETS;
use crate::document::AdminState;

/// ARM's codes that say that the identity lacks a right.
const FORBIDDEN_CODES: [&str; 3] = [
    "AuthorizationFailed",
    "LinkedAuthorizationFailed",
    "DenyAssignmentAuthorizationFailed",
];

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
    // Alerts read these two, so their series begin at 0: an increase shows the first error.
    forbidden: ByLabel<Counter>,
    throttled: Counter,
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
            forbidden: table.by_label(
                "headgate_arm_requests_forbidden",
                "HTTP requests to ARM that ARM refused because the identity lacks a right, by code",
                "code",
                FORBIDDEN_CODES,
            ),
            throttled: table.metric(
                "headgate_arm_requests_throttled",
                "HTTP requests to ARM that ARM answered with 429 because of the rate of requests",
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
            if let Some(forbidden) = FORBIDDEN_CODES.into_iter().find(|known| *known == code) {
                self.forbidden.of(forbidden).inc();
            }
            labels.push(("code", code.to_owned()));
            self.request_errors.get_or_create(&labels).inc();
        }
    }

    pub(super) fn record_rate_limited(&self, request: &str, source: &str) {
        self.rate_limited.get_or_create(&labels(request, source)).inc();
    }

    pub(super) fn record_throttled(&self) {
        self.throttled.inc();
    }

    pub(super) fn count_admin_state_change(&self, to: AdminState, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        let labels = [("to", to.as_str()), ("result", result)];
        self.admin_state_changes.get_or_create(&labels).inc();
    }
}
