//! Azure's real cloud-controller-manager reconciles Services of type LoadBalancer with the emulator, unchanged.
//! Building it takes 5 minutes and 2 GB of cache, so this is a test target of its own: `make cloud-controller-manager`
//! builds and runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headgate_sandbox::{process::Process, process::command_in, process::last_log_lines};
use headgate_test_kubernetes::{eventually, own_cluster, patch_node};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::cloud_controller_manager::{Controller, GROUP, USER_AGENT, etag};
use super::emulator_process::Emulator;
use crate::harness::{http, objects};

mod lease_holds;
mod local_pools;

/// Time for a reconcile that fails once and is retried, on a busy machine.
const RECONCILE_TIMEOUT: Duration = Duration::from_mins(1);
/// The name of the cluster, and so of its load balancer.
pub(super) const CLUSTER: &str = "ccm";
pub(super) const SUBSCRIPTION: &str = "/subscriptions/5b0c0de0-0000-4000-8000-000000000005";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A running cloud-controller-manager, its emulator, and clients of both APIs.
pub(super) struct Fixture {
    pub(super) manager: Process,
    pub(super) emulator: Emulator,
    arm: Controller,
    client: Client,
}

impl Fixture {
    async fn start(client: Client, kubeconfig: &std::path::Path) -> Self {
        Self::start_with_delay(client, kubeconfig, "30ms").await
    }

    /// The same with this duration of each operation of ARM.
    pub(super) async fn start_with_delay(client: Client, kubeconfig: &std::path::Path, delay: &str) -> Self {
        let several = json!([{"name": CLUSTER, "primaryVMSet": "agents"}]);
        Self::start_with(client, kubeconfig, delay, several).await
    }

    /// The same with these `multipleStandardLoadBalancerConfigurations`; with none, all Services share one pool.
    pub(super) async fn start_with(client: Client, kubeconfig: &std::path::Path, delay: &str, several: Value) -> Self {
        let emulator = Emulator::start(&["--operation-delay", delay]).await;
        let arm = Controller::start(emulator.arm).await;
        let endpoint = format!("http://{}", emulator.arm);
        // With the name of a cloud of Azure, as in the file of a cluster.
        let configuration = json!({
            "cloud": "AzurePublicCloud", "resourceManagerEndpoint": endpoint,
            "tenantId": "7e4a0000-0000-4000-8000-000000000001", "useManagedIdentityExtension": true,
            "subscriptionId": SUBSCRIPTION.rsplit('/').next(), "resourceGroup": "cluster", "location": "eastus",
            "vnetName": "vnet", "subnetName": "nodes", "securityGroupName": "nsg", "routeTableName": "routes",
            "vmType": "standard", "loadBalancerSku": "standard", "loadBalancerBackendPoolConfigurationType": "nodeIP",
            "multipleStandardLoadBalancerConfigurations": several,
            "loadBalancerBackendPoolUpdateIntervalInSeconds": 1,
        });
        std::fs::write(emulator.directory.join("azure.json"), configuration.to_string()).unwrap();
        let manager = start_manager(&emulator, kubeconfig);
        Self {
            manager,
            emulator,
            arm,
            client,
        }
    }

    /// Kills cloud-controller-manager and starts another one.
    pub(super) async fn restart_manager(&mut self, kubeconfig: &std::path::Path) {
        self.manager.signal(Signal::SIGKILL);
        self.manager.wait(RECONCILE_TIMEOUT).await;
        self.manager = start_manager(&self.emulator, kubeconfig);
    }

    /// Waits until the load balancer matches.
    async fn wait_for(&self, what: &str, is_expected: impl Fn(&LoadBalancerSummary) -> bool) -> LoadBalancerSummary {
        eventually(RECONCILE_TIMEOUT, what, async || {
            let all = self.resources("loadBalancers").await;
            let [found] = &*all else {
                return Err(format!("{} load balancers", all.len()));
            };
            let summary = LoadBalancerSummary::from_document(found);
            if found["properties"]["provisioningState"] == "Succeeded" && is_expected(&summary) {
                return Ok(summary);
            }
            Err(format!("{summary:?}; its log:\n{}", last_log_lines(self.manager.log())))
        })
        .await
    }

    /// The network resources of a kind, read from the control API, so that the journal has no request for them.
    pub(super) async fn resources(&self, kind: &str) -> Vec<Value> {
        resources(self.emulator.control, kind).await
    }

    async fn set_service(&self, patch: Value) {
        let services = Api::<Service>::namespaced(self.client.clone(), "default");
        objects::merge(&services, "web", patch).await;
    }

