//! `headgate check` with the shipped manifests, the real kube-apiserver and the emulator: nothing is found in a whole cluster, and faults
//! are named, from a laptop and from a Pod of headgate. All faults are in src/check/tests/worlds.rs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use headgate_azure_emulator::probed_load_balancer;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::nodes;
use headgate_test_kubernetes::{eventually, met, own_control_plane, scratch};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{ApiRequest, CONTROLLER, Caller, acting_on, install};
use super::rendering::{delays, folder, hardened_with_identity, merged};
use super::rights::{remove_verb, restore_rules};
use crate::emulator::emulator_process::Emulator;
use crate::harness::{http, refused, refused_for};

const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
const NETWORK: &str = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/nodes";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// The values of the installation.
fn delaying() -> Value {
    merged(hardened_with_identity(), delays())
}

/// A cluster with headgate's manifests, a Service, and what the emulators need.
struct Cluster {
    control_plane: ControlPlane,
    administrator: Caller,
    /// The prefix of the names of the Service's rules.
    base: String,
}

/// Azure, as an emulator shows it.
struct Azure {
    emulator: Emulator,
    azure_json: PathBuf,
}

impl Cluster {
    async fn start() -> Self {
        let control_plane = own_control_plane().await;
        let administrator = Caller::administrator(&control_plane);
        nodes::register(&administrator.client, 2, "check").await.unwrap();
        install(&administrator.kubeconfig, &delaying());
        // No controller runs, so the DaemonSets want no pod.
        let pods = json!({"status": {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}});
        let controllers = "/apis/apps/v1/namespaces/kube-system/deployments/headgate-controller/status";
        administrator.merge(controllers, pods).await;
        let services = "/api/v1/namespaces/default/services";
        let web = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}});
        let web = administrator.post(services, web).await;
        let letters = web["metadata"]["uid"].as_str().unwrap().replace('-', "");
        Self {
            control_plane,
            administrator,
            base: format!("a{}", &letters[..31]),
        }
    }

    /// An emulator with the cluster's load balancer; `change` makes the fault.
    async fn azure(&self, change: impl FnOnce(&mut Value)) -> Azure {
        let entry = |number: u8| json!({"name": format!("node-{number}"), "properties": {"ipAddress": format!("127.0.0.{number}")}});
        let pool = ("kubernetes", json!([entry(1), entry(2)]));
        let mut load_balancer = probed_load_balancer(GROUP, "kubernetes", &[pool]);
        load_balancer["properties"]["loadBalancingRules"][0]["name"] = format!("{}-TCP-80", self.base).into();
        let mut seed = json!({"resources": [load_balancer, {"id": NETWORK, "location": "eastus", "properties": {}}]});
        change(&mut seed);
        let directory = scratch("check");
        let file = directory.join("seed.json");
        std::fs::write(&file, seed.to_string()).unwrap();
        let emulator = Emulator::start_with_seed(&file, &[]).await;
        let azure_json = directory.join("azure.json");
        let configuration = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": "tenant", "subscriptionId": "sub",
            "resourceGroup": "rg", "vnetName": "nodes", "loadBalancerBackendPoolConfigurationType": "nodeIP", "aadClientId": "client",
            "aadClientSecret": "secret"});
        std::fs::write(&azure_json, configuration.to_string()).unwrap();
        Azure { emulator, azure_json }
    }

    /// What is not as it should be, with these flags besides.
    fn wrong(&self, azure: &Azure, flags: &[&str]) -> Vec<Value> {
        wrong(&check(&self.administrator.kubeconfig, azure, flags))
    }

    /// Waits until nothing is found: RBAC takes a moment.
    async fn finds_nothing(&self, azure: &Azure) {
        eventually(SOON, "nothing is found", async || {
            let found = self.wrong(azure, &[]);
            met(found.is_empty(), format!("{found:#?}"))
        })
        .await;
    }

    /// Waits until the fault, and nothing else, is found.
    async fn finds(&self, azure: &Azure, flags: &[&str], fault: &Fault) {
        eventually(SOON, fault.what, async || fault.is_found(&self.wrong(azure, flags))).await;
    }

    /// The same for a fault that an object makes, which is deleted afterwards.
    async fn finds_with(&self, azure: &Azure, object: ApiRequest, fault: &Fault) {
        let path = format!("{}/{}", object.path, object.body["metadata"]["name"].as_str().unwrap());
        self.administrator.done(&object).await;
        self.finds(azure, &[], fault).await;
        self.administrator.delete(&path).await;
    }

    /// The same for a fault that Azure has.
    async fn finds_in(&self, change: impl FnOnce(&mut Value), fault: &Fault) {
        let azure = self.azure(change).await;
        self.finds(&azure, &[], fault).await;
        azure.emulator.stop().await;
    }
}

/// What is to be found.
struct Fault {
    id: &'static str,
    state: &'static str,
    what: &'static str,
}

