//! Metrics of calls to ARM, under the names of cloud-provider-azure.
//!
//! `op_…` is one logical operation of headgate, such as one write of a pool with its retries and waits; its caller starts and
//! finishes it ([`Metrics::start_operation`]). `api_…` is one HTTP exchange; the request path counts it. cloud-provider-azure
//! registers the `api_…` metrics too, but never writes them. `own` counts the same under headgate's own names.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::telemetry::{MetricTable, UnsuffixedCounter};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use crate::document::AdminState;
use crate::id::ResourceGroupId;

mod own;

use own::OwnMetrics;

/// Upstream's buckets of operations, in seconds.
const OPERATION_BUCKETS: [f64; 17] = [
    0.1, 0.2, 0.5, 1.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 100.0, 200.0, 300.0, 600.0, 1200.0,
];
/// Upstream's buckets of requests, in seconds.
const REQUEST_BUCKETS: [f64; 14] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0, 1200.0,
];
/// Length limit of a code in the label `code`. ARM's own codes are shorter.
const MAX_CODE_CHARS: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    request: String,
    resource_group: String,
    subscription_id: String,
    source: String,
}

impl Labels {
    fn new(request: String, group: &ResourceGroupId, source: &str) -> Self {
        Self {
            request,
            resource_group: group.name().to_ascii_lowercase(),
            subscription_id: group.subscription().to_owned(),
            source: source.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    #[prometheus(flatten)]
    labels: Labels,
    code: String,
}

type Durations = Family<Labels, Histogram, fn() -> Histogram>;

/// The metrics of all calls to ARM. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    op_duration: Durations,
    op_failures: Family<Labels, UnsuffixedCounter>,
    api_duration: Durations,
    api_errors: Family<ErrorLabels, UnsuffixedCounter>,
    api_ratelimited: Family<Labels, UnsuffixedCounter>,
    api_throttled: Family<Labels, UnsuffixedCounter>,
    own: OwnMetrics,
}

impl Default for Metrics {
    /// Metrics that nothing shows.
    fn default() -> Self {
        Self::register(MetricTable::unregistered())
    }
}

impl Metrics {
    /// Registers the metrics. A series appears with its first observation.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        let labels = "by request, resource_group, subscription_id and source";
        Self {
            op_duration: table.described(
                "cloudprovider_azure_op_duration_seconds",
                &format!(
                    "Duration of writes of pools in seconds, from the PUT to the end of Azure's operation, of members to the read that \
                    shows them, {labels}"
                ),
                Family::new_with_constructor(|| Histogram::new(OPERATION_BUCKETS)),
            ),
            op_failures: table.described(
                "cloudprovider_azure_op_failure_count",
                &format!(
                    "Writes of pools that failed after they were sent, and updates of members that failed, {labels}; a counter"
                ),
                Family::default(),
            ),
            api_duration: table.described(
                "cloudprovider_azure_api_request_duration_seconds",
                &format!("Duration of HTTP requests to ARM in seconds, each retry counted separately, {labels}"),
                Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            ),
            api_errors: table.described(
                "cloudprovider_azure_api_request_errors",
                &format!(
                    "HTTP requests to ARM with an error response or none, {labels}, and by code: as headgate_arm_request_errors has it; \
                    a counter"
                ),
                Family::default(),
            ),
            api_ratelimited: table.described(
                "cloudprovider_azure_api_request_ratelimited_count",
                &format!("Requests to ARM that cloudProviderRateLimit delayed or refused, {labels}; a counter"),
                Family::default(),
            ),
            api_throttled: table.described(
                "cloudprovider_azure_api_request_throttled_count",
                &format!("HTTP requests to ARM that ARM answered with 429, {labels}; a counter"),
                Family::default(),
            ),
            own: OwnMetrics::declare(&mut MetricTable::unregistered()),
        }
    }

