//! The work of a term: it brings everything together, and one task for each load balancer carries it out.
//!
//! Invariants: nothing of it outlives the term; nothing is planned before every Node has been listed and the ledger
//! read in this term; a task that ends of itself ends the work. Which load balancers there are follows from the
//! lists, when they are listed from signals, from releases of the ARM Lease by others, and from time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, stream};
use headgate_clock::Clock;
use headgate_kubernetes::{ClusterEventRecorder, NodeReference};
use headgate_leader::{ArmLock, LockMetrics, Term};
use kube::Client;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::announce::{Announcement, Announcer};
use super::desired::{Desired, Wish};
use super::ledger::{Ledger, LedgerError};
use super::metrics::{Metrics, Summary};
use super::nodes;
use super::plan::Policy;
use super::reached::Reached;
use crate::admin_state::AdminStateMode;
use crate::pool::{Listing, Wanted, follow_listing};

mod leading;
mod tasks;

use leading::Leading;
use tasks::Tasks;

/// Told by then, or not at all; so is the ARM Lease given back, or left to the next leader, who has the same name to it.
const LAST_ERRANDS: Duration = Duration::from_millis(900);
/// Told by then, where the work could not begin.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// For a list of all Nodes where there is nothing else to be done.
const WHOM_TO_TELL: Duration = Duration::from_secs(20);
/// Attempts to begin before the term is given back, and the pause between them.
const ATTEMPTS: u32 = 3;
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(2);
/// For the first list of all Nodes.
const FIRST_LIST: Duration = Duration::from_mins(2);
/// For so long a leader whom ARM refuses goes on: its `azure.json` or Secret may have been changed since, and is read anew in
/// the next term, here or elsewhere.
const REFUSED: Duration = Duration::from_mins(15);
/// Until the ledger is written again after that failed.
const LEDGER_AGAIN: Duration = Duration::from_secs(2);
/// Events that wait to be written at most, which is two for each of 5,000 Nodes; and how many are written at a time.
const EVENTS: usize = 10_000;
const EVENTS_AT_ONCE: usize = 8;

/// What the work is made of.
#[derive(Clone)]
pub struct Parts {
    /// A client that does not retry of itself.
    pub client: Client,
    /// Taint keys that are signals.
    pub taint_keys: Vec<String>,
    /// How far it may go.
    pub policy: Policy,
    /// The Node that this process runs on.
    pub node_name: String,
    /// Writes events.
    pub events: ClusterEventRecorder,
    /// Its metrics.
    pub metrics: Metrics,
    /// The lock's.
    pub lock_metrics: LockMetrics,
    /// Its time.
    pub clock: Clock,
}

/// Why the work failed; the term is given back then.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Without the ledger nobody knows whose a `Down` is.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Without all Nodes nothing is known.
    #[error("Nodes were not listed in {} s; the log says why", FIRST_LIST.as_secs())]
    Nodes,
    /// ARM refuses, and somebody else may be better off.
    #[error("ARM has refused for a quarter of an hour: {0}")]
    Refused(String),
    /// A task ended.
    #[error("the task {task} ended: {why}")]
    Task {
        /// Which.
        task: String,
        /// How.
        why: String,
    },
}

/// Does the work of a term, until it has ended or is to be given back.
///
/// # Errors
/// Where it cannot be done here; somebody else may be able to.
pub async fn run(term: Term, reached: Reached, parts: Parts) -> Result<(), WorkError> {
    term.report_nodes(None);
    let outcome = tokio::select! {
        biased;
        () = term.ended() => Ok(()),
        outcome = lead(&term, reached, &parts) => outcome,
    };
    term.report_nodes(None);
    parts.metrics.show(Summary::default());
    outcome
}

/// Tries a few times.
async fn attempts<T, E: std::fmt::Display, F>(what: &str, mut attempt: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        match attempt().await {
            Err(error) if left > 0 => {
                tracing::warn!(%error, "{what}; trying again");
                sleep(BETWEEN_ATTEMPTS).await;
            }
            outcome => return outcome,
        }
    }
}

