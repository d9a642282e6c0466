//! Giving back what is ours, once and for all Nodes or some: the work of a term of its own, beside which nobody else
//! leads.
//!
//! Writes as the leader does: the one writer of each load balancer, under the ARM Lease. What is ours says the ledger;
//! what others set `Down`, and entries of no Node, are left alone. Nothing outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure::{AdminState, Class, LoadBalancerId, PoolId};
use headgate_clock::Clock;
use headgate_kubernetes::WatchErrorCounter;
use headgate_leader::{ArmLock, LockMetrics, Term};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::desired::Desired;
use super::ledger::{Ledger, LedgerError, Line, Record, Stage};
use super::nodes;
use super::plan::{Policy, plan};
use super::reached::Reached;
use crate::admin_state::{AdminStateMode, ForeignDown};
use crate::pool::{
    Editor, Interfaces, Key, Labels, Listing, NotRecorded, Outcome, PoolEdit, Trouble, View, Wanted, Writer,
    follow_listing,
};

/// How the leader plans where `adminState.mode` is off: `None` for what is ours, and nothing else.
const GIVE_BACK: Policy = Policy {
    mode: AdminStateMode::Off,
    foreign_down: ForeignDown::Keep,
};
/// For giving the ARM Lease back at the end; it is left to expire otherwise, or to the next leader.
const LEAVING: Duration = Duration::from_secs(3);

/// What its writes would be called in metrics, which nobody reads here.
const LABELS: Labels = Labels {
    caller: "Restore",
    request: "loadbalancer_adminstate_restore",
    source: "restore",
};

/// What it is made of.
#[derive(Clone)]
pub struct Restoring {
    /// A client that does not retry of itself.
    pub client: Client,
    /// ARM.
    pub reached: Reached,
    /// The Nodes whose entries are given back; none: all.
    pub only: Option<BTreeSet<String>>,
    /// When it ends at the latest.
    pub within: Duration,
    /// The ARM Lease's metrics, which nobody reads here.
    pub lock_metrics: LockMetrics,
    /// Its time.
    pub clock: Clock,
}

/// An entry that was, or is, `Down` by us.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ours {
    /// Its load balancer.
    pub load_balancer: String,
    /// Its pool.
    pub pool: String,
    /// What it is recognised by.
    pub entry: String,
    /// Whose it is.
    pub node: String,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Given back, and seen to be.
    pub given_back: BTreeSet<Ours>,
    /// Not, and why.
    pub left: BTreeMap<Ours, String>,
    /// The ledger could not be brought up to date.
    pub ledger: Option<String>,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Without the ledger nobody knows what is ours.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// What there is could not be read.
    #[error("the load balancers cannot be listed: {0}")]
    Listing(String),
    /// The Nodes could not be listed in time.
    #[error("the Nodes could not be listed in time")]
    Nodes,
    /// A task that it needs has ended.
    #[error("a task has failed: {0}")]
    Task(String),
    /// It was told to stop.
    #[error("it was interrupted before anything was written")]
    Interrupted,
}

/// One load balancer's progress.
#[derive(Clone, Debug, Default)]
struct Progress {
    looked: bool,
    given_back: BTreeSet<Ours>,
    left: BTreeSet<Ours>,
    /// Entries whose line says Down, and which are not.
    gone: Vec<(PoolId, Key)>,
    trouble: Option<Trouble>,
}

impl Progress {
    fn is_over(&self) -> bool {
        let hopeless = self
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.class == Class::Terminal);
        self.looked && (self.left.is_empty() || hopeless)
    }
}

struct RestoreEditor {
    desired: watch::Receiver<Option<Arc<Desired>>>,
    ledger: Ledger,
    only: Option<BTreeSet<String>>,
    clock: Clock,
    progress: watch::Sender<Progress>,
}