    /// Registers the same under headgate's own names, and the count of admin states.
    #[must_use]
    pub fn with_own<'a>(self, registry: impl Into<MetricTable<'a>>) -> Self {
        Self {
            own: OwnMetrics::declare(&mut registry.into()),
            ..self
        }
    }

    /// Counts one admin state of a write that ended.
    pub fn count_admin_state_change(&self, to: AdminState, succeeded: bool) {
        self.own.count_admin_state_change(to, succeeded);
    }

    /// Starts the timer of an operation on a resource in this group. An operation that is dropped is not counted.
    pub fn start_operation(&self, request: &str, group: &ResourceGroupId, source: &str) -> OperationTimer {
        OperationTimer {
            labels: Labels::new(request.to_owned(), group, source),
            started: Instant::now(),
            metrics: self.clone(),
        }
    }

    /// The metrics of the requests with this name.
    pub(crate) fn requests(&self, labels: &RequestLabels, request: &str, group: &ResourceGroupId) -> RequestMetrics {
        RequestMetrics {
            labels: Labels::new(format!("{}_{request}", labels.prefix), group, &labels.source),
            metrics: self.clone(),
        }
    }
}

/// Labels that all requests of one caller have.
#[derive(Clone, Debug)]
pub(crate) struct RequestLabels {
    /// The beginning of the label `request`.
    pub(crate) prefix: Arc<str>,
    /// The value of the label `source`: the caller.
    pub(crate) source: Arc<str>,
}

impl Default for RequestLabels {
    fn default() -> Self {
        Self {
            prefix: "loadbalancer".into(),
            source: "headgate".into(),
        }
    }
}

/// An operation that has not ended.
#[derive(Debug)]
#[must_use = "an operation is counted when it is finished"]
pub struct OperationTimer {
    labels: Labels,
    started: Instant,
    metrics: Metrics,
}

impl OperationTimer {
    /// Records the operation's duration, and counts it as failed unless it `succeeded`.
    pub fn finish(self, succeeded: bool) {
        let duration = self.started.elapsed().as_secs_f64();
        self.metrics.op_duration.get_or_create(&self.labels).observe(duration);
        if !succeeded {
            self.metrics.op_failures.get_or_create(&self.labels).inc();
        }
        let Labels { request, source, .. } = &self.labels;
        tracing::debug!(
            latency_seconds = duration,
            request,
            source,
            succeeded,
            "operation on Azure finished"
        );
    }
}

/// The metrics of the requests with one name.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics {
    labels: Labels,
    metrics: Metrics,
}

impl RequestMetrics {
    /// The value of the label `request`.
    pub(crate) fn request(&self) -> &str {
        &self.labels.request
    }

    /// Counts an attempt, with the code of its error if it failed.
    pub(crate) fn record_attempt(&self, duration: Duration, error_code: Option<&str>) {
        let seconds = duration.as_secs_f64();
        self.metrics.api_duration.get_or_create(&self.labels).observe(seconds);
        let Labels { request, source, .. } = &self.labels;
        self.metrics.own.record_attempt(request, source, seconds, error_code);
        if let Some(code) = error_code {
            let labels = self.labels.clone();
            let code = code.to_owned();
            self.metrics
                .api_errors
                .get_or_create(&ErrorLabels { labels, code })
                .inc();
        }
    }

    /// Counts a request that the client-side rate limit delayed or refused.
    pub(crate) fn record_rate_limited(&self) {
        self.metrics.api_ratelimited.get_or_create(&self.labels).inc();
        let Labels { request, source, .. } = &self.labels;
        self.metrics.own.record_rate_limited(request, source);
    }

    /// Counts a response with status 429; under headgate's name, only one about the rate of requests.
    pub(crate) fn record_too_many_requests(&self, is_rate_limited: bool) {
        self.metrics.api_throttled.get_or_create(&self.labels).inc();
        if is_rate_limited {
            self.metrics.own.record_throttled();
        }
    }
}

/// The label `code`: ARM's code, or the HTTP status if the code is empty, long or not alphanumeric. So a server cannot
/// create series without bound.
pub(crate) fn code_label(code: &str, status: u16) -> String {
    let is_code =
        !code.is_empty() && code.len() <= MAX_CODE_CHARS && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_code { code.to_owned() } else { status.to_string() }
}