async fn lead(term: &Term, mut reached: Reached, parts: &Parts) -> Result<(), WorkError> {
    reached.arm = reached
        .arm
        .as_caller("loadbalancer_adminstate", "admin_state_controller");
    let mut tasks = Tasks::default();
    let desired = watch::Sender::new(None);
    let mut nodes = desired.subscribe();
    let reading = nodes::Reading {
        taint_keys: parts.taint_keys.clone(),
        exclude_control_plane: reached.exclude_control_plane,
        watch_errors: parts.metrics.watch_errors(),
        clock: parts.clock.clone(),
    };
    tasks.spawn("nodes".to_owned(), nodes::run(parts.client.clone(), reading, desired));
    let ledger = attempts("the ledger cannot be read", || {
        Ledger::load(parts.client.clone(), term.clone())
    });
    let ledger = match ledger.await {
        Ok(ledger) => ledger,
        Err(error) => {
            tell_waiting(parts, nodes, &error.to_string(), LAST_WORDS).await;
            return Err(error.into());
        }
    };
    tasks.spawn("ledger".to_owned(), keep(ledger.clone()));
    let (lock, follow) = ArmLock::new(parts.client.clone(), parts.clock.clone(), parts.lock_metrics.clone());
    let (events, queue) = mpsc::channel(EVENTS);
    let writing = write_events(parts.events.clone(), queue);
    tokio::select! {
        synced = nodes.wait_for(Option::is_some) => drop(synced),
        error = tasks.failed() => return Err(error),
        // Nothing is known, so nothing is to be written any more.
        () = term.handover_requested() => return Ok(()),
        () = sleep(FIRST_LIST) => return Err(WorkError::Nodes),
    }
    let mut policy = parts.policy;
    if !reached.enabled {
        policy.mode = AdminStateMode::Off;
    }
    let wanted = watch::Sender::new(Wanted { count: 0, every: None });
    let listings = watch::Sender::new(Arc::new(Listing::default()));
    let mut leading = Leading {
        term,
        parts,
        arm: reached.arm.clone(),
        policy,
        nodes,
        ledger,
        lock,
        listings: listings.subscribe(),
        wanted,
        newest: 0,
        editors: BTreeMap::new(),
        woken: Arc::new(Notify::new()),
        announcer: Announcer::default(),
        events,
    };
    let lists = follow_listing(reached.arm, reached.scope, leading.wanted.subscribe(), listings);
    tasks.spawn("load-balancers".to_owned(), lists);
    let mut errands = std::pin::pin!(futures::future::join(writing, follow).fuse());
    let outcome = tokio::select! {
        outcome = leading.run(&mut tasks) => outcome,
        _ = &mut errands => Ok(()),
    };
    drop((leading, tasks));
    // What is to be told is told yet, and the ARM Lease given back, if that is quickly done.
    let _ = timeout(LAST_ERRANDS, errands).await;
    outcome
}

/// ARM could not even be come to in this term: tells of the Nodes that wait for it.
pub async fn not_begun(term: &Term, parts: &Parts, why: &str) {
    let (desired, mut tasks) = (watch::Sender::new(None), Tasks::default());
    let nodes = desired.subscribe();
    let reading = nodes::Reading {
        taint_keys: parts.taint_keys.clone(),
        // What is to be done with them is not known.
        exclude_control_plane: true,
        watch_errors: parts.metrics.watch_errors(),
        clock: parts.clock.clone(),
    };
    tasks.spawn("nodes".to_owned(), nodes::run(parts.client.clone(), reading, desired));
    tokio::select! {
        () = tell_waiting(parts, nodes, why, WHOM_TO_TELL) => {}
        () = term.handover_requested() => {}
    }
}

/// Tells of the Nodes that have a signal why nothing is done about it.
async fn tell_waiting(
    parts: &Parts,
    mut nodes: watch::Receiver<Option<Arc<Desired>>>,
    why: &str,
    listed_within: Duration,
) {
    if parts.policy.mode != AdminStateMode::Enforce {
        return;
    }
    let desired = match timeout(listed_within, nodes.wait_for(Option::is_some)).await {
        Ok(Ok(desired)) => desired.clone().unwrap_or_default(),
        _ => return,
    };
    let now = parts.clock.now().mono;
    let (events, queue) = mpsc::channel(EVENTS);
    for node in desired
        .cluster
        .nodes()
        .filter(|node| desired.wish(node, now) == Wish::Down && node.excluded.is_none())
    {
        if events.try_send(Announcement::not_begun(node, why)).is_err() {
            break;
        }
    }
    drop(events);
    let _ = timeout(LAST_WORDS, write_events(parts.events.clone(), queue)).await;
}

/// Writes the ledger whenever it has changed; never ends of itself.
async fn keep(ledger: Ledger) {
    let mut changes = ledger.changes();
    loop {
        changes.borrow_and_update();
        match ledger.flush().await {
            Ok(()) => {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the ledger is not written; trying again");
                sleep(LEDGER_AGAIN).await;
            }
        }
    }
}

/// Writes events until nobody has any more.
async fn write_events(events: ClusterEventRecorder, mut queue: mpsc::Receiver<Announcement>) {
    let announcements = stream::poll_fn(|context| queue.poll_recv(context));
    let write = |announcement: Announcement| {
        let events = events.clone();
        async move {
            let node = NodeReference {
                name: &announcement.node.name,
                uid: &announcement.node.uid,
            };
            let (kind, told) = (announcement.kind, announcement.note);
            if kind.is_warning() {
                events.record_warning(node, kind.reason(), told).await;
            } else {
                events.record_normal(node, kind.reason(), told).await;
            }
        }
    };
    announcements.for_each_concurrent(EVENTS_AT_ONCE, write).await;
}
