//! The queue: replacing, removing, draining, putting back.

use std::time::Duration;

use headgate_controller::local_pools::{
    DesiredMember, DesiredMembers, Operation, OperationKey, OperationQueue, PoolKey,
};
use headgate_core::service::NamespacedName;
use tokio::time::Instant;

fn key(service: &str, pool: &str) -> OperationKey {
    OperationKey {
        service: NamespacedName::new("default", service),
        pool: PoolKey::new("lb", pool),
    }
}

fn members(numbers: &[u8]) -> DesiredMembers {
    let member = |number: &u8| DesiredMember {
        address: [10, 0, 0, *number].into(),
        node: format!("n{number}").into(),
        is_draining: false,
        is_leaving: false,
    };
    numbers.iter().map(member).collect()
}

/// An operation that a tick has taken out and that is put back.
fn retried(service: &str, pool: &str, numbers: &[u8], retry_count: u32, eligible_at: Option<Instant>) -> Operation {
    Operation {
        retry_count,
        next_eligible_at: eligible_at,
        ..Operation::new(key(service, pool), members(numbers), Instant::now())
    }
}

fn services(queue: &OperationQueue) -> Vec<String> {
    queue
        .iter()
        .map(|operation| operation.key.service.name().to_owned())
        .collect()
}

#[test]
fn other_addresses_replace_and_keep_the_parking_time() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    let eligible_at = Some(now + Duration::from_mins(1));
    queue.requeue(retried("a", "p", &[1], 2, eligible_at));
    queue.enqueue(key("a", "p"), members(&[1]), now);
    assert_eq!(
        queue.get(&key("a", "p")).unwrap().retry_count,
        2,
        "the same addresses keep the retries"
    );
    queue.enqueue(key("a", "p"), members(&[2]), now);
    let operation = queue.get(&key("a", "p")).unwrap();
    assert_eq!((operation.retry_count, operation.next_eligible_at), (0, eligible_at));
    assert_eq!(operation.members, members(&[2]));
    queue.enqueue(key("a", "p"), members(&[]), now);
    assert_eq!(queue.get(&key("a", "p")).unwrap().members, members(&[]));
    assert_eq!((queue.len(), queue.is_empty()), (1, false));
}

#[test]
fn a_drain_signal_reaches_a_queued_operation_and_costs_no_budget() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.requeue(retried("a", "p", &[1], 2, None));
    let draining: DesiredMembers = members(&[1])
        .as_slice()
        .iter()
        .cloned()
        .map(|member| DesiredMember {
            is_draining: true,
            ..member
        })
        .collect();
    queue.enqueue(key("a", "p"), draining.clone(), now);
    let operation = queue.get(&key("a", "p")).unwrap();
    assert_eq!((operation.retry_count, &operation.members), (2, &draining));
}

#[test]
fn removing_a_service_takes_all_its_operations_and_no_others() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    for (service, pool) in [("a", "p"), ("a", "q"), ("ab", "p"), ("b", "p")] {
        queue.enqueue(key(service, pool), members(&[1]), now);
    }
    queue.enqueue(key("A", "Q"), members(&[1]), now);
    assert_eq!(queue.len(), 4, "case does not matter");
    queue.remove_service(&NamespacedName::new("default", "A"));
    assert_eq!(services(&queue), ["ab", "b"]);
}

#[test]
fn a_newer_operation_takes_over_the_later_parking_time() {
    let now = Instant::now();
    let at = |seconds: u64| Some(now + Duration::from_secs(seconds));
    for (queued, put_back, result) in [
        (None, at(60), at(60)),
        (at(30), at(60), at(60)),
        (at(90), at(60), at(90)),
        (at(90), None, at(90)),
        (None, None, None),
    ] {
        let mut queue = OperationQueue::default();
        queue.requeue(retried("a", "p", &[2], 0, queued));
        queue.requeue(retried("a", "p", &[1], 2, put_back));
        let operation = queue.get(&key("a", "p")).unwrap();
        assert_eq!(
            (operation.next_eligible_at, operation.retry_count),
            (result, 0),
            "{queued:?} {put_back:?}"
        );
        assert_eq!(
            (queue.len(), &operation.members),
            (1, &members(&[2])),
            "the newer members stay"
        );
    }
}

#[test]
fn a_pool_whose_update_has_no_outcome_is_not_drained_again() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    queue.enqueue(key("a", "p"), members(&[1]), now);
    assert_eq!(queue.drain(now).len(), 1);
    queue.enqueue(key("a", "p"), members(&[2]), now);
    queue.enqueue(key("b", "q"), members(&[2]), now);
    queue.enqueue(key("b", "p"), members(&[2]), now);
    assert!(queue.has_eligible(now));
    let drained = queue.drain(now);
    assert_eq!(drained.len(), 1);
    assert_eq!(drained[0].key.pool.pool(), "q");
    assert!(!queue.has_eligible(now));
    assert_eq!(services(&queue), ["a", "b"]);
}

#[test]
fn depth_age_and_parked_pools_are_measured() {
    let (mut queue, now) = (OperationQueue::default(), Instant::now());
    assert_eq!(queue.status(now).oldest_since, None);
    queue.enqueue(key("a", "p"), members(&[1]), now);
    let later = now + Duration::from_secs(10);
    queue.enqueue(key("a", "p"), members(&[2]), later);
    queue.enqueue(key("b", "q"), members(&[2]), later);
    let status = queue.status(later);
    assert_eq!(
        (status.depth, status.oldest_since),
        (2, Some(now)),
        "a replacement keeps the age"
    );
    assert_eq!(status.parked_pools, 0);
}
