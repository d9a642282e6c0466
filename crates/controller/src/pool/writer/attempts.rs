//! What a failed attempt leaves for the next one: the last error, and when the same plan is due again. Pure but for the log.

use std::collections::HashMap;
use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, LoadBalancerId, PoolId};
use headgate_core::telemetry::warn_if;
use headgate_kubernetes::leader::LockError;
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::super::retry::{Backoff, LastError, MAX_TERMINAL_DELAY};
use super::written::Waiting;
use super::{HOLD_UNUSED, IntentNotRecorded};

/// Between two requests for the Lease: its holder releases it at some time, so a longer delay gains nothing.
const LEASE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Between two reads of a load balancer that ARM is busy with; doubles each time.
const MIN_BUSY_DELAY: Duration = Duration::from_secs(1);
const MAX_BUSY_DELAY: Duration = Duration::from_secs(8);
/// ARM's operations take seconds. Busy for longer than this is an error.
const BUSY_ERROR_AFTER: Duration = Duration::from_mins(1);

/// Why an attempt ended before everything was written.
pub(super) enum AttemptError {
    /// A request to ARM failed.
    Arm(ArmError),
    /// ARM refuses a version of a pool that reads show for longer than they lag. The same write is refused again.
    VersionRefused(ArmError),
    /// The planner could not record an edit.
    IntentNotRecorded(IntentNotRecorded),
    /// What is left are pools that ARM has refused, and that are not due again: [`Attempts::refuse`].
    Refused,
    /// The shared Lease was not acquired.
    LeaseNotAcquired(LockError),
    /// The shared Lease was lost while a write waited to be sent.
    LeaseLost,
    /// The process has held the shared Lease for so long that it admits no new writes.
    HoldClosed {
        /// Whether the attempt has sent a PUT.
        has_written: bool,
    },
    /// ARM is busy with the load balancer: it has refused a write of this pool, or was read so. The Lease is released meanwhile.
    Busy(Option<(PoolId, ArmError)>),
    /// The term is handed over: the next leader writes.
    HandingOver,
}

impl From<ArmError> for AttemptError {
    fn from(error: ArmError) -> Self {
        Self::Arm(error)
    }
}

impl From<LockError> for AttemptError {
    fn from(error: LockError) -> Self {
        Self::LeaseNotAcquired(error)
    }
}

/// What the writer does after an attempt.
pub(super) enum AfterAttempt {
    /// Plans again at once.
    PlanAgain,
    /// Waits for so long, whatever changes, then plans again.
    Wait(Duration),
    /// Reports the error; the same plan is deferred.
    Failed(LastError),
}

/// The failures since the last success.
#[derive(Default)]
pub(super) struct Attempts {
    backoff: Backoff,
    last_error: Option<LastError>,
    deferred: Option<DeferredPlan>,
    busy: Option<Busy>,
    /// Whether the last attempt sent no PUT before the hold of the Lease admitted none any more.
    was_hold_unused: bool,
    /// The pools whose PUT or whose own read ended an attempt, the last one at the end, and when each first did.
    failed_pools: Vec<(PoolId, Instant)>,
    refusals: Vec<Refusal>,
    refusal_backoff: Backoff,
}

/// What ARM refused in an attempt that is repeated before this edit is due again.
pub(super) struct Refusal {
    edit: PoolEdit,
    until: Instant,
    error: LastError,
    /// As in [`DeferredPlan`].
    is_due_with_version: bool,
}

struct DeferredPlan {
    plan: Vec<PoolEdit>,
    until: Instant,
    /// The end of ARM's `Retry-After`, which holds for any plan, unless it is about one pool.
    retry_after: Option<Instant>,
    /// Whether it is due as soon as reads show another version: ARM refuses the present one.
    is_due_with_version: bool,
}