impl Fault {
    const fn failure(id: &'static str, what: &'static str) -> Self {
        let state = "failure";
        Self { id, state, what }
    }

    const fn warning(id: &'static str, what: &'static str) -> Self {
        let state = "warning";
        Self { id, state, what }
    }

    fn is_found(&self, found: &[Value]) -> Result<(), String> {
        let [finding] = found else {
            return Err(format!("{found:#?}"));
        };
        let has_what = finding["what"].as_str().unwrap().contains(self.what);
        met(
            finding["id"] == self.id && finding["state"] == self.state && has_what,
            finding,
        )
    }
}

fn command(kubeconfig: &Path, azure: &Azure, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.arg("check").arg("--kubeconfig").arg(kubeconfig);
    command.arg("--azure-config-file").arg(&azure.azure_json);
    if !flags.contains(&"--config") {
        let settings = folder(&delaying()).join("settings.yaml");
        command.arg("--config").arg(settings);
    }
    command.args(flags).stdin(Stdio::null());
    command
}

fn check(kubeconfig: &Path, azure: &Azure, flags: &[&str]) -> Output {
    let mut command = command(kubeconfig, azure, flags);
    command.args(["-o", "json"]).output().unwrap()
}

/// The findings that are not ok. The exit code must agree with them.
fn wrong(output: &Output) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    let failures = report["failures"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(failures > 0)), "{errors}");
    let mut findings = report["findings"].as_array().unwrap().clone();
    findings.retain(|finding| finding["state"] != "ok");
    findings
}

/// A Deployment in `default` with one container.
fn deployment(name: &str, spec: Value, container: Value) -> ApiRequest {
    let mut container = container;
    container["name"] = json!("c");
    let mut pod = spec;
    pod["containers"] = json!([container]);
    let labels = json!({"app": name});
    let body = json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod}}});
    ApiRequest::post(DEPLOYMENTS, body)
}

#[tokio::test]
async fn check_finds_nothing_in_a_whole_cluster_and_names_faults() {
    let cluster = Cluster::start().await;
    let azure = cluster.azure(|_| ()).await;
    cluster.finds_nothing(&azure).await;
    let text = command(&cluster.administrator.kubeconfig, &azure, &[])
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    println!("{text}");
    assert!(
        text.ends_with("0 failures, 0 warnings.\n") && text.contains("✓   azure-role"),
        "{text}"
    );

    faults_in_the_cluster(&cluster, &azure).await;
    faults_of_azure(&cluster).await;
    in_a_pod(&cluster, &azure).await;
    let path = "journal?limit=1000&method=PUT";
    let writes = http::control(azure.emulator.control, "GET", path, &Value::Null).await;
    assert_eq!(writes["entries"], json!([]), "it writes nothing");
    cluster.control_plane.stop().await;
}

