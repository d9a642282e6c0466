//! cloud-provider-azure's tests of its updater and of desired-state operations (pull request 10730): which members a tick writes.

use headgate_controller::local_service::LocalPoolsTarget;
use headgate_test_kubernetes::Fault;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{SECOND, address, entries, load_balancer};
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, several_load_balancers};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";
const READ: &str = "/loadBalancers/kubernetes$";

/// A cluster with these pools of the load balancer `kubernetes`.
async fn with_pools(pools: &[(&str, Value)]) -> LocalCluster {
    LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", pools)],
        ..Options::default()
    })
    .await
}

/// The usual cluster after a first tick, which has found nothing to do.
async fn settled() -> LocalCluster {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0);
    cluster
}

/// The numbers of reads of the load balancer and of PUTs.
fn requests(cluster: &LocalCluster) -> (usize, usize) {
    (cluster.requests("GET", "/loadBalancers/kubernetes"), cluster.puts())
}

#[tokio::test(start_paused = true)]
async fn changes_within_one_interval_are_one_put_for_each_pool() {
    let cluster = with_pools(&[
        ("default-web", entries([1], false)),
        ("default-api", entries([1], false)),
    ])
    .await;
    for name in ["web", "api"] {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[1]).await;
    }
    for members in [&[1, 2][..], &[1, 2, 3], &[2, 3]] {
        cluster.set_slice("web", "web-1", members).await;
    }
    for members in [&[1, 2][..], &[]] {
        cluster.set_slice("api", "api-1", members).await;
    }
    cluster.tick().await;
    assert_eq!(cluster.puts(), 2);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2, 3]));
    assert_eq!(cluster.addresses("default-api").await, nodes(&[]));
    assert_eq!(cluster.outcomes(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn changes_in_two_intervals_are_two_puts() {
    let cluster = settled().await;
    for members in [&[1, 2][..], &[2]] {
        cluster.set_slice("web", "web-1", members).await;
        cluster.tick().await;
        assert_eq!(cluster.addresses("default-web").await, nodes(members));
    }
    assert_eq!((cluster.puts(), cluster.events("web").await), (2, [2, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn members_are_added_and_removed_in_one_put() {
    let cluster = with_pools(&[("default-web", entries([1, 2], false))]).await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[1, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 1);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 3]));
}

#[tokio::test(start_paused = true)]
async fn service_that_is_deleted_before_the_tick_costs_no_request() {
    let cluster = settled().await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.delete_service("web").await;
    sleep(3 * INTERVAL).await;
    assert_eq!((requests(&cluster), cluster.events("web").await), ((0, 0), [0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn service_that_is_not_local_costs_no_request() {
    let cluster = settled().await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster
        .patch_service("web", &json!({"spec": {"externalTrafficPolicy": "Cluster"}}))
        .await;
    sleep(3 * INTERVAL).await;
    assert_eq!((requests(&cluster), cluster.events("web").await), ((0, 0), [0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn slices_of_no_service_and_of_other_namespaces_do_not_count() {
    let cluster = settled().await;
    let endpoints = json!([{"addresses": ["10.244.2.9"], "nodeName": "node-2"}]);
    cluster.put_slice("default", None, "without-label", &endpoints).await;
    cluster.put_slice("other", Some("web"), "web-1", &endpoints).await;
    cluster.put_slice("default", Some("webs"), "webs-1", &endpoints).await;
    sleep(3 * INTERVAL).await;
    assert_eq!(requests(&cluster), (0, 0));
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
}

#[tokio::test(start_paused = true)]
async fn service_on_another_load_balancer_is_updated_where_its_rule_is() {
    let pool = [("default-web", entries([1], false))];
    let cluster = LocalCluster::with(Options {
        load_balancers: ["kubernetes", "second"].map(|name| load_balancer(name, &pool)).to_vec(),
        ..Options::default()
    })
    .await;
    cluster.place_rule("default-web", "kubernetes").await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[1]).await;
    cluster.tick().await;
    assert!(cluster.world.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!((cluster.metric("queue_depth"), cluster.puts()), (1, 0));
    cluster.move_rule("default-web", "second").await;
    cluster.world.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "an orphan now");
    let moved = cluster.pool("second", "default-web").await;
    let members = moved["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0]["properties"]["ipAddress"], address(2, false));
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn service_that_is_deleted_while_the_lease_is_held_costs_no_request() {
    let cluster = settled().await;
    assert!(cluster.world.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    cluster.delete_service("web").await;
    cluster.world.release_arm_lease().await;
    sleep(3 * INTERVAL).await;
    assert_eq!((requests(&cluster), cluster.events("web").await), ((0, 0), [0, 0, 0]));
    assert_eq!(cluster.metric("queue_depth"), 0);
}

#[tokio::test(start_paused = true)]
async fn empty_desired_state_of_an_empty_pool_costs_no_put() {
    let cluster = with_pools(&[("default-web", json!([]))]).await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!((requests(&cluster), cluster.events("web").await), ((0, 0), [0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn several_endpoints_of_one_node_are_one_member() {
    let cluster = with_pools(&[("default-web", json!([]))]).await;
    cluster.add_service("web").await;
    let endpoint = |pod: usize| json!({"addresses": [format!("10.244.2.{pod}")], "nodeName": "node-2"});
    let endpoints = |pods: usize| Value::Array((1..=pods).map(endpoint).collect());
    cluster.put_slice("default", Some("web"), "web-1", &endpoints(3)).await;
    cluster.put_slice("default", Some("web"), "web-2", &endpoints(1)).await;
    cluster.tick().await;
    let pool = cluster.pool("kubernetes", "default-web").await;
    let members = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    assert_eq!(members.len(), 1, "{members:?}");
    // The node set stays while the number of endpoints changes.
    for pods in [1, 5, 2] {
        cluster
            .put_slice("default", Some("web"), "web-1", &endpoints(pods))
            .await;
        cluster.tick().await;
    }
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn dual_stack_service_is_one_update_for_each_pool() {
    let cluster = with_pools(&[
        ("default-web", entries([1], false)),
        ("default-web-ipv6", entries([1], true)),
    ])
    .await;
    cluster.add_service("web").await;
    cluster
        .patch_service("web", &json!({"spec": {"ipFamilies": ["IPv4", "IPv6"]}}))
        .await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    let expected = [address(2, true)];
    assert_eq!(cluster.addresses("default-web-ipv6").await, expected.into());
    assert_eq!((cluster.puts(), cluster.outcomes()), (2, (2, 0)));
}

#[tokio::test(start_paused = true)]
async fn read_that_is_refused_for_good_writes_nothing() {
    let cluster = settled().await;
    cluster.fault("GET", READ, None, &json!({"answer": {"status": 403}}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (0, [0, 0, 1]));
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 1)));
}

#[tokio::test(start_paused = true)]
async fn changes_are_accepted_while_a_request_is_under_way() {
    let cluster = settled().await;
    cluster.fault("GET", READ, Some(1), &json!({"stall": "20s"}));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    // The read is stalled: its tick goes on with what it has taken, and the newer change waits for the next one.
    for members in [&[3][..], &[3, 4]] {
        cluster.set_slice("web", "web-1", members).await;
    }
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[3, 4]));
    assert_eq!((cluster.outcomes(), cluster.metric("queue_depth")), ((2, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn update_counts_although_the_lease_cannot_be_released() {
    let cluster = LocalCluster::with(Options {
        operation_delay: 5 * SECOND,
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    while cluster.puts() == 0 {
        sleep(SECOND).await;
    }
    cluster.faults.set_for(Fault::Status(500), |request| {
        request.path.ends_with("/leases/aks-managed-resource-locker") && request.method != "GET"
    });
    sleep(15 * SECOND).await;
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (1, 0)));
    cluster.faults.set(Fault::None);
    cluster.set_slice("web", "web-1", &[3]).await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[3]));
}

#[tokio::test(start_paused = true)]
async fn pool_without_a_virtual_network_gets_the_clusters() {
    let cluster = settled().await;
    assert!(cluster.pool("kubernetes", "default-web").await["properties"]["virtualNetwork"].is_null());
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    let pool = cluster.pool("kubernetes", "default-web").await;
    let network = several_load_balancers().virtual_network.unwrap();
    assert_eq!(pool["properties"]["virtualNetwork"]["id"], *network);
    // Without one in azure.json, ARM would reject the pool.
    let cluster = LocalCluster::with(Options {
        target: LocalPoolsTarget {
            virtual_network: None,
            ..several_load_balancers()
        },
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (0, [0, 0, 1]));
}

#[tokio::test(start_paused = true)]
async fn pool_that_vanishes_before_the_put_is_dropped_silently() {
    let cluster = settled().await;
    let vanished = json!({"answer": {"status": 404}});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &vanished);
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
    assert_eq!((cluster.outcomes(), cluster.operations()), ((0, 0), [0, 0]));
    assert_eq!(cluster.metric("queue_depth"), 0);
}
