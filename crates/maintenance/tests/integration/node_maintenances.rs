//! Which NodeMaintenances the API server takes.

use serde_json::{Value, json};

use crate::cluster::{MAINTENANCES, cluster, request, try_create, try_patch};

fn maintenance(name: &str, fields: &Value) -> Value {
    let mut spec = json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]}});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec})
}

fn entry(kind: &str, priority: i64, label: Option<&str>) -> Value {
    match label {
        Some(label) => {
            json!({"podType": kind, "podPriority": priority, "podSelector": {"matchLabels": {"app": label}}})
        }
        None => json!({"podType": kind, "podPriority": priority}),
    }
}

fn terms(terms: &Value) -> Value {
    json!({"nodeSelector": {"nodeSelectorTerms": terms}})
}

#[tokio::test]
async fn the_defaults_are_filled_in() {
    let client = cluster().await.client();
    let object = maintenance("defaults", &json!({"drainPlan": [{"podPriority": 5}]}));
    let made = request(&client, "POST", MAINTENANCES, Some(&object)).await.unwrap();
    assert_eq!(made["spec"]["stage"], "Idle");
    assert_eq!(
        made["spec"]["drainPlan"],
        json!([{"podPriority": 5, "podType": "Default"}])
    );
    assert_eq!(
        made["spec"]["loadBalancer"],
        json!({"confirmation": "Required", "confirmationTimeoutSeconds": 600, "connectionsDrainSeconds": 30, "connections": "Wait", "connectionsTimeoutSeconds": 300})
    );
    assert_eq!(made["spec"]["dryRun"], false);
    assert_eq!(made["status"], Value::Null);
}

