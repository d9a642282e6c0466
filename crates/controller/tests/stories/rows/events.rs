//! What "Observability & Telemetry" says: events on Nodes, and series by their names.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{ENFORCE, entries, load_balancer, two_load_balancers};
use super::stage::{DOWN, DRAINING, FAILED, NONE, OUT_OF_SERVICE, SECOND, SHUTDOWN, Stage};

#[tokio::test(start_paused = true)]
async fn down_is_told_once_all_is_applied() {
    let stage = Stage::new(3).await;
    stage.fault(
        "PUT",
        "kubernetes-internal/",
        Some(1),
        &json!({"stall": "40s", "when": "before"}),
    );
    stage.taint(2, &[DRAINING]);
    sleep(30 * SECOND).await;
    assert!(stage.world.events().await.is_empty());
    stage.settle(&["node-2"]).await;
    let notes = stage.notes(DOWN, "node-2").await;
    assert!(
        notes.len() == 1 && notes[0].contains("kubernetes-internal/kubernetes"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_about_nodes_and_of_their_types() {
    let stage = Stage::new(3).await;
    stage.fault("PUT", "IPv6", Some(1), &json!({"answer": {"status": 409}}));
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    let node: k8s_openapi::api::core::v1::Node = stage.fake.peek("", "node-2").unwrap();
    let events = Api::<Event>::all(stage.world.client.clone())
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
        assert_eq!(event.reporting_controller.as_deref(), Some("headgate"));
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
async fn each_events_note_is_its_own() {
    let stage = Stage::new(3).await;
    for key in [OUT_OF_SERVICE, SHUTDOWN] {
        stage.taint(2, &[key]);
        stage.settle(&["node-2"]).await;
        stage.taint(2, &[]);
        stage.settle(&[]).await;
    }
    let notes = stage.notes(DOWN, "node-2").await;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes[0].contains(OUT_OF_SERVICE) && notes[1].contains(SHUTDOWN),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn another_failure_is_told_as_another() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    let refused = |status: u16, code: &str| json!({"answer": {"status": status, "body": {"error": {"code": code, "message": "m"}}}});
    stage.fault("PUT", "", Some(3), &refused(409, "AnotherOperationInProgress"));
    stage.fault("PUT", "", Some(1), &refused(403, "AuthorizationFailed"));
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let notes = stage.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes[0].contains("AnotherOperationInProgress") && notes[1].contains("AuthorizationFailed"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn rules_without_a_probe_are_named() {
    let mut documents = two_load_balancers(3);
    let without = |rule: &mut Value| rule["properties"].as_object_mut().unwrap().remove("probe");
    // None of the rules of one pool, and one of two of another.
    without(&mut documents[1]["properties"]["loadBalancingRules"][0]);
    let rules = documents[0]["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    let mut bare = rules[1].clone();
    bare["name"] = json!("bare");
    bare["properties"]["frontendPort"] = json!(81);
    without(&mut bare);
    rules.push(bare);
    let stage = Stage::with(3, &documents).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let notes = stage.notes(DOWN, "node-2").await;
    assert!(
        notes[0].contains("It has no effect in kubernetes-internal/kubernetes: no rule of it has a health probe."),
        "{notes:?}"
    );
    assert!(
        notes[0].contains("It has no effect on the rules of kubernetes/kubernetes-IPv6 without a health probe."),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn out_of_service_taken_off_a_ready_node_names_the_draining_taint() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.settle(&["node-2"]).await;
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    let notes = stage.notes(NONE, "node-2").await;
    assert!(
        notes.len() == 1 && notes[0].contains("cloud-controller-manager") && notes[0].contains(DRAINING),
        "{notes:?}"
    );
    // Not where it stays out, nor where another taint went.
    for (taint, status) in [(OUT_OF_SERVICE, "False"), (DRAINING, "True")] {
        let stage = Stage::new(3).await;
        stage.node(2, |node| node["status"]["conditions"][0]["status"] = json!(status));
        stage.taint(2, &[taint]);
        stage.settle(&["node-2"]).await;
        stage.taint(2, &[]);
        stage.settle(&[]).await;
        let notes = stage.notes(NONE, "node-2").await;
        assert!(
            notes.len() == 1 && !notes[0].contains("cloud-controller-manager"),
            "{notes:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn out_of_service_taken_off_before_anything_was_written() {
    // cloud-controller-manager is as quick as that.
    let stage = Stage::new(3).await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(SECOND / 100).await;
    stage.taint(2, &[]);
    sleep(60 * SECOND).await;
    stage.until_down(&[]).await;
    let told = stage.told().await;
    let count = |reason: &str| {
        told.get(&(reason.to_owned(), "node-2".to_owned()))
            .copied()
            .unwrap_or_default()
    };
    assert_eq!(count(DOWN), count(NONE), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn series_after_a_journey() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let pool = [r#"load_balancer="kubernetes""#, r#"pool="kubernetes-IPv6""#];
    for (name, expected) in [
        ("addresses", 3.0),
        ("desired_down", 1.0),
        ("actual_down", 1.0),
        ("eligible", 2.0),
    ] {
        assert_eq!(
            stage.metric(&format!("headgate_pool_{name}"), &pool),
            Some(expected),
            "{name}"
        );
    }
    stage.fault(
        "PUT",
        "IPv6",
        Some(1),
        &json!({"answer": {"status": 409, "body": {"error": {"code": "AnotherOperationInProgress"}}}}),
    );
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    let write = [
        r#"request="loadbalancer_adminstate_update_backend_pool""#,
        r#"resource_group="rg""#,
        r#"subscription_id="sub""#,
        r#"source="admin_state_controller""#,
    ];
    let metric = |name: &str, labels: &[&str]| {
        stage
            .metric(&format!("cloudprovider_azure_{name}"), labels)
            .unwrap_or_default()
    };
    assert!((metric("op_duration_seconds_count", &write) - 7.0).abs() < 0.1);
    // Six that took ARM's second, and one that was refused at once.
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
            stage
                .metric("cloudprovider_azure_lock_wait_duration_seconds_bucket", &labels)
                .is_some(),
            "{bound}"
        );
    }
    assert_eq!(
        stage.metric("headgate_admin_state_signal_to_down_seconds_count", &[]),
        Some(1.0)
    );
    let took = stage
        .metric("headgate_admin_state_signal_to_down_seconds_sum", &[])
        .unwrap();
    assert!(took > 1.0 && took < 8.0, "{took}");
    assert_eq!(stage.metric("headgate_admin_state_queue_depth", &[]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_as_deep_as_what_is_still_to_be_written() {
    let mut stage = Stage::new(3).await;
    stage.fault("PUT", "", None, &json!({"answer": {"status": 409}}));
    stage.taint(2, &[DRAINING]);
    stage.taint(3, &[DRAINING]);
    sleep(30 * SECOND).await;
    assert_eq!(stage.metric("headgate_admin_state_queue_depth", &[]), Some(6.0));
    stage.no_faults();
    stage.settle(&["node-2", "node-3"]).await;
    assert_eq!(stage.metric("headgate_admin_state_queue_depth", &[]), Some(0.0));
    stage.stop().await;
    stage.lead(ENFORCE).await;
    assert_eq!(
        stage.metric("headgate_pool_actual_down", &[r#"pool="kubernetes-IPv6""#]),
        Some(2.0)
    );
}
