//! `headgate-lab budget --from-cluster` with the real kube-apiserver, with no more rights than its page names, and with the ARM
//! emulator.

mod controllers;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::nodes;
use headgate_test_kubernetes::{assert_contains, lab_program, own_cluster, scratch};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::emulator::emulator_process::Emulator;
use crate::harness::{objects, refused, stdout_of};

const PAGE: &str = include_str!("../../lab/budget/README.md");

async fn create<K>(client: &Client, object: Value) -> K
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    objects::create(&Api::<K>::default_namespaced(client.clone()), object).await
}

/// A ready Pod of an application on a node, on the host's network or not, with this preStop hook and these owners.
async fn create_pod(client: &Client, app: &str, node: &str, host_network: bool, pre_stop: Value, owners: &Value) {
    let name = format!("{app}-{node}");
    let port = json!({"name": "http", "containerPort": 8080, "hostPort": host_network.then_some(8080)});
    let spec = json!({"nodeName": node, "serviceAccountName": "web", "hostNetwork": host_network, "containers": [
        {"name": "c", "image": "none", "ports": [port], "lifecycle": {"preStop": pre_stop}}]});
    let metadata = json!({"name": name, "labels": {"app": app}, "ownerReferences": owners});
    let pod = json!({"metadata": metadata, "spec": spec});
    create::<Pod>(client, pod).await;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    objects::merge_status(&pods, &name, ready).await;
}

async fn create_service(client: &Client, name: &str, kind: &str, policy: Option<&str>, annotations: Value) -> Service {
    create(
        client,
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"type": kind,
            "externalTrafficPolicy": policy, "selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]}}),
    )
    .await
}

/// Everything that the budget reads: three Services of type `LoadBalancer` and one of another, their Pods and controllers.
async fn populate(client: &Client) -> Service {
    nodes::register(client, 3, "budget").await.unwrap();
    create::<ServiceAccount>(client, json!({"metadata": {"name": "web"}})).await;
    let interval = json!({"service.beta.kubernetes.io/azure-load-balancer-health-probe-interval": "10"});
    let local = create_service(client, "envoy", "LoadBalancer", Some("Local"), interval.clone()).await;
    create_service(client, "web", "LoadBalancer", Some("Cluster"), interval).await;
    create_service(client, "empty", "LoadBalancer", Some("Local"), json!({})).await;
    create_service(client, "inner", "ClusterIP", None, json!({})).await;
    let shell = [
        "/bin/sh",
        "-c",
        "curl -X POST http://localhost:9901/healthcheck/fail && sleep 300",
    ];
    let template = |app: &str| json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let set = json!({"metadata": {"name": "envoy"}, "spec": {"selector": selector("envoy"), "template": template("envoy"),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}}});
    let set = create::<DaemonSet>(client, set).await;
    let owners = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "envoy", "uid": set.metadata.uid,
        "controller": true}]);
    for node in ["node-1", "node-2"] {
        create_pod(
            client,
            "envoy",
            node,
            true,
            json!({"exec": {"command": shell}}),
            &owners,
        )
        .await;
    }
    let sleep = json!({"sleep": {"seconds": 20}});
    create_pod(client, "web", "node-3", false, sleep, &json!([])).await;
    let mut autoscaler = template("scaler");
    autoscaler["spec"]["containers"][0] = json!({"name": "c", "image": "example.com/cluster-autoscaler:v1.36.0",
        "command": ["./cluster-autoscaler", "--node-delete-delay-after-taint=40s"]});
    let deployment =
        json!({"metadata": {"name": "scaler"}, "spec": {"selector": selector("scaler"), "template": autoscaler}});
    create::<Deployment>(client, deployment).await;
    local
}

/// A kubeconfig of an account that has the role of the page, and nothing else.
async fn restricted(control_plane: &ControlPlane, client: &Client) -> PathBuf {
    let (_, yaml) = PAGE.split_once("```yaml\n").unwrap();
    let (yaml, _) = yaml.split_once("```").unwrap();
    let role: ClusterRole = serde_yaml::from_str(yaml).unwrap();
    let name = role.metadata.name.clone().unwrap();
    let roles = Api::<ClusterRole>::all(client.clone());
    roles.create(&PostParams::default(), &role).await.unwrap();
    create::<ServiceAccount>(client, json!({"metadata": {"name": "budget"}})).await;
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "budget", "namespace": "default"}]});
    objects::create(&Api::<ClusterRoleBinding>::all(client.clone()), binding).await;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let parameters = PostParams::default();
    let granted = accounts.create_token_request("budget", &parameters, &request);
    let token = granted.await.unwrap().status.unwrap().token;
    let text = std::fs::read_to_string(control_plane.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_yaml::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let path = scratch("budget").join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

/// An emulator with the rule of this Service, probed every 15 s × 3, and the `azure.json` for it.
async fn azure(service: &Service) -> (Emulator, PathBuf) {
    let group = "/subscriptions/sub/resourceGroups/rg";
    let id = format!("{group}/providers/Microsoft.Network/loadBalancers/kubernetes");
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let uid = service.metadata.uid.clone().unwrap().replace('-', "");
    let base: String = format!("a{uid}").chars().take(32).collect();
    let resource = json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
        "frontendIPConfigurations": [{"name": "front", "properties": {"privateIPAddress": "10.9.9.9"}}],
        "backendAddressPools": [{"name": "kubernetes", "properties": {}}],
        "probes": [{"name": format!("{base}-TCP-80"), "properties": {"protocol": "Http", "port": 32000,
            "requestPath": "/healthz", "intervalInSeconds": 15, "numberOfProbes": 1, "probeThreshold": 3}}],
        "loadBalancingRules": [{"name": format!("{base}-TCP-80"), "properties": {
            "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
            "backendAddressPool": inside("backendAddressPools", "kubernetes"),
            "probe": inside("probes", &format!("{base}-TCP-80")), "protocol": "Tcp", "frontendPort": 80,
            "backendPort": 80}}]}});
    let directory = scratch("budget-azure");
    let seed = directory.join("seed.json");
    std::fs::write(&seed, json!({"resources": [resource]}).to_string()).unwrap();
    let emulator = Emulator::start_with_seed(&seed, &[]).await;
    let file = directory.join("azure.json");
    let azure_json = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": "tenant",
        "subscriptionId": "sub", "resourceGroup": "rg", "aadClientId": "client", "aadClientSecret": "secret"});
    std::fs::write(&file, azure_json.to_string()).unwrap();
    (emulator, file)
}

