//! Azure's Scheduled Events in the agent: asked for, made a signal of the health port, kept as a taint.

use std::collections::BTreeMap;

use headgate_clock::Clock;
use headgate_node::Report;
use headgate_spot::{Seen, Timing};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use super::supervise::Tasks;
use crate::config::AzureSettings;

/// What is seen, and what of it is a signal.
pub(super) struct Channels {
    settings: AzureSettings,
    clock: Clock,
    pub(super) seen: watch::Sender<Seen>,
    pub(super) notices: watch::Sender<BTreeMap<String, Timestamp>>,
}

impl Channels {
    pub(super) fn new(settings: &AzureSettings, clock: &Clock) -> Self {
        Self {
            settings: settings.clone(),
            clock: clock.clone(),
            seen: watch::Sender::default(),
            notices: watch::Sender::default(),
        }
    }

    /// What is seen, where events are asked for.
    pub(super) fn view(&self) -> Option<watch::Receiver<Seen>> {
        self.settings.scheduled_events.then(|| self.seen.subscribe())
    }

    /// Starts the tasks; where events are not asked for, one that only keeps the channel open.
    pub(super) fn start(
        self,
        tasks: &mut Tasks,
        (client, node_name): (&Client, &str),
        reports: &watch::Receiver<Report>,
        metrics: headgate_spot::Metrics,
    ) {
        let Self {
            settings,
            clock,
            seen,
            notices,
        } = self;
        if !settings.scheduled_events {
            tasks.endless("azure-notices", async move { notices.closed().await });
            return;
        }
        tasks.endless("azure-notices", pass_on(seen.subscribe(), notices));
        let keeper = headgate_spot::keep(
            client.clone(),
            node_name.to_owned(),
            reports.clone(),
            seen.subscribe(),
            metrics.clone(),
            clock.clone(),
        );
        tasks.endless("spot-taint", keeper);
        let authority = settings.imds_authority;
        let poll = headgate_spot::poll(authority, reports.clone(), seen, Timing::default(), metrics, clock);
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
