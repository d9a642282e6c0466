//! Which Evacuations the API server takes.

use serde_json::{Value, json};

use crate::cluster::{EVACUATIONS, cluster, judge, request, try_create, try_patch};

const UID: &str = "f5823a89-e03f-4752-b013-445643b8c7a0";

fn evacuation(pod: &str, fields: &Value) -> Value {
    let prefix: String = pod.chars().take(150).collect();
    let mut spec = json!({"podRef": {"name": pod, "uid": UID}});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "headgate.dev/v1alpha1", "kind": "Evacuation",
        "metadata": {"name": format!("{UID}-{prefix}")}, "spec": spec,
    })
}

fn evacuator(class: &str, priority: i64, role: Option<&str>) -> Value {
    match role {
        Some(role) => json!({"evacuatorClass": class, "priority": priority, "role": role}),
        None => json!({"evacuatorClass": class, "priority": priority}),
    }
}

#[tokio::test]
async fn objects_are_taken_or_refused() {
    let client = cluster().await.client();
    let controller = || evacuator("deployment.apps.k8s.io", 10_000, Some("controller"));
    let hundred: Vec<_> = (0..100).map(|n| evacuator(&format!("e{n}.example"), n, None)).collect();
    let more: Vec<_> = (0..101).map(|n| evacuator(&format!("e{n}.example"), n, None)).collect();
    let rows: Vec<(&str, Value, &str)> = vec![
        ("only a pod", json!({}), ""),
        ("the controller", json!({"evacuators": [controller()]}), ""),
        (
            "three",
            json!({"evacuators": [controller(), evacuator("a.example", 100_000, None), evacuator("b.example", 0, Some("backup"))]}),
            "",
        ),
        ("none", json!({"evacuators": []}), ""),
        (
            "a path",
            json!({"evacuators": [evacuator("headgate.dev/daemonset", 10_000, Some("controller"))]}),
            "",
        ),
        (
            "two paths",
            json!({"evacuators": [evacuator("headgate.dev/daemonset/x", 1, None)]}),
            "evacuatorClass",
        ),
        ("100", json!({"evacuators": hundred}), ""),
        ("101", json!({"evacuators": more}), "must have at most 100 items"),
        (
            "a class twice",
            json!({"evacuators": [evacuator("a.example", 1, None), evacuator("a.example", 2, None)]}),
            "Duplicate value",
        ),
        (
            "10000 without the role",
            json!({"evacuators": [evacuator("a.example", 10_000, None)]}),
            "priority 10000",
        ),
        (
            "10000 in another role",
            json!({"evacuators": [evacuator("a.example", 10_000, Some("x"))]}),
            "priority 10000",
        ),
        (
            "the role at 9999",
            json!({"evacuators": [evacuator("a.example", 9_999, Some("controller"))]}),
            "priority 10000",
        ),
        (
            "two controllers",
            json!({"evacuators": [controller(), evacuator("a.example", 10_000, Some("controller"))]}),
            "at most one",
        ),
        (
            "a negative priority",
            json!({"evacuators": [evacuator("a.example", -1, None)]}),
            "priority",
        ),
        (
            "a priority too high",
            json!({"evacuators": [evacuator("a.example", 100_001, None)]}),
            "priority",
        ),
        (
            "a class in capitals",
            json!({"evacuators": [evacuator("A.example", 1, None)]}),
            "evacuatorClass",
        ),
        (
            "a class of 55",
            json!({"evacuators": [evacuator(&"a".repeat(55), 1, None)]}),
            "evacuatorClass",
        ),
        ("a deadline of 600", json!({"progressDeadlineSeconds": 600}), ""),
        (
            "of 599",
            json!({"progressDeadlineSeconds": 599}),
            "progressDeadlineSeconds",
        ),
        ("of 21600", json!({"progressDeadlineSeconds": 21_600}), ""),
        (
            "of 21601",
            json!({"progressDeadlineSeconds": 21_601}),
            "progressDeadlineSeconds",
        ),
        ("no uid", json!({"podRef": {"name": "web"}}), "podRef.uid"),
    ];
    for (number, (what, fields, refused)) in rows.iter().enumerate() {
        let object = evacuation(&format!("web-{number}"), fields);
        try_create(&client, EVACUATIONS, &object, refused, what).await;
    }
}

