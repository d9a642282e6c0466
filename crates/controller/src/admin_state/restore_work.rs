//! The work of a `headgate restore` term: sets every entry that is `Down` by the ledger back to `None`, for all Nodes or some.
//!
//! It writes as the leader does in the mode `Disabled`: by the planner and the pool writer of each load balancer, under the shared Lease, with
//! permits of the term. A foreign `Down` and entries that belong to no Node are left alone. No task outlives the work.
//!
//! An answer of ARM may be older than the `Down`, so another list has to confirm that nothing is left. What that list does not show as
//! the ledger has it, a third one has to confirm once no read lags any more.

mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use headgate_azure::{ErrorClass, LoadBalancerId};
use headgate_core::node::NodeReader;
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::leader::{ArmLock, LockMetrics, Term};
use headgate_kubernetes::{Store, WatchErrorCounter, WatchReporter};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster_target::ClusterTarget;
use super::guard::{GuardSettings, HeldEntries};
use super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerError, LedgerStage, LedgerStore};
use super::nodes::{TargetStatesConfig, publish_target_states};
use super::plan::Policy;
use super::planner::{LoadBalancerPlanner, LoadBalancerStatus};
use super::recorded::read_recorded_once;
use super::settings::{AdminStateMode, ForeignDown, STALE_NODES_TIMEOUT};
use super::target_states::TargetStates;
use crate::pool::{
    HANDOVER_ANSWER_TIMEOUT, InterfaceCache, LastError, ListRequest, Listing, MAX_READ_LAG, PoolWriter, RecordedPools,
    WriterLabels, list_on_request, look_up_interfaces, read_node,
};

use crate::own_term::OwnTermError;
use crate::restore::RestoreRequest;
use progress::{Progress, owned_entry};

/// The plan of the mode `Disabled`: `None` for every `Down` in the ledger.
const RESTORE_POLICY: Policy = Policy {
    mode: AdminStateMode::Disabled,
    foreign_down: ForeignDown::Keep,
};
/// For the release of the shared Lease at the end. A Lease that is not released expires, or passes to the next leader. Shorter than the 3 s
/// that work has after the end of its term: work that is aborted has no outcome.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Lists start the lookups of interfaces that are due, and a lookup that failed is due a minute later.
const RELIST_INTERVAL: Duration = Duration::from_secs(15);
/// The metrics of this process are not exported.
const LABELS: WriterLabels = WriterLabels {
    lock_caller: "Restore",
    request: "loadbalancer_adminstate_restore",
    source: "restore",
};

/// A pool entry that the ledger has as headgate's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedEntry {
    /// The name of the load balancer.
    pub load_balancer: String,
    /// The name of the pool.
    pub pool: String,
    /// The key of the entry.
    pub entry: String,
    /// The name of the Node that the entry belongs to; `None` if that is not known.
    pub node: Option<String>,
}

/// What the work achieved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// The entries that a read shows as `None`.
    pub restored: BTreeSet<OwnedEntry>,
    /// The entries that are still `Down`, each with the reason; with names of Nodes also those that may be theirs.
    pub not_restored: BTreeMap<OwnedEntry, String>,
    /// The load balancers that the ledger names and that could not be read, each with the reason.
    pub unreadable: BTreeMap<LoadBalancerId, String>,
    /// Why the ledger does not say so.
    pub ledger_error: Option<String>,
}

/// Why there is no outcome. Nothing was written, except where the term ended.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The work did not begin.
    #[error(transparent)]
    NotBegun(OwnTermError),
    /// Without the ledger it is not known which `Down` is headgate's.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The load balancers were not listed in time, or ARM rejected the list.
    #[error("the load balancers cannot be listed: {0}")]
    Listing(String),
    /// The Nodes were not listed in time.
    #[error("the Nodes could not be listed in time")]
    Nodes,
    /// A task ended that should run to the end of the work.
    #[error("a task ended by a defect of headgate: {0}")]
    Task(String),
    /// The term was handed over, or the operator interrupted the command.
    #[error("interrupted before anything was written")]
    Interrupted,
    /// The Lease was lost, or the command was interrupted, during the work; it is not known what was written.
    #[error("the term ended before everything was restored; run the command again, nothing is lost")]
    TermEnded,
}

