//! The order of pods over several maintenances.

use serde_json::{Value, json};

use crate::scene::{Scene, node_status};

/// The pods of KEP-4212's example, by node and priority. A budget of the same name holds each of them.
const PODS: [(&str, i32); 9] = [
    ("one", 5000),
    ("one", 10_000),
    ("one", 15_000),
    ("two", 5000),
    ("two", 15_000),
    ("three", 10_000),
    ("three", 15_000),
    ("four", 2000),
    ("four", 15_000),
];

fn pod_name(node: &str, priority: i32) -> String {
    format!("{node}-{priority}")
}

/// A plan of `Default` entries with these priorities, and one of the type `DaemonSet`.
fn plan(priorities: &[i32], daemon_set: Option<i32>) -> Value {
    let mut entries: Vec<_> = priorities
        .iter()
        .map(|priority| json!({"podPriority": priority}))
        .collect();
    entries.extend(daemon_set.map(|priority| json!({"podPriority": priority, "podType": "DaemonSet"})));
    json!({"drainPlan": entries})
}

/// The highest priority of the `Default` targets of a node.
fn target(maintenance: &Value, node: &str) -> i64 {
    let targets = node_status(maintenance, node)["drainTargets"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let default = targets.iter().filter(|target| target["podType"] == "Default");
    default
        .filter_map(|target| target["podPriority"].as_i64())
        .max()
        .unwrap_or(0)
}

/// Waits until maintenances show these targets and messages: maintenance, node, target, message.
async fn until(scene: &Scene, step: &str, wanted: &[(&str, &str, i64, &str)]) {
    for (maintenance, node, priority, message) in wanted {
        let what = format!("{step}: {maintenance} on {node}: {priority} {message:?}");
        scene
            .until_maintenance(&what, maintenance, |object| {
                target(object, node) == *priority && node_status(object, node)["drainMessage"] == *message
            })
            .await;
    }
}

/// V0 to V6 of the example: each step lets one pod go.
#[allow(clippy::too_many_lines, reason = "one story")]
pub(super) async fn worked_example(scene: Scene) {
    let [a, b, c] = ["maintenance-a", "maintenance-b", "maintenance-c"];
    for (node, priority) in PODS {
        let name = pod_name(node, priority);
        scene.hold(&name).await;
        let fields =
            json!({"metadata": {"labels": {"hold": name}}, "spec": {"priorityClassName": format!("p{priority}")}});
        scene.pod(node, &name, &fields).await;
    }
    let leaves = async |node: &str, priority: i32| {
        let name = pod_name(node, priority);
        scene.release(&name).await;
        scene.gone(&format!("{}/{name}", scene.pods())).await;
    };
    scene
        .maintain(a, &["one", "two"], &plan(&[5000, 15_000], Some(3000)))
        .await;
    scene
        .maintain(b, &["one", "three"], &plan(&[10_000, 15_000], Some(4000)))
        .await;
    let limited_by_a = "Evacuating (limited by maintenance-a)";
    until(
        &scene,
        "V0",
        &[
            (a, "one", 5000, "Evacuating"),
            (a, "two", 5000, "Evacuating"),
            (b, "one", 5000, limited_by_a),
            (b, "three", 10_000, "Evacuating"),
        ],
    )
    .await;
    leaves("three", 10_000).await;
    until(
        &scene,
        "V1",
        &[
            (b, "one", 5000, limited_by_a),
            (b, "three", 10_000, "Waiting for node one."),
        ],
    )
    .await;
    leaves("one", 5000).await;
    until(
        &scene,
        "V2",
        &[
            (a, "one", 5000, "Waiting for node two."),
            (a, "two", 5000, "Evacuating"),
            (b, "one", 5000, "Waiting for node two (maintenance-a)."),
            (b, "three", 10_000, "Waiting for node two (maintenance-a)."),
        ],
    )
    .await;
    leaves("two", 5000).await;
    until(
        &scene,
        "V3",
        &[
            (a, "one", 10_000, "Evacuating (limited by maintenance-b)"),
            (a, "two", 15_000, "Evacuating"),
            (b, "one", 10_000, "Evacuating"),
            (b, "three", 10_000, "Waiting for node one."),
        ],
    )
    .await;
    scene.maintain(c, &["one", "four"], &plan(&[2000, 15_000], None)).await;
    until(
        &scene,
        "V4",
        &[
            (c, "one", 10_000, "Evacuating (fast-forwarded by older maintenance-b)"),
            (c, "four", 2000, "Evacuating"),
        ],
    )
    .await;
    // An event may be lost with a leader that is killed, so its count is for the row without kills.
    if !scene.namespace.ends_with("-killed") {
        let events = scene.events(c, "FastForwarded");
        assert_eq!(events.await, 1, "fast-forwarded");
    }
    leaves("one", 10_000).await;
    leaves("two", 15_000).await;
    // V5: only four is busy, and holds c, which one is part of. Nothing there moves.
    until(
        &scene,
        "V5",
        &[
            (c, "one", 10_000, "Waiting for node four."),
            (b, "three", 10_000, "Waiting for node four (maintenance-c)."),
        ],
    )
    .await;
    leaves("four", 2000).await;
    until(
        &scene,
        "V6",
        &[
            (a, "one", 15_000, "Evacuating"),
            (b, "three", 15_000, "Evacuating"),
            (c, "four", 15_000, "Evacuating"),
        ],
    )
    .await;
    for node in ["one", "three", "four"] {
        leaves(node, 15_000).await;
    }
    for maintenance in [a, b, c] {
        scene.drained(maintenance).await;
    }
    // What is left of a on node one is left to b and c.
    scene.end(a).await;
    let node = scene.get("/api/v1/nodes/one").await.unwrap();
    assert_eq!(node["spec"]["unschedulable"], true, "{node}");
    assert!(scene.observer.is_down("one"));
    scene.end(b).await;
    scene.end(c).await;
}
