//! Lookups of network interfaces at ARM: one task for all load balancers of a term.
//!
//! Where many of a resource group are unknown, as in a new term, they are listed first. A list says which machines have them; that one
//! has none, only a read of its own says.
//!
//! Invariants: at most [`MAX_CONCURRENT_LOOKUPS`] run at a time, each with a deadline, and one for an interface however many load
//! balancers have it. Cancelling a wait loses no result. A result has no effect until it is stored in the [`InterfaceCache`], so that a
//! plan sees one state of the cache.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use headgate_azure::{ArmClient, ArmError, NetworkInterfaceId, ResourceGroupId};
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::interface_cache::InterfaceCache;
use super::listing::Listing;
use super::view::LoadBalancerView;

const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// So many unknown interfaces of one resource group are listed. A list is a page for some hundred interfaces, of other clusters, too.
const MIN_LISTED: usize = 20;
/// For one lookup, its turn and its retries included.
const LOOKUP_TIMEOUT: Duration = Duration::from_mins(2);
/// For a list: no interface of the group is read by itself meanwhile. One that stalls ends sooner, with its page.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Results within this time of the first one are stored together, so that a pool is not written once for each.
const RESULT_DEBOUNCE: Duration = Duration::from_millis(200);

/// The time is that at which the lookup was sent.
type LookupResult = (NetworkInterfaceId, Instant, Result<Option<String>, ArmError>);
/// For each interface that a request was about: `None` if a list does not say which machine has it.
type Found = Vec<(NetworkInterfaceId, Instant, Option<Result<Option<String>, ArmError>>)>;

/// Looks up the interfaces of all listed load balancers, and publishes what is known. `listings` are the lists, and the reads of load
/// balancers that only the ledger names. Ends with their tasks.
pub(crate) async fn look_up_interfaces(
    term: i32,
    arm: ArmClient,
    mut listings: [watch::Receiver<Arc<Listing>>; 2],
    published: watch::Sender<Arc<InterfaceCache>>,
) {
    let (mut cache, mut lookups) = (InterfaceCache::default(), InterfaceLookups::new(Some(term), arm, None));
    let mut listed_at = [None; 2];
    loop {
        if lookups.store_results(&mut cache) {
            published.send_replace(Arc::new(cache.clone()));
        }
        {
            // Kept any longer, an old list would stay in memory beside the new one.
            let lists = listings
                .each_mut()
                .map(|listing| Arc::clone(&listing.borrow_and_update()));
            // Answers alone, and a list that fails, make nothing due: the same would be asked for without end.
            let requested_at = lists.each_ref().map(|list| list.requested_at);
            if std::mem::replace(&mut listed_at, requested_at) != requested_at {
                let views: Vec<_> = lists.iter().flat_map(|list| list.load_balancers.values()).collect();
                lookups.start_due(&mut cache, &views);
            }
        }
        let [listed, recorded] = &mut listings;
        let changed = tokio::select! {
            changed = listed.changed() => changed,
            changed = recorded.changed() => changed,
            () = lookups.results_ready() => Ok(()),
        };
        if changed.is_err() {
            // The lists end with the term, and so does this task.
            return pending().await;
        }
    }
}

/// The lookups under way.
pub(super) struct InterfaceLookups {
    /// The term of the spans; a report has none.
    term: Option<i32>,
    arm: ArmClient,
    /// Not sent yet.
    waiting: VecDeque<NetworkInterfaceId>,
    /// Of all lookups, for a report; otherwise each one has its own.
    deadline: Option<Instant>,
    running: FuturesUnordered<BoxFuture<'static, Found>>,
    /// The resource groups that were listed, each once: what a list does not say, or if it fails, is read one by one.
    listed_groups: HashSet<ResourceGroupId>,
    /// The interfaces that `running` is about.
    running_ids: HashSet<NetworkInterfaceId>,
    /// Of these, those that were due again meanwhile: an answer that there is no machine may be too old then.
    due_again: HashSet<NetworkInterfaceId>,
    /// Results that the cache does not have yet.
    results: Vec<LookupResult>,
}

impl InterfaceLookups {
    pub(super) fn new(term: Option<i32>, arm: ArmClient, deadline: Option<Instant>) -> Self {
        Self {
            term,
            arm,
            waiting: VecDeque::new(),
            deadline,
            running: FuturesUnordered::new(),
            listed_groups: HashSet::new(),
            running_ids: HashSet::new(),
            due_again: HashSet::new(),
            results: Vec::new(),
        }
    }

