//! Notices of eviction, from an IMDS made up here to the own Node on a real API server: the signal, the
//! taint and its record, what an IMDS can do wrong, and who else writes the Node meanwhile.

mod imds;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headgate::clock::Clock;
use headgate::node::api_server::ApiServer;
use headgate::node::{self, Report};
use headgate::spot::{self, Record, Seen, Timing};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::harness::agent::Agent;
use crate::harness::cluster::kubectl;
use crate::harness::{AgentOptions, control_plane, eventually, http, own_control_plane};
use crate::node::with_token;
use imds::{Fault, Imds, document, event};

const SOON: Duration = Duration::from_secs(20);
/// A poll each second, and a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);
const DRAINING: &str = "cloudprovider.azure.microsoft.com/draining";
const OTHER: &str = "example.com/other";
const LATER: &str = "Fri, 01 Jan 2100 00:00:00 GMT";
const LATER_STILL: &str = "Fri, 01 Jan 2100 00:10:00 GMT";

/// A Node that is instance 3 of a scale set of its own name, with somebody else's taint.
async fn create(client: &Client, name: &str) {
    let provider_id = format!(
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/{name}/virtualMachines/3"
    );
    let node = json!({"metadata": {"name": name}, "spec": {"providerID": provider_id,
        "taints": [{"key": OTHER, "value": "v", "effect": "NoSchedule"}]}});
    let node: Node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(client.clone())
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    boot(client, name, "boot-1").await;
}

/// What kubelet reports after a boot.
async fn boot(client: &Client, name: &str, boot_id: &str) {
    let patch = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
    let nodes = Api::<Node>::all(client.clone());
    let patch = Patch::Merge(patch);
    nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn patch(client: &Client, name: &str, patch: Value) {
    let nodes = Api::<Node>::all(client.clone());
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

fn options(node: &str, kubeconfig: &std::path::Path, imds: &Imds) -> AgentOptions {
    AgentOptions::new(node, kubeconfig)
        .settings("proxy: {healthzUrl: off}\nazure: {scheduledEvents: true}\n")
        .argument(&format!("--imds-endpoint=http://{}", imds.address))
}

/// Waits for `/healthz` to answer, 503 with these signals or 200 without any.
async fn answers(agent: &Agent, within: Duration, signals: &[&str]) {
    let status = if signals.is_empty() { 200 } else { 503 };
    eventually(within, &format!("{status} {signals:?}"), async || {
        let answer = agent.healthz().await;
        let body = answer.json();
        if answer.status == status && body["signals"] == json!(signals) {
            Ok(())
        } else {
            Err(format!("{} {body}", answer.status))
        }
    })
    .await;
}

/// Sees that `/healthz` answers so now.
async fn holds(agent: &Agent, signals: &[&str]) {
    let answer = agent.healthz().await;
    let status = if signals.is_empty() { 200 } else { 503 };
    let body = answer.json();
    assert_eq!((answer.status, &body["signals"]), (status, &json!(signals)), "{body}");
}

async fn statusz(agent: &Agent) -> Value {
    let request = b"GET /statusz HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n";
    http::exchange(agent.metrics_address(), request).await.unwrap().json()
}

/// The value of a series, its fraction cut off.
async fn metric(agent: &Agent, series: &str) -> u64 {
    let text = agent.metrics().await;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("{series} is not in {text}"));
    value.split('.').next().unwrap().parse().unwrap()
}

/// The Node's taints, each as `key=value:effect`, and the record of its notice.
async fn state(client: &Client, name: &str) -> (Vec<String>, Option<Record>) {
    let node = Api::<Node>::all(client.clone()).get(name).await.unwrap();
    let taints = node.spec.unwrap().taints.unwrap_or_default();
    let taints = taints.iter().map(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect)
    });
    let record = Record::in_annotations(&node.metadata.annotations.unwrap_or_default());
    (taints.collect(), record)
}

fn other_taint() -> String {
    format!("{OTHER}=v:NoSchedule")
}

fn our_taint() -> String {
    format!("{DRAINING}=spot-eviction:NoSchedule")
}

