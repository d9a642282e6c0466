//! Eviction notices in Node events, with the shipped rights of the controllers on the real API server.

use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::preempt_events::{Metrics, PreemptEvents};
use headgate_core::clock::Clock;
use headgate_kubernetes::leader::CandidatePlacement;
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use headgate_test_kubernetes::{create_node, event_sink, eventually, met, series_value};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;

use super::SOON;
use super::caller::{ApiRequest, CONTROLLER, Caller};
use super::leader::scene;
use super::rendering::{folder, hardened_with_identity};
use super::rights::{RBAC, node, wait_for_status};

const DRAINING: &str = "cloudprovider.azure.microsoft.com/draining";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// node-problem-detector emits an event about a Node.
async fn emit(administrator: &Caller, node: &str, message: &str) {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    let event = json!({"metadata": {"generateName": "preempt-", "namespace": "default"}, "reason": "PreemptScheduled", "type": "Warning",
        "message": message, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "source": {"component": "custom-scheduledevents-consolidated-preempt-plugin-monitor", "host": node}});
    administrator.post(EVENTS, event).await;
}

async fn is_tainted(administrator: &Caller, name: &str) -> bool {
    let found = administrator.get(&node(name)).await;
    let taints = found["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .any(|taint| taint["key"] == DRAINING && taint["value"] == "spot-eviction" && taint["effect"] == "NoSchedule")
}

async fn tainted(administrator: &Caller, name: &str) {
    eventually(SOON, &format!("{name} is tainted"), async || {
        let found = is_tainted(administrator, name).await;
        found.then_some(()).ok_or_else(|| "it is not".to_owned())
    })
    .await;
}

fn count(registry: &Registry, series: &str) -> u64 {
    series_value(registry, series)
}

const REFUSED: &str = "headgate_node_writes_total{field=\"draining_taint\",outcome=\"refused\"}";

/// Without the right to patch Nodes: counted, retried, and written once the right is back.
async fn refused_without_the_right(administrator: &Caller, leader: &Caller, name: &str, registry: &Registry) {
    let role = format!("{RBAC}/clusterroles/{}", CONTROLLER.name);
    let rules = administrator.get(&role).await["rules"].clone();
    let mut fewer = rules.clone();
    fewer
        .as_array_mut()
        .unwrap()
        .retain(|rule| rule["resources"] != json!(["nodes"]) || rule["verbs"] != json!(["patch"]));
    assert_ne!(fewer, rules);
    administrator.merge(&role, json!({"rules": fewer})).await;
    let probe = json!({"metadata": {"annotations": {"headgate.dev/probe": "2"}}});
    wait_for_status(leader, ApiRequest::merge(&node(name), probe).dry_run(), 403).await;
    emit(
        administrator,
        name,
        "Preempt Scheduled: Fri, 26 Feb 2100 12:13:13 GMT. DurationInSeconds: -1. EventId: C3",
    )
    .await;
    eventually(SOON, "refused", async || match count(registry, REFUSED) {
        0 => Err("0".to_owned()),
        _ => Ok(()),
    })
    .await;
    assert!(!is_tainted(administrator, name).await);
    administrator.merge(&role, json!({"rules": rules})).await;
    tainted(administrator, name).await;
}

#[tokio::test]
async fn a_controllers_token_turns_an_event_into_the_taint() {
    let (control_plane, administrator, _, leader) = scene(&folder(&hardened_with_identity()), CONTROLLER).await;
    let name = create_node(&administrator.client, "spot").await;
    let status = json!({"status": {"nodeInfo": {"bootID": "boot-1", "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""}}});
    let path = format!("{}/status", node(&name));
    administrator.merge(&path, status).await;
    let spot = json!({"metadata": {"labels": {"kubernetes.azure.com/scalesetpriority": "spot"}}});
    administrator.merge(&node(&name), spot).await;
    wait_for_status(&leader, ApiRequest::get(&format!("{EVENTS}?limit=1")), 200).await;
    let probe = json!({"metadata": {"annotations": {"headgate.dev/probe": "1"}}});
    wait_for_status(&leader, ApiRequest::merge(&node(&name), probe).dry_run(), 200).await;
    let (known, mut registry) = (watch::Sender::new(None), Registry::default());
    let task = PreemptEvents {
        client: leader.client.clone(),
        events: event_sink(leader.client.clone(), "leader"),
        metrics: Metrics::register(&mut registry),
        clock: Clock::System,
        other_nodes: OtherNodes::new(
            event_sink(leader.client.clone(), "leader"),
            CandidatePlacement::Replicas,
        ),
    };
    let writer = NodeWriter::new(
        leader.client.clone(),
        NodeWriteMetrics::register(&mut registry),
        Clock::System,
    );
    let intents = NodeIntents::default();
    let run = task.run(intents.field(NodeField::DrainingTaint), known.subscribe());
    let running = tokio::spawn(async move {
        tokio::join!(run, writer.run(intents));
    });

    let first = "Preempt Scheduled: Fri, 26 Feb 2100 10:13:13 GMT. DurationInSeconds: -1. EventId: A1";
    emit(&administrator, &name, first).await;
    tainted(&administrator, &name).await;
    eventually(SOON, "the event about the taint", async || {
        let events = administrator
            .get("/apis/events.k8s.io/v1/namespaces/default/events")
            .await;
        let events = events["items"].as_array().unwrap().clone();
        let found = events
            .iter()
            .any(|event| event["reason"] == "SpotEvictionTaintAdded" && event["regarding"]["name"] == *name);
        met(found, format!("{events:?}"))
    })
    .await;

    administrator
        .merge(&node(&name), json!({"spec": {"taints": null}}))
        .await;
    refused_without_the_right(&administrator, &leader, &name, &registry).await;
    running.abort();
    control_plane.stop().await;
}
