//! NodeMaintenances and Evacuations: what the API server accepts, the controller acts on or refuses in the status within 30 s; what the API
//! server refuses, it names; no pod leaves but those that an Evacuation is about or a maintenance drains; and none stops the plain maintenance
//! that follows each batch. They are generated from the definitions ([`samples`]).
//! `HEADGATE_CAMPAIGN=2400` sets how many, `HEADGATE_CAMPAIGN_SEED=17` repeats a run.

mod refusals;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use headgate_core::clock::Clock;
use headgate_core::telemetry::{MetricsFormat, encode_metrics};
use headgate_kubernetes::leader::LeaderMetrics;
use headgate_kubernetes::{NodeWriteMetrics, register_undecodable_objects};
use headgate_maintenance::api::names::is_instigator_finalizer;
use headgate_maintenance::automatic::AutomaticMaintenances;
use headgate_maintenance::controller::{LoadBalancerSource, Metrics};
use headgate_test_kubernetes::{Sample, eventually, kubectl, met, number_from, own_control_plane, samples};
use kube::{Client, Error};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::cluster::{EVACUATIONS, MAINTENANCES, SOON, repository, succeeded};
use crate::leader::Candidate;
use refusals::wrong_refusal;

/// Objects in CI, of both kinds.
const DEFAULT_SIZE: u64 = 100;
/// Objects that exist at the same time, and requests under way.
const BATCH: usize = 100;
const CONCURRENT: usize = 16;
/// From the answer to an object until the controller has acted on it, or refused it. The goal is 30 s, and 21 s were seen. Other tests that run
/// beside it, as in CI, may double that.
fn acted_on_timeout() -> Duration {
    let is_alone = std::env::var_os("HEADGATE_CAMPAIGN").is_some();
    Duration::from_secs(if is_alone { 30 } else { 60 })
}
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const NODES: &str = "/api/v1/nodes";
/// A node without an object, so that no maintenance selects it.
const UNSELECTED: &str = "unselected";
/// Of whoever asks for an Evacuation, where a sample has no finalizers.
const INSTIGATOR: &str = "evacuation.headgate.dev/instigator_campaign.example";
/// Replaced by names that exist, where a sample does not change them.
const NAME: &str = "name";
const POD: &str = "pod";
const UID: &str = "uid";

fn evacuations_in(namespace: &str) -> String {
    format!("/apis/headgate.dev/v1alpha1/namespaces/{namespace}/evacuations")
}

fn pods_in(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// The schema of a kind's objects as they are sent: what the project's definition says of `spec`, and what a client may write in `metadata`.
fn schema(file: &str, examples: &[(&str, Value)]) -> Value {
    let text = std::fs::read_to_string(repository("charts/headgate/files/crds").join(file)).unwrap();
    let definition: Value = serde_yaml::from_str(&text).unwrap();
    let mut spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
    for (pointer, examples) in examples {
        let part = spec
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("{file} has no {pointer}"));
        part["examples"] = examples.clone();
    }
    let text = |most: usize, examples: Value| json!({"type": "string", "maxLength": most, "examples": examples});
    let map = |most: usize| json!({"type": "object", "additionalProperties": text(most, json!(["value"]))});
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "campaign-1", "uid": "a-uid"});
    let finalizers = json!([
        "example.com/hold",
        "evacuation.headgate.dev/instigator_other.example",
        "evacuation.headgate.dev/evacuation-protection",
        "headgate.dev/maintenance-completion"
    ]);
    let metadata = json!({"type": "object", "required": ["name"], "properties": {
        "name": text(253, json!([NAME])), "labels": map(63), "annotations": map(262_144),
        "finalizers": {"type": "array", "items": text(317, finalizers)},
        "ownerReferences": {"type": "array", "items": {"type": "object", "required": ["apiVersion", "kind", "name", "uid"],
            "examples": [owner], "properties": {"apiVersion": text(63, json!([])), "kind": text(63, json!([])), "name": text(253, json!([])),
            "uid": text(64, json!([])), "controller": {"type": "boolean"}}}},
    }});
    json!({"type": "object", "required": ["metadata", "spec"], "properties": {"metadata": metadata, "spec": spec}})
}

