//! What follows from the outcome of a batch: retries, events and counters.
//!
//! Invariants: a failure costs every operation of the batch one retry; an operation leaves quietly when its Service is
//! gone or has moved; each Service gets at most one event for each reason; only final outcomes are counted as such; a shutdown
//! reports nothing.
//!
//! Source: the design of cloud-provider-azure's bounded retry ("Retry Model", "Event Behavior", "Metrics").

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::local_pools::batch::Batch;
use crate::local_pools::counters::Counters;
use crate::local_pools::event::{
    EventReason, ServiceEvent, exhausted_message, retrying_message, terminal_message, updated_message,
};
use crate::local_pools::failure::Failure;
use crate::local_pools::operation::{Operation, OperationKey};
use crate::local_pools::queue::OperationQueue;
use crate::local_pools::settings::MaxRetries;
use headgate_core::service::NamespacedName;

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// A PUT changed the members, and a read shows it.
    Updated,
    /// The pool had the members already; no PUT was sent.
    Unchanged,
    /// Nothing was sent: ARM is busy with the load balancer or throttles requests, there is no token, or the shared Lease was lost.
    /// It costs no retry.
    NotAttempted {
        /// The next attempt comes not before this time; `None` for the next tick.
        not_before: Option<Instant>,
    },
    /// The attempt to update the pool failed.
    Failed {
        /// The failure, whose class decides about a retry.
        failure: Failure,
        /// The error in words, for the Kubernetes event.
        error: String,
    },
    /// The process or the term ends.
    ShuttingDown,
}

/// What follows from an outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// To be recorded, in this order.
    pub events: Vec<ServiceEvent>,
    /// To be added to the metrics.
    pub counters: Counters,
    /// Operations that were relevant and are not tried again: exhausted, terminal, or of a pool that is gone.
    pub given_up: Vec<Operation>,
}

/// Settles a batch: puts operations back into the queue, and returns what is to be reported.
pub fn settle(
    queue: &mut OperationQueue,
    batch: Batch,
    outcome: &BatchOutcome,
    max_retries: MaxRetries,
    is_relevant: impl Fn(&OperationKey) -> bool,
) -> Settlement {
    let mut settlement = Settlement::default();
    let (all, drain) = (batch.operations.len(), batch.drain());
    let mut operations = batch.operations;
    operations.retain(|operation| queue.end_processing(&operation.key, drain) && is_relevant(&operation.key));
    if *outcome == BatchOutcome::ShuttingDown {
        return settlement;
    }
    settlement.counters.dropped += count(all - operations.len());
    if operations.is_empty() {
        return settlement;
    }
    match outcome {
        BatchOutcome::Updated => {
            settlement.counters.succeeded += 1;
            settlement.add_events(&operations, EventReason::Updated, &updated_message());
        }
        BatchOutcome::Unchanged | BatchOutcome::ShuttingDown => {}
        BatchOutcome::NotAttempted { not_before } => park(queue, operations, *not_before),
        BatchOutcome::Failed { failure, error } => match failure {
            Failure::Missing => {
                settlement.counters.dropped += count(operations.len());
                settlement.given_up = operations;
            }
            Failure::Terminal => {
                settlement.counters.failed += 1;
                settlement.add_events(&operations, EventReason::Failed, &terminal_message(error));
                settlement.given_up = operations;
            }
            Failure::Retriable { not_before } => {
                let (retried, not_before) = (settlement.retry(operations, max_retries, error), *not_before);
                park(queue, retried, not_before);
            }
        },
    }
    settlement
}

impl Settlement {
    /// Returns the operations that have retries left, and reports the others as failed.
    fn retry(&mut self, operations: Vec<Operation>, max_retries: MaxRetries, error: &str) -> Vec<Operation> {
        let (mut retried, exhausted): (Vec<_>, Vec<_>) = operations
            .into_iter()
            .partition(|operation| operation.retry_count < max_retries.get());
        if !exhausted.is_empty() {
            self.counters.failed += 1;
            self.add_events(
                &exhausted,
                EventReason::Failed,
                &exhausted_message(max_retries.get(), error),
            );
        }
        self.given_up = exhausted;
        self.add_events(&retried, EventReason::Retrying, &retrying_message(error));
        self.counters.retried += count(retried.len());
        for operation in &mut retried {
            operation.retry_count += 1;
        }
        retried
    }

    /// One event for each Service, in the order of the operations.
    fn add_events(&mut self, operations: &[Operation], reason: EventReason, message: &str) {
        let mut seen: BTreeSet<&NamespacedName> = BTreeSet::new();
        let services = operations.iter().map(|operation| &operation.key.service);
        self.events.extend(
            services
                .filter(|service| seen.insert(service))
                .map(|service| ServiceEvent {
                    service: service.clone(),
                    reason,
                    message: message.to_owned(),
                }),
        );
    }
}

/// Puts operations back, to be tried not before this time.
fn park(queue: &mut OperationQueue, mut operations: Vec<Operation>, not_before: Option<Instant>) {
    for operation in &mut operations {
        operation.next_eligible_at = not_before;
    }
    queue.requeue(operations);
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
