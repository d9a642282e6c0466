//! What per-Service health counts and shows. No series is a Service's own: there may be thousands.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::super::metrics::Codes;
use super::index::Table;
use super::state::Ports;
use headgate_kubernetes::WATCH_ERROR_REASONS;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Services.
    Services,
    /// EndpointSlices.
    Slices,
}

impl Resource {
    pub(super) const ALL: [Self; 2] = [Self::Services, Self::Slices];

    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    resource: &'static str,
    reason: &'static str,
}

/// Counters of per-Service health.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) answers: Codes,
    errors: Family<ErrorLabels, Counter>,
    pub(super) bind_failures: Counter,
}

impl Metrics {
    /// Registers the counters, and gauges read at each scrape.
    #[must_use]
    pub fn register(
        registry: &mut Registry,
        tables: watch::Receiver<Option<Arc<Table>>>,
        ports: watch::Receiver<Ports>,
    ) -> Self {
        let metrics = Self {
            answers: Codes::register(
                registry,
                "headgate_service_healthz",
                "Answers about the health of single Services, by HTTP status",
            ),
            errors: Family::default(),
            bind_failures: Counter::default(),
        };
        for resource in Resource::ALL {
            for reason in WATCH_ERROR_REASONS {
                let resource = resource.as_str();
                drop(metrics.errors.get_or_create(&ErrorLabels { resource, reason }));
            }
        }
        registry.register(
            "headgate_service_watch_errors",
            "Errors of the lists and watches of Services and EndpointSlices, by reason",
            metrics.errors.clone(),
        );
        registry.register(
            "headgate_service_port_bind_failures",
            "Failed attempts to open a Service's health check node port in one IP family",
            metrics.bind_failures.clone(),
        );
        registry.register_collector(Box::new(State { tables, ports }));
        metrics
    }

    pub(super) fn error(&self, resource: Resource, reason: &'static str) {
        let resource = resource.as_str();
        self.errors.get_or_create(&ErrorLabels { resource, reason }).inc();
    }
}

#[derive(Debug)]
struct State {
    tables: watch::Receiver<Option<Arc<Table>>>,
    ports: watch::Receiver<Ports>,
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = |count: usize| ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        let services = self.tables.borrow().as_ref().map_or(0, |table| table.len());
        gauge(services).encode(encoder.encode_descriptor(
            "headgate_service_health_services",
            "Services whose health is answered for; 0 until Services and EndpointSlices were listed once.",
            None,
            MetricType::Gauge,
        )?)?;
        let (open, failed) = {
            let ports = self.ports.borrow();
            (ports.open.len(), ports.failed.len())
        };
        let mut ports = encoder.encode_descriptor(
            "headgate_service_ports",
            "Health check node ports, each IP family apart: open, or failed and tried again every 5 s.",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [("open", open), ("failed", failed)] {
            gauge(count).encode(ports.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}
