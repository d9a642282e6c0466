//! The cluster that `headgate status` shows: Nodes, their entries in Azure, the ledger, the leader's Lease.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;

use headgate_azure::PoolId;
use headgate_azure_emulator::{entries_of, pools_in, probed_load_balancer};
use headgate_controller::admin_state::{Ledger, LedgerChange, LedgerEntry};
use headgate_controller::pool::EntryKey;
use headgate_kubernetes::Decoded;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::nodes;
use headgate_test_kubernetes::{own_cluster, scratch};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::emulator::emulator_process::Emulator;
use crate::harness::{headgate, http, objects, stdout_of};

const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";

/// A cluster of three nodes with load balancers in the emulator.
pub(crate) struct World {
    pub(crate) control_plane: ControlPlane,
    pub(super) client: Client,
    emulator: Emulator,
    pub(crate) azure_json: PathBuf,
    pub(super) plugins: PathBuf,
}

fn address(number: u8, v6: bool) -> String {
    if v6 {
        format!("fd00:5eed::{number:x}")
    } else {
        format!("127.0.0.{number}")
    }
}

/// Entries of the three nodes, and of one that does not exist.
fn entries(v6: bool) -> Value {
    let entry = |number| json!({"name": format!("node-{number}"), "properties": {"ipAddress": address(number, v6)}});
    [1, 2, 3, 9].into_iter().map(entry).collect()
}

