//! The marker by failed probes on a fake API server, in paused time: an agent's watch of its Node, its health answers, and the writer
//! of the condition.

#![allow(clippy::unwrap_used, reason = "the helpers are outside test functions")]

mod random;
mod world;

use tokio::time::sleep;

use world::{REQUIRED, SECOND, World};

#[tokio::test(start_paused = true)]
async fn condition_is_true_after_the_configured_probes_and_false_after_the_signal() {
    let world = World::start().await;
    assert!(world.probe().await);
    world.set_signal(true);
    sleep(2 * SECOND).await;
    assert!(world.shows("False", "ProbesNotFailed"), "{:?}", world.shown());
    for _ in 0..REQUIRED {
        assert!(!world.shows("True", "ProbesFailed"));
        assert!(!world.probe().await);
        sleep(5 * SECOND).await;
    }
    assert!(world.shows("True", "ProbesFailed"), "{:?}", world.shown());
    assert_eq!(world.status_writes(), 2, "one for each transition");
    world.set_signal(false);
    sleep(2 * SECOND).await;
    assert!(world.shows("False", "NoSignal"), "{:?}", world.shown());
    assert_eq!(world.status_writes(), 3);
    sleep(3600 * SECOND).await;
    assert_eq!(world.status_writes(), 3, "a node without a signal is not confirmed");
}

#[tokio::test(start_paused = true)]
async fn condition_stays_false_without_probes_and_is_confirmed_at_intervals() {
    let world = World::start().await;
    world.set_signal(true);
    sleep(600 * SECOND).await;
    assert!(world.shows("False", "ProbesNotFailed"), "{:?}", world.shown());
    world.fail_probes().await;
    let writes = world.status_writes();
    sleep(600 * SECOND).await;
    let confirmations = world.status_writes() - writes;
    // 5,000 nodes that are out cost 20 writes a second.
    assert_eq!(confirmations, 2, "in 10 min");
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_does_not_take_a_true_condition_back() {
    let mut world = World::start().await;
    world.set_signal(true);
    sleep(SECOND).await;
    world.fail_probes().await;
    world.restart_agent();
    for _ in 0..120 {
        sleep(SECOND / 2).await;
        assert!(world.shows("True", "ProbesFailed"), "{:?}", world.shown());
    }
    let writes = world.status_writes();
    sleep(220 * SECOND).await;
    assert_eq!(world.status_writes(), writes + 1, "it is confirmed");
    // What someone else has written proves nothing.
    world.overwrite("True");
    world.restart_agent();
    sleep(5 * SECOND).await;
    assert!(world.shows("False", "ProbesNotFailed"), "{:?}", world.shown());
}

#[tokio::test(start_paused = true)]
async fn foreign_writes_are_undone() {
    let world = World::start().await;
    world.overwrite("True");
    sleep(5 * SECOND).await;
    assert!(world.shows("False", "NoSignal"), "{:?}", world.shown());
    world.set_signal(true);
    sleep(5 * SECOND).await;
    world.overwrite("True");
    sleep(5 * SECOND).await;
    assert!(world.shows("False", "ProbesNotFailed"), "{:?}", world.shown());
}