    async fn set_ports(&self, ports: &[u16]) {
        let ports = ports
            .iter()
            .map(|port| json!({"name": format!("p{port}"), "port": port}));
        self.set_service(json!({"spec": {"ports": ports.collect::<Vec<_>>()}}))
            .await;
    }

    pub(super) async fn add_node(&self, number: u8) {
        let node = node(number);
        let name = node.metadata.name.clone().unwrap();
        let set = format!("{GROUP}/Microsoft.Compute/availabilitySets/agents");
        let machine = json!({"location": "eastus", "properties": {"availabilitySet": {"id": set}}});
        let path = format!("{GROUP}/Microsoft.Compute/virtualMachines/{name}");
        self.arm.put(&path, None, &machine).await;
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    async fn exclude(&self, node: &str) {
        patch_node(&self.client, node, json!({"metadata": {"labels": {EXCLUDED: "true"}}})).await;
    }

    async fn set_endpoints(&self, nodes: &[&str]) {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        let endpoint = |(number, node)| json!({"addresses": [format!("10.244.0.{}", number + 1)], "nodeName": node});
        let endpoints: Vec<Value> = nodes.iter().enumerate().map(endpoint).collect();
        objects::merge(&slices, "web-1", json!({"endpoints": endpoints})).await;
    }

    /// Sets a node Down in a pool, as headgate does.
    async fn set_down(&self, pool: &str, node: &str) {
        let path = format!("{GROUP}/Microsoft.Network/loadBalancers/{CLUSTER}/backendAddressPools/{pool}");
        let mut document = self.arm.read(&path).await;
        let old = etag(&document).to_owned();
        let addresses = document["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap();
        let address = addresses.iter_mut().find(|address| address["name"] == node).unwrap();
        address["properties"]["adminState"] = "Down".into();
        self.arm.put(&path, Some(&old), &document).await;
    }

    pub(super) async fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        http::control(self.emulator.control, method, path, body).await
    }

    /// Adds a fault for the manager's next PUT of this path.
    async fn add_fault(&self, path: &str, action: Value) {
        let rule = json!({"match": {"method": "PUT", "path": path, "caller": "kubernetes-cloudprovider"}, "times": 1, "action": action});
        self.control("POST", "faults", &rule).await;
    }
}

/// The network resources of a kind, read from the control API.
pub(super) async fn resources(address: SocketAddr, kind: &str) -> Vec<Value> {
    let prefix = format!("{GROUP}/Microsoft.Network/{kind}/");
    let mut state = http::control(address, "GET", "state", &Value::Null).await;
    let Value::Array(mut all) = state["resources"].take() else {
        panic!("{state}");
    };
    all.retain(|resource| resource["id"].as_str().is_some_and(|id| id.starts_with(&prefix)));
    all
}

fn start_manager(emulator: &Emulator, kubeconfig: &std::path::Path) -> Process {
    let endpoint = format!("http://{}", emulator.arm);
    let program = std::env::var_os("CLOUD_CONTROLLER_MANAGER").map(PathBuf::from);
    let program = program.expect("CLOUD_CONTROLLER_MANAGER: run make cloud-controller-manager");
    let mut command = command_in(program, &emulator.directory);
    command.env_clear();
    command.env("IDENTITY_ENDPOINT", format!("{endpoint}/msi/token"));
    command.env("IDENTITY_HEADER", "emulator");
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--cloud-config").arg(emulator.directory.join("azure.json"));
    command.args(["--cluster-name", CLUSTER, "--controllers", "service-lb-controller"]);
    command.args([
        "--leader-elect=false",
        "--configure-cloud-routes=false",
        "--secure-port=0",
    ]);
    let log = emulator.directory.join("cloud-controller-manager.log");
    Process::start("cloud-controller-manager", command, &log).unwrap_or_else(|error| panic!("{error}"))
}

/// The parts of a load balancer that the test compares.
#[derive(Debug, Default)]
struct LoadBalancerSummary {
    /// The ports of its rules.
    ports: BTreeSet<u64>,
    /// The protocols of its probes.
    probes: BTreeSet<String>,
    /// Its pools with the names of their members, `!` before those that are Down.
    pools: BTreeMap<String, BTreeSet<String>>,
}

impl LoadBalancerSummary {
    fn from_document(document: &Value) -> Self {
        let children = |kind: &str| document["properties"][kind].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let member = |address: &Value| {
            let is_down = address["properties"]["adminState"] == "Down";
            format!("{}{}", if is_down { "!" } else { "" }, text(&address["name"]))
        };
        let pool = |pool: &Value| {
            let addresses = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
            (text(&pool["name"]), addresses.iter().map(member).collect())
        };
        let ports = children("loadBalancingRules");
        Self {
            ports: ports
                .iter()
                .filter_map(|rule| rule["properties"]["frontendPort"].as_u64())
                .collect(),
            probes: children("probes")
                .iter()
                .map(|probe| text(&probe["properties"]["protocol"]))
                .collect(),
            pools: children("backendAddressPools").iter().map(pool).collect(),
        }
    }

