//! The ARM lock: the Lease that cloud-controller-manager holds around each of its reconciles, and headgate around its writes
//! (docs/dev/decisions.md 14).
//!
//! Invariants: the writers of this process share one hold, which is counted; the last one to leave releases it. A hold admits no
//! new writes after 30 s, but again from 40 s on while an operation from before is under way, which keeps the Lease anyway. A writer
//! that is dropped has left; the hold of one that is dropped in a write stays for 10 s, because the request may still arrive. The next leader
//! acquires or releases the hold of a former one, because both use the same name. A hold is not renewed: one that is older than
//! its 15 minutes is lost, as for cloud-controller-manager.
//!
//! `state_machine` decides, from what `lock_observation` has observed and what `hold_state` demands; `lock_task` carries the
//! decisions out. Whether the term is valid, and what is written, is left to the writers.

mod hold_state;
mod lock_observation;
mod lock_record;
mod lock_task;
mod metrics;
mod state_machine;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use self::hold_state::HoldState;
use self::lock_task::LockTask;
pub use self::metrics::LockMetrics;
use self::state_machine::StateMachine;
use super::LeaseName;

/// The holder of every leader, so that the next one can use or release the hold of a crashed one.
const HOLDER: &str = "headgate";
/// How long the last writer waits for the release of the Lease. The lock task continues after that.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The lock as its users have it. Clones are the same lock.
#[derive(Clone, Debug)]
pub struct ArmLock {
    holds: Arc<HoldState>,
    changes: watch::Receiver<()>,
    name: Arc<str>,
    metrics: LockMetrics,
}

/// A writer's part in a hold of the lock. Dropping it leaves the hold without waiting for the release.
#[derive(Debug)]
#[must_use = "dropping it leaves the hold"]
pub struct LockGuard {
    lock: ArmLock,
    /// The number of the hold.
    hold: u64,
    has_left: bool,
    is_writing: bool,
    /// An operation that began before the hold closed is under way.
    is_early_operation: bool,
}

/// Why the lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{lease} is held by {holder:?} since {}, until {} at the latest", time_text(*.since), time_text(*.expires))]
    Held {
        /// The Lease, for the text of the error.
        lease: String,
        /// The holder in the Lease.
        holder: String,
        /// The start of the hold, by the holder's clock.
        since: Option<Timestamp>,
        /// The end of the hold by the holder's clock, if it is not released before.
        expires: Option<Timestamp>,
    },
    /// This process holds it, but the hold admits no new writes, and some writers have not left.
    #[error("this process has held {lease} for too long to begin new writes, and earlier writes have not ended")]
    Closed {
        /// The Lease, for the text of the error.
        lease: String,
    },
    /// The API server refused a request, or did not respond.
    #[error("{lease} could not be acquired: {error}")]
    Failed {
        /// The Lease, for the text of the error.
        lease: String,
        /// The error of the last request.
        error: String,
    },
    /// The deadline passed without another reason.
    #[error("{lease} was not acquired in time")]
    Timeout {
        /// The Lease, for the text of the error.
        lease: String,
    },
    /// The lock task has ended, with the term.
    #[error("{lease} cannot be acquired: the task of the lock has ended")]
    Stopped {
        /// The Lease, for the text of the error.
        lease: String,
    },
}

