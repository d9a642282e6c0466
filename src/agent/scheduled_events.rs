//! Azure's Scheduled Events in the agent: the tasks that poll them, turn an eviction into a signal, and reconcile the
//! taint.

use std::collections::BTreeMap;

use headgate_clock::Clock;
use headgate_node::{BuiltInSignal, NodeReport, Signal};
use headgate_spot::{EventsSnapshot, Timing};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use super::policies::Policies;
use super::tasks::Tasks;
use crate::config::{AzureSettings, Settings};

/// The channels of Scheduled Events.
pub(super) struct Channels {
    settings: AzureSettings,
    /// Whether an eviction makes `/healthz` fail at once.
    is_signal: bool,
    clock: Clock,
    pub(super) snapshots: watch::Sender<EventsSnapshot>,
    /// The signals that follow from the latest snapshot, for the verdict.
    pub(super) notices: watch::Sender<BTreeMap<Signal, Timestamp>>,
}

impl Channels {
    pub(super) fn new(settings: &Settings, clock: &Clock) -> Self {
        Self {
            settings: settings.azure.clone(),
            is_signal: settings.signals.health.built_in.contains(&BuiltInSignal::AzurePreempt),
            clock: clock.clone(),
            snapshots: watch::Sender::default(),
            notices: watch::Sender::default(),
        }
    }

    /// The snapshots, if Scheduled Events are enabled.
    pub(super) fn enabled_snapshots(&self) -> Option<watch::Receiver<EventsSnapshot>> {
        self.settings.scheduled_events.then(|| self.snapshots.subscribe())
    }

    /// Starts the tasks. If Scheduled Events are disabled, one task keeps the channel open.
    pub(super) fn start(
        self,
        tasks: &mut Tasks,
        client: &Client,
        node_name: &str,
        reports: &watch::Receiver<NodeReport>,
        metrics: headgate_spot::Metrics,
        policies: Policies,
    ) {
        let Self {
            settings,
            is_signal,
            clock,
            snapshots,
            notices,
        } = self;
        if !settings.scheduled_events {
            tasks.spawn_endless("azure-notices", async move { notices.closed().await });
            return;
        }
        if is_signal {
            tasks.spawn_endless("azure-notices", publish_signals(snapshots.subscribe(), notices));
        } else {
            tasks.spawn_endless("azure-notices", async move { notices.closed().await });
        }
        let reconcile = headgate_spot::reconcile_taint(
            client.clone(),
            node_name.to_owned(),
            reports.clone(),
            snapshots.subscribe(),
            metrics.clone(),
            clock.clone(),
        );
        tasks.spawn_endless("spot-taint", policies.before(reconcile));
        let authority = settings.imds_authority;
        let poll = headgate_spot::poll_imds(authority, reports.clone(), snapshots, Timing::default(), metrics, clock);
        tasks.spawn_endless("scheduled-events", poll);
    }
}

/// Publishes the signals of each snapshot until the task is aborted.
async fn publish_signals(
    mut snapshots: watch::Receiver<EventsSnapshot>,
    notices: watch::Sender<BTreeMap<Signal, Timestamp>>,
) {
    loop {
        let signals = snapshots.borrow_and_update().signals();
        notices.send_if_modified(|current| {
            let is_changed = *current != signals;
            *current = signals;
            is_changed
        });
        if snapshots.changed().await.is_err() {
            // The poll ended: the agent stops, and aborts this task.
            return std::future::pending().await;
        }
    }
}
