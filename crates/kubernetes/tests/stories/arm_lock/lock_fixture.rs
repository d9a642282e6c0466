//! A process with the ARM lock.

use std::ops::Deref;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{ArmLock, LeaseName, LockError, LockGuard, LockMetrics};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAMESPACE: &str = "kube-system";

/// A process with the lock and its task.
pub(crate) struct Locker {
    lock: ArmLock,
    task: JoinHandle<()>,
    pub(crate) registry: Registry,
}

impl Deref for Locker {
    type Target = ArmLock;

    fn deref(&self) -> &ArmLock {
        &self.lock
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Locker {
    pub(crate) fn new(client: Client, lease: &str, holder: &str, clock: Clock) -> Self {
        let mut registry = Registry::default();
        let metrics = LockMetrics::register(&mut registry);
        let name = LeaseName {
            namespace: NAMESPACE.to_owned(),
            name: lease.to_owned(),
        };
        let (lock, run) = ArmLock::with_lease(client, name, holder, clock, metrics);
        let task = tokio::spawn(run);
        Self { lock, task, registry }
    }

    /// Acquires the lock within so long.
    pub(crate) async fn acquire_within(&self, time: Duration) -> Result<LockGuard, LockError> {
        self.lock.acquire("test", Instant::now() + time).await
    }

    /// The lock, for other tasks.
    pub(crate) fn handle(&self) -> ArmLock {
        self.lock.clone()
    }

    /// Ends the process and its task. The Lease stays as it is.
    pub(crate) async fn crash(self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// Drops the lock, waits for the end of the task, and returns how long that took.
    pub(crate) async fn end(mut self) -> Duration {
        let began = Instant::now();
        let task = std::mem::replace(&mut self.task, tokio::spawn(async {}));
        drop(self);
        timeout(10 * SECOND, task).await.expect("the task ends").unwrap();
        began.elapsed()
    }
}

/// Waits up to 10 s for a condition.
pub(crate) async fn soon(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let is_over = timeout(10 * SECOND, wait).await.is_ok();
    assert!(is_over, "not soon: {what}");
}
