//! The metrics of listeners.

use headgate_core::telemetry::{MetricTable, words};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::proxy_protocol::{HeaderCounters, HeaderOutcome};

/// `N` labels, the first of which is `listener`.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of all listeners of the process.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    bound: Family<Labels<1>, Gauge>,
    bind_failures: Family<Labels<1>, Counter>,
    connections: Family<Labels<1>, Gauge>,
    accepted: Family<Labels<1>, Counter>,
    accept_errors: Family<Labels<1>, Counter>,
    closed: Family<Labels<2>, Counter>,
    proxy_headers: Family<Labels<2>, Counter>,
}

words! {
    /// Why headgate closed a connection before its peer did.
    pub(super) enum CloseReason {
        /// It had waited longest when the connection limit was reached.
        Evicted = "evicted",
        /// It sent no request within [`Limits::idle_timeout`](super::Limits::idle_timeout).
        Idle = "idle",
        RequestTimeout = "request-timeout",
        AnswerTimeout = "answer-timeout",
        WriteTimeout = "write-timeout",
    }
}

/// The metrics of one listener, looked up once.
#[derive(Clone, Debug)]
pub(super) struct ListenerMetrics {
    pub(super) bound: Gauge,
    pub(super) bind_failures: Counter,
    pub(super) connections: Gauge,
    pub(super) accepted: Counter,
    pub(super) accept_errors: Counter,
    closed: [Counter; CloseReason::ALL.len()],
}

impl Metrics {
    /// Registers the metrics. Each listener's series appear with [`Metrics::init_listener`] or when it is bound.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        Self {
            bound: table.metric(
                "headgate_listener_bound",
                "1 while the listener's address is bound, else 0",
            ),
            bind_failures: table.metric(
                "headgate_listener_bind_failures",
                "Failed attempts to bind the listener's address",
            ),
            connections: table.metric(
                "headgate_listener_connections",
                "Connections that are open on the listener",
            ),
            accepted: table.metric(
                "headgate_listener_accepted",
                "Connections that the listener accepted",
            ),
            accept_errors: table.metric(
                "headgate_listener_accept_errors",
                "Failed attempts to accept a connection, for example without a free file descriptor",
            ),
            closed: table.metric(
                "headgate_listener_closed",
                "Connections that headgate closed, by reason: evicted at the connection limit, idle, or a request, an answer or a write \
                that took too long",
            ),
            proxy_headers: table.metric(
                "headgate_listener_proxy_headers",
                "Connections to a listener with proxyProtocol: with a header v1 or v2, or none where it is optional; and closed ones, \
                whose header is missing, half sent, invalid or oversized",
            ),
        }
    }

    /// The same for listeners that share a name: only the connections that headgate closed are counted in these metrics, because a gauge of
    /// one listener has no meaning for many.
    #[must_use]
    pub fn of_many_listeners(&self) -> Self {
        Self {
            closed: self.closed.clone(),
            ..Self::default()
        }
    }

    /// Creates the series of a listener that is not bound yet.
    pub fn init_listener(&self, listener: &'static str) {
        drop(self.listener(listener));
    }

    /// Creates the listener's series of the PROXY protocol.
    pub fn init_proxy_headers(&self, listener: &'static str) {
        drop(self.proxy_headers(listener));
    }

    pub(super) fn proxy_headers(&self, listener: &'static str) -> HeaderCounters {
        HeaderCounters::new(|outcome: HeaderOutcome| {
            let labels = [("listener", listener), ("outcome", outcome.as_str())];
            self.proxy_headers.get_or_create_owned(&labels)
        })
    }

    pub(super) fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let labels = [("listener", listener)];
        let closed = |reason: CloseReason| {
            let labels = [("listener", listener), ("reason", reason.as_str())];
            self.closed.get_or_create_owned(&labels)
        };
        ListenerMetrics {
            bound: self.bound.get_or_create_owned(&labels),
            bind_failures: self.bind_failures.get_or_create_owned(&labels),
            connections: self.connections.get_or_create_owned(&labels),
            accepted: self.accepted.get_or_create_owned(&labels),
            accept_errors: self.accept_errors.get_or_create_owned(&labels),
            closed: CloseReason::ALL.map(closed),
        }
    }
}

impl ListenerMetrics {
    pub(super) fn count_closed(&self, reason: CloseReason) {
        self.closed[reason as usize].inc();
    }
}
