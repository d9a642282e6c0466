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

/// Evacuators, such as `a.example 5, b.example 10000 controller`.
fn evacuators(list: &str) -> Value {
    let evacuator = |text: &str| {
        let words: Vec<_> = text.split(' ').collect();
        let priority: i64 = words[1].parse().unwrap();
        let mut evacuator = json!({"evacuatorClass": words[0], "priority": priority});
        if let Some(role) = words.get(2) {
            evacuator["role"] = json!(role);
        }
        evacuator
    };
    json!({"evacuators": list.split(", ").map(evacuator).collect::<Vec<_>>()})
}

#[tokio::test]
async fn objects_are_taken_or_refused() {
    let client = cluster().await.client();
    let controller = "deployment.apps.k8s.io 10000 controller";
    let three = format!("{controller}, a.example 100000, b.example 0 backup");
    let two_controllers = format!("{controller}, a.example 10000 controller");
    let numbered = |count| {
        let all: Vec<_> = (0..count).map(|n| format!("e{n}.example {n}")).collect();
        evacuators(&all.join(", "))
    };
    let long = format!("{} 1", "a".repeat(55));
    let deadline = |seconds| json!({"progressDeadlineSeconds": seconds});
    let rows: Vec<(&str, Value, &str)> = vec![
        ("only a pod", json!({}), ""),
        ("the controller", evacuators(controller), ""),
        ("three", evacuators(&three), ""),
        ("none", json!({"evacuators": []}), ""),
        ("a path", evacuators("headgate.dev/daemonset 10000 controller"), ""),
        ("two paths", evacuators("headgate.dev/daemonset/x 1"), "evacuatorClass"),
        ("100", numbered(100), ""),
        ("101", numbered(101), "must have at most 100 items"),
        (
            "a class twice",
            evacuators("a.example 1, a.example 2"),
            "Duplicate value",
        ),
        (
            "10000 without the role",
            evacuators("a.example 10000"),
            "priority 10000",
        ),
        (
            "10000 in another role",
            evacuators("a.example 10000 x"),
            "priority 10000",
        ),
        (
            "the role at 9999",
            evacuators("a.example 9999 controller"),
            "priority 10000",
        ),
        ("two controllers", evacuators(&two_controllers), "at most one"),
        ("a negative priority", evacuators("a.example -1"), "priority"),
        ("a priority too high", evacuators("a.example 100001"), "priority"),
        ("a class in capitals", evacuators("A.example 1"), "evacuatorClass"),
        ("a class of 55", evacuators(&long), "evacuatorClass"),
        ("a deadline of 600", deadline(600), ""),
        ("of 599", deadline(599), "progressDeadlineSeconds"),
        ("of 21600", deadline(21_600), ""),
        ("of 21601", deadline(21_601), "progressDeadlineSeconds"),
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
    let refused = "generateName is not allowed";
    try_create(&client, EVACUATIONS, &generated, refused, "generateName").await;
}

#[tokio::test]
async fn the_spec_is_filled_in_once() {
    let client = cluster().await.client();
    let list = evacuators("a.example 1");
    let immutable = "evacuators is immutable";
    let (other, deadline) = (
        json!({"podRef": {"name": "other"}}),
        json!({"progressDeadlineSeconds": 900}),
    );
    let rows: Vec<(&str, Value, Value, &str)> = vec![
        ("evacuators are filled in", json!({}), list.clone(), ""),
        ("changed", list.clone(), evacuators("a.example 2"), immutable),
        ("removed", list, json!({"evacuators": null}), immutable),
        ("another pod", json!({}), other, "podRef is immutable"),
        (
            "another deadline",
            json!({}),
            deadline,
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
    let (counter, policy) = ("failedEvictionCounter", "evacuationCancellationPolicy");
    let progress = "evacuationProgressTimestamp";
    for (what, status, refused) in [
        ("up", json!({counter: 2}), ""),
        ("the same", json!({counter: 2, policy: "Forbid"}), ""),
        ("down", json!({counter: 1}), "can only increase"),
        ("an unknown policy", json!({policy: "Maybe"}), policy),
        ("no time", json!({progress: "soon"}), progress),
        ("a list in place of a time", json!({progress: []}), progress),
    ] {
        let patch = json!({"status": status});
        let answer = request(&client, "PATCH", &format!("{path}/status"), Some(&patch)).await;
        judge(answer.as_ref(), refused, what);
    }
    request(&client, "DELETE", &path, None).await.unwrap();
}
