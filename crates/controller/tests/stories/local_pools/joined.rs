//! Updates of members and admin states of the same pools: one writer, one PUT, and no admin state waits for members.

use headgate_controller::admin_state::GuardSettings;
use headgate_test_kubernetes::Fault;
use hyper::Method;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{SECOND, entries, load_balancer};
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, operations_of};

const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";
const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";

/// A member that is removed loses its connections at once; one that is `Down` keeps those that are open.
#[tokio::test(start_paused = true)]
async fn member_of_a_node_that_is_being_deleted_is_down_for_minutes_before_it_leaves() {
    let cluster = LocalCluster::with_web(Options::of(&[("default-web", entries([1, 2], false))]), &[1, 2]).await;
    cluster.tick().await;
    cluster.fake.change::<Node>("", "node-1", |node| {
        node["metadata"]["finalizers"] = json!(["karpenter.sh/termination"]);
        node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    });
    sleep(5 * SECOND).await;
    let down = ["node-1".to_owned()].into();
    assert_eq!(cluster.world.down("kubernetes", "default-web"), down);
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]), "it drains");
    assert_eq!(cluster.world.down("kubernetes", "default-web"), down);
    sleep(10 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.puts(), 2, "one for the admin state, one for the member");
}

/// A signal on the first node and a due update of members meet in one write.
async fn meeting() -> LocalCluster {
    let options = Options {
        // The node has the only entry.
        guard: GuardSettings::DISABLED,
        ..Options::default()
    };
    let cluster = LocalCluster::with_web(options, &[1]).await;
    cluster.tick().await;
    assert!(cluster.take_arm_lease().await);
    cluster.world.taint(1, &[SIGNAL]).await;
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0);
    // Both sources wait for the Lease; the read is slow enough that the members are due when it ends.
    cluster.fault("GET", "/loadBalancers/kubernetes$", Some(1), &json!({"stall": "1s"}));
    cluster
}

#[tokio::test(start_paused = true)]
async fn due_members_join_a_write_of_admin_states() {
    let cluster = meeting().await;
    cluster.release_arm_lease().await;
    sleep(5 * SECOND).await;
    assert_eq!(cluster.puts(), 1);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!(cluster.down(), ["node-1"]);
    assert_eq!((cluster.outcomes(), cluster.events("web").await), ((1, 0), [1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn failed_common_write_is_repeated_at_once_without_the_members() {
    for status in [400, 409, 412] {
        let cluster = meeting().await;
        cluster.fault("PUT", PUT_OF_WEB, Some(1), &json!({"answer": {"status": status}}));
        cluster.release_arm_lease().await;
        sleep(5 * SECOND).await;
        assert_eq!(cluster.puts(), 2, "{status}");
        assert_eq!(cluster.down(), ["node-1"]);
        assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "{status}");
        sleep(INTERVAL).await;
        if status == 400 {
            assert_eq!((cluster.outcomes(), cluster.events("web").await), ((0, 1), [0, 0, 1]));
            continue;
        }
        assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]), "{status}");
        assert_eq!((cluster.outcomes(), cluster.events("web").await), ((1, 0), [1, 1, 0]));
        assert_eq!((cluster.puts(), cluster.metric("retries_total")), (3, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn parked_members_join_no_write_and_delay_none() {
    let cluster = LocalCluster::with_web(Options::of(&[("default-web", entries([1, 2], false))]), &[1, 2, 3]).await;
    // ARM's code says that the subscription is not throttled: only this group is parked.
    let busy = json!({"answer": {"code": "RetryableErrorDueToAnotherOperation", "retryAfter": 200}});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &busy);
    cluster.tick().await;
    assert_eq!((cluster.metric("parked"), cluster.events("web").await), (1, [0, 1, 0]));
    cluster.world.taint(1, &[SIGNAL]).await;
    sleep(5 * SECOND).await;
    assert_eq!(cluster.down(), ["node-1"]);
    assert_eq!(
        cluster.addresses("default-web").await,
        nodes(&[1, 2]),
        "still without the third"
    );
    sleep(8 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2, 3]));
    assert_eq!(cluster.down(), ["node-1"]);
}

#[tokio::test(start_paused = true)]
async fn admin_states_that_cannot_be_written_do_not_hold_back_members() {
    let pools = [
        ("default-web", entries([1], false)),
        ("default-api", entries([1], false)),
    ];
    let cluster = LocalCluster::with_web(Options::of(&pools), &[1]).await;
    cluster.fault(
        "PUT",
        "/backendAddressPools/default-api$",
        None,
        &json!({"answer": {"status": 403}}),
    );
    cluster.world.taint(1, &[SIGNAL]).await;
    sleep(INTERVAL).await;
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!(cluster.down(), ["node-1"]);
}

/// An attempt is repeated because nothing can be recorded, and leaves the admin states out that ARM has refused until a time.
#[tokio::test(start_paused = true)]
async fn members_do_not_wait_for_admin_states_of_their_pool_that_arm_has_refused() {
    let options = Options {
        guard: GuardSettings::DISABLED,
        ..Options::of(&[
            ("default-web", entries([1], false)),
            ("default-api", entries([1, 2], false)),
        ])
    };
    let cluster = LocalCluster::with_web(options, &[1]).await;
    cluster.tick().await;
    cluster.world.taint(1, &[SIGNAL]).await;
    sleep(5 * SECOND).await;
    cluster.faults.set_for(Fault::Status(403), |request| {
        request.path.ends_with("/headgate-admin-state") && request.method != Method::GET
    });
    let refusal = json!({"answer": {"status": 409, "retryAfter": 300}});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &refusal);
    let refused = |cluster: &LocalCluster| cluster.requests("PUT", "/default-web");
    let before = refused(&cluster);
    cluster.world.taint(2, &[SIGNAL]).await;
    cluster.world.taint(1, &[]).await;
    sleep(2 * INTERVAL).await;
    cluster.faults.set(Fault::None);
    sleep(INTERVAL).await;
    assert_eq!(refused(&cluster), before + 1, "refused once");
    assert_eq!(
        cluster.world.down("kubernetes", "default-api"),
        ["node-2".to_owned()].into()
    );
    cluster.set_slice("web", "web-1", &[1, 2, 3]).await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn admin_states_overtake_a_tick_of_many_pools() {
    let names: Vec<String> = (0..12).map(|number| format!("default-s{number}")).collect();
    let pools: Vec<_> = names.iter().map(|name| (name.as_str(), entries([1], false))).collect();
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        azure: operations_of(2 * SECOND),
        // Each pool has one entry at first.
        guard: GuardSettings::DISABLED,
        ..Options::default()
    })
    .await;
    for number in 0..12 {
        let name = format!("s{number}");
        cluster.add_service(&name).await;
        cluster.set_slice(&name, &format!("{name}-1"), &[1, 2]).await;
    }
    while cluster.puts() < 2 {
        sleep(SECOND / 10).await;
    }
    cluster.world.taint(1, &[SIGNAL]).await;
    let before = cluster.puts();
    while cluster.world.down("kubernetes", "default-s11").is_empty() {
        sleep(SECOND / 10).await;
    }
    // At most the write under way, and the one of each pool that sets the node `Down`.
    assert!(cluster.puts() <= before + 13, "{before} and {}", cluster.puts());
    sleep(2 * INTERVAL).await;
    for name in &names {
        assert_eq!(cluster.addresses(name).await, nodes(&[1, 2]), "{name}");
        assert_eq!(
            cluster.world.down("kubernetes", name),
            ["node-1".to_owned()].into(),
            "{name}"
        );
    }
    assert!(cluster.puts() <= 26, "{}", cluster.puts());
}