/// Selectors and plans that the rules of CEL take.
fn maintenance_schema() -> Value {
    let terms = "/properties/nodeSelector/properties/nodeSelectorTerms/items/properties";
    let requirements = json!([
        {"key": "pool", "operator": "In", "values": ["a"]},
        {"key": "pool", "operator": "NotIn", "values": ["a", "b"]},
        {"key": "example.com/none", "operator": "Exists"},
        {"key": "cores", "operator": "Gt", "values": ["1"]},
    ]);
    let named = json!([{"key": "metadata.name", "operator": "In", "values": ["campaign-2"]}]);
    let plans = json!([[], [{"podPriority": 5}], [{"podPriority": -7, "podSelector": {"matchLabels": {"app": "a"}}},
        {"podPriority": 1000}, {"podPriority": 3, "podType": "DaemonSet"}, {"podPriority": 0, "podType": "Static"}]]);
    let [expressions, fields] = ["matchExpressions", "matchFields"].map(|kind| format!("{terms}/{kind}/items"));
    let selector = "/properties/drainPlan/items/properties/podSelector/properties/matchExpressions/items";
    schema(
        "nodemaintenances.yaml",
        &[
            (expressions.as_str(), requirements),
            (fields.as_str(), named),
            ("/properties/drainPlan", plans),
            (selector, json!([{"key": "app", "operator": "In", "values": ["a"]}])),
        ],
    )
}

fn evacuation_schema() -> Value {
    schema(
        "evacuations.yaml",
        &[
            ("/properties/podRef/properties/name", json!([POD])),
            ("/properties/podRef/properties/uid", json!([UID])),
            (
                "/properties/evacuators/items",
                json!([{"evacuatorClass": "a.example", "priority": 5}, {"evacuatorClass": "b.example", "priority": 20000, "role": "other"}]),
            ),
        ],
    )
}

/// What was sent, and what became of it.
#[derive(Debug, Default)]
struct Counts {
    sent: usize,
    accepted: usize,
    refused: usize,
    slowest: Duration,
    /// Of pods that left because of an Evacuation.
    evicted: usize,
    findings: Vec<String>,
}

/// An object as the API server answered it, and when.
struct Accepted {
    object: Value,
    since: Instant,
}

/// A pod beside the Evacuations of a batch.
struct Pod {
    uid: String,
    name: String,
    node: &'static str,
}

impl Pod {
    /// Whether an Evacuation is about it. Pods are in `default`.
    fn is_of(&self, evacuation: &Value) -> bool {
        let reference = &evacuation["spec"]["podRef"];
        evacuation["metadata"]["namespace"] == "default"
            && reference["uid"] == self.uid.as_str()
            && reference["name"] == self.name.as_str()
    }
}

/// An object to create, or a change of the object `before`.
struct Request {
    path: String,
    before: Option<Value>,
    sample: Sample,
}

impl Request {
    fn create(path: String, sample: Sample) -> Self {
        Self {
            path,
            before: None,
            sample,
        }
    }
}

/// A cluster with a controller.
struct World {
    client: Client,
    registry: Registry,
    controller: JoinHandle<()>,
}

impl World {
    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let content = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let body = body.map_or(Vec::new(), |body| body.to_string().into_bytes());
        let request = hyper::Request::builder().method(method).uri(path);
        let request = request.header("content-type", content).body(body).unwrap();
        self.client.request(request).await
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.send("GET", path, None).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// All objects of both kinds, by UID.
    async fn objects(&self) -> BTreeMap<String, Value> {
        let mut all = self.list(MAINTENANCES).await;
        all.extend(self.list("/apis/headgate.dev/v1alpha1/evacuations").await);
        all.into_iter().map(|object| (uid_of(&object), object)).collect()
    }

    /// The names of the Nodes that are unschedulable.
    async fn cordoned_nodes(&self) -> BTreeSet<String> {
        let mut nodes = self.list(NODES).await;
        nodes.retain(|node| node["spec"]["unschedulable"] == true);
        nodes.iter().map(name_of).collect()
    }

    async fn node(&self, name: &str, labels: Value) {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        self.send("POST", NODES, Some(&node)).await.unwrap();
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.send("PATCH", &format!("{NODES}/{name}/status"), Some(&status))
            .await
            .unwrap();
    }

