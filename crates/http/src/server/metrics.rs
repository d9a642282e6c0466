//! What listeners count and show.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::proxy_protocol::{OUTCOMES, Outcomes};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClosedLabels {
    listener: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyHeaderLabels {
    listener: &'static str,
    outcome: &'static str,
}

/// Counters of all listeners.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    bound: Family<Labels, Gauge>,
    bind_failures: Family<Labels, Counter>,
    connections: Family<Labels, Gauge>,
    accepted: Family<Labels, Counter>,
    accept_errors: Family<Labels, Counter>,
    closed: Family<ClosedLabels, Counter>,
    proxy_headers: Family<ProxyHeaderLabels, Counter>,
}

/// Reasons for which a connection is closed by us before its peer is done.
pub(super) const CLOSED_REASONS: [&str; 5] = ["evicted", "idle", "request-timeout", "answer-timeout", "write-timeout"];

/// Counters of one listener, looked up once.
#[derive(Clone, Debug)]
pub(super) struct ListenerMetrics {
    pub(super) bound: Gauge,
    pub(super) bind_failures: Counter,
    pub(super) connections: Gauge,
    pub(super) accepted: Counter,
    pub(super) accept_errors: Counter,
    closed: [Counter; CLOSED_REASONS.len()],
}

impl Metrics {
    /// Registers the counters.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "headgate_listener_bound",
            "1 while the listener's address is bound, 0 while binding is tried again every 5 s",
            metrics.bound.clone(),
        );
        registry.register(
            "headgate_listener_bind_failures",
            "Failed attempts to bind the listener's address",
            metrics.bind_failures.clone(),
        );
        registry.register(
            "headgate_listener_connections",
            "Connections open on the listener",
            metrics.connections.clone(),
        );
        registry.register(
            "headgate_listener_accepted",
            "Connections accepted on the listener",
            metrics.accepted.clone(),
        );
        registry.register(
            "headgate_listener_accept_errors",
            "Connections that could not be accepted, for instance for want of file descriptors",
            metrics.accept_errors.clone(),
        );
        registry.register(
            "headgate_listener_closed",
            "Connections closed by headgate before their peer was done, by reason: evicted at the cap, idle, a request, \
             an answer or a write that took too long",
            metrics.closed.clone(),
        );
        registry.register(
            "headgate_listener_proxy_headers",
            "Connections to a listener with proxyProtocol, by what they began with: a header of v1 or v2, none where it is \
             optional; and those closed: missing where it is required, half, invalid or oversized",
            metrics.proxy_headers.clone(),
        );
        metrics
    }

    /// Shows a listener's series before it is bound.
    pub fn announce(&self, listener: &'static str) {
        drop(self.listener(listener));
    }

    /// What connections to a listener began with.
    pub(super) fn proxy_headers(&self, listener: &'static str) -> Outcomes {
        let counter = |outcome| {
            self.proxy_headers
                .get_or_create(&ProxyHeaderLabels { listener, outcome })
                .clone()
        };
        Outcomes(OUTCOMES.map(counter))
    }

    /// Shows a listener's outcomes of the PROXY protocol before there are any.
    pub fn announce_proxy_headers(&self, listener: &'static str) {
        drop(self.proxy_headers(listener));
    }

    pub(super) fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let labels = Labels { listener };
        ListenerMetrics {
            bound: self.bound.get_or_create(&labels).clone(),
            bind_failures: self.bind_failures.get_or_create(&labels).clone(),
            connections: self.connections.get_or_create(&labels).clone(),
            accepted: self.accepted.get_or_create(&labels).clone(),
            accept_errors: self.accept_errors.get_or_create(&labels).clone(),
            closed: CLOSED_REASONS.map(|reason| self.closed.get_or_create(&ClosedLabels { listener, reason }).clone()),
        }
    }
}

impl ListenerMetrics {
    pub(super) fn closed(&self, reason: &str) {
        if let Some(index) = CLOSED_REASONS.iter().position(|known| *known == reason) {
            self.closed[index].inc();
        }
    }
}
