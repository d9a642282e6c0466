//! The cluster that all rows share: its components, its nodes, and the controllers under test.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_sandbox::agents::{AgentConfig, Controller};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{eventually, kubectl, own_control_plane, scratch};
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::emulator_process::Emulator;
use crate::rows::LEADERS;
use crate::{http, seed};

/// Timeout of every wait for something that should happen, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(3);
/// The label of Nodes whose kubelets kwok plays.
pub(crate) const KUBELET: &str = "example.com/kubelet";
pub(crate) const MAINTENANCES: &str = "/apis/headgate.dev/v1alpha1/nodemaintenances";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/headgate-leader";
/// The priorities of pods; the class `p5000` has the value 5000.
const PRIORITIES: [i32; 4] = [2000, 5000, 10_000, 15_000];

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) emulator: Emulator,
    control_plane: ControlPlane,
    controllers: RefCell<Vec<(AgentConfig, Option<Controller>)>>,
    logs: PathBuf,
}

impl Cluster {
    /// Starts everything, and waits until a controller leads.
    pub(crate) async fn start() -> Self {
        let mut control_plane = own_control_plane().await;
        control_plane
            .start_controller_manager(&["--node-monitor-period=2s", "--node-monitor-grace-period=25s"])
            .unwrap();
        control_plane.start_scheduler().unwrap();
        control_plane.start_kwok(KUBELET).unwrap();
        let client = Client::try_from(control_plane.client_config()).unwrap();
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/headgate/files/crds");
        let mut apply = kubectl(control_plane.kubeconfig());
        let applied = apply.args(["apply", "-f"]).arg(crds).output().unwrap();
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));

        let logs = scratch("maintenance");
        let seed = logs.join("seed.json");
        std::fs::write(&seed, seed::seed().to_string()).unwrap();
        let emulator = Emulator::start_with_seed(&seed, &[]).await;
        http::control(emulator.control, "POST", "faults", &seed::fault()).await;

        let cluster = Self {
            controllers: RefCell::new(controllers(&emulator, control_plane.kubeconfig(), &logs)),
            client,
            emulator,
            control_plane,
            logs,
        };
        cluster.populate().await;
        for index in 0..LEADERS.len() {
            cluster.start_controller(index).await;
        }
        eventually(SOON, "a controller leads", async || {
            cluster.leader().await.map(drop).ok_or_else(|| cluster.logs())
        })
        .await;
        cluster
    }

    async fn populate(&self) {
        for path in [MAINTENANCES, "/apis/headgate.dev/v1alpha1/evacuations"] {
            eventually(SOON, "the kind is served", async || {
                match self.request("GET", path, None).await {
                    (200, _) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
        for value in PRIORITIES {
            let class = json!({"metadata": {"name": format!("p{value}")}, "value": value});
            let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
            assert_eq!(self.request("POST", path, Some(&class)).await.0, 201);
        }
        for row in crate::rows::ROWS {
            for node in row.nodes.iter().filter(|node| !row.joins.contains(node)) {
                self.create_node(&row.namespace(), node).await;
            }
        }
    }

    /// Creates a Ready Node with a kubelet, and the label of its row.
    pub(crate) async fn create_node(&self, row: &str, name: &str) {
        self.create_node_with(
            &json!({"row": row, KUBELET: "kwok", "kubernetes.io/hostname": name}),
            name,
        )
        .await;
    }

    /// Creates a Ready Node whose kubelet the row plays.
    pub(crate) async fn create_node_without_kubelet(&self, row: &str, name: &str) {
        self.create_node_with(&json!({"row": row, "kubernetes.io/hostname": name}), name)
            .await;
    }

    async fn create_node_with(&self, labels: &Value, name: &str) {
        let node =
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": seed::provider_id(name)}});
        let (code, answer) = self.request("POST", NODES, Some(&node)).await;
        assert_eq!(code, 201, "{answer}");
        let resources = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": seed::address(name)}],
            "capacity": resources, "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}});
        let (code, answer) = self
            .request("PATCH", &format!("{NODES}/{name}/status"), Some(&status))
            .await;
        assert_eq!(code, 200, "{answer}");
    }

    /// A request of the administrator; a PATCH is a merge patch. The status code and the object, or `Status`.
    pub(crate) async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let content = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = body.map_or(Vec::new(), |body| serde_json::to_vec(body).unwrap());
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content);
        match self.client.request_text(request.body(body).unwrap()).await {
            Ok(text) => {
                let value: Value = serde_json::from_str(&text).unwrap();
                (if method == "POST" { 201 } else { 200 }, value)
            }
            Err(Error::Api(status)) => (status.code, json!({"message": status.message, "reason": status.reason})),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// The index of the controller that holds the Lease, if one that runs does.
    pub(crate) async fn leader(&self) -> Option<usize> {
        let (code, lease) = self.request("GET", LEASE, None).await;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let index = LEADERS
            .iter()
            .position(|node| holder.starts_with(&format!("{node}_")))?;
        (code == 200 && self.controllers.borrow()[index].1.is_some()).then_some(index)
    }

    pub(crate) async fn start_controller(&self, index: usize) {
        let config = self.controllers.borrow()[index].0.clone();
        let controller = config
            .start_controller()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        self.controllers.borrow_mut()[index].1 = Some(controller);
    }

    /// Ends a controller as SIGKILL does.
    pub(crate) async fn kill_controller(&self, index: usize) {
        let controller = self.controllers.borrow_mut()[index].1.take();
        if let Some(controller) = controller {
            controller.process.kill().await;
        }
    }

    /// Ends a controller as kubelet ends its pod.
    pub(crate) async fn stop_controller(&self, index: usize) {
        let controller = self.controllers.borrow_mut()[index].1.take();
        if let Some(controller) = controller {
            controller.process.stop(SOON).await;
        }
    }

    /// Where the logs are, which remain after a failure.
    pub(crate) fn logs(&self) -> String {
        format!(
            "logs: {} and {}",
            self.logs.display(),
            self.control_plane.logs().display()
        )
    }

    pub(crate) async fn stop(self) {
        for index in 0..LEADERS.len() {
            self.stop_controller(index).await;
        }
        self.emulator.stop().await;
        self.control_plane.stop().await;
    }
}

fn controllers(emulator: &Emulator, kubeconfig: &Path, logs: &Path) -> Vec<(AgentConfig, Option<Controller>)> {
    let azure = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": seed::TENANT,
        "aadClientId": seed::APPLICATION, "aadClientSecret": seed::SECRET, "subscriptionId": "sub",
        "resourceGroup": "cluster"});
    let file = logs.join("azure.json");
    std::fs::write(&file, azure.to_string()).unwrap();
    let config = |node: &&str| {
        AgentConfig {
        program: PathBuf::from(env!("CARGO_BIN_EXE_headgate")),
        node: (*node).to_owned(),
        kubeconfig: kubeconfig.to_owned(),
        directory: logs.join(node),
        log: logs.join(format!("{node}.log")),
        settings: "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nmaintenance: {enabled: true}\nadminState: {maxNewDown: 100%}\n"
            .to_owned(),
        healthz: ([127, 0, 0, 1], 0).into(),
        arguments: vec![format!("--azure-config-file={}", file.display())],
        environment: Vec::new(),
    }
    };
    LEADERS.iter().map(|node| (config(node), None)).collect()
}