#[tokio::test]
async fn the_name_is_the_pods_uid_and_name() {
    let client = cluster().await.client();
    let long = "p".repeat(151);
    // Cut after 150 characters, it would end with what no name may end with.
    let dotted = format!("{}--0", "p".repeat(148));
    let rows = [
        ("pod-a", format!("{UID}-pod-a"), true),
        ("pod-a", UID.to_owned(), false),
        ("pod-a", format!("{UID}-pod"), false),
        ("pod-a", format!("{UID}-pod-ab"), false),
        (&long, format!("{UID}-{}", "p".repeat(150)), true),
        (&long, format!("{UID}-{long}"), false),
        (&dotted, format!("{UID}-{}", "p".repeat(148)), true),
        (&dotted, format!("{UID}-{}", "p".repeat(147)), false),
    ];
    for (pod, given, is_accepted) in rows {
        let mut object = evacuation(pod, &json!({}));
        object["metadata"]["name"] = json!(given);
        let message = format!("metadata.name: Invalid value: {given:?}: the name has to be");
        let refused = if is_accepted { "" } else { &message };
        try_create(&client, EVACUATIONS, &object, refused, &given).await;
    }
    let mut generated = evacuation("pod-b", &json!({}));
    generated["metadata"]["generateName"] = json!("x-");
    try_create(
        &client,
        EVACUATIONS,
        &generated,
        "generateName is not allowed",
        "generateName",
    )
    .await;
}

#[tokio::test]
async fn the_spec_is_filled_in_once() {
    let client = cluster().await.client();
    let list = json!([evacuator("a.example", 1, None)]);
    let rows: Vec<(&str, Value, Value, &str)> = vec![
        ("evacuators are filled in", json!({}), json!({"evacuators": list}), ""),
        (
            "changed",
            json!({"evacuators": list}),
            json!({"evacuators": [evacuator("a.example", 2, None)]}),
            "evacuators is immutable",
        ),
        (
            "removed",
            json!({"evacuators": list}),
            json!({"evacuators": null}),
            "evacuators is immutable",
        ),
        (
            "another pod",
            json!({}),
            json!({"podRef": {"name": "other"}}),
            "podRef is immutable",
        ),
        (
            "another deadline",
            json!({}),
            json!({"progressDeadlineSeconds": 900}),
            "progressDeadlineSeconds is immutable",
        ),
    ];
    for (number, (what, before, after, refused)) in rows.iter().enumerate() {
        let object = evacuation(&format!("filled-{number}"), before);
        try_patch(&client, EVACUATIONS, &object, &json!({"spec": after}), refused, what).await;
    }
}

#[tokio::test]
async fn the_counter_of_failures_never_decreases() {
    let client = cluster().await.client();
    let object = evacuation("counted", &json!({}));
    let made = request(&client, "POST", EVACUATIONS, Some(&object)).await.unwrap();
    assert_eq!(made["spec"]["progressDeadlineSeconds"], 1800);
    let path = format!("{EVACUATIONS}/{UID}-counted");
    for (what, status, refused) in [
        ("up", json!({"failedEvictionCounter": 2}), ""),
        (
            "the same",
            json!({"failedEvictionCounter": 2, "evacuationCancellationPolicy": "Forbid"}),
            "",
        ),
        ("down", json!({"failedEvictionCounter": 1}), "can only increase"),
        (
            "an unknown policy",
            json!({"evacuationCancellationPolicy": "Maybe"}),
            "evacuationCancellationPolicy",
        ),
        (
            "no time",
            json!({"evacuationProgressTimestamp": "soon"}),
            "evacuationProgressTimestamp",
        ),
        (
            "a list in place of a time",
            json!({"evacuationProgressTimestamp": []}),
            "evacuationProgressTimestamp",
        ),
    ] {
        let patch = json!({"status": status});
        let answer = request(&client, "PATCH", &format!("{path}/status"), Some(&patch)).await;
        judge(answer.as_ref(), refused, what);
    }
    request(&client, "DELETE", &path, None).await.unwrap();
}
