//! The one writer of a load balancer: what its [`Editor`] wants changed is written, one PUT for each changed pool.
//!
//! Invariants: before each PUT the whole load balancer is read, and the PUT carries that read's etag, so that nobody
//! else's change is lost; nothing is written while ARM is busy with it, nor without the shared ARM Lease, nor after
//! the term; a write counts when a read shows it. Whatever went wrong, the next thing is a read: there is no state
//! to repair. Level-triggered: a change that was planned and is wanted no more is not made.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::edit::PoolEdit;
use super::interfaces::Interfaces;
use super::inventory::View;
use super::listing::Listing;
use super::pauses::Pauses;
use super::trouble::Trouble;
use crate::azure::{Arm, ArmError, Class, LoadBalancerId, Permit, PoolId};

use crate::leader::{ArmLock, Entered, LockError, Term};

/// For one read of a load balancer, retries included.
const ONE_READ: Duration = Duration::from_mins(2);
/// For one write, from its PUT to its end: ARM's operations take seconds, and the Lease lasts 15 min.
const ONE_WRITE: Duration = Duration::from_mins(10);
/// For the Lease; then it is asked for again.
const LEASE: Duration = Duration::from_mins(1);
/// To the next look at a load balancer that ARM is busy with, twice that to the one after, and so on.
const BUSY: Duration = Duration::from_secs(1);
const LONGEST_BUSY: Duration = Duration::from_secs(8);
/// Then it is something to tell of.
const BUSY_FOR_LONG: Duration = Duration::from_mins(1);
/// Fresh reads at once in one batch, after writes that were overtaken.
const STALE_AT_ONCE: u32 = 2;

/// Why a change could not be put on record, and so was not made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("what is to be written could not be put on record before: {0}")]
pub struct NotRecorded(pub String);

/// What became of what was planned.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// ARM has accepted these changes.
    Accepted(PoolEdit),
    /// What was recorded last was surely not written.
    Refused,
    /// Nothing is being written; what is still to be comes later.
    Failed(Trouble),
    /// Nothing is in the way.
    Clear,
}

/// Who says what is to be changed in a load balancer.
pub trait Editor: Send + 'static {
    /// Waits until a plan may be another one.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// What is to be changed in this load balancer as it was read, the most urgent first. The editor learns from this,
    /// too, what the load balancer shows.
    fn plan(&mut self, view: &View, interfaces: &Interfaces) -> Vec<PoolEdit>;
    /// Puts on record what is about to be written.
    fn record(&mut self, edit: &PoolEdit) -> impl Future<Output = Result<(), NotRecorded>> + Send;
    /// Learns what became of a plan.
    fn outcome(&mut self, outcome: Outcome);
}

/// A load balancer's writer.
#[derive(Debug)]
pub struct Writer {
    /// Which.
    pub id: LoadBalancerId,
    /// How it is reached.
    pub arm: Arm,
    /// Held while writing.
    pub lock: ArmLock,
    /// The term it writes in.
    pub term: Term,
    /// All load balancers, now and then.
    pub listings: watch::Receiver<Arc<Listing>>,
    /// What its doings are called in metrics.
    pub labels: Labels,
}

/// What a writer's doings are called in metrics.
#[derive(Clone, Copy, Debug)]
pub struct Labels {
    /// Who waits for the Lease.
    pub caller: &'static str,
    /// One write of a pool, to its end.
    pub request: &'static str,
    /// On whose behalf.
    pub source: &'static str,
}

/// What goes on from one round to the next.
struct Round {
    /// The load balancer as last read, and when ARM was asked.
    seen: Option<(Instant, Arc<View>)>,
    interfaces: Interfaces,
    pauses: Pauses,
    trouble: Option<Trouble>,
    pause: Option<Pause>,
    /// Since when ARM was found busy each time, and how often.
    busy: Option<(Instant, u32)>,
}

/// A pause after a failure.
struct Pause {
    until: Instant,
    /// What failed: another plan need not wait.
    plan: Vec<PoolEdit>,
    /// Unless ARM said when to come again.
    told: Option<Instant>,
}

fn are_alike(plan: &[PoolEdit], other: &[PoolEdit]) -> bool {
    plan.len() == other.len() && plan.iter().zip(other).all(|(edit, other)| edit.is_like(other))
}

/// Why a batch ended early.
enum Stop {
    Arm(ArmError),
    NotRecorded(NotRecorded),
    Lock(LockError),
    /// It is not wanted any more: look again.
    Again,
    /// The Lease has been held for so long that others should have a chance.
    Closed,
    /// ARM is busy with the load balancer: others need the Lease meanwhile.
    Busy,
}