    /// A pod on a node; returns its UID.
    async fn pod(&self, namespace: &str, node: &str, name: &str) -> String {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"nodeName": node, "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]}});
        uid_of(&self.send("POST", &pods_in(namespace), Some(&pod)).await.unwrap())
    }

    async fn start(client: Client) -> Self {
        let mut registry = Registry::default();
        register_undecodable_objects(&mut registry);
        let candidate = Candidate {
            client: client.clone(),
            name: "campaign".to_owned(),
            clock: Clock::System,
            metrics: Metrics::register(&mut registry),
            leader_metrics: LeaderMetrics::register(&mut registry),
            node_writes: NodeWriteMetrics::register(&mut registry),
            load_balancers: LoadBalancerSource::Probes,
            first_read_after: Duration::ZERO,
            automatic: AutomaticMaintenances::default(),
        };
        let (controller, _) = candidate.start();
        let world = Self {
            client,
            registry,
            controller,
        };
        for namespace in ["default", "other"] {
            if namespace != "default" {
                let object = json!({"metadata": {"name": namespace}});
                world.send("POST", "/api/v1/namespaces", Some(&object)).await.unwrap();
            }
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
            world
                .send("POST", &path, Some(&json!({"metadata": {"name": "default"}})))
                .await
                .unwrap();
        }
        world.node("campaign-1", json!({"pool": "a", "cores": "8"})).await;
        world.node("campaign-2", json!({"pool": "b"})).await;
        world.node("canary", json!({"pool": "canary"})).await;
        // The longest name that a Node can have.
        let long = format!(
            "{}.{}.{}.{}",
            "l".repeat(63),
            "o".repeat(63),
            "n".repeat(63),
            "g".repeat(61)
        );
        world.node(&long, json!({"pool": "a"})).await;
        world
    }

    fn metrics(&self) -> String {
        encode_metrics(&self.registry, MetricsFormat::Prometheus).unwrap()
    }

    /// Sends objects to paths, or changes of the objects `before`, several at a time; returns the answers to those that were accepted.
    async fn send_all(&self, requests: Vec<Request>, counts: &mut Counts) -> Vec<Accepted> {
        counts.sent += requests.len();
        let answers: Vec<_> = stream::iter(requests)
            .map(|request| async move {
                let method = if request.before.is_some() { "PATCH" } else { "POST" };
                let path = format!("{}?fieldValidation=Strict", request.path);
                let answer = self.send(method, &path, Some(&request.sample.value)).await;
                (request, answer, Instant::now())
            })
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        let mut accepted = Vec::new();
        for (Request { sample, before, .. }, answer, since) in answers {
            let wrong = match answer {
                Ok(object) => {
                    accepted.push(Accepted { object, since });
                    continue;
                }
                Err(Error::Api(status)) => wrong_refusal(&sample, before.as_ref(), &status),
                Err(error) => Some(error.to_string()),
            };
            counts.refused += 1;
            let wrong = wrong.map(|what| format!("{} {}: {what}", sample.at, sample.change));
            counts.findings.extend(wrong);
        }
        counts.accepted += accepted.len();
        accepted
    }