/// Restores; ends once a read shows every entry restored, or the rest cannot be, or time or term are over.
///
/// # Errors
/// If nothing could be written, or the term ended.
pub(crate) async fn restore(term: &Term, request: &RestoreRequest) -> Result<RestoreOutcome, RestoreError> {
    let deadline = Instant::now() + request.work_timeout;
    let ledger = LedgerStore::load(request.client.clone(), term.clone()).await?;
    ledger.set_accepts_loss(true);
    let (lock, follow_lock) = ArmLock::new(
        request.client.clone(),
        request.clock.clone(),
        LockMetrics::register(MetricTable::unregistered()),
    );
    let mut follow_lock = std::pin::pin!(follow_lock.fuse());
    let mut tasks = JoinSet::new();
    let outcome = tokio::select! {
        outcome = work(term, request, &ledger, lock, &mut tasks, deadline) => outcome,
        () = &mut follow_lock => Err(RestoreError::Task("the task of the shared Lease ended".to_owned())),
        () = term.ended() => Err(RestoreError::TermEnded),
    };
    // A writer that holds the Lease leaves it when it is aborted.
    tasks.shutdown().await;
    let _ = timeout(RELEASE_TIMEOUT, follow_lock).await;
    outcome
}

/// What is listed first: Nodes, and the load balancers once, because the first request has the number 1.
struct First {
    targets: watch::Receiver<Option<Arc<TargetStates>>>,
    list_requests: watch::Sender<ListRequest>,
    listings: watch::Receiver<Arc<Listing>>,
}

fn spawn_lists(term: &Term, request: &RestoreRequest, ledger: &LedgerStore, tasks: &mut JoinSet<()>) -> First {
    let (sender, targets) = watch::channel(None);
    let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), request.clock.clone());
    // No taint is a signal, so that every target state is `None`.
    let (nodes, watch_nodes) = Store::new(&request.client, None, reporter, |object| {
        Some(Arc::new(read_node(object, &NodeReader::default())))
    });
    tasks.spawn(watch_nodes);
    let config = TargetStatesConfig {
        nodes,
        exclude_control_plane: request.target.exclude_control_plane,
        writes_condition: false,
        stale_timeout: STALE_NODES_TIMEOUT,
        clock: request.clock.clone(),
    };
    tasks.spawn(publish_target_states(config, sender));
    let list_requests = watch::Sender::new(ListRequest {
        number: 1,
        relaxed_number: 0,
        max_age: Some(RELIST_INTERVAL),
    });
    let (sender, listings) = watch::channel(Arc::new(Listing::default()));
    let ClusterTarget { arm, scope, .. } = request.target.clone();
    let requests = list_requests.subscribe();
    let recorded_ledger = ledger.clone();
    let recorded_pools: RecordedPools = Arc::new(move || recorded_ledger.ledger().pool_ids());
    let lists = list_on_request(Some(term.number()), arm, scope, recorded_pools, requests, sender);
    tasks.spawn(lists);
    First {
        targets,
        list_requests,
        listings,
    }
}

