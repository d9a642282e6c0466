//! Lists the cluster's load balancers, on request and at intervals.
//!
//! One list runs at a time; requests that arrive meanwhile share the next one. A list that fails leaves the last result in
//! place and is retried with backoff; `Retry-After` is obeyed. If a list is too large to be read, the load balancers that may be
//! the cluster's are read one by one, those that are too large as well in parts (`load_balancer_read`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_azure::{ArmClient, ArmError, ErrorClass, LoadBalancerId, LoadBalancerList, PoolId, ResourceGroupId};
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled, warn_if};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::interface_cache::InterfaceCache;
use super::interface_lookups::InterfaceLookups;
use super::load_balancer_read::read_load_balancer;
use super::pool_entry::PoolEntry;
use super::retry::{Backoff, LastError};
use super::view::LoadBalancerView;

/// For all pages of one list, retries included.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);
/// From the end of one list to the start of the next.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(200);
/// The same for a list that may wait, for each pool entry: a list of many takes processor time, and those that signals in quick
/// succession request show the same.
const RELAXED_LIST_INTERVAL_PER_ENTRY: Duration = Duration::from_micros(300);
/// The longest wait of such a list.
const MAX_RELAXED_LIST_INTERVAL: Duration = Duration::from_secs(5);
/// Of single load balancers, if the list is too large.
const MAX_CONCURRENT_READS: usize = 2;
/// From a request to its list, so that requests in quick succession share one. The first list of a process does not wait.
const REQUEST_DEBOUNCE: Duration = Duration::from_millis(100);
/// The names in the log if no load balancer is the cluster's.
const MAX_NAMES_LOGGED: usize = 10;
/// What cloud-provider-azure appends to the name of a load balancer with internal frontends.
const INTERNAL_SUFFIX: &str = "-internal";

/// The names of the cluster's load balancers. Source: cloud-provider-azure `ListManagedLBs`.
#[derive(Clone, Debug)]
pub struct ManagedLoadBalancers(Arc<HashSet<String>>);

impl ManagedLoadBalancers {
    /// The load balancers of these names and their internal twins; case does not matter.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(Arc::new(names.into_iter().map(str::to_ascii_lowercase).collect()))
    }

    /// Every name that a load balancer of the cluster can have, in lower case.
    fn possible_names(&self) -> impl Iterator<Item = String> {
        let names = self.0.iter();
        names.flat_map(|name| [name.clone(), format!("{name}{INTERNAL_SUFFIX}")])
    }

    /// Whether the load balancer is the cluster's.
    pub fn contains(&self, id: &LoadBalancerId) -> bool {
        self.contains_name(id.name())
    }

    /// The same for a load balancer of this name.
    pub(crate) fn contains_name(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.0.contains(name.strip_suffix(INTERNAL_SUFFIX).unwrap_or(&name)) || self.0.contains(&name)
    }
}

/// Which load balancers are listed.
#[derive(Clone, Debug)]
pub struct ListScope {
    /// The resource group of the load balancers.
    pub group: ResourceGroupId,
    /// Those of the group that are the cluster's.
    pub managed: ManagedLoadBalancers,
}

impl ListScope {
    /// Whether the load balancer is in the resource group and is the cluster's.
    pub fn contains(&self, id: &LoadBalancerId) -> bool {
        *id.group() == self.group && self.managed.contains(id)
    }
}

/// When load balancers are to be listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Each new number requests a list that starts after the request.
    pub number: u64,
    /// The same for a list that may wait while lists have many pool entries.
    pub relaxed_number: u64,
    /// The age at which the last list is repeated; `None` for never.
    pub max_age: Option<Duration>,
}

/// The pools that the ledger names at present. They are read even if no list and no rule names them.
pub type RecordedPools = Arc<dyn Fn() -> BTreeSet<PoolId> + Send + Sync>;

/// The cluster's load balancers, as the last successful list showed them.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// When that list was sent; `None` before the first one succeeded.
    pub requested_at: Option<Instant>,
    /// When it had been received.
    pub received_at: Option<Instant>,
    /// The load balancers by their resource ids.
    pub load_balancers: BTreeMap<LoadBalancerId, Arc<LoadBalancerView>>,
    /// Those that do not exist, by the answer to a read of their ids; empty for a list.
    pub deleted: BTreeSet<LoadBalancerId>,
    /// Why the read of an id failed; empty for a list.
    pub unreadable: BTreeMap<LoadBalancerId, LastError>,
    /// Why a newer list is missing.
    pub last_error: Option<LastError>,
    /// Since when lists have failed one after another.
    pub outage: Option<ListOutage>,
}

/// Lists that failed one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOutage {
    /// When the first of them was sent.
    pub since: Instant,
    /// How much of the time since then is spent waiting because ARM throttles requests, the present wait included.
    pub throttled: Duration,
}

