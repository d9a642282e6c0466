//! Azure's Scheduled Events in the agent: the tasks that poll them, turn an eviction into a signal, and reconcile the
//! taint.

use std::collections::{BTreeMap, BTreeSet};

use headgate_agent::spot::{EventsSnapshot, Timing, TrackedNotice};
use headgate_core::node::{AzureNotice, NodeReport, Signal, SignalMatcher};
use headgate_core::{changed, publish_if_changed};
use headgate_kubernetes::{EventKind, EventSink, FieldIntents};
use jiff::Timestamp;
use tokio::sync::watch;

use super::tasks::Tasks;
use super::{Process, own_node};
use crate::config::Settings;

const NOTICE_EXPIRED: EventKind = EventKind::warning("EvictionNoticeExpired", "EndNotice");

/// The channels of Scheduled Events.
pub(super) struct Channels {
    /// The events that make `/healthz` fail at once.
    signals: BTreeSet<AzureNotice>,
    pub(super) snapshots: watch::Sender<EventsSnapshot>,
    /// The signals that follow from the latest snapshot, for the verdict.
    pub(super) notices: watch::Sender<BTreeMap<Signal, Timestamp>>,
}

impl Channels {
    pub(super) fn new(settings: &Settings) -> Self {
        let rules = settings.signals.health();
        Self {
            signals: AzureNotice::ALL
                .into_iter()
                .filter(|notice| rules.matchers.contains(&SignalMatcher::Azure(*notice)))
                .collect(),
            snapshots: watch::Sender::default(),
            notices: watch::Sender::default(),
        }
    }

    /// Starts the tasks. If Scheduled Events are disabled, one task keeps the channels open, and another one removes the taint of a
    /// notice from before that has not been confirmed in time.
    pub(super) fn start(
        self,
        tasks: &mut Tasks,
        process: Process,
        reports: watch::Receiver<NodeReport>,
        intents: FieldIntents,
        events: EventSink,
        metrics: headgate_agent::spot::Metrics,
    ) {
        let Self {
            signals,
            snapshots,
            notices,
        } = self;
        let (settings, clock) = (&process.settings.azure, process.clock);
        if !settings.polls_scheduled_events() {
            snapshots.send_replace(EventsSnapshot::without_documents());
        }
        let reconcile = headgate_agent::spot::reconcile_taint(
            process.node_name,
            reports.clone(),
            snapshots.subscribe(),
            intents,
            clock.clone(),
        );
        tasks.spawn_endless("spot-taint", reconcile);
        if !settings.polls_scheduled_events() {
            tasks.spawn_endless("azure-notices", async move {
                tokio::join!(notices.closed(), snapshots.closed());
            });
            return;
        }
        // An eviction taints the Node in any case.
        let chosen = signals.iter().copied().chain([AzureNotice::Preempt]).collect();
        tasks.spawn_endless(
            "azure-notices",
            publish_signals(snapshots.subscribe(), notices, signals),
        );
        tasks.spawn_endless(
            "notice-events",
            report_expired_notices(snapshots.subscribe(), events, reports.clone()),
        );
        let (authority, timing) = (settings.imds_authority.clone(), Timing::default());
        let poll = headgate_agent::spot::poll_imds(authority, reports, snapshots, chosen, timing, metrics, clock);
        tasks.spawn_endless("scheduled-events", poll);
    }
}

/// Records an event when a notice ends without confirmation, until the task is aborted.
async fn report_expired_notices(
    mut snapshots: watch::Receiver<EventsSnapshot>,
    events: EventSink,
    reports: watch::Receiver<NodeReport>,
) {
    let mut before = snapshots.borrow_and_update().clone();
    while snapshots.changed().await.is_ok() {
        let after = snapshots.borrow_and_update().clone();
        if let Some(note) = after.expired_notice(&before).as_ref().map(expired_notice_note) {
            events.record(own_node(&events, &reports), NOTICE_EXPIRED, note);
        }
        before = after;
    }
    // The poll ended: the agent stops, and aborts this task.
    std::future::pending::<()>().await;
}

fn expired_notice_note(expired: &TrackedNotice) -> String {
    let notice = expired.merged();
    let not_before = notice
        .not_before
        .map_or_else(|| "without a time".to_owned(), |at| format!("not before {at}"));
    format!(
        "no answer of IMDS has confirmed the {} notice {} ({not_before}) for 15 min, so it ends",
        notice.event_type.as_str(),
        notice.event_id
    )
}

/// Publishes those signals of each snapshot that count, until the task is aborted.
async fn publish_signals(
    mut snapshots: watch::Receiver<EventsSnapshot>,
    notices: watch::Sender<BTreeMap<Signal, Timestamp>>,
    counted: BTreeSet<AzureNotice>,
) {
    let counts = |signal: &Signal| matches!(signal, Signal::Azure(notice) if counted.contains(notice));
    loop {
        let mut signals = snapshots.borrow_and_update().signals();
        signals.retain(|signal, _| counts(signal));
        publish_if_changed(&notices, signals);
        changed(&mut snapshots).await;
    }
}

#[cfg(test)]
mod tests {
    use headgate_agent::spot::Notice;

    use super::*;

    #[test]
    fn the_event_names_the_notice_and_its_time() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (not_before, expected) in [
            (Some(at), "a (not before 2026-01-02T03:04:05Z)"),
            (None, "a (without a time)"),
        ] {
            let notice = Notice {
                event_type: AzureNotice::Preempt,
                event_id: "a".to_owned(),
                not_before,
            };
            let note = expired_notice_note(&TrackedNotice {
                first: notice.clone(),
                latest: notice,
                since: at,
                is_listed: true,
            });
            assert!(note.contains(expected), "{note}");
        }
    }
}