async fn work(
    term: &Term,
    request: &RestoreRequest,
    ledger: &LedgerStore,
    lock: ArmLock,
    tasks: &mut JoinSet<()>,
    deadline: Instant,
) -> Result<RestoreOutcome, RestoreError> {
    let First {
        mut targets,
        list_requests,
        listings: mut listed,
    } = spawn_lists(term, request, ledger, tasks);
    let ClusterTarget { arm, scope, .. } = request.target.clone();
    tokio::select! {
        () = term.handover_requested() => return Err(RestoreError::Interrupted),
        listed = targets.wait_for(Option::is_some) => drop(listed.map_err(|_| RestoreError::Nodes)?),
        () = sleep_until(deadline) => return Err(RestoreError::Nodes),
    }
    let listing = tokio::select! {
        () = term.handover_requested() => return Err(RestoreError::Interrupted),
        listing = first_listing(&mut listed) => listing?,
        () = sleep_until(deadline) => {
            let message = listed.borrow().last_error.as_ref().map(|error| error.message.clone());
            return Err(RestoreError::Listing(message.unwrap_or_else(|| "ARM did not answer in time".to_owned())));
        }
    };
    let present_ledger = ledger.ledger();
    let recorded = tokio::select! {
        () = term.handover_requested() => return Err(RestoreError::Interrupted),
        recorded = read_recorded_once(&arm, &scope, &present_ledger, &listing) => Arc::new(recorded),
    };
    // They are read once; their writers read them again before each write.
    let recorded_listings = watch::Sender::new(Arc::clone(&recorded));
    let listed_ids = listing.load_balancers.keys().map(|id| (id, &listed));
    let recorded_receiver = recorded_listings.subscribe();
    let recorded_ids = recorded.load_balancers.keys().map(|id| (id, &recorded_receiver));
    let (looked_up, interfaces) = watch::channel(Arc::new(InterfaceCache::default()));
    let lists = [listed.clone(), recorded_receiver.clone()];
    tasks.spawn(look_up_interfaces(term.number(), arm.clone(), lists, looked_up));
    let services = watch::Sender::new(Arc::default());
    let status_changed = Arc::new(Notify::new());
    let writers = listed_ids.chain(recorded_ids).map(|(id, listings)| {
        let status = watch::Sender::new(LoadBalancerStatus::default());
        let statuses = status.subscribe();
        let planner = LoadBalancerPlanner {
            targets: targets.clone(),
            ledger: ledger.clone(),
            policy: RESTORE_POLICY,
            only_nodes: request.only_nodes.clone(),
            is_configured: listing.load_balancers.contains_key(id),
            guard: GuardSettings::DISABLED,
            services: services.subscribe(),
            held: HeldEntries::new(),
            clock: request.clock.clone(),
            members: None,
            status,
            status_changed: Arc::clone(&status_changed),
            undo: Vec::new(),
            last_generation: None,
            last_hold_generation: None,
            braked_by: None,
        };
        let writer = PoolWriter {
            load_balancer: id.clone(),
            arm: arm.clone(),
            lock: lock.clone(),
            term: term.clone(),
            listings: listings.clone(),
            interfaces: interfaces.clone(),
            labels: LABELS,
        };
        tasks.spawn(writer.run(planner));
        Progress::new(id.clone(), statuses)
    });
    let mut progress: Vec<_> = writers.collect();
    let complete = async {
        join_all(progress.iter_mut().map(|progress| progress.follow(None))).await;
        if present_ledger.is_empty() {
            return;
        }
        confirm(
            request,
            &mut progress,
            &list_requests,
            &mut listed,
            &present_ledger,
            &recorded_listings,
        )
        .await;
    };
    let is_complete = tokio::select! {
        () = complete => true,
        () = term.handover_requested() => false,
        () = sleep_until(deadline) => false,
    };
    if !is_complete {
        // What was sent is answered first, so that the shared Lease can be released.
        let mut under_way = lock.writes();
        let _ = timeout(HANDOVER_ANSWER_TIMEOUT, under_way.wait_for(|writes| *writes == 0)).await;
    }
    let mut outcome = finish(request, ledger, &progress, is_complete).await;
    let recorded = Arc::clone(&recorded_listings.borrow());
    let unreadable = recorded.unreadable.iter();
    outcome.unreadable = unreadable
        .map(|(id, error)| (id.clone(), error.message.clone()))
        .collect();
    Ok(outcome)
}

