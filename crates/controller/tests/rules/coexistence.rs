//! Beside cloud-controller-manager, and beside admin states: updates join other writes, what others undo is repaired, and
//! what was given up is found again.

use std::time::Duration;

use headgate_controller::local_pools::EventReason::{Failed, Updated};
use headgate_controller::local_pools::{Failure, PoolKey, UpdateOutcome, UpdaterSettings};
use headgate_core::service::Service;

use crate::world::{Answer, INTERVAL, World, failed, name, node, retriable, service, slice};

fn world() -> World {
    World::with_pending_update(UpdaterSettings::default())
}

fn pool() -> PoolKey {
    PoolKey::new("lb", "default-web")
}

#[test]
fn a_foreign_write_that_undoes_an_update_is_repaired() {
    let mut world = world();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    world.set_addresses("lb", "default-web", &["10.0.0.1"]);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.1"], "not read yet");
    world.observe();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    assert_eq!(world.outcomes(), (2, 0));
}

/// A world with an update that was given up.
fn given_up() -> World {
    let mut world = World::with_pending_update(UpdaterSettings {
        max_retries: 0,
        ..UpdaterSettings::default()
    });
    world.puts.push_back(Answer::Fails(retriable()));
    world.tick();
    assert_eq!(world.take_events(), [("default/web".to_owned(), Failed)]);
    world.take_calls();
    world
}

#[test]
fn reading_the_pool_again_does_not_renew_the_budget() {
    let mut world = given_up();
    for _ in 0..9 {
        world.observe();
        world.tick();
        assert!(world.take_calls().is_empty() && world.take_events().is_empty());
    }
}

#[test]
fn an_update_that_was_given_up_is_tried_again_after_the_resync_interval() {
    let mut world = given_up();
    let ticks = UpdaterSettings::default().resync_interval.as_secs() / INTERVAL.as_secs();
    for _ in 1..ticks {
        world.tick();
    }
    assert!(world.take_calls().is_empty());
    world.tick();
    assert_eq!(world.take_events(), [("default/web".to_owned(), Updated)]);
}

/// The Service with other pods.
fn reselecting(name: &str) -> Service {
    Service {
        selector: [("app".to_owned(), "next".to_owned())].into(),
        ..service(name, &[])
    }
}

#[test]
fn change_of_the_service_its_slices_or_its_members_retries_the_update() {
    let changes: [fn(&mut World); 4] = [
        |world| world.updater.apply_service(&reselecting("default/web").into()),
        |world| world.set_endpoints(&["n2"]),
        |world| world.updater.apply_slice(&slice("default/web-2", "web", &["n3"])),
        |world| world.updater.apply_node(node("n2", &["10.0.5.5"])),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut world = given_up();
        change(&mut world);
        world.tick();
        assert_eq!(world.take_events(), [("default/web".to_owned(), Updated)], "{number}");
    }
}