impl ListOutage {
    /// The outage after one more list that failed; `previous` is the outage so far.
    fn after_failure(previous: Option<Self>, sent_at: Instant, error: &ArmError, retry_in: Duration) -> Self {
        let outage = previous.unwrap_or(Self {
            since: sent_at,
            throttled: Duration::ZERO,
        });
        let throttled = if error.is_throttled() { retry_in } else { Duration::ZERO };
        Self {
            throttled: outage.throttled + throttled,
            ..outage
        }
    }
}

impl Listing {
    /// One load balancer, and when the list that showed it was sent.
    pub fn load_balancer(&self, id: &LoadBalancerId) -> Option<(Instant, Arc<LoadBalancerView>)> {
        Some((self.requested_at?, Arc::clone(self.load_balancers.get(id)?)))
    }

    /// Looks up the machines of all network interfaces in the pools of these lists, once; for a report.
    pub async fn look_up_interfaces(listings: [&Self; 2], arm: &ArmClient, deadline: Instant) -> InterfaceCache {
        let mut lookups = InterfaceLookups::new(None, arm.clone(), Some(deadline));
        let mut interfaces = InterfaceCache::default();
        let views: Vec<_> = listings
            .iter()
            .flat_map(|listing| listing.load_balancers.values())
            .collect();
        lookups.start_due(&mut interfaces, &views);
        lookups.finish_all().await;
        lookups.store_results(&mut interfaces);
        interfaces
    }
}

/// Lists the load balancers as the requests say and publishes the result. Ends when the sender of `requests` is dropped. `term` is
/// for the spans; a report has none.
pub async fn list_on_request(
    term: Option<i32>,
    arm: ArmClient,
    scope: ListScope,
    recorded_pools: RecordedPools,
    mut requests: watch::Receiver<ListRequest>,
    listings: watch::Sender<Arc<Listing>>,
) {
    let mut backoff = Backoff::default();
    let mut served = None;
    let (mut not_before, mut relaxed_not_before) = (Instant::now(), Instant::now());
    let (mut requested_at, mut only_others) = (None, BTreeSet::new());
    loop {
        let request = *requests.borrow_and_update();
        let listed_at = listings.borrow().requested_at;
        let has_failed = listings.borrow().last_error.is_some();
        let due_at = if listed_at.is_none() || has_failed {
            Some(not_before)
        } else if served == Some((request.number, request.relaxed_number)) {
            request
                .max_age
                .zip(listed_at)
                .map(|(max_age, listed_at)| listed_at + max_age)
        } else {
            let is_relaxed = served.is_some_and(|(number, _)| number == request.number);
            let not_before = if is_relaxed { relaxed_not_before } else { not_before };
            Some(not_before.max(*requested_at.get_or_insert_with(Instant::now) + REQUEST_DEBOUNCE))
        };
        tokio::select! {
            changed = requests.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = sleep_until(due_at.unwrap_or_else(Instant::now)), if due_at.is_some() => {}
        }
        let request = *requests.borrow();
        requested_at = None;
        let started_at = Instant::now();
        let previous = Arc::clone(&listings.borrow());
        let span = ReconcileSpan::start(Reconciled::Listing, || Reconcile {
            term,
            ..Reconcile::default()
        });
        let deadline = started_at + LIST_TIMEOUT;
        let listed = list(&arm, &scope, &previous, &recorded_pools, &mut only_others, deadline);
        match span.run(listed).await {
            Ok(load_balancers) => {
                backoff.reset();
                let pools = load_balancers.values().flat_map(|view| &view.pools);
                let entries = pools.map(|pool| pool.entries.len()).sum();
                let now = Instant::now();
                (not_before, relaxed_not_before) = (now + MIN_LIST_INTERVAL, now + relaxed_interval(entries));
                served = Some((request.number, request.relaxed_number));
                let listing = Listing {
                    requested_at: Some(started_at),
                    received_at: Some(now),
                    load_balancers,
                    ..Listing::default()
                };
                listings.send_replace(Arc::new(listing));
            }
            Err(error) => {
                let retry_in = backoff.delay_after(&error);
                span.fail(error.code(), &error);
                warn_if!(
                    error.class() == ErrorClass::Terminal,
                    %error,
                    ?retry_in,
                    "load balancers not listed; changes wait"
                );
                not_before = Instant::now() + retry_in;
                let mut listing = Listing::clone(&listings.borrow());
                listing.last_error = Some(LastError::from_arm(&error, listing.last_error.as_ref()));
                listing.outage = Some(ListOutage::after_failure(listing.outage, started_at, &error, retry_in));
                listings.send_replace(Arc::new(listing));
            }
        }
    }
}

/// From the end of a list of so many pool entries to the start of the next that may wait.
fn relaxed_interval(entries: usize) -> Duration {
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    RELAXED_LIST_INTERVAL_PER_ENTRY
        .saturating_mul(entries)
        .clamp(MIN_LIST_INTERVAL, MAX_RELAXED_LIST_INTERVAL)
}

