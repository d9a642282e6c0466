//! The own-Node watch: one object by field selector, its latest state published as a [`Report`].
//!
//! Runs for ever with kube's backoff and jitter. While the API server cannot be reached, refuses, or
//! has no such Node, the last report stays; the trouble is logged when it starts, changes and ends,
//! and counted each time.

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use super::metrics::Metrics;
use super::object::SlimNode;
use super::report::Report;
use crate::clock::Clock;
use crate::telemetry;

/// Why the Node cannot be watched just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind, as in metrics.
    pub reason: &'static str,
    /// The first error of this kind.
    pub error: String,
    /// When it began.
    pub since: Timestamp,
}

/// Where the watch publishes what it learns.
#[derive(Debug)]
pub struct Outlet {
    /// The state of the Node.
    pub reports: watch::Sender<Report>,
    /// The state of the watch itself.
    pub trouble: watch::Sender<Option<Trouble>>,
}

/// Watches the Node `name` and publishes what it says; never returns of itself.
pub async fn run(
    client: Client,
    name: String,
    taint_keys: Vec<String>,
    outlet: Outlet,
    metrics: Metrics,
    clock: Clock,
) {
    let Outlet { reports, trouble } = outlet;
    let selector = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(Api::<SlimNode>::all(client), selector)
        .default_backoff()
        .boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        let next = match event {
            Ok(event) => {
                // An answer to a list or watch; `Init` only says that one is about to be asked for.
                if !matches!(event, watcher::Event::Init)
                    && trouble.send_if_modified(|trouble| trouble.take().is_some())
                {
                    tracing::info!(node = name, "the own Node is watched again");
                }
                match event {
                    watcher::Event::Init => {
                        metrics.list();
                        listed = None;
                        continue;
                    }
                    watcher::Event::InitApply(node) => {
                        listed = Some(node);
                        continue;
                    }
                    watcher::Event::InitDone => listed.take(),
                    watcher::Event::Apply(node) => Some(node),
                    watcher::Event::Delete(_) => None,
                }
            }
            Err(error) => {
                let reason = reason(&error);
                metrics.error(reason);
                // An expired resource version is everyday business: kube lists anew.
                let news =
                    reason != "expired" && trouble.borrow().as_ref().is_none_or(|trouble| trouble.reason != reason);
                if news {
                    let error = telemetry::chain(&error);
                    tracing::warn!(
                        node = name,
                        reason,
                        error,
                        "the own Node cannot be watched; its last known state goes on"
                    );
                    trouble.send_replace(Some(Trouble {
                        reason,
                        error,
                        since: clock.now().wall,
                    }));
                }
                continue;
            }
        };
        let report = match next {
            Some(node) => reports.borrow().observed(node.facts(), &taint_keys, clock.now()),
            None => reports.borrow().absent(),
        };
        reports.send_if_modified(|current| {
            if *current == report {
                return false;
            }
            if current.presence != report.presence {
                tracing::info!(
                    node = name,
                    was = current.presence.as_str(),
                    now = report.presence.as_str(),
                    "the Node object"
                );
            }
            *current = report;
            true
        });
    }
}

/// The reason an error is counted and logged under, one of the metrics' reasons.
#[must_use]
pub fn reason(error: &watcher::Error) -> &'static str {
    let of_status = |code: u16| match code {
        401 => "unauthorized",
        403 => "forbidden",
        410 => "expired",
        429 | 500.. => "server",
        _ => "other",
    };
    let of_client = |error: &kube::Error| match error {
        kube::Error::Api(status) => of_status(status.code),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => "connection",
        _ => "other",
    };
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => of_client(error),
        watcher::Error::WatchError(status) => of_status(status.code),
        watcher::Error::NoResourceVersion => "other",
    }
}
