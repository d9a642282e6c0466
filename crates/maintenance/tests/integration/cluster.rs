//! A control plane with the manifests of this component, and requests as several users.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use headgate_test_kubernetes::{Cluster, control_plane, eventually};
use kube::core::response::StatusSummary;
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(super) const MAINTENANCES: &str = "/apis/headgate.dev/v1alpha1/nodemaintenances";
pub(super) const EVACUATIONS: &str = "/apis/headgate.dev/v1alpha1/namespaces/default/evacuations";
pub(super) const SOON: Duration = Duration::from_mins(1);

/// A file or folder of the repository.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub(super) fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The shared control plane. It serves both kinds.
pub(super) async fn cluster() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = control_plane();
    READY
        .get_or_init(|| async {
            let crds = repository("charts/headgate/files/crds");
            succeeded(&cluster.kubectl().args(["apply", "-f"]).arg(crds).output().unwrap());
            let client = cluster.client();
            for path in [MAINTENANCES, EVACUATIONS] {
                eventually(SOON, "the kind is served", async || {
                    match request(&client, "GET", path, None).await {
                        Ok(_) => Ok(()),
                        Err(answer) => Err(answer.message),
                    }
                })
                .await;
            }
        })
        .await;
    cluster
}

/// What the API server refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) message: String,
}

/// One request of the administrator with a JSON body, or a merge patch.
pub(super) async fn request(client: &Client, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
    request_as(client, "", method, path, body).await
}

/// One request of a user, or of the administrator where `user` is empty.
pub(super) async fn request_as(
    client: &Client,
    user: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Refusal> {
    let content = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = body.map_or(Vec::new(), |body| serde_json::to_vec(body).unwrap());
    let mut request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content);
    if !user.is_empty() {
        request = request.header("impersonate-user", user);
    }
    if user.starts_with("system:serviceaccount:") {
        // As in a token that kubelet requested for a pod.
        for key in ["pod-name", "node-name"] {
            let header = format!("impersonate-extra-authentication.kubernetes.io%2f{key}");
            request = request.header(header, "n-0");
        }
    }
    let request = request.body(body).unwrap();
    match client.request::<Value>(request).await {
        Ok(value) if value["kind"] == "Status" && value["status"] == json!(StatusSummary::Failure) => Err(Refusal {
            code: u16::try_from(value["code"].as_u64().unwrap()).unwrap(),
            message: value["message"].as_str().unwrap_or_default().to_owned(),
        }),
        Ok(value) => Ok(value),
        Err(Error::Api(status)) => Err(Refusal {
            code: status.code,
            message: status.message.clone(),
        }),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// Creates an object and deletes it again. `refused` is part of the message of the refusal, or empty for none.
pub(super) async fn try_create(client: &Client, path: &str, object: &Value, refused: &str, what: &str) {
    let answer = request(client, "POST", path, Some(object)).await;
    judge(answer.as_ref(), refused, what);
    if answer.is_ok() {
        let name = object["metadata"]["name"].as_str().unwrap();
        request(client, "DELETE", &format!("{path}/{name}"), None)
            .await
            .unwrap();
    }
}

/// Patches an object that was created as `before`. `refused` is part of the message of the refusal, or empty for none.
pub(super) async fn try_patch(client: &Client, path: &str, before: &Value, patch: &Value, refused: &str, what: &str) {
    let name = before["metadata"]["name"].as_str().unwrap();
    request(client, "POST", path, Some(before)).await.unwrap();
    let answer = request(client, "PATCH", &format!("{path}/{name}"), Some(patch)).await;
    judge(answer.as_ref(), refused, what);
    request(client, "DELETE", &format!("{path}/{name}"), None)
        .await
        .unwrap();
}

pub(super) fn judge(answer: Result<&Value, &Refusal>, refused: &str, what: &str) {
    match answer {
        Ok(_) => assert_eq!(refused, "", "{what}: accepted"),
        Err(answer) => {
            assert!(
                matches!(answer.code, 403 | 422) && !refused.is_empty() && answer.message.contains(refused),
                "{what}: expected {refused:?}, the answer was {answer:?}"
            );
        }
    }
}