/// Lists again, until what is left is restored; and once more when no read lags any more, where a list does not show what the ledger has.
async fn confirm(
    request: &RestoreRequest,
    progress: &mut [Progress],
    list_requests: &watch::Sender<ListRequest>,
    listed: &mut watch::Receiver<Arc<Listing>>,
    ledger: &Ledger,
    recorded_listings: &watch::Sender<Arc<Listing>>,
) {
    let ClusterTarget { arm, scope, .. } = &request.target;
    let now = Instant::now();
    for earliest in [now, now + MAX_READ_LAG] {
        sleep_until(earliest).await;
        let since = Instant::now();
        list_requests.send_modify(|request| request.number += 1);
        let listing = next_listing(listed, since).await;
        let recorded = Arc::new(read_recorded_once(arm, scope, ledger, &listing).await);
        recorded_listings.send_replace(Arc::clone(&recorded));
        // What is not shown any more was deleted, or cannot be read.
        let lists = [listing, recorded];
        let is_shown = |id: &LoadBalancerId| lists.iter().any(|list| list.load_balancers.contains_key(id));
        let shown = progress.iter_mut().filter(|progress| is_shown(&progress.load_balancer));
        join_all(shown.map(|progress| progress.follow(Some(since)))).await;
        let mut outdated = progress
            .iter()
            .flat_map(|progress| progress.outdated(request.only_nodes.as_deref()));
        if outdated.next().is_none() {
            return;
        }
    }
}

/// The first list that succeeds. A terminal error ends the wait.
async fn first_listing(listed: &mut watch::Receiver<Arc<Listing>>) -> Result<Arc<Listing>, RestoreError> {
    let is_decided = |listing: &Arc<Listing>| {
        let is_terminal = |error: &LastError| error.class == ErrorClass::Terminal;
        listing.requested_at.is_some() || listing.last_error.as_ref().is_some_and(is_terminal)
    };
    let listing = listed.wait_for(is_decided).await.map(|listing| Arc::clone(&listing));
    let listing = listing.map_err(|_| RestoreError::Task("the task that lists load balancers ended".to_owned()))?;
    match &listing.last_error {
        Some(error) => Err(RestoreError::Listing(error.message.clone())),
        None => Ok(listing),
    }
}

/// The first list that was sent after `since`; never ends if none succeeds.
async fn next_listing(listed: &mut watch::Receiver<Arc<Listing>>, since: Instant) -> Arc<Listing> {
    let listing = listed.wait_for(|listing| listing.requested_at > Some(since)).await;
    match listing.map(|listing| Arc::clone(&listing)) {
        Ok(listing) => listing,
        Err(_) => std::future::pending().await,
    }
}

/// Sums up, and records in the ledger what is no longer `Down`.
async fn finish(
    request: &RestoreRequest,
    ledger: &LedgerStore,
    progress: &[Progress],
    is_complete: bool,
) -> RestoreOutcome {
    let mut outcome = RestoreOutcome::default();
    let mut changes = Vec::new();
    let restored = LedgerEntry::new(LedgerStage::Restored, request.clock.now().wall);
    for progress in progress {
        outcome.restored.extend(progress.restored.iter().cloned());
        let reason = match &progress.status.last_error {
            Some(error) => error.message.clone(),
            None if is_complete => "it is still Down".to_owned(),
            None => "the time was up".to_owned(),
        };
        let remaining = progress.remaining.iter().cloned();
        outcome
            .not_restored
            .extend(remaining.map(|entry| (entry, reason.clone())));
        // With names of Nodes, too: they may be theirs.
        let unreadable = progress.status.unreadable_entries.iter().map(|entry| {
            let owned = OwnedEntry {
                load_balancer: entry.pool.load_balancer().name().to_owned(),
                pool: entry.pool.name().to_owned(),
                entry: entry.key.to_string(),
                node: None,
            };
            (owned, entry.error.message.clone())
        });
        outcome.not_restored.extend(unreadable);
        let outdated = progress.outdated(request.only_nodes.as_deref());
        if is_complete {
            changes.extend(outdated.map(|entry| LedgerChange::new(&entry.pool, &entry.key, Some(restored))));
        } else {
            let unconfirmed = outdated
                .map(owned_entry)
                .filter(|entry| !progress.restored.contains(entry));
            let reason = "a read shows it in service, and the time was up before another one confirmed it";
            outcome
                .not_restored
                .extend(unconfirmed.map(|entry| (entry, reason.to_owned())));
        }
    }
    ledger.apply(changes);
    outcome.ledger_error = ledger.flush().await.err().map(|error| error.to_string());
    outcome
}
