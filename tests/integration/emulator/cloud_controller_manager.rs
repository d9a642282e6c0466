//! The requests that a real cloud-controller-manager was seen to make, and what they do to admin states. Plain HTTP with a token of
//! App Service's endpoint, as there.

use std::net::SocketAddr;
use std::time::Duration;

use headgate_test_kubernetes::eventually;
use serde_json::{Value, json};

use super::emulator_process::Emulator;
use crate::harness::http::{self, Response};

const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const GROUP: &str = "/subscriptions/5b0c0de0-0000-4000-8000-000000000005/resourceGroups/cluster/providers";
/// The user agent of these tests' requests.
pub(crate) const USER_AGENT: &str = "kubernetes-cloudprovider/v1.36.0 azsdk-go-armnetwork/v9.0.0";
const NETWORK_API_VERSION: &str = "2025-05-01";

/// A client that sends the requests of cloud-controller-manager.
pub(crate) struct Controller {
    arm: SocketAddr,
    token: String,
}

impl Controller {
    pub(crate) async fn start(arm: SocketAddr) -> Self {
        let mut controller = Self {
            arm,
            token: String::new(),
        };
        let endpoints = controller.get("/metadata/endpoints", "2019-05-01").await;
        assert_eq!(endpoints.status, 200, "without a token: {}", endpoints.text());

        let resource = "resource=https%3A%2F%2Fmanagement.azure.com%2F&api-version=2019-08-01";
        let request =
            format!("GET /msi/token?{resource} HTTP/1.1\r\nHost: {arm}\r\nX-IDENTITY-HEADER: emulator\r\n\r\n");
        let answer = http::exchange(arm, request.as_bytes()).await.unwrap();
        let token = answer.json();
        assert!(!token["expires_on"].is_null(), "{token}");
        token["access_token"]
            .as_str()
            .unwrap()
            .clone_into(&mut controller.token);
        controller
    }

    pub(crate) async fn send(&self, method: &str, path: &str, if_match: Option<&str>, body: &Value) -> Response {
        let header =
            |name: &str, value: Option<&str>| value.map_or(String::new(), |value| format!("{name}: {value}\r\n"));
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let authorization = format!("Bearer {}", self.token);
        let headers = [
            header("Host", Some(&self.arm.to_string())),
            header("User-Agent", Some(USER_AGENT)),
            header("Accept", Some("application/json")),
            header(
                "Authorization",
                Some(&*authorization).filter(|_| !self.token.is_empty()),
            ),
            header("If-Match", if_match),
            header("Content-Type", Some("application/json").filter(|_| !text.is_empty())),
            header("Content-Length", Some(&text.len().to_string())),
        ];
        let request = format!("{method} {path} HTTP/1.1\r\n{}\r\n{text}", headers.concat());
        http::exchange(self.arm, request.as_bytes()).await.unwrap()
    }

    async fn get(&self, path: &str, version: &str) -> Response {
        self.send("GET", &format!("{path}?api-version={version}"), None, &Value::Null)
            .await
    }

    /// GET, which must succeed.
    pub(crate) async fn read(&self, path: &str) -> Value {
        let answer = self.get(path, NETWORK_API_VERSION).await;
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text());
        answer.json()
    }

    /// PUT, which must be accepted; waits for the operation and reads the resource.
    pub(crate) async fn put(&self, path: &str, if_match: Option<&str>, body: &Value) -> Value {
        let answer = self.send("PUT", &with_version(path), if_match, body).await;
        assert!(
            matches!(answer.status, 200 | 201),
            "PUT {path}: {} {}",
            answer.status,
            answer.text()
        );
        self.follow(&answer).await;
        self.read(path).await
    }

    async fn delete(&self, path: &str) {
        let answer = self.send("DELETE", &with_version(path), None, &Value::Null).await;
        assert!(
            matches!(answer.status, 200 | 202 | 204),
            "DELETE {path}: {}",
            answer.status
        );
        self.follow(&answer).await;
        assert_eq!(
            self.get(path, NETWORK_API_VERSION).await.status,
            404,
            "GET {path} after its deletion"
        );
    }

    /// Polls the operation as the SDK does, with the URL as given.
    async fn follow(&self, accepted: &Response) {
        let Some(url) = accepted.header("Azure-AsyncOperation") else {
            return;
        };
        let path = url
            .strip_prefix(&format!("http://{}", self.arm))
            .expect("an absolute URL of the emulator");
        eventually(OPERATION_TIMEOUT, "the end of the operation", async || {
            let answer = self.send("GET", path, None, &Value::Null).await;
            match answer.json()["status"].as_str() {
                Some("Succeeded") => Ok(()),
                _ => Err(answer.text()),
            }
        })
        .await;
    }
}

pub(crate) fn with_version(path: &str) -> String {
    format!("{path}?api-version={NETWORK_API_VERSION}")
}

pub(crate) fn etag(document: &Value) -> &str {
    document["etag"]
        .as_str()
        .unwrap_or_else(|| panic!("no etag: {document}"))
}

