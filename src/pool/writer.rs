//! The one writer of a load balancer: what its [`Editor`] wants changed is written, one PUT for each changed pool.
//!
//! Invariants: before each PUT the whole load balancer is read, and the PUT carries that read's etag, so that nobody
//! else's change is lost; nothing is written while ARM is busy with it, nor without the shared ARM Lease, nor after
//! the term; a write counts when a read shows it. Whatever went wrong, the next thing is a read: there is no state
//! to repair. Level-triggered: a change that was planned and is wanted no more is not made.

use std::collections::HashMap;
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
/// Between looks at a load balancer that ARM is busy with.
const BUSY: Duration = Duration::from_secs(1);
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
    /// Not before this; the plan that failed, since another one need not wait, unless the failure is for good.
    pause: Option<(Instant, Vec<PoolEdit>, Class)>,
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
            if let Some((until, failed, class)) = &round.pause
                && Instant::now() < *until
            {
                if *class == Class::Terminal || *failed == edits {
                    let until = *until;
                    self.wait(&mut editor, Some(until)).await;
                    continue;
                }
                round.pauses.succeeded();
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
        let before = round.trouble.as_ref();
        let (trouble, pause) = match outcome {
            Err(Stop::Closed) => {
                sleep(BUSY).await;
                round.pause = None;
                return;
            }
            Ok(()) | Err(Stop::Again) => {
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
            Err(Stop::Arm(error)) => (Trouble::new(&error, before), round.pauses.after(&error)),
        };
        if before.is_none_or(|before| !before.is_like(&trouble)) {
            let load_balancer = self.id.name();
            tracing::warn!(load_balancer, error = trouble.text, code = trouble.code, again_in = ?pause, "not written");
        }
        round.pause = Some((Instant::now() + pause, planned, trouble.class));
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

    /// Reads, writes the first pool of the plan, reads again, until a read leaves nothing to be written.
    async fn batch<E: Editor>(&mut self, editor: &mut E, round: &mut Round, entered: &mut Entered) -> Result<(), Stop> {
        let mut written: HashMap<PoolId, PoolEdit> = HashMap::new();
        let mut stale = 0;
        loop {
            let asked_at = Instant::now();
            let deadline = asked_at + ONE_READ;
            let read = self.arm.load_balancer(&self.id, deadline).await;
            let load_balancer = match read {
                // It is gone; the next list says so too.
                Err(error) if error.class() == Class::Stale => {
                    round.seen = None;
                    return Ok(());
                }
                read => read?,
            };
            let mut view = View::of(load_balancer);
            round.interfaces.learn(&view, &self.arm, deadline).await;
            let mut edits = editor.plan(&view, &round.interfaces);
            if edits.is_empty() {
                round.seen = Some((asked_at, Arc::new(view)));
                return Ok(());
            }
            if !entered.open() {
                // Somebody who never ends is something to tell of.
                let stop = if view.busy {
                    Stop::Arm(ArmError::Busy(self.id.to_string()))
                } else {
                    Stop::Closed
                };
                round.seen = Some((asked_at, Arc::new(view)));
                return Err(stop);
            }
            if view.busy {
                sleep(BUSY).await;
                continue;
            }
            let edit = edits.swap_remove(0);
            if written.remove(&edit.pool).as_ref() == Some(&edit) {
                return Err(ArmError::NotShown(edit.pool.to_string()).into());
            }
            let Some(place) = view.pools.iter().position(|known| known.pool.id == edit.pool) else {
                return Ok(());
            };
            let mut pool = view.pools.swap_remove(place).pool;
            edit.apply(&mut pool);
            editor.record(&edit).await.map_err(Stop::NotRecorded)?;
            match self.put(&pool, editor, &edit, entered).await {
                Ok(()) => {
                    written.insert(edit.pool.clone(), edit);
                }
                Err(error) if error.class() == Class::Stale && stale < STALE_AT_ONCE => stale += 1,
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

/// Whether a write that failed like this had no effect and will have none.
fn surely_not_done(error: &ArmError) -> bool {
    match error {
        ArmError::Refused { status, maybe_done, .. } => status.is_client_error() && !maybe_done,
        ArmError::Busy(_) => true,
        _ => false,
    }
}