/// Waits for the Node's taints to be the other one and, if `tainted`, ours; gives the record.
async fn tainted(client: &Client, name: &str, tainted: bool) -> Record {
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

/// Of the Node `spot-story`, which is called as its scale set is.
async fn others_events_and_other_types_are_only_shown(client: &Client, agent: &Agent, imds: &Imds) {
    // Another VM's eviction, and every other event of this one.
    let harmless = [
        event("other", "Preempt", LATER, &["spot-story_30", "other_3"]),
        event("f", "Freeze", LATER, &["SPOT-Story_3"]),
        event("b", "Reboot", LATER, &["other_1", "spot-story_3"]),
        event("d", "Redeploy", "", &["spot-story_3"]),
        event("t", "Terminate", LATER, &["spot-story_3"]),
    ];
    imds.set(Fault::None(document(7, &harmless)));
    eventually(SOON, "the document is seen", async || {
        let events = statusz(agent).await["scheduledEvents"]["events"].clone();
        let types: Vec<_> = events
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["type"].clone())
            .collect();
        if types == ["Freeze", "Reboot", "Redeploy", "Terminate"] {
            Ok(())
        } else {
            Err(events.to_string())
        }
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
    assert!(
        text.contains("VM spot-story_3, 4 scheduled events") && text.contains(line),
        "{text}"
    );
}

#[tokio::test]
async fn a_preempt_of_this_very_vm_fails_healthz_at_once_and_taints_the_node_once() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-story").await;
    let agent = options("spot-story", &cluster.kubeconfig, &imds).start().await;
    answers(&agent, SOON, &[]).await;

    others_events_and_other_types_are_only_shown(&client, &agent, &imds).await;

    // Its own.
    imds.set(Fault::None(document(
        8,
        &[event("A-1", "Preempt", LATER, &["other_1", "Spot-STORY_3"])],
    )));
    let began = Instant::now();
    eventually(AT_ONCE, "503", async || {
        let body = agent.healthz().await.json();
        let signals = body["signals"].as_array().unwrap().clone();
        if signals.contains(&json!("azurePreempt")) {
            Ok(())
        } else {
            Err(body.to_string())
        }
    })
    .await;
    println!("notice to 503: {:?}", began.elapsed());
    let record = tainted(&client, "spot-story", true).await;
    assert_eq!(record.event_id, "A-1");
    assert_eq!(record.not_before.unwrap().to_string(), "2100-01-01T00:00:00Z");
    assert_eq!(record.boot_id, "boot-1");
    assert!(record.tainted_at.is_some());
    answers(&agent, SOON, &["azurePreempt", DRAINING]).await;
    assert!(statusz(&agent).await["node"]["signals"][0]["since"].is_string());
    assert!(metric(&agent, "headgate_spot_notice_seconds_left{type=\"Preempt\"}").await > 1_000_000_000);
    assert_eq!(
        metric(&agent, "headgate_spot_taint_writes_total{outcome=\"tainted\"}").await,
        1
    );

    // An administrator's word holds against a recorded notice, whatever becomes of that.
    let others = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"}]);
    patch(&client, "spot-story", json!({"spec": {"taints": others}})).await;
    for again in [
        event("a-1", "Preempt", LATER, &["spot-story_3"]),
        event("B-2", "Preempt", LATER, &["spot-story_3"]),
        event("B-2", "Preempt", "", &["spot-story_3"]),
    ] {
        imds.set(Fault::None(document(9, &[again])));
        imds.asked(2).await;
    }
    answers(&agent, SOON, &["azurePreempt"]).await;
    assert_eq!(tainted(&client, "spot-story", false).await, record);

    // A new notice taints again.
    imds.set(Fault::None(document(
        3,
        &[event("C-3", "Preempt", LATER_STILL, &["spot-story_3"])],
    )));
    let new = tainted(&client, "spot-story", true).await;
    assert_eq!(new.event_id, "C-3");

    // A boot ends it, though the notice is still there.
    boot(&client, "spot-story", "boot-2").await;
    let over = tainted(&client, "spot-story", false).await;
    assert_eq!((over.event_id.as_str(), over.tainted_at), ("C-3", None));

    for request in imds.requests() {
        assert_eq!(request.line, "GET /metadata/scheduledevents?api-version=2020-07-01");
        assert_eq!(request.metadata.as_deref(), Some("true"));
        assert!(!request.conditional, "documents are asked for whole");
    }
    let asked: Vec<_> = imds.requests().iter().map(|request| request.at).collect();
    let least = asked.windows(2).map(|two| two[1] - two[0]).min().unwrap();
    assert!(
        least > Duration::from_millis(800),
        "no more than a question a second: {least:?}"
    );
}

#[tokio::test]
async fn whatever_imds_does_wrong_changes_nothing_else() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-faults").await;
    let agent = options("spot-faults", &cluster.kubeconfig, &imds).start().await;
    answers(&agent, SOON, &[]).await;
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
                if count > before { Ok(()) } else { Err(count.to_string()) }
            })
            .await;
            holds(&agent, signals).await;
            let livez = http::get(agent.metrics_address(), "/livez").await.unwrap();
            assert_eq!(livez.status, 200, "{what:.100}");
        }
    };
    // Before there is a notice, with an error's body that looks like one.
    walk(&[], &good).await;
    assert!(statusz(&agent).await["scheduledEvents"]["trouble"]["reason"] == "timeout");
    assert_eq!(state(&client, "spot-faults").await, (vec![other_taint()], None));

    // A slow answer is an answer.
    imds.set(Fault::Slow(Duration::from_secs(3), good.clone()));
    tainted(&client, "spot-faults", true).await;
    answers(&agent, SOON, &["azurePreempt", DRAINING]).await;

    // While there is one, with an error's body that lists none.
    walk(&["azurePreempt", DRAINING], &document(2, &[])).await;
    tainted(&client, "spot-faults", true).await;
    // Told once for each change of its kind, however often it was asked and however busy the machine is.
    let log = agent.log();
    let mut told = None;
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match line["message"].as_str() {
            Some(message) if message.starts_with("IMDS gives no Scheduled Events") => {
                let reason = line["reason"].as_str().map(ToOwned::to_owned);
                assert_ne!(told, reason, "once for each change: {log}");
                told = reason;
            }
            Some(message) if message.starts_with("IMDS gives Scheduled Events again") => told = None,
            _ => {}
        }
    }
    assert!(told.is_some(), "it was told at all: {log}");
}

