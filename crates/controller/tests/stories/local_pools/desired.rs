//! Which pools and members a tick writes, where a Service moves, is made again or leaves, and beside other writers; and known
//! defects of cloud-provider-azure's updater, each with a story that shows its absence. The rules themselves are tested in
//! `crates/controller/tests/rules`.

use headgate_azure_emulator::{Deviation, Settings};
use headgate_controller::local_pools::LocalPoolsTarget;
use headgate_controller::pool::ListScope;
use headgate_test_kubernetes::Fault;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::world::{SECOND, address, entries, load_balancer, pool_path, scope};
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, operations_of, several_load_balancers};
use super::operations::{NODE_POOL, cluster_with};

const READ: &str = "/loadBalancers/kubernetes$";
const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";

/// The usual cluster after a first tick, which has found nothing to do.
async fn settled() -> LocalCluster {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0);
    cluster
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
    assert!(cluster.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!((cluster.metric("queue_depth"), cluster.puts()), (1, 0));
    cluster.move_rule("default-web", "second").await;
    cluster.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "an orphan now");
    let moved = cluster.pool("second", "default-web").await;
    let members = moved["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0]["properties"]["ipAddress"], address(2, false));
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [1, 0, 0]));
}

/// A machine that somebody put into the pool, and whose address a Node has as well.
#[tokio::test(start_paused = true)]
async fn update_counts_beside_a_foreign_entry_with_the_address_of_a_node() {
    let mut pool = entries([1], false);
    let foreign = json!({"name": "vm", "properties": {"ipAddress": address(4, false)}});
    pool.as_array_mut().unwrap().push(foreign);
    let cluster = LocalCluster::with_web(Options::of(&[("default-web", pool)]), &[1]).await;
    cluster.tick().await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2, 4]));
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn changes_are_accepted_while_a_request_is_under_way() {
    let cluster = settled().await;
    cluster.fault("GET", READ, Some(1), &json!({"stall": "20s"}));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    // The read is stalled: its PUT writes the newest change.
    for members in [&[3][..], &[3, 4]] {
        cluster.set_slice("web", "web-1", members).await;
    }
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[3, 4]));
    assert_eq!((cluster.outcomes(), cluster.metric("queue_depth")), ((1, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn update_counts_although_the_lease_cannot_be_released() {
    let options = Options {
        azure: operations_of(5 * SECOND),
        ..Options::default()
    };
    let cluster = LocalCluster::with_web(options, &[2]).await;
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
    let foreign = |network: &Value| {
        let properties = json!({"ipAddress": "10.9.9.9", "virtualNetwork": network});
        json!([{"name": "vm", "properties": properties}])
    };
    let clusters = several_load_balancers().virtual_network;
    let own = json!({"id": "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/own"});
    // Where neither azure.json nor an entry names one, ARM would reject the pool.
    for (entries, in_azure_json, expected) in [
        (json!([]), clusters.clone(), clusters.as_deref()),
        (json!([]), None, None),
        (foreign(&own), clusters.clone(), own["id"].as_str()),
        (foreign(&own), None, own["id"].as_str()),
    ] {
        let mut load_balancer = load_balancer("kubernetes", &[("default-web", entries)]);
        let pool = &mut load_balancer["properties"]["backendAddressPools"][0]["properties"];
        pool.as_object_mut().unwrap().remove("virtualNetwork");
        let options = Options {
            load_balancers: vec![load_balancer],
            target: LocalPoolsTarget {
                virtual_network: in_azure_json,
                ..several_load_balancers()
            },
            ..Options::default()
        };
        let cluster = LocalCluster::with_web(options, &[2]).await;
        sleep(3 * INTERVAL).await;
        let pool = cluster.pool("kubernetes", "default-web").await;
        assert_eq!(pool["properties"]["virtualNetwork"]["id"].as_str(), expected);
        let (puts, events) = if expected.is_some() {
            (1, [1, 0, 0])
        } else {
            (0, [0, 0, 1])
        };
        assert_eq!(
            (cluster.puts(), cluster.events("web").await),
            (puts, events),
            "{expected:?}"
        );
    }
}

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
    let cluster = LocalCluster::with(Options::of(&pools)).await;
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
    let options = Options {
        load_balancers: vec![elsewhere(&document)],
        scope: Some(group),
        ..Options::default()
    };
    let cluster = LocalCluster::with_web(options, &[2]).await;
    cluster.tick().await;
    let path = pool_path("kubernetes", "default-web").replace("/resourceGroups/rg/", "/resourceGroups/lbs/");
    assert_eq!(
        members(&cluster.get(&path).await),
        [("node-2".to_owned(), address(2, false))]
    );
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
}

/// Issue 9839: the updater raced the reconcile loop of its own process, and its writes failed with 412. Here ARM also refuses a write
/// that comes before the operation of another one has ended, which nothing but its status shows. Each change comes while ARM still
/// works on the one before, members and admin states by turns.
#[tokio::test(start_paused = true)]
async fn updates_and_admin_states_never_overtake_each_other() {
    // Longer than a tick, which so finds an operation under way.
    let operation = INTERVAL + 10 * SECOND;
    let hidden = [
        Deviation::PoolsStaySucceeded,
        Deviation::LoadBalancersStaySucceeded,
        Deviation::SecondWriteRefused,
    ];
    let cluster = cluster_with(Settings {
        deviations: hidden.into_iter().collect(),
        ..operations_of(operation)
    })
    .await;
    let mut written = 0;
    let mut next_put = async || {
        written += 1;
        let changed = Instant::now();
        while cluster.puts() < written {
            sleep(SECOND / 4).await;
            assert!(changed.elapsed() < 2 * operation, "change {written} is not written");
        }
    };
    for (endpoint, node) in [(2, 3), (1, 4)].into_iter().cycle().take(10) {
        cluster.world.taint(node, &[SIGNAL]).await;
        next_put().await;
        cluster.set_slice("web", "web-1", &[endpoint]).await;
        next_put().await;
        cluster.world.taint(node, &[]).await;
        next_put().await;
    }
    sleep(3 * INTERVAL).await;
    let refused: Vec<_> = cluster
        .world
        .puts()
        .into_iter()
        .filter(|put| put["status"] != 200)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    // None was early, and none came so late that its change was not there before the operation ended: by then a hold of the shared Lease
    // admits no more writes, so that others had their turn of 6 s.
    let puts = cluster.own_puts();
    let waits = puts
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    let waits: Vec<_> = waits.collect();
    let expected = operation..operation + 10 * SECOND;
    assert!(waits.iter().all(|wait| expected.contains(wait)), "{waits:?}");
    assert_eq!(waits.len(), 29, "one write for each of 30 changes");
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
    assert!(cluster.world.down("kubernetes", NODE_POOL).is_empty());
}
