//! Updates of many pools of one load balancer that is too large to be kept: it is not read again for each pool.

use std::collections::BTreeSet;

use serde_json::json;
use tokio::time::{sleep, timeout};

use super::super::world::{SECOND, entries, id_of, load_balancer, pool_path};
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, operations_of};

const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WHOLE: &str = "/loadBalancers/kubernetes";

/// A cluster whose load balancer counts as large, with these Services besides a pool of all nodes. Operations take 2 s.
async fn cluster_with(services: &[&str]) -> LocalCluster {
    let names: Vec<_> = services.iter().map(|name| format!("default-{name}")).collect();
    let own = names.iter().map(|name| (name.as_str(), entries([1], false)));
    let pools: Vec<_> = own.chain([("kubernetes", entries(1..=4, false))]).collect();
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        azure: operations_of(2 * SECOND),
        max_kept_bytes: Some(0),
        ..Options::default()
    })
    .await;
    for name in services {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[1]).await;
    }
    cluster.tick().await;
    cluster
}

/// Moves the endpoints of Services to these nodes.
async fn move_to(cluster: &LocalCluster, services: &[&str], numbers: &[usize]) {
    for name in services {
        cluster.set_slice(name, &format!("{name}-1"), numbers).await;
    }
}

async fn assert_members(cluster: &LocalCluster, services: &[&str], numbers: &[usize]) {
    for name in services {
        let found = cluster.addresses(&format!("default-{name}")).await;
        assert_eq!(found, nodes(numbers), "{name}");
    }
}

/// Requests of headgate since the start: reads of the load balancer, reads of single pools, PUTs.
fn requests(cluster: &LocalCluster) -> [usize; 3] {
    let pools = NAMES.iter().map(|name| format!("/backendAddressPools/default-{name}"));
    [
        cluster.requests("GET", WHOLE),
        pools.map(|pool| cluster.requests("GET", &pool)).sum(),
        cluster.puts(),
    ]
}

