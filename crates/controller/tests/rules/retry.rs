//! The tests of the retry design, in its order and without those of several Services in one pool, and the ones that its implementation
//! added. Each drives whole ticks.

use std::time::Duration;

use headgate_controller::local_pools::EventReason::{Failed, Retrying, Updated};
use headgate_controller::local_pools::{EventReason, Failure, UpdaterSettings};
use headgate_test_kubernetes::assert_contains;

use crate::world::{Answer, Call, World, name, retriable, service, slice, throttled};

fn with_retries(retries: u32) -> UpdaterSettings {
    UpdaterSettings {
        max_retries: retries,
        ..UpdaterSettings::default()
    }
}

fn world() -> World {
    World::with_pending_update(UpdaterSettings::default())
}

fn web(reason: EventReason) -> Vec<(String, EventReason)> {
    vec![("default/web".to_owned(), reason)]
}

/// Fails the GET or the PUT of the next tick.
fn fail(world: &mut World, call: Call, answer: Answer) {
    match call {
        Call::Get => world.gets.push_back(answer),
        Call::Put => world.puts.push_back(answer),
    }
}

fn conflict() -> Answer {
    Answer::Fails(retriable())
}

/// A 429 with `Retry-After` parks the pool until then, for the GET (test 1) and for the PUT (test 2).
#[test]
fn throttling_parks_until_retry_after() {
    for call in [Call::Get, Call::Put] {
        let mut world = world();
        fail(&mut world, call, throttled(75));
        world.tick();
        assert_eq!(world.take_events(), web(Retrying));
        let throttled_at = world.now;
        let operation = world.updater.queue().iter().next().unwrap();
        assert_eq!(
            operation.next_eligible_at,
            Some(throttled_at + Duration::from_secs(75)),
            "to the second"
        );
        world.take_calls();
        let leases = world.leases;
        for _ in 0..2 {
            world.tick();
            assert_eq!((world.take_calls(), world.take_events()), (vec![], vec![]));
            assert_eq!(world.updater.queue().iter().next().unwrap().retry_count, 1);
            assert_eq!(world.updater.queue_status(world.now).parked_pools, 1);
        }
        assert_eq!(
            (world.leases, world.outcomes()),
            (leases, (0, 0)),
            "nothing is eligible, so the Lease is not taken"
        );
        world.tick();
        assert_eq!(world.take_events(), web(Updated));
        assert_eq!(world.members(), ["10.0.0.2"]);
        assert_eq!(world.outcomes(), (1, 0));
    }
}

/// A closed throttle gate parks the pool until it opens, and costs no retry, because nothing was sent (test 4).
#[test]
fn a_closed_throttle_gate_is_tried_again_when_it_opens() {
    for (opens_after, ticks) in [(0, 1), (29, 1), (45, 2), (60, 2)] {
        let mut world = world();
        let wait = Duration::from_secs(opens_after);
        fail(&mut world, Call::Get, Answer::GateClosed(wait));
        world.tick();
        for _ in 0..ticks {
            assert!(world.take_events().is_empty(), "{opens_after}");
            world.tick();
        }
        assert_eq!(world.take_events(), web(Updated), "{opens_after}");
        assert_eq!(world.updater.counters().retried, 0);
    }
}

/// A 409 or 412 costs one retry, and the next tick plans from a new read (test 5).
#[test]
fn conflicts_are_tried_again_from_a_fresh_read() {
    let mut world = world();
    fail(&mut world, Call::Put, conflict());
    world.tick();
    assert_eq!((world.take_events(), world.outcomes()), (web(Retrying), (0, 0)));
    world.set_addresses("lb", "default-web", &["10.0.0.1", "10.0.0.3"]);
    world.take_calls();
    world.tick();
    assert_eq!(world.take_calls(), [Call::Get, Call::Put]);
    assert_eq!(world.members(), ["10.0.0.2"], "what changed in between was read");
    assert_eq!((world.take_events(), world.outcomes()), (web(Updated), (1, 0)));
}

