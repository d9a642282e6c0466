//! What is measured, as plain numbers. The caller exports them as metrics.

use std::ops::AddAssign;

use tokio::time::Instant;

/// What has happened. A retry is no outcome: an update that is retried and then succeeds counts as one success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations with a PUT that succeeded, one for each `LoadBalancerBackendPoolUpdated`.
    pub succeeded: u64,
    /// Operations with a terminal failure or without retries left.
    pub failed: u64,
    /// Operations that were put back into the queue after a retriable failure.
    pub retried: u64,
    /// Operations that were dropped quietly: the Service, its slices or the pool is gone, or the Service has moved.
    pub dropped: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.retried += other.retried;
        self.dropped += other.dropped;
    }
}

/// How the queue is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Operations in the queue, parked ones included.
    pub depth: usize,
    /// Since when the operation that has been pending longest has been pending.
    pub oldest_since: Option<Instant>,
    /// Pools with a parked operation.
    pub parked_pools: usize,
}
