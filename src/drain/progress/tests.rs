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
        "node/one: Waiting for the load balancers: in service in a/b".to_owned(),
        "node/one: 3 pods left, 0 of them evacuating".to_owned(),
    ];
    assert_eq!(lines(&mut progress, 2, &waiting), (expected, None));
    assert_eq!(lines(&mut progress, 3, &waiting), (vec![], None), "nothing is new");

    let gate = json!({"state": "Out", "downTime": "2026-01-02T03:00:05Z", "confirmedTime": "2026-01-02T03:00:06Z"});
    let blocker = json!([{"podRef": {"namespace": "shop", "name": "web-0"}, "reason": "DisruptionBudget",
        "message": "PodDisruptionBudget web allows 0 disruptions", "firstObservedTime": "2026-01-02T03:00:10Z"}]);
    let evacuating = node(0, 1, "Evacuating", gate.clone(), blocker);
    let expected = vec![
        "node/one: out of its load balancers since 2026-01-02T03:00:05Z, confirmed by a read at 2026-01-02T03:00:06Z".to_owned(),
        "node/one: Evacuating".to_owned(),
        "node/one: 1 pod left, 1 of them evacuating".to_owned(),
        "node/one: pod shop/web-0 is blocked since 2026-01-02T03:00:10Z (1m5s): PodDisruptionBudget web allows 0 disruptions".to_owned(),
    ];
    assert_eq!(lines(&mut progress, 75, &evacuating), (expected, None));

    assert_eq!(progress.remind(at(100)), Vec::<String>::new(), "too early");
    let reminder = progress.remind(at(105));
    assert_eq!(reminder.len(), 3, "{reminder:?}");
    assert!(reminder[2].contains("web allows 0 disruptions"), "{reminder:?}");
    assert_eq!(progress.remind(at(106)), Vec::<String>::new(), "just reminded");

    let mut done = node(0, 0, "", gate, json!([]));
    done["conditions"] = json!([condition("Drained", "True", "DrainCompleted")]);
    let expected = vec![
        "node/one drained (pods that stay: 2 of DaemonSets that tolerate it)".to_owned(),
        "node/one: pod shop/web-0 is no longer blocked".to_owned(),
        "nodemaintenance/m drained, after 3m0s".to_owned(),
    ];
    assert_eq!(lines(&mut progress, 180, &done), (expected, Some(Outcome::Drained)));
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
            not_drained("it selects no node"),
        ),
        (
            json!({}),
            json!({"conditions": [condition("Drained", "False", "TooManyNodes")]}),
            not_drained("it selects more than 500 nodes"),
        ),
        (
            json!({"stage": "Cordon"}),
            json!({"conditions": [condition("Progressing", "False", "TooManyNodes")]}),
            not_drained("it selects more than 500 nodes"),
        ),
        (
            json!({"dryRun": true}),
            json!({"conditions": [condition("Progressing", "False", "TooManyNodes")]}),
            not_drained("it selects more than 500 nodes"),
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
fn more_blockers_than_are_listed_are_counted_and_none_is_reported_as_gone() {
    let mut progress = progress();
    let blocker = |pod: &str| json!({"podRef": {"namespace": "shop", "name": pod}, "reason": "DisruptionBudget", "message": "b", "firstObservedTime": "2026-01-02T03:00:00Z"});
    let status = |pods: &[&str], total: usize| {
        let blockers: Vec<_> = pods.iter().map(|pod| blocker(pod)).collect();
        json!({"nodeStatuses": [{"nodeRef": {"name": "one"}, "podsEvacuating": 7, "blockers": blockers, "blockersTotal": total}]})
    };
    let (found, _) = lines(&mut progress, 1, &status(&["a/1", "a/2"], 7));
    assert_eq!(found.last().unwrap(), "node/one: 5 more pods are blocked");
    let (found, _) = lines(&mut progress, 2, &status(&["a/2", "a/3"], 7));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a/3 is blocked"), "{found:?}");
}

#[test]
fn a_node_that_timed_out_says_so() {
    let mut progress = progress();
    let status = json!({"nodeStatuses": [{"nodeRef": {"name": "one"}, "podsEvacuating": 1, "loadBalancer": {"state": "TimedOut"}}]});
    let (found, _) = lines(&mut progress, 1, &status);
    assert!(found[0].contains("no read confirmed"), "{found:?}");
}