fn budget(kubeconfig: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(lab_program());
    command
        .args(["budget", "--from-cluster", "--kubeconfig"])
        .arg(kubeconfig);
    command.args(more).stdin(Stdio::null()).output().unwrap()
}

fn json_of(output: Output) -> Vec<Value> {
    serde_json::from_str(&stdout_of(output)).unwrap()
}

/// Whether a piece of advice contains these words.
fn advises(service: &Value, words: &str) -> bool {
    let advice = service["advice"].as_array().unwrap();
    advice.iter().any(|text| text.as_str().unwrap().contains(words))
}

#[tokio::test]
async fn a_cluster_has_a_budget_for_each_load_balancer() {
    let (control_plane, client) = own_cluster().await;
    let local = populate(&client).await;
    let kubeconfig = restricted(&control_plane, &client).await;

    let services = json_of(budget(&kubeconfig, &["-o", "json"]));
    let names: Vec<_> = services
        .iter()
        .map(|service| service["service"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["default/empty", "default/envoy", "default/web"]);
    let [empty, envoy, web] = services.as_slice() else {
        panic!("{services:?}")
    };
    assert_eq!((&empty["pods"], &empty["target"]), (&json!(0), &json!("local")));
    assert!(advises(empty, "No Pod of the Service is ready"), "{empty}");

    // Two Pods on the host's network, whose preStop does what only targets without kube-proxy need.
    for (field, expected) in [
        ("target", json!("local")),
        ("pods", json!(2)),
        ("nodes", json!(2)),
        ("probeIntervalSeconds", json!(10.0)),
        ("probeSource", json!("annotations of the Service")),
        ("detectionSeconds", json!({"min": 0.0, "mean": 5.0, "max": 10.0})),
        ("blackholeSecondsPerPod", json!(320.0)),
        ("blackholeSecondsTotal", json!(640.0)),
        ("errorShare", json!(0.5)),
        ("deleteDelayMet", json!(false)),
        ("deleteDelaySeconds", json!(40.0)),
        ("servingSeconds", json!(30.0)),
        ("gracePeriodSeconds", json!(30.0)),
        ("expectedLossSecondsPerPod", json!(5.0)),
        (
            "rollout",
            json!({"controller": "DaemonSet envoy", "maxUnavailable": 0, "maxSurge": 1}),
        ),
    ] {
        assert_eq!(envoy[field], expected, "{field} in {envoy}");
    }
    for words in [
        "Remove the call",
        "Set maxUnavailable: 1 and maxSurge: 0",
        "kills a Pod after 30 s although preStop sleeps 300 s",
        "get 30 s of the 300 s to drain",
    ] {
        assert!(advises(envoy, words), "{words} in {envoy}");
    }
    assert_eq!((&web["target"], &web["nodes"]), (&json!("cluster"), &json!(3)));
    assert_eq!(web["servingSeconds"], json!(20.0));
    assert_eq!(web["expectedLossSecondsPerPod"], json!(0.0));

    // The rules in Azure win over annotations, and flags over both.
    let (_emulator, azure_json) = azure(&local).await;
    let with_azure = ["--azure-config-file", azure_json.to_str().unwrap()];
    let text = stdout_of(budget(&kubeconfig, &with_azure));
    println!("{text}");
    assert_contains!(
        text,
        "Service default/envoy: 2 Pods, new connections go to nodes with ready Pods",
        "Probes every 15 s, 3 failures: probe a",
        "of load balancer kubernetes.",
        "Probes every 10 s, 2 failures: annotations of the Service.",
        "Delete delay 40 s: --node-delete-delay-after-taint of Deployment scaler.",
        "Worst case, as the post counts it: 345 s for each Pod, 690 s for all 2.",
        "Expected loss of new connections to a replaced Pod's node:"
    );
    let flags = [
        "--service",
        "default/envoy",
        "--probe-threshold",
        "2",
        "--drain",
        "10s",
        "-o",
        "json",
    ];
    let one = json_of(budget(&kubeconfig, &[&with_azure[..], &flags].concat()));
    assert_eq!(one.len(), 1);
    assert_eq!(
        one[0]["detectionSeconds"],
        json!({"min": 0.0, "mean": 7.5, "max": 15.0})
    );
    assert_eq!(
        (&one[0]["probeSource"], &one[0]["deleteDelayMet"]),
        (&json!("flags"), &json!(true))
    );

    let missing = budget(&kubeconfig, &["--service", "default/inner"]);
    let words = "no Service \"default/inner\" of type LoadBalancer";
    refused(&missing, 2, &[words]);
}
