//! cloud-provider-azure's tests of bounded retry (pull requests 10635 and 10730) that `updater` does not have: budgets, newer
//! members, and what is measured.

use headgate_controller::local_service::LocalPoolsTarget;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{SECOND, entries, load_balancer};
use super::cluster::{FAILED, INTERVAL, LocalCluster, Options, nodes, several_load_balancers};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";
const READ: &str = "/loadBalancers/kubernetes$";

fn status(status: u16) -> Value {
    json!({"answer": {"status": status}})
}

/// A cluster with the Services `web` and `api`, whose pools have the first node, and this number of retries.
async fn with_retries(max_retries: i64) -> LocalCluster {
    let pools = [
        ("default-web", entries([1], false)),
        ("default-api", entries([1], false)),
    ];
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        target: LocalPoolsTarget {
            max_retries: Some(max_retries),
            ..several_load_balancers()
        },
        ..Options::default()
    })
    .await;
    for name in ["web", "api"] {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[1]).await;
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn success_is_one_observation_and_no_failure() {
    let cluster = with_retries(3).await;
    cluster.set_slice("api", "api-1", &[2]).await;
    cluster.tick().await;
    assert_eq!((cluster.events("api").await, cluster.operations()), ([1, 0, 0], [1, 0]));
    // After two retries as well.
    cluster.fault("PUT", PUT_OF_WEB, Some(2), &status(409));
    cluster.set_slice("web", "web-1", &[2]).await;
    for retries in 1..=2 {
        cluster.tick().await;
        assert_eq!(cluster.events("web").await, [0, retries, 0]);
        assert_eq!(cluster.operations(), [1, 0], "a retry is no outcome");
    }
    cluster.tick().await;
    assert_eq!((cluster.events("web").await, cluster.operations()), ([1, 2, 0], [2, 0]));
    assert_eq!(cluster.outcomes(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn exhausted_retries_are_one_observation_and_one_failure() {
    // An outage may outlast the attempts of the ARM client.
    for code in [408, 500, 502, 503, 504] {
        let cluster = with_retries(3).await;
        cluster.fault("PUT", PUT_OF_WEB, None, &status(code));
        cluster.set_slice("web", "web-1", &[2]).await;
        sleep(6 * INTERVAL).await;
        let notes = cluster.notes(FAILED, "web").await;
        assert!(
            notes.len() == 1 && notes[0].contains("after 3 retries"),
            "{code} {notes:?}"
        );
        assert_eq!((cluster.operations(), cluster.outcomes()), ([1, 1], (0, 1)), "{code}");
        assert_eq!(cluster.metric("queue_depth"), 0, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn broken_connection_is_retried() {
    let cluster = with_retries(3).await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"cut": "before"}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(6 * INTERVAL).await;
    let notes = cluster.notes(FAILED, "web").await;
    assert_eq!((cluster.events("web").await, notes.len()), ([0, 3, 1], 1));
    assert!(notes[0].contains("after 3 retries"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_nothing_parks_for_a_second() {
    let cluster = with_retries(3).await;
    let throttled = json!({"answer": {"status": 429, "retryAfter": 0}});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &throttled);
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!((cluster.events("web").await, cluster.metric("parked")), ([0, 1, 0], 1));
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.events("web").await, [1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn newer_members_have_a_fresh_budget_and_are_written() {
    let cluster = with_retries(1).await;
    cluster.fault("PUT", PUT_OF_WEB, None, &status(409));
    for members in [&[2][..], &[3], &[4]] {
        cluster.set_slice("web", "web-1", members).await;
        cluster.tick().await;
    }
    assert_eq!((cluster.puts(), cluster.events("web").await), (3, [0, 3, 0]));
    cluster.clear_faults();
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[4]));
    assert_eq!(cluster.outcomes(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn unchanged_members_keep_the_retries() {
    let cluster = with_retries(1).await;
    cluster.fault("PUT", PUT_OF_WEB, None, &status(409));
    let pods = |number: usize| {
        let pod = |pod: usize| json!({"addresses": [format!("10.244.2.{pod}")], "nodeName": "node-2"});
        Value::Array((1..=number).map(pod).collect())
    };
    for number in 1..=2 {
        // Another number of endpoints on the same node.
        cluster.put_slice("default", Some("web"), "web-1", &pods(number)).await;
        cluster.tick().await;
    }
    assert_eq!((cluster.puts(), cluster.events("web").await), (2, [0, 1, 1]));
    let notes = cluster.notes(FAILED, "web").await;
    assert!(notes[0].contains("after 1 retries"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn newer_members_during_the_write_replace_the_failed_ones() {
    let cluster = LocalCluster::with(Options {
        operation_delay: 5 * SECOND,
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    let conflict =
        json!({"operation": "fail", "error": {"code": "Conflict", "message": "m", "details": []}, "effect": "lost"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &conflict);
    while cluster.puts() == 0 {
        sleep(SECOND).await;
    }
    cluster.set_slice("web", "web-1", &[3]).await;
    sleep(2 * INTERVAL).await;
    assert_eq!(
        cluster.addresses("default-web").await,
        nodes(&[3]),
        "not the second node"
    );
    assert_eq!((cluster.puts(), cluster.outcomes()), (2, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn retried_update_of_a_deleted_service_is_dropped() {
    let cluster = with_retries(3).await;
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &status(409));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(
        (cluster.metric("queue_depth"), cluster.events("web").await),
        (1, [0, 1, 0])
    );
    cluster.delete_service("web").await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 1, 0]));
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn retried_update_of_a_moved_service_is_dropped_where_it_was() {
    let pool = [("default-web", entries([1], false))];
    let cluster = LocalCluster::with(Options {
        load_balancers: ["kubernetes", "second"].map(|name| load_balancer(name, &pool)).to_vec(),
        ..Options::default()
    })
    .await;
    cluster.place_rule("default-web", "kubernetes").await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.fault(
        "PUT",
        "/loadBalancers/kubernetes/backendAddressPools/",
        None,
        &status(409),
    );
    while cluster.events("web").await == [0, 0, 0] {
        sleep(SECOND).await;
    }
    let before = (cluster.puts(), cluster.events("web").await);
    assert_eq!(before, (1, [0, 1, 0]));
    cluster.place_rule("default-web", "second").await;
    sleep(3 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (2, [1, 1, 0]));
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (1, 0)));
}

/// Seed tests 7, 8 and 15. A pool has one Service, because headgate skips pools that two have; a read of the load balancer
/// that fails costs all its due updates one retry.
#[tokio::test(start_paused = true)]
async fn each_update_keeps_its_own_budget_where_one_read_fails_for_all() {
    let cluster = with_retries(1).await;
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &status(409));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 1, 0]);
    // A fresh update beside the retried one: the budget of one is exhausted, that of the other is not.
    cluster.set_slice("api", "api-1", &[2]).await;
    cluster.fault("GET", READ, Some(1), &status(409));
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 1, 1]);
    assert_eq!(cluster.events("api").await, [0, 1, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (1, (0, 1)));
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-api").await, nodes(&[2]));
    assert_eq!(cluster.events("api").await, [1, 1, 0]);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "given up for now");
}
