//! What follows from the outcome of an update: retries, events and counters.
//!
//! Invariants: a failure costs one retry; an operation leaves quietly when its Service is gone or has moved; only final outcomes are
//! counted as such.
//!
//! Source: the design of cloud-provider-azure's bounded retry ("Retry Model", "Event Behavior", "Metrics").

use tokio::time::Instant;

use crate::local_pools::counters::Counters;
use crate::local_pools::event::{
    EventReason, ServiceEvent, exhausted_message, retrying_message, terminal_message, updated_message,
};
use crate::local_pools::failure::Failure;
use crate::local_pools::operation::{Operation, OperationKey};
use crate::local_pools::queue::OperationQueue;

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
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
}

/// What follows from an outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// To be recorded.
    pub event: Option<ServiceEvent>,
    /// To be added to the metrics.
    pub counters: Counters,
    /// The operation, if it was relevant and is not tried again: exhausted, terminal, or of a pool that is gone.
    pub given_up: Option<Operation>,
}

/// Settles an operation: puts it back into the queue, or not, and returns what is to be reported.
pub fn settle(
    queue: &mut OperationQueue,
    mut operation: Operation,
    outcome: &UpdateOutcome,
    max_retries: u32,
    is_relevant: impl Fn(&OperationKey) -> bool,
) -> Settlement {
    let mut settlement = Settlement::default();
    let counters = &mut settlement.counters;
    if !(queue.end_processing(&operation) && is_relevant(&operation.key)) {
        counters.dropped += 1;
        return settlement;
    }
    let event = |reason, message| {
        Some(ServiceEvent {
            service: operation.key.service.clone(),
            reason,
            message,
        })
    };
    let not_before = match outcome {
        UpdateOutcome::Unchanged => return settlement,
        UpdateOutcome::Updated => {
            counters.succeeded += 1;
            settlement.event = event(EventReason::Updated, updated_message());
            return settlement;
        }
        UpdateOutcome::NotAttempted { not_before } => not_before,
        UpdateOutcome::Failed {
            failure: Failure::Retriable { not_before },
            error,
        } if operation.retry_count < max_retries => {
            counters.retried += 1;
            settlement.event = event(EventReason::Retrying, retrying_message(error));
            operation.retry_count += 1;
            not_before
        }
        UpdateOutcome::Failed { failure, error } => {
            let message = match failure {
                Failure::Missing => None,
                Failure::Terminal => Some(terminal_message(error)),
                Failure::Retriable { .. } => Some(exhausted_message(max_retries, error)),
            };
            if let Some(message) = message {
                counters.failed += 1;
                settlement.event = event(EventReason::Failed, message);
            } else {
                counters.dropped += 1;
            }
            settlement.given_up = Some(operation);
            return settlement;
        }
    };
    operation.next_eligible_at = *not_before;
    queue.requeue(operation);
    settlement
}
