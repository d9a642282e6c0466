//! `adminState.minimumInService` above 0 where members change: no PUT leaves a pool without the entries that the guard keeps in
//! service, although nodes with signals join as `Down`.

use headgate_controller::admin_state::GuardSettings;
use headgate_core::settings::IntOrPercent;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::Value;
use tokio::time::sleep;

use super::super::guard::GUARD;
use super::super::rows::cluster::OUT_OF_SERVICE;
use super::super::world::{SECOND, entries, load_balancer};
use super::cluster::{LocalCluster, Options, nodes};

const MAINTENANCE: &str = "headgate.dev/maintenance";
const HELD_BACK: &str = "NodeKeptInService";

/// A cluster with the Service `default/web`, whose pool has these nodes.
async fn guarded(members: &[usize], minimum_in_service: IntOrPercent) -> LocalCluster {
    let pool = [("default-web", entries(members.iter().copied(), false))];
    let options = Options {
        load_balancers: vec![load_balancer("kubernetes", &pool)],
        guard: GuardSettings {
            minimum_in_service,
            ..GUARD.clone()
        },
        ..Options::default()
    };
    LocalCluster::with_web(options, members).await
}

async fn taint(cluster: &LocalCluster, numbers: &[usize]) {
    for number in numbers {
        cluster.world.taint(*number, &[MAINTENANCE]).await;
    }
}

/// The names of the entries that are not `Down` in each PUT of the pool by headgate.
fn in_service_of_each_put(cluster: &LocalCluster) -> Vec<Vec<String>> {
    let puts = cluster.world.puts().into_iter();
    let in_service = |put: Value| {
        let entries = put["body"]["properties"]["loadBalancerBackendAddresses"].clone();
        let entries = entries.as_array().cloned().unwrap_or_default().into_iter();
        let up = entries.filter(|entry| entry["properties"]["adminState"] != "Down");
        up.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    puts.map(in_service).collect()
}

async fn hold_pools(cluster: &LocalCluster, number: usize) -> Option<Value> {
    let nodes = Api::<Node>::all(cluster.world.client.clone());
    let node = nodes.get(&format!("node-{number}")).await.unwrap();
    let value = node.metadata.annotations?.remove("headgate.dev/hold")?;
    let hold: Value = serde_json::from_str(&value).unwrap();
    Some(hold["pools"].clone())
}

#[tokio::test(start_paused = true)]
async fn node_that_the_guard_holds_back_joins_in_service() {
    let cluster = guarded(&[1], IntOrPercent::Int(1)).await;
    taint(&cluster, &[2]).await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(
        in_service_of_each_put(&cluster),
        [["node-2"]],
        "never without an entry in service"
    );
    assert!(cluster.ledger().await.is_null(), "nothing was set Down");
    assert_eq!(
        hold_pools(&cluster, 2).await,
        Some(serde_json::json!(["kubernetes/default-web"]))
    );
    assert_eq!(cluster.notes(HELD_BACK, "node-2").await.len(), 1);
    // A node without a signal takes over: the other one becomes `Down` once a read has shown it.
    cluster.set_slice("web", "web-1", &[2, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.down(), ["node-2"]);
    let puts = in_service_of_each_put(&cluster);
    assert_eq!(
        puts[1..],
        [
            vec!["node-2".to_owned(), "node-3".to_owned()],
            vec!["node-3".to_owned()]
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn members_with_a_signal_join_as_down_except_those_that_the_minimum_needs() {
    use IntOrPercent::{Int, Percent};
    for (minimum, taint, members, in_service) in [
        // Another one serves.
        (Int(1), MAINTENANCE, &[1, 2][..], &[1][..]),
        // Half of the three members that the pool will have, rounded up.
        (Percent(50), MAINTENANCE, &[2, 3, 4], &[2, 3]),
        // Without a guard, and where an end is certain.
        (Int(0), MAINTENANCE, &[2], &[]),
        (Int(1), OUT_OF_SERVICE, &[2], &[]),
    ] {
        let cluster = guarded(&[1], minimum).await;
        for number in members.iter().filter(|number| **number != 1) {
            cluster.world.taint(*number, &[taint]).await;
        }
        cluster.set_slice("web", "web-1", members).await;
        cluster.tick().await;
        assert_eq!(cluster.addresses("default-web").await, nodes(members));
        let name = |number: &usize| format!("node-{number}");
        let joined_as_down = members.iter().filter(|number| !in_service.contains(number));
        assert_eq!(cluster.down(), joined_as_down.map(name).collect::<Vec<_>>());
        let names: Vec<_> = in_service.iter().map(name).collect();
        assert_eq!(in_service_of_each_put(&cluster), [names], "{members:?}");
        let is_held = hold_pools(&cluster, 2).await.is_some();
        assert_eq!(is_held, in_service.contains(&2), "{members:?}");
        for number in members {
            cluster.world.taint(*number, &[]).await;
        }
        sleep(10 * SECOND).await;
        assert_eq!(cluster.down(), [""; 0], "the ledger has them");
    }
}

#[tokio::test(start_paused = true)]
async fn node_joins_in_service_where_the_last_one_without_a_signal_leaves() {
    let cluster = guarded(&[1, 2], IntOrPercent::Int(1)).await;
    taint(&cluster, &[1]).await;
    sleep(5 * SECOND).await;
    assert_eq!(cluster.down(), ["node-1"]);
    taint(&cluster, &[3]).await;
    cluster.set_slice("web", "web-1", &[1, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 3]));
    assert_eq!(cluster.down(), ["node-1"], "the one that is not Down yet is held back");
    assert_eq!(in_service_of_each_put(&cluster), [["node-2"], ["node-3"]]);
}

#[tokio::test(start_paused = true)]
async fn entry_comes_back_in_the_put_in_which_the_others_leave() {
    let cluster = guarded(&[1, 2], IntOrPercent::Int(1)).await;
    taint(&cluster, &[1]).await;
    sleep(5 * SECOND).await;
    cluster.set_slice("web", "web-1", &[1]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
    assert_eq!(in_service_of_each_put(&cluster), [["node-2"], ["node-1"]]);
    assert_eq!(cluster.down(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn signal_and_members_of_one_put_leave_the_minimum() {
    // Both sources meet: the first node gets a signal while the second one, which has none, is about to leave.
    let cluster = guarded(&[1, 2], IntOrPercent::Int(1)).await;
    cluster.tick().await;
    assert!(cluster.take_arm_lease().await);
    taint(&cluster, &[1, 3]).await;
    cluster.set_slice("web", "web-1", &[1, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0);
    cluster.fault(
        "GET",
        "/loadBalancers/kubernetes$",
        Some(1),
        &serde_json::json!({"stall": "1s"}),
    );
    cluster.release_arm_lease().await;
    sleep(10 * SECOND).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 3]));
    assert_eq!(cluster.down().len(), 1);
    let puts = in_service_of_each_put(&cluster);
    assert!(puts.iter().all(|in_service| !in_service.is_empty()), "{puts:?}");
}
