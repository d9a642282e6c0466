//! Which NodeMaintenances the API server takes.

use serde_json::{Value, json};

use crate::cluster::{MAINTENANCES, cluster, request, succeeded, try_create, try_patch};

fn maintenance(name: &str, fields: &Value) -> Value {
    let mut spec = json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]}});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec})
}

/// A drain plan, such as `Default 1, DaemonSet 2`, each entry perhaps with the value of the label `app` that it selects.
fn plan(entries: &str) -> Value {
    let entry = |text: &str| {
        let words: Vec<_> = text.split(' ').collect();
        let priority: i64 = words[1].parse().unwrap();
        let mut entry = json!({"podType": words[0], "podPriority": priority});
        if let Some(label) = words.get(2) {
            entry["podSelector"] = json!({"matchLabels": {"app": label}});
        }
        entry
    };
    json!({"drainPlan": entries.split(", ").map(entry).collect::<Vec<_>>()})
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
    let filled_in = json!([{"podPriority": 5, "podType": "Default"}]);
    assert_eq!(made["spec"]["drainPlan"], filled_in);
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
    // A term of a field, or of a label, with values or without.
    let requirement = |key: &str, operator: &str, values: &[&str]| {
        if values.is_empty() {
            json!({"key": key, "operator": operator})
        } else {
            json!({"key": key, "operator": operator, "values": values})
        }
    };
    let field = |key, operator, values: &[&str]| json!({"matchFields": [requirement(key, operator, values)]});
    let expression =
        |key, operator, values: &[&str]| terms(&json!([{"matchExpressions": [requirement(key, operator, values)]}]));
    let named = |names: &[&str]| field("metadata.name", "In", names);
    let numbered = |count| {
        let entries: Vec<_> = (0..count).map(|n| format!("Default {n}")).collect();
        plan(&entries.join(", "))
    };
    let selecting = |selector: Value| json!({"drainPlan": [{"podPriority": 1, "podSelector": selector}]});
    let in_without_values = terms(&json!([{"matchExpressions": [{"key": "k", "operator": "In", "values": []}]}]));
    let other_field = "matchFields[0]: Invalid value: \"spec.unschedulable\": the only field is metadata.name";
    let needs_values = "Invalid value: \"In\": operators In and NotIn need values";
    let in_order = "Default -5, Default 1000 pg, Default 1000 redis, Default 1000, Default 2147483647, \
         DaemonSet -2147483648, DaemonSet 7, Static 0";
    let type_by_default = json!({"drainPlan": [{"podPriority": 1}, {"podPriority": 1, "podType": "Default"}]});
    let without_priority = json!({"drainPlan": [{"podType": "Default"}]});
    let key_only = |operator| selecting(json!({"matchExpressions": [{"key": "k", "operator": operator}]}));
    let gate = |fields: Value| json!({"loadBalancer": fields});
    let best_effort = json!({"confirmation": "BestEffort", "confirmationTimeoutSeconds": 0});
    let ignored = gate(json!({"confirmation": "Ignore"}));
    let negative = gate(json!({"connectionsDrainSeconds": -1}));
    let too_long = gate(json!({"confirmationTimeoutSeconds": 86_401}));
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
        ("names", terms(&json!([named(&["a"]), named(&["b"])])), ""),
        (
            "two in a field",
            terms(&json!([named(&["a", "b"])])),
            "one term for each node",
        ),
        (
            "another",
            terms(&json!([field("spec.unschedulable", "In", &["a"])])),
            other_field,
        ),
        (
            "Exists of a field",
            terms(&json!([field("metadata.name", "Exists", &[])])),
            "Unsupported value",
        ),
        ("In without values", in_without_values, needs_values),
        (
            "a key that no label has",
            expression("pool name", "Exists", &[]),
            "matchExpressions[0].key",
        ),
        (
            "a key with a domain",
            expression("example.com/Pool_1.a", "Exists", &[]),
            "",
        ),
        ("Exists with values", expression("k", "Exists", &["v"]), "take none"),
        ("Exists", expression("k", "Exists", &[]), ""),
        ("Gt an integer", expression("k", "Gt", &["-12"]), ""),
        ("Gt a word", expression("k", "Gt", &["many"]), "an integer"),
        ("Lt two", expression("k", "Lt", &["1", "2"]), "one value"),
        (
            "an unknown operator",
            expression("k", "Like", &["v"]),
            "Unsupported value",
        ),
        ("the plan in order", plan(in_order), ""),
        ("priorities go down", plan("Default 2, Default 1"), "in the order"),
        ("types go back", plan("DaemonSet 1, Default 1"), "in the order"),
        ("Static before DaemonSet", plan("Static 1, DaemonSet 1"), "in the order"),
        ("the selector is later", plan("Default 1, Default 1 pg"), "in the order"),
        (
            "the same entry twice",
            plan("Default 1, Default 1"),
            "duplicate entries",
        ),
        (
            "twice with a selector",
            plan("Default 1 a, Default 1 a"),
            "duplicate entries",
        ),
        ("twice, the type by default", type_by_default, "duplicate entries"),
        ("a default entry", plan("Default 1000000000"), ""),
        ("an empty selector", selecting(json!({})), "podSelector"),
        ("an expression without values", key_only("In"), "need values"),
        ("an expression", key_only("DoesNotExist"), ""),
        ("no priority", without_priority, "podPriority"),
        ("a priority above int32", plan("Default 2147483648"), "podPriority"),
        ("32 entries", numbered(32), ""),
        ("33 entries", numbered(33), "must have at most 32 items"),
        ("a policy of the gate", gate(best_effort), ""),
        ("an unknown policy", ignored, "loadBalancer.confirmation"),
        ("a negative time", negative, "connectionsDrainSeconds"),
        ("more than a day", too_long, "confirmationTimeoutSeconds"),
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
            let what = format!("{before} to {after}");
            try_patch(&client, MAINTENANCES, &object, &patch, refused, &what).await;
        }
    }
}