    /// Whether it has these ports and one pool of all nodes with these members.
    fn has(&self, ports: &[u64], members: &[&str]) -> bool {
        let wanted = members.iter().map(|&name| name.to_owned()).collect();
        self.ports == ports.iter().copied().collect() && self.pools == BTreeMap::from([(CLUSTER.to_owned(), wanted)])
    }
}

fn node(number: u8) -> Node {
    headgate_sandbox::nodes::ready_node(&format!("node-{number}"), number, "integration")
}

/// Creates the Service `web` with an endpoint on the first node.
async fn create_service(client: &Client, services: &Api<Service>) {
    let service = json!({"metadata": {"name": "web"}, "spec": {
        "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"name": "p80", "port": 80}]}});
    objects::create(services, service).await;
    let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "node-1"}]});
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    objects::create(&slices, slice).await;
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one story")]
async fn reconciles_a_service_from_creation_to_deletion() {
    let (control_plane, client) = own_cluster().await;
    let mut fixture = Fixture::start(client.clone(), control_plane.kubeconfig()).await;
    for number in [1, 2] {
        fixture.add_node(number).await;
    }
    let services = Api::<Service>::namespaced(client.clone(), "default");
    create_service(&client, &services).await;

    // The Service gets an address, and its resources exist.
    let ingress = eventually(RECONCILE_TIMEOUT, "an address", async || {
        let found = services.get("web").await.map_err(|error| error.to_string())?;
        let status = serde_json::to_value(found.status).unwrap();
        let address = status["loadBalancer"]["ingress"][0]["ip"].as_str();
        address
            .map(str::to_owned)
            .ok_or_else(|| last_log_lines(fixture.manager.log()))
    })
    .await;
    let summary = fixture
        .wait_for("all nodes", |summary| summary.has(&[80], &["node-1", "node-2"]))
        .await;
    assert_eq!(summary.probes, BTreeSet::from(["Tcp".to_owned()]));
    let network = format!("{GROUP}/Microsoft.Network");
    let addresses = fixture.arm.read(&format!("{network}/publicIPAddresses")).await;
    assert_eq!(addresses["value"][0]["properties"]["ipAddress"], *ingress);
    let group = format!("{network}/networkSecurityGroups/nsg");
    let rules = fixture.arm.read(&group).await["properties"]["securityRules"].clone();
    assert!(rules.to_string().contains(&ingress), "{rules}");

    // A Down stays when a port is added, and when a node is.
    fixture.set_down(CLUSTER, "node-1").await;
    fixture.set_ports(&[80, 443]).await;
    fixture
        .wait_for("a port", |summary| summary.has(&[80, 443], &["!node-1", "node-2"]))
        .await;
    fixture.add_node(3).await;
    let three = ["!node-1", "node-2", "node-3"];
    fixture
        .wait_for("a third node", |summary| summary.has(&[80, 443], &three))
        .await;

    // A label excludes a node. (Removing the label does not include it again, by the manager's own records of several
    // load balancers.)
    fixture.exclude("node-3").await;
    let two = ["!node-1", "node-2"];
    fixture
        .wait_for("one leaves", |summary| summary.has(&[80, 443], &two))
        .await;

    // Another write between its read and its write: 412, and it retries. Then it is throttled.
    let pool = format!("{network}/loadBalancers/{CLUSTER}/backendAddressPools/{CLUSTER}");
    let write = json!({"write": {"path": pool, "merge": {"properties": {"drainPeriodInSeconds": 30}}}});
    fixture.add_fault("/loadBalancers/ccm$", write).await;
    fixture.set_ports(&[80]).await;
    fixture
        .wait_for("again after 412", |summary| summary.has(&[80], &two))
        .await;
    let busy = json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 1}});
    fixture.add_fault("/backendAddressPools/ccm$", busy).await;
    fixture.add_node(4).await;
    let three = ["!node-1", "node-2", "node-4"];
    fixture
        .wait_for("again after 429", |summary| summary.has(&[80], &three))
        .await;
    let faults = fixture.control("GET", "faults", &Value::Null).await;
    assert!(!faults.to_string().contains(r#""left":1"#), "each has acted: {faults}");

    // A Local Service has a pool of its own, which follows the endpoints and keeps a Down.
    fixture
        .set_service(json!({"spec": {"externalTrafficPolicy": "Local"}}))
        .await;
    let is_local = |summary: &LoadBalancerSummary| {
        summary
            .pools
            .get("default-web")
            .is_some_and(|members| members.len() == 1)
    };
    let summary = fixture.wait_for("a pool of its own", is_local).await;
    assert_eq!(summary.probes, BTreeSet::from(["Http".to_owned()]));
    fixture.set_down("default-web", "node-1").await;
    fixture.set_endpoints(&["node-1", "node-2"]).await;
    let both = |summary: &LoadBalancerSummary| {
        let wanted = BTreeSet::from(["!node-1".to_owned(), "node-2".to_owned()]);
        summary.pools.get("default-web") == Some(&wanted)
    };
    fixture.wait_for("an endpoint more", both).await;
    fixture
        .set_service(json!({"spec": {"externalTrafficPolicy": "Cluster"}}))
        .await;
    let only_all = |summary: &LoadBalancerSummary| {
        summary.pools.len() == 1 && summary.pools.get(CLUSTER).is_some_and(|members| members.len() == 3)
    };
    fixture.wait_for("all nodes again", only_all).await;

    // After the deletion, no resource is left.
    services.delete("web", &DeleteParams::default()).await.unwrap();
    eventually(RECONCILE_TIMEOUT, "everything is gone", async || {
        for kind in ["loadBalancers", "publicIPAddresses"] {
            let left = fixture.resources(kind).await;
            if !left.is_empty() {
                return Err(format!("{left:?}; its log:\n{}", last_log_lines(fixture.manager.log())));
            }
        }
        match services.get_opt("web").await {
            Ok(None) => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
    assert_eq!(fixture.arm.read(&group).await["properties"]["securityRules"], json!([]));
    assert!(
        fixture.manager.try_wait().is_none(),
        "{}",
        last_log_lines(fixture.manager.log())
    );
    check_requests_are_as_measured(&fixture).await;
    fixture.emulator.stop().await;
    control_plane.stop().await;
}

/// Checks that the kinds of its requests, and which of them are conditional, are as measured.
async fn check_requests_are_as_measured(fixture: &Fixture) {
    let mut entries = Vec::new();
    let mut after = 0;
    loop {
        let page = fixture
            .control("GET", &format!("journal?after={after}&limit=1000"), &Value::Null)
            .await;
        assert_eq!(page["dropped"], 0);
        after = page["next"].as_u64().unwrap();
        let Some(more) = page["entries"].as_array().filter(|more| !more.is_empty()) else {
            break;
        };
        entries.extend_from_slice(more);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut kinds = BTreeSet::new();
    for entry in &entries {
        let (method, path, agent) = (text(&entry["method"]), text(&entry["path"]), text(&entry["userAgent"]));
        let Some(path) = path
            .split("/providers/")
            .nth(1)
            .filter(|_| agent.contains("kubernetes-cloudprovider") && agent != USER_AGENT)
        else {
            continue;
        };
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let kind = parts.iter().step_by(2).copied().collect::<Vec<_>>().join("/");
        if method == "PUT" {
            let creates = entry["status"] == 201;
            let unconditional = creates || kind.ends_with("backendAddressPools");
            assert_eq!(entry["ifMatch"].is_null(), unconditional, "{entry}");
        }
        kinds.insert(format!("{method} {kind} {}", text(&entry["apiVersion"])));
    }
    let measured = BTreeSet::from(
        [
            "DELETE loadBalancers 2025-05-01",
            "DELETE loadBalancers/backendAddressPools 2025-05-01",
            "DELETE publicIPAddresses 2025-05-01",
            "GET  2021-04-01",
            "GET loadBalancers 2025-05-01",
            "GET loadBalancers/backendAddressPools 2025-05-01",
            "GET locations/operations 2025-05-01",
            "GET networkSecurityGroups 2025-05-01",
            "GET privateLinkServices 2025-05-01",
            "GET publicIPAddresses 2025-05-01",
            "GET virtualMachines 2025-04-01",
            "PUT loadBalancers 2025-05-01",
            "PUT loadBalancers/backendAddressPools 2025-05-01",
            "PUT networkSecurityGroups 2025-05-01",
            "PUT publicIPAddresses 2025-05-01",
        ]
        .map(str::to_owned),
    );
    assert_eq!(kinds, measured);
}
