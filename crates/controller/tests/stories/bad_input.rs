//! Documents that are odd, large or broken: what is not ours comes through as it was, and what cannot be understood is
//! left alone and said.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::stage::{DOWN, DRAINING, FAILED, SECOND, Stage};
use super::world::{ENFORCE, GROUP, address, entries, load_balancer};
use raw_arm::RawArm;

mod raw_arm;

const LEDGER: &str = "headgate-admin-state";

/// Three Nodes, and a leader on these documents as they are.
async fn stage(documents: Vec<Value>) -> (Stage, RawArm) {
    let arm = RawArm::new(documents);
    let mut stage = Stage::set(3, &[]).await;
    stage.world.intercept = Some(arm.intercept());
    stage.lead(ENFORCE).await;
    (stage, arm)
}

/// A load balancer's document with its name, which the emulator would fill in.
fn named(name: &str, pools: &[(&str, Value)]) -> Value {
    let mut document = load_balancer(name, pools);
    document["name"] = json!(name);
    document
}

fn entries_of(documents: &mut [Value]) -> &mut Vec<Value> {
    let pool = &mut documents[0]["properties"]["backendAddressPools"][0]["properties"];
    pool["loadBalancerBackendAddresses"].as_array_mut().unwrap()
}

/// Gives the entries at these places an admin state.
fn with_state(documents: &[Value], places: &[usize], state: &str) -> Vec<Value> {
    let mut documents = documents.to_vec();
    for place in places {
        let entry = &mut entries_of(&mut documents)[*place];
        if entry["properties"].is_null() {
            entry["properties"] = json!({});
        }
        entry["properties"]["adminState"] = json!(state);
    }
    documents
}

/// Compares as text, which is ordered by names.
fn assert_same(found: &[Value], expected: &[Value]) {
    let text = |documents: &[Value]| serde_json::to_string_pretty(documents).unwrap();
    let (found, expected) = (text(found), text(expected));
    let different = found.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(found == expected, "{different:?}");
}