/// A newer operation of a parked pool replaces the older one and keeps its parking time (test 6).
#[test]
fn an_update_of_a_parked_pool_waits_with_it_and_uses_the_latest_members() {
    let mut world = world();
    fail(&mut world, Call::Put, throttled(50));
    world.tick();
    world.take_calls();
    world.set_endpoints(&["n3"]);
    world.tick();
    assert!(world.take_calls().is_empty());
    let operation = world.updater.queue().iter().next().unwrap();
    assert_eq!(
        (world.updater.queue().len(), operation.retry_count),
        (1, 0),
        "replaced, with a fresh budget"
    );
    world.tick();
    assert_eq!(world.members(), ["10.0.0.3"]);
}

#[test]
fn parked_pool_does_not_delay_other_pools() {
    let mut world = world();
    world.add_service("default/other", &[], "lb");
    world.updater.apply_slice(&slice("default/other-1", "other", &["n5"]));
    world.observe();
    // The pools are processed in the order of their names.
    world.gets.push_back(Answer::Ok);
    fail(&mut world, Call::Get, throttled(300));
    world.tick();
    assert_eq!(world.addresses("lb", "default-other"), ["10.0.0.5"]);
    world.updater.apply_slice(&slice("default/other-1", "other", &["n6"]));
    world.tick();
    assert_eq!(world.addresses("lb", "default-other"), ["10.0.0.6"]);
    assert_eq!(world.members(), ["10.0.0.1"]);
}

/// With the default of three retries, the fourth retriable failure ends the operation (test 9), and with none the first (test 18; the
/// table of `local_pools::settings` has the other values).
#[test]
fn failure_without_retries_left_is_final() {
    for (settings, retries) in [(UpdaterSettings::default(), 3), (with_retries(0), 0)] {
        let mut world = World::with_pending_update(settings);
        for _ in 0..=retries {
            fail(&mut world, Call::Put, conflict());
        }
        for _ in 0..retries {
            world.tick();
            assert_eq!((world.take_events(), world.outcomes()), (web(Retrying), (0, 0)));
        }
        world.tick();
        let message = world.events[0].message.clone();
        assert_eq!((world.take_events(), world.outcomes()), (web(Failed), (0, 1)));
        assert_contains!(message, &format!("after {retries} retries: the error. To retrigger"));
        assert!(world.updater.queue().is_empty());
    }
}

/// Failures that are known to be final (test 11; the status codes of test 10 are not among them) end the operation at the first attempt; a
/// missing pool, found by the GET or the PUT, does without an event or an outcome in metrics (test 12).
#[test]
fn terminal_failures_are_not_retried_and_a_deleted_pool_has_no_event() {
    for (failure, events, failed, dropped) in [(Failure::Terminal, web(Failed), 1, 0), (Failure::Missing, vec![], 0, 1)]
    {
        for call in [Call::Get, Call::Put] {
            let mut world = world();
            fail(&mut world, call, Answer::Fails(failure));
            world.tick();
            let mut messages = world.events.iter().map(|event| &event.message);
            assert!(messages.all(|message| message.contains("(non-retriable)")));
            assert_eq!((world.take_events(), world.outcomes()), (events.clone(), (0, failed)));
            assert!(world.updater.queue().is_empty());
            assert_eq!(world.updater.counters().dropped, dropped);
        }
    }
}

