//! Who held the Lease that headgate shares with cloud-controller-manager, and when, as a watch shows it.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

const NAME: &str = "aks-managed-resource-locker";

/// From when on the Lease had this holder; an empty name is none.
type Changes = Arc<Mutex<Vec<(Instant, String)>>>;

/// The record, from its start until it is dropped.
pub(super) struct LeaseHolds {
    changes: Changes,
    _task: AbortOnDropHandle<()>,
}

impl LeaseHolds {
    pub(super) fn record(client: Client) -> Self {
        let changes = Changes::default();
        let written = Arc::clone(&changes);
        let leases = Api::<Lease>::namespaced(client, "kube-system");
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let task = tokio::spawn(async move {
            let mut events = watcher(leases, config).boxed();
            while let Some(event) = events.next().await {
                let Ok(Event::Apply(lease) | Event::InitApply(lease)) = event else {
                    continue;
                };
                let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
                let mut changes = written.lock().unwrap();
                if changes.last().is_none_or(|(_, last)| *last != holder) {
                    changes.push((Instant::now(), holder));
                }
            }
        });
        Self {
            changes,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Each hold: holder, start, end.
    fn holds(&self, now: Instant) -> Vec<(String, Instant, Instant)> {
        let changes = self.changes.lock().unwrap();
        let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([now]);
        let holds = changes.iter().zip(ends).filter(|((_, holder), _)| !holder.is_empty());
        holds.map(|((at, holder), end)| (holder.clone(), *at, end)).collect()
    }

    /// For how long this holder had the Lease in this time.
    pub(super) fn held_by(&self, holder: &str, from: Instant, to: Instant) -> Duration {
        let own = self.holds(to).into_iter().filter(|(name, ..)| name == holder);
        own.map(|(_, start, end)| end.min(to).saturating_duration_since(start.max(from)))
            .sum()
    }

    /// The holds that lasted longer than this, one a line.
    pub(super) fn long_ones(&self, began: Instant, least: Duration) -> String {
        let mut text = String::new();
        for (holder, start, end) in self.holds(Instant::now()) {
            if end - start > least {
                let (at, length) = (start.saturating_duration_since(began), end - start);
                writeln!(text, "  at {at:.1?} for {length:.1?}: {holder}").unwrap();
            }
        }
        text
    }
}