impl Editor for RestoreEditor {
    async fn changed(&mut self) {
        if self.desired.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn plan(&mut self, view: &View, interfaces: &Interfaces) -> Vec<PoolEdit> {
        let Some(desired) = self.desired.borrow_and_update().clone() else {
            return Vec::new();
        };
        let (book, now) = (self.ledger.book(), self.clock.now().mono);
        let mut plan = plan(view, interfaces, &desired, &book, GIVE_BACK, now);
        let is_wanted = |node: &str| self.only.as_ref().is_none_or(|only| only.contains(node));
        for edit in &mut plan.edits {
            edit.changes.retain(|change| is_wanted(&change.node.name));
        }
        plan.edits.retain(|edit| !edit.changes.is_empty());
        let left: BTreeSet<_> = plan.edits.iter().flat_map(ours).collect();
        let gone = plan.standings.iter().filter(|standing| {
            let stands = standing.record.is_some_and(|record| record.stage != Stage::Restored);
            stands && standing.actual != Some(AdminState::Down) && is_wanted(&standing.node.name)
        });
        let gone: Vec<_> = gone
            .map(|standing| (standing.pool.clone(), standing.key.clone()))
            .collect();
        self.progress.send_modify(|progress| {
            progress.looked = interfaces.were_asked_about(view);
            let done: Vec<_> = progress.left.difference(&left).cloned().collect();
            progress.given_back.extend(done);
            progress.given_back.retain(|ours| !left.contains(ours));
            progress.left = left;
            progress.gone = gone;
        });
        plan.edits
    }

    /// What is given back needs no record: the one there is says that it is ours.
    async fn record(&mut self, _: &PoolEdit) -> Result<(), NotRecorded> {
        Ok(())
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Failed(trouble) => self.progress.send_modify(|progress| progress.trouble = Some(trouble)),
            Outcome::Clear => self.progress.send_modify(|progress| progress.trouble = None),
            Outcome::Accepted(_) | Outcome::Refused => {}
        }
    }
}

fn ours(edit: &PoolEdit) -> impl Iterator<Item = Ours> {
    edit.changes.iter().map(|change| Ours {
        load_balancer: edit.pool.load_balancer().name().to_owned(),
        pool: edit.pool.name().to_owned(),
        entry: change.key.to_string(),
        node: change.node.name.clone(),
    })
}

/// Gives back what is ours; ends once all of it is seen to be, or what is left cannot be, or the term is to end.
///
/// # Errors
/// Where nothing could be tried.
pub async fn restore(term: &Term, parts: &Restoring) -> Result<Restored, RestoreError> {
    let until = Instant::now() + parts.within;
    let ledger = Ledger::load(parts.client.clone(), term.clone()).await?;
    let (lock, follow) = ArmLock::new(parts.client.clone(), parts.clock.clone(), parts.lock_metrics.clone());
    let mut follow = std::pin::pin!(follow.fuse());
    let mut tasks = JoinSet::new();
    let outcome = tokio::select! {
        outcome = work(term, parts, &ledger, lock, &mut tasks, until) => outcome,
        () = &mut follow => Err(RestoreError::Task("the ARM Lease is not kept".to_owned())),
        () = term.ended() => Err(RestoreError::Interrupted),
    };
    // Whoever holds the lock yet leaves it with this.
    tasks.shutdown().await;
    let _ = timeout(LEAVING, follow).await;
    outcome
}

