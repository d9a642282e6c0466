//! The known defects of cloud-provider-azure's updater, each with a story that shows its absence. `rows` lists those that other
//! modules have.

use std::collections::BTreeSet;

use headgate_controller::pool::ListScope;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{SECOND, address, entries, load_balancer, scope};
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, pool_path};

const READ: &str = "/loadBalancers/kubernetes$";
const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";

/// The members of a pool's document: name and address.
fn members(pool: &Value) -> Vec<(String, String)> {
    let list = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let member = |entry: &Value| (text(&entry["name"]), text(&entry["properties"]["ipAddress"]));
    list.iter().map(member).collect()
}

/// `notify` ended after the first operation of a group, so that other Services got no event.
#[tokio::test(start_paused = true)]
async fn every_service_gets_its_event_where_one_request_fails_for_several() {
    let pools = ["web", "api", "db"].map(|name| (format!("default-{name}"), entries([1], false)));
    let pools: Vec<_> = pools.iter().map(|(name, list)| (name.as_str(), list.clone())).collect();
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        ..Options::default()
    })
    .await;
    for name in ["web", "api", "db"] {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[2]).await;
    }
    cluster.fault("GET", READ, Some(1), &json!({"answer": {"status": 403}}));
    cluster.tick().await;
    for name in ["web", "api", "db"] {
        assert_eq!(cluster.events(name).await, [0, 0, 1], "{name}");
    }
    assert_eq!(cluster.outcomes(), (0, 3));
}

/// The updater read `resourceGroup` although the load balancers are in `loadBalancerResourceGroup`, and dropped each update.
#[tokio::test(start_paused = true)]
async fn load_balancers_in_a_resource_group_of_their_own_are_updated() {
    let elsewhere = |value: &Value| -> Value {
        let text = value.to_string().replace("/resourceGroups/rg/", "/resourceGroups/lbs/");
        serde_json::from_str(&text).unwrap()
    };
    let document = load_balancer("kubernetes", &[("default-web", entries([1], false))]);
    let group: ListScope = scope("lbs", &["kubernetes"]);
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![elsewhere(&document)],
        scope: Some(group),
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    let path = pool_path("kubernetes", "default-web").replace("/resourceGroups/rg/", "/resourceGroups/lbs/");
    assert_eq!(
        members(&cluster.world.get(&path).await),
        [("node-2".to_owned(), address(2, false))]
    );
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
}

/// Nodes with addresses of both families made every update of a slice differ, with requests and an event each time.
#[tokio::test(start_paused = true)]
async fn nodes_of_both_families_cause_neither_writes_nor_events() {
    let cluster = LocalCluster::start().await;
    for pods in 1..=4 {
        let pod = |pod: usize| json!({"addresses": [format!("10.244.1.{pod}")], "nodeName": "node-1"});
        let endpoints = Value::Array((1..=pods).map(pod).collect());
        cluster.put_slice("default", Some("web"), "web-1", &endpoints).await;
        cluster.tick().await;
    }
    assert_eq!((cluster.puts(), cluster.events("web").await), (0, [0, 0, 0]));
    assert_eq!(cluster.requests("GET", "/loadBalancers/kubernetes"), 0);
}

/// Without a slice in its cache, all nodes were added.
#[tokio::test(start_paused = true)]
async fn service_without_slices_keeps_its_members() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    cluster.delete_slice("web-1").await;
    sleep(12 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (0, [0, 0, 0]));
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
}

/// A pool was written from a list that was older than another client's write.
#[tokio::test(start_paused = true)]
async fn members_are_written_from_a_fresh_read() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    let path = pool_path("kubernetes", "default-web");
    let mut pool = cluster.world.get(&path).await;
    let list = pool["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap();
    list.push(json!({"name": "appliance", "properties": {"ipAddress": "192.168.7.7"}}));
    pool["properties"]["drainPeriodInSeconds"] = json!(17);
    assert!(cluster.world.put(&path, &pool, None).await.status().is_success());
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    let pool = cluster.world.get(&path).await;
    let names: BTreeSet<_> = members(&pool).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["appliance".to_owned(), "node-2".to_owned()].into());
    assert_eq!(pool["properties"]["drainPeriodInSeconds"], 17);
    let journal = cluster.world.puts();
    let own = journal.iter().find(|put| {
        put["userAgent"]
            .as_str()
            .is_some_and(|agent| agent.contains("headgate"))
    });
    assert!(own.unwrap()["ifMatch"].is_string());
}

