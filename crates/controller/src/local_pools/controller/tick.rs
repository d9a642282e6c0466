//! The ticks of the updater: when updates become due, under which Lease, and what is reported besides.
//!
//! Invariants: a tick without anything eligible takes neither the Lease nor ARM's time. Without the Lease nothing leaves the
//! queue. While Nodes, Services or EndpointSlices are stale nothing leaves it either: pools stay as they are. Ticks do not overlap; none
//! begins once the term is to be handed over. The writers of the load balancers carry the updates out (`members`); the tick keeps the Lease
//! until each has taken what is its own, and no longer than one interval.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use headgate_kubernetes::leader::{ArmLock, Term};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::reporter::Reporter;
use super::watch::{Freshness, SharedUpdater};
use headgate_core::service::NamespacedName;

use crate::local_pools::schedule::TickSchedule;
use crate::local_pools::{PlacementSkip, PoolUnavailable, Updater};
use crate::pool::{Listing, LoadBalancerView, Observation};

/// For the shared Lease; then the next tick requests it again.
const MAX_LEASE_WAIT: Duration = Duration::from_mins(1);
/// Between two looks at what the writers have taken.
const TAKEN_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// From the drain to the time when each writer has its first update: the Lease is held already, so they only read.
const MAX_TAKE_WAIT: Duration = Duration::from_secs(10);
/// Services that are compared before other tasks of the thread continue: with five pools of 100 entries each, about 2 ms.
const SERVICES_AT_ONCE: usize = 10;
/// The label `caller` of the metric of waits for the shared Lease.
const LOCK_CALLER: &str = "LocalServicePoolUpdater";

/// The ticks of one term.
pub(crate) struct Ticks<F> {
    /// The updater, which the watches feed.
    pub(crate) updater: SharedUpdater,
    /// From one tick to the next.
    pub(crate) interval: Duration,
    /// The shared Lease.
    pub(crate) lock: ArmLock,
    /// The term that the ticks belong to.
    pub(crate) term: Term,
    /// The load balancers, as listed.
    pub(crate) listings: watch::Receiver<Arc<Listing>>,
    /// Gives the updater the present Nodes. Returns whether the API server still confirms them.
    pub(crate) apply_nodes: F,
    /// Whether Services and EndpointSlices are confirmed.
    pub(crate) freshness: Freshness,
    /// Marked as changed when updates become due.
    pub(crate) due: watch::Sender<()>,
    /// Records events and metrics.
    pub(crate) reporter: Reporter,
}

impl<F: FnMut(&mut Updater) -> bool + Send> Ticks<F> {
    /// Ticks until the task is aborted; never ends by itself.
    pub(crate) async fn run(mut self) {
        let mut schedule = TickSchedule::new(self.interval, Instant::now());
        let mut listed_at = None;
        let mut skips = SkipTracker::default();
        let mut stale = None;
        loop {
            tokio::select! {
                () = sleep_until(schedule.next_at()) => {}
                () = self.term.handover_requested() => std::future::pending().await,
            }
            if self.prepare(&mut listed_at, &mut skips, &mut stale).await {
                let span = ReconcileSpan::start(Reconciled::LocalPools, || Reconcile {
                    term: Some(self.term.number()),
                    ..Reconcile::default()
                });
                span.run(self.tick(&span)).await;
            }
            schedule.tick_ended(Instant::now());
        }
    }

    /// Observes everything and computes what is pending, a part at a time: signals are followed on the same thread. Returns whether
    /// something is eligible.
    async fn prepare(
        &mut self,
        listed_at: &mut Option<Instant>,
        skips: &mut SkipTracker,
        stale_before: &mut Option<&'static str>,
    ) -> bool {
        let listing = Arc::clone(&self.listings.borrow_and_update());
        let mut listed = None;
        if let Some(requested_at) = listing.requested_at.filter(|at| Some(*at) > *listed_at) {
            *listed_at = Some(requested_at);
            let observe = |view: &Arc<LoadBalancerView>| Observation {
                requested_at,
                view: Arc::clone(view),
            };
            listed = Some(listing.load_balancers.values().map(observe).collect());
        }
        let stale = self.stale_resource();
        {
            let mut updater = self.updater.lock();
            if let Some(load_balancers) = listed {
                updater.observe(load_balancers);
            }
            updater.begin_tick(Instant::now());
        }
        while self.updater.lock().compare_some(Instant::now(), SERVICES_AT_ONCE) {
            yield_now().await;
        }
        let mut updater = self.updater.lock();
        let is_eligible = updater.is_tick_eligible(Instant::now());
        for skip in skips.new_skips(updater.placement().skipped()) {
            self.reporter
                .report_skip(&updater, &skip.service, &skip.reason.to_string());
        }
        self.reporter.publish(&updater);
        drop(updater);
        if stale != *stale_before {
            if let Some(resource) = stale {
                tracing::warn!(
                    resource,
                    "watch not confirmed for too long; members of Local Services' pools stay as they are"
                );
            } else {
                tracing::info!("watches confirmed again; members of Local Services' pools follow them");
            }
            *stale_before = stale;
        }
        is_eligible && stale.is_none()
    }

    /// Gives the updater the present Nodes, and returns which resource was not confirmed for too long, if there is one.
    fn stale_resource(&mut self) -> Option<&'static str> {
        if (self.apply_nodes)(&mut self.updater.lock()) {
            self.freshness.stale_resource(Instant::now())
        } else {
            Some("nodes")
        }
    }

    /// Makes what is eligible due, under the shared Lease.
    async fn tick(&mut self, span: &ReconcileSpan) {
        let deadline = Instant::now() + self.interval.min(MAX_LEASE_WAIT);
        let guard = match self.lock.acquire(LOCK_CALLER, deadline).await {
            Ok(guard) => guard,
            Err(error) => {
                span.fail("LeaseHeld", &error);
                tracing::info!(%error, "pools of Local Services not compared; the next round does");
                return;
            }
        };
        // The Lease may have been awaited for long.
        match self.stale_resource() {
            None => self.updater.lock().drain(Instant::now()),
            Some(resource) => span.fail("Stale", &format_args!("{resource} not confirmed for too long")),
        }
        self.due.send_replace(());
        let all_taken = async {
            while guard.accepts_writes() && !self.updater.lock().due().is_empty() {
                sleep(TAKEN_CHECK_INTERVAL).await;
            }
        };
        let _ = timeout(self.interval.min(MAX_TAKE_WAIT), all_taken).await;
        guard.release().await;
    }
}

/// The Services without a pool to update whose reason needs an operator, each reported once while it lasts.
#[derive(Debug, Default)]
struct SkipTracker(HashSet<(NamespacedName, String)>);

impl SkipTracker {
    fn new_skips<'a>(&mut self, skipped: &'a [PlacementSkip]) -> Vec<&'a PlacementSkip> {
        let lasting = skipped.iter().filter(|skip| {
            matches!(
                skip.reason,
                PoolUnavailable::Collision { .. }
                    | PoolUnavailable::NetworkInterfaces(_)
                    | PoolUnavailable::Ambiguous { .. }
            )
        });
        let lasting: Vec<_> = lasting.collect();
        let key = |skip: &PlacementSkip| (skip.service.clone(), skip.reason.to_string());
        let new = lasting.iter().filter(|skip| !self.0.contains(&key(skip)));
        let new = new.copied().collect();
        self.0 = lasting.into_iter().map(key).collect();
        new
    }
}