#[tokio::test]
async fn what_may_change_later() {
    let client = cluster().await.client();
    let mut planned = plan("Default 1");
    planned["stage"] = json!("Drain");
    let immutable = "drainPlan is immutable";
    let gate = json!({"loadBalancer": {"confirmation": "BestEffort"}});
    let nodes = terms(&json!([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]));
    let draining = json!({"stage": "Drain"});
    let dry_run = |is_dry_run| json!({"stage": "Drain", "dryRun": is_dry_run});
    let switched_on = "dryRun cannot be switched on";
    let rows: Vec<(&str, Value, Value, &str)> = vec![
        ("another plan", planned.clone(), plan("Default 2"), immutable),
        (
            "a longer plan",
            planned.clone(),
            plan("Default 1, Default 2"),
            immutable,
        ),
        (
            "no plan any more",
            planned.clone(),
            json!({"drainPlan": null}),
            immutable,
        ),
        ("a plan where none was", json!({}), plan("Default 2"), immutable),
        ("the reason", planned.clone(), json!({"reason": "disk"}), ""),
        ("the gate", planned.clone(), gate, ""),
        ("the nodes", planned, nodes, ""),
        (
            "from a dry run to a real one",
            dry_run(true),
            json!({"dryRun": false}),
            "",
        ),
        ("to a dry run while idle", json!({}), dry_run(true), ""),
        (
            "to a dry run while draining",
            draining,
            json!({"dryRun": true}),
            switched_on,
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
    let mut kubectl = cluster().await.kubectl();
    let listed = succeeded(
        &kubectl
            .args(["get", "hgnm", "with-status", "--no-headers"])
            .output()
            .unwrap(),
    );
    let columns: Vec<_> = listed.split_whitespace().take(5).collect();
    assert_eq!(columns, ["with-status", "Idle", "2", "7", "False"]);
    request(&client, "DELETE", &path, None).await.unwrap();
}
