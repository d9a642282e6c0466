//! What holds in every row: no Evacuation before the load balancers, no pod removed past its budget, nothing left.

use std::collections::BTreeSet;

use headgate_azure_emulator::{entries_of, pools_in};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Seen;

/// The conditions of KEP-5683 that headgate writes on Nodes.
const CONDITIONS: [&str; 4] = [
    "MaintenancePlanned",
    "MaintenanceInProgress",
    "DrainInProgress",
    "Drained",
];
const INSTIGATOR: &str = "evacuation.headgate.dev/instigator_nodemaintenance.headgate.dev";

/// What a maintenance left on a Node, in words.
pub(crate) fn traces(node: &Value) -> Vec<String> {
    let mut traces = Vec::new();
    if node["spec"]["unschedulable"] == true {
        traces.push("unschedulable".to_owned());
    }
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    traces.extend(
        all(&node["spec"]["taints"])
            .iter()
            .filter(|taint| {
                taint["key"]
                    .as_str()
                    .is_some_and(|key| key.starts_with("headgate.dev/"))
            })
            .map(ToString::to_string),
    );
    let annotations = node["metadata"]["annotations"].as_object().into_iter().flatten();
    traces.extend(
        annotations
            .map(|(key, _)| key.clone())
            .filter(|key| key.starts_with("headgate.dev/")),
    );
    let conditions = all(&node["status"]["conditions"]);
    let kinds = conditions.iter().filter_map(|condition| condition["type"].as_str());
    traces.extend(kinds.filter(|kind| CONDITIONS.contains(kind)).map(str::to_owned));
    traces
}

/// The nodes all of whose entries in the emulated load balancers are Down.
pub(super) fn down(state: &Value) -> BTreeSet<String> {
    let (mut down, mut serving) = (BTreeSet::new(), BTreeSet::new());
    for entry in pools_in(state).flat_map(entries_of) {
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        let is_down = entry["properties"]["adminState"] == "Down";
        if is_down {
            down.insert(name)
        } else {
            serving.insert(name)
        };
    }
    &down - &serving
}

/// When reads of load balancers were answered, by a page of the emulator's journal.
pub(super) fn reads(journal: &Value) -> Vec<Timestamp> {
    let entries = journal["entries"].as_array().into_iter().flatten();
    let is_read = |entry: &&Value| {
        let path = entry["path"].as_str().unwrap_or_default();
        entry["method"] == "GET" && entry["status"] == 200 && path.to_ascii_lowercase().contains("/loadbalancers")
    };
    entries
        .filter(is_read)
        .filter_map(|entry| entry["completed"].as_str()?.parse().ok())
        .collect()
}

/// The node in the note of an event `LoadBalancerNotConfirmed`.
pub(super) fn node_of_note(note: &str) -> Option<&str> {
    note.split_once("Pods leave node ")?.1.split(' ').next()
}

/// A pod that is deleted was evicted through the Eviction API, or is one of a `DaemonSet`, or was ended by Kubernetes itself.
pub(super) fn removal(pod: &Value, ignored: &BTreeSet<String>) -> Option<String> {
    let metadata = &pod["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    if metadata["deletionTimestamp"].is_null() || ignored.contains(namespace) {
        return None;
    }
    let owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let reason = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget");
    let is_disrupted = reason.is_some_and(|condition| condition["status"] == "True");
    if is_disrupted || owners.iter().any(|owner| owner["kind"] == "DaemonSet") {
        return None;
    }
    Some(format!(
        "pod {namespace}/{} was deleted without an eviction",
        metadata["name"]
    ))
}

/// A budget that had as many healthy pods as it wants never has fewer.
pub(super) fn budget(budget: &Value, ignored: &BTreeSet<String>, satisfied: &mut BTreeSet<String>) -> Option<String> {
    let (metadata, status) = (&budget["metadata"], &budget["status"]);
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    let (current, desired) = (status["currentHealthy"].as_i64()?, status["desiredHealthy"].as_i64()?);
    let key = super::uid(budget);
    if current >= desired {
        // Before it is counted, a status is all zeros.
        if status["expectedPods"].as_i64() > Some(0) {
            satisfied.insert(key);
        }
        return None;
    }
    let is_broken = satisfied.contains(&key) && !ignored.contains(namespace);
    is_broken.then(|| {
        format!(
            "budget {namespace}/{} has {current} healthy pods and wants {desired}",
            metadata["name"]
        )
    })
}

