//! Outcomes of batches with several operations. Two Services share a pool only by a collision of names, which
//! `Updater` skips; the queue and the settlement do not rely on that. Numbers of tests are those of the retry design.

use std::time::Duration;

use headgate_controller::local_pools::EventReason::{self, Failed, Retrying, Updated};
use headgate_controller::local_pools::{
    Batch, BatchOutcome, DesiredMember, DesiredMembers, Failure, MaxRetries, OperationKey, OperationQueue, PoolKey,
    Settlement, settle,
};
use headgate_core::service::NamespacedName;
use tokio::time::Instant;

use crate::world::retriable;

const POOL: &str = "default-web";

fn key(service: &str) -> OperationKey {
    OperationKey {
        service: NamespacedName::new("default", service),
        pool: PoolKey::new("lb", POOL),
    }
}

fn members(addresses: &[&str]) -> DesiredMembers {
    let member = |address: &&str| DesiredMember {
        address: address.parse().unwrap(),
        node: "n".into(),
        is_draining: false,
        is_leaving: false,
    };
    addresses.iter().map(member).collect()
}

/// The only batch that a tick takes out.
fn drain(queue: &mut OperationQueue, now: Instant) -> Batch {
    let mut batches = queue.drain(now, |_| true).batches;
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

fn fails(queue: &mut OperationQueue, batch: Batch, failure: Failure, max_retries: i64) -> Settlement {
    let outcome = BatchOutcome::Failed {
        failure,
        error: "the error".into(),
    };
    settle(
        queue,
        batch,
        &outcome,
        MaxRetries::from_config(Some(max_retries)),
        |_| true,
    )
}

fn reported(settlement: &Settlement) -> Vec<(&str, EventReason)> {
    let events = settlement.events.iter();
    events.map(|event| (event.service.name(), event.reason)).collect()
}

fn retries(queue: &OperationQueue) -> Vec<(String, u32)> {
    let operations = queue.iter();
    operations
        .map(|operation| (operation.key.service.name().to_owned(), operation.retry_count))
        .collect()
}

/// A batch of two operations fails; each had its own number of retries before (test 7).
#[test]
fn failed_batch_costs_each_of_its_operations_one_retry() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.enqueue(key("a"), members(&["10.0.0.1"]), now);
    let batch = drain(&mut queue, now);
    fails(&mut queue, batch, retriable(), 3);
    queue.enqueue(key("b"), members(&["10.0.0.2"]), now);
    let batch = drain(&mut queue, now);
    assert_eq!(
        batch.desired_members(),
        members(&["10.0.0.1", "10.0.0.2"]),
        "one PUT for both"
    );
    let settlement = fails(&mut queue, batch, retriable(), 3);
    assert_eq!(reported(&settlement), [("a", Retrying), ("b", Retrying)]);
    assert_eq!(retries(&queue), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
}

/// The operation without retries left fails, and its event precedes that of the other (test 8).
#[test]
fn operation_without_retries_left_is_removed_and_the_other_stays_queued() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.enqueue(key("old"), members(&["10.0.0.1"]), now);
    let batch = drain(&mut queue, now);
    fails(&mut queue, batch, retriable(), 1);
    queue.enqueue(key("fresh"), members(&["10.0.0.2"]), now);
    let batch = drain(&mut queue, now);
    let settlement = fails(&mut queue, batch, retriable(), 1);
    assert_eq!(reported(&settlement), [("old", Failed), ("fresh", Retrying)]);
    assert_eq!((settlement.counters.failed, settlement.counters.retried), (1, 1));
    assert_eq!(retries(&queue), [("fresh".to_owned(), 1)]);
}

/// The Services of a batch share one outcome in metrics, and each gets an event (test 15).
#[test]
fn every_service_of_a_batch_gets_one_event() {
    let now = Instant::now();
    for (outcome, reason) in [
        (BatchOutcome::Updated, Updated),
        (
            BatchOutcome::Failed {
                failure: retriable(),
                error: String::new(),
            },
            Retrying,
        ),
        (
            BatchOutcome::Failed {
                failure: Failure::Terminal,
                error: String::new(),
            },
            Failed,
        ),
    ] {
        let mut queue = OperationQueue::default();
        for service in ["a", "b", "c"] {
            queue.enqueue(key(service), members(&["10.0.0.1"]), now);
        }
        let batch = drain(&mut queue, now);
        assert_eq!(batch.services().len(), 3);
        let settlement = settle(&mut queue, batch, &outcome, MaxRetries::default(), |_| true);
        assert_eq!(reported(&settlement), [("a", reason), ("b", reason), ("c", reason)]);
        let counters = settlement.counters;
        assert_eq!(
            counters.succeeded + counters.failed,
            u64::from(reason != Retrying),
            "one outcome for the batch"
        );
    }
}

/// A newer operation does not take its pool out of parking (test 6).
#[test]
fn one_parked_operation_parks_the_whole_pool() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.enqueue(key("parked"), members(&["10.0.0.1"]), now);
    let batch = drain(&mut queue, now);
    fails(
        &mut queue,
        batch,
        Failure::Retriable {
            not_before: Some(now + Duration::from_mins(1)),
        },
        3,
    );
    queue.enqueue(key("fresh"), members(&["10.0.0.2"]), now);
    assert!(!queue.has_eligible(now) && queue.drain(now, |_| true).batches.is_empty());
    assert_eq!(retries(&queue), [("parked".to_owned(), 1), ("fresh".to_owned(), 0)]);
    let later = now + Duration::from_mins(1);
    assert_eq!(drain(&mut queue, later).operations().len(), 2);
}

#[test]
fn operations_without_service_are_dropped_and_the_others_are_retried() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.enqueue(key("gone"), members(&[]), now);
    queue.enqueue(key("here"), members(&[]), now);
    let batch = drain(&mut queue, now);
    let outcome = BatchOutcome::Failed {
        failure: retriable(),
        error: String::new(),
    };
    let is_here = |key: &OperationKey| key.service.name() == "here";
    let settlement = settle(&mut queue, batch, &outcome, MaxRetries::default(), is_here);
    assert_eq!(reported(&settlement), [("here", Retrying)]);
    assert_eq!((settlement.counters.dropped, queue.len()), (1, 1));
}