/// ARM is busy with the load balancer.
struct Busy {
    /// When the first attempt found it so, or, if later, when the last write succeeded.
    since: Instant,
    /// The attempts that found it so since then.
    attempts: u32,
    /// Since when ARM refuses each of these pools.
    refused: HashMap<PoolId, Instant>,
}

impl Attempts {
    /// Nothing is left to write. Returns whether an attempt had failed before.
    pub(super) fn succeed(&mut self) -> bool {
        let before = std::mem::take(self);
        before.last_error.is_some()
    }

    /// A write of this pool has succeeded: waits for a busy load balancer begin anew. For how long ARM has refused other pools stays
    /// known, but for those that it began to refuse at most a minute before this one, or later: the reason may have been the same.
    pub(super) fn adopt_success(&mut self, pool: &PoolId) {
        self.failed_pools.retain(|(failed, _)| failed != pool);
        self.refusals.retain(|refusal| refusal.edit.pool != *pool);
        let Some(busy) = &mut self.busy else { return };
        (busy.since, busy.attempts) = (Instant::now(), 0);
        if let Some(began) = busy.refused.remove(pool) {
            busy.refused.retain(|_, since| *since + BUSY_ERROR_AFTER < began);
        }
    }

    /// Remembers that the PUT or the own read of this pool ends the attempt.
    pub(super) fn fail_pool(&mut self, pool: PoolId) {
        let before = self.failed_pools.iter().position(|(failed, _)| *failed == pool);
        let since = before.map_or_else(Instant::now, |place| self.failed_pools.remove(place).1);
        self.failed_pools.push((pool, since));
    }

    /// Moves the pools that ended attempts behind the others, the last one to the end: what ends each attempt must not come first in
    /// each, or nothing else of the load balancer would ever be written. Those that did so first less than a minute ago come before the
    /// rest of them: each turn of one that ARM has refused for longer would double the wait of a pool that may fail only once.
    pub(super) fn take_failed_last(&self, edits: &mut [PoolEdit]) {
        edits.sort_by_key(|edit| {
            let mut failed = self.failed_pools.iter().enumerate();
            let (place, (_, since)) = failed.find(|(_, (failed, _))| *failed == edit.pool)?;
            Some((since.elapsed() >= BUSY_ERROR_AFTER, place))
        });
    }

    /// Remembers the edits that ARM refused in an attempt that is repeated sooner, because something else of it could not be recorded.
    pub(super) fn refuse(&mut self, edits: impl Iterator<Item = PoolEdit>, error: &AttemptError) {
        let (error, is_due_with_version) = match error {
            AttemptError::VersionRefused(error) => (error, true),
            AttemptError::Arm(error) => (error, false),
            _ => return,
        };
        let (error, delay) = failed(
            error,
            is_due_with_version,
            self.last_error.as_ref(),
            &mut self.refusal_backoff,
        );
        let until = Instant::now() + delay;
        for edit in edits {
            self.refusals.retain(|refusal| refusal.edit.pool != edit.pool);
            self.refusals.push(Refusal {
                edit,
                until,
                error: error.clone(),
                is_due_with_version,
            });
        }
    }

    /// Why this edit is left out: ARM has refused the same, and it is not due again.
    pub(super) fn refusal(&self, edit: &PoolEdit) -> Option<&Refusal> {
        let is_refused = |refusal: &&Refusal| Instant::now() < refusal.until && refusal.edit.is_equivalent(edit);
        self.refusals.iter().find(is_refused)
    }

    /// The load balancer has another version: what was deferred because ARM refused the one before is due.
    pub(super) fn adopt_new_version(&mut self) {
        self.refusals.retain(|refusal| !refusal.is_due_with_version);
        self.deferred.take_if(|deferred| deferred.is_due_with_version);
    }

    /// Until when this plan is deferred. A plan that differs from the failed one waits for ARM's `Retry-After` only.
    pub(super) fn deferred_until(&self, plan: &[PoolEdit]) -> Option<Instant> {
        let deferred = self.deferred.as_ref()?;
        let until = if are_equivalent(&deferred.plan, plan) {
            Some(deferred.until)
        } else {
            deferred.retry_after
        };
        until.filter(|until| Instant::now() < *until)
    }

