//! The metrics of admin states: target and observed states, the changes that are due, and the time until `Down`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use headgate_core::publish_if_changed;
use headgate_core::telemetry::{Gauges, MetricTable};
use headgate_kubernetes::WatchErrorCounter;
use jiff::Timestamp;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::watch;

use super::plan::PoolCounts;
use super::view::{WorkView, WorkViews};

/// The values of the gauges; empty on an instance that does not lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GaugeValues {
    pub(super) pools: Vec<PoolCounts>,
    /// How many Nodes have each signal.
    pub(super) nodes_by_signal: BTreeMap<String, usize>,
    pub(super) pending_changes: usize,
    /// When the last successful list of load balancers was sent.
    pub(super) last_list: Option<Timestamp>,
    /// Since when the lists that are due fail.
    pub(super) lists_failing_since: Option<Timestamp>,
    /// When the Nodes were known to be current last, if they are stale.
    pub(super) nodes_stale_since: Option<Timestamp>,
}

/// The metrics of admin states. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    signal_to_down: Histogram,
    watch_errors: WatchErrorCounter,
    gauges: watch::Sender<GaugeValues>,
    pub(super) views: WorkViews,
}

impl Metrics {
    /// Registers the metrics, whose names are in docs/reference/metrics.md.
    #[must_use]
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        let gauges = watch::Sender::<GaugeValues>::default();
        let shown = gauges.subscribe();
        table.at_scrape(move |gauges| write_gauges(&shown.borrow().clone(), gauges));
        Self {
            signal_to_down: table.histogram(
                "headgate_admin_state_signal_to_down_seconds",
                "Seconds from the leader's observation of a Node's signal to the read that shows all its pool entries Down, without Nodes \
                that the guard held back meanwhile or that had no entry at first",
                // ARM needs more than the first, and every eviction notice ends before the last.
                [
                    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
                ],
            ),
            watch_errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_admin_state_watch_errors",
                "Errors of the leader's watch of all Nodes, by reason",
            ),
            gauges,
            views: WorkViews::default(),
        }
    }

    /// Counts the errors of the watch of Nodes.
    #[must_use]
    pub fn watch_errors(&self) -> WatchErrorCounter {
        self.watch_errors.clone()
    }

    /// The state of the work of the present term; `None` on an instance that does not lead.
    #[must_use]
    pub fn work_view(&self) -> watch::Receiver<Option<WorkView>> {
        self.views.subscribe()
    }

    pub(super) fn observe_signal_to_down(&self, time: Duration) {
        self.signal_to_down.observe(time.as_secs_f64());
    }

    pub(super) fn set_gauges(&self, values: GaugeValues) {
        publish_if_changed(&self.gauges, values);
    }
}

/// Writes the gauges of one scrape, so that series of pools that no longer exist disappear.
fn write_gauges(values: &GaugeValues, gauges: &mut Gauges<'_>) -> fmt::Result {
    gauges.gauge(
        "headgate_admin_state_queue_depth",
        "Changes of admin states that are due and not read back yet; on the leader only.",
        as_gauge(values.pending_changes),
    )?;
    for (name, help, time) in [
        (
            "headgate_admin_state_last_list_timestamp_seconds",
            "Unix time of the leader's last list of load balancers that succeeded; 0 if none has in this term, and on other \
            instances.",
            values.last_list,
        ),
        (
            "headgate_admin_state_lists_failing_since_timestamp_seconds",
            "Unix time since which every list of load balancers that was due has failed or was throttled; 0 otherwise, and on other \
            instances.",
            values.lists_failing_since,
        ),
        (
            "headgate_admin_state_nodes_stale_since_timestamp_seconds",
            "Unix time of the API server's last confirmation of the leader's list of Nodes, if that is too long ago, so that it \
            writes no admin states; 0 otherwise, and on other instances.",
            values.nodes_stale_since,
        ),
    ] {
        gauges.gauge(name, help, time.map_or(0, Timestamp::as_second))?;
    }
    let nodes = values.nodes_by_signal.iter();
    gauges.by_label(
        "headgate_admin_state_signalled_nodes",
        "Nodes with a signal for admin states, by signal; a Node with several counts under each. On the leader only.",
        "signal",
        nodes.map(|(signal, count)| (signal.as_str(), as_gauge(*count))),
    )?;
    for (name, help, value) in POOL_GAUGES {
        let series = values.pools.iter().map(|counts| {
            let load_balancer = ("load_balancer", counts.pool.load_balancer().name());
            ([load_balancer, ("pool", counts.pool.name())], as_gauge(value(counts)))
        });
        gauges.by_labels(name, help, series)?;
    }
    Ok(())
}

/// Name, help and value of a gauge with the labels `load_balancer` and `pool`.
type PoolGauge = (&'static str, &'static str, fn(&PoolCounts) -> usize);

const POOL_GAUGES: [PoolGauge; 6] = [
    (
        "headgate_pool_addresses",
        "Entries of a pool that a load-balancing rule uses; on the leader only.",
        |pool| pool.entries,
    ),
    (
        "headgate_pool_desired_down",
        "Entries of a pool that should be Down: their Nodes have a signal and they are not held back; on the leader only.",
        |pool| pool.desired_down,
    ),
    (
        "headgate_pool_actual_down",
        "Entries of a pool that are Down, by headgate or foreign; on the leader only.",
        |pool| pool.actual_down,
    ),
    (
        "headgate_pool_eligible",
        "Entries of a pool that admit new connections once all changes are written; on the leader only.",
        |pool| pool.eligible,
    ),
    (
        "headgate_pool_held_back",
        "Entries of a pool that stay in service although their Nodes have a signal, for adminState.minimumInService or a rule of \
        a Local Service; on the leader only.",
        |pool| pool.held_back,
    ),
    (
        "headgate_pool_waiting",
        "Entries of a pool whose Nodes have a signal, and that wait for adminState.maxNewDown; on the leader only.",
        |pool| pool.waiting,
    ),
];

fn as_gauge(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