async fn faults_in_the_cluster(cluster: &Cluster, azure: &Azure) {
    let administrator = &cluster.administrator;
    let role = "clusterroles/headgate-leader";
    let rules = remove_verb(administrator, role, ("services", None), "watch").await;
    let fault = Fault::failure("rights", "may not watch services, which admin states needs");
    cluster.finds(azure, &[], &fault).await;
    restore_rules(administrator, role, rules).await;
    cluster.finds_nothing(azure).await;

    let probe = json!({"httpGet": {"port": 10456, "path": "/healthz"}});
    let lives = deployment(
        "lives",
        json!({"hostNetwork": true}),
        json!({"image": "none", "livenessProbe": probe}),
    );
    let fault = Fault::failure("liveness-probes", "its livenessProbe asks headgate's :10456/healthz");
    cluster.finds_with(azure, lives, &fault).await;
    let words = ["./cluster-autoscaler", "--max-bulk-soft-taint-count=0"];
    let autoscaler = deployment(
        "scaler",
        json!({}),
        json!({"image": "registry.test/autoscaler:1", "command": words}),
    );
    let fault = Fault::failure("autoscalers", "sets no soft taints");
    cluster.finds_with(azure, autoscaler, &fault).await;

    // Settings.
    let fault = Fault::failure(
        "load-balancers",
        "no load balancer is named other or other-internal; /subscriptions/sub/resourceGroups/rg has: kubernetes",
    );
    cluster.finds(azure, &["--cluster-name", "other"], &fault).await;
    let settings = scratch("check-settings").join("settings.yaml");
    let text = std::fs::read_to_string(folder(&delaying()).join("settings.yaml")).unwrap();
    std::fs::write(&settings, format!("{text}\nmaintenance: {{enabled: true}}\n")).unwrap();
    let found = cluster.wrong(azure, &["--config", settings.to_str().unwrap()]);
    let ids: Vec<_> = found.iter().map(|finding| finding["id"].as_str().unwrap()).collect();
    assert!(
        ids.contains(&"api-kinds") && ids.contains(&"rights"),
        "neither kinds nor rights of maintenances: {found:#?}"
    );

    // Nothing can be checked.
    for (flags, text) in [
        (&["--kubeconfig", "/nonexistent"][..], "/nonexistent"),
        (&["--outptu"], "--outptu"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        let output = command.arg("check").args(flags).output().unwrap();
        refused_for(&flags, &output, 2, &[text]);
    }
    let nowhere = scratch("check-nowhere").join("kubeconfig");
    let text = std::fs::read_to_string(&administrator.kubeconfig).unwrap();
    let mut file: Value = serde_yaml::from_str(&text).unwrap();
    file["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    std::fs::write(&nowhere, file.to_string()).unwrap();
    let output = command(&nowhere, azure, &[]).output().unwrap();
    assert_eq!(
        refused(&output, 3, &[]),
        "headgate: the API server https://127.0.0.1:1 does not answer: Connection refused (os error 111)\n"
    );
}

async fn faults_of_azure(cluster: &Cluster) {
    let write = "Microsoft.Network/loadBalancers/backendAddressPools/write";
    let fault = Fault::failure(
        "azure-role",
        "the identity may not Microsoft.Network/loadBalancers/backendAddressPools/write",
    );
    let read_only = json!({"permissions": [{"actions": ["*"], "notActions": [write]}]});
    cluster.finds_in(|seed| seed["authorization"] = read_only, &fault).await;

    let denied = json!({"id": format!("{GROUP}/providers/Microsoft.Authorization/denyAssignments/1"), "name": "1",
        "type": "Microsoft.Authorization/denyAssignments", "properties": {"denyAssignmentName": "node resource group lockdown", "scope": GROUP,
            "permissions": [{"actions": ["*/write", "*/delete", "*/action"], "notActions": [], "dataActions": [], "notDataActions": []}],
            "principals": [{"id": "00000000-0000-0000-0000-000000000000", "type": "SystemDefined"}], "excludePrincipals": [],
            "doNotApplyToChildScopes": false, "isSystemProtected": true}});
    let fault = Fault::failure(
        "deny-assignments",
        "\"node resource group lockdown\" refuses writes of pools",
    );
    cluster
        .finds_in(
            |seed| seed["authorization"] = json!({"denyAssignments": [denied]}),
            &fault,
        )
        .await;

    // Without vnetName the pools name the network.
    let other = "/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/virtualNetworks/mine";
    let is_named = |seed: &mut Value| {
        seed["resources"][0]["properties"]["backendAddressPools"][0]["properties"]["virtualNetwork"] =
            json!({"id": other});
        let network = json!({"id": other, "location": "eastus", "properties": {}});
        seed["resources"].as_array_mut().unwrap().push(network);
        seed["authorization"] = json!({"permissions": [{"scope": GROUP, "actions": ["*"], "notActions": []}]});
    };
    let is_not_named = |seed: &mut Value| {
        seed["resources"][0]["properties"]["backendAddressPools"][0]["properties"]["virtualNetwork"] = Value::Null;
    };
    for (change, fault) in [
        (
            &is_named as &dyn Fn(&mut Value),
            Fault::failure("azure-role", "virtualNetworks/joinLoadBalancer/action"),
        ),
        (
            &is_not_named,
            Fault::warning("azure-role", "the virtual network of the nodes is not known"),
        ),
    ] {
        let azure = cluster.azure(change).await;
        let text = std::fs::read_to_string(&azure.azure_json).unwrap();
        std::fs::write(&azure.azure_json, text.replace("vnetName", "none")).unwrap();
        cluster.finds(&azure, &[], &fault).await;
        azure.emulator.stop().await;
    }

    let fault = Fault::failure("azure-token", "the identity gets no token");
    let accounts = json!({"accounts": [{"tenantId": "tenant", "clientId": "client", "clientSecret": "another"}]});
    cluster.finds_in(|seed| seed["identity"] = accounts, &fault).await;
}

/// With the token of a controller, which may not list workloads.
async fn in_a_pod(cluster: &Cluster, azure: &Azure) {
    let pod = acting_on(&cluster.control_plane, CONTROLLER, "node-1").await;
    let fault = Fault::warning("installation", "cannot be listed");
    eventually(SOON, "the workloads are not read", async || {
        fault.is_found(&wrong(&check(&pod.kubeconfig, azure, &[])))
    })
    .await;
    let role = "clusterroles/headgate-leader";
    let rules = remove_verb(&cluster.administrator, role, ("endpointslices", None), "list").await;
    eventually(SOON, "the missing right", async || {
        let found = wrong(&check(&pod.kubeconfig, azure, &[]));
        let what = "may not list endpointslices.discovery.k8s.io, which admin states needs";
        met(
            found
                .iter()
                .any(|finding| finding["id"] == "rights" && finding["what"] == what),
            format!("{found:#?}"),
        )
    })
    .await;
    restore_rules(&cluster.administrator, role, rules).await;
}
