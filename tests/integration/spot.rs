//! Eviction notices from a fake IMDS to the own Node on a real API server: the signal, the
//! taint and its record, and faults of IMDS.

mod faults;
mod imds;
mod rights;
mod writers;

use std::time::{Duration, Instant};

use headgate_agent::spot::NoticeRecord;
use headgate_test_kubernetes::{assert_contains, control_plane, eventually, met, set_taints};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde_json::json;

use imds::{Fault, Imds, document, event};

use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, SOON, http, objects};

const DRAINING: &str = "cloudprovider.azure.microsoft.com/draining";
const OTHER: &str = "example.com/other";
const LATER: &str = "Fri, 01 Jan 2100 00:00:00 GMT";
const LATER_STILL: &str = "Fri, 01 Jan 2100 00:10:00 GMT";

/// A Node that is instance 3 of a scale set of its own name, with a foreign taint.
async fn create(client: &Client, name: &str) {
    let provider_id = format!(
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/{name}/virtualMachines/3"
    );
    let node = json!({"metadata": {"name": name}, "spec": {"providerID": provider_id,
        "taints": [{"key": OTHER, "value": "v", "effect": "NoSchedule"}]}});
    objects::create(&Api::<Node>::all(client.clone()), node).await;
    boot(client, name, "boot-1").await;
}

/// What kubelet reports after a boot.
async fn boot(client: &Client, name: &str, boot_id: &str) {
    let status = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
    objects::merge_status(&Api::<Node>::all(client.clone()), name, status).await;
}

fn options(node: &str, kubeconfig: &std::path::Path, imds: &Imds) -> AgentOptions {
    AgentOptions::new(node, kubeconfig)
        .settings("kubeProxyHealthzUrl: Disabled\nevictionNotices: [ScheduledEvents]\n")
        .argument(&format!("--imds-endpoint=http://{}", imds.address))
}

/// Waits for `/healthz` to answer, 503 with these signals or 200 without any.
async fn answers(agent: &Agent, within: Duration, signals: &[&str]) {
    let status = if signals.is_empty() { 200 } else { 503 };
    let is_expected = |answer: &http::Response| answer.status == status && answer.json()["signals"] == json!(signals);
    let what = format!("{status} {signals:?}");
    agent.healthz_becomes(within, &what, is_expected).await;
}

/// Asserts the present answer of `/healthz`.
async fn holds(agent: &Agent, signals: &[&str]) {
    let answer = agent.healthz().await;
    let status = if signals.is_empty() { 200 } else { 503 };
    let body = answer.json();
    assert_eq!((answer.status, &body["signals"]), (status, &json!(signals)), "{body}");
}

/// The integer part of a series' value.
async fn metric(agent: &Agent, series: &str) -> u64 {
    let text = agent.metrics().await;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("{series} is not in {text}"));
    value.split('.').next().unwrap().parse().unwrap()
}

/// The Node's taints, each as `key=value:effect`, and the record of its notice.
async fn state(client: &Client, name: &str) -> (Vec<String>, Option<NoticeRecord>) {
    let node = Api::<Node>::all(client.clone()).get(name).await.unwrap();
    let taints = node.spec.unwrap().taints.unwrap_or_default();
    let taints = taints.iter().map(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect)
    });
    let record = NoticeRecord::from_annotations(&node.metadata.annotations.unwrap_or_default());
    (taints.collect(), record)
}

fn other_taint() -> String {
    format!("{OTHER}=v:NoSchedule")
}

fn our_taint() -> String {
    format!("{DRAINING}=spot-eviction:NoSchedule")
}

/// Waits until the Node has the foreign taint and, if `tainted`, headgate's; returns the record.
async fn tainted(client: &Client, name: &str, tainted: bool) -> NoticeRecord {
    let mut want = vec![other_taint()];
    want.extend(tainted.then(our_taint));
    eventually(SOON, &format!("{want:?}"), async || {
        let (taints, record) = state(client, name).await;
        match record {
            Some(record) if taints == want => Ok(record),
            record => Err(format!("{taints:?} {record:?}")),
        }
    })
    .await
}

