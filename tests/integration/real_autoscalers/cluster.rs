//! The cluster that the real autoscalers change: a control plane with controllers and scheduler, kwok, the emulator, headgate's leader, and an
//! agent for each node that an autoscaler makes. Two nodes of the test's own take the pods that have to move.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process::{Process, command_in, last_log_lines};
use headgate_test_kubernetes::{eventually, kubectl, met, own_control_plane, scratch};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::azure::Azure;
use super::held_pods;
use super::timeline::{SAMPLE_INTERVAL, Step, Timelines};
use crate::harness::{AgentOptions, start_controller};

/// Time for everything that an autoscaler does, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(5);
/// The label of the nodes that Cluster Autoscaler makes.
pub(super) const NODE_GROUP: &str = "kwok-nodegroup";
/// The label of the nodes that Karpenter makes.
pub(super) const NODE_POOL: &str = "karpenter.sh/nodepool";
const HARD_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const KARPENTER_TAINT: &str = "karpenter.sh/disrupted";
const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// What a cluster is started with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterOptions {
    /// The duration of each write to Azure.
    pub(super) operation_delay: &'static str,
    /// Whether agents delay Cluster Autoscaler, and Karpenter's nodes have a pod that holds them.
    pub(super) holds: bool,
}

/// What the tasks share.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) kubeconfig: PathBuf,
    pub(super) azure: Azure,
    pub(super) timelines: Timelines,
    holds: bool,
    numbers: AtomicU8,
}

/// A running cluster. Dropping it ends its processes.
pub(super) struct Cluster {
    pub(super) control_plane: ControlPlane,
    pub(super) shared: Arc<Shared>,
    leader: Process,
    kwok: Process,
    tasks: JoinSet<()>,
}

/// A directory of programs that a variable names.
pub(super) fn program(variable: &str, name: &str, help: &str) -> PathBuf {
    let directory = std::env::var_os(variable).map(PathBuf::from);
    let program = directory
        .map(|directory| directory.join(name))
        .filter(|program| program.is_file());
    program.unwrap_or_else(|| panic!("{variable} names no directory with the program {name}: {help}"))
}

/// The directory that tests/autoscalers/build.sh prints.
pub(super) fn built() -> PathBuf {
    let kwok = program("AUTOSCALERS", "kwok", "run make autoscalers");
    kwok.parent().unwrap().to_owned()
}