    /// Records how an attempt to write `plan` ended.
    pub(super) fn end(
        &mut self,
        load_balancer: &LoadBalancerId,
        plan: Vec<PoolEdit>,
        result: Result<(), AttemptError>,
    ) -> AfterAttempt {
        let now = Instant::now();
        let busy = self.busy.take();
        let previous = self.last_error.as_ref();
        let is_hold_unused = matches!(result, Err(AttemptError::HoldClosed { has_written: false }));
        let was_hold_unused = std::mem::replace(&mut self.was_hold_unused, is_hold_unused);
        let mut retry_after = None;
        let mut is_due_with_version = matches!(result, Err(AttemptError::VersionRefused(_)));
        let (error, retry_in) = match result {
            // Once may be because the hold began for another load balancer.
            Err(AttemptError::HoldClosed { has_written: false }) if was_hold_unused => (
                LastError::new(ErrorClass::Retriable, "HoldClosed", HOLD_UNUSED.to_owned(), previous),
                self.backoff.next_delay(),
            ),
            Ok(()) | Err(AttemptError::LeaseLost | AttemptError::HoldClosed { .. }) => {
                self.deferred = None;
                return AfterAttempt::PlanAgain;
            }
            // The work ends before.
            Err(AttemptError::HandingOver) => return AfterAttempt::Wait(MAX_BUSY_DELAY),
            Err(AttemptError::Busy(refusal)) => {
                let mut busy = busy.unwrap_or_else(|| Busy {
                    since: now,
                    attempts: 0,
                    refused: HashMap::new(),
                });
                let attempts = busy.attempts;
                busy.attempts += 1;
                // A pool with nothing left to write begins anew when it is due again.
                busy.refused
                    .retain(|pool, _| plan.iter().any(|edit| edit.pool == *pool));
                let refusal = refusal.map(|(pool, error)| {
                    busy.refused.entry(pool).or_insert(now);
                    error
                });
                // A read costs little; a write that has been refused for long, as beside an interface that has failed, may be so for hours.
                // The pools take turns, so the one that has been refused for the shortest time decides.
                let last_refused = busy.refused.values().max().filter(|_| refusal.is_some());
                let refused_for = last_refused.map_or(Duration::ZERO, |since| now - *since);
                let busy_for = now - busy.since;
                self.busy = Some(busy);
                if busy_for.max(refused_for) < BUSY_ERROR_AFTER {
                    let delay = MIN_BUSY_DELAY.saturating_mul(2_u32.saturating_pow(attempts));
                    return AfterAttempt::Wait(delay.min(MAX_BUSY_DELAY));
                }
                is_due_with_version = refusal.is_some();
                let delay = refused_for.clamp(MAX_BUSY_DELAY, MAX_TERMINAL_DELAY);
                let error = refusal.unwrap_or_else(|| ArmError::Busy(load_balancer.to_string()));
                (LastError::from_arm(&error, previous), delay)
            }
            Err(AttemptError::LeaseNotAcquired(error)) => (
                LastError::new(ErrorClass::Retriable, "LeaseHeld", error.to_string(), previous),
                LEASE_RETRY_DELAY,
            ),
            Err(AttemptError::IntentNotRecorded(error)) => {
                let mut reported = LastError::new(ErrorClass::Retriable, "NotRecorded", error.to_string(), previous);
                // With both codes, so that it is news beside each.
                let now_refused = |refusal: &&Refusal| now < refusal.until;
                if let Some(Refusal { error: refused, .. }) = self.refusals.iter().find(now_refused) {
                    reported.code = format!("{}, {}", reported.code, refused.code);
                    reported.message = format!("{}; and {}", reported.message, refused.message);
                }
                (reported, self.backoff.next_delay())
            }
            Err(AttemptError::Refused) => {
                let edits = plan.iter().filter(|edit| !edit.is_members_only());
                let refusals: Option<Vec<_>> = edits.map(|edit| self.refusal(edit)).collect();
                let next = |refusals: &Vec<&Refusal>| {
                    is_due_with_version = refusals.iter().any(|refusal| refusal.is_due_with_version);
                    let next = refusals.iter().min_by_key(|refusal| refusal.until)?;
                    Some((next.error.clone(), next.until - now))
                };
                // Otherwise something is due that was not when the attempt read.
                let Some(next) = refusals.as_ref().and_then(next) else {
                    self.deferred = None;
                    return AfterAttempt::PlanAgain;
                };
                next
            }
            Err(AttemptError::VersionRefused(error)) => failed(&error, true, previous, &mut self.backoff),
            Err(AttemptError::Arm(error)) => {
                let wait = error.retry_after(now).filter(|_| !concerns_one_pool(&error));
                retry_after = wait.map(|wait| now + wait);
                failed(&error, false, previous, &mut self.backoff)
            }
        };
        self.deferred = Some(DeferredPlan {
            plan,
            until: now + retry_in,
            retry_after,
            is_due_with_version,
        });
        AfterAttempt::Failed(self.adopt(load_balancer, error, retry_in))
    }

