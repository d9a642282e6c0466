//! What is counted of ARM, under cloud-provider-azure's names.
//!
//! `op_…` is one logical operation of headgate's, such as bringing one pool into its state, reads and waiting
//! included: whoever does it says when it begins and how it ends ([`Metrics::operation`]). `api_…` is one request
//! over the wire, counted by the stack itself. Upstream registers the latter and never writes them.

use std::sync::Arc;
use std::time::Duration;

use headgate_telemetry::{DescribedFamily, UnsuffixedCounter};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::id::GroupId;

/// Upstream's.
const OPERATION_BUCKETS: [f64; 17] = [
    0.1, 0.2, 0.5, 1.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 100.0, 200.0, 300.0, 600.0, 1200.0,
];
/// Upstream's.
const REQUEST_BUCKETS: [f64; 14] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0, 1200.0,
];
/// A code of ARM's that is longer is none.
const LONGEST_CODE: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    request: String,
    resource_group: String,
    subscription_id: String,
    source: String,
}

impl Labels {
    fn new(request: String, group: &GroupId, source: &str) -> Self {
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

/// The counters of all requests and operations. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    op_duration: Durations,
    op_failures: Family<Labels, UnsuffixedCounter>,
    api_duration: Durations,
    api_errors: Family<ErrorLabels, UnsuffixedCounter>,
    api_ratelimited: Family<Labels, UnsuffixedCounter>,
    api_throttled: Family<Labels, UnsuffixedCounter>,
}

impl Default for Metrics {
    /// Counters that nobody reads.
    fn default() -> Self {
        Self {
            op_duration: Family::new_with_constructor(|| Histogram::new(OPERATION_BUCKETS)),
            op_failures: Family::default(),
            api_duration: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            api_errors: Family::default(),
            api_ratelimited: Family::default(),
            api_throttled: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers the counters; their series come with what is counted.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let series = "by request, resource_group, subscription_id and source";
        registry.register(
            "cloudprovider_azure_op_duration_seconds",
            format!("Time that operations on Azure took from their begin to their end, {series}"),
            DescribedFamily(metrics.op_duration.clone()),
        );
        registry.register(
            "cloudprovider_azure_op_failure_count",
            format!("Operations on Azure that failed, {series}; a counter, by its name in cloud-provider-azure"),
            DescribedFamily(metrics.op_failures.clone()),
        );
        registry.register(
            "cloudprovider_azure_api_request_duration_seconds",
            format!("Time from one request to ARM to its answer, {series}"),
            DescribedFamily(metrics.api_duration.clone()),
        );
        registry.register(
            "cloudprovider_azure_api_request_errors",
            format!(
                "Requests to ARM that were answered with an error, or not, {series}, and by code: ARM's, the HTTP status where \
                 it gave none, or Connection or Deadline; a counter"
            ),
            DescribedFamily(metrics.api_errors.clone()),
        );
        registry.register(
            "cloudprovider_azure_api_request_ratelimited_count",
            format!(
                "Requests to ARM that headgate's own rate limit (cloudProviderRateLimit) held up, {series}; a counter"
            ),
            DescribedFamily(metrics.api_ratelimited.clone()),
        );
        registry.register(
            "cloudprovider_azure_api_request_throttled_count",
            format!("Requests to ARM that were answered with 429, {series}; a counter"),
            DescribedFamily(metrics.api_throttled.clone()),
        );
        metrics
    }

    /// Begins an operation on something in this group. One that is dropped without a word about its end is not counted.
    pub fn operation(&self, request: &str, group: &GroupId, source: &str) -> Operation {
        Operation {
            labels: Labels::new(request.to_owned(), group, source),
            began: Instant::now(),
            metrics: self.clone(),
        }
    }

    /// The counters of one kind of requests.
    pub(super) fn requests(&self, caller: &Caller, request: &str, group: &GroupId) -> Requests {
        Requests {
            labels: Labels::new(format!("{}_{request}", caller.prefix), group, &caller.source),
            metrics: self.clone(),
        }
    }
}

/// Who asks ARM, for metrics.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// What the names of its requests begin with.
    pub(super) prefix: Arc<str>,
    /// On whose behalf.
    pub(super) source: Arc<str>,
}

impl Default for Caller {
    fn default() -> Self {
        Self {
            prefix: "loadbalancer".into(),
            source: "headgate".into(),
        }
    }
}

/// An operation that has begun.
#[derive(Debug)]
#[must_use = "it is counted when it is done"]
pub struct Operation {
    labels: Labels,
    began: Instant,
    metrics: Metrics,
}

impl Operation {
    /// It has ended, well or not.
    pub fn done(self, ok: bool) {
        let took = self.began.elapsed().as_secs_f64();
        self.metrics.op_duration.get_or_create(&self.labels).observe(took);
        if !ok {
            self.metrics.op_failures.get_or_create(&self.labels).inc();
        }
        let Labels { request, source, .. } = &self.labels;
        tracing::debug!(
            latency_seconds = took,
            request,
            source,
            succeeded = ok,
            "Observed Request Latency"
        );
    }
}

/// The counters of one kind of requests.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    labels: Labels,
    metrics: Metrics,
}

