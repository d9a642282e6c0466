//! Faults of IMDS, and an API server that is down.

use std::time::Duration;

use headgate_test_kubernetes::{control_plane, eventually, met, own_cluster, patch_node};
use serde_json::{Value, json};

use super::imds::{Fault, Imds, document, event};
use super::{DRAINING, LATER, OTHER, SOON, answers, create, holds, metric, options, other_taint, state, tainted};
use crate::harness::{AgentOptions, http};

#[tokio::test]
async fn imds_faults_change_neither_verdict_nor_taints() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-faults").await;
    // The first request, which is never answered, delays nothing else.
    imds.set(Fault::Hang);
    let agent = options("spot-faults", &cluster.kubeconfig, &imds).start().await;
    holds(&agent, &[]).await;
    assert_eq!(metric(&agent, "headgate_imds_polls_total").await, 0);
    let good = document(1, &[event("a", "Preempt", LATER, &["spot-faults_3"])]);
    let unreadable = json!({"Events": [{"EventId": "x", "EventType": "Preempt"}]}).to_string();
    let faults = |text: &str| {
        [
            ("status", Fault::Status(400, text.to_owned())),
            ("status", Fault::Status(404, text.to_owned())),
            ("status", Fault::Status(410, text.to_owned())),
            ("status", Fault::Status(429, text.to_owned())),
            ("status", Fault::Status(500, text.to_owned())),
            ("status", Fault::Status(304, String::new())),
            ("status", Fault::Status(204, String::new())),
            ("document", Fault::None("<html>".to_owned())),
            ("document", Fault::None(String::new())),
            ("document", Fault::None(r#"{"Events":null}"#.to_owned())),
            ("event", Fault::None(unreadable.clone())),
            ("connection", Fault::None(format!("{text}{}", " ".repeat(300 * 1024)))),
            ("timeout", Fault::Hang),
        ]
    };
    let walk = async |signals: &[&str], text: &str| {
        for (reason, fault) in faults(text) {
            let series = format!("headgate_imds_errors_total{{reason=\"{reason}\"}}");
            let before = metric(&agent, &series).await;
            let what = format!("{fault:?}");
            imds.set(fault);
            eventually(SOON, &what[..what.len().min(100)], async || {
                let count = metric(&agent, &series).await;
                met(count > before, count)
            })
            .await;
            holds(&agent, signals).await;
            let livez = http::get(agent.metrics_address(), "/livez").await.unwrap();
            assert_eq!(livez.status, 200, "{what:.100}");
        }
    };
    // Faults before a notice; the error's body looks like a notice.
    walk(&[], &good).await;
    assert!(agent.statusz().await["scheduledEvents"]["trouble"]["reason"] == "timeout");
    assert_eq!(state(&client, "spot-faults").await, (vec![other_taint()], None));

    // A slow response counts.
    imds.set(Fault::Slow(Duration::from_secs(3), good.clone()));
    tainted(&client, "spot-faults", true).await;
    answers(&agent, SOON, &[DRAINING, "preempt"]).await;

    // Faults during a notice; the error's body lists no events.
    walk(&[DRAINING, "preempt"], &document(2, &[])).await;
    tainted(&client, "spot-faults", true).await;
    // Logged once in each walk, however many polls bring it; the others are too short.
    let log = agent.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let messages: Vec<_> = lines
        .filter_map(|line| line["message"].as_str().map(ToOwned::to_owned))
        .collect();
    let count = |start| messages.iter().filter(|message| message.starts_with(start)).count();
    assert_eq!(
        (
            count("Scheduled Events not readable"),
            count("no Scheduled Events from IMDS"),
            count("Scheduled Events received again")
        ),
        (2, 0, 1),
        "{log}"
    );
}

#[tokio::test]
async fn a_preempt_event_during_an_api_server_outage_fails_healthz_and_taints_later() {
    let (mut control_plane, client) = own_cluster().await;
    let imds = Imds::start().await;
    create(&client, "spot-alone").await;
    let options = options("spot-alone", control_plane.kubeconfig(), &imds);
    let agent = options.start().await;
    answers(&agent, SOON, &[]).await;
    eventually(SOON, "the Node is remembered", async || {
        let file = std::fs::read_to_string(agent.directory().join("state.json")).map_err(|error| error.to_string())?;
        met(
            file.contains("virtualMachineScaleSets") && file.contains("boot-1"),
            file,
        )
    })
    .await;
    control_plane.stop_apiserver().await;
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-alone_3"])],
    )));
    answers(&agent, SOON, &["preempt"]).await;
    // A new process knows its VM from the remembered state.
    agent.kill().await;
    let agent = options.start().await;
    answers(&agent, SOON, &["preempt"]).await;
    control_plane.start_apiserver().await.unwrap();
    let record = tainted(&client, "spot-alone", true).await;
    assert_eq!(record.event_id, "a");
    drop(agent);
    control_plane.stop().await;
}

#[tokio::test]
async fn an_agent_without_the_feature_removes_the_taint_of_a_notice_that_has_passed() {
    const NAME: &str = "spot-off";
    const TAINTED_AT: &str = "2026-01-01T00:00:00Z";
    let cluster = control_plane();
    let client = cluster.client();
    create(&client, NAME).await;
    let record =
        json!({"eventId": "A-1", "notBefore": "2026-01-01T00:00:30Z", "bootId": "boot-1", "taintedAt": TAINTED_AT});
    let annotations = json!({"headgate.dev/spot-notice": record.to_string()});
    let taints = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"},
        {"key": DRAINING, "value": "spot-eviction", "effect": "NoSchedule", "timeAdded": TAINTED_AT}]);
    let noticed = json!({"metadata": {"annotations": annotations}, "spec": {"taints": taints}});
    patch_node(&client, NAME, noticed).await;
    let agent = AgentOptions::new(NAME, &cluster.kubeconfig)
        .settings("kubeProxyHealthzUrl: Disabled\n")
        .start()
        .await;
    let record = tainted(&client, NAME, false).await;
    assert_eq!((record.event_id.as_str(), record.tainted_at), ("A-1", None));
    answers(&agent, SOON, &[]).await;
}