/// Each Evacuation of a maintenance was created while its node was Down, after a read that could show it, or after the event
/// which says that there was no confirmation.
pub(super) fn evacuations_after_the_load_balancers(seen: &Seen) -> Vec<String> {
    let mut violations = Vec::new();
    for evacuation in seen.evacuations.values() {
        let finalizers = evacuation["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == INSTIGATOR) {
            continue;
        }
        let name = &evacuation["metadata"]["name"];
        let pod = evacuation["spec"]["podRef"]["uid"]
            .as_str()
            .and_then(|uid| seen.pods.get(uid));
        let Some(node) = pod.and_then(|pod| pod["spec"]["nodeName"].as_str()) else {
            violations.push(format!("Evacuation {name}: its pod was never seen"));
            continue;
        };
        let created: Timestamp = evacuation["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        // Times of objects have no fractions.
        let latest = created + SignedDuration::from_secs(1);
        if seen
            .not_confirmed
            .iter()
            .any(|(other, at)| other == node && *at <= latest + SignedDuration::from_secs(2))
        {
            continue;
        }
        let history = seen.down.get(node).map_or(&[][..], Vec::as_slice);
        let Some((since, _)) = history.iter().rev().find(|(at, is_down)| *is_down && *at <= latest) else {
            violations.push(format!(
                "Evacuation {name} at {created}: node {node} was never Down before"
            ));
            continue;
        };
        let until = history
            .iter()
            .find(|(at, is_down)| !is_down && at > since)
            .map(|(at, _)| *at);
        if until.is_some_and(|until| until < created) {
            violations.push(format!(
                "Evacuation {name} at {created}: node {node} was in service since {until:?}"
            ));
        }
        if !seen.reads.iter().any(|read| since <= read && *read <= latest) {
            violations.push(format!(
                "Evacuation {name} at {created}: no read since {since}, when {node} was Down"
            ));
        }
    }
    violations
}

#[test]
fn rules_see_what_breaks_them() {
    use serde_json::json;
    let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
    let ignored = BTreeSet::new();
    // Down from the second 10 on; the Evacuation is created at 15.
    for (what, down, reads, expected) in [
        ("a read shows it Down", vec![(at(10), true)], vec![at(12)], ""),
        (
            "never Down",
            vec![(at(0), false)],
            vec![at(12)],
            "was never Down before",
        ),
        (
            "Down too late",
            vec![(at(20), true)],
            vec![at(21)],
            "was never Down before",
        ),
        (
            "in service again",
            vec![(at(10), true), (at(13), false)],
            vec![at(12)],
            "was in service since",
        ),
        ("no read since", vec![(at(10), true)], vec![at(9)], "no read since"),
    ] {
        let mut seen = Seen::default();
        seen.down.insert("one".to_owned(), down);
        seen.reads = reads;
        seen.pods.insert("p".to_owned(), json!({"spec": {"nodeName": "one"}}));
        let evacuation = json!({"metadata": {"name": "e", "finalizers": [INSTIGATOR],
            "creationTimestamp": at(15).to_string()}, "spec": {"podRef": {"uid": "p"}}});
        seen.evacuations.insert("e".to_owned(), evacuation);
        let violations = evacuations_after_the_load_balancers(&seen).join("; ");
        assert_eq!(violations.is_empty(), expected.is_empty(), "{what}: {violations}");
        assert!(violations.contains(expected), "{what}: {violations}");
    }
    let mut pod = json!({"metadata": {"namespace": "shop", "name": "web", "deletionTimestamp": at(0).to_string()}});
    assert!(removal(&pod, &ignored).is_some(), "deleted without an eviction");
    pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
    assert_eq!(removal(&pod, &ignored), None);
    let mut satisfied = BTreeSet::new();
    let mut counted = |healthy: i32| {
        let status = json!({"currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 2});
        budget(
            &json!({"metadata": {"uid": "b"}, "status": status}),
            &ignored,
            &mut satisfied,
        )
        .is_some()
    };
    assert_eq!([counted(1), counted(2), counted(1)], [false, false, true]);
    let node = json!({"spec": {"unschedulable": true, "taints": [{"key": "headgate.dev/maintenance"}]},
        "metadata": {"annotations": {"headgate.dev/unschedulable-before-maintenance": "false"}},
        "status": {"conditions": [{"type": "Ready"}, {"type": "Drained"}]}});
    assert_eq!(traces(&node).len(), 4, "{:?}", traces(&node));
}