fn time_text(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

impl ArmLock {
    /// The lock over the Lease `kube-system/aks-managed-resource-locker` with the holder `headgate`, and its task.
    ///
    /// The lock can be acquired only while the task runs. The task watches the Lease, and ends within 3 s after the lock and
    /// all guards are dropped.
    pub fn new(client: Client, clock: Clock, metrics: LockMetrics) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let lease = LeaseName {
            namespace: "kube-system".to_owned(),
            name: "aks-managed-resource-locker".to_owned(),
        };
        Self::with_lease(client, lease, HOLDER, clock, metrics)
    }

    /// The same over another Lease, or with another holder.
    pub fn with_lease(
        client: Client,
        lease: LeaseName,
        holder: &str,
        clock: Clock,
        metrics: LockMetrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, changes) = watch::channel(());
        let state_machine = StateMachine::new(lease.clone(), holder.to_owned(), fastrand::Rng::new());
        let lock = Self {
            holds: Arc::new(HoldState::new(state_machine.obstacle(clock.now()))),
            changes,
            name: lease.name.as_str().into(),
            metrics,
        };
        let task = LockTask {
            client,
            state_machine,
            lease,
            holds: Arc::clone(&lock.holds),
            changes: sender,
            watch_errors: lock.metrics.watch_errors(),
            clock,
        };
        (lock, lock_task::run(task))
    }

    /// Waits until `deadline` for a hold, which the writers of this process share. `caller` is a label of the metric of waits.
    ///
    /// # Errors
    /// If there is no hold by then. The error names the obstacle.
    pub async fn acquire(&self, caller: &'static str, deadline: Instant) -> Result<LockGuard, LockError> {
        let began = Instant::now();
        let mut changes = self.changes.clone();
        let waiter = self.holds.wait();
        let entered = lock_task::retry_on_change(&mut changes, deadline, || waiter.enter(Instant::now())).await;
        self.metrics.waited(&self.name, caller, began.elapsed());
        match entered {
            Ok(Some(hold)) => Ok(LockGuard {
                lock: self.clone(),
                hold,
                has_left: false,
                is_writing: false,
                is_early_operation: false,
            }),
            Ok(None) => Err(self.holds.obstacle()),
            Err(_) => Err(LockError::Stopped {
                lease: format!("Lease {}", self.name),
            }),
        }
    }

    /// Counts the holds of other processes that have ended. Each one is a reason to read the pools again.
    pub fn released_by_others(&self) -> watch::Receiver<u64> {
        self.holds.other_holds()
    }

    /// The number of writes of this process that are under way.
    pub fn writes(&self) -> watch::Receiver<usize> {
        self.holds.writes()
    }
}

impl LockGuard {
    /// Whether new writes may begin: the hold is, as far as is known, not lost, and younger than 30 s, or older than 40 s and an operation
    /// that began in the first 30 s is under way, and enough of the Lease's 15 minutes is left.
    pub fn accepts_writes(&self) -> bool {
        self.lock.holds.accepts_writes(self.hold, Instant::now())
    }

    /// A function that returns whether the hold is neither lost nor expired, as far as is known. A write that waits in a queue
    /// calls it right before it is sent.
    pub fn held_check(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let (holds, hold) = (Arc::clone(&self.lock.holds), self.hold);
        move || holds.is_held(hold, Instant::now())
    }

    /// Until when a write that begins now may take: until `timeout` has passed, or less, so that it ends before the hold expires.
    pub fn write_deadline(&self, timeout: Duration) -> Instant {
        let now = Instant::now();
        let deadline = self.lock.holds.write_deadline(self.hold, now);
        deadline.into_iter().fold(now + timeout, Instant::min)
    }

    /// Records that something was, or may have been, written to ARM. The release then names headgate as the previous holder, so
    /// that cloud-controller-manager drops its caches.
    pub fn mark_written(&mut self) {
        self.lock.holds.mark_written(self.hold);
    }

    /// Sends a write to ARM, until it is known whether ARM has accepted it. If that is dropped before, the Lease is not released while
    /// the request may arrive. The operation lasts until [`Self::end_operation`].
    pub async fn write<T>(&mut self, request: impl Future<Output = T>) -> T {
        if !std::mem::replace(&mut self.is_writing, true) {
            self.lock.holds.begin_write(self.hold);
        }
        if !self.is_early_operation {
            self.is_early_operation = self.lock.holds.begin_operation(self.hold, Instant::now());
        }
        let outcome = request.await;
        self.lock.holds.end_write();
        self.is_writing = false;
        outcome
    }

    /// Records that ARM has carried out the last write, or will not, as far as is known.
    pub fn end_operation(&mut self) {
        if std::mem::take(&mut self.is_early_operation) {
            self.lock.holds.end_early_operation(self.hold);
        }
    }

    /// Leaves the hold. The last writer waits up to 3 s for the release of the Lease.
    pub async fn release(mut self) {
        self.end_operation();
        self.has_left = true;
        let hold = self.hold;
        if self.lock.holds.leave(hold) {
            let mut changes = self.lock.changes.clone();
            let is_released = || self.lock.holds.is_released_or_in_use(hold).then_some(());
            let deadline = Instant::now() + RELEASE_TIMEOUT;
            let released = lock_task::retry_on_change(&mut changes, deadline, is_released).await;
            if !matches!(released, Ok(Some(()))) {
                tracing::info!(
                    lease = &*self.lock.name,
                    "shared Lease not released; cloud-controller-manager waits until it is or expires"
                );
            }
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.end_operation();
        let holds = &self.lock.holds;
        if self.is_writing {
            holds.keep(self.hold, Instant::now());
            holds.end_write();
        }
        if !self.has_left {
            holds.leave(self.hold);
        }
    }
}