    /// Waits until the controller has acted on all of these, or refused them, each in time. An Evacuation may end with that, a maintenance
    /// may not.
    async fn until_acted_on(&self, accepted: &[Accepted], counts: &mut Counts) {
        let mut waiting: Vec<_> = accepted.iter().collect();
        loop {
            let objects = self.objects().await;
            let cordoned = self.cordoned_nodes().await;
            waiting.retain(|Accepted { object, since }| {
                let now = objects.get(&uid_of(object));
                if now.is_none() && object["kind"] == "NodeMaintenance" {
                    counts.findings.push(format!("{object} is gone"));
                }
                let is_done = now.is_none_or(|now| is_acted_on(now, &cordoned));
                if is_done {
                    counts.slowest = counts.slowest.max(since.elapsed());
                }
                !is_done
            });
            if waiting.is_empty() {
                return;
            }
            let late = waiting.iter().find(|one| one.since.elapsed() > acted_on_timeout());
            if let Some(Accepted { object, .. }) = late {
                let now = objects.get(&uid_of(object));
                panic!(
                    "not acted on within {:?}: {now:?}\n{}",
                    acted_on_timeout(),
                    self.metrics()
                );
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The UIDs of all pods that are left.
    async fn pods_left(&self) -> BTreeSet<String> {
        self.list(&pods_in("default")).await.iter().map(uid_of).collect()
    }

    /// Waits until the pods have left that these Evacuations are to evict. One that has an instigator ends only with its pod.
    async fn until_evicted(&self, accepted: &[Accepted], pods: &[Pod], counts: &mut Counts) {
        let wanted = accepted.iter().filter(|one| has_instigator(&one.object));
        for Accepted { object, .. } in wanted {
            let Some(pod) = pods.iter().find(|pod| pod.is_of(object)) else {
                continue;
            };
            if has_no_evacuator(object) {
                eventually(acted_on_timeout(), "the pod of an Evacuation has left", async || {
                    let is_left = self.pods_left().await.contains(&pod.uid);
                    met(!is_left, format!("{object}\n{}", self.metrics()))
                })
                .await;
                counts.evicted += 1;
            } else if !self.objects().await.contains_key(&uid_of(object)) && self.pods_left().await.contains(&pod.uid) {
                counts.findings.push(format!("{object} has ended before its pod"));
            }
        }
    }

    /// The pods that no maintenance selects and that no Evacuation is to evict are left.
    async fn has_kept_others(&self, accepted: &[Accepted], pods: &[Pod], counts: &mut Counts) {
        let left = self.pods_left().await;
        let is_evicted = |pod: &Pod| {
            let mut about = accepted
                .iter()
                .map(|one| &one.object)
                .filter(|object| pod.is_of(object));
            about.any(|object| has_instigator(object) && has_no_evacuator(object))
        };
        let kept = pods.iter().filter(|pod| pod.node == UNSELECTED && !is_evicted(pod));
        for pod in kept.filter(|pod| !left.contains(&pod.uid)) {
            counts.findings.push(format!("the pod {} has left", pod.name));
        }
    }

    /// Ends everything but the canary, and waits until nothing is left of it.
    async fn clean_up(&self) {
        eventually(SOON, "nothing is left", async || {
            let mut left = self.objects().await;
            left.retain(|_, object| !is_canary(object));
            for object in left.values() {
                let path = path_of(object);
                // Finalizers of others are theirs to remove; the instigators' end with the pods.
                let is_maintenance = object["metadata"]["namespace"].is_null();
                let ours = |finalizer: &&Value| is_maintenance && **finalizer == "headgate.dev/maintenance-completion";
                let all = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                let kept: Vec<_> = all.iter().filter(ours).collect();
                if kept.len() < all.len() {
                    let patch = json!({"metadata": {"finalizers": kept}});
                    let _ = self.send("PATCH", &path, Some(&patch)).await;
                }
                if object["metadata"]["deletionTimestamp"].is_null() {
                    let _ = self.send("DELETE", &path, None).await;
                }
            }
            left.values()
                .next()
                .map_or(Ok(()), |object| Err(format!("{object}\n{}", self.metrics())))
        })
        .await;
    }

    /// A plain maintenance beside the batch goes on as if it were alone; so it does once the batch is gone, where that drains the same node.
    async fn canary(&self, number: usize, counts: &mut Counts) {
        let name = format!("canary-{number}");
        self.pod("default", "canary", &name).await;
        let spec = json!({"stage": "Drain",
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["canary"]}]}]},
            "loadBalancer": {"confirmation": "BestEffort", "confirmationTimeoutSeconds": 0, "connectionsDrainSeconds": 0,
                "connectionsTimeoutSeconds": 0}});
        let object = json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec});
        let made = self.send("POST", MAINTENANCES, Some(&object)).await.unwrap();
        let made = Accepted {
            object: made,
            since: Instant::now(),
        };
        self.until_acted_on(&[made], counts).await;
        let mut others = self.list(MAINTENANCES).await.into_iter().filter(|one| !is_canary(one));
        let shares = |object: Value| {
            let nodes = object["status"]["nodeStatuses"].as_array().cloned().unwrap_or_default();
            nodes.iter().any(|node| node["nodeRef"]["name"] == "canary")
        };
        if others.any(shares) {
            self.clean_up().await;
        }
        let path = format!("{MAINTENANCES}/{name}");
        eventually(SOON, "the canary is drained", async || {
            let object = self.send("GET", &path, None).await.unwrap();
            let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            let is_drained = conditions.any(|one| one["type"] == "Drained" && one["status"] == "True");
            let pod = self.send("GET", &format!("{}/{name}", pods_in("default")), None).await;
            met(is_drained && pod.is_err(), format!("{object}\n{}", self.metrics()))
        })
        .await;
        self.clean_up().await;
        self.send("DELETE", &path, None).await.unwrap();
        eventually(SOON, "all nodes are given back", async || {
            let nodes = self.list(NODES).await;
            let is_left = |node: &&Value| node["spec"]["unschedulable"] == true || node["spec"]["taints"].is_array();
            let left = self
                .list(MAINTENANCES)
                .await
                .into_iter()
                .chain(nodes.iter().find(is_left).cloned())
                .next();
            left.map_or(Ok(()), |object| Err(format!("{object}\n{}", self.metrics())))
        })
        .await;
    }

    /// The controller leads as it did at first, and no write of it was refused or failed.
    fn has_gone_on(&self) {
        assert!(!self.controller.is_finished());
        let text = self.metrics();
        let value = |series: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        };
        for (series, expected) in [
            ("headgate_leader", "1"),
            ("headgate_leader_transitions_total{to=\"leader\"}", "1"),
            ("headgate_leader_failed_terms_total{reason=\"panic\"}", "0"),
            ("headgate_leader_failed_terms_total{reason=\"error\"}", "0"),
            ("headgate_maintenance_restarts_total", "0"),
            ("headgate_maintenance_writes_total{outcome=\"refused\"}", "0"),
            ("headgate_maintenance_writes_total{outcome=\"failed\"}", "0"),
        ] {
            assert_eq!(value(series), Some(expected), "{series}\n{text}");
        }
        // A kind has a series from its first such object on.
        for kind in ["NodeMaintenance", "Evacuation"] {
            let series = format!("headgate_undecodable_objects{{kind=\"{kind}\"}}");
            assert_eq!(value(&series), None, "{text}");
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn uid_of(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn is_canary(object: &Value) -> bool {
    object["metadata"]["name"]
        .as_str()
        .is_some_and(|name| name.starts_with("canary-"))
}

fn path_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{}/{name}", evacuations_in(namespace)),
        None => format!("{MAINTENANCES}/{name}"),
    }
}