/// `only_others` are the load balancers of the last list if it had none of the cluster's; the log names them once.
async fn list(
    arm: &ArmClient,
    scope: &ListScope,
    previous: &Listing,
    recorded_pools: &RecordedPools,
    only_others: &mut BTreeSet<LoadBalancerId>,
    deadline: Instant,
) -> Result<BTreeMap<LoadBalancerId, Arc<LoadBalancerView>>, ArmError> {
    let managed = scope.managed.clone();
    let select = move |id: &LoadBalancerId| managed.contains(id);
    let found = match arm
        .list_load_balancers(&scope.group, select, PoolEntry::reader(Vec::new()), deadline)
        .await
    {
        Ok(found) => found,
        Err(error) if is_missing(&error) => {
            only_others.clear();
            return Ok(BTreeMap::new());
        }
        Err(error @ ArmError::TooLarge(_)) => {
            tracing::info!(%error, "list of load balancers too large; each is read alone");
            return read_each(arm, scope, previous, &recorded_pools(), deadline).await;
        }
        Err(error) => return Err(error),
    };
    let LoadBalancerList { load_balancers, others } = found;
    let others = if load_balancers.is_empty() { others } else { Vec::new() };
    let new = new_among(&others, only_others);
    if !new.is_empty() {
        let names: Vec<_> = new
            .into_iter()
            .take(MAX_NAMES_LOGGED)
            .map(LoadBalancerId::name)
            .collect();
        tracing::warn!(
            group = scope.group.name(),
            ?names,
            "no load balancer of the resource group has a name from azure.clusterName or azure.json"
        );
    }
    let views = load_balancers.into_iter().map(LoadBalancerView::from_summary);
    Ok(views.map(|view| shared(view, previous)).collect())
}

/// Those that are not among the `known`, which become these.
fn new_among<'a>(others: &'a [LoadBalancerId], known: &mut BTreeSet<LoadBalancerId>) -> Vec<&'a LoadBalancerId> {
    let known = std::mem::replace(known, others.iter().cloned().collect());
    others.iter().filter(|id| !known.contains(*id)).collect()
}

/// Reads each load balancer whose name is the cluster's.
async fn read_each(
    arm: &ArmClient,
    scope: &ListScope,
    previous: &Listing,
    recorded_pools: &BTreeSet<PoolId>,
    deadline: Instant,
) -> Result<BTreeMap<LoadBalancerId, Arc<LoadBalancerView>>, ArmError> {
    let names = scope.managed.possible_names();
    // A name that no load balancer can have has none.
    let ids: BTreeSet<_> = names.filter_map(|name| scope.group.load_balancer(&name).ok()).collect();
    let reads = ids.into_iter().map(|id| async move {
        let known = previous.load_balancers.get(&id).map(Arc::as_ref);
        match read_load_balancer(arm, &id, known, recorded_pools, deadline).await {
            Ok(read) => {
                let view = LoadBalancerView::from_read(read.summary, read.is_assembled);
                Ok(Some(shared(view, previous)))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    });
    let read: Vec<_> = stream::iter(reads)
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    Ok(read.into_iter().flatten().collect())
}

/// Whether ARM says that there is none. A resource group without load balancers may answer a list so; cloud-provider-azure
/// treats it as an empty list, too.
fn is_missing(error: &ArmError) -> bool {
    error.status().is_some_and(|status| status == 404) && error.code() == "ResourceNotFound"
}

/// The view with its id, sharing what the list before showed in the same way.
fn shared(view: LoadBalancerView, previous: &Listing) -> (LoadBalancerId, Arc<LoadBalancerView>) {
    let view = match previous.load_balancers.get(&view.id) {
        Some(earlier) => view.sharing_pools(earlier),
        None => view,
    };
    (view.id.clone(), Arc::new(view))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/kubernetes";

    #[test]
    fn named_load_balancers_and_their_internal_twins_are_managed() {
        let managed = ManagedLoadBalancers::new(["Kubernetes", "lb2", "odd-internal"]);
        let is_managed = |name: &str| {
            let id = ID.replace("kubernetes", name);
            managed.contains(&LoadBalancerId::parse(&id).unwrap())
        };
        for name in [
            "kubernetes",
            "KUBERNETES-Internal",
            "lb2",
            "lb2-internal",
            "odd-internal",
        ] {
            assert!(is_managed(name), "{name}");
        }
        for name in ["kubernetes2", "lb", "odd", "internal"] {
            assert!(!is_managed(name), "{name}");
        }
    }

    #[test]
    fn load_balancers_of_others_are_new_once() {
        let mut known = BTreeSet::new();
        // An empty list is also that of a group that has the cluster's.
        for (names, expected) in [
            (&[][..], &[][..]),
            (&["aks"], &["aks"]),
            (&["aks"], &[]),
            (&["renamed", "aks"], &["renamed"]),
            (&["aks", "renamed"], &[]),
            (&["renamed"], &[]),
            (&[], &[]),
            (&["renamed"], &["renamed"]),
        ] {
            let id = |name: &&str| LoadBalancerId::parse(&ID.replace("kubernetes", name)).unwrap();
            let others: Vec<_> = names.iter().map(id).collect();
            let new = new_among(&others, &mut known);
            let found: Vec<_> = new.into_iter().map(LoadBalancerId::name).collect();
            assert_eq!(found, expected, "{names:?}");
        }
    }
}
