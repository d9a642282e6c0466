//! The report of the leader about itself: from what it has read and decided last, without a request to Azure. Pure.

use headgate_controller::admin_state::WorkSnapshot;
use headgate_controller::local_pools::QueuedUpdate;
use headgate_controller::pool::InterfaceCache;
use headgate_core::clock::Moment;
use headgate_core::telemetry::VERSION;
use headgate_kubernetes::leader::LeaderStatus;
use jiff::Timestamp;

use super::local_pools::{LocalPoolsSnapshot, rows_of};
use super::report::{LeaderWork, MarkerRow, StatusReport};
use super::snapshot::{AzureSnapshot, ClusterSnapshot};
use crate::config::Settings;
use crate::why::MaintenanceRow;

/// What the report is made from.
pub(crate) struct LeaderInputs<'a> {
    /// What the work of the term has read and decided.
    pub work: WorkSnapshot,
    pub settings: &'a Settings,
    pub node_name: String,
    /// The number of the term, and its start.
    pub term: Option<(i32, Timestamp)>,
    pub maintenances: Result<Vec<MaintenanceRow>, String>,
    pub queue: Vec<QueuedUpdate>,
    pub now: Moment,
}

impl StatusReport {
    /// The report about all Nodes.
    pub(crate) fn of_leader(inputs: LeaderInputs<'_>) -> Self {
        let LeaderInputs {
            work,
            settings,
            node_name,
            term,
            maintenances,
            queue,
            now,
        } = inputs;
        let list_error = work.listing.last_error.as_ref().map(|error| error.message.clone());
        let azure = match work.listing.requested_at {
            Some(_) => Ok(AzureSnapshot {
                listing: (*work.listing).clone(),
                recorded: (*work.recorded).clone(),
                interfaces: InterfaceCache::clone(&work.interfaces),
            }),
            None => Err(list_error
                .clone()
                .unwrap_or_else(|| "the load balancers are not listed yet".to_owned())),
        };
        let local_pools = work.updater.as_ref().map(|updater| LocalPoolsSnapshot {
            is_active: true,
            rows: rows_of(updater),
            ..LocalPoolsSnapshot::default()
        });
        let snapshot = ClusterSnapshot {
            now,
            desired: (*work.targets).clone(),
            leader: Ok(Some(LeaderStatus {
                holder: Some(node_name.clone()),
                since: term.map(|(_, since)| since),
                renewed: Some(now.wall),
                alive: true,
                term: term.map_or(0, |(number, _)| number),
                candidates: None,
            })),
            ledger: Ok((*work.ledger).clone()),
            azure,
            policy: work.policy,
            guard: settings.guard_settings(false),
            services: Ok((*work.services).clone()),
            local_pools: local_pools.unwrap_or_default(),
            maintenances,
        };
        let mut report = Self::from_snapshot(&snapshot);
        let updates_local_pools = work.updater.is_some();
        for row in &mut report.nodes {
            let Some(node) = work.targets.nodes.by_name(&row.name) else {
                continue;
            };
            let period = work.targets.signal_period(node).filter(|_| !row.signals.is_empty());
            row.signalled_since = period.map(|period| period.since.wall);
            row.connections_drained = node.connections.as_ref().map(MarkerRow::from);
        }
        report.leader_work = Some(LeaderWork {
            version: VERSION.to_owned(),
            node: node_name,
            listed_at: work.listed_at,
            list_error,
            reads_throttled_until: work.reads_throttled_until,
            writes_throttled_until: work.writes_throttled_until,
            nodes_stale_since: work.targets.stale_since(),
            events: work.events,
            updates_local_pools,
            queue,
        });
        report
    }
}
