use k8s_openapi::api::core::v1::NodeSelectorTerm;
use serde_json::{Value, json};

use super::*;

fn at(second: u32) -> Timestamp {
    let start: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
    start + Duration::from_secs(second.into())
}

fn object(spec: &Value, status: &Value) -> NodeMaintenance {
    let mut object = json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": "m", "uid": "u", "generation": 1},
        "spec": {"nodeSelector": {"nodeSelectorTerms": []}, "stage": "Drain"}});
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    if !status.is_null() {
        object["status"] = status.clone();
        object["status"]["observedGeneration"] = json!(1);
    }
    serde_json::from_value(object).unwrap()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-02T03:00:00Z"})
}

fn progress() -> Progress {
    Progress::new(&object(&json!({}), &Value::Null), at(0))
}

/// What a state of the maintenance prints.
fn lines(progress: &mut Progress, second: u32, status: &Value) -> (Vec<String>, Option<Outcome>) {
    progress.update(Some(&object(&json!({}), status)), at(second))
}

#[test]
fn each_change_of_a_drain_is_a_line() {
    let mut progress = progress();
    assert_eq!(lines(&mut progress, 1, &Value::Null), (vec![], None));
    let stages = json!([{"name": "Cordon", "startTimestamp": "2026-01-02T03:00:02Z"},
        {"name": "Drain", "startTimestamp": "2026-01-02T03:00:02Z"}]);
    let node = |pending: i32, evacuating: i32, message: &str, gate: Value, blockers: Value| {
        let total = blockers.as_array().unwrap().len();
        json!({"stageStatuses": stages, "nodeStatuses": [{"nodeRef": {"name": "one"}, "podsPendingEvacuation": pending,
            "podsEvacuating": evacuating, "podsExempt": 2, "drainMessage": message, "loadBalancer": gate, "blockers": blockers,
            "blockersTotal": total}]})
    };
    let waiting = node(
        3,
        0,
        "Waiting for the load balancers: in service in a/b",
        json!({"state": "Pending"}),
        json!([]),
    );
    let expected = vec![
        "nodemaintenance/m: stage Cordon started".to_owned(),
        "nodemaintenance/m: stage Drain started".to_owned(),
        "node/one: 3 pods left; waiting for the load balancers: in service in a/b".to_owned(),
    ];
    assert_eq!(lines(&mut progress, 2, &waiting), (expected, None));
    assert_eq!(lines(&mut progress, 3, &waiting), (vec![], None), "nothing is new");

    let out = |state: &str| json!({"state": state, "downTime": "2026-01-02T03:00:05Z", "confirmedTime": "2026-01-02T03:00:06Z"});
    let counted = "Waiting for open connections, until 2026-01-02T03:05:36Z at the latest: 2 connections";
    let expected = "node/one: 3 pods left; out of its load balancers since 2026-01-02T03:00:05Z; \
        waiting for open connections, until 2026-01-02T03:05:36Z at the latest: 2 connections";
    let draining = node(3, 0, counted, out("Draining"), json!([]));
    assert_eq!(lines(&mut progress, 7, &draining), (vec![expected.to_owned()], None));

    let blocker = json!([{"podRef": {"namespace": "shop", "name": "web-0"}, "reason": "DisruptionBudget",
        "message": "PodDisruptionBudget web allows 0 disruptions", "firstObservedTime": "2026-01-02T03:00:10Z"}]);
    let evacuating = node(0, 1, "Evacuating", out("Out"), blocker);
    let with_blocker = "node/one: 1 pod left, 1 of them evacuating; out of its load balancers since 2026-01-02T03:00:05Z; \
        1 pod is blocked: shop/web-0 since 2026-01-02T03:00:10Z: PodDisruptionBudget web allows 0 disruptions";
    assert_eq!(
        lines(&mut progress, 75, &evacuating),
        (vec![with_blocker.to_owned()], None)
    );

    assert_eq!(progress.remind(at(100)), Vec::<String>::new(), "too early");
    assert_eq!(progress.remind(at(105)), [with_blocker]);
    assert_eq!(progress.remind(at(106)), Vec::<String>::new(), "just reminded");

    let mut done = node(0, 0, "", out("Out"), json!([]));
    done["conditions"] = json!([condition("Drained", "True", "DrainCompleted")]);
    let expected = vec![
        "node/one drained (pods that stay: 2 of DaemonSets that tolerate it)".to_owned(),
        "nodemaintenance/m drained, after 3m0s".to_owned(),
    ];
    assert_eq!(lines(&mut progress, 180, &done), (expected, Some(Outcome::Drained)));
}

#[test]
fn a_node_that_was_drained_before_says_since_when() {
    let done = json!({"conditions": [condition("Drained", "True", "DrainCompleted")]});
    let expected = vec!["nodemaintenance/m drained, since 2026-01-02T03:00:00Z".to_owned()];
    assert_eq!(lines(&mut progress(), 7, &done), (expected, Some(Outcome::Drained)));
}