#[tokio::test(start_paused = true)]
async fn tick_reads_a_large_load_balancer_twice_whatever_the_number_of_pools() {
    let cluster = cluster_with(&NAMES).await;
    let before = requests(&cluster);
    assert_eq!(before[2], 0, "nothing differs");
    move_to(&cluster, &NAMES, &[2, 3]).await;
    cluster.tick().await;
    assert_members(&cluster, &NAMES, &[2, 3]).await;
    let after = requests(&cluster);
    let spent: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    // Each pool is read before its PUT, and all but the last one after it.
    assert_eq!(spent, [2, 4 + 3, 4]);
    for name in NAMES {
        assert_eq!(cluster.events(name).await, [1, 0, 0], "{name}");
    }
    assert_eq!((cluster.outcomes(), cluster.metric("queue_depth")), ((4, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn throttled_write_ends_the_reads_for_other_pools() {
    let cluster = cluster_with(&NAMES).await;
    let before = requests(&cluster);
    let throttled = json!({"answer": {"status": 429, "retryAfter": 300}});
    cluster.fault("PUT", "/backendAddressPools/", Some(1), &throttled);
    move_to(&cluster, &NAMES, &[2, 3]).await;
    for _ in 0..5 {
        cluster.tick().await;
    }
    let after = requests(&cluster);
    let spent: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(spent, [1, 1, 1]);
    for _ in 0..8 {
        cluster.tick().await;
    }
    assert_members(&cluster, &NAMES, &[2, 3]).await;
    assert_eq!((cluster.outcomes(), cluster.metric("retries_total")), ((4, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn signal_waits_for_one_update_of_a_large_load_balancer_only() {
    let cluster = cluster_with(&NAMES).await;
    move_to(&cluster, &NAMES, &[2, 3]).await;
    while cluster.puts() == 0 {
        sleep(SECOND / 10).await;
    }
    cluster.world.taint(4, &[SIGNAL]).await;
    let down: BTreeSet<_> = ["node-4".to_owned()].into();
    let is_down = async {
        while cluster.world.down("kubernetes", "kubernetes") != down {
            sleep(SECOND / 10).await;
        }
    };
    // The operation under way takes 2 s.
    timeout(3 * SECOND, is_down).await.unwrap();
    assert_eq!(cluster.puts(), 2, "the other members wait");
    cluster.tick().await;
    assert_members(&cluster, &NAMES, &[2, 3]).await;
    assert_eq!((cluster.puts(), cluster.outcomes()), (5, (4, 0)));
}

#[tokio::test(start_paused = true)]
async fn operation_of_another_writer_between_two_pools_is_not_superseded() {
    let cluster = cluster_with(&NAMES).await;
    // The read of the second pool is late, and another writer is faster. Its operation takes longer than the tick.
    let late = json!({"stall": "3s"});
    let rule = json!({"match": {"method": "GET", "path": "/backendAddressPools/default-b$", "caller": "headgate"},
        "times": 1, "action": late});
    cluster.control("POST", "faults", &rule);
    move_to(&cluster, &NAMES, &[2, 3]).await;
    while cluster.requests("GET", "/backendAddressPools/default-a") < 2 {
        sleep(SECOND / 10).await;
    }
    assert_eq!(cluster.puts(), 1);
    cluster.configure(&json!({"operationDelay": "20s"}));
    let path = pool_path("kubernetes", "kubernetes");
    let mut document = cluster.get(&path).await;
    document["futureField"] = json!(7);
    let answer = cluster.put(&path, &document, None).await;
    assert!(answer.status().is_success(), "{answer:?}");
    cluster.configure(&json!({"operationDelay": "2s"}));
    sleep(15 * SECOND).await;
    assert_eq!(cluster.puts(), 1, "ARM is busy");
    sleep(2 * INTERVAL).await;
    assert_members(&cluster, &NAMES, &[2, 3]).await;
    assert_eq!(cluster.get(&path).await["futureField"], 7, "it was not superseded");
    assert_eq!(cluster.puts(), 4);
}

#[tokio::test(start_paused = true)]
async fn failed_reads_of_single_pools_cost_no_retry() {
    for status in [404, 403, 503] {
        let fault = json!({"answer": {"status": status}});
        let cluster = cluster_with(&NAMES).await;
        move_to(&cluster, &NAMES, &[2]).await;
        while cluster.puts() == 0 {
            sleep(SECOND / 10).await;
        }
        // It hits the read that confirms the first write.
        cluster.fault("GET", "/backendAddressPools/default-a$", None, &fault);
        cluster.tick().await;
        cluster.clear_faults();
        assert_members(&cluster, &NAMES, &[2]).await;
        let counts = (cluster.outcomes(), cluster.metric("retries_total"));
        assert_eq!(counts, ((4, 0), 0), "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn pool_that_cannot_be_read_costs_its_own_service_a_retry_and_delays_no_other_one() {
    for (status, events) in [(500, [0, 1, 0]), (403, [0, 0, 1])] {
        let cluster = cluster_with(&NAMES).await;
        let fault = json!({"answer": {"status": status}});
        cluster.fault("GET", "/backendAddressPools/default-a$", None, &fault);
        move_to(&cluster, &NAMES, &[2]).await;
        cluster.tick().await;
        // The attempts to read it come first, and are over long before the next try.
        sleep(INTERVAL / 2).await;
        assert_eq!(cluster.events("a").await, events, "{status}");
        cluster.clear_faults();
        assert_members(&cluster, &NAMES[1..], &[2]).await;
        assert_members(&cluster, &NAMES[..1], &[1]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_entries_and_unknown_fields_of_a_large_load_balancer_survive() {
    let cluster = cluster_with(&["a", "b"]).await;
    for name in ["a", "b"] {
        let path = pool_path("kubernetes", &format!("default-{name}"));
        let mut document = cluster.get(&path).await;
        document["futureField"] = json!({"deep": [null, 1.5]});
        let list = &mut document["properties"]["loadBalancerBackendAddresses"];
        let foreign = json!({"name": "appliance", "properties": {"ipAddress": "192.168.7.7", "futureField": 7}});
        list.as_array_mut().unwrap().push(foreign);
        cluster.other("PUT", &path, &document).await;
        sleep(3 * SECOND).await;
    }
    move_to(&cluster, &["a", "b"], &[3]).await;
    sleep(2 * INTERVAL).await;
    for name in ["a", "b"] {
        let document = cluster.pool("kubernetes", &format!("default-{name}")).await;
        assert_eq!(document["futureField"], json!({"deep": [null, 1.5]}), "{name}");
        let addresses = cluster.addresses(&format!("default-{name}")).await;
        assert_eq!(
            addresses,
            ["10.0.0.3", "192.168.7.7"].map(str::to_owned).into(),
            "{name}"
        );
        let list = document["properties"]["loadBalancerBackendAddresses"]
            .as_array()
            .unwrap();
        let foreign = list.iter().find(|entry| entry["name"] == "appliance").unwrap();
        assert_eq!(foreign["properties"]["futureField"], 7);
    }
    assert_eq!(cluster.requests("PUT", &id_of("kubernetes")), 0);
}