    /// Starts the lookups that the cache lacks for these pools; drops those of interfaces that left the pools.
    pub(super) fn start_due(&mut self, interfaces: &mut InterfaceCache, views: &[&Arc<LoadBalancerView>]) {
        self.waiting.clear();
        let mut unanswered: HashMap<ResourceGroupId, Vec<NetworkInterfaceId>> = HashMap::new();
        for id in interfaces.take_due(views, Instant::now()) {
            if self.running_ids.contains(&id) {
                self.due_again.insert(id);
            } else if interfaces.is_unanswered(&id) {
                unanswered.entry(id.group().clone()).or_default().push(id);
            } else {
                self.waiting.push_back(id);
            }
        }
        // A plan waits for the first answer about each.
        for (group, ids) in unanswered {
            if ids.len() >= MIN_LISTED && self.listed_groups.insert(group.clone()) {
                self.send_list(group, ids);
                continue;
            }
            for id in ids {
                self.waiting.push_front(id);
            }
        }
        self.send_waiting();
    }

    fn send_list(&mut self, group: ResourceGroupId, ids: Vec<NetworkInterfaceId>) {
        let (arm, deadline) = (self.arm.clone(), self.next_deadline(LIST_TIMEOUT));
        self.run(ids.clone(), async move {
            let requested_at = Instant::now();
            let mut listed = Vec::new();
            if let Err(error) = arm.list_interface_virtual_machines(&group, deadline, &mut listed).await {
                tracing::info!(?group, %error, "network interfaces not listed to the end; each that is missing is read by itself");
            }
            let mut machines: HashMap<_, _> = listed.into_iter().collect();
            let find = |id| {
                let machine = machines.remove(&id);
                (id, requested_at, machine.map(|machine| Ok(Some(machine))))
            };
            ids.into_iter().map(find).collect()
        });
    }

    fn send_waiting(&mut self) {
        while self.running.len() < MAX_CONCURRENT_LOOKUPS
            && let Some(id) = self.waiting.pop_front()
        {
            let (arm, deadline) = (self.arm.clone(), self.next_deadline(LOOKUP_TIMEOUT));
            self.run(vec![id.clone()], async move {
                let requested_at = Instant::now();
                let result = arm.get_interface_virtual_machine(&id, deadline).await;
                vec![(id, requested_at, Some(result))]
            });
        }
    }

    fn next_deadline(&self, timeout: Duration) -> Instant {
        let own = Instant::now() + timeout;
        self.deadline.map_or(own, |deadline| deadline.min(own))
    }

    /// Runs a request about these interfaces.
    fn run(&mut self, ids: Vec<NetworkInterfaceId>, request: impl Future<Output = Found> + Send + 'static) {
        self.running_ids.extend(ids);
        let span = ReconcileSpan::start(Reconciled::Interface, || Reconcile {
            term: self.term,
            ..Reconcile::default()
        });
        self.running.push(span.run(request).boxed());
    }

    /// Waits for the result of one more request; `false` if none runs.
    async fn next_result(&mut self) -> bool {
        let Some(found) = self.running.next().await else {
            return false;
        };
        for (id, requested_at, result) in found {
            self.running_ids.remove(&id);
            let is_due_again = self.due_again.remove(&id);
            let Some(result) = result else {
                self.waiting.push_front(id);
                continue;
            };
            if is_due_again && matches!(result, Ok(None)) {
                self.waiting.push_back(id.clone());
            }
            self.results.push((id, requested_at, result));
        }
        self.send_waiting();
        true
    }

    /// Waits until there are results to store; forever if no lookup runs.
    async fn results_ready(&mut self) {
        if self.results.is_empty() && !self.next_result().await {
            pending::<()>().await;
        }
        let _ = timeout(RESULT_DEBOUNCE, self.finish_all()).await;
    }

    /// Waits until no lookup runs.
    pub(super) async fn finish_all(&mut self) {
        while self.next_result().await {}
    }

    /// Stores the results so far in the cache. Returns whether there were any.
    pub(super) fn store_results(&mut self, interfaces: &mut InterfaceCache) -> bool {
        let has_results = !self.results.is_empty();
        for (id, requested_at, result) in self.results.drain(..) {
            interfaces.store(id, requested_at, result);
        }
        has_results
    }
}