/// Whether the status says what the controller makes of an object, or the object ends. An accepted maintenance that has begun and may cordon
/// its nodes lists each that its selector matches, and all of them are cordoned: there is no limit here that has a node wait for room.
fn is_acted_on(object: &Value, cordoned: &BTreeSet<String>) -> bool {
    let (status, metadata, spec) = (&object["status"], &object["metadata"], &object["spec"]);
    if object["kind"] == "Evacuation" || metadata["namespace"].is_string() {
        let is_taken_up = status["message"].as_str().is_some_and(|message| !message.is_empty());
        return is_taken_up || metadata["deletionTimestamp"].is_string();
    }
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let Some(accepted) = conditions.find(|condition| condition["type"] == "Accepted") else {
        return false;
    };
    let cordons = spec["stage"] == "Cordon" || spec["stage"] == "Drain";
    let takes_nodes =
        accepted["status"] == "True" && cordons && spec["dryRun"] != true && metadata["deletionTimestamp"].is_null();
    let nodes = status["nodeStatuses"].as_array().map_or(&[][..], Vec::as_slice);
    let is_cordoned = |node: &Value| {
        let name = node["nodeRef"]["name"].as_str();
        name.is_some_and(|name| cordoned.contains(name))
    };
    let lists_all = !nodes.is_empty() && status["selectedNodes"] == nodes.len();
    let has_cordoned = lists_all && nodes.iter().all(is_cordoned);
    status["observedGeneration"] == metadata["generation"] && (!takes_nodes || has_cordoned)
}

