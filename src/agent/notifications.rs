//! Webhook notifications of this process: when its own Node gets and loses signals, and the events of the leader.
//!
//! Nothing here is waited for: notices go into a bounded queue, and a webhook that cannot be set up is tried again and ends
//! no process.

use std::sync::Arc;
use std::time::Duration;

use headgate_agent::health::VerdictInputs;
use headgate_agent::notify::{Metrics, Notice, Notifier, Webhook, deliver, queue};
use headgate_core::clock::Clock;
use headgate_core::node::Source;
use headgate_http::client::TrustedRoots;
use headgate_http::proxies::Proxies;
use headgate_kubernetes::EventObserver;
use tokio::time::sleep;

use super::tasks::Tasks;
use crate::config::Settings;

/// The event of a Node that gets its first signal.
const SIGNALLED: &str = "NodeSignalled";
/// The event of a Node that loses its last signal.
const SIGNALS_ENDED: &str = "NodeSignalsEnded";
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

/// Reports the first and the last signal of the own Node, until the process stops. What is known at the start is reported by
/// no notice, because an earlier process did.
pub(super) async fn report_signals(mut inputs: VerdictInputs, notifier: Notifier, node: String, clock: Clock) {
    let mut was_signalled = None;
    loop {
        let verdict = inputs.verdict(clock.now());
        let signals = verdict.signals.clone();
        let is_signalled = !signals.is_empty();
        if verdict.source != Source::None && was_signalled != Some(is_signalled) {
            if was_signalled.is_some() {
                notifier.notify(signal_notice(&node, signals, verdict.is_healthz_ok(), &clock));
            }
            was_signalled = Some(is_signalled);
        }
        let is_running = tokio::select! {
            changed = inputs.node.changed() => changed.is_ok(),
            changed = inputs.notices.changed() => changed.is_ok(),
        };
        if !is_running {
            return std::future::pending::<()>().await;
        }
    }
}

fn signal_notice(node: &str, signals: Vec<String>, is_healthz_ok: bool, clock: &Clock) -> Notice {
    let code = if is_healthz_ok { 200 } else { 503 };
    let (event, text) = if signals.is_empty() {
        (
            SIGNALS_ENDED,
            format!("The node has no drain signal any more; /healthz answers {code}."),
        )
    } else {
        let names = signals.join(", ");
        (
            SIGNALLED,
            format!("The node has drain signals: {names}; /healthz answers {code}."),
        )
    };
    Notice {
        event: event.to_owned(),
        time: clock.now().wall,
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: node.to_owned(),
        warning: false,
        note: text,
        signals,
        reporter: node.to_owned(),
    }
}