impl Cluster {
    pub(super) async fn start(options: ClusterOptions) -> Self {
        let mut control_plane = own_control_plane().await;
        // kwok's nodes have no leases that a controller could watch.
        control_plane
            .start_controller_manager(&["--controllers=*,-node-lifecycle-controller"])
            .unwrap();
        control_plane.start_scheduler().unwrap();
        let client = Client::try_from(control_plane.client_config()).unwrap();
        let kubeconfig = control_plane.kubeconfig().to_owned();
        let directory = scratch("kwok");
        let mut command = command_in(built().join("kwok"), &directory);
        let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/autoscalers/stages.yaml");
        command.arg("--kubeconfig").arg(&kubeconfig).arg("--config").arg(stages);
        command.arg("--manage-all-nodes=true");
        let kwok = Process::start("kwok", command, &directory.join("log")).unwrap();
        let azure = Azure::start(options.operation_delay).await;
        let shared = Arc::new(Shared {
            client,
            kubeconfig,
            azure,
            timelines: Timelines::default(),
            holds: options.holds,
            numbers: AtomicU8::new(1),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_nodes(Arc::clone(&shared)));
        tasks.spawn(sample_pool(Arc::clone(&shared)));
        let leader = start_leader(&shared);
        let mut cluster = Self {
            control_plane,
            shared,
            leader,
            kwok,
            tasks,
        };
        for name in ["base-1", "base-2"] {
            let room = json!({"cpu": "2", "memory": "8Gi", "ephemeral-storage": "8Gi", "pods": "110"});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}, "status": {"capacity": room, "allocatable": room}});
            cluster.apply(&node).await;
        }
        eventually(PATIENCE, "the pool has the first nodes", async || {
            let (_, all) = cluster.shared.azure.members().await;
            met(all.len() == 2, format!("{all:?}"))
        })
        .await;
        if options.holds {
            cluster.install_hold().await;
        }
        cluster
    }

    /// Installs the `DaemonSet` that delays Karpenter, and plays the kubelets of its pods.
    async fn install_hold(&mut self) {
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/aks/headgate.yaml");
        let ours = "--selector=app.kubernetes.io/component=hold";
        self.kubectl(&["apply", "-f", manifests.to_str().unwrap(), ours]).await;
        self.tasks.spawn(held_pods::run(Arc::clone(&self.shared)));
    }

    /// Runs kubectl, which must succeed.
    pub(super) async fn kubectl(&self, arguments: &[&str]) -> String {
        let mut command = kubectl(&self.shared.kubeconfig);
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{error}");
        text
    }

    /// Applies an object.
    pub(super) async fn apply(&self, object: &Value) {
        let file = scratch("object").join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]).await;
    }

    /// Creates a deployment of pods that request this CPU, with further fields of their spec.
    pub(super) async fn deploy(&self, name: &str, replicas: u32, cpu: &str, others: Value) {
        let labels = json!({"app": name});
        let requests = json!({"cpu": cpu});
        let mut pod = json!({"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "none", "resources": {"requests": requests}}]});
        for (key, value) in others.as_object().cloned().unwrap_or_default() {
            pod[key] = value;
        }
        self.apply(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod}}}),
        )
        .await;
    }

    pub(super) async fn scale(&self, name: &str, replicas: u32) {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(&["scale", "deployment", name, &replicas]).await;
    }

    /// The one node with this label, once it is ready and in the pool, its agent answers 200, and this number of pods runs on it.
    pub(super) async fn node_of(&self, label: &str, pods: usize) -> String {
        let mut found = self.nodes_of(label, 1, pods).await;
        found.remove(0)
    }

    /// The same for several nodes.
    pub(super) async fn nodes_of(&self, label: &str, count: usize, pods: usize) -> Vec<String> {
        eventually(PATIENCE, &format!("{count} nodes with {pods} pods"), async || {
            let list = self.kubectl(&["get", "nodes", "-l", label, "-o", "json"]).await;
            let list: Value = serde_json::from_str(&list).unwrap();
            let names = list["items"].as_array().unwrap().iter();
            let names: Vec<String> = names
                .map(|node| node["metadata"]["name"].as_str().unwrap().to_owned())
                .collect();
            let (down, all) = self.shared.azure.members().await;
            let is_served = names.iter().all(|name| {
                all.contains(name) && !down.contains(name) && self.shared.timelines.has(name, Step::Healthy)
            });
            let running = self.kubectl(&["get", "pods", "-A", "-o", "json"]).await;
            let running: Value = serde_json::from_str(&running).unwrap();
            let running = running["items"].as_array().unwrap().iter().filter(|pod| {
                let is_here = pod["spec"]["nodeName"]
                    .as_str()
                    .is_some_and(|node| names.iter().any(|name| name == node));
                is_here && pod["status"]["phase"] == "Running"
            });
            let held = if self.shared.holds && label == NODE_POOL {
                count
            } else {
                0
            };
            if names.len() == count && is_served && running.clone().count() >= pods + held {
                return Ok(names);
            }
            Err(format!("{names:?}, served: {is_served}, {} pods run", running.count()))
        })
        .await
    }

    /// Waits for a step of a node.
    pub(super) async fn until(&self, node: &str, step: Step, autoscaler: &Process) {
        eventually(PATIENCE, &format!("{step:?} of {node}"), async || {
            if self.shared.timelines.has(node, step) {
                return Ok(());
            }
            let row = self.shared.timelines.row("", node);
            Err(format!("{row}\n{}", last_log_lines(autoscaler.log())))
        })
        .await;
    }

    /// Adds when headgate's PUT arrived, and prints the row.
    pub(super) async fn report(&self, case: &str, node: &str) {
        if let Some(at) = self.shared.azure.put_at(node).await {
            self.shared.timelines.record_at(node, Step::Put, at);
        }
        super::timeline::print(&self.shared.timelines.row(case, node));
    }

    pub(super) async fn stop(mut self) {
        self.tasks.abort_all();
        self.leader.signal(nix::sys::signal::Signal::SIGTERM);
        self.control_plane.stop().await;
    }
}

fn start_leader(shared: &Shared) -> Process {
    let azure = [("--azure-config-file", shared.azure.settings_file.as_path())];
    let settings = "outOfLoadBalancers: {source: AdminState}\n";
    start_controller("base-1", &shared.kubeconfig, settings, &azure)
}

