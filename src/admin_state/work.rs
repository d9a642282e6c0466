//! The work of a term: it brings everything together, and one task for each load balancer carries it out.
//!
//! Invariants: nothing of it outlives the term; nothing is planned before every Node has been listed and the ledger
//! read in this term; a task that ends of itself ends the work. Which load balancers there are follows from the
//! lists, when they are listed from signals, from releases of the ARM Lease by others, and from time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use kube::Client;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::announce::{Announcement, Announcer, Sight};
use super::desired::Desired;
use super::editor::{AdminStateEditor, Observed};
use super::ledger::{Ledger, LedgerError};
use super::metrics::{Metrics, Summary};
use super::nodes;
use super::plan::Policy;
use crate::azure::{Arm, LoadBalancerId};
use crate::clock::Clock;
use crate::config::AdminStateMode;
use crate::leader::{ArmLock, LockMetrics};
use crate::leader::{Fleet, Term};
use crate::pool::{Listing, Scope, Wanted, Writer, follow_listing};
use crate::telemetry::{ClusterEvents, NodeReference};

/// Between lists while any Node has a signal or anything is ours.
const RESYNC: Duration = Duration::from_secs(15);
/// Between lists otherwise.
const RESYNC_AT_REST: Duration = Duration::from_mins(5);
/// What has to be written when the term is given back is to be sent by then: the elector waits 3 s.
const LAST_WRITES: Duration = Duration::from_millis(2400);
/// Told by then, or not at all; so is the ARM Lease given back, or left to the next leader, who has the same name to it.
const LAST_ERRANDS: Duration = Duration::from_millis(400);
/// Attempts to begin before the term is given back, and the pause between them.
const ATTEMPTS: u32 = 3;
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(2);
/// Old lines in the ledger are looked for this often.
const AGING: Duration = Duration::from_secs(30);
/// Until the ledger is written again after that failed.
const LEDGER_AGAIN: Duration = Duration::from_secs(2);
/// Events that wait to be written at most, and how many are written at a time.
const EVENTS: usize = 4096;
const EVENTS_AT_ONCE: usize = 8;
/// Replicas of a leader that is no DaemonSet: how many are candidates cannot be seen from here.
const REPLICAS: u32 = 2;

/// ARM, and what of it is the cluster's.
#[derive(Clone, Debug)]
pub struct Reached {
    /// ARM.
    pub arm: Arm,
    /// The cluster's load balancers.
    pub scope: Scope,
    /// Whether control-plane nodes are in no load balancer.
    pub exclude_control_plane: bool,
    /// Whether `azure.json` says that admin states are to be set.
    pub enabled: bool,
}

/// How ARM is reached: asked at the start of a term.
pub type Reach = Arc<dyn Fn() -> BoxFuture<'static, Result<Reached, String>> + Send + Sync>;

/// Who the candidates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// One on every node.
    Nodes,
    /// The replicas of a Deployment.
    Replicas,
}

