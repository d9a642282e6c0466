//! A cluster of the fake API server with nodes, pods, maintenances and leaders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{NodeTraffic, TrafficByNode};
use headgate_kubernetes::leader::{LeaderMetrics, Term};
use headgate_kubernetes::{Decoded, NodeWriteMetrics, split_list};
use headgate_maintenance::api::{Evacuation, NodeMaintenance, NodeMaintenanceNodeStatus};
use headgate_maintenance::automatic::AutomaticMaintenances;
use headgate_maintenance::controller::{LoadBalancerSource, Metrics};
use headgate_test_kubernetes::{ClientFaults, FakeApi, eventually, met, series_value};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::leader::Candidate;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_mins(1);
pub(crate) const NAMESPACE: &str = "shop";

pub(crate) struct World {
    pub(crate) fake: FakeApi,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    load_balancers: watch::Sender<Arc<TrafficByNode>>,
    pub(crate) registry: Registry,
    metrics: Metrics,
    leader_metrics: LeaderMetrics,
    node_writes: NodeWriteMetrics,
    leaders: AtomicU32,
    /// Whether gates follow the agents' conditions, as without Azure.
    pub(crate) is_probed: bool,
    /// Which nodes get a maintenance by themselves.
    pub(crate) automatic: AutomaticMaintenances,
    /// From the beginning of each term to its first read of the load balancers.
    pub(crate) first_read_after: Duration,
}

/// A process that leads.
pub(crate) struct Leader {
    pub(crate) faults: ClientFaults,
    task: AbortOnDropHandle<()>,
}

impl Leader {
    /// Ends it as SIGKILL does.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

/// A node that is Ready.
pub(crate) fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// No term of a story fails: another would lead, and the story would end as if nothing had happened.
impl Drop for World {
    fn drop(&mut self) {
        for reason in ["error", "returned", "panic"] {
            let series = format!("headgate_leader_failed_terms_total{{reason=\"{reason}\"}}");
            let failed: u32 = series_value(&self.registry, &series);
            assert!(
                failed == 0 || std::thread::panicking(),
                "{failed} terms failed: {reason}"
            );
        }
    }
}

impl World {
    /// Nodes that are in service in their load balancers.
    pub(crate) async fn new(nodes: &[&str]) -> Self {
        let fake = FakeApi::default();
        let (client, clock) = (fake.client().0, fake.clock());
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let leader_metrics = LeaderMetrics::register(&mut registry);
        let node_writes = NodeWriteMetrics::register(&mut registry);
        let world = Self {
            fake,
            client,
            clock,
            load_balancers: watch::Sender::default(),
            registry,
            metrics,
            leader_metrics,
            node_writes,
            leaders: AtomicU32::new(0),
            is_probed: false,
            automatic: AutomaticMaintenances::default(),
            first_read_after: Duration::ZERO,
        };
        for name in nodes {
            world.create::<Node>("", node(name)).await;
        }
        world
    }

    pub(crate) async fn create<K>(&self, namespace: &str, object: Value)
    where
        K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
    {
        let resource = kube::core::ApiResource::erase::<K>(&());
        let api = if namespace.is_empty() {
            Api::<kube::core::DynamicObject>::all_with(self.client.clone(), &resource)
        } else {
            Api::<kube::core::DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource)
        };
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Starts a leader, and waits until it leads.
    pub(crate) async fn lead(&mut self) -> Leader {
        let (leader, mut terms) = self.start_leader();
        let led = tokio::time::timeout(2 * MINUTE, terms.wait_for(Option::is_some)).await;
        drop(led.unwrap().unwrap());
        sleep(2 * SECOND).await;
        leader
    }

    /// Starts a process that leads once it can, and its terms.
    pub(crate) fn start_leader(&self) -> (Leader, watch::Receiver<Option<Term>>) {
        let name = format!("leader-{}", self.leaders.fetch_add(1, Ordering::Relaxed) + 1);
        let (client, faults) = self.fake.client();
        let load_balancers = if self.is_probed {
            LoadBalancerSource::Probes
        } else {
            LoadBalancerSource::Reads(self.load_balancers.subscribe())
        };
        let candidate = Candidate {
            client,
            name,
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            leader_metrics: self.leader_metrics.clone(),
            node_writes: self.node_writes.clone(),
            load_balancers,
            automatic: self.automatic.clone(),
            first_read_after: self.first_read_after,
        };
        let (task, terms) = candidate.start();
        let task = AbortOnDropHandle::new(task);
        (Leader { faults, task }, terms)
    }

    /// What the reads of a node's load balancers show from now on.
    pub(crate) fn observe(&self, node: &str, observation: NodeTraffic) {
        self.load_balancers.send_modify(|all| {
            Arc::make_mut(all).insert(node.to_owned(), observation);
        });
    }

