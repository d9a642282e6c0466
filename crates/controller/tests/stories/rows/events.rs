//! The rows of "Observability & Telemetry": events on Nodes, and metrics.

use headgate_test_kubernetes::assert_contains;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{ENFORCE, two_load_balancers};
use super::cluster::{DOWN, DRAINING, FAILED, NONE, SECOND, TestCluster};

#[tokio::test(start_paused = true)]
async fn events_regard_nodes_and_have_the_right_types() {
    let cluster = TestCluster::new(3).await;
    cluster.fault("PUT", "IPv6", Some(1), &json!({"answer": {"status": 409}}));
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    let node: k8s_openapi::api::core::v1::Node = cluster.fake.peek("", "node-2").unwrap();
    let events = Api::<Event>::all(cluster.world.client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut seen = Vec::new();
    for event in events {
        let about = event.regarding.unwrap();
        assert_eq!(
            (about.kind.as_deref(), about.uid),
            (Some("Node"), node.metadata.uid.clone())
        );
        assert_eq!(event.reporting_controller.as_deref(), Some("headgate.dev/controller"));
        seen.push((event.reason.unwrap(), event.type_.unwrap()));
    }
    seen.sort();
    let of = |reason: &str, kind: &str| (reason.to_owned(), kind.to_owned());
    assert_eq!(
        seen,
        [of(DOWN, "Normal"), of(NONE, "Normal"), of(FAILED, "Warning")],
        "not one for each Service or pool"
    );
}

#[tokio::test(start_paused = true)]
async fn event_names_rules_without_a_probe() {
    let mut documents = two_load_balancers(3);
    let without = |rule: &mut Value| rule["properties"].as_object_mut().unwrap().remove("probe");
    // No rule of one pool has a probe, and one of two rules of another pool.
    without(&mut documents[1]["properties"]["loadBalancingRules"][0]);
    let rules = documents[0]["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    let mut bare = rules[1].clone();
    bare["name"] = json!("bare");
    bare["properties"]["frontendPort"] = json!(100);
    without(&mut bare);
    rules.push(bare);
    let cluster = TestCluster::with(3, &documents).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    let notes = cluster.notes(DOWN, "node-2").await;
    assert_contains!(
        notes[0],
        "It has no effect in kubernetes-internal/kubernetes: no rule of it has a health probe."
    );
    assert_contains!(
        notes[0],
        "It has no effect on the rules of kubernetes/kubernetes-IPv6 without a health probe."
    );
}

#[tokio::test(start_paused = true)]
async fn series_after_a_journey() {
    let cluster = TestCluster::with_node_2_down().await;
    let pool = [r#"load_balancer="kubernetes""#, r#"pool="kubernetes-IPv6""#];
    for (name, expected) in [
        ("addresses", 3.0),
        ("desired_down", 1.0),
        ("actual_down", 1.0),
        ("eligible", 2.0),
    ] {
        assert_eq!(
            cluster.metric(&format!("headgate_pool_{name}"), &pool),
            Some(expected),
            "{name}"
        );
    }
    cluster.fault(
        "PUT",
        "IPv6",
        Some(1),
        &json!({"answer": {"status": 409, "body": {"error": {"code": "AnotherOperationInProgress"}}}}),
    );
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    let write = [
        r#"request="loadbalancer_adminstate_update_backend_pool""#,
        r#"resource_group="rg""#,
        r#"subscription_id="sub""#,
        r#"source="admin_state_controller""#,
    ];
    let metric = |name: &str, labels: &[&str]| {
        cluster
            .metric(&format!("cloudprovider_azure_{name}"), labels)
            .unwrap_or_default()
    };
    assert!((metric("op_duration_seconds_count", &write) - 7.0).abs() < 0.1);
    // Six operations of a second each, and one rejected PUT.
    let sum = metric("op_duration_seconds_sum", &write);
    assert!((6.0..12.0).contains(&sum), "{sum}");
    assert!((metric("op_failure_count", &write) - 1.0).abs() < 0.1);
    assert!((metric("api_request_duration_seconds_count", &write) - 7.0).abs() < 0.1);
    let refused = metric(
        "api_request_errors",
        &[write[0], r#"code="AnotherOperationInProgress""#],
    );
    assert!((refused - 1.0).abs() < 0.1);
    let lock = [
        r#"lock="aks-managed-resource-locker""#,
        r#"caller="AdminStateController""#,
    ];
    let waits = metric("lock_wait_duration_seconds_count", &lock);
    assert!((4.0..=6.0).contains(&waits), "one for each batch: {waits}");
    let sum = metric("lock_wait_duration_seconds_sum", &lock);
    assert!(sum > 0.0 && sum < 5.0, "{sum}");
    for bound in ["0.001", "8.192"] {
        let labels = [lock[0], lock[1], &format!(r#"le="{bound}""#)];
        assert!(
            cluster
                .metric("cloudprovider_azure_lock_wait_duration_seconds_bucket", &labels)
                .is_some(),
            "{bound}"
        );
    }
    assert_eq!(
        cluster.metric("headgate_admin_state_signal_to_down_seconds_count", &[]),
        Some(1.0)
    );
    let took = cluster
        .metric("headgate_admin_state_signal_to_down_seconds_sum", &[])
        .unwrap();
    assert!(took > 1.0 && took < 8.0, "{took}");
    assert_eq!(cluster.metric("headgate_admin_state_queue_depth", &[]), Some(0.0));
    // The writes that are not sent while ARM throttles them are no operations.
    let refusal = json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 60}});
    cluster.fault("PUT", "", Some(1), &refusal);
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    assert!((metric("op_failure_count", &write) - 2.0).abs() < 0.1);
    assert!((metric("op_duration_seconds_count", &write) - 11.0).abs() < 0.1);
}

#[tokio::test(start_paused = true)]
async fn queue_depth_counts_changes_that_are_due() {
    let mut cluster = TestCluster::new(3).await;
    cluster.fault("PUT", "", None, &json!({"answer": {"status": 409}}));
    cluster.taint(2, &[DRAINING]);
    cluster.taint(3, &[DRAINING]);
    sleep(30 * SECOND).await;
    assert_eq!(cluster.metric("headgate_admin_state_queue_depth", &[]), Some(6.0));
    cluster.clear_faults();
    cluster.settle(&["node-2", "node-3"]).await;
    assert_eq!(cluster.metric("headgate_admin_state_queue_depth", &[]), Some(0.0));
    cluster.stop().await;
    cluster.lead(ENFORCE).await;
    assert_eq!(
        cluster.metric("headgate_pool_actual_down", &[r#"pool="kubernetes-IPv6""#]),
        Some(2.0)
    );
}
