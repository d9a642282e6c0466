//! Stories of maintenances, disturbed at each of their fault points: see `headgate_test_kubernetes::run_fault_points`, whose module says
//! what the patterns are. Those of the leader's other work are in `headgate-controller`.

use std::cell::Cell;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_test_kubernetes::{FaultPoints, Pattern, Story, find_failure, keep_running, run_fault_points};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::evacuators::registered;
use crate::world::{MINUTE, SECOND, World};

/// Longer than what is delayed, and than the drain window with the pauses after failures.
const MAX_WAIT: Duration = Duration::from_mins(8);

macro_rules! story {
    ($name:literal, $run:path) => {
        Story {
            name: $name,
            run: |points| $run(points).boxed_local(),
            has_pairs: false,
        }
    };
}

const STORIES: [Story; 2] = [
    story!("maintenance of two nodes", maintenance_of_two_nodes),
    story!("evacuation with an evacuator", evacuation_with_an_evacuator),
];

#[test]
fn stories_reach_their_end_states_whatever_is_disturbed() {
    run_fault_points(&STORIES);
}

/// The check can fail: an evacuator that forgets what it began when its process crashes keeps the pod.
#[test]
fn an_evacuator_that_forgets_what_it_began_is_found() {
    let story = story!("forgetful evacuator", evacuation_with_a_forgetful_evacuator);
    let failure = find_failure(story, Pattern::CrashAfter, "").unwrap();
    assert!(failure.message.contains("the pod leaves"), "{failure:#?}");
}

/// Runs the script beside a leader that starts again after each crash; `starts` is how often it has started.
async fn play(world: &World, starts: &Cell<usize>, script: impl Future<Output = ()>) {
    // A pod still terminates when the next leader begins.
    world.fake.set_pod_termination(20 * SECOND);
    let leader = keep_running(async |number| {
        starts.set(number);
        let (leader, _) = world.start_leader();
        let line = leader.faults.clone();
        (leader, line)
    });
    tokio::select! {
        () = leader => {}
        () = script => {}
    }
}

/// Waits until something is so, in virtual time.
async fn until(world: &World, what: &str, is_so: impl Fn(&World) -> bool) {
    let started = Instant::now();
    while !is_so(world) {
        let shown = world.maintenance("m").and_then(|maintenance| maintenance.status);
        assert!(
            started.elapsed() < MAX_WAIT,
            "not within {MAX_WAIT:?}: {what}; {shown:?}"
        );
        sleep(SECOND).await;
    }
}

/// Completes the maintenance, and checks that nothing of it is left.
async fn complete(world: &World, nodes: &[&str]) {
    world.set_stage("m", "Complete").await;
    until(world, "completed", |world| {
        world.condition("m", "Progressing") == "False Completed"
    })
    .await;
    let is_clean = |world: &World| {
        let is_clean = |node: &&str| world.is_given_back(node) && world.node_conditions(node).is_empty();
        let finalizers = world.maintenance("m").unwrap().metadata.finalizers.unwrap_or_default();
        nodes.iter().all(is_clean) && finalizers.is_empty()
    };
    until(world, "nothing is left on Nodes and maintenance", is_clean).await;
    sleep(MINUTE).await;
    assert!(is_clean(world), "the end state does not last");
}

/// Whether a pod's Node was cordoned whenever the pod was asked to leave; `None` if it was not asked. As it was at each request: the pod
/// terminates for 20 s, and a cordon may follow within the second.
fn leaves_cordoned_node(world: &World, pod: &str) -> Option<bool> {
    let [eviction, deletion] = [format!("/{pod}/eviction"), format!("/pods/{pod}")];
    let mut asked = world.fake.requests();
    asked.retain(|request| {
        let (method, path) = (&request.method, &request.path);
        (method == "POST" && path.ends_with(&eviction)) || (method == "DELETE" && path.ends_with(&deletion))
    });
    let is_cordoned = asked.iter().all(|request| request.is_node_cordoned != Some(false));
    (!asked.is_empty()).then_some(is_cordoned)
}

/// No pod leaves before its node is cordoned, and none of another node.
async fn maintenance_of_two_nodes(points: FaultPoints) {
    let world = World::new(&["one", "two", "three"]).await;
    for (node, pod) in [("one", "web-1"), ("two", "web-2"), ("three", "other")] {
        world.pod(node, pod, &json!({})).await;
    }
    for node in ["one", "two"] {
        world.observe_out(node);
    }
    world.fake.inject(&points);
    let script = async {
        world.maintain("m", "Drain", &["one", "two"], &json!({})).await;
        until(&world, "the pods leave", |world| {
            for (node, pod) in [("one", "web-1"), ("two", "web-2")] {
                assert!(
                    leaves_cordoned_node(world, pod).is_none_or(|is_cordoned| is_cordoned && world.isolation(node).0),
                    "{pod} leaves before the cordon"
                );
            }
            !world.has_pod("web-1") && !world.has_pod("web-2")
        })
        .await;
        until(&world, "drained", |world| world.is_drained("m")).await;
        complete(&world, &["one", "two"]).await;
        assert!(world.has_pod("other") && world.is_given_back("three"));
        for pod in ["web-1", "web-2"] {
            assert!(
                world.evacuation(pod).await.is_none(),
                "the Evacuation of {pod} has ended"
            );
        }
    };
    play(&world, &Cell::default(), script).await;
}

/// The registered evacuator gets its turn, and the eviction waits for its completion.
async fn evacuation_with_an_evacuator(points: FaultPoints) {
    play_evacuation(&points, false).await;
}

/// The evacuator is a part of the leader's process, and does not go on with what it began before a crash.
async fn evacuation_with_a_forgetful_evacuator(points: FaultPoints) {
    play_evacuation(&points, true).await;
}

async fn play_evacuation(points: &FaultPoints, forgets: bool) {
    let starts = Cell::new(0);
    let world = World::new(&["one"]).await;
    world.pod("one", "web", &registered("app.example", "20000")).await;
    world.observe_out("one");
    world.fake.inject(points);
    let script = async {
        world.drain_one(0).await;
        let started = Instant::now();
        loop {
            let evacuation = world.evacuation("web").await.and_then(|evacuation| evacuation.status);
            let class = evacuation.and_then(|status| status.active_evacuator_class);
            if class.as_deref() == Some("app.example") {
                break;
            }
            assert!(started.elapsed() < MAX_WAIT, "the evacuator gets no turn: {class:?}");
            sleep(SECOND).await;
        }
        sleep(30 * SECOND).await;
        assert_eq!(
            world.requests("POST", "web/eviction"),
            0,
            "before the evacuator has completed"
        );
        if !forgets || starts.get() == 1 {
            world
                .change_evacuation("web", |one| one["status"]["activeEvacuatorCompleted"] = json!(true))
                .await;
        }
        until(&world, "the pod leaves", |world| !world.has_pod("web")).await;
        until(&world, "drained", |world| world.is_drained("m")).await;
        complete(&world, &["one"]).await;
        assert!(world.evacuation("web").await.is_none(), "the Evacuation has ended");
    };
    play(&world, &starts, script).await;
}