    pub(crate) fn observe_in(&self, node: &str) {
        let detail = "in service in kubernetes/kubernetes".to_owned();
        self.observe(node, NodeTraffic::InService { detail });
    }

    pub(crate) fn observe_out(&self, node: &str) {
        let since = Timestamp::from_second(self.now().as_second()).unwrap();
        self.observe(node, NodeTraffic::Out { since: Some(since) });
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    /// A pod on a node; `fields` are merged into it.
    pub(crate) async fn pod(&self, node: &str, name: &str, fields: &Value) {
        let mut pod = json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        json_patch::merge(&mut pod, fields);
        self.create::<Pod>(NAMESPACE, pod).await;
    }

    /// A pod of a DaemonSet, which may tolerate everything.
    pub(crate) async fn daemon_pod(&self, node: &str, name: &str, tolerates: bool) {
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
        let tolerations = if tolerates {
            json!([{"operator": "Exists"}])
        } else {
            json!([])
        };
        let fields = json!({"metadata": {"ownerReferences": owner}, "spec": {"tolerations": tolerations}});
        self.pod(node, name, &fields).await;
    }

    pub(crate) async fn budget(&self, name: &str, app: &str, allowed: i32) {
        let budget = json!({"metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        self.create::<PodDisruptionBudget>(NAMESPACE, budget).await;
    }

    pub(crate) fn allow(&self, budget: &str, allowed: i32) {
        self.fake.change::<PodDisruptionBudget>(NAMESPACE, budget, |budget| {
            budget["status"]["disruptionsAllowed"] = json!(allowed);
        });
    }

    /// A maintenance of nodes by name; `spec` is merged into it.
    pub(crate) async fn maintain(&self, name: &str, stage: &str, nodes: &[&str], spec: &Value) {
        let terms: Vec<_> = nodes
            .iter()
            .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}))
            .collect();
        let mut object = json!({"metadata": {"name": name},
            "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, "stage": stage}});
        json_patch::merge(&mut object["spec"], spec);
        self.create::<NodeMaintenance>("", object).await;
    }

    /// Drains `one` by the maintenance `m`, so many seconds after it is out of its load balancers.
    pub(crate) async fn drain_one(&self, connections_seconds: u32) {
        let gate = json!({"loadBalancer": {"connectionsDrainSeconds": connections_seconds}});
        self.maintain("m", "Drain", &["one"], &gate).await;
    }

    pub(crate) async fn set_stage(&self, name: &str, stage: &str) {
        let api = Api::<NodeMaintenance>::all(self.client.clone());
        let patch = json!({"spec": {"stage": stage}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub(crate) async fn delete_maintenance(&self, name: &str) {
        let api = Api::<NodeMaintenance>::all(self.client.clone());
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) fn maintenance(&self, name: &str) -> Option<NodeMaintenance> {
        self.fake.peek("", name)
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        self.fake.peek("", name).unwrap()
    }

    pub(crate) fn has_pod(&self, name: &str) -> bool {
        self.fake.peek::<Decoded<Pod>>(NAMESPACE, name).is_some()
    }

    /// The Evacuation of a pod that exists or existed.
    pub(crate) async fn evacuation(&self, pod: &str) -> Option<Evacuation> {
        let all = Api::<Decoded<Evacuation>>::namespaced(self.client.clone(), NAMESPACE);
        let (all, _) = split_list(all.list(&ListParams::default()).await.unwrap());
        all.into_iter().find(|one| one.spec.pod_ref.name == pod)
    }

    /// An evacuator or an instigator changes an Evacuation.
    pub(crate) async fn change_evacuation(&self, pod: &str, change: impl FnOnce(&mut Value)) {
        let name = self.evacuation(pod).await.unwrap().metadata.name.unwrap();
        self.fake.change::<Evacuation>(NAMESPACE, &name, change);
    }

    pub(crate) fn node_status(&self, name: &str, node: &str) -> NodeMaintenanceNodeStatus {
        let status = self.maintenance(name).unwrap().status.unwrap();
        let mut nodes = status.node_statuses.into_iter();
        nodes.find(|status| status.node_ref.name == node).unwrap()
    }

    /// Status and reason of a condition; empty where there is none.
    pub(crate) fn condition(&self, name: &str, kind: &str) -> String {
        let status = self.maintenance(name).and_then(|maintenance| maintenance.status);
        let mut conditions = status.into_iter().flat_map(|status| status.conditions);
        let condition = conditions.find(|condition| condition.type_ == kind);
        condition.map_or_else(String::new, |condition| {
            format!("{} {}", condition.status, condition.reason)
        })
    }

    pub(crate) fn is_drained(&self, name: &str) -> bool {
        self.condition(name, "Drained").starts_with("True ")
    }

    /// Whether nothing of a maintenance is left on a Node that was schedulable.
    pub(crate) fn is_given_back(&self, node: &str) -> bool {
        self.isolation(node) == (false, Vec::new(), None)
    }

    pub(crate) fn uid_of<K>(&self, namespace: &str, name: &str) -> String
    where
        K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned,
    {
        let object: K = self.fake.peek(namespace, name).unwrap();
        object.meta().uid.clone().unwrap()
    }

    /// The types of a Node's conditions that are `True`, but for Ready.
    pub(crate) fn node_conditions(&self, node: &str) -> Vec<String> {
        let conditions = self.node(node).status.unwrap().conditions.unwrap_or_default();
        let shown = |condition: &NodeCondition| condition.status == "True" && condition.type_ != "Ready";
        let shown = conditions.into_iter().filter(shown);
        let mut kinds: Vec<_> = shown.map(|condition| condition.type_).collect();
        kinds.sort();
        kinds
    }

    /// Cordon, the values of the maintenance taint, and the remembered cordon.
    pub(crate) fn isolation(&self, node: &str) -> (bool, Vec<String>, Option<String>) {
        let node = self.node(node);
        let spec = node.spec.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        let own = taints
            .into_iter()
            .filter(|taint| taint.key == "headgate.dev/maintenance");
        let own = own.map(|taint| taint.value.unwrap_or_default()).collect();
        let annotations = node.metadata.annotations.unwrap_or_default();
        let remembered = annotations
            .get("headgate.dev/unschedulable-before-maintenance")
            .cloned();
        (spec.unschedulable == Some(true), own, remembered)
    }

    /// The events in a namespace; those about objects of the cluster are in `default`.
    pub(crate) async fn events(&self, namespace: &str) -> Vec<Event> {
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        events.list(&ListParams::default()).await.unwrap().items
    }

    /// The notes of the events about an object with this reason.
    pub(crate) async fn notes(&self, about: &str, reason: &str) -> Vec<String> {
        let mut events = self.events("default").await;
        events.retain(|event| event.reason.as_deref() == Some(reason) && is_about(event, about));
        events.into_iter().map(|event| event.note.unwrap_or_default()).collect()
    }

    /// How many requests of this method and end of the path arrived.
    pub(crate) fn requests(&self, method: &str, end: &str) -> usize {
        let requests = self.fake.requests();
        let is_it = |path: &str| path.ends_with(end) || path.contains(&format!("{end}/"));
        let requests = requests
            .iter()
            .filter(|request| request.method == method && !request.is_watch);
        requests.filter(|request| is_it(&request.path)).count()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        eventually(2 * MINUTE, what, async || met(is_so(self), "not yet")).await;
    }

    pub(crate) async fn until_drained(&self, name: &str) {
        self.until("drained", |world| world.is_drained(name)).await;
    }

    /// Waits until no pod of these names is left.
    pub(crate) async fn until_gone(&self, pods: &[&str]) {
        let is_gone = |world: &Self| pods.iter().all(|pod| !world.has_pod(pod));
        self.until(&format!("{pods:?} leave"), is_gone).await;
    }

    pub(crate) async fn until_tainted(&self, node: &str) {
        self.until("the taint", |world| !world.isolation(node).1.is_empty())
            .await;
    }

    /// Waits until a request of this method and end of the path has arrived.
    pub(crate) async fn until_requested(&self, method: &str, end: &str) {
        self.until(end, |world| world.requests(method, end) > 0).await;
    }

    /// Waits until a pod has an Evacuation.
    pub(crate) async fn until_evacuating(&self, pod: &str) -> Evacuation {
        eventually(2 * MINUTE, "an Evacuation", async || {
            self.evacuation(pod).await.ok_or_else(|| pod.to_owned())
        })
        .await
    }

    /// The value of a metric's series.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        series_value(&self.registry, series)
    }

    /// The number of events by reason.
    pub(crate) async fn event_counts(&self, about: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for event in self.events("default").await {
            if is_about(&event, about) {
                let count = event.series.map_or(1, |series| series.count);
                *counts.entry(event.reason.unwrap_or_default()).or_default() += usize::try_from(count).unwrap();
            }
        }
        counts
    }
}

pub(crate) fn is_about(event: &Event, name: &str) -> bool {
    let about = event.regarding.as_ref();
    about.and_then(|object| object.name.as_deref()) == Some(name)
}

/// The spec of a maintenance whose pods leave at once where the node is out of its load balancers.
pub(crate) fn at_once() -> Value {
    json!({"loadBalancer": {"connectionsDrainSeconds": 0}})
}