#[test]
fn change_of_a_node_in_the_same_tick_does_not_hide_the_change_of_the_service() {
    let changes: [fn(&mut World); 2] = [
        |world| world.updater.apply_service(&reselecting("default/web").into()),
        |world| world.set_endpoints(&["n2"]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for is_node_first in [true, false] {
            let mut world = given_up();
            let change_node = |world: &mut World| world.updater.apply_node(node("n9", &["10.0.5.5"]));
            if is_node_first {
                change_node(&mut world);
            }
            change(&mut world);
            if !is_node_first {
                change_node(&mut world);
            }
            world.tick();
            assert_eq!(world.take_events(), [("default/web".to_owned(), Updated)], "{number}");
        }
    }
}

/// Takes the due update of the Service, makes another Service of the same name, and takes the update of that one out of the
/// queue as well.
fn made_again(make: impl FnOnce(&mut World)) -> (World, headgate_controller::local_pools::Operation) {
    let mut world = world();
    world.begin_tick();
    let old = world.updater.take_due(&pool()).unwrap();
    make(&mut world);
    world.now += INTERVAL;
    world.begin_tick();
    (world, old)
}

#[test]
fn outcome_of_an_old_update_is_not_that_of_a_service_made_again() {
    let makes: [fn(&mut World); 3] = [
        |world| {
            world.updater.delete_service(&name("default/web"));
            world.updater.apply_service(&service("default/web", &[]).into());
        },
        // Its deletion was not observed.
        |world| {
            let mut other = service("default/web", &[]);
            other.uid = crate::world::uid("another");
            world.updater.apply_service(&other.into());
        },
        // The same Service, `Cluster` for a while.
        |world| {
            let mut cluster = service("default/web", &[]);
            cluster.is_local = false;
            world.updater.apply_service(&cluster.into());
            world.updater.apply_service(&service("default/web", &[]).into());
        },
    ];
    for (number, make) in makes.into_iter().enumerate() {
        for outcome in [failed(retriable()), failed(Failure::Terminal), UpdateOutcome::Updated] {
            let (mut world, old) = made_again(make);
            let settlement = world.updater.settle(old, &outcome, world.now);
            assert_eq!(settlement.event, None, "{number} {outcome:?}");
            assert_eq!(world.outcomes(), (0, 0), "{number} {outcome:?}");
            let new = world.updater.take_due(&pool());
            assert!(new.is_some(), "{number} {outcome:?}: its own update is still due");
            let settlement = world.updater.settle(new.unwrap(), &UpdateOutcome::Updated, world.now);
            assert!(settlement.event.is_some(), "{number} {outcome:?}");
        }
    }
}

#[test]
fn unrelated_change_does_not_retry_the_update() {
    let mut world = given_up();
    world.updater.apply_node(node("n9", &["10.0.5.5"]));
    world.updater.apply_slice(&slice("default/other-1", "other", &["n2"]));
    world.tick();
    assert!(world.take_calls().is_empty());
}

#[test]
fn an_update_joins_one_put_at_most() {
    let mut world = world();
    assert!(
        world.updater.take_due(&pool()).is_none(),
        "no tick yet: an admin-state write goes alone"
    );
    world.begin_tick();
    assert_eq!(world.updater.due_pools("LB"), [pool()]);
    assert!(!world.updater.due().is_empty() && world.updater.due().get(&pool()).is_some());
    let due = world.updater.take_due(&pool()).unwrap();
    assert!(world.updater.due().is_empty() && world.updater.due().get(&pool()).is_none());
    assert!(world.updater.take_due(&pool()).is_none(), "it is part of a PUT already");
    world.updater.settle(due, &failed(retriable()), world.now);
    assert!(
        world.updater.take_due(&pool()).is_none(),
        "an immediate second try goes without it"
    );
    assert_eq!(world.updater.queue().iter().next().unwrap().retry_count, 1);
    world.now += INTERVAL;
    world.begin_tick();
    assert!(world.updater.take_due(&pool()).is_some());
}

#[test]
fn pool_that_is_read_during_its_write_does_not_renew_the_budget() {
    let mut world = World::with_pending_update(UpdaterSettings {
        max_retries: 0,
        ..UpdaterSettings::default()
    });
    world.begin_tick();
    let due = world.updater.take_due(&pool()).unwrap();
    // The writer reads the pool under the Lease, and its PUT lasts longer than a tick.
    world.observe();
    world.now += INTERVAL;
    assert!(!world.prepare_tick());
    world.updater.settle(due, &failed(retriable()), world.now);
    world.now += INTERVAL;
    assert!(!world.prepare_tick(), "it was given up");
}

#[test]
fn a_due_update_has_the_members_of_its_put() {
    let mut world = world();
    world.begin_tick();
    world.set_endpoints(&["n3"]);
    world.updater.refresh_due("LB");
    let due = world.updater.take_due(&pool()).unwrap();
    assert!(due.members.contains("10.0.0.3".parse().unwrap()) && due.members.as_slice().len() == 1);
    world.compare_all();
    assert!(world.updater.queue().is_empty(), "what is being written suffices");
    world.updater.settle(due, &failed(retriable()), world.now);
    world.now += INTERVAL;
    world.begin_tick();
    world.updater.delete_slice(&name("default/web-1"));
    world.updater.refresh_due("LB");
    assert!(world.updater.due().is_empty(), "pools without slices stay as they are");
    assert_eq!(world.updater.counters().dropped, 1);
}

#[test]
fn slices_that_vanish_during_a_put_change_nothing_of_its_outcome() {
    let mut world = world();
    world.begin_tick();
    let due = world.updater.take_due(&pool()).unwrap();
    world.updater.delete_slice(&name("default/web-1"));
    world.compare_all();
    let settlement = world.updater.settle(due, &UpdateOutcome::Updated, world.now);
    assert!(settlement.event.is_some());
    assert_eq!((world.outcomes(), world.updater.counters().dropped), ((1, 0), 0));
}

#[test]
fn a_parked_update_never_joins() {
    let mut world = world();
    world.gets.push_back(crate::world::throttled(100));
    world.tick();
    world.now += INTERVAL;
    assert!(!world.prepare_tick());
    world.updater.drain(world.now);
    assert!(world.updater.take_due(&pool()).is_none());
    // Nor when its slices were gone for a while.
    world.updater.delete_slice(&name("default/web-1"));
    world.compare_all();
    world.set_endpoints(&["n2"]);
    assert!(!world.prepare_tick());
    let operation = world.updater.queue().iter().next().unwrap();
    assert_eq!((world.updater.queue().len(), operation.retry_count), (1, 1));
}

#[test]
fn update_without_a_writer_is_queued_again_without_costing_a_retry() {
    let mut world = world();
    for _ in 0..9 {
        world.begin_tick();
        world.updater.drain(world.now);
        world.now += INTERVAL;
    }
    assert!(world.prepare_tick());
    let operation = world.updater.queue().iter().next().unwrap();
    assert_eq!((world.updater.queue().len(), operation.retry_count), (1, 0));
    assert_eq!(
        world.updater.queue_status(world.now).oldest_since,
        Some(world.now - 9 * INTERVAL),
        "it shows by its age"
    );
}

#[test]
fn an_update_whose_service_left_is_not_taken() {
    let mut world = world();
    world.begin_tick();
    world.updater.delete_service(&name("default/web"));
    world.updater.apply_service(&service("default/web", &[]).into());
    assert!(world.updater.take_due(&pool()).is_none());
    assert_eq!(world.updater.counters().dropped, 1);
    world.tick();
    assert_eq!(
        world.members(),
        ["10.0.0.2"],
        "the new Service has an update of its own"
    );
}

#[test]
fn no_second_put_starts_while_one_outlasts_a_tick() {
    let mut world = world();
    world.begin_tick();
    let due = world.updater.take_due(&pool()).unwrap();
    world.set_endpoints(&["n7"]);
    world.now += INTERVAL;
    assert!(!world.prepare_tick(), "the pool has a PUT without an outcome");
    world.updater.settle(due, &failed(retriable()), world.now);
    world.now += INTERVAL;
    world.tick_now();
    assert_eq!(world.members(), ["10.0.0.7"]);
    assert!(world.updater.queue().is_empty());
}

#[test]
fn a_change_back_during_the_put_is_not_lost() {
    let mut world = world();
    let back = |world: &mut World| {
        world.set_endpoints(&["n1"]);
        world.compare_all();
    };
    world
        .puts
        .push_back(Answer::After(Box::new(back), Box::new(Answer::Ok)));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.1"]);
}

#[test]
fn a_writer_that_reads_one_load_balancer_updates_what_is_known() {
    let mut world = world();
    world.pools.clear();
    world.updater.observe_one(world.read("LB"));
    world.now += Duration::from_secs(1);
    assert!(!world.prepare_tick(), "the pool is gone");
}

#[test]
fn comparing_some_services_at_a_time_queues_the_same() {
    let seven_services = || {
        let mut world = World::new();
        for number in 1..=7 {
            world.add_service(&format!("default/s{number}"), &[], "lb");
            let name = format!("s{number}");
            world
                .updater
                .apply_slice(&slice(&format!("default/{name}-1"), name.as_str(), &["n2"]));
        }
        world.observe();
        world
    };
    let queued = |world: &World| -> Vec<_> {
        let operations = world.updater.queue().iter();
        operations.map(|operation| operation.key.clone()).collect()
    };
    let mut at_once = seven_services();
    assert!(at_once.prepare_tick());
    let mut world = seven_services();
    world.updater.begin_tick(world.now);
    let mut parts = 0;
    while world.updater.compare_some(world.now, 2) {
        parts += 1;
        assert_eq!(queued(&world).len(), 2 * parts);
    }
    assert!(world.updater.is_tick_eligible(world.now));
    assert_eq!((parts, queued(&world).len()), (3, 7));
    assert_eq!(queued(&world), queued(&at_once));
}

#[test]
fn a_list_that_was_sent_before_a_read_does_not_hide_what_the_read_has_shown() {
    let mut world = world();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    world.observe();
    assert!(!world.prepare_tick(), "the pool is right");
    let sent_at = world.now;
    // After the list was sent, cloud-controller-manager has undone the update, and the writer has read that.
    let updated = world.pools.clone();
    world.set_addresses("lb", "default-web", &[]);
    world.now = sent_at + Duration::from_millis(10);
    world.updater.observe_one(world.read("lb"));
    (world.pools, world.now) = (updated, sent_at);
    world.observe();
    assert!(world.prepare_tick(), "the pool is to be updated again");
}

#[test]
fn due_update_is_dropped_where_the_read_before_its_put_shows_that_the_service_has_moved() {
    let mut world = world();
    world.begin_tick();
    // cloud-controller-manager has moved the rule; the pool is an orphan.
    world.rules.clear();
    world.updater.observe_one(world.read("lb"));
    assert!(world.updater.take_due(&pool()).is_none());
    assert_eq!((world.updater.counters().dropped, world.outcomes()), (1, (0, 0)));
    assert!(world.updater.queue().is_empty() && world.updater.due().is_empty());
}
