//! Why lists and watches fail: the reason of an error, the current failure of a watch, and the counter of errors.

use headgate_core::telemetry::{MetricTable, words};
use jiff::Timestamp;
use kube::runtime::watcher;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

words! {
    /// The kind of an error of a list or watch; the label `reason` of metrics and the field `reason` of logs.
    pub enum WatchErrorReason {
        /// The API server could not be reached, or the connection ended.
        Connection = "connection",
        /// The resourceVersion is too old (HTTP 410). After that of a watch comes a list, and nothing is wrong; that of a list has taken too long.
        Expired = "expired",
        /// The credentials lack the right to list or watch (HTTP 403).
        Forbidden = "forbidden",
        /// The API server failed or is overloaded (HTTP 429 or 5xx).
        Server = "server",
        /// The credentials are missing or invalid (HTTP 401).
        Unauthorized = "unauthorized",
        /// Anything else, such as an object that cannot be decoded.
        Other = "other",
    }
}

impl WatchErrorReason {
    /// Whether the API server could not be reached or could not answer. Errors that it answers on purpose, such as a refusal,
    /// and answers that cannot be decoded are none of this.
    pub fn is_outage(self) -> bool {
        matches!(self, Self::Connection | Self::Server)
    }

    fn from_status(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            410 => Self::Expired,
            429 | 500.. => Self::Server,
            _ => Self::Other,
        }
    }
}

impl From<&kube::Error> for WatchErrorReason {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(status.code),
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => Self::Connection,
            _ => Self::Other,
        }
    }
}

impl From<&watcher::Error> for WatchErrorReason {
    fn from(error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => Self::from_status(status.code),
            watcher::Error::NoResourceVersion => Self::Other,
        }
    }
}

/// The current failure of a watch, from its first error until the API server answers again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    /// The kind of the latest errors.
    pub reason: WatchErrorReason,
    /// The text of the first error of this kind, with its causes.
    pub error: String,
    /// The wall-clock time of that error.
    pub since: Timestamp,
}

/// Label names and values.
type Labels = Vec<(&'static str, &'static str)>;

/// Counts the errors of a watch by [`WatchErrorReason`]. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct WatchErrorCounter {
    errors: Family<Labels, Counter>,
    resource: Option<&'static str>,
}

impl WatchErrorCounter {
    /// Registers the counter `name` with the label `reason`; every reason starts at 0.
    pub fn declare(table: &mut MetricTable<'_>, name: &str, help: &str) -> Self {
        let [counter] = Self::declare_all(table, name, help, [None]);
        counter
    }

    /// Registers the counter `name` with the labels `resource` and `reason`, and returns one counter for each resource.
    pub fn declare_by_resource<const N: usize>(
        table: &mut MetricTable<'_>,
        name: &str,
        help: &str,
        resources: [&'static str; N],
    ) -> [Self; N] {
        Self::declare_all(table, name, help, resources.map(Some))
    }

    fn declare_all<const N: usize>(
        table: &mut MetricTable<'_>,
        name: &str,
        help: &str,
        resources: [Option<&'static str>; N],
    ) -> [Self; N] {
        let errors: Family<Labels, Counter> = table.metric(name, help);
        resources.map(|resource| {
            let counter = Self {
                errors: errors.clone(),
                resource,
            };
            for reason in WatchErrorReason::ALL {
                drop(counter.errors.get_or_create(&counter.labels(reason)));
            }
            counter
        })
    }

    pub(super) fn increment(&self, reason: WatchErrorReason) {
        self.errors.get_or_create(&self.labels(reason)).inc();
    }

    fn labels(&self, reason: WatchErrorReason) -> Labels {
        let resource = self.resource.map(|resource| ("resource", resource));
        resource.into_iter().chain([("reason", reason.as_str())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn every_reason_has_a_series_before_the_first_error() {
        let mut registry = Registry::default();
        let mut table = MetricTable::from(&mut registry);
        let single = WatchErrorCounter::declare(&mut table, "single", "One watch");
        let [_, second] = WatchErrorCounter::declare_by_resource(&mut table, "several", "Watches", ["a", "b"]);
        single.increment(WatchErrorReason::Forbidden);
        second.increment(WatchErrorReason::Server);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "single_total{reason=\"connection\"} 0",
            "single_total{reason=\"forbidden\"} 1",
            "several_total{resource=\"a\",reason=\"server\"} 0",
            "several_total{resource=\"b\",reason=\"server\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
    }
}
