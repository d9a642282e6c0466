//! What this process reports: events and webhook notices about the signals of its own Node, and notices about the events of the leader.
//!
//! Nothing here is waited for: notices go into a bounded queue, and a webhook that cannot be set up is tried again and ends
//! no process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_agent::health::VerdictInputs;
use headgate_agent::notify::{Metrics, Notice, Notifier, Webhook, deliver, queue};
use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_core::node::Source;
use headgate_http::client::TrustedRoots;
use headgate_http::proxies::Proxies;
use headgate_kubernetes::{EventKind, EventObserver, EventSink};
use tokio::time::{Instant, sleep, sleep_until};

use super::own_node;
use super::signal_events::{SignalChange, SignalEvents};
use super::tasks::Tasks;
use crate::config::Settings;

/// The event of a Node that gets signals.
const SIGNALLED: EventKind = EventKind::normal("NodeSignalled", "AnswerProbes");
/// The event of a Node that loses its last signal.
const SIGNALS_ENDED: EventKind = EventKind::normal("NodeSignalsEnded", "AnswerProbes");
/// Time between two attempts to set up the webhook.
const SETUP_RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// Starts the task that sends notices, if the settings name a file with a URL.
pub(super) fn start(tasks: &mut Tasks, settings: &Settings, metrics: Metrics, clock: Clock) -> Notifier {
    let settings = settings.notifications.clone();
    if settings.url_file.is_none() {
        return Notifier::off();
    }
    let (notifier, notices) = queue(&settings, &metrics);
    tasks.spawn_endless("notifications", async move {
        let webhook = loop {
            match Webhook::new(&settings, Proxies::from_env(), &TrustedRoots::System) {
                Ok(Some(webhook)) => break webhook,
                Ok(None) => return std::future::pending::<()>().await,
                Err(error) => tracing::error!(%error, "webhook not set up"),
            }
            sleep(SETUP_RETRY_INTERVAL).await;
        };
        let send = |body| webhook.send(body);
        deliver(notices, send, settings, metrics, clock).await;
        // The last notifier is dropped when the process stops; the end of the task would end it earlier.
        std::future::pending::<()>().await;
    });
    notifier
}

/// Gives each event of the leader to the notifier.
pub(super) fn observer(notifier: Notifier, reporter: String, clock: Clock) -> EventObserver {
    Arc::new(move |event| {
        notifier.notify(Notice {
            event: event.kind.reason.to_owned(),
            time: clock.now().wall,
            kind: event.about.kind.clone().unwrap_or_default(),
            namespace: event.about.namespace.clone().unwrap_or_default(),
            name: event.about.name.clone().unwrap_or_default(),
            warning: event.kind.is_warning,
            note: event.note.to_owned(),
            signals: Vec::new(),
            reporter: reporter.clone(),
        });
    })
}

/// Records events about the signals of the own Node, and sends them as notices, until the process stops.
pub(super) async fn report_signals(
    mut inputs: VerdictInputs,
    events: EventSink,
    notifier: Notifier,
    node: String,
    clock: Clock,
) {
    let mut reported = SignalEvents::default();
    loop {
        let now = clock.now();
        let verdict = inputs.verdict(now);
        let present: BTreeSet<String> = verdict.signals.iter().cloned().collect();
        if verdict.source != Source::None
            && let Some(change) = reported.next(&present, now.mono)
        {
            let (kind, text) = describe(&change, verdict.is_healthz_ok());
            events.record(own_node(&events, &inputs.node), kind, text.clone());
            notifier.notify(Notice {
                event: kind.reason.to_owned(),
                time: now.wall,
                kind: "Node".to_owned(),
                namespace: String::new(),
                name: node.clone(),
                warning: kind.is_warning,
                note: text,
                signals: present.iter().cloned().collect(),
                reporter: node.clone(),
            });
        }
        let deadline = reported.next_deadline(&present);
        tokio::select! {
            () = changed(&mut inputs.node) => {}
            () = changed(&mut inputs.notices) => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
    }
}

fn describe(change: &SignalChange, is_healthz_ok: bool) -> (EventKind, String) {
    let code = if is_healthz_ok { 200 } else { 503 };
    match change {
        SignalChange::Signalled(signals) => {
            let names = signals.join(", ");
            (
                SIGNALLED,
                format!("The node has signals: {names}; /healthz answers {code}."),
            )
        }
        SignalChange::Ended => (
            SIGNALS_ENDED,
            format!("The node has no signal any more; /healthz answers {code}."),
        ),
    }
}

#[cfg(test)]
mod tests;