    /// No admin state is left to write but those of a pool that ARM has ignored, which wait. Returns the error if it is news.
    pub(super) fn report_ignored(
        &mut self,
        load_balancer: &LoadBalancerId,
        Waiting { until, pool }: &Waiting,
    ) -> Option<LastError> {
        let before = std::mem::take(self);
        self.last_error = before.last_error.filter(LastError::is_ignored_write);
        let error = ArmError::ReadBackMismatch(pool.to_string());
        let error = LastError::from_arm(&error, self.last_error.as_ref());
        if self.last_error.as_ref() == Some(&error) {
            return None;
        }
        Some(self.adopt(load_balancer, error, until.saturating_duration_since(Instant::now())))
    }

    fn adopt(&mut self, load_balancer: &LoadBalancerId, error: LastError, retry_in: Duration) -> LastError {
        if self
            .last_error
            .as_ref()
            .is_none_or(|previous| !previous.is_same_kind(&error))
        {
            let load_balancer = load_balancer.name();
            warn_if!(
                error.class == ErrorClass::Terminal,
                load_balancer,
                code = error.code,
                error = error.message,
                ?retry_in,
                "pools not written"
            );
        }
        self.last_error = Some(error.clone());
        error
    }
}

/// How a failed request to ARM is reported, and how long the next attempt waits. `is_of_version` is whether ARM refuses a version.
fn failed(
    error: &ArmError,
    is_of_version: bool,
    previous: Option<&LastError>,
    backoff: &mut Backoff,
) -> (LastError, Duration) {
    let mut reported = LastError::from_arm(error, previous);
    if !is_of_version {
        return (reported, backoff.delay_after(error));
    }
    reported.message +=
        ", although reads show the version that was sent; unless that changes, attempts are 30 s to 5 min apart";
    (reported, backoff.next_long_delay())
}

/// Whether both plans set the same admin states.
fn are_equivalent(plan: &[PoolEdit], other: &[PoolEdit]) -> bool {
    let sets_states = |edit: &&PoolEdit| !edit.is_members_only();
    let (plan, other) = (plan.iter().filter(sets_states), other.iter().filter(sets_states));
    plan.clone().count() == other.clone().count() && plan.zip(other).all(|(edit, other)| edit.is_equivalent(other))
}

/// Whether other pools of the load balancer may still be written after this failure.
pub(super) fn concerns_one_pool(error: &ArmError) -> bool {
    match error {
        ArmError::ErrorResponse { status, .. } => {
            status.is_client_error() && !matches!(status.as_u16(), 401 | 408 | 429)
        }
        ArmError::OperationFailed { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