#[tokio::test]
async fn the_first_answer_may_take_long_and_nothing_waits_for_it() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-first").await;
    let body = document(1, &[event("a", "Preempt", LATER, &["spot-first_3"])]);
    let delay = Duration::from_secs(8);
    imds.set(Fault::Slow(delay, body));
    let started = Instant::now();
    let agent = options("spot-first", &cluster.kubeconfig, &imds).start().await;
    holds(&agent, &[]).await;
    assert!(started.elapsed() < delay, "{:?}", started.elapsed());
    tainted(&client, "spot-first", true).await;
    assert_eq!(metric(&agent, "headgate_imds_polls_total").await, 1);
    assert_eq!(
        metric(&agent, "headgate_imds_errors_total{reason=\"timeout\"}").await,
        0
    );
}

#[tokio::test]
async fn without_an_api_server_the_signal_comes_all_the_same_and_the_taint_later() {
    let mut control_plane = own_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let imds = Imds::start().await;
    create(&client, "spot-alone").await;
    let options = options("spot-alone", control_plane.kubeconfig(), &imds);
    let agent = options.start().await;
    answers(&agent, SOON, &[]).await;
    eventually(SOON, "the Node is remembered", async || {
        let file = std::fs::read_to_string(agent.directory().join("state.json")).map_err(|error| error.to_string())?;
        if file.contains("virtualMachineScaleSets") && file.contains("boot-1") {
            Ok(())
        } else {
            Err(file)
        }
    })
    .await;
    control_plane.stop_apiserver().await;
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-alone_3"])],
    )));
    answers(&agent, AT_ONCE, &["azurePreempt"]).await;
    // A new process knows from what was remembered which VM it is on.
    agent.kill().await;
    let agent = options.start().await;
    answers(&agent, AT_ONCE, &["azurePreempt"]).await;
    control_plane.start_apiserver().await.unwrap();
    let record = tainted(&client, "spot-alone", true).await;
    assert_eq!(record.event_id, "a");
    drop(agent);
    control_plane.stop().await;
}

