//! The tests of the design of bounded retry, and defects of cloud-provider-azure's updater that headgate does not have.

use headgate_controller::local_service::{LocalPoolsSettings, LocalPoolsTarget};
use headgate_local_pools::Enabled;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{SECOND, entries, id_of, load_balancer};
use super::cluster::{FAILED, INTERVAL, LocalCluster, Options, RETRYING, nodes, pool_path, several_load_balancers};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";
const READ: &str = "/loadBalancers/kubernetes$";

fn throttled(retry_after: Option<u32>) -> Value {
    json!({"answer": {"status": 429, "retryAfter": retry_after}})
}

/// Throttles the next request, whose group is then parked for 100 s.
async fn parks_to_the_second(method: &str, path: &str) {
    let cluster = LocalCluster::start().await;
    cluster.fault(method, path, Some(1), &throttled(Some(100)));
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 1, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.metric("parked")), (1, 1));
    let calls = || (cluster.requests("GET", "/loadBalancers/kubernetes"), cluster.puts());
    let before = calls();
    for _ in 0..2 {
        cluster.tick().await;
        // A fresh update of the group waits as well.
        cluster.set_slice("web", "web-1", &[1, 2, 3]).await;
    }
    assert_eq!(calls(), before, "a parked group needs no request");
    assert_eq!(cluster.events("web").await, [0, 1, 0]);
    assert_eq!((cluster.metric("retries_total"), cluster.outcomes()), (1, (0, 0)));
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2, 3]));
    assert_eq!(cluster.events("web").await, [1, 1, 0]);
    assert_eq!((cluster.metric("retries_total"), cluster.outcomes()), (1, (1, 0)));
    assert_eq!((cluster.metric("queue_depth"), cluster.metric("parked")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn throttled_read_parks_the_group_to_the_second() {
    parks_to_the_second("GET", READ).await;
}

#[tokio::test(start_paused = true)]
async fn throttled_write_parks_the_group_to_the_second() {
    parks_to_the_second("PUT", PUT_OF_WEB).await;
}

#[tokio::test(start_paused = true)]
async fn throttled_write_without_retry_after_succeeds_at_the_next_tick() {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &throttled(None));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 1, 0]);
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [1, 1, 0]);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
}