#[tokio::test]
async fn objects_are_taken_or_refused() {
    let client = cluster().await.client();
    let named = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    let expression = |operator: &str, values: &Value| {
        terms(&json!([{"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}]))
    };
    let many: Vec<_> = (0..33).map(|n| entry("Default", n, None)).collect();
    let most: Vec<_> = (0..32).map(|n| entry("Default", n, None)).collect();
    let rows: Vec<(&str, Value, &str)> = vec![
        ("only a selector", json!({}), ""),
        ("each stage at first: Cordon", json!({"stage": "Cordon"}), ""),
        ("Drain", json!({"stage": "Drain"}), ""),
        ("Complete", json!({"stage": "Complete"}), ""),
        ("an unknown stage", json!({"stage": "Undrain"}), "spec.stage"),
        ("a deadline", json!({"deadline": "2099-01-02T03:04:05+01:00"}), ""),
        ("a deadline in words", json!({"deadline": "soon"}), "spec.deadline"),
        ("a deadline that is a list", json!({"deadline": []}), "spec.deadline"),
        ("no selector", json!({"nodeSelector": null}), "spec.nodeSelector"),
        ("no terms", terms(&json!([])), "nodeSelectorTerms"),
        ("names", terms(&json!([named("a"), named("b")])), ""),
        (
            "two names in a field",
            terms(&json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}])),
            "one term for each node",
        ),
        (
            "another field",
            terms(&json!([{"matchFields": [{"key": "spec.unschedulable", "operator": "In", "values": ["a"]}]}])),
            "matchFields[0]: Invalid value: \"spec.unschedulable\": the only field is metadata.name",
        ),
        (
            "Exists of a field",
            terms(&json!([{"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}])),
            "Unsupported value",
        ),
        (
            "In without values",
            expression("In", &json!([])),
            "Invalid value: \"In\": operators In and NotIn need values",
        ),
        (
            "a key that no label has",
            terms(&json!([{"matchExpressions": [{"key": "pool name", "operator": "Exists"}]}])),
            "matchExpressions[0].key",
        ),
        (
            "a key with a domain",
            terms(&json!([{"matchExpressions": [{"key": "example.com/Pool_1.a", "operator": "Exists"}]}])),
            "",
        ),
        ("Exists with values", expression("Exists", &json!(["v"])), "take none"),
        (
            "Exists",
            terms(&json!([{"matchExpressions": [{"key": "k", "operator": "Exists"}]}])),
            "",
        ),
        ("Gt an integer", expression("Gt", &json!(["-12"])), ""),
        ("Gt a word", expression("Gt", &json!(["many"])), "an integer"),
        ("Lt two", expression("Lt", &json!(["1", "2"])), "one value"),
        (
            "an unknown operator",
            expression("Like", &json!(["v"])),
            "Unsupported value",
        ),
        (
            "the plan in order",
            json!({"drainPlan": [
            entry("Default", -5, None), entry("Default", 1000, Some("pg")), entry("Default", 1000, Some("redis")), entry("Default", 1000, None),
            entry("Default", 2_147_483_647, None), entry("DaemonSet", -2_147_483_648, None), entry("DaemonSet", 7, None), entry("Static", 0, None)]}),
            "",
        ),
        (
            "priorities go down",
            json!({"drainPlan": [entry("Default", 2, None), entry("Default", 1, None)]}),
            "in the order",
        ),
        (
            "types go back",
            json!({"drainPlan": [entry("DaemonSet", 1, None), entry("Default", 1, None)]}),
            "in the order",
        ),
        (
            "Static before DaemonSet",
            json!({"drainPlan": [entry("Static", 1, None), entry("DaemonSet", 1, None)]}),
            "in the order",
        ),
        (
            "the selector is later",
            json!({"drainPlan": [entry("Default", 1, None), entry("Default", 1, Some("pg"))]}),
            "in the order",
        ),
        (
            "the same entry twice",
            json!({"drainPlan": [entry("Default", 1, None), entry("Default", 1, None)]}),
            "duplicate entries",
        ),
        (
            "twice with a selector",
            json!({"drainPlan": [entry("Default", 1, Some("a")), entry("Default", 1, Some("a"))]}),
            "duplicate entries",
        ),
        (
            "twice, the type by default",
            json!({"drainPlan": [{"podPriority": 1}, entry("Default", 1, None)]}),
            "duplicate entries",
        ),
        (
            "a default entry",
            json!({"drainPlan": [entry("Default", 1_000_000_000, None)]}),
            "",
        ),
        (
            "an empty selector",
            json!({"drainPlan": [{"podPriority": 1, "podSelector": {}}]}),
            "podSelector",
        ),
        (
            "an expression without values",
            json!({"drainPlan": [{"podPriority": 1, "podSelector": {"matchExpressions": [{"key": "k", "operator": "In"}]}}]}),
            "need values",
        ),
        (
            "an expression",
            json!({"drainPlan": [{"podPriority": 1, "podSelector": {"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}]}}]}),
            "",
        ),
        (
            "no priority",
            json!({"drainPlan": [{"podType": "Default"}]}),
            "podPriority",
        ),
        (
            "a priority above int32",
            json!({"drainPlan": [entry("Default", 2_147_483_648, None)]}),
            "podPriority",
        ),
        ("32 entries", json!({"drainPlan": most}), ""),
        ("33 entries", json!({"drainPlan": many}), "must have at most 32 items"),
        (
            "a policy of the gate",
            json!({"loadBalancer": {"confirmation": "BestEffort", "confirmationTimeoutSeconds": 0}}),
            "",
        ),
        (
            "an unknown policy",
            json!({"loadBalancer": {"confirmation": "Ignore"}}),
            "loadBalancer.confirmation",
        ),
        (
            "a negative time",
            json!({"loadBalancer": {"connectionsDrainSeconds": -1}}),
            "connectionsDrainSeconds",
        ),
        (
            "more than a day",
            json!({"loadBalancer": {"confirmationTimeoutSeconds": 86_401}}),
            "confirmationTimeoutSeconds",
        ),
        ("a long reason", json!({"reason": "r".repeat(1025)}), "reason"),
    ];
    for (number, (what, fields, refused)) in rows.iter().enumerate() {
        let mut object = maintenance(&format!("row-{number}"), fields);
        if fields["nodeSelector"].is_null() && fields.get("nodeSelector").is_some() {
            object["spec"].as_object_mut().unwrap().remove("nodeSelector");
        }
        try_create(&client, MAINTENANCES, &object, refused, what).await;
    }
}

#[tokio::test]
async fn a_stage_is_never_left_backwards() {
    let client = cluster().await.client();
    let stages = ["Idle", "Cordon", "Drain", "Complete"];
    for (from, before) in stages.iter().enumerate() {
        for (to, after) in stages.iter().enumerate() {
            let object = maintenance(&format!("from-{from}-to-{to}"), &json!({"stage": before}));
            let refused = if to < from { "cannot be left backwards" } else { "" };
            let patch = json!({"spec": {"stage": after}});
            try_patch(
                &client,
                MAINTENANCES,
                &object,
                &patch,
                refused,
                &format!("{before} to {after}"),
            )
            .await;
        }
    }
}

#[tokio::test]
async fn what_may_change_later() {
    let client = cluster().await.client();
    let plan = json!({"stage": "Drain", "drainPlan": [entry("Default", 1, None)]});
    let rows: Vec<(&str, Value, Value, &str)> = vec![
        (
            "another plan",
            plan.clone(),
            json!({"drainPlan": [entry("Default", 2, None)]}),
            "drainPlan is immutable",
        ),
        (
            "a longer plan",
            plan.clone(),
            json!({"drainPlan": [entry("Default", 1, None), entry("Default", 2, None)]}),
            "drainPlan is immutable",
        ),
        (
            "no plan any more",
            plan.clone(),
            json!({"drainPlan": null}),
            "drainPlan is immutable",
        ),
        (
            "a plan where none was",
            json!({}),
            json!({"drainPlan": [entry("Default", 2, None)]}),
            "drainPlan is immutable",
        ),
        ("the reason", plan.clone(), json!({"reason": "disk"}), ""),
        (
            "the gate",
            plan.clone(),
            json!({"loadBalancer": {"confirmation": "BestEffort"}}),
            "",
        ),
        (
            "the nodes",
            plan,
            terms(&json!([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}])),
            "",
        ),
        (
            "from a dry run to a real one",
            json!({"stage": "Drain", "dryRun": true}),
            json!({"dryRun": false}),
            "",
        ),
        (
            "to a dry run while idle",
            json!({}),
            json!({"dryRun": true, "stage": "Drain"}),
            "",
        ),
        (
            "to a dry run while draining",
            json!({"stage": "Drain"}),
            json!({"dryRun": true}),
            "dryRun cannot be switched on",
        ),
    ];
    for (number, (what, before, after, refused)) in rows.iter().enumerate() {
        let object = maintenance(&format!("change-{number}"), before);
        try_patch(&client, MAINTENANCES, &object, &json!({"spec": after}), refused, what).await;
    }
}

#[tokio::test]
async fn the_status_is_a_subresource() {
    let client = cluster().await.client();
    let mut object = maintenance("with-status", &json!({}));
    object["status"] = json!({"selectedNodes": 5});
    let made = request(&client, "POST", MAINTENANCES, Some(&object)).await.unwrap();
    assert_eq!(made["status"], Value::Null);
    let status = json!({"status": {"selectedNodes": 2, "podsLeft": 7, "conditions": [
        {"type": "Drained", "status": "False", "reason": "PodsLeft", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let path = format!("{MAINTENANCES}/with-status");
    let kept = request(&client, "PATCH", &path, Some(&status)).await.unwrap();
    assert_eq!(kept["status"], Value::Null, "the object itself does not take a status");
    let set = request(&client, "PATCH", &format!("{path}/status"), Some(&status))
        .await
        .unwrap();
    assert_eq!(set["status"]["podsLeft"], 7);
    let listed = cluster()
        .await
        .kubectl()
        .args(["get", "hgnm", "with-status", "--no-headers"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let columns: Vec<_> = listed.split_whitespace().take(5).collect();
    assert_eq!(columns, ["with-status", "Idle", "2", "7", "False"]);
    request(&client, "DELETE", &path, None).await.unwrap();
}
