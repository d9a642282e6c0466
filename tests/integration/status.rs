//! `headgate status` and `headgate restore`, against the real kube-apiserver and the emulator on a socket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use headgate::sandbox::control_plane::ControlPlane;
use headgate::sandbox::nodes;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::admin_state::world::{GROUP, load_balancer};
use crate::emulator::process::Emulator;
use crate::harness::{AgentOptions, assets, http, own_control_plane, scratch};

const DRAIN: &str = "ToBeDeletedByClusterAutoscaler";

/// A cluster of three nodes with load balancers in the emulator.
struct World {
    control_plane: ControlPlane,
    client: Client,
    emulator: Emulator,
    azure_json: PathBuf,
    plugins: PathBuf,
}

fn address(number: u8, v6: bool) -> String {
    if v6 {
        format!("fd00:5eed::{number:x}")
    } else {
        format!("127.0.0.{number}")
    }
}

/// Entries of the three nodes, and of one that there is not.
fn entries(v6: bool) -> Value {
    let entry = |number| json!({"name": format!("node-{number}"), "properties": {"ipAddress": address(number, v6)}});
    [1, 2, 3, 9].into_iter().map(entry).collect()
}

impl World {
    async fn start() -> Self {
        let control_plane = own_control_plane().await;
        let client = Client::try_from(control_plane.client_config()).unwrap();
        nodes::register(&client, 3, "status").await.unwrap();
        let directory = scratch("status");
        let pools = [("kubernetes", entries(false)), ("kubernetes-IPv6", entries(true))];
        let mut both = load_balancer("kubernetes", &pools);
        // A rule without a probe, and a pool without a rule.
        let properties = both["properties"].as_object_mut().unwrap();
        let mut bare = properties["loadBalancingRules"][1].clone();
        bare["name"] = "bare".into();
        bare["properties"].as_object_mut().unwrap().remove("probe");
        bare["properties"]["frontendPort"] = 81.into();
        properties["loadBalancingRules"].as_array_mut().unwrap().push(bare);
        properties["backendAddressPools"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "outbound", "properties": {"loadBalancerBackendAddresses": entries(false)}}));
        let strangers = load_balancer("somebody-elses", &[("kubernetes", entries(false))]);
        let seed = directory.join("seed.json");
        std::fs::write(&seed, json!({"resources": [both, strangers]}).to_string()).unwrap();
        let emulator = Emulator::seeded(&seed, &[]).await;
        let azure_json = directory.join("azure.json");
        let said = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": "tenant",
            "subscriptionId": "sub", "resourceGroup": "rg", "aadClientId": "client", "aadClientSecret": "secret"});
        std::fs::write(&azure_json, said.to_string()).unwrap();
        let plugins = scratch("plugins");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_headgate"), plugins.join("kubectl-headgate")).unwrap();
        Self {
            control_plane,
            client,
            emulator,
            azure_json,
            plugins,
        }
    }

    fn headgate(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command
            .args(arguments)
            .arg("--kubeconfig")
            .arg(self.control_plane.kubeconfig());
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn with_azure(&self, arguments: &[&str]) -> Output {
        let file = self.azure_json.to_str().unwrap();
        self.headgate(&[arguments, &["--azure-config-file", file]].concat())
    }

    fn status(&self, more: &[&str]) -> String {
        said(self.with_azure(&[&["status", "--no-agents"], more].concat()))
    }

    fn json(&self, more: &[&str]) -> Value {
        serde_json::from_str(&self.status(&[&["-o", "json"], more].concat())).unwrap()
    }

    async fn taint(&self, node: &str, taints: Value) {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Sets these entries of a pool Down, as anybody with a token can.
    async fn down(&self, pool: &str, numbers: &[u8], v6: bool) {
        let token = http::get(self.emulator.control, "/emulator/v1/token")
            .await
            .unwrap()
            .json();
        let path = format!(
            "{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes/backendAddressPools/{pool}?api-version=2025-05-01"
        );
        let ask = async |method: &str, body: &str| {
            let head = format!(
                "Authorization: Bearer {}\r\nContent-Length: {}",
                token["token"].as_str().unwrap(),
                body.len()
            );
            let arm: SocketAddr = self.emulator.arm;
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {arm}\r\n{head}\r\n\r\n{body}");
            let answer = http::exchange(arm, request.as_bytes()).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()
        };
        let mut document = ask("GET", "").await;
        for entry in document["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap()
        {
            let ip = entry["properties"]["ipAddress"].as_str().unwrap().to_owned();
            if numbers.iter().any(|number| address(*number, v6) == ip) {
                entry["properties"]["adminState"] = "Down".into();
            }
        }
        ask("PUT", &document.to_string()).await;
    }

    /// The entries that are Down, by pool.
    async fn all_down(&self) -> BTreeMap<String, Vec<String>> {
        let state = http::get(self.emulator.control, "/emulator/v1/state")
            .await
            .unwrap()
            .json();
        let ours = |found: &&Value| found["name"] == "kubernetes" && found["type"] == "Microsoft.Network/loadBalancers";
        let found = state["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(ours)
            .unwrap()
            .clone();
        let pools = found["properties"]["backendAddressPools"].as_array().unwrap().clone();
        let down = |pool: &Value| {
            let entries = pool["properties"]["loadBalancerBackendAddresses"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let down = entries
                .into_iter()
                .filter(|entry| entry["properties"]["adminState"] == "Down");
            down.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        pools
            .iter()
            .map(|pool| (pool["name"].as_str().unwrap().to_owned(), down(pool)))
            .collect()
    }

    /// The number of writes of pools so far.
    async fn writes(&self) -> usize {
        let path = "/emulator/v1/journal?limit=1000&method=PUT";
        let journal = http::get(self.emulator.control, path).await.unwrap().json();
        journal["entries"].as_array().unwrap().len()
    }

    async fn write_ledger(&self, lines: &[(&str, &str)]) {
        let page = |pool: &str| {
            let id = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes/backendAddressPools/{pool}");
            id.to_lowercase()
        };
        let mut pools = BTreeMap::<String, BTreeMap<&str, &str>>::new();
        for (key, record) in lines {
            let (pool, key) = match key.split_once('/') {
                Some(named) => named,
                None if key.contains(':') => ("kubernetes-IPv6", *key),
                None => ("kubernetes", *key),
            };
            pools.entry(page(pool)).or_default().insert(key, record);
        }
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headgate-admin-state"},
            "data": {"ledger.json": json!({"pools": pools}).to_string()}});
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "kube-system");
        let params = PatchParams::apply("test").force();
        maps.patch("headgate-admin-state", &params, &Patch::Apply(object))
            .await
            .unwrap();
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    /// Somebody leads, or has given the Lease back.
    async fn lead(&self, holder: &str) {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "2026-11-21T10:00:00.000000Z", "renewTime": now});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "headgate-leader"}, "spec": spec});
        let params = PatchParams::apply("test").force();
        self.leases()
            .patch("headgate-leader", &params, &Patch::Apply(lease))
            .await
            .unwrap();
    }
}

fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(output: &Output, code: i32) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{told}");
    told
}

/// The entry of a node in a pool.
fn entry<'a>(report: &'a Value, node: &str, pool: &str) -> &'a Value {
    let nodes = report["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|known| known["name"] == node).unwrap();
    let entries = node["entries"].as_array().unwrap();
    entries.iter().find(|entry| entry["pool"] == pool).unwrap()
}

#[tokio::test]
async fn status_before_and_after_a_down_and_restore_gives_back_what_is_ours() {
    let world = World::start().await;

    // Nothing has happened yet.
    let text = world.status(&[]);
    println!("{text}");
    for part in [
        "nobody: there is no Lease",
        "0 of 3 nodes",
        "Http :10456/healthz",
        "nobody: Down has no effect",
        "not considered: no rule uses it",
        "1 of 2 rules of kubernetes/kubernetes-IPv6 have no probe",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("somebody-elses"), "{text}");
    let report = world.json(&["--all"]);
    assert_eq!(
        (&report["nodesTotal"], report["nodes"].as_array().unwrap().len()),
        (&json!(3), 3)
    );
    assert_eq!(report["probedByHeadgate"], true);

    // Node 1 is tainted; it is Down by headgate in one pool, and about to be in the other. Somebody else has set node 2.
    world
        .taint("node-1", json!([{"key": DRAIN, "effect": "NoSchedule"}]))
        .await;
    world.lead("node-3_0a1b").await;
    world.down("kubernetes", &[1, 2], false).await;
    world
        .write_ledger(&[
            ("127.0.0.1", "down 2026-11-21T10:00:00Z"),
            ("fd00:5eed::1", "intended 2026-11-21T10:00:00Z"),
        ])
        .await;
    let agent = AgentOptions::new("node-1", world.control_plane.kubeconfig())
        .start()
        .await;
    let statusz = format!("node-1=http://{}/statusz", agent.metrics_address());
    let text = said(world.with_azure(&["status", "--statusz", &statusz]));
    println!("{text}");
    for part in [
        "node-3_0a1b since 2026-11-21T10:00:00Z",
        "Down ours",
        "None→Down pending",
        "Down foreign",
        "2 of 3 nodes",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let report: Value = serde_json::from_str(&said(world.with_azure(&[
        "status",
        "-o",
        "json",
        "--statusz",
        &statusz,
    ])))
    .unwrap();
    assert_eq!(report["leader"]["holder"], "node-3_0a1b");
    assert_eq!(
        (&report["leader"]["alive"], &report["leader"]["term"]),
        (&json!(true), &json!(4))
    );
    assert_eq!(
        report["nodes"][0]["signals"],
        json!([{"name": DRAIN, "health": true, "adminState": true}])
    );
    let verdict = &report["nodes"][0]["verdict"];
    assert_eq!(
        (&verdict["healthz"], &verdict["asked"]),
        (&json!(503), &json!(true)),
        "{verdict}"
    );
    assert_eq!(report["nodes"][1]["verdict"]["asked"], false, "nobody answers there");
    assert_eq!(
        entry(&report, "node-1", "kubernetes"),
        &json!({"loadBalancer": "kubernetes", "pool": "kubernetes", "entry": "127.0.0.1", "adminState": "Down", "owner": "headgate",
            "stage": "down", "since": "2026-11-21T10:00:00Z", "pending": false, "becomes": null})
    );
    let pending = entry(&report, "node-1", "kubernetes-IPv6");
    assert_eq!(
        (&pending["pending"], &pending["becomes"], &pending["stage"]),
        (&json!(true), &json!("Down"), &json!("intended"))
    );
    assert_eq!(entry(&report, "node-2", "kubernetes")["owner"], "foreign");
    agent.kill().await;

    in_other_ways(&world);
    restored(&world).await;
    world.control_plane.stop().await;
}

fn in_other_ways(world: &World) {
    // One node by name, by way of kubectl.
    let mut kubectl = Command::new(assets().program("kubectl").unwrap());
    kubectl.args([
        "headgate",
        "status",
        "node-2",
        "--no-agents",
        "-o",
        "wide",
        "--azure-config-file",
    ]);
    kubectl
        .arg(&world.azure_json)
        .env("KUBECONFIG", world.control_plane.kubeconfig());
    let path = std::env::var("PATH").unwrap_or_default();
    kubectl.env("PATH", format!("{}:{path}", world.plugins.display()));
    let text = said(kubectl.output().unwrap());
    assert!(text.contains("node-2") && !text.contains("node-1"), "{text}");
    assert!(text.contains("kubernetes/kubernetes-IPv6"), "{text}");

    // Without Azure the ledger is all there is.
    let text = said(world.headgate(&["status", "--no-agents"]));
    println!("{text}");
    assert!(
        text.contains("Azure:         not asked: give --azure-config-file"),
        "{text}"
    );
    assert!(text.contains("? ours (down "), "{text}");
}

/// The second half: all that is ours goes back, and nothing else.
async fn restored(world: &World) {
    let before = world.writes().await;
    let text = said(world.with_azure(&["restore", "--dry-run"]));
    assert!(text.contains("kubernetes/kubernetes   127.0.0.1   node-1"), "{text}");
    assert!(text.contains("1 entries would be given back"), "{text}");

    // The leader would set it Down again.
    world.lead("node-3_0a1b").await;
    let told = refused(&world.with_azure(&["restore", "--yes"]), 1);
    assert!(
        told.contains("node-3_0a1b leads") && told.contains("adminState.mode: off"),
        "{told}"
    );
    let told = refused(&world.with_azure(&["restore", "--yes", "--wait", "3s"]), 1);
    assert!(told.contains("was not had within 3 s"), "{told}");
    // It has gone.
    world.lead("").await;
    let told = refused(&world.with_azure(&["restore"]), 2);
    assert!(told.contains("give --yes"), "{told}");
    let text = said(world.with_azure(&["restore", "--yes", "node-2"]));
    assert!(text.contains("Nothing is Down by headgate."), "{text}");
    assert_eq!(world.writes().await, before, "nothing was written");
    assert_eq!(world.all_down().await["kubernetes"], ["node-1", "node-2"]);

    let output = world.with_azure(&["restore", "--yes"]);
    println!("{}", String::from_utf8_lossy(&output.stderr));
    let text = said(output);
    assert!(text.contains("127.0.0.1   node-1   given back"), "{text}");
    assert!(text.contains("1 entries were given back."), "{text}");
    assert_eq!(world.writes().await, before + 1, "one pool, one write");
    assert_eq!(
        world.all_down().await["kubernetes"],
        ["node-2"],
        "what is foreign stays"
    );

    // What is left behind: free Leases, and a ledger that says so.
    for (lease, holder) in [("headgate-leader", ""), ("aks-managed-resource-locker", "")] {
        let spec = world.leases().get(lease).await.unwrap().spec.unwrap();
        assert_eq!(spec.holder_identity.unwrap_or_default(), holder, "{lease}");
    }
    let leader = world.leases().get("headgate-leader").await.unwrap();
    assert_eq!(leader.metadata.annotations, None, "no failed term");
    let report = world.json(&["node-1"]);
    let first = entry(&report, "node-1", "kubernetes");
    assert_eq!(
        (&first["adminState"], &first["stage"]),
        (&json!("None"), &json!("restored"))
    );
    assert_eq!(entry(&report, "node-1", "kubernetes-IPv6")["stage"], "restored");
    let text = said(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("Nothing is Down by headgate."), "{text}");

    // What is ours in a pool that lost its rules is shown with its node, and asked about as all else.
    world.down("outbound", &[2, 3], false).await;
    world
        .write_ledger(&[("outbound/127.0.0.3", "down 2026-11-21T10:00:00Z")])
        .await;
    let report = world.json(&[]);
    let lost = entry(&report, "node-3", "outbound");
    assert_eq!(
        (&lost["owner"], &lost["becomes"], &report["unmatchedLedger"]),
        (&json!("headgate"), &json!("None"), &json!([]))
    );
    let text = said(world.with_azure(&["restore", "--dry-run"]));
    assert!(text.contains("kubernetes/outbound   127.0.0.3   node-3"), "{text}");
    assert!(text.contains("1 entries would be given back"), "{text}");
    let text = said(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("127.0.0.3   node-3   given back"), "{text}");
    assert_eq!(world.all_down().await["outbound"], ["node-2"], "what is foreign stays");

    // An entry whose Node has gone is nobody's, even if the ledger has it.
    world.down("kubernetes", &[9], false).await;
    world.write_ledger(&[("127.0.0.9", "down 2026-11-21T10:00:00Z")]).await;
    let before = world.writes().await;
    let output = world.with_azure(&["restore", "--yes"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("127.0.0.9   left alone: it belongs to no Node"), "{text}");
    assert!(refused(&output, 1).contains("1 entries were not given back"));
    assert_eq!(world.writes().await, before);
    let text = world.status(&[]);
    assert!(
        text.contains("1 entries of kubernetes/kubernetes are Down and belong to no Node"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_asked_is_said() {
    let headgate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(arguments).output().unwrap()
    };
    for (arguments, code, told) in [
        (&["status", "--kubeconfig", "/nonexistent"][..], 2, "/nonexistent"),
        (&["status", "--azure-config-secret", "nowhere"], 2, "azure.configSecret"),
        (&["status", "-A", "node-1"], 2, "cannot be used with"),
        (
            &["status", "--statusz", "http://127.0.0.1/"],
            2,
            "allowed: a Node's name",
        ),
        (&["restore", "--wait", "soon"], 2, "such as 500ms, 30s or 1m30s"),
    ] {
        let output = headgate(arguments);
        let text = refused(&output, code);
        assert!(text.contains(told), "{arguments:?}: {text}");
    }
    let cluster = crate::harness::control_plane();
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let output = headgate(&["status", "no-such-node", "--kubeconfig", kubeconfig]);
    assert!(refused(&output, 1).contains("there is no Node \"no-such-node\""));
    let output = headgate(&[
        "status",
        "--kubeconfig",
        kubeconfig,
        "--azure-config-file",
        "/nonexistent",
    ]);
    assert!(refused(&output, 2).contains("/nonexistent"));
    let output = headgate(&["restore", "--yes", "--kubeconfig", kubeconfig]);
    assert!(refused(&output, 1).contains("Azure cannot be asked"));
}
