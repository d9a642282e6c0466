//! The one writer of a load balancer's pools: what its [`Planner`] plans is written, one PUT for each changed pool.
//!
//! Invariants (docs/dev/decisions.md 9, 33): each PUT is planned from a read and carries the etag of that read, so that no other
//! writer's change is lost. The read is of the whole load balancer, but between writes of members of a large one (`single_pools`).
//! Nothing is sent while ARM is busy with the load balancer, without the shared Lease, or after the term. A write counts when a read
//! shows it; a read that is older than the write shows nothing. After any failure the next step is a read; there is no state to repair.
//! Level-triggered: a planned change that is no longer due is not sent.
//!
//! An admin state never waits for members: these join a PUT that is due anyway, at most once for each tick of their updater, and
//! what fails with them is tried again without them. Alone they are written when no admin state is due.
//!
//! The writer is a loop of three steps: observe, plan, act. [`Phase`] is what it has in hand between two plans. `batch` is the
//! part under the Lease, `documents` has the pools for its PUTs, `replaced` finds reads that are older than a write, `written`
//! writes that reads do not show, `attempts` has what a failed attempt leaves for the next one. What changes is for the planner to
//! decide, who leads and who has the Lease for `headgate_kubernetes::leader`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_azure::{ArmClient, ArmError, LoadBalancerId};
use headgate_core::changed;
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use headgate_kubernetes::leader::{ArmLock, LockGuard, PermitError, Term};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::edit::PoolEdit;
use super::interface_cache::InterfaceCache;
use super::listing::Listing;
use super::pool_entry::EntryKey;
use super::retry::LastError;
use super::view::LoadBalancerView;
use crate::local_pools::MemberRejection;

mod attempts;
mod batch;
mod documents;
mod put;
mod replaced;
mod single_pools;
mod written;

use attempts::{AfterAttempt, AttemptError, Attempts};
use batch::Batch;
pub(crate) use replaced::MAX_READ_LAG;
use replaced::ReplacedVersions;
use written::{Waiting, WrittenEdits};

/// After a handover was requested, a PUT may begin for so long.
pub(crate) const HANDOVER_WRITE_WINDOW: Duration = Duration::from_millis(900);
/// ... and ARM has so long to answer the last one. The elector waits 3 s in all.
pub(crate) const HANDOVER_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// For one read of a load balancer, retries included.
const READ_TIMEOUT: Duration = Duration::from_mins(2);
/// For the shared Lease; then the attempt has failed, and the next one requests it again.
const LEASE_WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// After so many in a row, due members have failed: one may have begun for another load balancer.
const MAX_UNUSED_HOLDS: u32 = 2;
/// The error then, and that of admin states.
pub(crate) const HOLD_UNUSED: &str = "no hold of the shared Lease lasted until the load balancer was read";

/// The planner could not record what is about to be written, so it is not written.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum IntentNotRecorded {
    /// The ledger was not written.
    #[error("the change could not be recorded before it is written: {0}")]
    Ledger(String),
    /// The members of the edit are not due any more.
    #[error("the members are not due any more")]
    Outdated,
}