#[test]
fn a_maintenance_is_acted_on_once_its_nodes_are_cordoned() {
    let acted_on_of = |selected: usize, spec: Value, accepted: &str, nodes: &[&str]| {
        let nodes: Vec<_> = nodes.iter().map(|node| json!({"nodeRef": {"name": node}})).collect();
        let status = json!({"observedGeneration": 2, "selectedNodes": selected, "nodeStatuses": nodes,
            "conditions": [{"type": "Accepted", "status": accepted}]});
        let object = json!({"kind": "NodeMaintenance", "metadata": {"generation": 2}, "spec": spec, "status": status});
        is_acted_on(&object, &BTreeSet::from(["a".to_owned()]))
    };
    let acted_on = |spec, accepted: &str, nodes: &[&str]| acted_on_of(nodes.len(), spec, accepted, nodes);
    for stage in ["Cordon", "Drain"] {
        let spec = json!({"stage": stage});
        assert!(acted_on(spec.clone(), "True", &["a"]));
        assert!(!acted_on(spec.clone(), "True", &["a", "b"]), "{stage}");
        assert!(!acted_on(spec.clone(), "True", &[]), "{stage}: it has not begun");
        assert!(
            !acted_on_of(2, spec.clone(), "True", &["a"]),
            "{stage}: it leaves one out"
        );
        assert!(acted_on(spec, "False", &[]), "{stage}: it selects no node");
        assert!(acted_on(json!({"stage": stage, "dryRun": true}), "True", &["b"]));
    }
    assert!(acted_on(json!({"stage": "Idle"}), "True", &[]));
    assert!(acted_on(json!({"stage": "Complete"}), "True", &["b"]));
}

fn has_instigator(evacuation: &Value) -> bool {
    let mut finalizers = evacuation["metadata"]["finalizers"].as_array().into_iter().flatten();
    finalizers.any(|finalizer| finalizer.as_str().is_some_and(is_instigator_finalizer))
}

/// Whether the Eviction API comes first. The pods have no annotations that name evacuators.
fn has_no_evacuator(evacuation: &Value) -> bool {
    let evacuators = evacuation["spec"]["evacuators"].as_array();
    evacuators.is_none_or(Vec::is_empty)
}

/// Gives samples names of their own. Where a sample is not about the place of a name, that is left as it is.
fn named(kind: &str, number: usize, mut sample: Sample, (pod, uid): (&str, &str)) -> Sample {
    let object = &mut sample.value;
    for (pointer, placeholder, given) in [("/spec/podRef/name", POD, pod), ("/spec/podRef/uid", UID, uid)] {
        if let Some(value) = object.pointer_mut(pointer).filter(|value| **value == placeholder) {
            *value = json!(given);
        }
    }
    let reference = &object["spec"]["podRef"];
    let name = match (reference["uid"].as_str(), reference["name"].as_str()) {
        (Some(uid), Some(name)) => {
            let short: String = name.chars().take(150).collect();
            format!("{uid}-{}", short.trim_end_matches(['-', '.']))
        }
        _ => format!("{}-{number}", kind.to_lowercase()),
    };
    if let Some(value) = object.pointer_mut("/metadata/name").filter(|value| **value == NAME) {
        *value = json!(name);
    }
    if object.is_object() {
        object["apiVersion"] = json!("headgate.dev/v1alpha1");
        object["kind"] = json!(kind);
    }
    sample
}

