//! The metrics of service health. No series is for a single Service, since there may be thousands.

use std::sync::Arc;

use headgate_core::clock::Clock;
use headgate_core::telemetry::{MetricTable, words};
use headgate_kubernetes::{WatchErrorCounter, WatchReporter};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

use super::super::failed_probes::ServiceAnswers;
use super::super::metrics::AnswerCounters;
use super::index::ServiceTable;
use super::ports::PortStates;
use super::watch::WatchReporters;

words! {
    /// A resource that service health watches.
    #[derive(PartialOrd, Ord)]
    pub enum WatchedResource {
        /// Services with service health.
        Services = "services",
        /// EndpointSlices of all Services.
        EndpointSlices = "endpointslices",
    }
}

/// The counters of service health.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) answers: AnswerCounters,
    service_errors: WatchErrorCounter,
    slice_errors: WatchErrorCounter,
    pub(super) bind_failures: Counter,
    /// `None` if nothing reads them.
    pub(super) by_service: Option<ServiceAnswers>,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the latest table and ports at each scrape. `by_service` counts the answers
    /// about each Service.
    pub fn register<'a>(
        registry: impl Into<MetricTable<'a>>,
        tables: watch::Receiver<Option<Arc<ServiceTable>>>,
        ports: watch::Receiver<PortStates>,
        by_service: Option<ServiceAnswers>,
    ) -> Self {
        let mut table = registry.into();
        table.at_scrape(move |gauges| {
            gauges.gauge(
                "headgate_service_health_services",
                "Services with service health; 0 until they and EndpointSlices were listed.",
                tables.borrow().as_ref().map_or(0, |table| table.iter().count()),
            )?;
            let (open, failed) = {
                let ports = ports.borrow();
                (ports.open.len(), ports.failed.len())
            };
            gauges.by_label(
                "headgate_service_ports",
                "Health check node ports, each IP family separately: open, or failed and tried again.",
                "state",
                [("open", open), ("failed", failed)],
            )
        });
        let [service_errors, slice_errors] = WatchErrorCounter::declare_by_resource(
            &mut table,
            "headgate_service_watch_errors",
            "Errors of lists and watches of Services and EndpointSlices, by resource and reason",
            [WatchedResource::Services, WatchedResource::EndpointSlices].map(WatchedResource::as_str),
        );
        Self {
            answers: AnswerCounters::declare(
                &mut table,
                &["headgate_service_healthz"],
                "Answers about the health of single Services, by HTTP status",
            ),
            service_errors,
            slice_errors,
            bind_failures: table.metric(
                "headgate_service_port_bind_failures",
                "Failed attempts to open a Service's health check node port",
            ),
            by_service,
        }
    }

    /// The reporter for a watch of Services that is not of service health; it counts in the same metric.
    pub fn service_watch_reporter(&self, clock: &Clock) -> WatchReporter {
        self.watch_reporters(clock).services
    }

    /// Reporters for the two watches, which count in these metrics.
    pub fn watch_reporters(&self, clock: &Clock) -> WatchReporters {
        let reporter = |resource: WatchedResource, errors: &WatchErrorCounter| {
            WatchReporter::new(resource.as_str(), errors.clone(), clock.clone())
        };
        WatchReporters {
            services: reporter(WatchedResource::Services, &self.service_errors),
            endpoint_slices: reporter(WatchedResource::EndpointSlices, &self.slice_errors),
        }
    }
}
