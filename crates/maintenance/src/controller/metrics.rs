//! The metrics of the maintenance controllers.

use std::time::Duration;

use headgate_core::telemetry::{ByLabel, MetricTable, words};
use headgate_kubernetes::WatchErrorCounter;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::api::Stage;
use crate::blackhole::TrafficPolicy;
use crate::evacuation::eviction::{EvictionFailure, EvictionOutcome};

/// From a gate that is open at once to a drain of several days.
const BUCKETS: [f64; 13] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 172_800.0,
];

/// From a node that lost nothing to one that load balancers did not notice for half an hour.
const BLACKHOLE_BUCKETS: [f64; 11] = [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 1800.0];

words! {
    /// What became of a write.
    pub(super) enum Outcome {
        Done = "done",
        /// The object had changed since it was read, or is gone.
        Conflict = "conflict",
        /// The credentials lack the right, or a policy or the schema refuses the write.
        Refused = "refused",
        /// The term had ended, or the clocks disagree.
        NotPermitted = "not_permitted",
        /// No answer, or an error of the API server.
        Failed = "failed",
    }
}

/// The values of the gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GaugeValues {
    /// Maintenances by stage, in the order of the stages.
    pub(super) maintenances: [i64; 4],
    /// Maintenances, without dry runs, whose condition `Blocked` is `True`.
    pub(super) blocked: i64,
    pub(super) pods_pending: i64,
    pub(super) pods_evacuating: i64,
    pub(super) blockers: i64,
}

/// The metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    writes: ByLabel<Counter>,
    evictions: ByLabel<Counter>,
    stages: ByLabel<Histogram>,
    out_to_evacuation: Histogram,
    blackholes: ByLabel<Histogram>,
    maintenances: ByLabel<Gauge>,
    blocked: Gauge,
    pods: ByLabel<Gauge>,
    blockers: Gauge,
    restarts: Counter,
    watch_errors: WatchErrorCounter,
}

impl Metrics {
    /// Registers the metrics, whose names are in docs/reference/metrics.md.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        let failures = EvictionFailure::ALL.map(EvictionFailure::as_str);
        Self {
            writes: table.by_label(
                "headgate_maintenance_writes",
                "Writes of the maintenance controllers, by outcome, except evictions",
                "outcome",
                Outcome::ALL.map(Outcome::as_str),
            ),
            evictions: table.by_label(
                "headgate_maintenance_evictions",
                "Calls of the Eviction API, by outcome: accepted, another pod of that name, or the reason of the failure",
                "outcome",
                ["accepted", "other_pod"].into_iter().chain(failures),
            ),
            stages: table.by_label_with(
                "headgate_maintenance_stage_duration_seconds",
                "Seconds from the start of a NodeMaintenance's stage to the next one, or to the end of Complete",
                "stage",
                Stage::ALL[1..].iter().map(|stage| stage.as_str()),
                || Histogram::new(BUCKETS),
            ),
            out_to_evacuation: table.histogram(
                "headgate_maintenance_out_to_first_evacuation_seconds",
                "Seconds from the read that confirmed a node as out of its load balancers to its first Evacuation",
                BUCKETS,
            ),
            blackholes: table.by_label_with(
                "headgate_maintenance_blackhole_seconds",
                "Seconds for which load balancers may have sent connections for a Service to a node under maintenance that could not \
                serve it, by the Service's externalTrafficPolicy; one observation for each Service and node",
                "traffic_policy",
                TrafficPolicy::ALL.map(TrafficPolicy::as_str),
                || Histogram::new(BLACKHOLE_BUCKETS),
            ),
            maintenances: table.by_label(
                "headgate_maintenances",
                "NodeMaintenances by spec.stage; on the leader only",
                "stage",
                Stage::ALL.map(Stage::as_str),
            ),
            blocked: table.metric(
                "headgate_maintenances_blocked",
                "NodeMaintenances whose condition Blocked is True, without dry runs; on the leader only",
            ),
            pods: table.by_label(
                "headgate_maintenance_pods",
                "Pods that have to leave nodes under maintenance, without (pending) or with (evacuating) an Evacuation; on the leader \
                only",
                "state",
                ["pending", "evacuating"],
            ),
            blockers: table.metric(
                "headgate_maintenance_blockers",
                "Leaving pods that something keeps on their node; on the leader only",
            ),
            restarts: table.metric(
                "headgate_maintenance_restarts",
                "Restarts of the maintenance controllers after a defect",
            ),
            watch_errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_maintenance_watch_errors",
                "Errors of the watches of the maintenance controllers, by reason",
            ),
        }
    }

    /// Counts the errors of watches.
    pub fn watch_errors(&self) -> WatchErrorCounter {
        self.watch_errors.clone()
    }

    pub(super) fn count_write(&self, outcome: Outcome) {
        self.writes.of(outcome.as_str()).inc();
    }

    pub(super) fn count_eviction(&self, outcome: &EvictionOutcome) {
        let outcome = match outcome {
            EvictionOutcome::Accepted => "accepted",
            EvictionOutcome::OtherPod => "other_pod",
            EvictionOutcome::Failed { reason, .. } => reason.as_str(),
        };
        self.evictions.of(outcome).inc();
    }

    pub(super) fn observe_stage(&self, stage: Stage, took: Duration) {
        self.stages.of(stage.as_str()).observe(took.as_secs_f64());
    }

    pub(super) fn observe_out_to_evacuation(&self, took: Duration) {
        self.out_to_evacuation.observe(took.as_secs_f64());
    }

    pub(super) fn observe_blackhole(&self, policy: TrafficPolicy, lasted: Duration) {
        self.blackholes.of(policy.as_str()).observe(lasted.as_secs_f64());
    }

    pub(super) fn set_gauges(&self, values: &GaugeValues) {
        for (stage, count) in Stage::ALL.iter().zip(values.maintenances) {
            self.maintenances.of(stage.as_str()).set(count);
        }
        for (state, count) in [("pending", values.pods_pending), ("evacuating", values.pods_evacuating)] {
            self.pods.of(state).set(count);
        }
        self.blocked.set(values.blocked);
        self.blockers.set(values.blockers);
    }

    /// For an instance that does not lead.
    pub(super) fn clear_gauges(&self) {
        self.set_gauges(&GaugeValues::default());
    }

    pub(super) fn count_restart(&self) {
        self.restarts.inc();
    }
}