#[test]
fn ends() {
    let drained = |reason: &str| json!({"conditions": [condition("Drained", "True", reason)]});
    let dry = json!({"conditions": [condition("Progressing", "False", "DryRun")]});
    let not_drained = |why: &str| Some(Outcome::NotDrained(why.to_owned()));
    for (spec, status, expected) in [
        (json!({}), drained("DrainCompleted"), Some(Outcome::Drained)),
        (
            json!({}),
            json!({"conditions": [condition("Drained", "False", "NoNodes")]}),
            Some(Outcome::NoNodes),
        ),
        (
            json!({"stage": "Complete"}),
            drained("DrainCompleted"),
            not_drained("its stage was set to Complete"),
        ),
        (json!({"dryRun": true}), dry.clone(), Some(Outcome::Shown)),
        (json!({}), dry, None),
        (
            json!({}),
            json!({"conditions": [condition("Drained", "False", "PodsLeft")]}),
            None,
        ),
        (json!({}), Value::Null, None),
    ] {
        let (_, outcome) = progress().update(Some(&object(&spec, &status)), at(1));
        assert_eq!(outcome, expected, "{spec} {status}");
    }
    assert_eq!(progress().update(None, at(1)).1, not_drained("it was deleted"));
    let mut other = object(&json!({}), &drained("DrainCompleted"));
    other.metadata.uid = Some("another".to_owned());
    assert_eq!(progress().update(Some(&other), at(1)).1, not_drained("it was deleted"));
    let mut deleted = object(&json!({}), &drained("DrainCompleted"));
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    assert_eq!(
        progress().update(Some(&deleted), at(1)).1,
        not_drained("it is being deleted")
    );
    // Somebody took out the last node that had pods left, and a controller has answered.
    let mut fewer = object(&json!({}), &drained("DrainCompleted"));
    fewer
        .spec
        .node_selector
        .node_selector_terms
        .push(NodeSelectorTerm::default());
    assert_eq!(
        progress().update(Some(&fewer), at(1)).1,
        not_drained("its nodeSelector was changed; it goes on for the nodes that it selects now")
    );
    // A condition of an earlier generation says nothing about this one.
    let mut changed = object(&json!({}), &drained("DrainCompleted"));
    changed.metadata.generation = Some(2);
    assert_eq!(progress().update(Some(&changed), at(1)).1, None);
}

#[test]
fn a_missing_controller_is_reported_once() {
    let mut progress = progress();
    assert_eq!(progress.remind(at(14)), Vec::<String>::new());
    let found = progress.remind(at(15));
    assert!(
        found.len() == 1 && found[0].contains("maintenance.enabled"),
        "{found:?}"
    );
    assert_eq!(progress.remind(at(500)), Vec::<String>::new());
}

#[test]
fn more_blockers_than_are_listed_are_counted() {
    let mut progress = progress();
    let blocker = |name: &str| {
        json!({"podRef": {"namespace": "a", "name": name}, "reason": "DisruptionBudget", "message": "b",
            "firstObservedTime": "2026-01-02T03:00:00Z"})
    };
    let status = json!({"nodeStatuses": [{"nodeRef": {"name": "one"}, "podsEvacuating": 7,
        "blockers": [blocker("1"), blocker("2")], "blockersTotal": 7}]});
    let (found, _) = lines(&mut progress, 1, &status);
    let expected = "node/one: 7 pods left, 7 of them evacuating; 7 pods are blocked: a/1 since 2026-01-02T03:00:00Z: b, \
        a/2 since 2026-01-02T03:00:00Z: b, and 5 more";
    assert_eq!(found, [expected]);
}

#[test]
fn a_node_that_waits_for_room_or_timed_out_says_so() {
    for (node, expected) in [
        (
            json!({"podsEvacuating": 1, "loadBalancer": {"state": "TimedOut"}}),
            "1 pod left, 1 of them evacuating; no read confirmed that it is out of its load balancers, and pods leave without",
        ),
        (
            json!({"drainMessage": "Waiting for room: maintenance.maxConcurrentNodes is 25%"}),
            "waiting for room: maintenance.maxConcurrentNodes is 25%",
        ),
        (
            json!({"loadBalancer": {"state": "Pending"}, "drainMessage": "Waiting for the cordon and the maintenance taint"}),
            "no pod left; waiting for the cordon and the maintenance taint",
        ),
        (
            json!({"loadBalancer": {"state": "Out"}, "podsPendingEvacuation": 2, "drainMessage": "Waiting for node two."}),
            "2 pods left; in no load balancer that a read shows; waiting for node two",
        ),
    ] {
        let mut node = node;
        node["nodeRef"] = json!({"name": "one"});
        let (found, _) = lines(&mut progress(), 1, &json!({"nodeStatuses": [node]}));
        assert_eq!(found, [format!("node/one: {expected}")]);
    }
}
