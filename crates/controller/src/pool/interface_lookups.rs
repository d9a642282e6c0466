//! Lookups of network interfaces at ARM, which run while a pool writer does other work.
//!
//! Invariants: at most [`MAX_CONCURRENT_LOOKUPS`] run at a time, each with a deadline. Cancelling a wait loses no result. A
//! result has no effect until it is stored in the [`InterfaceCache`], so that a plan sees one state of the cache.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, pending};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use headgate_azure::{ArmClient, ArmError, NetworkInterfaceId};
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use tokio::time::{Instant, timeout};

use super::interface_cache::InterfaceCache;
use super::view::LoadBalancerView;

const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// Results within this time of the first one are stored together, so that a pool is not written once for each.
const RESULT_DEBOUNCE: Duration = Duration::from_millis(200);

type LookupResult = (NetworkInterfaceId, Result<Option<String>, ArmError>);

/// The lookups of one load balancer.
pub(super) struct InterfaceLookups {
    /// The term of the spans; a report has none.
    term: Option<i32>,
    arm: ArmClient,
    /// Not sent yet, with the deadline of each.
    waiting: VecDeque<(NetworkInterfaceId, Instant)>,
    running: FuturesUnordered<BoxFuture<'static, LookupResult>>,
    /// The interfaces that `running` looks up.
    running_ids: HashSet<NetworkInterfaceId>,
    /// Results that the cache does not have yet.
    results: Vec<LookupResult>,
}

impl InterfaceLookups {
    pub(super) fn new(term: Option<i32>, arm: ArmClient) -> Self {
        Self {
            term,
            arm,
            waiting: VecDeque::new(),
            running: FuturesUnordered::new(),
            running_ids: HashSet::new(),
            results: Vec::new(),
        }
    }

    /// Starts the lookups that the cache lacks for these pools; drops those of interfaces that left the pools.
    pub(super) fn start_due(&mut self, interfaces: &mut InterfaceCache, view: &LoadBalancerView, deadline: Instant) {
        let mut due = interfaces.take_due(view, Instant::now());
        self.waiting.retain(|(id, _)| due.remove(id));
        let new = due.into_iter().filter(|id| !self.running_ids.contains(id));
        self.waiting.extend(new.map(|id| (id, deadline)));
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        while self.running.len() < MAX_CONCURRENT_LOOKUPS
            && let Some((id, deadline)) = self.waiting.pop_front()
        {
            self.running_ids.insert(id.clone());
            let arm = self.arm.clone();
            let span = ReconcileSpan::start(Reconciled::Interface, || Reconcile {
                term: self.term,
                ..Reconcile::default()
            });
            let lookup = async move {
                let result = arm.get_interface_virtual_machine(&id, deadline).await;
                (id, result)
            };
            self.running.push(span.run(lookup).boxed());
        }
    }

    /// Waits for one more result; `false` if no lookup runs.
    async fn next_result(&mut self) -> bool {
        let Some(result) = self.running.next().await else {
            return false;
        };
        self.running_ids.remove(&result.0);
        self.results.push(result);
        self.send_waiting();
        true
    }

    /// Waits until there are results to store; forever if no lookup runs.
    pub(super) async fn results_ready(&mut self) {
        if self.results.is_empty() && !self.next_result().await {
            pending::<()>().await;
        }
        let _ = timeout(RESULT_DEBOUNCE, self.finish_all()).await;
    }

    /// Waits until no lookup runs.
    pub(super) async fn finish_all(&mut self) {
        while self.next_result().await {}
    }

    /// Runs `work` to its end; lookups make progress meanwhile.
    pub(super) async fn run_beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                more = self.next_result() => if !more {
                    return work.await;
                },
            }
        }
    }

    /// Stores the results so far in the cache.
    pub(super) fn store_results(&mut self, interfaces: &mut InterfaceCache) {
        for (id, result) in self.results.drain(..) {
            interfaces.store(id, result);
        }
    }
}