impl World {
    pub(crate) async fn start() -> Self {
        let (control_plane, client) = own_cluster().await;
        nodes::register(&client, 3, "status").await.unwrap();
        let directory = scratch("status");
        let pools = [("kubernetes", entries(false)), ("kubernetes-IPv6", entries(true))];
        let mut both = probed_load_balancer(GROUP, "kubernetes", &pools);
        // A rule without a probe, and a pool without a rule.
        let properties = both["properties"].as_object_mut().unwrap();
        let mut bare = properties["loadBalancingRules"][1].clone();
        bare["name"] = "bare".into();
        bare["properties"].as_object_mut().unwrap().remove("probe");
        bare["properties"]["frontendPort"] = 100.into();
        properties["loadBalancingRules"].as_array_mut().unwrap().push(bare);
        properties["backendAddressPools"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "outbound", "properties": {
                "virtualNetwork": {"id": "nodes"}, "loadBalancerBackendAddresses": entries(false)}}));
        let strangers = probed_load_balancer(GROUP, "unrelated", &[("kubernetes", entries(false))]);
        let seed = directory.join("seed.json");
        std::fs::write(&seed, json!({"resources": [both, strangers]}).to_string()).unwrap();
        let emulator = Emulator::start_with_seed(&seed, &[]).await;
        let azure_json = directory.join("azure.json");
        let stdout_of = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": "tenant",
            "subscriptionId": "sub", "resourceGroup": "rg", "aadClientId": "client", "aadClientSecret": "secret"});
        std::fs::write(&azure_json, stdout_of.to_string()).unwrap();
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

    pub(super) fn headgate(&self, arguments: &[&str]) -> Output {
        headgate(self.control_plane.kubeconfig(), arguments)
    }

    pub(super) fn with_azure(&self, arguments: &[&str]) -> Output {
        let file = self.azure_json.to_str().unwrap();
        self.headgate(&[arguments, &["--azure-config-file", file]].concat())
    }

    pub(super) fn status(&self, more: &[&str]) -> String {
        stdout_of(self.with_azure(&[&["status", "--no-agents"], more].concat()))
    }

    pub(super) fn json(&self, more: &[&str]) -> Value {
        serde_json::from_str(&self.status(&[&["-o", "json"], more].concat())).unwrap()
    }

    pub(crate) async fn taint(&self, node: &str, taints: Value) {
        let nodes = Api::<Decoded<Node>>::all(self.client.clone());
        objects::merge(&nodes, node, json!({"spec": {"taints": taints}})).await;
    }

    /// Writes times to a Node that no `Timestamp` represents, with the rights of its kubelet: an update of the object, and of its status.
    pub(super) async fn write_odd_times(&self, node: &str) {
        const FAR: &str = "9999-12-31T23:59:59Z";
        let path = format!("/api/v1/nodes/{node}");
        let request = |method: &str, path: &str, body: Vec<u8>| {
            let request = hyper::Request::builder().method(method).uri(path);
            request.header("Content-Type", "application/json").body(body).unwrap()
        };
        let mut object: Value = self.client.request(request("GET", &path, Vec::new())).await.unwrap();
        object["metadata"]["annotations"]["a"] = json!("b");
        let entry = json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "time": FAR, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:kubernetes.io/os": {}}}}});
        object["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
        let body = object.to_string().into_bytes();
        let mut stored: Value = self.client.request(request("PUT", &path, body)).await.unwrap();
        for condition in stored["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastHeartbeatTime"] = json!(FAR);
            condition["lastTransitionTime"] = json!(FAR);
        }
        let body = stored.to_string().into_bytes();
        let request = request("PUT", &format!("{path}/status"), body);
        let stored: Value = self.client.request(request).await.unwrap();
        let text = stored.to_string();
        assert!(
            serde_json::from_str::<Node>(&text).is_err(),
            "the API server kept no odd time: {text}"
        );
        assert!(stored["metadata"]["managedFields"].to_string().contains(FAR), "{text}");
    }

    /// A token for ARM.
    pub(super) async fn token(&self) -> String {
        let answer = self.control("GET", "token", &Value::Null).await;
        answer["token"].as_str().unwrap().to_owned()
    }

    /// Sets these entries of a pool Down, as another client of ARM.
    pub(super) async fn down(&self, pool: &str, numbers: &[u8], v6: bool) {
        let token = self.token().await;
        let path = format!(
            "{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes/backendAddressPools/{pool}?api-version=2025-05-01"
        );
        let ask = async |method: &str, body: &str| {
            let head = format!("Authorization: Bearer {token}\r\nContent-Length: {}", body.len());
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

    /// Changes the emulator's settings.
    pub(super) async fn set_emulator(&self, settings: &Value) {
        self.control("PUT", "settings", settings).await;
    }

    /// Refuses the next read of a load balancer by its id.
    pub(super) async fn refuse_read(&self, load_balancer: &str) {
        let path = format!("/loadBalancers/{load_balancer}$");
        let rule = json!({"match": {"method": "GET", "path": path}, "times": 1, "action": {"answer": {"status": 403}}});
        self.control("POST", "faults", &rule).await;
    }

    async fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        http::control(self.emulator.control, method, path, body).await
    }

    /// The entries of the cluster's load balancer that are Down, by pool.
    pub(crate) async fn all_down(&self) -> BTreeMap<String, Vec<String>> {
        self.down_in("kubernetes").await
    }

    /// The entries of a load balancer that are Down, by pool.
    pub(super) async fn down_in(&self, load_balancer: &str) -> BTreeMap<String, Vec<String>> {
        let state = self.control("GET", "state", &Value::Null).await;
        let own = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{load_balancer}/");
        let down = |pool: &Value| {
            let down = entries_of(pool).filter(|entry| entry["properties"]["adminState"] == "Down");
            down.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        let pools: BTreeMap<_, _> = pools_in(&state)
            .filter(|pool| pool["id"].as_str().unwrap().starts_with(&own))
            .map(|pool| (pool["name"].as_str().unwrap().to_owned(), down(pool)))
            .collect();
        assert!(!pools.is_empty(), "{state}");
        pools
    }

    /// The number of writes of pools so far.
    pub(super) async fn writes(&self) -> usize {
        let path = "journal?limit=1000&method=PUT";
        let journal = self.control("GET", path, &Value::Null).await;
        journal["entries"].as_array().unwrap().len()
    }

    pub(super) async fn write_ledger(&self, lines: &[(&str, &str)]) {
        let mut ledger = Ledger::default();
        for (key, record) in lines {
            let (load_balancer, pool, key) = match key.split('/').collect::<Vec<_>>()[..] {
                [load_balancer, pool, key] => (load_balancer, pool, key),
                [pool, key] => ("kubernetes", pool, key),
                _ if key.contains(':') => ("kubernetes", "kubernetes-IPv6", *key),
                _ => ("kubernetes", "kubernetes", *key),
            };
            let id =
                format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{load_balancer}/backendAddressPools/{pool}");
            let (id, key) = (PoolId::parse(&id).unwrap(), EntryKey::from_text(key));
            ledger.apply(LedgerChange::new(
                &id,
                &key,
                Some(LedgerEntry::try_from((*record).to_owned()).unwrap()),
            ));
        }
        let mut text = serde_json::to_value(&ledger).unwrap();
        text["version"] = json!(1);
        text["generation"] = json!(1);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headgate-admin-state"},
            "data": {"ledger.json": text.to_string()}});
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "kube-system");
        let params = PatchParams::apply("test").force();
        maps.patch("headgate-admin-state", &params, &Patch::Apply(object))
            .await
            .unwrap();
    }

    pub(super) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    /// Writes a Lease that `holder` holds; empty for a released Lease.
    pub(super) async fn lead(&self, holder: &str) {
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
