//! Documents that are unusual, large or malformed: foreign fields are preserved, and what cannot be parsed is left alone and
//! reported.

use headgate_test_kubernetes::assert_contains;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use raw_arm::RawArm;

use super::rows::cluster::{DOWN, DRAINING, FAILED, SECOND, TestCluster};
use super::world::{ENFORCE, GROUP, address, entries, load_balancer, one_pool};

mod raw_arm;

const LEDGER: &str = "headgate-admin-state";
const LEDGER_REJECTED: &str = "LedgerInvalid";

/// Three Nodes, and a leader with an ARM that has these documents.
async fn cluster_with(documents: Vec<Value>) -> (TestCluster, RawArm) {
    let arm = RawArm::new(documents);
    let cluster = TestCluster::configured(3, &[], |world| world.intercept = Some(arm.intercept())).await;
    (cluster, arm)
}

/// A load balancer with the name field, which the emulator would add.
fn named(name: &str, pools: &[(&str, Value)]) -> Value {
    let mut document = load_balancer(name, pools);
    document["name"] = json!(name);
    document
}

fn entries_of(documents: &mut [Value]) -> &mut Vec<Value> {
    let pool = &mut documents[0]["properties"]["backendAddressPools"][0]["properties"];
    pool["loadBalancerBackendAddresses"].as_array_mut().unwrap()
}

/// The documents with an admin state at these indexes.
fn with_state(documents: &[Value], indexes: &[usize], state: &str) -> Vec<Value> {
    let mut documents = documents.to_vec();
    for index in indexes {
        let entry = &mut entries_of(&mut documents)[*index];
        if entry["properties"].is_null() {
            entry["properties"] = json!({});
        }
        entry["properties"]["adminState"] = json!(state);
    }
    documents
}

/// Compares the documents as text and shows the first difference.
fn assert_same(found: &[Value], expected: &[Value]) {
    let text = |documents: &[Value]| serde_json::to_string_pretty(documents).unwrap();
    let (found, expected) = (text(found), text(expected));
    let different = found.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(found == expected, "{different:?}");
}

