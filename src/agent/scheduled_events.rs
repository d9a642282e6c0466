//! Azure's Scheduled Events in the agent: asked for, made a signal of the health port, kept as a taint.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use super::supervise::Tasks;
use crate::clock::Clock;
use crate::config::AzureSettings;
use crate::node::Report;
use crate::spot::{self, Seen, Timing};

/// What the tasks are made of.
pub(super) struct Parts {
    pub(super) settings: AzureSettings,
    pub(super) reports: watch::Receiver<Report>,
    pub(super) seen: watch::Sender<Seen>,
    pub(super) notices: watch::Sender<BTreeMap<String, Timestamp>>,
    pub(super) metrics: spot::Metrics,
}

impl Parts {
    /// Starts the tasks; where events are not asked for, one that only keeps the channel open.
    pub(super) fn start(self, tasks: &mut Tasks, client: &Client, node_name: &str, clock: &Clock) {
        let Self {
            settings,
            reports,
            seen,
            notices,
            metrics,
        } = self;
        if !settings.scheduled_events {
            tasks.endless("azure-notices", async move { notices.closed().await });
            return;
        }
        tasks.endless("azure-notices", pass_on(seen.subscribe(), notices));
        let keeper = spot::keep(
            client.clone(),
            node_name.to_owned(),
            reports.clone(),
            seen.subscribe(),
            metrics.clone(),
            clock.clone(),
        );
        tasks.endless("spot-taint", keeper);
        let poll = spot::poll(
            settings.imds_authority,
            reports,
            seen,
            Timing::default(),
            metrics,
            clock.clone(),
        );
        tasks.endless("scheduled-events", poll);
    }
}

/// Tells the health port what is announced.
async fn pass_on(mut seen: watch::Receiver<Seen>, notices: watch::Sender<BTreeMap<String, Timestamp>>) {
    loop {
        let signals = seen.borrow_and_update().signals();
        notices.send_if_modified(|current| {
            let changed = *current != signals;
            *current = signals;
            changed
        });
        if seen.changed().await.is_err() {
            // The poll is gone: the agent is stopping, and this task with it.
            return std::future::pending().await;
        }
    }
}