/// A load balancer as cloud-controller-manager writes it for one Service; it composes the ids of the children itself.
fn load_balancer(id: &str, public_ip: &str) -> Value {
    let reference = |path: &str| json!({"id": format!("{id}/{path}")});
    json!({
        "location": "eastus", "name": "kubernetes", "sku": {"name": "Standard"},
        "properties": {
            "frontendIPConfigurations": [{
                "name": "a1", "id": format!("{id}/frontendIPConfigurations/a1"),
                "properties": {"publicIPAddress": {"id": public_ip}},
            }],
            "backendAddressPools": [{"name": "kubernetes"}],
            "probes": [{"name": "a1-TCP-80", "properties": {
                "protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5, "probeThreshold": 2,
            }}],
            "loadBalancingRules": [{"name": "a1-TCP-80", "properties": {
                "protocol": "Tcp", "frontendPort": 80, "backendPort": 80, "enableFloatingIP": true,
                "frontendIPConfiguration": reference("frontendIPConfigurations/a1"),
                "backendAddressPool": reference("backendAddressPools/kubernetes"),
                "probe": reference("probes/a1-TCP-80"),
            }}],
        },
    })
}

fn addresses(names: &[&str]) -> Value {
    let address = |(number, name)| json!({"name": name, "properties": {"ipAddress": format!("10.0.0.{}", number + 4)}});
    names.iter().enumerate().map(address).collect()
}

#[tokio::test]
async fn cloud_controller_manager_keeps_or_resets_admin_states_on_the_emulator() {
    let emulator = Emulator::start(&["--operation-delay", "30ms"]).await;
    let controller = Controller::start(emulator.arm).await;
    let network = format!("{GROUP}/Microsoft.Network");
    let id = format!("{network}/loadBalancers/kubernetes");
    let pool = format!("{id}/backendAddressPools/default-loc");
    let public_ip = format!("{network}/publicIPAddresses/kubernetes-a1");
    controller
        .put(&public_ip, None, &json!({"location": "eastus", "properties": {}}))
        .await;
    controller.put(&id, None, &load_balancer(&id, &public_ip)).await;
    let members = |names: &[&str]| json!({"name": "default-loc", "properties": {"loadBalancerBackendAddresses": addresses(names)}});
    controller.put(&pool, None, &members(&["node-1", "node-2"])).await;
    let state = async || {
        let found = controller.read(&pool).await;
        let all = found["properties"]["loadBalancerBackendAddresses"]
            .as_array()
            .unwrap()
            .clone();
        all.iter().find(|address| address["name"] == "node-1").unwrap()["properties"]["adminState"].clone()
    };
    let unset = |document: &Value| {
        let mut document = document.clone();
        document["properties"]["loadBalancerBackendAddresses"][0]["properties"]
            .as_object_mut()
            .unwrap()
            .remove("adminState");
        document
    };

    // Set by an agent. The pool updater reads and writes the pool afterwards: kept.
    let before = controller.read(&pool).await;
    let mut down = before.clone();
    down["properties"]["loadBalancerBackendAddresses"][0]["properties"]["adminState"] = json!("Down");
    controller.put(&pool, Some(etag(&before)), &down).await;
    let read = controller.read(&pool).await;
    controller.put(&pool, None, &read).await;
    assert_eq!(state().await, "Down");

    // A port is added to the load balancer, with If-Match: kept.
    let mut found = controller.read(&id).await;
    let mut rule = found["properties"]["loadBalancingRules"][0].clone();
    for field in ["id", "etag"] {
        rule.as_object_mut().unwrap().remove(field);
    }
    rule["name"] = json!("a1-TCP-443");
    rule["properties"]["frontendPort"] = json!(443);
    found["properties"]["loadBalancingRules"]
        .as_array_mut()
        .unwrap()
        .push(rule);
    let old = etag(&found).to_owned();
    let found = controller.put(&id, Some(&old), &found).await;
    assert_eq!(found["properties"]["loadBalancingRules"].as_array().unwrap().len(), 2);
    assert_eq!(state().await, "Down");

    // A pool that was read before is written: lost without an error.
    controller.put(&pool, None, &unset(&down)).await;
    assert!(matches!(state().await.as_str(), None | Some("None")));

    // A node that leaves and returns has no admin state.
    controller.put(&pool, None, &down).await;
    assert_eq!(state().await, "Down");
    controller.put(&pool, None, &members(&["node-2"])).await;
    controller.put(&pool, None, &members(&["node-1", "node-2"])).await;
    assert!(matches!(state().await.as_str(), None | Some("None")));

    // The Local Service becomes a Cluster one, then the last Service is deleted.
    controller.delete(&pool).await;
    controller.delete(&id).await;
    controller.delete(&public_ip).await;
    assert_eq!(
        controller.read(&format!("{network}/loadBalancers")).await["value"],
        json!([])
    );

    emulator.stop().await;
}