/// Taints the second Node and takes the taint away: what becomes of the documents.
async fn there_and_back(documents: Vec<Value>, places: &[usize]) {
    let (stage, arm) = stage(documents.clone()).await;
    stage.taint(2, &[DRAINING]);
    sleep(30 * SECOND).await;
    assert_same(&arm.load_balancers(), &with_state(&documents, places, "Down"));
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    stage.taint(2, &[]);
    sleep(30 * SECOND).await;
    assert_same(&arm.load_balancers(), &with_state(&documents, places, "None"));
    assert_eq!(arm.puts().len(), 2);
    assert!(stage.notes(FAILED, "node-2").await.is_empty());
    sleep(400 * SECOND).await;
    assert_eq!(arm.puts().len(), 2);
    assert_eq!(stage.world.ledger().await, json!({"pools": {}}));
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_at_every_level_come_through() {
    let unknown =
        json!({"a": [1, null, {"b": -0.25}], "large": u64::MAX, "small": i64::MIN, "text": "ü\u{0}\"", "": {}});
    let mut document = named("kubernetes", &[("kubernetes", entries(1..=3, false))]);
    document["futureOfLoadBalancer"] = unknown.clone();
    document["properties"]["futureOfProperties"] = unknown.clone();
    let pool = &mut document["properties"]["backendAddressPools"][0];
    pool["futureOfPool"] = unknown.clone();
    pool["id"] = json!(format!(
        "{GROUP}/providers/microsoft.network/LOADBALANCERS/kubernetes/backendAddressPools/kubernetes"
    ));
    pool["properties"]["futureOfPoolsProperties"] = unknown.clone();
    pool["properties"]["syncMode"] = json!(null);
    pool["properties"]["tunnelInterfaces"] = json!([{"port": 15000, "future": unknown.clone()}]);
    for entry in pool["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap()
    {
        entry["future"] = unknown.clone();
        entry["id"] = json!("anything");
        entry["properties"]["future"] = unknown.clone();
        entry["properties"]["subnet"] = json!({"id": "subnet", "future": unknown.clone()});
        entry["properties"]["virtualNetwork"] = json!(null);
    }
    there_and_back(vec![document], &[1]).await;
}

#[tokio::test(start_paused = true)]
async fn entries_without_properties_names_or_addresses_and_double_ones() {
    let own = json!([
        {"name": "node-1", "properties": null},
        {"name": "node-2", "properties": null},
        {"name": "node-2", "properties": {"ipAddress": address(2, false), "more": 1}},
        {"name": "NODE-2"},
        {"properties": {"ipAddress": address(2, false)}},
        {"name": "node-2", "properties": {"ipAddress": address(1, false)}},
        {"name": "node-2", "properties": {"ipAddress": "nonsense"}},
        {"name": "node-2", "properties": {"ipAddress": null, "adminState": null}},
        {"name": "node-3", "properties": {"ipAddress": "10.9.9.9"}},
        {"properties": {}}, {}, null, "text", 7, [],
        {"name": 5, "properties": {"ipAddress": 5}},
        {"name": "node-2", "properties": "text"},
        {"name": "other", "properties": {"ipAddress": address(2, false), "adminState": "Drain"}},
        {"name": "another", "properties": {"ipAddress": address(2, false), "adminState": 3}},
        {"name": "up", "properties": {"ipAddress": address(2, false), "adminState": "Up"}},
    ]);
    there_and_back(vec![named("kubernetes", &[("kubernetes", own)])], &[1, 2, 3, 4, 6, 7]).await;
}

#[tokio::test(start_paused = true)]
async fn five_thousand_entries() {
    let mut document = named("kubernetes", &[("kubernetes", entries(1..=5000, false))]);
    let pool = &mut document["properties"]["backendAddressPools"][0]["properties"];
    for (number, entry) in pool["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        entry["properties"]["future"] = json!({"number": number});
    }
    there_and_back(vec![document], &[1]).await;
}

#[tokio::test(start_paused = true)]
async fn load_balancers_without_this_or_that() {
    let good = named("kubernetes", &[("kubernetes", entries(1..=3, false))]);
    let id = |name: &str| format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}");
    let twin = |properties: Value| json!({"id": id("kubernetes-internal"), "name": "kubernetes-internal", "properties": properties});
    let pools = json!([{"name": "kubernetes", "properties": {"loadBalancerBackendAddresses": entries(1..=3, false)}}]);
    let rule = json!([{"properties": {"backendAddressPool": {"id": format!("{}/backendAddressPools/kubernetes", id("kubernetes-internal"))}}}]);
    for odd in [
        json!(null),
        json!({}),
        json!({"backendAddressPools": null, "loadBalancingRules": null, "probes": null}),
        json!({"backendAddressPools": pools, "loadBalancingRules": null}),
        json!({"backendAddressPools": pools, "loadBalancingRules": [null, {}, {"properties": null}, {"properties": {"backendAddressPool": null}},
            {"properties": {"backendAddressPool": {"id": "nonsense"}, "probe": {"id": 5}}}]}),
        json!({"backendAddressPools": [null, {}, {"name": ""}, {"name": "kubernetes"}, {"name": "a/b"}], "loadBalancingRules": rule}),
        json!({"backendAddressPools": [{"name": "kubernetes", "properties": null}], "loadBalancingRules": rule}),
        json!({"backendAddressPools": [{"name": "kubernetes", "properties": {"loadBalancerBackendAddresses": null}}], "loadBalancingRules": rule}),
        json!({"backendAddressPools": [{"name": "kubernetes", "properties": {"loadBalancerBackendAddresses": {}}}], "loadBalancingRules": rule}),
        json!({"backendAddressPools": {}, "loadBalancingRules": {}}),
        json!("text"),
    ] {
        there_and_back(vec![good.clone(), twin(odd)], &[1]).await;
    }
}

/// The ledger as somebody has written it.
async fn write_ledger(stage: &Stage, text: &str) {
    let data = BTreeMap::from([("ledger.json".to_owned(), text.to_owned())]);
    let mut object = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    object.metadata.name = Some(LEDGER.to_owned());
    let api: Api<ConfigMap> = Api::namespaced(stage.world.client.clone(), "kube-system");
    api.create(&PostParams::default(), &object).await.unwrap();
}

fn one_pool() -> Vec<Value> {
    vec![load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])]
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_none_stops_everything_and_says_what_to_do() {
    for text in [
        "",
        "{",
        "7",
        "[]",
        "[{}]",
        r#"{"pools": null}"#,
        r#"{"pools": {"p": {"k": "dwon 2026-11-21T10:00:00Z"}}}"#,
        r#"{"pools": {"p": {"k": "down yesterday"}}}"#,
    ] {
        let mut stage = Stage::set(3, &one_pool()).await;
        write_ledger(&stage, text).await;
        stage.taint(2, &[DRAINING]);
        stage.begin(ENFORCE).await;
        sleep(120 * SECOND).await;
        let failures = stage.leader().failures.lock().unwrap().clone();
        assert!(!failures.is_empty(), "{text}");
        for part in [
            "kube-system/headgate-admin-state",
            "mend ledger.json, or delete the ConfigMap",
        ] {
            assert!(failures[0].contains(part), "{failures:?}");
        }
        let notes = stage.notes(FAILED, "node-2").await;
        assert!(!notes.is_empty() && notes.len() == failures.len(), "{notes:?}");
        assert!(notes[0].contains("mend ledger.json"), "{notes:?}");
        assert!(stage.notes(FAILED, "node-1").await.is_empty());
        // Nothing is written over it, nor to ARM: nobody knows whose a Down is.
        assert!(stage.puts().is_empty());
        let kept: ConfigMap = stage.fake.peek("kube-system", LEDGER).unwrap();
        assert_eq!(kept.data.unwrap()["ledger.json"], text);
        // As soon as somebody has done what was said, all goes on.
        stage.fake.delete::<ConfigMap>("kube-system", LEDGER);
        let took = stage.until_down(&["node-2"]).await;
        assert!(took < 100 * SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_arm_that_cannot_be_come_to_is_told_on_the_nodes_that_wait_for_it() {
    let mut stage = Stage::set(3, &one_pool()).await;
    stage.world.out_of_reach = Some("ARM cannot be asked: the Secret kube-system/azure is not there");
    stage.taint(2, &[DRAINING]);
    stage.begin(ENFORCE).await;
    sleep(120 * SECOND).await;
    let failures = stage.leader().failures.lock().unwrap().len();
    let notes = stage.notes(FAILED, "node-2").await;
    assert!(failures > 0 && notes.len() == failures, "{failures}: {notes:?}");
    assert!(
        notes[0].contains("the Secret kube-system/azure is not there"),
        "{notes:?}"
    );
    assert!(stage.notes(FAILED, "node-1").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_of_a_later_version_is_one() {
    let mut stage = Stage::set(3, &one_pool()).await;
    write_ledger(&stage, r#"{"version": 7, "pools": {}}"#).await;
    stage.lead(ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_config_map_without_the_ledger_is_an_empty_one() {
    let mut stage = Stage::set(3, &one_pool()).await;
    write_ledger(&stage, "").await;
    stage.fake.change::<ConfigMap>("kube-system", LEDGER, |object| {
        object["data"] = json!({"note": "somebody's"});
    });
    stage.lead(ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let kept: ConfigMap = stage.fake.peek("kube-system", LEDGER).unwrap();
    assert_eq!(kept.data.unwrap()["note"], "somebody's");
}

#[tokio::test(start_paused = true)]
async fn a_ledger_without_room_is_told_and_gets_room_as_its_lines_grow_old() {
    let mut stage = Stage::set(3, &one_pool()).await;
    // Of a pool that is gone.
    let lines: BTreeMap<_, _> = (0..1_000)
        .map(|number| (format!("{number:0>900}"), "down 2026-11-21T10:00:00Z"))
        .collect();
    let mut text = json!({"pools": {"/gone": lines}}).to_string();
    text.truncate(text.len() - 3);
    let pad = 999_990 - text.len() - 40;
    for part in [",\"", &"x".repeat(pad), "\":\"down 2026-11-21T10:00:00Z\"}}}"] {
        text.push_str(part);
    }
    assert!((999_900..1_000_000).contains(&text.len()), "{}", text.len());
    write_ledger(&stage, &text).await;
    stage.lead(ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    sleep(100 * SECOND).await;
    assert!(stage.puts().is_empty(), "what cannot be put on record is not done");
    let notes = stage.notes(FAILED, "node-2").await;
    assert!(
        notes.len() == 1 && notes[0].contains("could not be put on record") && notes[0].contains("1000000"),
        "{notes:?}"
    );
    sleep(260 * SECOND).await;
    stage.settle(&["node-2"]).await;
    assert!(stage.world.ledger().await.to_string().len() < 1000);
}