impl From<ArmError> for Stop {
    fn from(error: ArmError) -> Self {
        Self::Arm(error)
    }
}

impl Writer {
    /// Writes for as long as it is let; never ends of itself.
    pub async fn run<E: Editor>(mut self, mut editor: E) {
        let mut round = Round {
            seen: None,
            interfaces: Interfaces::default(),
            pauses: Pauses::default(),
            trouble: None,
            pause: None,
            busy: None,
        };
        loop {
            self.take_listing(&mut round);
            let edits = match &round.seen {
                Some((_, view)) => {
                    let deadline = Instant::now() + ONE_READ;
                    round.interfaces.learn(view, &self.arm, deadline).await;
                    editor.plan(view, &round.interfaces)
                }
                None => Vec::new(),
            };
            if edits.is_empty() {
                if round.trouble.take().is_some() {
                    editor.outcome(Outcome::Clear);
                }
                round.pauses.succeeded();
                round.pause = None;
                self.wait(&mut editor, None).await;
                continue;
            }
            if let Some(pause) = &round.pause {
                let until = if are_alike(&pause.plan, &edits) {
                    Some(pause.until)
                } else {
                    pause.told
                };
                if let Some(until) = until.filter(|until| Instant::now() < *until) {
                    self.wait(&mut editor, Some(until)).await;
                    continue;
                }
            }
            self.write(&mut editor, &mut round, edits).await;
        }
    }