/// What became of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    /// The load balancer was read under the shared Lease.
    Read(&'a Observation),
    /// It could not be read under the shared Lease, or there is no token for that.
    ReadFailed(&'a ArmError),
    /// The pool of this edit could not be read alone, so its members are not written now.
    PoolNotRead(&'a PoolEdit, &'a ArmError),
    /// Members are due, and one hold of the shared Lease after another ended before the load balancer was read.
    HoldsUnused,
    /// No PUT writes the members of this edit: the pool has them already, or rejects them.
    MembersNotWritten(&'a PoolEdit, Option<&'a MemberRejection>),
    /// ARM has accepted this edit.
    Accepted(&'a PoolEdit),
    /// The operation of this edit's PUT has succeeded, and the next read shows whether it has an effect; or the PUT has failed.
    Written(&'a PoolEdit, Result<(), &'a ArmError>),
    /// The attempt has failed. The writer retries; the error is missing where it is not reported.
    AttemptFailed(Option<&'a LastError>),
    /// ARM has ignored admin states, which are written again later; no others are left.
    Ignored(&'a LastError),
    /// Nothing is left to write after an attempt failed.
    Recovered,
}

/// Plans one load balancer: what the writer is to write, and what follows from what became of it.
pub(crate) trait Planner: Send + 'static {
    /// Waits until a new plan may differ from the last one.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// The edits for this load balancer, the most urgent first, at most one for each pool. Every observed state is planned, so
    /// the planner may publish it, too.
    fn plan(&mut self, observation: &Observation, interfaces: &InterfaceCache) -> Vec<PoolEdit>;
    /// Records durably what is about to be written. `added_downs` are the entries that the PUT adds as `Down`. Must not fail to
    /// write the ledger for an edit that sets nothing `Down` and adds no such entry. If it succeeds, [`Outcome::Written`] follows.
    fn record_intent(
        &mut self,
        edit: &PoolEdit,
        added_downs: &[EntryKey],
    ) -> impl Future<Output = Result<(), IntentNotRecorded>> + Send;
    /// Adopts what became of the last plan.
    fn handle_outcome(&mut self, outcome: Outcome<'_>);
}

/// The writer of one load balancer. It reads and writes all pools of the load balancer.
#[derive(Debug)]
pub(crate) struct PoolWriter {
    /// The load balancer's resource id.
    pub(crate) load_balancer: LoadBalancerId,
    /// The ARM client that reads and writes the load balancer.
    pub(crate) arm: ArmClient,
    /// The shared Lease, which each batch of writes holds.
    pub(crate) lock: ArmLock,
    /// The term that permits the writes.
    pub(crate) term: Term,
    /// The load balancers as listed; each new list leads to a new plan.
    pub(crate) listings: watch::Receiver<Arc<Listing>>,
    /// The machines of network interfaces; what is new leads to a new plan.
    pub(crate) interfaces: watch::Receiver<Arc<InterfaceCache>>,
    /// Label values of the metrics.
    pub(crate) labels: WriterLabels,
}

/// Label values of a writer's metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLabels {
    /// The label `caller` of `cloudprovider_azure_lock_wait_duration_seconds`.
    pub(crate) lock_caller: &'static str,
    /// `request` of the operation metrics, for one PUT to the end of its operation.
    pub(crate) request: &'static str,
    /// `source` of the operation metrics.
    pub(crate) source: &'static str,
}

/// What the writer has in hand between two plans.
enum Phase {
    /// Nothing: nothing is due, or a retry waits for its time. Plans are made from lists.
    Idle,
    /// A place in the queue for the shared Lease, once there is a token. Plans are made from lists; dropping this leaves the queue.
    AwaitingLease(LeaseRequest),
    /// The shared Lease and a fresh read. Plans are made from that read.
    Writing(Box<Batch>),
}

struct LeaseRequest {
    /// The span of the attempt, from here to its end.
    span: ReconcileSpan,
    acquired: BoxFuture<'static, Result<LockGuard, AttemptError>>,
    /// The plan that the Lease was requested for.
    plan: Vec<PoolEdit>,
}

/// The load balancer as the newest read or list showed it.
#[derive(Clone, Debug)]
pub struct Observation {
    /// When the read or list was sent.
    pub requested_at: Instant,
    /// What it showed.
    pub view: Arc<LoadBalancerView>,
}

/// What the writer has learnt so far.
#[derive(Default)]
struct State {
    observation: Option<Observation>,
    interfaces: Arc<InterfaceCache>,
    attempts: Attempts,
    /// What this writer has replaced: reads may lag.
    replaced: ReplacedVersions,
    /// What this writer has written, for reads that do not show it.
    written: WrittenEdits,
    /// Whether the planner could not record the last edit.
    is_recording_failing: bool,
    /// Reads in a row that outlasted their hold of the shared Lease, before anything was written.
    unused_holds: u32,
}

impl State {
    /// Adopts an observation. Where it shows another version of the load balancer, a plan that waits for one is due.
    fn observe(&mut self, observation: Observation) {
        let version = |observation: &Observation| observation.view.etag.clone();
        let (before, now) = (self.observation.as_ref().and_then(version), version(&observation));
        if before.is_some() && now.is_some() && before != now {
            self.attempts.adopt_new_version();
        }
        self.observation = Some(observation);
    }

    /// What is due, and what will be because ARM ignored it.
    fn plan(&mut self, planner: &mut impl Planner) -> (Vec<PoolEdit>, Option<Waiting>) {
        let observation = self.observation.as_ref();
        let mut edits = observation.map_or_else(Vec::new, |observation| planner.plan(observation, &self.interfaces));
        let waiting = self.written.take_waiting(&mut edits);
        (edits, waiting)
    }
}

impl PoolWriter {
    /// Writes what the planner plans; never ends by itself.
    pub(crate) async fn run<P: Planner>(mut self, mut planner: P) {
        let mut state = State::default();
        let mut phase = Phase::Idle;
        loop {
            // Observe. A batch has just read the load balancer.
            match phase {
                Phase::Idle => {
                    self.adopt_listing(&mut state);
                    state.interfaces = Arc::clone(&self.interfaces.borrow_and_update());
                }
                Phase::AwaitingLease(_) => self.adopt_listing(&mut state),
                Phase::Writing(_) => {}
            }

            let (edits, waiting) = state.plan(&mut planner);
            if edits.is_empty() {
                state.replaced.forget_refused();
            }

            // Act.
            phase = match phase {
                Phase::Writing(batch) => {
                    let span = batch.span.clone();
                    let step = self.continue_batch(batch, edits, &mut state, &mut planner);
                    span.run(step).await
                }
                Phase::AwaitingLease(request) if !edits.is_empty() => {
                    self.await_lease(request, &mut state, &mut planner).await
                }
                without_lease => {
                    // If nothing is due any more, this leaves the queue.
                    drop(without_lease);
                    if edits.iter().all(PoolEdit::is_members_only) {
                        if let Some(waiting) = &waiting {
                            if let Some(error) = state.attempts.report_ignored(&self.load_balancer, waiting) {
                                planner.handle_outcome(Outcome::Ignored(&error));
                            }
                        } else if state.attempts.succeed() {
                            planner.handle_outcome(Outcome::Recovered);
                        }
                    }
                    let retry_at = state.attempts.deferred_until(&edits);
                    // Members do not wait for admin states that cannot be written now.
                    let are_members_due = edits.iter().any(|edit| edit.members.is_some());
                    if are_members_due && state.unused_holds >= MAX_UNUSED_HOLDS {
                        // Those that are due now: a tick may have taken back what was due during the reads.
                        state.unused_holds = 0;
                        planner.handle_outcome(Outcome::HoldsUnused);
                        Phase::Idle
                    } else if edits.is_empty() || retry_at.is_some() && !are_members_due {
                        let ignored_until = waiting.map(|waiting| waiting.until);
                        let due_at = retry_at.into_iter().chain(ignored_until).min();
                        self.wait_for_change(&mut planner, due_at).await;
                        Phase::Idle
                    } else {
                        let request = self.request_lease(edits);
                        self.await_lease(request, &mut state, &mut planner).await
                    }
                }
            };
        }
    }

    /// Whether the term permits a PUT now.
    fn may_write(&self) -> Result<(), PermitError> {
        self.term.permit_within(HANDOVER_WRITE_WINDOW).map(drop)
    }

    /// Adopts the newest list, if it is newer than the last observation.
    fn adopt_listing(&mut self, state: &mut State) {
        let listed = self.listings.borrow_and_update().load_balancer(&self.load_balancer);
        let Some((requested_at, view)) = listed else { return };
        let observation = state.observation.as_ref();
        if observation.is_none_or(|observation| observation.requested_at < requested_at) {
            state.observe(Observation { requested_at, view });
        }
    }

    /// Waits for a new list, for the planner, for the results of interface lookups, or until `deadline`.
    async fn wait_for_change<P: Planner>(&mut self, planner: &mut P, deadline: Option<Instant>) {
        tokio::select! {
            () = changed(&mut self.listings) => {}
            () = planner.changed() => {}
            () = changed(&mut self.interfaces) => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
    }

    fn request_lease(&self, plan: Vec<PoolEdit>) -> LeaseRequest {
        let (arm, lock, caller) = (self.arm.clone(), self.lock.clone(), self.labels.lock_caller);
        let span = ReconcileSpan::start(Reconciled::LoadBalancer, || Reconcile {
            term: Some(self.term.number()),
            load_balancer: Some(self.load_balancer.name()),
            ..Reconcile::default()
        });
        LeaseRequest {
            span,
            acquired: async move {
                // Others would wait for the Lease while this waits for a token.
                arm.ensure_token(Instant::now() + READ_TIMEOUT).await?;
                Ok(lock.acquire(caller, Instant::now() + LEASE_WAIT_TIMEOUT).await?)
            }
            .boxed(),
            plan,
        }
    }

    /// Waits for the Lease, and reads the load balancer with it; or for a change, which leads to another plan.
    async fn await_lease<P: Planner>(
        &mut self,
        mut request: LeaseRequest,
        state: &mut State,
        planner: &mut P,
    ) -> Phase {
        let acquired = tokio::select! {
            biased;
            acquired = &mut request.acquired => acquired,
            () = planner.changed() => return Phase::AwaitingLease(request),
            () = changed(&mut self.listings) => return Phase::AwaitingLease(request),
        };
        let LeaseRequest { span, plan, .. } = request;
        match acquired {
            Ok(guard) => {
                let batch = Batch::new(guard, span.clone(), plan, state.is_recording_failing);
                span.run(self.read(Box::new(batch), state, planner)).await
            }
            Err(error) => {
                if let AttemptError::Arm(error) = &error {
                    planner.handle_outcome(Outcome::ReadFailed(error));
                }
                span.run(self.end_attempt(plan, Err(error), &span, state, planner))
                    .await
            }
        }
    }

    /// Decides when the plan is due again, and lets the planner know. Members have a queue of their own, so an attempt to write
    /// them alone changes nothing here.
    async fn end_attempt<P: Planner>(
        &self,
        plan: Vec<PoolEdit>,
        result: Result<(), AttemptError>,
        span: &ReconcileSpan,
        state: &mut State,
        planner: &mut P,
    ) -> Phase {
        let has_failed = result
            .as_ref()
            .is_err_and(|error| !matches!(error, AttemptError::HoldClosed { .. }));
        let is_members_only = !plan.is_empty() && plan.iter().all(PoolEdit::is_members_only);
        let after = if is_members_only {
            AfterAttempt::PlanAgain
        } else {
            state.attempts.end(&self.load_balancer, plan, result)
        };
        let error = match &after {
            AfterAttempt::Failed(error) => {
                span.fail(&error.code, &error.message);
                Some(error)
            }
            AfterAttempt::PlanAgain | AfterAttempt::Wait(_) => None,
        };
        if has_failed || error.is_some() {
            planner.handle_outcome(Outcome::AttemptFailed(error));
        }
        if let AfterAttempt::Wait(delay) = after {
            sleep(delay).await;
        }
        Phase::Idle
    }
}