#[cfg(test)]
mod tests {
    use headgate_core::telemetry::{MetricsFormat, encode_metrics};
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_and_requests_have_upstreams_names_and_own_ones_with_fewer_labels() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry).with_own(&mut registry);
        let group = ResourceGroupId::new("Sub", "RG").unwrap();
        let name = "loadbalancer_adminstate_update_backend_pool";
        let operation = metrics.start_operation(name, &group, "admin_state_controller");
        tokio::time::advance(Duration::from_secs(2)).await;
        operation.finish(true);
        let operation = metrics.start_operation(name, &group, "admin_state_controller");
        operation.finish(false);
        drop(metrics.start_operation("dropped", &group, "s"));
        let request_labels = RequestLabels {
            prefix: "p".into(),
            source: "s".into(),
        };
        let requests = metrics.requests(&request_labels, "get", &group);
        requests.record_attempt(Duration::from_millis(200), Some("NotFound"));
        requests.record_attempt(Duration::from_millis(200), Some("LinkedAuthorizationFailed"));
        requests.record_attempt(Duration::from_secs(3), None);
        requests.record_rate_limited();
        requests.record_too_many_requests(true);
        for _ in 0..2 {
            metrics.count_admin_state_change(AdminState::Down, true);
        }
        metrics.count_admin_state_change(AdminState::None, false);
        let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
        let labels = "request=\"loadbalancer_adminstate_update_backend_pool\",resource_group=\"rg\",subscription_id=\"Sub\",\
                      source=\"admin_state_controller\"";
        let own = "request=\"p_get\",source=\"s\"";
        let api = "request=\"p_get\",resource_group=\"rg\",subscription_id=\"Sub\",source=\"s\"";
        for line in [
            format!("cloudprovider_azure_op_duration_seconds_count{{{labels}}} 2"),
            format!("cloudprovider_azure_op_duration_seconds_bucket{{le=\"1.0\",{labels}}} 1"),
            format!("cloudprovider_azure_op_duration_seconds_bucket{{le=\"1200.0\",{labels}}} 2"),
            format!("cloudprovider_azure_op_failure_count{{{labels}}} 1"),
            format!("cloudprovider_azure_api_request_duration_seconds_count{{{api}}} 3"),
            format!("cloudprovider_azure_api_request_duration_seconds_bucket{{le=\"0.25\",{api}}} 2"),
            format!("cloudprovider_azure_api_request_errors{{{api},code=\"NotFound\"}} 1"),
            format!("cloudprovider_azure_api_request_ratelimited_count{{{api}}} 1"),
            format!("cloudprovider_azure_api_request_throttled_count{{{api}}} 1"),
            "# TYPE cloudprovider_azure_api_request_errors untyped".to_owned(),
            format!("headgate_arm_request_duration_seconds_count{{{own}}} 3"),
            format!("headgate_arm_request_errors_total{{{own},code=\"NotFound\"}} 1"),
            format!("headgate_arm_requests_rate_limited_total{{{own}}} 1"),
            "headgate_arm_requests_forbidden_total{code=\"AuthorizationFailed\"} 0".to_owned(),
            "headgate_arm_requests_forbidden_total{code=\"LinkedAuthorizationFailed\"} 1".to_owned(),
            "headgate_arm_requests_throttled_total 1".to_owned(),
            "headgate_admin_state_changes_total{to=\"Down\",result=\"succeeded\"} 2".to_owned(),
            "headgate_admin_state_changes_total{to=\"None\",result=\"failed\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(!text.contains("dropped"), "{text}");
        let mut upstreams = text.lines().filter(|line| line.starts_with("cloudprovider_"));
        assert!(upstreams.all(|line| !line.contains("_total")), "{text}");
    }

    #[test]
    fn code_labels_are_bounded() {
        assert_eq!(code_label("NotFound", 404), "NotFound");
        for code in ["", "with space", &"x".repeat(81)] {
            assert_eq!(code_label(code, 404), "404");
        }
    }
}
