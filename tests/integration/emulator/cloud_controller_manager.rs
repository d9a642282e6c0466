//! A client that makes the requests that a real cloud-controller-manager was seen to make. Plain HTTP with a token of App Service's
//! endpoint, as there.

use std::net::SocketAddr;
use std::time::Duration;

use headgate_test_kubernetes::eventually;
use serde_json::Value;

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
