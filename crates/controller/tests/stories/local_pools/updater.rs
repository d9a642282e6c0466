//! One story for each way in which an update of a pool ends: applied, retried, parked, final, dropped. The rules themselves are
//! tested in `crates/controller/tests/rules`, and what each error of ARM means in `local_pools::failure`.

use headgate_controller::admin_state::{AdminStateMode, GuardSettings, Policy};
use headgate_controller::local_pools::{LocalPoolsMode, LocalPoolsTarget};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{ENFORCE, SECOND, entries, id_of, load_balancer, pool_path};
use super::cluster::{FAILED, INTERVAL, LocalCluster, Options, nodes, several_load_balancers};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";

/// Whether nobody has ever taken the Lease that is shared with cloud-controller-manager.
fn is_shared_lease_missing(cluster: &LocalCluster) -> bool {
    let lease = cluster.fake.peek::<Lease>("kube-system", "aks-managed-resource-locker");
    lease.is_none()
}

#[tokio::test(start_paused = true)]
async fn throttled_write_parks_the_group_to_the_second() {
    let cluster = LocalCluster::start().await;
    let throttled = json!({"answer": {"status": 429, "retryAfter": 100}});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &throttled);
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
    assert_eq!(cluster.operations(), [0, 0], "a retry is no outcome");
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2, 3]));
    assert_eq!(cluster.events("web").await, [1, 1, 0]);
    assert_eq!((cluster.metric("retries_total"), cluster.outcomes()), (1, (1, 0)));
    assert_eq!(cluster.operations(), [1, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.metric("parked")), (0, 0));
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
async fn failure_of_one_pool_does_not_hold_back_another() {
    for status in [400, 403, 409, 412, 503] {
        let cluster = with_retries(3).await;
        cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": status}}));
        for name in ["web", "api"] {
            cluster.set_slice(name, &format!("{name}-1"), &[2]).await;
        }
        sleep(3 * INTERVAL).await;
        assert_eq!(cluster.addresses("default-api").await, nodes(&[2]), "{status}");
        assert_eq!(cluster.events("api").await, [1, 0, 0], "{status}");
        assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_final() {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": 403}}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.puts(), cluster.events("web").await), (1, [0, 0, 1]));
    assert_eq!((cluster.operations(), cluster.outcomes()), ([1, 1], (0, 1)));
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
    let mut document = cluster.get(&id_of("kubernetes")).await;
    for part in ["loadBalancingRules", "backendAddressPools"] {
        document["properties"][part] = json!([]);
    }
    cluster.other("PUT", &id_of("kubernetes"), &document).await;
    let reads = || cluster.requests("GET", "/loadBalancers/kubernetes");
    let before = reads();
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!((reads() - before, cluster.metric("dropped_total")), (1, 1));
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
    assert_eq!((cluster.metric("queue_depth"), cluster.outcomes()), (0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_a_write_reports_nothing() {
    let mut cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"stall": "60s"}));
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(INTERVAL + 5 * SECOND).await;
    assert_eq!(cluster.puts(), 1);
    cluster.leader.stop().await;
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
    assert_eq!(cluster.outcomes(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_requested_while_nothing_is_due() {
    let cluster = LocalCluster::start().await;
    sleep(3 * INTERVAL).await;
    assert_eq!(
        (cluster.requests("GET", "/loadBalancers/kubernetes"), cluster.puts()),
        (0, 0)
    );
    assert!(is_shared_lease_missing(&cluster));
    assert_eq!(cluster.events("web").await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_shared_lease_everything_stays_queued() {
    let cluster = LocalCluster::start().await;
    assert!(cluster.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(4 * INTERVAL).await;
    assert_eq!((cluster.metric("queue_depth"), cluster.puts()), (1, 0));
    assert_eq!(
        (cluster.metric("retries_total"), cluster.events("web").await),
        (0, [0, 0, 0])
    );
    cluster.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));

    // A tick waits for the Lease when the endpoint moves on, which its holder writes.
    assert!(cluster.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[3]).await;
    cluster.tick().await;
    cluster.set_slice("web", "web-1", &[4]).await;
    let pool =
        json!({"properties": {"virtualNetwork": {"id": "nodes"}, "loadBalancerBackendAddresses": entries([4], false)}});
    let path = pool_path("kubernetes", "default-web");
    cluster.other("PUT", &path, &pool).await;
    sleep(10 * SECOND).await;
    let before = cluster.puts();
    cluster.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[4]));
    assert_eq!(cluster.puts(), before, "the pool was right");
}

#[tokio::test(start_paused = true)]
async fn pool_of_interfaces_is_rejected_with_an_event() {
    let interface =
        "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic/ipConfigurations/c";
    let entry = json!([{"name": "nic", "properties": {"networkInterfaceIPConfiguration": {"id": interface}}}]);
    let cluster = LocalCluster::with_web(Options::of(&[("default-web", entry)]), &[2]).await;
    sleep(4 * INTERVAL).await;
    let notes = cluster.notes(FAILED, "web").await;
    assert_eq!((cluster.puts(), notes.len()), (0, 1), "{notes:?}");
    assert!(notes[0].contains("without an IP address"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn inactive_updater_leaves_pools_alone() {
    let (auto, several) = (LocalPoolsMode::Auto, several_load_balancers());
    for (target, settings, mode) in [
        (LocalPoolsTarget::default(), auto, AdminStateMode::Enforce),
        (several.clone(), LocalPoolsMode::Disabled, AdminStateMode::Enforce),
        (several.clone(), auto, AdminStateMode::Observe),
        (several, auto, AdminStateMode::Disabled),
    ] {
        let options = Options {
            target,
            settings,
            policy: Policy { mode, ..ENFORCE },
            // It reads Services as well.
            guard: GuardSettings::DISABLED,
            ..Options::default()
        };
        let cluster = LocalCluster::with_web(options, &[2]).await;
        sleep(4 * INTERVAL).await;
        assert_eq!(cluster.puts(), 0, "{mode:?}");
        assert!(is_shared_lease_missing(&cluster));
        let requests = cluster.fake.requests();
        let mut watches = requests.iter().filter(|request| request.is_watch);
        assert!(!watches.any(|request| request.path.ends_with("/services")));
    }
}
