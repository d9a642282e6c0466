//! The work once everything it needs is there: it looks at what every task shows, tells people and the ledger, and says
//! what is to be listed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{AdminState, Arm, Class, LoadBalancerId};
use headgate_leader::{ArmLock, NodeSummary, Term};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::super::announce::{Announcement, Announcer, Sight};
use super::super::desired::{Desired, Wish};
use super::super::editor::{AdminStateEditor, Observed};
use super::super::ledger::{Ledger, Stands};
use super::super::metrics::Summary;
use super::super::plan::Policy;
use super::tasks::Tasks;
use super::{Parts, REFUSED, WorkError};
use crate::admin_state::AdminStateMode;
use crate::pool::{Labels, Listing, Wanted, Writer};

/// As the design of cloud-provider-azure names them.
const LABELS: Labels = Labels {
    caller: "AdminStateController",
    request: "loadbalancer_adminstate_update_backend_pool",
    source: "admin_state_controller",
};
/// Between lists while any Node has a signal or anything is ours.
const RESYNC: Duration = Duration::from_secs(15);
/// Between lists otherwise.
const RESYNC_AT_REST: Duration = Duration::from_mins(5);
/// What has to be written when the term is given back is to be sent by then: the elector waits 3 s.
const LAST_WRITES: Duration = Duration::from_millis(1900);
/// Old lines in the ledger are looked for this often.
const AGING: Duration = Duration::from_secs(30);

/// A load balancer's task.
pub(super) struct Task {
    observed: watch::Receiver<Observed>,
    handle: AbortHandle,
}

/// The work once everything it needs is there.
pub(super) struct Leading<'a> {
    pub(super) term: &'a Term,
    pub(super) parts: &'a Parts,
    pub(super) arm: Arm,
    pub(super) policy: Policy,
    pub(super) nodes: watch::Receiver<Option<Arc<Desired>>>,
    pub(super) ledger: Ledger,
    pub(super) lock: ArmLock,
    pub(super) listings: watch::Receiver<Arc<Listing>>,
    pub(super) wanted: watch::Sender<Wanted>,
    /// The newest signal that was listed for.
    pub(super) newest: u64,
    pub(super) editors: BTreeMap<LoadBalancerId, Task>,
    pub(super) woken: Arc<Notify>,
    pub(super) announcer: Announcer,
    pub(super) events: mpsc::Sender<Announcement>,
}

impl Leading<'_> {
    pub(super) async fn run(&mut self, tasks: &mut Tasks) -> Result<(), WorkError> {
        let mut released = self.lock.released_by_others();
        let mut age_at = Instant::now();
        let mut leave_by = None;
        let woken = Arc::clone(&self.woken);
        self.wish(true);
        loop {
            let desired = self.nodes.borrow_and_update().clone().unwrap_or_default();
            self.report_nodes(&desired);
            self.wish(desired.newest() > self.newest);
            self.newest = desired.newest();
            self.follow_listing(tasks);
            self.is_not_refused()?;
            if Instant::now() >= age_at {
                self.age();
                age_at = Instant::now() + AGING;
            }
            self.announce(&desired);
            if leave_by.is_some_and(|leave_by| Instant::now() >= leave_by || self.is_all_sent(&desired)) {
                return Ok(());
            }
            // Held on, it would be copied with the next change of a Node.
            drop(desired);
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
                () = self.term.handover_requested(), if leave_by.is_none() => leave_by = Some(Instant::now() + LAST_WRITES),
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
                labels: LABELS,
            };
            let handle = tasks.spawn(format!("load-balancer {}", id.name()), writer.run(editor));
            let task = Task {
                observed: receiver,
                handle,
            };
            self.editors.insert(id.clone(), task);
        }
    }

    /// Whether ARM has not refused lists for too long.
    fn is_not_refused(&self) -> Result<(), WorkError> {
        let listing = self.listings.borrow();
        match &listing.trouble {
            Some(trouble) if trouble.class == Class::Terminal && trouble.since.elapsed() > REFUSED => {
                Err(WorkError::Refused(trouble.text.clone()))
            }
            _ => Ok(()),
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
            mode: self.policy.mode,
            now: self.parts.clock.now(),
        });
        self.ledger.note(told.lines);
        for took in told.took {
            self.parts.metrics.took(took);
        }
        for event in told.events {
            let (name, reason) = (event.node.name.clone(), event.kind.reason());
            if event.kind.is_warning() {
                tracing::warn!(node = name, reason, told = event.note);
            } else {
                tracing::info!(node = name, reason, told = event.note);
            }
            if self.events.try_send(event).is_err() {
                tracing::warn!(node = name, reason, "too many events wait: this one is not written");
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
        if listing.asked_at.is_none() || self.ledger.book().is_empty() {
            return;
        }
        let mut there: HashMap<String, HashMap<&str, Option<AdminState>>> = HashMap::new();
        for pool in listing.views.values().flat_map(|view| &view.pools) {
            let id = pool.id.to_string().to_ascii_lowercase();
            let members = pool.members.iter();
            let members = members.filter_map(|member| Some((member.key.as_ref()?.as_str(), member.admin_state)));
            there.entry(id).or_default().extend(members);
        }
        let stands = |pool: &str, key: &str| match there.get(pool).and_then(|keys| keys.get(key)) {
            Some(Some(AdminState::Down)) => Stands::Down,
            Some(_) => Stands::NotDown,
            None => Stands::NotThere,
        };
        let lines = self.ledger.book().aged(stands, self.parts.clock.now().wall);
        self.ledger.note(lines);
    }

    /// Reports the Nodes to the election, which derives the number of candidates and healthy peers from them.
    fn report_nodes(&self, desired: &Desired) {
        let now = Instant::now();
        let mut others = desired.cluster.nodes().filter(|node| node.name != self.parts.node_name);
        self.term.report_nodes(Some(NodeSummary {
            nodes: desired.cluster.len(),
            has_healthy_peer: others.any(|node| node.ready && desired.wish(node, now) == Wish::Free),
        }));
    }

    /// Whether ARM has everything that is to be written.
    fn is_all_sent(&self, desired: &Desired) -> bool {
        let mut observed = self.editors.values().map(|task| task.observed.borrow());
        observed
            .all(|observed| observed.unsent == 0 && observed.generation.is_some_and(|seen| seen >= desired.generation))
    }
}
