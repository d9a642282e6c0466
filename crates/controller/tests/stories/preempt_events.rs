//! Eviction notices in Node events, on the fake API: one notice taints a Node once, whatever repeats it, and a new one acts again.

use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::TargetStates;
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::ClusterNode;
use headgate_controller::preempt_events::{Metrics, PreemptEvents};
use headgate_core::clock::Clock;
use headgate_core::node::{DRAINING_TAINT, SPOT_NOTICE_ANNOTATION, Taint};
use headgate_kubernetes::leader::CandidatePlacement;
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault, RecordedRequest, event_sink, series_value};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::PostParams;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const SECOND: Duration = Duration::from_secs(1);
const FIRST: &str = "Preempt Scheduled: Fri, 02 Jan 2026 03:05:00 GMT. DurationInSeconds: -1. EventId: A1";
const SECOND_NOTICE: &str = "Preempt Scheduled: Fri, 02 Jan 2026 04:05:00 GMT. DurationInSeconds: -1. EventId: B2";
const QUERY_FAILED: &str = "IMDS query failed, exit code: 28\nConnection timed out after 24 seconds.";

/// A Node `n`, and the leader's task, which knows which Nodes have the taint.
struct Scene {
    fake: FakeApi,
    client: Client,
    clock: Clock,
    targets: watch::Sender<Option<Arc<TargetStates>>>,
    registry: Registry,
    faults: ClientFaults,
    task: AbortOnDropHandle<()>,
}

impl Scene {
    async fn new() -> Self {
        let fake = FakeApi::default();
        let (client, _) = fake.client();
        let clock = fake.clock();
        Self::create(&fake, &client, "2026-01-01T00:00:00Z".parse().unwrap()).await;
        let (targets, mut registry) = (watch::Sender::default(), Registry::default());
        let (task, faults) = start(&fake, &clock, &targets, &mut registry);
        sleep(SECOND).await;
        Self {
            fake,
            client,
            clock,
            targets,
            registry,
            faults,
            task,
        }
    }