/// Records the steps that each Node shows, and serves each new one.
async fn watch_nodes(shared: Arc<Shared>) {
    let nodes = Api::<Node>::all(shared.client.clone());
    let mut events = watcher::watcher(nodes, watcher::Config::default()).boxed();
    let mut agents: BTreeMap<String, JoinSet<()>> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                record(&shared.timelines, &node);
                let name = node.name_any();
                agents.entry(name.clone()).or_insert_with(|| {
                    let mut tasks = JoinSet::new();
                    let labels = node.labels();
                    let has_agent = labels.contains_key(NODE_GROUP) || labels.contains_key(NODE_POOL);
                    tasks.spawn(serve_node(Arc::clone(&shared), name, has_agent));
                    tasks
                });
            }
            Ok(Event::Delete(node)) => {
                let name = node.name_any();
                // The providers for kwok have no machine: with the Node, it is gone.
                shared.timelines.record(&name, Step::Terminated);
                shared.timelines.record(&name, Step::Gone);
                agents.remove(&name);
            }
            _ => {}
        }
    }
}

fn record(timelines: &Timelines, node: &Node) {
    let name = node.name_any();
    let whole = serde_json::to_value(node).unwrap();
    let taints = whole["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let has = |key: &str| taints.iter().any(|taint| taint["key"] == key);
    let conditions = whole["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_out = conditions
        .iter()
        .any(|condition| condition["type"] == "headgate.dev/OutOfLoadBalancers" && condition["status"] == "True");
    let is_delayed = node
        .annotations()
        .contains_key(headgate_core::node::DELETION_DELAY_ANNOTATION);
    let is_deleting = node.metadata.deletion_timestamp.is_some();
    let has_signal = has(HARD_TAINT) || has(KARPENTER_TAINT) || is_deleting;
    let was = |step| timelines.has(&name, step);
    for (step, is_seen) in [
        (Step::Candidate, has(headgate_core::node::CANDIDATE_TAINT)),
        (Step::Delayed, is_delayed),
        (Step::Signal, has_signal),
        (Step::Deleting, is_deleting),
        (Step::Excluded, node.labels().contains_key(EXCLUDE_LABEL)),
        (Step::Out, is_out),
        (Step::Undelayed, was(Step::Delayed) && !is_delayed),
        (Step::SignalEnded, was(Step::Signal) && !has_signal),
    ] {
        if is_seen {
            timelines.record(&name, step);
        }
    }
}

/// Gives a Node an address and a place in the pool, and runs its agent and its probes until the task is aborted.
async fn serve_node(shared: Arc<Shared>, name: String, has_agent: bool) {
    let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
    let address = format!("10.77.0.{number}");
    let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]);
    let nodes = Api::<Node>::all(shared.client.clone());
    let patch = Patch::Strategic(json!({"status": {"addresses": addresses}}));
    nodes
        .patch_status(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    shared.azure.add_member(&shared.client, &name, &address).await;
    if !has_agent {
        return std::future::pending().await;
    }
    let hold = if shared.holds { "2m" } else { "null" };
    let settings = format!(
        "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {{source: AdminState}}\ndelayTermination: {{clusterAutoscaler: {hold}}}\n"
    );
    let options = AgentOptions::new(&name, &shared.kubeconfig).settings(&settings);
    let agent = options.argument("--role=agent").start().await;
    loop {
        let status = agent.healthz().await.status;
        let timelines = &shared.timelines;
        if status == 503 {
            timelines.record(&name, Step::Unhealthy);
        } else if status == 200 {
            let is_again = timelines.has(&name, Step::Unhealthy);
            timelines.record(&name, if is_again { Step::HealthyAgain } else { Step::Healthy });
        }
        sleep(SAMPLE_INTERVAL).await;
    }
}

/// Records when the pool shows a node `Down`, and without it again.
async fn sample_pool(shared: Arc<Shared>) {
    loop {
        let (down, all) = shared.azure.members().await;
        for name in all {
            if down.contains(&name) {
                shared.timelines.record(&name, Step::Down);
            } else if shared.timelines.has(&name, Step::Down) {
                shared.timelines.record(&name, Step::Up);
            }
        }
        sleep(SAMPLE_INTERVAL).await;
    }
}