async fn work(
    term: &Term,
    parts: &Restoring,
    ledger: &Ledger,
    lock: ArmLock,
    tasks: &mut JoinSet<()>,
    until: Instant,
) -> Result<Restored, RestoreError> {
    let desired = watch::Sender::new(None);
    let mut nodes = desired.subscribe();
    let reading = nodes::Reading {
        // No signal counts: everything is to go back.
        taint_keys: Vec::new(),
        exclude_control_plane: parts.reached.exclude_control_plane,
        watch_errors: WatchErrorCounter::default(),
        clock: parts.clock.clone(),
    };
    tasks.spawn(nodes::run(parts.client.clone(), reading, desired));
    let wanted = watch::Sender::new(Wanted { count: 1, every: None });
    let listings = watch::Sender::new(Arc::new(Listing::default()));
    let mut listed = listings.subscribe();
    let Reached { arm, scope, .. } = parts.reached.clone();
    tasks.spawn(follow_listing(arm.clone(), scope, wanted.subscribe(), listings));
    tokio::select! {
        () = term.handover_requested() => return Err(RestoreError::Interrupted),
        synced = nodes.wait_for(Option::is_some) => drop(synced.map_err(|_| RestoreError::Nodes)?),
        () = sleep_until(until) => return Err(RestoreError::Nodes),
    }
    let listing = tokio::select! {
        () = term.handover_requested() => return Err(RestoreError::Interrupted),
        listing = first(&mut listed) => listing?,
        () = sleep_until(until) => {
            let trouble = listed.borrow().trouble.as_ref().map(|trouble| trouble.text.clone());
            return Err(RestoreError::Listing(trouble.unwrap_or_else(|| "ARM did not answer in time".to_owned())));
        }
    };
    let editors = listing.views.keys().map(|id: &LoadBalancerId| {
        let progress = watch::Sender::new(Progress::default());
        let receiver = progress.subscribe();
        let editor = RestoreEditor {
            desired: nodes.clone(),
            ledger: ledger.clone(),
            only: parts.only.clone(),
            clock: parts.clock.clone(),
            progress,
        };
        let writer = Writer {
            id: id.clone(),
            arm: arm.clone(),
            lock: lock.clone(),
            term: term.clone(),
            listings: listed.clone(),
            labels: LABELS,
        };
        tasks.spawn(writer.run(editor));
        receiver
    });
    let mut editors: Vec<_> = editors.collect();
    let all = async {
        for editor in &mut editors {
            // An editor that has gone says nothing more.
            let _ = editor.wait_for(Progress::is_over).await;
        }
    };
    let in_time = tokio::select! {
        () = all => true,
        () = term.handover_requested() => false,
        () = sleep_until(until) => false,
    };
    drop(wanted);
    Ok(finish(parts, ledger, &editors, in_time).await)
}

/// The first list that succeeds; a failure for good is one.
async fn first(listed: &mut watch::Receiver<Arc<Listing>>) -> Result<Arc<Listing>, RestoreError> {
    let is_over = |listing: &Arc<Listing>| {
        let hopeless = |trouble: &Trouble| trouble.class == Class::Terminal;
        listing.asked_at.is_some() || listing.trouble.as_ref().is_some_and(hopeless)
    };
    let listing = listed.wait_for(is_over).await.map(|listing| Arc::clone(&listing));
    let listing = listing.map_err(|_| RestoreError::Task("load balancers are not listed".to_owned()))?;
    match &listing.trouble {
        Some(trouble) => Err(RestoreError::Listing(trouble.text.clone())),
        None => Ok(listing),
    }
}

/// Sums up, and puts on record what is gone.
async fn finish(parts: &Restoring, ledger: &Ledger, editors: &[watch::Receiver<Progress>], in_time: bool) -> Restored {
    let mut restored = Restored::default();
    let mut lines = Vec::new();
    let record = Record {
        stage: Stage::Restored,
        since: parts.clock.now().wall,
    };
    for editor in editors {
        let progress = editor.borrow();
        restored.given_back.extend(progress.given_back.iter().cloned());
        let why = match &progress.trouble {
            Some(trouble) => trouble.text.clone(),
            None if in_time => "it is still Down".to_owned(),
            None => "there was no time left".to_owned(),
        };
        let left = progress.left.iter().cloned();
        restored.left.extend(left.map(|ours| (ours, why.clone())));
        let gone = progress.gone.iter();
        lines.extend(gone.map(|(pool, key)| Line::new(pool, key, Some(record))));
    }
    ledger.note(lines);
    restored.ledger = ledger.flush().await.err().map(|error| error.to_string());
    restored
}