/// The room's parts in this process, with shorter times; they end with the test.
struct Room {
    seen: watch::Receiver<Seen>,
}

impl Room {
    fn start(name: &str, watch_client: Client, write_client: Client, imds: &Imds) -> Self {
        let clock = Clock::System;
        let mut registry = Registry::default();
        let reports = watch::Sender::new(Report::initial(None, &[], clock.now()));
        let (seen, received) = watch::channel(Seen::default());
        let metrics = spot::Metrics::register(&mut registry, received.clone(), clock.clone());
        let node_metrics = node::Metrics::register(&mut registry, reports.subscribe(), Vec::new());
        let (own, timing) = (
            reports.subscribe(),
            Timing {
                poll_interval: Duration::from_millis(50),
                grace: Duration::from_secs(2),
            },
        );
        let outlet = node::Outlet {
            reports,
            trouble: watch::Sender::new(None),
        };
        let api_server = ApiServer {
            client: watch_client,
            node_answers: watch::channel(0).1,
        };
        tokio::spawn(node::watch(
            api_server,
            name.to_owned(),
            Vec::new(),
            outlet,
            node_metrics,
            clock.clone(),
        ));
        tokio::spawn(spot::keep(
            write_client,
            name.to_owned(),
            own.clone(),
            received.clone(),
            metrics.clone(),
            clock.clone(),
        ));
        tokio::spawn(spot::poll(imds.address.to_string(), own, seen, timing, metrics, clock));
        Self { seen: received }
    }

    async fn signalled(&mut self, signalled: bool) {
        let waited = self.seen.wait_for(|seen| seen.signals().is_empty() != signalled);
        drop(tokio::time::timeout(SOON, waited).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_notice_that_vanishes_is_over_after_the_grace_and_only_our_taint_goes() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-gone").await;
    let mut room = Room::start("spot-gone", client.clone(), client.clone(), &imds);
    let a = document(2, &[event("a", "Preempt", LATER, &["spot-gone_3"])]);
    imds.set(Fault::None(a.clone()));
    room.signalled(true).await;
    tainted(&client, "spot-gone", true).await;

    // Within the grace nothing changes.
    imds.set(Fault::None(document(3, &[])));
    sleep(Duration::from_secs(1)).await;
    imds.set(Fault::None(a.clone()));
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(room.seen.borrow().signals().len(), 1);
    tainted(&client, "spot-gone", true).await;

    let gone = Instant::now();
    imds.set(Fault::None(document(4, &[])));
    room.signalled(false).await;
    assert!(gone.elapsed() >= Duration::from_secs(2), "{:?}", gone.elapsed());
    assert_eq!(tainted(&client, "spot-gone", false).await.tainted_at, None);

    // The same notice again is a signal and no taint.
    imds.set(Fault::None(a));
    room.signalled(true).await;
    imds.asked(5).await;
    tainted(&client, "spot-gone", false).await;

    // A taint that somebody else has set is not taken for ours, neither before the notice nor after.
    let theirs = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"},
        {"key": DRAINING, "value": "spot-eviction", "effect": "NoSchedule"}]);
    patch(&client, "spot-gone", json!({"spec": {"taints": theirs}})).await;
    imds.set(Fault::None(document(
        5,
        &[event("b", "Preempt", LATER_STILL, &["spot-gone_3"])],
    )));
    eventually(SOON, "the new notice is recorded", async || {
        let (_, record) = state(&client, "spot-gone").await;
        if record.as_ref().is_some_and(|record| record.event_id == "b") {
            Ok(())
        } else {
            Err(format!("{record:?}"))
        }
    })
    .await;
    imds.set(Fault::None(document(6, &[])));
    room.signalled(false).await;
    imds.asked(5).await;
    assert_eq!(
        tainted(&client, "spot-gone", true).await.tainted_at,
        None,
        "theirs is left"
    );
}