/// Uses the Node `spot-story`, which has the name of its scale set.
async fn others_events_and_other_types_are_only_shown(client: &Client, agent: &Agent, imds: &Imds) {
    // The eviction of another VM, and all other types of events of this one.
    let harmless = [
        event("other", "Preempt", LATER, &["spot-story_30", "other_3"]),
        event("f", "Freeze", LATER, &["SPOT-Story_3"]),
        event("b", "Reboot", LATER, &["other_1", "spot-story_3"]),
        event("d", "Redeploy", "", &["spot-story_3"]),
        event("t", "Terminate", LATER, &["spot-story_3"]),
    ];
    imds.set(Fault::None(document(7, &harmless)));
    eventually(SOON, "the document is seen", async || {
        let events = agent.statusz().await["scheduledEvents"]["events"].clone();
        let types: Vec<_> = events
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["type"].clone())
            .collect();
        met(types == ["Freeze", "Reboot", "Redeploy", "Terminate"], events)
    })
    .await;
    imds.asked(2).await;
    holds(agent, &[]).await;
    assert_eq!(state(client, "spot-story").await, (vec![other_taint()], None));
    for (kind, listed) in [
        ("Freeze", 1),
        ("Reboot", 1),
        ("Redeploy", 1),
        ("Terminate", 1),
        ("Preempt", 0),
    ] {
        assert_eq!(
            metric(agent, &format!("headgate_spot_notice{{type=\"{kind}\"}}")).await,
            listed,
            "{kind}"
        );
    }

    let text = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
    let line = "event      Freeze Scheduled not before 2100-01-01T00:00:00Z, id \"f\"";
    assert_contains!(text, "VM spot-story_3, 4 scheduled events", line);
}

#[tokio::test]
async fn a_preempt_event_of_this_vm_fails_healthz_and_taints_the_node_once() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-story").await;
    let agent = options("spot-story", &cluster.kubeconfig, &imds).start().await;
    answers(&agent, SOON, &[]).await;

    others_events_and_other_types_are_only_shown(&client, &agent, &imds).await;

    // The eviction of this VM.
    imds.set(Fault::None(document(
        8,
        &[event("A-1", "Preempt", LATER, &["other_1", "Spot-STORY_3"])],
    )));
    let began = Instant::now();
    let is_seen = |answer: &http::Response| {
        let body = answer.json();
        body["signals"].as_array().unwrap().contains(&json!("preempt"))
    };
    agent.healthz_becomes(SOON, "503", is_seen).await;
    println!("notice to 503: {:?}", began.elapsed());
    let record = tainted(&client, "spot-story", true).await;
    assert_eq!(record.event_id, "A-1");
    assert_eq!(record.not_before.unwrap().to_string(), "2100-01-01T00:00:00Z");
    assert_eq!(record.boot_id, "boot-1");
    assert!(record.tainted_at.is_some());
    answers(&agent, SOON, &[DRAINING, "preempt"]).await;
    assert!(agent.statusz().await["node"]["signals"][0]["since"].is_string());
    assert!(
        metric(
            &agent,
            "headgate_spot_notice_not_before_timestamp_seconds{type=\"Preempt\"}"
        )
        .await
            > 4_000_000_000
    );
    assert_eq!(
        metric(
            &agent,
            "headgate_node_writes_total{field=\"draining_taint\",outcome=\"written\"}"
        )
        .await,
        1
    );

    // After an administrator removes the taint, the recorded notice does not set it again.
    let others = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"}]);
    set_taints(&client, "spot-story", others).await;
    for again in [
        event("a-1", "Preempt", LATER, &["spot-story_3"]),
        event("B-2", "Preempt", LATER, &["spot-story_3"]),
        event("B-2", "Preempt", "", &["spot-story_3"]),
    ] {
        imds.set(Fault::None(document(9, &[again])));
        imds.asked(2).await;
    }
    answers(&agent, SOON, &["preempt"]).await;
    assert_eq!(tainted(&client, "spot-story", false).await, record);

    // A new notice taints again.
    imds.set(Fault::None(document(
        3,
        &[event("C-3", "Preempt", LATER_STILL, &["spot-story_3"])],
    )));
    let new = tainted(&client, "spot-story", true).await;
    assert_eq!(new.event_id, "C-3");

    // A boot ends the notice, although it is still listed.
    boot(&client, "spot-story", "boot-2").await;
    let over = tainted(&client, "spot-story", false).await;
    assert_eq!((over.event_id.as_str(), over.tainted_at), ("C-3", None));

    for request in imds.requests() {
        assert_eq!(request.line, "GET /metadata/scheduledevents?api-version=2020-07-01");
        assert_eq!(request.metadata.as_deref(), Some("true"));
        assert!(!request.conditional, "documents are asked for whole");
    }
    // Not each gap: a request may arrive late, and the next one in time.
    let asked = imds.requests();
    let seconds = asked.last().unwrap().at - asked[0].at;
    assert!(
        u64::try_from(asked.len()).unwrap() <= seconds.as_secs() + 3,
        "no more than a question a second: {} in {seconds:?}",
        asked.len()
    );
}