    /// Creates the spot Node `n`, now or in place of one that exists.
    async fn create(fake: &FakeApi, client: &Client, created: Timestamp) {
        let node = json!({"metadata": {"name": "n", "annotations": {"a": "b"}, "labels": {"kubernetes.azure.com/scalesetpriority": "spot"}}, "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        fake.delete::<Node>("", "n");
        Api::<Node>::all(client.clone())
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
        fake.change::<Node>("", "n", |node| {
            node["metadata"]["creationTimestamp"] = json!(created);
            node["status"] = json!({"nodeInfo": {"bootID": "boot-1"}});
        });
    }

    /// Creates another spot Node, and returns the API of Nodes.
    async fn add_other(&self, name: &str) -> Api<Node> {
        let other = json!({"metadata": {"name": name, "labels": {"karpenter.sh/capacity-type": "spot"}}, "spec": {"providerID": "azure:///z"}});
        let other: Node = serde_json::from_value(other).unwrap();
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.create(&PostParams::default(), &other).await.unwrap();
        self.fake.change::<Node>("", name, |node| {
            node["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        nodes
    }

    /// Creates spot Nodes, each with an event of this time, a second apart.
    async fn add_spot_nodes(&self, count: usize, at: Timestamp) {
        for number in 0..count {
            let name = format!("spot-{number:02}");
            self.add_other(&name).await;
            self.event_about(&name, FIRST, at).await;
        }
    }

    /// node-problem-detector changes a condition of `n`.
    fn set_condition(&self, kind: &str, status: &str, since: Timestamp) {
        let since = Timestamp::from_second(since.as_second()).unwrap();
        self.fake.change::<Node>("", "n", |node| {
            node["status"]["conditions"] = json!([{"type": kind, "status": status, "lastTransitionTime": since}]);
        });
    }

    /// node-problem-detector emits an event, or repeats it.
    async fn event(&self, message: &str) {
        self.event_at(message, self.clock.now().wall).await;
    }

    async fn event_at(&self, message: &str, at: Timestamp) {
        self.event_about("n", message, at).await;
    }

    async fn event_about(&self, node: &str, message: &str, at: Timestamp) {
        let name = event_name(node, message);
        let event = json!({"metadata": {"name": name, "namespace": "default"}, "reason": "PreemptScheduled", "type": "Warning",
            "message": message, "lastTimestamp": Timestamp::from_second(at.as_second()).unwrap(),
            "involvedObject": {"kind": "Node", "name": node, "uid": node},
            "source": {"component": "custom-scheduledevents-consolidated-preempt-plugin-monitor", "host": node}});
        let event: Event = serde_json::from_value(event).unwrap();
        let events = Api::<Event>::namespaced(self.client.clone(), "default");
        self.fake.delete::<Event>("default", &name);
        events.create(&PostParams::default(), &event).await.unwrap();
        sleep(SECOND).await;
        self.publish();
    }

    fn node(&self) -> Value {
        serde_json::to_value(self.fake.peek::<Node>("", "n").unwrap()).unwrap()
    }

    fn is_tainted(&self) -> bool {
        let node = self.node();
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| {
            taint["key"] == DRAINING_TAINT && taint["value"] == "spot-eviction" && taint["effect"] == "NoSchedule"
        })
    }

    /// The watch of the Nodes shows which have the taint.
    fn publish(&self) {
        let mut targets = TargetStates::default();
        let mut node = ClusterNode {
            name: "n".to_owned(),
            uid: self.node()["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            ..ClusterNode::default()
        };
        if self.is_tainted() {
            node.taints.push(Taint::new(DRAINING_TAINT, "NoSchedule"));
        }
        targets.apply(node, self.clock.now());
        self.targets.send_replace(Some(Arc::new(targets)));
    }

    /// Another writer removes the taint.
    fn clear(&self) {
        self.fake.change::<Node>("", "n", |node| {
            let taints = node["spec"]["taints"].as_array_mut().unwrap();
            taints.retain(|taint| taint["key"] != DRAINING_TAINT);
        });
        self.publish();
    }

    fn count(&self, outcome: &str) -> u64 {
        self.metric(&format!("headgate_preempt_events_total{{outcome=\"{outcome}\"}}"))
    }

    /// Changes of the taint or the recorded notice.
    fn writes(&self) -> u64 {
        self.metric("headgate_node_writes_total{field=\"draining_taint\",outcome=\"written\"}")
    }

    fn metric(&self, series: &str) -> u64 {
        series_value(&self.registry, series)
    }
}

fn event_name(node: &str, message: &str) -> String {
    format!("{node}.{:x}", message.len())
}

fn start(
    fake: &FakeApi,
    clock: &Clock,
    targets: &watch::Sender<Option<Arc<TargetStates>>>,
    registry: &mut Registry,
) -> (AbortOnDropHandle<()>, ClientFaults) {
    let (client, faults) = fake.client();
    let writer = NodeWriter::new(client.clone(), NodeWriteMetrics::register(registry), clock.clone());
    let task = PreemptEvents {
        client: client.clone(),
        events: event_sink(client.clone(), "leader"),
        metrics: Metrics::register(registry),
        clock: clock.clone(),
        other_nodes: OtherNodes::new(event_sink(client.clone(), "leader"), CandidatePlacement::Replicas),
    };
    let intents = NodeIntents::default();
    let run = task.run(intents.field(NodeField::DrainingTaint), targets.subscribe());
    let task = tokio::spawn(async move {
        tokio::join!(run, writer.run(intents));
    });
    (AbortOnDropHandle::new(task), faults)
}

/// The actions of the events with this reason.
async fn actions(client: &Client, reason: &str) -> Vec<String> {
    let events = Api::<k8s_openapi::api::events::v1::Event>::namespaced(client.clone(), "default");
    let all = events.list(&kube::api::ListParams::default()).await.unwrap().items;
    all.into_iter()
        .filter(|event| event.reason.as_deref() == Some(reason))
        .filter_map(|event| event.action)
        .collect()
}

/// The VM was deallocated and came back, or an operator deleted the Node, while the event went on.
#[tokio::test(start_paused = true)]
async fn node_that_is_created_again_is_tainted_by_the_same_message() {
    for is_shown_before_the_event in [true, false] {
        let scene = Scene::new().await;
        scene.event(FIRST).await;
        assert!(scene.is_tainted());
        Scene::create(&scene.fake, &scene.client, scene.clock.now().wall).await;
        if is_shown_before_the_event {
            scene.publish();
        }
        sleep(SECOND).await;
        scene.event(FIRST).await;
        sleep(SECOND).await;
        assert!(scene.is_tainted(), "{is_shown_before_the_event}: {:#}", scene.node());
    }
}

#[tokio::test(start_paused = true)]
async fn one_notice_taints_once_and_a_new_one_acts_again() {
    let scene = Scene::new().await;
    scene.event(QUERY_FAILED).await;
    assert!(!scene.is_tainted() && scene.count("ignored_query_failed") == 1);
    scene.event(FIRST).await;
    assert!(scene.is_tainted(), "{:#}", scene.node());
    assert_eq!(
        (scene.writes(), actions(&scene.client, "SpotEvictionTaintAdded").await),
        (1, vec!["TaintNode".to_owned()])
    );
    assert_eq!(scene.node()["spec"]["taints"][0]["key"], "other");
    let before = scene.node()["metadata"]["resourceVersion"].clone();
    for _ in 0..30 {
        scene.event(FIRST).await;
    }
    assert_eq!(
        scene.node()["metadata"]["resourceVersion"],
        before,
        "repetitions write nothing"
    );
    scene.clear();
    for _ in 0..30 {
        scene.event(FIRST).await;
    }
    assert!(!scene.is_tainted(), "an operator removed the taint");
    scene.event(SECOND_NOTICE).await;
    assert!(scene.is_tainted() && scene.writes() == 2);
    scene.fake.change::<Node>("", "n", |node| {
        node["status"]["nodeInfo"]["bootID"] = json!("boot-2");
    });
    sleep(20 * SECOND).await;
    assert!(!scene.is_tainted() && scene.writes() == 3);
    assert_eq!(actions(&scene.client, "SpotEvictionTaintRemoved").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn notice_is_remembered_through_a_new_leader_and_a_failing_api_server() {
    let mut scene = Scene::new().await;
    scene.event(FIRST).await;
    scene.clear();
    scene.task.abort();
    let mut registry = Registry::default();
    (scene.task, scene.faults) = start(&scene.fake, &scene.clock, &scene.targets, &mut registry);
    sleep(60 * SECOND).await;
    assert!(!scene.is_tainted(), "the list of a new leader has the event");
    scene.fake.restart(10 * SECOND);
    sleep(30 * SECOND).await;
    assert!(!scene.is_tainted(), "and so has the list after a failure");
    scene.event(SECOND_NOTICE).await;
    sleep(30 * SECOND).await;
    assert!(scene.is_tainted());
}

/// The event goes on although the condition has ended, as where only one of two detectors still sees the notice.
#[tokio::test(start_paused = true)]
async fn taint_of_an_announced_eviction_stays_while_a_new_leader_lists_the_events() {
    let mut scene = Scene::new().await;
    scene.event(FIRST).await;
    sleep(SECOND).await;
    scene.set_condition("VMEventScheduled", "False", scene.clock.now().wall);
    scene.event(FIRST).await;
    sleep(30 * SECOND).await;
    assert!(scene.is_tainted() && scene.writes() == 1);
    let mut registry = Registry::default();
    (scene.task, scene.faults) = start(&scene.fake, &scene.clock, &scene.targets, &mut registry);
    let is_list = |request: &RecordedRequest| request.path.ends_with("/events");
    scene.faults.set_for(Fault::Slow(10 * SECOND), is_list);
    sleep(60 * SECOND).await;
    assert!(scene.is_tainted(), "{:#}", scene.node());
    // Once the events are listed, the taint ends without one.
    scene.fake.delete::<Event>("default", &event_name("n", FIRST));
    (scene.task, scene.faults) = start(&scene.fake, &scene.clock, &scene.targets, &mut Registry::default());
    sleep(SECOND).await;
    assert!(!scene.is_tainted());
}

/// The events of a second eviction came while nobody led, and the later one has neither an id nor a time.
#[tokio::test(start_paused = true)]
async fn start_without_an_id_long_after_the_recorded_notice_taints_once() {
    let mut scene = Scene::new().await;
    scene.task.abort();
    scene.fake.change::<Node>("", "n", |node| {
        let record = json!({"eventId": "A1", "notBefore": "2026-01-01T03:05:00Z", "bootId": "boot-0"});
        node["metadata"]["annotations"] = json!({SPOT_NOTICE_ANNOTATION: record.to_string()});
    });
    scene.event(SECOND_NOTICE).await;
    scene.event("Started.").await;
    let mut registry = Registry::default();
    (scene.task, scene.faults) = start(&scene.fake, &scene.clock, &scene.targets, &mut registry);
    sleep(SECOND).await;
    assert!(scene.is_tainted(), "{:#}", scene.node());
    scene.clear();
    for _ in 0..30 {
        scene.event("Started.").await;
    }
    assert!(!scene.is_tainted(), "an operator removed the taint");
}

#[tokio::test(start_paused = true)]
async fn events_of_an_earlier_node_and_old_ones_are_ignored() {
    let scene = Scene::new().await;
    let now = scene.clock.now().wall;
    scene.event_at(FIRST, now - Duration::from_mins(30)).await;
    assert!(!scene.is_tainted() && scene.count("ignored_stale") == 1);
    scene.fake.change::<Node>("", "n", |node| {
        node["metadata"]["creationTimestamp"] = json!(now);
    });
    scene.event_at(SECOND_NOTICE, now - Duration::from_mins(1)).await;
    sleep(20 * SECOND).await;
    assert!(!scene.is_tainted(), "about a Node of this name that was deleted");
    scene.event(FIRST).await;
    assert!(scene.is_tainted());
}

#[tokio::test(start_paused = true)]
async fn node_whose_requests_hang_delays_no_other_notice() {
    let scene = Scene::new().await;
    let nodes = scene.add_other("z").await;
    // As with an admission webhook that hangs for one Node.
    let is_hanging = |request: &RecordedRequest| request.path.ends_with("/nodes/n");
    scene.faults.set_for(Fault::Slow(Duration::from_hours(1)), is_hanging);
    scene.event(FIRST).await;
    let now = scene.clock.now().wall;
    scene.event_about("z", FIRST, now).await;
    let other = serde_json::to_value(nodes.get("z").await.unwrap()).unwrap();
    assert_eq!(other["spec"]["taints"][0]["key"], DRAINING_TAINT, "{other:#}");
    assert!(!scene.is_tainted());
    scene.faults.set(Fault::None);
    sleep(15 * SECOND).await;
    assert!(scene.is_tainted(), "it is tried again");
}

/// A place of the limit is a Node's, however often its write is tried.
#[tokio::test(start_paused = true)]
async fn node_whose_writes_are_refused_delays_no_other_notice() {
    let scene = Scene::new().await;
    let nodes = scene.add_other("z").await;
    // As with an admission webhook that refuses each change of one Node.
    let is_refused = |request: &RecordedRequest| request.method == "PATCH" && request.path.ends_with("/nodes/n");
    scene.faults.set_for(Fault::Status(403), is_refused);
    scene.event(FIRST).await;
    sleep(10 * SECOND).await;
    let now = scene.clock.now().wall;
    scene.event_about("z", FIRST, now).await;
    sleep(4 * SECOND).await;
    let other = serde_json::to_value(nodes.get("z").await.unwrap()).unwrap();
    assert_eq!(other["spec"]["taints"][0]["key"], DRAINING_TAINT, "{other:#}");
    assert!(!scene.is_tainted());
}

/// What the task observes is shared with nothing that outlives it.
#[tokio::test(start_paused = true)]
async fn node_that_does_not_exist_costs_one_read() {
    let scene = Scene::new().await;
    scene.fake.delete::<Node>("", "n");
    scene.targets.send_replace(None);
    let event: Event = serde_json::from_value(
        json!({"metadata": {"name": "x", "namespace": "default"}, "reason": "PreemptScheduled",
        "message": FIRST, "lastTimestamp": "2026-01-02T03:04:06Z", "involvedObject": {"kind": "Node", "name": "gone"}}),
    )
    .unwrap();
    let events = Api::<Event>::namespaced(scene.client.clone(), "default");
    events.create(&PostParams::default(), &event).await.unwrap();
    sleep(60 * SECOND).await;
    let reads = scene
        .fake
        .requests()
        .into_iter()
        .filter(|request| request.path.ends_with("/nodes/gone"));
    assert_eq!(reads.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_that_is_no_spot_vm_is_not_tainted() {
    let scene = Scene::new().await;
    scene
        .fake
        .change::<Node>("", "n", |node| node["metadata"]["labels"] = json!({}));
    scene.event(FIRST).await;
    sleep(60 * SECOND).await;
    assert!(!scene.is_tainted(), "{:#}", scene.node());
    assert_eq!(scene.count("ignored_not_spot"), 1);
}

/// Anyone who may write events can announce all Nodes at once.
#[tokio::test(start_paused = true)]
async fn at_most_five_nodes_a_minute_are_tainted() {
    let scene = Scene::new().await;
    let nodes = Api::<Node>::all(scene.client.clone());
    let now = scene.clock.now().wall;
    scene.add_spot_nodes(12, now).await;
    let tainted = async || {
        let all = nodes.list(&kube::api::ListParams::default()).await.unwrap().items;
        let is_tainted = |node: &&Node| node.spec.as_ref().is_some_and(|spec| spec.taints.is_some());
        all.iter()
            .filter(|node| node.metadata.name.as_deref() != Some("n"))
            .filter(is_tainted)
            .count()
    };
    assert_eq!(tainted().await, 5);
    // The events came a second apart.
    sleep(55 * SECOND).await;
    assert_eq!(tainted().await, 10);
    sleep(60 * SECOND).await;
    assert_eq!(tainted().await, 12, "none is forgotten");
    assert!(scene.count("delayed") >= 7);
}

/// Azure withdrew the eviction while the Node waited for its place: the taint would be of a healthy Node, and final.
#[tokio::test(start_paused = true)]
async fn notice_that_ended_before_its_taint_taints_only_if_it_is_announced_again() {
    let scene = Scene::new().await;
    let begin = scene.clock.now().wall;
    scene.add_spot_nodes(5, begin).await;
    scene.event(FIRST).await;
    let went_false = scene.clock.now().wall + 10 * SECOND;
    scene.set_condition("VMEventScheduled", "False", went_false);
    sleep(120 * SECOND).await;
    assert!(!scene.is_tainted(), "{:#}", scene.node());
    assert_eq!((scene.count("delayed"), scene.count("ignored_stale")), (1, 1));
    // The detector lost the notice for a while only.
    scene.event(FIRST).await;
    assert!(scene.is_tainted(), "{:#}", scene.node());
}

/// The client puts names into URLs as they are.
#[tokio::test(start_paused = true)]
async fn name_that_no_node_can_have_is_not_requested() {
    let scene = Scene::new().await;
    let now = scene.clock.now().wall;
    for name in ["n?dryRun=All", "n/status", "N"] {
        let event = json!({"metadata": {"name": format!("e{}", name.len()), "namespace": "default"}, "reason": "PreemptScheduled",
            "message": FIRST, "lastTimestamp": Timestamp::from_second(now.as_second()).unwrap(), "involvedObject": {"kind": "Node", "name": name}});
        let events = Api::<Event>::namespaced(scene.client.clone(), "default");
        events
            .create(&PostParams::default(), &serde_json::from_value(event).unwrap())
            .await
            .unwrap();
    }
    sleep(60 * SECOND).await;
    assert_eq!(scene.count("ignored_unknown"), 3);
    let requests = scene.fake.requests();
    assert!(
        requests.iter().all(|request| !request.path.contains("/nodes/")),
        "{requests:?}"
    );
}