#[tokio::test]
async fn a_node_that_others_write_meanwhile_is_read_again_and_nothing_of_theirs_is_lost() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-conflict").await;
    // Each of the first reads is out of date before it arrives.
    let (reads, writes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (admin, counted) = (client.clone(), (Arc::clone(&reads), Arc::clone(&writes)));
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let (admin, (reads, writes)) = (admin.clone(), counted.clone());
        async move {
            let reading = request.method() == "GET";
            let response = admin.send(request).await?;
            if reading {
                let number = reads.fetch_add(1, Ordering::SeqCst);
                if number < 3 {
                    let taints = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"},
                        {"key": format!("example.com/new-{number}"), "effect": "NoSchedule"}]);
                    patch(&admin, "spot-conflict", json!({"spec": {"taints": taints}})).await;
                }
            } else {
                writes.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<_, kube::Error>(response)
        }
    });
    let _room = Room::start("spot-conflict", client.clone(), Client::new(service, "default"), &imds);
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-conflict_3"])],
    )));
    let want = [other_taint(), "example.com/new-2=:NoSchedule".to_owned(), our_taint()];
    eventually(SOON, "tainted", async || {
        let (taints, record) = state(&client, "spot-conflict").await;
        if taints == want && record.is_some() {
            Ok(())
        } else {
            Err(format!("{taints:?} {record:?}"))
        }
    })
    .await;
    assert_eq!((reads.load(Ordering::SeqCst), writes.load(Ordering::SeqCst)), (4, 4));
}

/// A token for the service account `headgate`, bound to a Pod on `node`, as kubelet asks for it.
async fn pod_token(client: &Client, node: &str) -> String {
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
    let pod = json!({"metadata": {"name": "headgate-x"}, "spec": {"nodeName": node, "serviceAccountName": "headgate",
        "automountServiceAccountToken": false, "containers": [{"name": "agent", "image": "headgate"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let request = json!({"spec": {"audiences": [], "boundObjectRef":
        {"apiVersion": "v1", "kind": "Pod", "name": "headgate-x", "uid": pod.metadata.uid}}});
    let request: TokenRequest = serde_json::from_value(request).unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "kube-system");
    let granted = accounts
        .create_token_request("headgate", &PostParams::default(), &request)
        .await
        .unwrap();
    granted.status.unwrap().token
}

#[tokio::test]
async fn the_manifests_allow_the_taint_and_no_more() {
    let control_plane = own_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let imds = Imds::start().await;
    create(&client, "spot-rights").await;
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests/examples/spot");
    let applied = kubectl(control_plane.kubeconfig())
        .args(["apply", "-k"])
        .arg(example)
        .output()
        .unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let token = pod_token(&client, "spot-rights").await;
    let kubeconfig = with_token(control_plane.kubeconfig(), &token);
    // The policy holds once the API server has compiled it.
    let mut number = 0;
    eventually(SOON, "a label is refused", async || {
        number += 1;
        let label = format!("try={number}");
        let mut command = kubectl(&kubeconfig);
        let tried = command
            .args(["label", "node", "spot-rights", &label, "--overwrite"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        if said.contains("headgate may change only annotations and taints") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    let agent = options("spot-rights", &kubeconfig, &imds).start().await;
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-rights_3"])],
    )));
    tainted(&client, "spot-rights", true).await;
    boot(&client, "spot-rights", "boot-2").await;
    tainted(&client, "spot-rights", false).await;

    // Without the component: told once, counted, and the signal all the same.
    let mut command = kubectl(control_plane.kubeconfig());
    let deleted = command
        .args(["delete", "clusterrolebinding", "headgate-spot"])
        .output()
        .unwrap();
    assert!(deleted.status.success());
    imds.set(Fault::None(document(
        3,
        &[event("b", "Preempt", LATER_STILL, &["spot-rights_3"])],
    )));
    eventually(SOON, "refused", async || {
        let count = metric(&agent, "headgate_spot_taint_writes_total{outcome=\"forbidden\"}").await;
        if count >= 2 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    answers(&agent, SOON, &["azurePreempt"]).await;
    assert_eq!(
        agent.log().matches("manifests/components/spot grants").count(),
        1,
        "{}",
        agent.log()
    );
    drop(agent);
    control_plane.stop().await;
}