/// Pools outlive their Services and their places.
#[tokio::test(start_paused = true)]
async fn orphan_pools_stay_as_they_are() {
    let pool = [("default-web", entries([1], false))];
    let gone = [
        ("default-gone", entries([1, 4], false)),
        ("default-web", entries([3], false)),
    ];
    let load_balancers = vec![load_balancer("kubernetes", &pool), load_balancer("second", &gone)];
    let cluster = LocalCluster::with(Options {
        load_balancers,
        ..Options::default()
    })
    .await;
    cluster.place_rule("default-web", "kubernetes").await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    cluster.delete_service("web").await;
    cluster.set_slice("web", "web-1", &[4]).await;
    sleep(12 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    for (pool, expected) in [("default-web", vec![3]), ("default-gone", vec![1, 4])] {
        let found = members(&cluster.pool("second", pool).await);
        let found: BTreeSet<_> = found.into_iter().map(|(_, address)| address).collect();
        assert_eq!(found, nodes(&expected), "{pool}");
    }
    assert_eq!(cluster.puts(), 1);
}

/// Issue 9839: the updater raced the reconcile loop of its own process, and its writes failed with 412.
#[tokio::test(start_paused = true)]
async fn updates_and_admin_states_never_overtake_each_other() {
    let cluster = LocalCluster::with(Options {
        operation_delay: 3 * SECOND,
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    for (turn, delay) in (0..20).zip(7_u32..) {
        let (node, other) = (turn % 4 + 1, (turn + 1) % 4 + 1);
        cluster.set_slice("web", "web-1", &[node, other]).await;
        cluster.world.taint(node, &[SIGNAL]).await;
        sleep(delay * SECOND).await;
        cluster.world.taint(node, &[]).await;
    }
    sleep(3 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[4, 1]));
    let puts = cluster.world.puts();
    let refused: Vec<_> = puts
        .iter()
        .filter(|put| put["status"].as_u64().unwrap() >= 400)
        .collect();
    assert!(puts.len() > 20 && refused.is_empty(), "{refused:?}");
    assert!(cluster.world.down("kubernetes", "default-web").is_empty());
}

/// Issue 10307: one address was queued several times, and ARM answered `DuplicateResourceName`.
#[tokio::test(start_paused = true)]
async fn node_with_several_addresses_has_entries_with_names_of_their_own() {
    let cluster = LocalCluster::start().await;
    let api = Api::<Node>::all(cluster.world.client.clone());
    let mut node = api.get("node-2").await.unwrap();
    let addresses = ["10.0.0.2", "10.0.9.2", "fd00::2"];
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    node.status.as_mut().unwrap().addresses = serde_json::from_value(Value::Array(addresses.into())).unwrap();
    api.replace_status("node-2", &PostParams::default(), &node)
        .await
        .unwrap();
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.set_slice("web", "web-2", &[2, 2]).await;
    cluster.tick().await;
    let found = members(&cluster.pool("kubernetes", "default-web").await);
    let addresses: Vec<_> = found.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.2", "10.0.9.2"]);
    let names: BTreeSet<_> = found.iter().map(|(name, _)| name.to_lowercase()).collect();
    assert_eq!(names.len(), 2, "{found:?}");
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [1, 0, 0]));
}

/// Issue 9803: an entry of an unknown node had an empty name.
#[tokio::test(start_paused = true)]
async fn unknown_node_joins_once_it_exists() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    let endpoints = json!([{"addresses": ["10.244.1.9"], "nodeName": "node-1"},
        {"addresses": ["10.244.9.9"], "nodeName": "node-9"}, {"addresses": ["10.244.9.8"]}]);
    cluster.put_slice("default", Some("web"), "web-1", &endpoints).await;
    sleep(3 * INTERVAL).await;
    assert_eq!(
        (cluster.puts(), cluster.addresses("default-web").await),
        (0, nodes(&[1]))
    );
    cluster.world.add_node(9).await;
    cluster.tick().await;
    let found = members(&cluster.pool("kubernetes", "default-web").await);
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["node-1", "node-9"]);
}