    /// Waits for another list, for another wish, or for this time.
    async fn wait<E: Editor>(&mut self, editor: &mut E, until: Option<Instant>) {
        tokio::select! {
            changed = self.listings.changed() => if changed.is_err() {
                // Whoever lists has ended, and with it the term.
                std::future::pending::<()>().await;
            },
            () = editor.changed() => {}
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }

    /// Takes over what was listed, if it is newer than what was read.
    fn take_listing(&mut self, round: &mut Round) {
        let listed = self.listings.borrow_and_update().view(&self.id);
        if let Some((asked_at, view)) = listed
            && round.seen.as_ref().is_none_or(|(known, _)| *known < asked_at)
        {
            round.seen = Some((asked_at, view));
        }
    }

    /// One batch under the Lease, and what is said and waited after it.
    async fn write<E: Editor>(&mut self, editor: &mut E, round: &mut Round, planned: Vec<PoolEdit>) {
        let outcome = match self.enter(editor, round).await {
            Ok(mut entered) => {
                let outcome = self.batch(editor, round, &mut entered).await;
                entered.leave().await;
                outcome
            }
            Err(stop) => Err(stop),
        };
        if !matches!(outcome, Err(Stop::Busy)) {
            round.busy = None;
        }
        let before = round.trouble.as_ref();
        let mut told = None;
        let (trouble, pause) = match outcome {
            Err(Stop::Busy) => {
                let (since, times) = round.busy.unwrap_or((Instant::now(), 0));
                round.busy = Some((since, times + 1));
                if since.elapsed() < BUSY_FOR_LONG {
                    sleep(LONGEST_BUSY.min(BUSY * 2_u32.saturating_pow(times))).await;
                    return;
                }
                let error = ArmError::Busy(self.id.to_string());
                (Trouble::new(&error, before), LONGEST_BUSY)
            }
            Ok(()) | Err(Stop::Again | Stop::Closed) => {
                round.pause = None;
                return;
            }
            // Whoever has it gives it back some time; asking is all there is to do.
            Err(Stop::Lock(error)) => (
                Trouble::named(Class::Retriable, "LeaseHeld", error.to_string(), before),
                BUSY,
            ),
            Err(Stop::NotRecorded(error)) => (
                Trouble::named(Class::Retriable, "NotRecorded", error.to_string(), before),
                round.pauses.after_other(),
            ),
            Err(Stop::Arm(error)) => {
                let now = Instant::now();
                told = error.retry_after(now).map(|wait| now + wait);
                (Trouble::new(&error, before), round.pauses.after(&error))
            }
        };
        if before.is_none_or(|before| !before.is_like(&trouble)) {
            let load_balancer = self.id.name();
            tracing::warn!(load_balancer, error = trouble.text, code = trouble.code, again_in = ?pause, "not written");
        }
        round.pause = Some(Pause {
            until: Instant::now() + pause,
            plan: planned,
            told,
        });
        editor.outcome(Outcome::Failed(trouble.clone()));
        round.trouble = Some(trouble);
    }

    /// Waits for the Lease, for as long as something is to be written.
    async fn enter<E: Editor>(&mut self, editor: &mut E, round: &mut Round) -> Result<Entered, Stop> {
        let lock = self.lock.clone();
        let entering = lock.enter(self.labels.caller, Instant::now() + LEASE);
        let mut entering = std::pin::pin!(entering);
        loop {
            tokio::select! {
                biased;
                entered = &mut entering => return entered.map_err(Stop::Lock),
                () = editor.changed() => {}
                changed = self.listings.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
            }
            self.take_listing(round);
            if let Some((_, view)) = &round.seen
                && editor.plan(view, &round.interfaces).is_empty()
            {
                return Err(Stop::Again);
            }
        }
    }

    /// Reads, writes the first pool of the plan, reads again, until a read leaves nothing to be written. A pool that is
    /// refused keeps no other one waiting.
    async fn batch<E: Editor>(&mut self, editor: &mut E, round: &mut Round, entered: &mut Entered) -> Result<(), Stop> {
        let mut written: HashMap<PoolId, PoolEdit> = HashMap::new();
        let mut refused = HashSet::new();
        let mut first_refusal = None;
        let mut stale = 0;
        loop {
            let asked_at = Instant::now();
            let view = match self.arm.load_balancer(&self.id, asked_at + ONE_READ).await {
                // It is gone; the next list says so too.
                Err(error) if error.class() == Class::Stale => View::gone(self.id.clone()),
                read => View::of(read?),
            };
            let mut edits = editor.plan(&view, &round.interfaces);
            let view = Arc::new(view);
            round.seen = Some((asked_at, Arc::clone(&view)));
            edits.retain(|edit| !refused.contains(&edit.pool));
            if edits.is_empty() {
                return first_refusal.map_or(Ok(()), |error| Err(Stop::Arm(error)));
            }
            if !entered.open() {
                return Err(Stop::Closed);
            }
            if view.busy {
                return Err(Stop::Busy);
            }
            let edit = edits.swap_remove(0);
            let Some(pool) = view.pool(&edit.pool) else {
                return Ok(());
            };
            if written.remove(&edit.pool).is_some_and(|written| written.is_like(&edit)) {
                first_refusal.get_or_insert(ArmError::NotShown(edit.pool.to_string()));
                refused.insert(edit.pool);
                continue;
            }
            let mut pool = pool.pool.clone();
            edit.apply(&mut pool);
            editor.record(&edit).await.map_err(Stop::NotRecorded)?;
            match self.put(&pool, editor, &edit, entered).await {
                Ok(()) => {
                    written.insert(edit.pool.clone(), edit);
                }
                Err(error) if error.class() == Class::Stale && stale < STALE_AT_ONCE => stale += 1,
                Err(error) if is_the_pools(&error) => {
                    first_refusal.get_or_insert(error);
                    refused.insert(edit.pool);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One write, to its end.
    async fn put<E: Editor>(
        &self,
        pool: &crate::azure::Pool,
        editor: &mut E,
        edit: &PoolEdit,
        entered: &mut Entered,
    ) -> Result<(), ArmError> {
        let term = self.term.clone();
        let permit = Permit::new(move || term.permit().is_ok());
        let deadline = Instant::now() + ONE_WRITE;
        let (request, source) = (self.labels.request, self.labels.source);
        let operation = self.arm.metrics().operation(request, self.id.group(), source);
        entered.wrote();
        let outcome = match self.arm.put_pool(pool, permit, deadline).await {
            Ok(accepted) => {
                editor.outcome(Outcome::Accepted(edit.clone()));
                self.arm.follow(&accepted, deadline).await
            }
            Err(error) => {
                if surely_not_done(&error) {
                    editor.outcome(Outcome::Refused);
                }
                Err(error)
            }
        };
        operation.done(outcome.is_ok());
        outcome
    }
}

/// Whether a failure says something about the one pool only, as far as one can tell.
fn is_the_pools(error: &ArmError) -> bool {
    match error {
        ArmError::Refused { status, .. } => status.is_client_error() && !matches!(status.as_u16(), 401 | 408 | 429),
        ArmError::Operation { .. } => true,
        _ => false,
    }
}

/// Whether a write that failed like this had no effect and will have none.
fn surely_not_done(error: &ArmError) -> bool {
    match error {
        ArmError::Refused { status, maybe_done, .. } => status.is_client_error() && !maybe_done,
        ArmError::Busy(_) => true,
        _ => false,
    }
}