/// Taints the second Node, removes the taint, and compares the documents: only the entries at these indexes change. `is_out` says whether
/// they are all of the Node's.
async fn taint_and_untaint(documents: Vec<Value>, indexes: &[usize], is_out: bool) {
    let (cluster, arm) = cluster_with(documents.clone()).await;
    cluster.taint(2, &[DRAINING]);
    sleep(30 * SECOND).await;
    assert_same(&arm.load_balancers(), &with_state(&documents, indexes, "Down"));
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), usize::from(is_out));
    cluster.taint(2, &[]);
    sleep(30 * SECOND).await;
    assert_same(&arm.load_balancers(), &with_state(&documents, indexes, "None"));
    assert_eq!(arm.puts().len(), 2);
    assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    sleep(400 * SECOND).await;
    assert_eq!(arm.puts().len(), 2);
    assert_eq!(cluster.ledger().await["entries"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_at_every_level_are_preserved() {
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
    taint_and_untaint(vec![document], &[1], true).await;
}

#[tokio::test(start_paused = true)]
async fn entries_without_properties_names_or_addresses_and_duplicates() {
    let entries = json!([
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
    ]);
    let others = json!([
        {"name": "node-2", "properties": "text"},
        {"name": "other", "properties": {"ipAddress": address(2, false), "adminState": "Drain"}},
        {"name": "another", "properties": {"ipAddress": address(2, false), "adminState": 3}},
        {"name": "up", "properties": {"ipAddress": address(2, false), "adminState": "Up"}},
    ]);
    let with_others: Vec<_> = [&entries, &others]
        .into_iter()
        .flat_map(|list| list.as_array().unwrap().clone())
        .collect();
    for (entries, is_out) in [(entries, true), (json!(with_others), false)] {
        let document = named("kubernetes", &[("kubernetes", entries)]);
        taint_and_untaint(vec![document], &[1, 2, 3, 4, 6, 7], is_out).await;
    }
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
    taint_and_untaint(vec![document], &[1], true).await;
}

#[tokio::test(start_paused = true)]
async fn load_balancers_with_missing_parts() {
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
        taint_and_untaint(vec![good.clone(), twin(odd)], &[1], true).await;
    }
}

/// Creates the ledger with this text.
async fn write_ledger(cluster: &TestCluster, text: &str) {
    let data = BTreeMap::from([("ledger.json".to_owned(), text.to_owned())]);
    let mut object = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    object.metadata.name = Some(LEDGER.to_owned());
    let api: Api<ConfigMap> = Api::namespaced(cluster.world.client.clone(), "kube-system");
    api.create(&PostParams::default(), &object).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn invalid_ledger_stops_all_writes_and_names_the_remedy() {
    for text in [
        "",
        "{",
        "7",
        "[]",
        "[{}]",
        r#"{"pools": [], "entries": []}"#,
        r#"{"version": 1, "pools": [], "entries": []}"#,
        r#"{"version": 1, "generation": 1, "pools": null, "entries": []}"#,
        r#"{"version": 1, "generation": 1, "pools": []}"#,
        r#"{"version": 1, "generation": 1, "pools": ["p"], "entries": [[{"dwon 2026-11-21T10:00:00Z": [0]}, ["k"]]]}"#,
        r#"{"version": 1, "generation": 1, "pools": ["p"], "entries": [[{"down yesterday": [0]}, ["k"]]]}"#,
        r#"{"version": 1, "generation": 1, "pools": ["p"], "entries": [[{"down 2026-11-21T10:00:00Z": [1]}, ["k"]]]}"#,
    ] {
        let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
        write_ledger(&cluster, text).await;
        cluster.taint(2, &[DRAINING]);
        cluster.start_leader(ENFORCE).await;
        cluster.leader().allow_failed_terms();
        sleep(120 * SECOND).await;
        let failures = cluster.leader().failures.lock().unwrap().clone();
        assert!(!failures.is_empty(), "{text}");
        for part in [
            "kube-system/headgate-admin-state",
            "correct ledger.json, for example from a backup",
        ] {
            assert!(failures[0].contains(part), "{failures:?}");
        }
        let notes = cluster.notes(FAILED, "node-2").await;
        assert!(!notes.is_empty() && notes.len() == failures.len(), "{notes:?}");
        assert!(notes[0].contains("correct ledger.json"), "{notes:?}");
        assert!(cluster.notes(FAILED, "node-1").await.is_empty());
        let rejected = cluster.notes(LEDGER_REJECTED, "leader-1").await;
        assert_eq!(rejected.len(), failures.len(), "{rejected:?}");
        // Neither the ledger nor ARM is written: the owner of a `Down` is unknown.
        assert!(cluster.puts().is_empty());
        let kept: ConfigMap = cluster.fake.peek("kube-system", LEDGER).unwrap();
        assert_eq!(kept.data.unwrap()["ledger.json"], text);
        // After the remedy the work continues.
        cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
        let took = cluster.until_down(&["node-2"]).await;
        assert!(took < 100 * SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_arm_is_reported_on_signalled_nodes() {
    let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
    cluster.world.arm_unreachable = Some("the Secret kube-system/azure is not there");
    cluster.taint(2, &[DRAINING]);
    cluster.start_leader(ENFORCE).await;
    cluster.leader().allow_failed_terms();
    sleep(120 * SECOND).await;
    let failures = cluster.leader().failures.lock().unwrap().len();
    let notes = cluster.notes(FAILED, "node-2").await;
    assert!(failures > 0 && notes.len() == failures, "{failures}: {notes:?}");
    assert_contains!(notes[0], "the Secret kube-system/azure is not there");
    assert!(cluster.notes(FAILED, "node-1").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ledger_of_another_version_is_refused_with_an_event() {
    for version in ["7", "0", "\"1\"", "null"] {
        let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
        let text = format!(r#"{{"version": {version}, "pools": [], "entries": []}}"#);
        write_ledger(&cluster, &text).await;
        cluster.taint(2, &[DRAINING]);
        cluster.start_leader(ENFORCE).await;
        cluster.leader().allow_failed_terms();
        sleep(60 * SECOND).await;
        let notes = cluster.notes(LEDGER_REJECTED, "leader-1").await;
        let expected = format!("a ledger of version {version}, and this headgate knows version 1");
        assert!(!notes.is_empty() && notes[0].contains(&expected), "{notes:?}");
        assert!(!cluster.notes(FAILED, "node-2").await.is_empty());
        assert!(cluster.puts().is_empty());
        let kept: ConfigMap = cluster.fake.peek("kube-system", LEDGER).unwrap();
        assert_eq!(kept.data.unwrap()["ledger.json"], text);
    }
}

#[tokio::test(start_paused = true)]
async fn config_map_without_a_ledger_is_an_empty_ledger() {
    let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
    write_ledger(&cluster, "").await;
    cluster.fake.change::<ConfigMap>("kube-system", LEDGER, |object| {
        object["data"] = json!({"note": "foreign"});
    });
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    let kept: ConfigMap = cluster.fake.peek("kube-system", LEDGER).unwrap();
    assert_eq!(kept.data.unwrap()["note"], "foreign");
}

#[tokio::test(start_paused = true)]
async fn full_ledger_is_reported_and_shrinks_as_entries_expire() {
    let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
    // Entries of a pool that does not exist.
    let mut keys: Vec<_> = (0..1_000).map(|number| format!("{number:0>900}")).collect();
    let text = |keys: &[String]| {
        let entries = json!([[{"down 2026-11-21T10:00:00Z": [0]}, keys]]);
        format!(r#"{{"version":1,"generation":1,"pools":["/gone"],"entries":{entries}}}"#)
    };
    keys.push("x".repeat(999_950 - text(&keys).len()));
    let text = text(&keys);
    assert!((999_900..1_000_000).contains(&text.len()), "{}", text.len());
    write_ledger(&cluster, &text).await;
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    sleep(100 * SECOND).await;
    assert!(cluster.puts().is_empty(), "no write without a recorded intent");
    let notes = cluster.notes(FAILED, "node-2").await;
    assert!(
        notes.len() == 1
            && notes[0].contains("could not be recorded before it is written")
            && notes[0].contains("1000000"),
        "{notes:?}"
    );
    // Absent for 2 min, then kept for 5; a list and a retry follow within 35 s.
    sleep(320 * SECOND).await;
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took <= 80 * SECOND, "{took:?}");
    cluster.settle(&["node-2"]).await;
    assert!(cluster.ledger().await.to_string().len() < 1000);
}