impl Requests {
    /// Its name.
    pub(super) fn request(&self) -> &str {
        &self.labels.request
    }

    /// One was answered, or not, after so long; with this code where it failed.
    pub(super) fn answered(&self, took: Duration, failed: Option<&str>) {
        let took = took.as_secs_f64();
        self.metrics.api_duration.get_or_create(&self.labels).observe(took);
        if let Some(code) = failed {
            let labels = self.labels.clone();
            let code = code.to_owned();
            self.metrics
                .api_errors
                .get_or_create(&ErrorLabels { labels, code })
                .inc();
        }
    }

    /// Our own limit held one up.
    pub(super) fn ratelimited(&self) {
        self.metrics.api_ratelimited.get_or_create(&self.labels).inc();
    }

    /// ARM said that there are too many.
    pub(super) fn throttled(&self) {
        self.metrics.api_throttled.get_or_create(&self.labels).inc();
    }
}

/// A code as a label: ARM's where it is one, otherwise the status. Whoever answers chooses among few, whatever it says.
pub(super) fn code_label(code: &str, status: u16) -> String {
    let good = !code.is_empty() && code.len() <= LONGEST_CODE && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if good { code.to_owned() } else { status.to_string() }
}

#[cfg(test)]
mod tests {
    use headgate_telemetry::{MetricsFormat, encode_metrics};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_and_requests_under_upstreams_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let group = GroupId::new("Sub", "RG").unwrap();
        let operation = metrics.operation(
            "loadbalancer_adminstate_update_backend_pool",
            &group,
            "admin_state_controller",
        );
        tokio::time::advance(Duration::from_secs(2)).await;
        operation.done(true);
        metrics
            .operation(
                "loadbalancer_adminstate_update_backend_pool",
                &group,
                "admin_state_controller",
            )
            .done(false);
        drop(metrics.operation("dropped", &group, "s"));
        let caller = Caller {
            prefix: "p".into(),
            source: "s".into(),
        };
        let requests = metrics.requests(&caller, "get", &group);
        requests.answered(Duration::from_millis(200), Some("NotFound"));
        requests.answered(Duration::from_secs(3), None);
        requests.ratelimited();
        requests.throttled();
        let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
        let labels = "request=\"loadbalancer_adminstate_update_backend_pool\",resource_group=\"rg\",subscription_id=\"Sub\",\
                      source=\"admin_state_controller\"";
        let api = "request=\"p_get\",resource_group=\"rg\",subscription_id=\"Sub\",source=\"s\"";
        for line in [
            format!("cloudprovider_azure_op_duration_seconds_count{{{labels}}} 2"),
            format!("cloudprovider_azure_op_duration_seconds_bucket{{le=\"1.0\",{labels}}} 1"),
            format!("cloudprovider_azure_op_duration_seconds_bucket{{le=\"1200.0\",{labels}}} 2"),
            format!("cloudprovider_azure_op_failure_count{{{labels}}} 1"),
            format!("cloudprovider_azure_api_request_duration_seconds_count{{{api}}} 2"),
            format!("cloudprovider_azure_api_request_duration_seconds_bucket{{le=\"0.25\",{api}}} 1"),
            format!("cloudprovider_azure_api_request_errors{{{api},code=\"NotFound\"}} 1"),
            format!("cloudprovider_azure_api_request_ratelimited_count{{{api}}} 1"),
            format!("cloudprovider_azure_api_request_throttled_count{{{api}}} 1"),
            "# TYPE cloudprovider_azure_api_request_errors untyped".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(!text.contains("dropped") && !text.contains("_total"), "{text}");
    }

    #[test]
    fn codes_are_few() {
        for (code, label) in [
            ("NotFound", "NotFound"),
            ("", "404"),
            ("with space", "404"),
            (&"x".repeat(81), "404"),
        ] {
            assert_eq!(code_label(code, 404), label);
        }
    }
}
