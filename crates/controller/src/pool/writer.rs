//! The one writer of a load balancer: what its [`Editor`] wants changed is written, one PUT for each changed pool.
//!
//! Invariants: before each PUT the whole load balancer is read, and the PUT carries that read's etag, so that nobody
//! else's change is lost; nothing is written while ARM is busy with it, nor without the shared ARM Lease, nor after
//! the term; a write counts when a read shows it. Whatever went wrong, the next thing is a read: there is no state
//! to repair. Level-triggered: a change that was planned and is wanted no more is not made.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{Arm, ArmError, Class, LoadBalancerId};
use headgate_leader::{ArmLock, LockError, LockGuard, Term};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::edit::PoolEdit;
use super::interfaces::Interfaces;
use super::inventory::View;
use super::listing::Listing;
use super::pauses::Pauses;
use super::questions::Questions;
use super::trouble::Trouble;

mod batch;

/// For one read of a load balancer, retries included.
const ONE_READ: Duration = Duration::from_mins(2);
/// For the Lease; then it is asked for again.
const LEASE: Duration = Duration::from_mins(1);
/// To the next look at a load balancer that ARM is busy with, twice that to the one after, and so on.
const BUSY: Duration = Duration::from_secs(1);
const LONGEST_BUSY: Duration = Duration::from_secs(8);
/// Then it is something to tell of.
const BUSY_FOR_LONG: Duration = Duration::from_mins(1);

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
        let mut questions = Questions::new(self.arm.clone());
        loop {
            self.take_listing(&mut round);
            questions.take_in(&mut round.interfaces);
            let edits = match &round.seen {
                Some((_, view)) => {
                    questions.ask(&mut round.interfaces, view, Instant::now() + ONE_READ);
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
                self.wait(&mut editor, &mut questions, None).await;
                continue;
            }
            if let Some(pause) = &round.pause {
                let until = if are_alike(&pause.plan, &edits) {
                    Some(pause.until)
                } else {
                    pause.told
                };
                if let Some(until) = until.filter(|until| Instant::now() < *until) {
                    self.wait(&mut editor, &mut questions, Some(until)).await;
                    continue;
                }
            }
            let writing = self.write(&mut editor, &mut round, edits);
            questions.beside(writing).await;
        }
    }

    /// Waits for another list, for another wish, for whose an interface is, or for this time.
    async fn wait<E: Editor>(&mut self, editor: &mut E, questions: &mut Questions, until: Option<Instant>) {
        tokio::select! {
            changed = self.listings.changed() => if changed.is_err() {
                // Whoever lists has ended, and with it the term.
                std::future::pending::<()>().await;
            },
            () = editor.changed() => {}
            () = questions.answered() => {}
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
                entered.release().await;
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
    async fn enter<E: Editor>(&mut self, editor: &mut E, round: &mut Round) -> Result<LockGuard, Stop> {
        let lock = self.lock.clone();
        let entering = lock.acquire(self.labels.caller, Instant::now() + LEASE);
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
}
