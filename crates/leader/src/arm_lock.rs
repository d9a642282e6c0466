//! The lock between processes that write load balancers: one Lease, which cloud-controller-manager takes around each
//! of its reconciles, and so does headgate around its writes (DESIGN decision 14).
//!
//! Invariants: within the process a hold is shared and counted, and the last one out gives it back; a hold takes no
//! new writes after 60 s; whoever is dropped has left; what a leader that crashed still holds is entered again, or given
//! back, by the next, under the same name. Whether the leader's term lasts, and what is written, is for others to
//! say. The Lease is not renewed: a hold that lasts longer than its 15 minutes is lost, as cloud-controller-manager's is.
//!
//! `record` is the Lease as plain data, `sight` what was seen of it, `keeper` the whole decision; `door` counts who is
//! in and who waits, `follow` carries out.

mod door;
mod follow;
mod keeper;
mod metrics;
mod record;
mod sight;

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use headgate_clock::Clock;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use self::door::Door;
use self::follow::Follower;
use self::keeper::{Keeper, Obstacle};
pub use self::metrics::LockMetrics;
use super::LeaseName;

/// The name that every leader holds it by, so that the next one enters again what one that crashed has left.
const HOLDER: &str = "headgate";
/// Whoever leaves last waits so long at most for the Lease to be given back; it is tried on after that.
const LEAVING: Duration = Duration::from_secs(3);

/// The lock, as those who want to enter have it. Clones are the same lock.
#[derive(Clone, Debug)]
pub struct ArmLock {
    door: Arc<Door>,
    news: watch::Receiver<()>,
    name: Arc<str>,
    metrics: LockMetrics,
}

/// A place in a hold of the lock; dropping it is leaving without waiting.
#[derive(Debug)]
#[must_use = "whoever does not keep it has left"]
pub struct LockGuard {
    lock: ArmLock,
    number: u64,
    left: bool,
}

/// Why the lock could not be entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("{lease} is held by {holder:?} since {}, until {} at the latest", told(*.since), told(*.expires))]
    Held {
        /// The Lease.
        lease: String,
        /// Who has it.
        holder: String,
        /// Since when, as the Lease says.
        since: Option<Timestamp>,
        /// When it may be taken in any case.
        expires: Option<Timestamp>,
    },
    /// This process has it and takes no new writes any more; not all have left yet.
    #[error("{lease} is held by this very process for so long that nothing new may begin; not all writes have ended")]
    Closed {
        /// The Lease.
        lease: String,
    },
    /// It could not be asked for.
    #[error("{lease} could not be taken: {error}")]
    Failed {
        /// The Lease.
        lease: String,
        /// The last failure.
        error: String,
    },
    /// It was not had in time, for no reason that was seen.
    #[error("{lease} was not taken in time")]
    Timeout {
        /// The Lease.
        lease: String,
    },
    /// The task that keeps it has ended, and the term with it.
    #[error("nobody keeps {lease} any more")]
    Stopped {
        /// The Lease.
        lease: String,
    },
}

fn told(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

impl ArmLock {
    /// The lock over the Lease `kube-system/aks-managed-resource-locker`, held by the name `headgate`, and the task that
    /// keeps it.
    ///
    /// Without the task nobody enters. It watches the Lease for the term, and ends by itself once the lock and all who
    /// entered are dropped and nothing is held, within 3 s.
    pub fn new(client: Client, clock: Clock, metrics: LockMetrics) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let lease = LeaseName {
            namespace: "kube-system".to_owned(),
            name: "aks-managed-resource-locker".to_owned(),
        };
        Self::with_lease(client, lease, HOLDER, clock, metrics)
    }

    /// The same over another Lease, or by another name.
    pub fn with_lease(
        client: Client,
        lease: LeaseName,
        holder: &str,
        clock: Clock,
        metrics: LockMetrics,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (news, received) = watch::channel(());
        let lock = Self {
            door: Arc::new(Door::new()),
            news: received,
            name: lease.name.as_str().into(),
            metrics,
        };
        let chance = RandomState::new().build_hasher().finish();
        let follower = Follower {
            client,
            keeper: Keeper::new(lease.clone(), holder.to_owned(), chance),
            lease,
            door: Arc::clone(&lock.door),
            news,
            clock,
        };
        (lock, follow::run(follower))
    }

    /// Waits for the Lease until then, and shares it with whoever of this process is in; `caller` is a label of the
    /// metric.
    ///
    /// # Errors
    /// When it was not had by then; the error says who has it.
    pub async fn acquire(&self, caller: &'static str, until: Instant) -> Result<LockGuard, LockError> {
        let began = Instant::now();
        let mut news = self.news.clone();
        let waiting = self.door.wait();
        let entered = follow::until(&mut news, until, || waiting.enter(Instant::now())).await;
        self.metrics.waited(&self.name, caller, began.elapsed());
        match entered {
            Ok(Some(number)) => Ok(LockGuard {
                lock: self.clone(),
                number,
                left: false,
            }),
            Ok(None) => Err(self.obstacle()),
            Err(_) => Err(LockError::Stopped { lease: self.lease() }),
        }
    }

    /// Counts up whenever somebody else gave the Lease back, or was seen to have had it: the moment to read pools again.
    #[must_use]
    pub fn released_by_others(&self) -> watch::Receiver<u64> {
        self.door.others()
    }

    fn lease(&self) -> String {
        format!("Lease {}", self.name)
    }

    fn obstacle(&self) -> LockError {
        let lease = self.lease();
        match self.door.obstacle() {
            Obstacle::Held { holder, since, expires } => LockError::Held {
                lease,
                holder,
                since,
                expires,
            },
            Obstacle::Closed => LockError::Closed { lease },
            Obstacle::Failed(error) => LockError::Failed { lease, error },
            Obstacle::NotYet => LockError::Timeout { lease },
        }
    }
}

impl LockGuard {
    /// Whether new writes may still begin: the hold is younger than 60 s, and ours as far as is known.
    #[must_use]
    pub fn accepts_writes(&self) -> bool {
        self.lock.door.is_open(self.number, Instant::now())
    }

    /// Asks, as often as one likes, whether the hold is still ours as far as is known: nobody took it, and it has not expired.
    /// A write that began may go on for so long, and waits in line before it is sent.
    pub fn held_check(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let (door, number) = (Arc::clone(&self.lock.door), self.number);
        move || door.is_held(number, Instant::now())
    }

    /// Something was written, or may have been: the release names us as the holder before, so that others drop what they
    /// remember.
    pub fn mark_written(&mut self) {
        self.lock.door.wrote(self.number);
    }

    /// Leaves. The last one out gives the Lease back, and waits for that 3 s at most.
    pub async fn release(mut self) {
        self.left = true;
        if self.lock.door.leave(self.number) {
            let mut news = self.lock.news.clone();
            let is_settled = || self.lock.door.is_settled(self.number).then_some(());
            let released = follow::until(&mut news, Instant::now() + LEAVING, is_settled).await;
            if !matches!(released, Ok(Some(()))) {
                tracing::warn!(
                    lease = &*self.lock.name,
                    "the ARM lock was left but is not given back yet"
                );
            }
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.left {
            self.lock.door.leave(self.number);
        }
    }
}