/// The Service is deleted, is no longer Local, or moves during the PUT; any answer is dropped (test 13).
#[test]
fn update_of_a_service_that_leaves_during_the_call_is_dropped_without_event() {
    let leaves: [fn(&mut World); 3] = [
        |world| world.updater.delete_service(&name("default/web")),
        |world| {
            let mut cluster = service("default/web", &[]);
            cluster.is_local = false;
            world.updater.apply_service(&cluster.into());
        },
        |world| {
            // cloud-controller-manager moves it.
            world.pools.clear();
            world.rules.clear();
            world.add_service("default/web", &[], "lb2");
            world.observe();
            world.compare_all();
        },
    ];
    for (number, leave) in leaves.into_iter().enumerate() {
        for answer in [Answer::Ok, conflict(), Answer::Fails(Failure::Terminal), throttled(90)] {
            let mut world = world();
            world.puts.push_back(Answer::After(Box::new(leave), Box::new(answer)));
            world.tick();
            assert!(world.take_events().is_empty(), "{number}");
            assert_eq!(
                (world.outcomes(), world.updater.counters().dropped),
                ((0, 0), 1),
                "{number}"
            );
            let mut left = world
                .updater
                .queue()
                .iter()
                .map(|operation| operation.key.pool.to_string());
            assert!(left.all(|pool| pool != "lb/default-web"));
        }
    }
}

/// The Service loses its load balancer while its pool is parked (tests 14 and 16).
#[test]
fn parked_update_of_a_service_that_leaves_is_dropped_without_event() {
    let mut world = world();
    fail(&mut world, Call::Put, throttled(600));
    world.tick();
    world.take_events();
    world.take_calls();
    world.rules.clear();
    world.observe();
    world.tick();
    assert!(world.updater.queue().is_empty() && world.take_calls().is_empty() && world.take_events().is_empty());
    assert_eq!((world.outcomes(), world.updater.counters().dropped), ((0, 0), 1));
}

#[test]
fn removing_a_service_removes_its_parked_operation() {
    let mut world = world();
    fail(&mut world, Call::Put, throttled(600));
    world.tick();
    assert_eq!(world.updater.queue_status(world.now).parked_pools, 1);
    world.updater.delete_service(&name("Default/Web"));
    assert!(world.updater.queue().is_empty());
}

/// Failed attempts before the success count as retries only, not as failures (test 19).
#[test]
fn retried_update_counts_as_one_success() {
    let mut world = world();
    for failure in [conflict(), conflict(), throttled(10)] {
        fail(&mut world, Call::Put, failure);
        world.tick();
    }
    world.tick();
    assert_eq!((world.outcomes(), world.updater.counters().retried), ((1, 0), 3));
}

#[test]
fn newer_members_after_a_conflict_have_a_fresh_budget() {
    let mut world = World::with_pending_update(with_retries(1));
    fail(&mut world, Call::Put, conflict());
    world.tick();
    world.set_endpoints(&["n3"]);
    fail(&mut world, Call::Put, conflict());
    world.tick();
    assert_eq!(
        world.take_events(),
        [web(Retrying), web(Retrying)].concat(),
        "one retry for each set of members"
    );
    world.tick();
    assert_eq!(world.members(), ["10.0.0.3"]);
}

#[test]
fn newer_members_during_the_call_replace_the_failed_ones() {
    let mut world = world();
    let newer = |world: &mut World| {
        world.set_endpoints(&["n4"]);
        world.compare_all();
    };
    world
        .puts
        .push_back(Answer::After(Box::new(newer), Box::new(throttled(40))));
    world.tick();
    assert_eq!(world.take_events(), web(Retrying));
    let operation = world.updater.queue().iter().next().unwrap();
    assert_eq!((world.updater.queue().len(), operation.retry_count), (1, 0));
    assert!(
        operation.is_parked(world.now),
        "the parking time moves to the newer operation"
    );
    world.tick();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.4"]);
}

#[test]
fn repeating_an_event_does_not_renew_the_budget() {
    let mut world = world();
    for _ in 0..4 {
        world.puts.push_back(Answer::After(
            Box::new(|world| {
                world.set_endpoints(&["n2"]);
                world.compare_all();
            }),
            Box::new(conflict()),
        ));
    }
    let mut reasons = Vec::new();
    for _ in 0..4 {
        world.tick();
        reasons.extend(world.take_events().into_iter().map(|(_, reason)| reason));
    }
    assert_eq!(reasons, [Retrying, Retrying, Retrying, Failed]);
}