/// Two Services with a pool each on one load balancer; the slices of both have changed.
async fn two_services() -> LocalCluster {
    let pools = [
        ("default-web", entries([1], false)),
        ("default-api", entries([1], false)),
    ];
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        ..Options::default()
    })
    .await;
    for name in ["web", "api"] {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[2]).await;
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn closed_throttle_gate_parks_without_a_request() {
    let cluster = two_services().await;
    cluster.fault("PUT", "/backendAddressPools/", Some(1), &throttled(Some(50)));
    cluster.tick().await;
    assert_eq!(cluster.puts(), 1, "the gate refuses the second one");
    let retrying = [cluster.events("web").await, cluster.events("api").await];
    assert_eq!(retrying, [[0, 1, 0], [0, 0, 0]], "what was not sent costs no retry");
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.addresses("default-api").await, nodes(&[2]));
    assert_eq!(cluster.outcomes(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn failure_of_one_pool_does_not_hold_back_another() {
    for status in [400, 403, 409, 412, 503] {
        let cluster = two_services().await;
        cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": status}}));
        sleep(3 * INTERVAL).await;
        assert_eq!(cluster.addresses("default-api").await, nodes(&[2]), "{status}");
        assert_eq!(cluster.events("api").await, [1, 0, 0], "{status}");
        assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_is_retried_at_the_next_tick_after_a_fresh_read() {
    for status in [409, 412] {
        let cluster = LocalCluster::start().await;
        cluster.fault("PUT", PUT_OF_WEB, Some(1), &json!({"answer": {"status": status}}));
        cluster.set_slice("web", "web-1", &[3]).await;
        cluster.tick().await;
        assert_eq!(
            (cluster.puts(), cluster.events("web").await),
            (1, [0, 1, 0]),
            "{status}"
        );
        let notes = cluster.notes(RETRYING, "web").await;
        assert!(
            notes[0].starts_with("Backend pool update failed, will retry: "),
            "{notes:?}"
        );
        let reads = cluster.requests("GET", "/loadBalancers/kubernetes");
        cluster.tick().await;
        assert!(cluster.requests("GET", "/loadBalancers/kubernetes") > reads);
        assert_eq!(
            (cluster.puts(), cluster.events("web").await),
            (2, [1, 1, 0]),
            "{status}"
        );
        assert_eq!(cluster.addresses("default-web").await, nodes(&[3]));
        // A success after a retry is one success.
        assert_eq!(cluster.outcomes(), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_update_is_reported_with_guidance_and_found_again_by_the_resync() {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": 409}}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(6 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (4, [0, 3, 1]));
    let notes = cluster.notes(FAILED, "web").await;
    assert!(
        notes[0].starts_with("Backend pool update failed after 3 retries: "),
        "{notes:?}"
    );
    assert!(notes[0].contains("To retrigger, "), "{notes:?}");
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 1)));
    cluster.clear_faults();
    sleep(12 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.outcomes(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn status_that_the_client_has_retried_is_tried_again_in_the_next_ticks() {
    for status in [500, 502, 503, 504] {
        let cluster = LocalCluster::start().await;
        cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": status}}));
        cluster.set_slice("web", "web-1", &[2]).await;
        sleep(3 * INTERVAL).await;
        let [updated, retrying, failed] = cluster.events("web").await;
        assert!(updated == 0 && retrying > 1 && failed == 0, "{status}: {retrying}");
        cluster.clear_faults();
        sleep(2 * INTERVAL).await;
        assert_eq!(cluster.addresses("default-web").await, nodes(&[2]), "{status}");
        assert_eq!((cluster.outcomes(), cluster.metric("queue_depth")), ((1, 0), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_final() {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": 403}}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 0, 1]));
    let notes = cluster.notes(FAILED, "web").await;
    assert!(
        notes[0].starts_with("Backend pool update failed (non-retriable): "),
        "{notes:?}"
    );
    // A change of the Service's endpoints tries again at once.
    cluster.clear_faults();
    cluster.set_slice("web", "web-1", &[2, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2, 3]));
}

#[tokio::test(start_paused = true)]
async fn pool_that_is_gone_is_dropped_without_event_and_metric() {
    let cluster = LocalCluster::start().await;
    // The first tick finds nothing to do; then the pool vanishes without a list that shows it.
    cluster.tick().await;
    let mut document = cluster.world.get(&id_of("kubernetes")).await;
    for part in ["loadBalancingRules", "backendAddressPools"] {
        document["properties"][part] = json!([]);
    }
    cluster.world.other("PUT", &id_of("kubernetes"), &document).await;
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn service_that_is_deleted_during_the_write_leaves_silently() {
    let cluster = LocalCluster::with(Options {
        operation_delay: 5 * SECOND,
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    let conflict = json!({"operation": "fail", "error": {"code": "Conflict", "message": "m", "details": []}});
    cluster.fault("PUT", PUT_OF_WEB, None, &conflict);
    while cluster.puts() == 0 {
        sleep(SECOND).await;
    }
    cluster.delete_service("web").await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 0, 0]));
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 0)));
}

/// A group that ARM has parked for 200 s.
async fn parked() -> LocalCluster {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &throttled(Some(200)));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!((cluster.metric("parked"), cluster.events("web").await), (1, [0, 1, 0]));
    cluster
}

#[tokio::test(start_paused = true)]
async fn service_that_disappears_while_parked_leaves_silently() {
    let cluster = parked().await;
    cluster.delete_service("web").await;
    sleep(10 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 1, 0]));
    assert_eq!((cluster.metric("queue_depth"), cluster.metric("parked")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn service_that_stops_being_local_while_parked_leaves_silently() {
    let cluster = parked().await;
    cluster
        .patch_service("web", &json!({"spec": {"externalTrafficPolicy": "Cluster"}}))
        .await;
    cluster.tick().await;
    assert_eq!((cluster.metric("queue_depth"), cluster.metric("parked")), (0, 0));
    sleep(10 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn shutdown_drops_parked_updates_without_events() {
    let mut cluster = parked().await;
    cluster.leader.stop().await;
    sleep(10 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 1, 0]));
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_a_write_reports_nothing() {
    let mut cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"stall": "60s"}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(INTERVAL + 5 * SECOND).await;
    cluster.leader.stop().await;
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
    assert_eq!(cluster.outcomes(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn without_retries_the_first_conflict_is_final() {
    let cluster = LocalCluster::with(Options {
        target: LocalPoolsTarget {
            max_retries: Some(0),
            ..several_load_balancers()
        },
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": 409}}));
    sleep(3 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 0, 1]));
    let notes = cluster.notes(FAILED, "web").await;
    assert!(
        notes[0].contains("after 0 retries") && notes[0].contains("retrigger"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_requested_while_nothing_is_due() {
    let cluster = LocalCluster::start().await;
    sleep(3 * INTERVAL).await;
    assert_eq!(
        (cluster.requests("GET", "/loadBalancers/kubernetes"), cluster.puts()),
        (0, 0)
    );
    let lease = cluster
        .fake
        .peek::<k8s_openapi::api::coordination::v1::Lease>("kube-system", "aks-managed-resource-locker");
    assert!(lease.is_none(), "{lease:?}");
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_shared_lease_everything_stays_queued() {
    let cluster = LocalCluster::start().await;
    assert!(cluster.world.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.metric("queue_depth"), cluster.puts()), (1, 0));
    assert_eq!(
        (cluster.metric("retries_total"), cluster.events("web").await),
        (0, [0, 0, 0])
    );
    cluster.world.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
}

#[tokio::test(start_paused = true)]
async fn update_that_cloud_controller_manager_has_made_costs_no_write() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    cluster.set_slice("web", "web-1", &[2, 3]).await;
    let mut pool = cluster.pool("kubernetes", "default-web").await;
    pool["properties"]["loadBalancerBackendAddresses"] = entries([2, 3], false);
    cluster
        .world
        .other("PUT", &pool_path("kubernetes", "default-web"), &pool)
        .await;
    sleep(3 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (0, [0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn new_and_deleted_slices_change_the_pool() {
    let cluster = LocalCluster::start().await;
    cluster.set_slice("web", "web-2", &[1, 3]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 3]));
    // The first node leaves one slice and is still in the other.
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2, 3]));
    cluster.delete_slice("web-2").await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    cluster.set_slice("web", "web-1", &[]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[]), "scaled to zero");
    assert_eq!(cluster.outcomes(), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn foreign_entries_and_unknown_fields_survive() {
    let mut entry = entries([1], false);
    entry[0]["properties"]["futureField"] = json!(7);
    entry
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "appliance", "properties": {"ipAddress": "192.168.7.7", "adminState": "Up"}}));
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &[("default-web", entry.clone())])],
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    cluster.tick().await;
    let pool = cluster.pool("kubernetes", "default-web").await;
    let written = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    assert_eq!(written.len(), 3, "{written:?}");
    assert_eq!(written[0]["properties"]["futureField"], 7);
    assert_eq!(written[1]["properties"]["adminState"], "Up");
    assert_eq!(written[2]["name"], "node-2");
    assert_eq!(pool["properties"]["drainPeriodInSeconds"], 30);
}

#[tokio::test(start_paused = true)]
async fn pool_of_interfaces_is_rejected_with_an_event() {
    let interface =
        "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic/ipConfigurations/c";
    let entry = json!([{"name": "nic", "properties": {"networkInterfaceIPConfiguration": {"id": interface}}}]);
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &[("default-web", entry)])],
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(4 * INTERVAL).await;
    let notes = cluster.notes(FAILED, "web").await;
    assert_eq!((cluster.puts(), notes.len()), (0, 1), "{notes:?}");
    assert!(notes[0].contains("without an IP address"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn inactive_updater_leaves_pools_alone() {
    let off = LocalPoolsSettings {
        enabled: Enabled::Off,
        ..LocalPoolsSettings::default()
    };
    for (target, settings) in [
        (LocalPoolsTarget::default(), LocalPoolsSettings::default()),
        (several_load_balancers(), off),
    ] {
        let cluster = LocalCluster::with(Options {
            target,
            settings,
            ..Options::default()
        })
        .await;
        cluster.add_service("web").await;
        cluster.set_slice("web", "web-1", &[2]).await;
        sleep(4 * INTERVAL).await;
        assert_eq!(cluster.puts(), 0);
        let requests = cluster.fake.requests();
        let mut watches = requests.iter().filter(|request| request.is_watch);
        assert!(!watches.any(|request| request.path.ends_with("/services")));
    }
}
