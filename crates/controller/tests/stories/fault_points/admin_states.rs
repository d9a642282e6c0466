//! Stories of admin states alone.

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use headgate_controller::admin_state::{AdminStateMode, ForeignDown, Policy, RestoreOutcome};
use headgate_test_kubernetes::FaultPoints;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::guard::GUARD;
use super::super::rows::cluster::{DRAINING, SECOND, TestCluster};
use super::super::world::ENFORCE;
use super::stage::{Replica, Stage};

const MAINTENANCE: &str = "headgate.dev/maintenance";
const OFF: Policy = Policy {
    mode: AdminStateMode::Disabled,
    foreign_down: ForeignDown::Keep,
};
/// The one that leads first.
pub(super) const FIRST: Replica = Replica {
    name: "a",
    policy: ENFORCE,
    acts: 0..=9,
};

/// The processes of a story with one replica.
pub(super) fn alone(stage: &Stage) -> Vec<LocalBoxFuture<'_, ()>> {
    vec![stage.run(FIRST).boxed_local()]
}

pub(super) async fn drain_and_return(points: FaultPoints) {
    play_drain_and_return(Stage::new(&points, |_| ()).await).await;
}

pub(super) async fn drain_and_return_without_a_ledger(points: FaultPoints) {
    let mut stage = Stage::new(&points, |_| ()).await;
    stage.loses_ledger = true;
    play_drain_and_return(stage).await;
}

pub(super) async fn drain_and_return_without_later_lists(points: FaultPoints) {
    points.ignore_later_lists();
    play_drain_and_return(Stage::new(&points, |_| ()).await).await;
}

async fn play_drain_and_return(stage: Stage) {
    stage.invariants.keep_signalled_down();
    let script = async {
        stage.taint(&[2], &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        stage.taint(&[2], &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
    };
    stage.play(alone(&stage), script).await;
}

/// Lists of Nodes have two pages.
pub(super) async fn two_nodes_at_once(points: FaultPoints) {
    let stage = Stage::new(&points, |_| ()).await;
    stage.cluster.fake.limit_pages(2);
    stage.invariants.keep_signalled_down();
    let script = async {
        stage.taint(&[1, 2], &[DRAINING]);
        stage.until_down(&["node-1", "node-2"]).await;
        stage.taint(&[1, 2], &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
    };
    stage.play(alone(&stage), script).await;
}

/// The next replica starts, and the one that leads is stopped while it writes.
pub(super) async fn roll_of_the_leader(points: FaultPoints) {
    let stage = Stage::new(&points, |_| ()).await;
    stage.invariants.keep_signalled_down();
    let processes = [(FIRST.name, 0..=1), ("b", 1..=9)].map(|(name, acts)| {
        let replica = Replica { name, acts, ..FIRST };
        stage.run(replica).boxed_local()
    });
    let script = async {
        stage.taint(&[2], &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        stage.begin_act(1);
        sleep(5 * SECOND).await;
        stage.taint(&[3], &[DRAINING]);
        sleep(2 * SECOND).await;
        stage.begin_act(2);
        stage.until_down(&["node-2", "node-3"]).await;
        stage.taint(&[2, 3], &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
    };
    stage.play(processes.into(), script).await;
}

/// The annotations by which the guard has nodes in service.
fn holds(cluster: &TestCluster) -> Vec<Value> {
    let nodes = (1..=3).filter_map(|number| cluster.fake.peek::<Node>("", &format!("node-{number}")));
    let held = nodes.filter_map(|node| node.metadata.annotations?.remove("headgate.dev/hold"));
    held.map(Value::String).collect()
}

pub(super) async fn guard_hold_and_release(points: FaultPoints) {
    let stage = Stage::new(&points, |world| world.guard = GUARD.clone()).await;
    let has_two_down = |cluster: &TestCluster| cluster.down().values().all(|down| down.len() == 2);
    let script = async {
        stage.taint(&[1, 2, 3], &[MAINTENANCE]);
        stage
            .until("two nodes Down and one held", |cluster| {
                has_two_down(cluster) && !holds(cluster).is_empty()
            })
            .await;
        stage.until_calm().await;
        stage.taint(&[3], &[]);
        stage
            .until("two nodes Down and none held", |cluster| {
                has_two_down(cluster) && holds(cluster).is_empty()
            })
            .await;
        stage.until_down(&["node-1", "node-2"]).await;
        stage.taint(&[1, 2], &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
        assert_eq!(holds(&stage.cluster), Vec::<Value>::new());
    };
    stage.play(alone(&stage), script).await;
}

/// ARM refuses the lists of the leader, which hands over to a replica that can list.
pub(super) async fn handover(points: FaultPoints) {
    let stage = Stage::new(&points, |_| ()).await;
    stage.invariants.keep_signalled_down();
    let second = Replica {
        name: "b",
        acts: 1..=9,
        ..FIRST
    };
    let script = async {
        sleep(20 * SECOND).await;
        stage.begin_act(1);
        sleep(10 * SECOND).await;
        let rule = json!({"match": {"caller": "headgate/a-"}, "action": {"answer": {"status": 503}}});
        stage.cluster.control("POST", "faults", &rule);
        stage.taint(&[2], &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        stage.cluster.clear_faults();
        stage.taint(&[2], &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
    };
    let processes = [FIRST, second].map(|replica| stage.run(replica).boxed_local());
    stage.play(processes.into(), script).await;
}

/// A replica with `adminState.mode: off` follows one that has set a node `Down`.
pub(super) async fn mode_off(points: FaultPoints) {
    let stage = Stage::new(&points, |_| ()).await;
    let processes = [("a", ENFORCE, 0..=0), ("b", OFF, 1..=9)].map(|(name, policy, acts)| {
        let replica = Replica { name, policy, acts };
        stage.run(replica).boxed_local()
    });
    let script = async {
        stage.taint(&[2], &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        stage.begin_act(1);
        stage.until_down(&[]).await;
        sleep(60 * SECOND).await;
        stage.until_down(&[]).await;
        // What follows the signals again is the same.
        stage.taint(&[2], &[]);
        stage.until_calm().await;
    };
    stage.play(processes.into(), script).await;
}

fn is_complete(outcome: &RestoreOutcome) -> bool {
    outcome.not_restored.is_empty() && outcome.unreadable.is_empty() && outcome.ledger_error.is_none()
}

/// The leader is gone, and an operator runs `headgate restore` until it says that nothing is left.
pub(super) async fn restore(points: FaultPoints) {
    let stage = Stage::new(&points, |_| ()).await;
    let leader = Replica { acts: 0..=0, ..FIRST };
    let script = async {
        stage.taint(&[2], &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        stage.begin_act(1);
        sleep(5 * SECOND).await;
        let mut has_restored = false;
        for _ in 0..5 {
            let (client, line) = stage.cluster.fake.client();
            let points = line.points().map(|points| ("restore".to_owned(), points));
            stage.cluster.world.points.lock().unwrap().extend(points);
            has_restored = tokio::select! {
                outcome = stage.cluster.restore_with(client) => outcome.is_ok_and(|outcome| is_complete(&outcome)),
                () = line.crashed() => false,
            };
            if has_restored {
                break;
            }
            sleep(SECOND).await;
        }
        assert!(has_restored, "five times");
        stage.until_down(&[]).await;
        let ledger = stage.cluster.ledger().await.to_string();
        assert!(
            !ledger.contains("\"intended ") && !ledger.contains("\"down "),
            "{ledger}"
        );
        stage.taint(&[2], &[]);
        stage.until_calm().await;
    };
    Box::pin(stage.play(vec![stage.run(leader).boxed_local()], script)).await;
}
