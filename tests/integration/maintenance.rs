//! A maintenance with real processes: a controller of headgate, kube-apiserver, and Azure's emulator. No pod is evicted before a read of
//! the pools shows the node out, and the pool is as before in the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_azure_emulator::{entries_of, pools_in, probed_load_balancer};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process::{Process, last_log_lines};
use headgate_test_kubernetes::{eventually, kubectl, met, own_cluster, scratch};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::emulator::emulator_process::Emulator;
use crate::harness::{http, objects, start_controller, succeed};

mod commands;
mod limits;
mod local_services;
mod probes;

/// Timeout of every wait, long enough for a busy machine.
const SOON: Duration = Duration::from_mins(2);
const TENANT: &str = "7e4a0000-0000-4000-8000-000000000001";
const APPLICATION: &str = "c11e0000-0000-4000-8000-000000000002";
const GROUP: &str = "/subscriptions/sub/resourceGroups/cluster";

/// A load balancer with both nodes in its pool, and the identity of the controller.
fn seed() -> Value {
    let entry = |number: usize| json!({"name": format!("node-{number}"), "properties": {"ipAddress": format!("10.0.0.{number}")}});
    let pool = ("kubernetes", json!([entry(1), entry(2)]));
    json!({
        "identity": {"accounts": [{"tenantId": TENANT, "clientId": APPLICATION, "clientSecret": "a secret"}]},
        "resources": [probed_load_balancer(GROUP, "kubernetes", &[pool])],
    })
}

/// Writes azure.json for the emulator.
fn azure_json(emulator: &Emulator, directory: &Path) -> PathBuf {
    let azure = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": TENANT,
        "aadClientId": APPLICATION, "aadClientSecret": "a secret", "subscriptionId": "sub", "resourceGroup": "cluster"});
    let path = directory.join("azure.json");
    std::fs::write(&path, azure.to_string()).unwrap();
    path
}

/// Applies the kinds, and waits until the API server has them.
pub(crate) async fn apply_kinds(control_plane: &ControlPlane, client: &Client) {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/headgate/files/crds");
    succeed(kubectl(control_plane.kubeconfig()).args(["apply", "-f"]).arg(crds));
    eventually(SOON, "the kinds are served", async || {
        for kind in ["NodeMaintenance", "Evacuation"] {
            let list = api(client, kind).list(&ListParams::default()).await;
            list.map_err(|error| error.to_string())?;
        }
        Ok(())
    })
    .await;
}

/// A controller as a child process.
struct Controller(Process);

impl Controller {
    fn start(emulator: &Emulator, kubeconfig: &Path) -> Self {
        let azure = azure_json(emulator, &scratch("azure"));
        Self::start_with(
            "maintenance: {enabled: true}\n",
            &[("--azure-config-file", azure.as_path())],
            kubeconfig,
        )
    }

    fn start_with(settings: &str, flags: &[(&str, &Path)], kubeconfig: &Path) -> Self {
        Self(start_controller("node-2", kubeconfig, settings, flags))
    }

    fn log(&self) -> String {
        last_log_lines(self.0.log())
    }

    /// Asks it to end, which succeeds.
    async fn ends(mut self) {
        self.0.signal(Signal::SIGTERM);
        let status = self.0.wait(SOON).await;
        assert!(status.is_some_and(|status| status.success()), "{}", self.log());
    }
}

/// The admin state of node-1's entry, read without ARM.
async fn admin_state(emulator: &Emulator) -> String {
    let all = http::control(emulator.control, "GET", "state", &Value::Null).await;
    let mut entries = pools_in(&all).flat_map(entries_of);
    let entry = entries.find(|entry| entry["name"] == "node-1");
    let entry = entry.unwrap_or_else(|| panic!("{all}"));
    entry["properties"]["adminState"].as_str().unwrap_or("None").to_owned()
}

/// A cluster with two nodes, and a pod on the first one.
async fn populate(client: &Client) {
    let nodes = Api::<Node>::all(client.clone());
    for number in [1, 2] {
        let node = json!({"metadata": {"name": format!("node-{number}")},
            "spec": {"providerID": format!("azure://{GROUP}/providers/Microsoft.Compute/virtualMachines/node-{number}")}});
        objects::create(&nodes, node).await;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": format!("10.0.0.{number}")}],
            "conditions": [{"type": "Ready", "status": "True"}]}});
        objects::merge_status(&nodes, &format!("node-{number}"), status).await;
    }
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    objects::create(&accounts, json!({"metadata": {"name": "web"}})).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "node-1", "serviceAccountName": "web",
        "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]}});
    objects::create(&Api::<Pod>::namespaced(client.clone(), "default"), pod).await;
}

fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("headgate.dev", "v1alpha1", kind));
    Api::all_with(client.clone(), &resource)
}

/// Creates a maintenance that drains node-1.
async fn drain(maintenances: &Api<DynamicObject>, drain_seconds: u32) {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]});
    let maintenance = json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": "m"},
        "spec": {"nodeSelector": {"nodeSelectorTerms": [term]}, "stage": "Drain", "loadBalancer": {"connectionsDrainSeconds": drain_seconds}}});
    objects::create(maintenances, maintenance).await;
}

/// Waits until the pod has left and node-1 is drained; returns the status of the maintenance.
async fn is_drained(client: &Client, controller: &Controller) -> Value {
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    eventually(SOON, "the pod leaves", async || match pods.get_opt("web").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}\n{}", controller.log())),
    })
    .await;
    let maintenances = api(client, "NodeMaintenance");
    eventually(SOON, "drained", async || {
        let status = maintenances.get("m").await.unwrap().data["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions = conditions.iter();
        if conditions.any(|one| one["type"] == "Drained" && one["status"] == "True") {
            Ok(status)
        } else {
            Err(status.to_string())
        }
    })
    .await
}

#[tokio::test]
async fn no_pod_leaves_before_the_pools_show_its_node_out() {
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    populate(&client).await;
    let file = scratch("seed").join("seed.json");
    std::fs::write(&file, seed().to_string()).unwrap();
    let emulator = Emulator::start_with_seed(&file, &[]).await;
    assert_eq!(admin_state(&emulator).await, "None");
    let (maintenances, evacuations) = (api(&client, "NodeMaintenance"), api(&client, "Evacuation"));
    let controller = Controller::start(&emulator, control_plane.kubeconfig());
    drain(&maintenances, 3).await;

    // At the first Evacuation the entry is Down.
    eventually(SOON, "the first Evacuation", async || {
        let all = evacuations
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        if all.items.is_empty() {
            Err(controller.log())
        } else {
            Ok(())
        }
    })
    .await;
    assert_eq!(admin_state(&emulator).await, "Down", "{}", controller.log());
    let status = is_drained(&client, &controller).await;
    let gate = &status["nodeStatuses"][0]["loadBalancer"];
    assert_eq!(gate["state"], "Out", "{status}");
    assert!(
        gate["downTime"].is_string() && gate["confirmedTime"].is_string(),
        "{status}"
    );

    // The end: back in service.
    maintenances.delete("m", &DeleteParams::default()).await.unwrap();
    eventually(SOON, "back in service", async || {
        let state = admin_state(&emulator).await;
        let node = Api::<Node>::all(client.clone())
            .get("node-1")
            .await
            .unwrap()
            .spec
            .unwrap();
        let is_back = state == "None" && node.unschedulable != Some(true) && node.taints.is_none();
        met(is_back, format!("{state} {node:?}\n{}", controller.log()))
    })
    .await;
    controller.ends().await;
    emulator.stop().await;
    control_plane.stop().await;
}