/// What the work is made of.
#[derive(Clone)]
pub struct Parts {
    /// A client that does not retry of itself.
    pub client: Client,
    /// How ARM is reached.
    pub reach: Reach,
    /// Taint keys that are signals.
    pub taint_keys: Vec<String>,
    /// How far it may go.
    pub policy: Policy,
    /// Who the candidates are.
    pub candidates: Candidates,
    /// Where the elector learns of the candidates.
    pub fleet: watch::Sender<Option<Fleet>>,
    /// The Node that this process runs on.
    pub node_name: String,
    /// Writes events.
    pub events: ClusterEvents,
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
    /// What is said about Azure cannot be used.
    #[error("Azure cannot be reached: {0}")]
    Reach(String),
    /// Without the ledger nobody knows whose a `Down` is.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
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
pub async fn run(term: Term, parts: Parts) -> Result<(), WorkError> {
    parts.fleet.send_replace(None);
    let outcome = tokio::select! {
        biased;
        () = term.ended() => Ok(()),
        outcome = lead(&term, &parts) => outcome,
    };
    parts.fleet.send_replace(None);
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

async fn lead(term: &Term, parts: &Parts) -> Result<(), WorkError> {
    let reached = attempts("Azure cannot be reached", || (parts.reach)());
    let reached = reached.await.map_err(WorkError::Reach)?;
    let mut tasks = Tasks::default();
    let desired = watch::Sender::new(None);
    let mut nodes = desired.subscribe();
    let reading = nodes::Reading {
        taint_keys: parts.taint_keys.clone(),
        exclude_control_plane: reached.exclude_control_plane,
        clock: parts.clock.clone(),
    };
    tasks.spawn("nodes".to_owned(), nodes::run(parts.client.clone(), reading, desired));
    let ledger = attempts("the ledger cannot be read", || {
        Ledger::load(parts.client.clone(), term.clone())
    });
    let ledger = ledger.await?;
    tasks.spawn("ledger".to_owned(), keep(ledger.clone()));
    let (lock, follow) = ArmLock::new(parts.client.clone(), parts.clock.clone(), parts.lock_metrics.clone());
    let (events, queue) = mpsc::channel(EVENTS);
    let writing = write_events(parts.events.clone(), queue);
    tokio::select! {
        synced = nodes.wait_for(Option::is_some) => drop(synced),
        error = tasks.failed() => return Err(error),
        // Nothing is known, so nothing is to be written any more.
        () = term.leaving() => return Ok(()),
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
async fn write_events(events: ClusterEvents, mut queue: mpsc::Receiver<Announcement>) {
    let announcements = stream::poll_fn(|context| queue.poll_recv(context));
    let write = |announcement: Announcement| {
        let events = events.clone();
        async move {
            let node = NodeReference {
                name: &announcement.node.name,
                uid: &announcement.node.uid,
            };
            let (reason, note) = (announcement.kind.reason(), announcement.note);
            if announcement.kind.is_warning() {
                events.warn(node, reason, note).await;
            } else {
                events.tell(node, reason, note).await;
            }
        }
    };
    announcements.for_each_concurrent(EVENTS_AT_ONCE, write).await;
}

/// The tasks of a term: they end with it.
#[derive(Default)]
struct Tasks {
    set: JoinSet<String>,
}

impl Tasks {
    fn spawn(&mut self, name: String, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.set.spawn(async move {
            work.await;
            name
        })
    }

    /// Waits for one to end that was not told to.
    async fn failed(&mut self) -> WorkError {
        loop {
            match self.set.join_next().await {
                Some(Ok(task)) => {
                    let why = "of itself".to_owned();
                    return WorkError::Task { task, why };
                }
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => return panicked(&error),
                None => std::future::pending().await,
            }
        }
    }
}

fn panicked(error: &JoinError) -> WorkError {
    WorkError::Task {
        task: error.id().to_string(),
        why: error.to_string(),
    }
}

/// A load balancer's task.
struct Task {
    observed: watch::Receiver<Observed>,
    handle: AbortHandle,
}

/// The work once everything it needs is there.
struct Leading<'a> {
    term: &'a Term,
    parts: &'a Parts,
    arm: Arm,
    policy: Policy,
    nodes: watch::Receiver<Option<Arc<Desired>>>,
    ledger: Ledger,
    lock: ArmLock,
    listings: watch::Receiver<Arc<Listing>>,
    wanted: watch::Sender<Wanted>,
    /// The newest signal that was listed for.
    newest: u64,
    editors: BTreeMap<LoadBalancerId, Task>,
    woken: Arc<Notify>,
    announcer: Announcer,
    events: mpsc::Sender<Announcement>,
}

impl Leading<'_> {
    async fn run(&mut self, tasks: &mut Tasks) -> Result<(), WorkError> {
        let mut released = self.lock.released_by_others();
        let mut age_at = Instant::now();
        let mut leave_by = None;
        let woken = Arc::clone(&self.woken);
        self.wish(true);
        loop {
            let desired = self.nodes.borrow_and_update().clone().unwrap_or_default();
            self.tell_fleet(&desired);
            self.wish(desired.newest() > self.newest);
            self.newest = desired.newest();
            self.follow_listing(tasks);
            if Instant::now() >= age_at {
                self.age();
                age_at = Instant::now() + AGING;
            }
            self.announce(&desired);
            if leave_by.is_some_and(|leave_by| Instant::now() >= leave_by || self.is_all_sent(&desired)) {
                return Ok(());
            }
            tokio::select! {
                error = tasks.failed() => return Err(error),
                changed = self.nodes.changed() => if changed.is_err() {
                    return Err(tasks.failed().await);
                },
                changed = self.listings.changed() => if changed.is_err() {
                    return Err(tasks.failed().await);
                },
                changed = released.changed() => match changed {
                    Ok(()) => self.wish(true),
                    Err(_) => return Err(tasks.failed().await),
                },
                () = woken.notified() => {}
                () = sleep_until(leave_by.map_or(age_at, |leave_by: Instant| leave_by.min(age_at))) => {}
                () = self.term.leaving(), if leave_by.is_none() => leave_by = Some(Instant::now() + LAST_WRITES),
            }
        }
    }

    /// Asks for lists as often as they are needed, and for one at once if `now`.
    fn wish(&self, now: bool) {
        let eventful = self
            .nodes
            .borrow()
            .as_ref()
            .is_some_and(|desired| desired.is_eventful());
        let ours = !self.ledger.book().is_empty();
        let off = self.policy.mode == AdminStateMode::Off;
        let every = match (off, eventful, ours) {
            (_, _, true) | (false, true, _) => Some(RESYNC),
            (false, false, false) => Some(RESYNC_AT_REST),
            (true, _, false) => None,
        };
        self.wanted.send_if_modified(|wanted| {
            let wish = Wanted {
                count: wanted.count + u64::from(now && every.is_some()),
                every,
            };
            let news = *wanted != wish;
            *wanted = wish;
            news
        });
    }

    /// One task for each load balancer that is there.
    fn follow_listing(&mut self, tasks: &mut Tasks) {
        let listing = Arc::clone(&self.listings.borrow_and_update());
        self.editors.retain(|id, task| {
            let there = listing.views.contains_key(id);
            if !there {
                task.handle.abort();
            }
            there
        });
        for id in listing.views.keys() {
            if self.editors.contains_key(id) {
                continue;
            }
            let observed = watch::Sender::new(Observed::default());
            let receiver = observed.subscribe();
            let editor = AdminStateEditor {
                desired: self.nodes.clone(),
                ledger: self.ledger.clone(),
                policy: self.policy,
                clock: self.parts.clock.clone(),
                observed,
                woken: Arc::clone(&self.woken),
                before: Vec::new(),
            };
            let writer = Writer {
                id: id.clone(),
                arm: self.arm.clone(),
                lock: self.lock.clone(),
                term: self.term.clone(),
                listings: self.listings.clone(),
                caller: "AdminStateController",
            };
            let handle = tasks.spawn(format!("load-balancer {}", id.name()), writer.run(editor));
            let task = Task {
                observed: receiver,
                handle,
            };
            self.editors.insert(id.clone(), task);
        }
    }

    fn observed(&self) -> Vec<Observed> {
        self.editors
            .values()
            .map(|task| task.observed.borrow().clone())
            .collect()
    }

    /// Tells people and the ledger what has come about.
    fn announce(&mut self, desired: &Desired) {
        let observed = self.observed();
        let listing = Arc::clone(&self.listings.borrow());
        let told = self.announcer.look(&Sight {
            desired,
            book: &self.ledger.book(),
            observed: &observed,
            blocked: listing.trouble.as_ref(),
            now: self.parts.clock.now(),
        });
        self.ledger.note(told.lines);
        for took in told.took {
            self.parts.metrics.took(took);
        }
        for event in told.events {
            let (node, reason, note) = (event.node.name.clone(), event.kind.reason(), event.note.clone());
            if event.kind.is_warning() {
                tracing::warn!(node, reason, note);
            } else {
                tracing::info!(node, reason, note);
            }
            if self.events.try_send(event).is_err() {
                tracing::warn!(node, reason, "too many events wait: this one is not written");
            }
        }
        let pools = observed.iter().flat_map(|observed| observed.pools.iter().cloned());
        self.parts.metrics.show(Summary {
            pools: pools.collect(),
            pending: observed.iter().map(|observed| observed.pending).sum(),
        });
    }

    /// Lets lines of the ledger grow old.
    fn age(&self) {
        let listing = self.listings.borrow();
        if listing.asked_at.is_none() {
            return;
        }
        let mut there = std::collections::HashSet::new();
        for pool in listing.views.values().flat_map(|view| &view.pools) {
            let id = pool.pool.id.to_string().to_ascii_lowercase();
            let keys = pool.members.iter().filter_map(|member| member.key.as_ref());
            there.extend(keys.map(|key| (id.clone(), key.to_string())));
        }
        let stands = |pool: &str, key: &str| there.contains(&(pool.to_owned(), key.to_owned()));
        let lines = self.ledger.book().aged(stands, self.parts.clock.now().wall);
        self.ledger.note(lines);
    }

    /// Tells the elector how many candidates there are, and whether somebody could take over.
    fn tell_fleet(&self, desired: &Desired) {
        let now = Instant::now();
        let others = desired.cluster.nodes().filter(|node| node.name != self.parts.node_name);
        let fleet = Fleet {
            candidates: match self.parts.candidates {
                Candidates::Nodes => u32::try_from(desired.cluster.len()).unwrap_or(u32::MAX).max(1),
                Candidates::Replicas => REPLICAS,
            },
            relief: others
                .into_iter()
                .any(|node| node.ready && desired.wish(node, now) == super::Wish::Free),
        };
        self.parts.fleet.send_if_modified(|known| {
            let news = *known != Some(fleet);
            *known = Some(fleet);
            news
        });
    }

    /// Whether ARM has everything that is to be written.
    fn is_all_sent(&self, desired: &Desired) -> bool {
        let mut observed = self.editors.values().map(|task| task.observed.borrow());
        observed
            .all(|observed| observed.unsent == 0 && observed.generation.is_some_and(|seen| seen >= desired.generation))
    }
}