#[tokio::test]
async fn campaign_of_objects() {
    let seed = number_from("HEADGATE_CAMPAIGN_SEED").unwrap_or(1);
    let size = usize::try_from(number_from("HEADGATE_CAMPAIGN").unwrap_or(DEFAULT_SIZE)).unwrap();
    let control_plane = own_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let crds = repository("charts/headgate/files/crds");
    let mut apply = kubectl(control_plane.kubeconfig());
    succeeded(&apply.args(["apply", "-f"]).arg(crds).output().unwrap());
    for path in [MAINTENANCES, EVACUATIONS] {
        eventually(SOON, "the kind is served", async || {
            let listed = crate::cluster::request(&client, "GET", path, None).await;
            listed.map(drop).map_err(|refusal| refusal.message)
        })
        .await;
    }
    let world = World::start(client).await;
    let maintenances = samples(&maintenance_schema(), seed, size.div_ceil(2));
    let of_pods = samples(&evacuation_schema(), seed, size / 2);
    let changes = samples(
        &maintenance_schema()["properties"]["spec"],
        seed + 1,
        maintenances.len(),
    );
    let (mut of_maintenances, mut of_evacuations, mut of_changes) =
        (Counts::default(), Counts::default(), Counts::default());
    let mut changes = changes.into_iter();
    let batches = maintenances
        .chunks(BATCH / 2)
        .zip(of_pods.chunks(BATCH / 2))
        .enumerate();
    for (batch, (maintenances, of_pods)) in batches {
        let first = batch * BATCH;
        let objects = maintenances.iter().cloned().enumerate().map(|(number, sample)| {
            let sample = named("NodeMaintenance", first + number, sample, ("", ""));
            Request::create(MAINTENANCES.to_owned(), sample)
        });
        let mut accepted = world.send_all(objects.collect(), &mut of_maintenances).await;
        let (mut objects, mut pods) = (Vec::new(), Vec::new());
        for (number, sample) in of_pods.iter().cloned().enumerate() {
            let number = first + number;
            let name = format!("pod-{number}");
            let other_uid = format!("00000000-0000-4000-8000-{number:012}");
            let node = if number.is_multiple_of(4) {
                "campaign-2"
            } else {
                UNSELECTED
            };
            let mut uid = None;
            // Every eighth is of no pod.
            if number % 8 != 2 {
                let pod = world.pod("default", node, &name).await;
                pods.push(Pod {
                    uid: pod.clone(),
                    name: name.clone(),
                    node,
                });
                // Of a pod that came after the one that is meant.
                uid = (number % 8 != 6).then_some(pod);
            }
            // Of a pod in another namespace.
            let namespace = if number % 4 == 3 { "other" } else { "default" };
            let mut sample = named("Evacuation", number, sample, (&name, &uid.unwrap_or(other_uid)));
            let metadata = sample.value.pointer_mut("/metadata").and_then(Value::as_object_mut);
            if let Some(metadata) = metadata.filter(|_| node == UNSELECTED) {
                metadata.entry("finalizers").or_insert(json!([INSTIGATOR]));
            }
            objects.push(Request::create(evacuations_in(namespace), sample));
        }
        let evacuated = world.send_all(objects, &mut of_evacuations).await;
        tokio::join!(
            world.until_acted_on(&evacuated, &mut of_evacuations),
            world.until_acted_on(&accepted, &mut of_maintenances)
        );
        world.until_evicted(&evacuated, &pods, &mut of_evacuations).await;
        let requests = accepted
            .iter()
            .zip(&mut changes)
            .map(|(Accepted { object, .. }, change)| {
                let (at, value) = (format!("spec.{}", change.at), json!({"spec": change.value}));
                Request {
                    path: path_of(object),
                    before: Some(object.clone()),
                    sample: Sample { at, value, ..change },
                }
            });
        accepted = world.send_all(requests.collect(), &mut of_changes).await;
        world.until_acted_on(&accepted, &mut of_changes).await;
        world.canary(batch, &mut of_maintenances).await;
        world.has_kept_others(&evacuated, &pods, &mut of_evacuations).await;
        world.has_gone_on();
    }
    let mut findings = BTreeSet::new();
    assert!(of_evacuations.evicted > 0, "no Evacuation was to evict a pod");
    for (what, counts) in [
        ("NodeMaintenance", of_maintenances),
        ("Evacuation", of_evacuations),
        ("changed spec", of_changes),
    ] {
        let Counts {
            sent,
            accepted,
            refused,
            slowest,
            evicted,
            ..
        } = counts;
        println!(
            "{what}: {sent} sent, {accepted} accepted, {refused} refused, {evicted} evicted; the slowest was acted on after {slowest:.1?}"
        );
        assert!(accepted > 0 && refused > 0, "{what}: {accepted} and {refused}");
        findings.extend(counts.findings);
    }
    world.controller.abort();
    control_plane.stop().await;
    let findings: Vec<_> = findings.into_iter().collect();
    assert!(
        findings.is_empty(),
        "{} findings\n{}",
        findings.len(),
        findings.join("\n")
    );
}
