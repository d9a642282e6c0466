//! A caller of the API server with one token, which sends requests byte for byte as a test writes them.

use std::path::{Path, PathBuf};

use headgate_kubernetes::api_server::{self, Program};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{kubectl, met, scratch};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::rendering::folder;
use super::rights::RBAC;
use super::stdout_of;
use crate::node::with_token;

/// A service account of the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
}

/// The account of the `DaemonSet`.
pub(super) const AGENT: Account = Account {
    namespace: "kube-system",
    name: "headgate",
};

/// The account of the controllers in the hardened overlay.
pub(super) const CONTROLLER: Account = Account {
    namespace: "kube-system",
    name: "headgate-controller",
};

/// One request.
#[derive(Clone, Debug)]
pub(super) struct ApiRequest {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Value,
}

impl ApiRequest {
    pub(super) fn get(path: &str) -> Self {
        Self {
            method: "GET",
            path: path.to_owned(),
            content_type: "application/json",
            body: Value::Null,
        }
    }

    pub(super) fn post(path: &str, body: Value) -> Self {
        Self {
            method: "POST",
            body,
            ..Self::get(path)
        }
    }

    pub(super) fn put(path: &str, body: Value) -> Self {
        Self {
            method: "PUT",
            body,
            ..Self::get(path)
        }
    }

    pub(super) fn delete(path: &str) -> Self {
        Self {
            method: "DELETE",
            ..Self::get(path)
        }
    }

    pub(super) fn merge(path: &str, body: Value) -> Self {
        Self::patch(path, "application/merge-patch+json", body)
    }

    pub(super) fn strategic(path: &str, body: Value) -> Self {
        Self::patch(path, "application/strategic-merge-patch+json", body)
    }

    pub(super) fn json(path: &str, operations: Value) -> Self {
        Self::patch(path, "application/json-patch+json", operations)
    }

    /// A server-side apply.
    pub(super) fn apply(path: &str, body: Value) -> Self {
        let path = format!("{path}?fieldManager=headgate");
        Self::patch(&path, "application/apply-patch+yaml", body)
    }

    /// The same, checked and not carried out.
    pub(super) fn dry_run(mut self) -> Self {
        self.path.push_str(if self.path.contains('?') { "&" } else { "?" });
        self.path.push_str("dryRun=All");
        self
    }

    /// A request as a line: its function of these, its path, and its body as YAML.
    pub(super) fn parse(line: &str) -> Self {
        let mut words = line.splitn(3, ' ');
        let (kind, path) = (words.next().unwrap(), words.next().expect(line));
        let body = words.next().map(|body| serde_yaml::from_str(body).expect(line));
        match (kind, body) {
            ("get", None) => Self::get(path),
            ("delete", None) => Self::delete(path),
            ("post", Some(body)) => Self::post(path, body),
            ("merge", Some(body)) => Self::merge(path, body),
            ("strategic", Some(body)) => Self::strategic(path, body),
            ("json", Some(body)) => Self::json(path, body),
            ("apply", Some(body)) => Self::apply(path, body),
            _ => panic!("no request: {line}"),
        }
    }

    /// Requests with the words of their refusals, one on each line: `merge PATH BODY → WORDS`.
    pub(super) fn refusals(table: &str) -> Vec<(Self, &str)> {
        let lines = table
            .trim()
            .lines()
            .map(|line| line.trim().split_once(" → ").expect(line));
        lines.map(|(request, words)| (Self::parse(request), words)).collect()
    }

    fn patch(path: &str, content_type: &'static str, body: Value) -> Self {
        Self {
            method: "PATCH",
            content_type,
            body,
            ..Self::get(path)
        }
    }
}

/// A caller with its kubeconfig.
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) kubeconfig: PathBuf,
}

impl Caller {
    pub(super) fn administrator(control_plane: &ControlPlane) -> Self {
        Self {
            client: Client::try_from(control_plane.client_config()).unwrap(),
            kubeconfig: control_plane.kubeconfig().to_owned(),
        }
    }

    /// The caller that the token identifies.
    pub(super) async fn with_token(control_plane: &ControlPlane, token: &str) -> Self {
        Self::with(&with_token(control_plane.kubeconfig(), token)).await
    }

    /// The caller that the kubeconfig identifies; its requests are not retried.
    pub(super) async fn with(kubeconfig: &Path) -> Self {
        let config = api_server::load_config(Some(kubeconfig)).await.unwrap();
        Self {
            client: api_server::build_client(&config, Program::Cli).unwrap(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// The caller as another user, of these groups.
    pub(super) async fn impersonating(&self, user: &str, groups: &[&str]) -> Self {
        let mut file: Value = serde_yaml::from_str(&std::fs::read_to_string(&self.kubeconfig).unwrap()).unwrap();
        file["users"][0]["user"]["as"] = json!(user);
        file["users"][0]["user"]["as-groups"] = json!(groups);
        let path = scratch("impersonating").join("kubeconfig");
        std::fs::write(&path, file.to_string()).unwrap();
        Self::with(&path).await
    }

    /// The status and body of the answer.
    pub(super) async fn ask(&self, ask: &ApiRequest) -> (u16, Value) {
        let bytes = match &ask.body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body).unwrap(),
        };
        let request = axum::http::Request::builder()
            .method(ask.method)
            .uri(&ask.path)
            .header("content-type", ask.content_type)
            .body(Body::from(bytes))
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Reads an object, which must exist.
    pub(super) async fn get(&self, path: &str) -> Value {
        self.done(&ApiRequest::get(path)).await
    }

    /// Creates an object, or requests what is granted as one.
    pub(super) async fn post(&self, path: &str, body: Value) -> Value {
        self.done(&ApiRequest::post(path, body)).await
    }

    /// Changes an object.
    pub(super) async fn merge(&self, path: &str, change: Value) -> Value {
        self.done(&ApiRequest::merge(path, change)).await
    }

    /// Changes an object, lists by their keys.
    pub(super) async fn strategic(&self, path: &str, change: Value) -> Value {
        self.done(&ApiRequest::strategic(path, change)).await
    }

    pub(super) async fn delete(&self, path: &str) {
        self.done(&ApiRequest::delete(path)).await;
    }

    /// Sends a request, which must be refused in these words.
    pub(super) async fn refused(&self, ask: &ApiRequest, words: &[&str]) {
        self.is_refused(ask, words).await.unwrap();
    }

    /// The answer, if it refuses the request in other words or not at all.
    pub(super) async fn is_refused(&self, ask: &ApiRequest, words: &[&str]) -> Result<(), String> {
        let (status, body) = self.ask(ask).await;
        let message = body["message"].as_str().unwrap_or_default();
        met(
            status == 403 && words.iter().all(|part| message.contains(part)),
            format!("{words:?}: {} {} {}: {status} {body}", ask.method, ask.path, ask.body),
        )
    }

    /// Sends a request, which must succeed.
    pub(super) async fn done(&self, ask: &ApiRequest) -> Value {
        let (status, body) = self.ask(ask).await;
        assert!(
            matches!(status, 200 | 201),
            "{} {}: {status} {body}",
            ask.method,
            ask.path
        );
        body
    }

    /// Grants service accounts what the shipped roles do not.
    pub(super) async fn grant(&self, rule: Value, accounts: &[Account]) {
        let granting = json!({"metadata": {"name": "test-only"}, "rules": [rule]});
        self.post(&format!("{RBAC}/clusterroles"), granting).await;
        let subject =
            |account: &Account| json!({"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace});
        let binding = json!({"metadata": {"name": "test-only"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test-only"},
            "subjects": accounts.iter().map(subject).collect::<Vec<_>>()});
        self.post(&format!("{RBAC}/clusterrolebindings"), binding).await;
    }

    /// A token of a service account, bound to an object in its namespace.
    pub(super) async fn token(&self, namespace: &str, account: &str, bound: Option<Value>) -> String {
        let request = json!({"spec": {"audiences": [], "boundObjectRef": bound}});
        let request: TokenRequest = serde_json::from_value(request).unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let granted = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await;
        granted.unwrap().status.unwrap().token
    }

    /// Creates the Pod to which an account's token is bound, on a Node if one is named.
    pub(super) async fn pod(&self, account: Account, name: &str, node: Option<&str>) -> Value {
        let pod = json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account.name, "nodeName": node,
            "containers": [{"name": "c", "image": "none"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods = Api::<Pod>::namespaced(self.client.clone(), account.namespace);
        let made = pods.create(&PostParams::default(), &pod).await.unwrap();
        json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made.metadata.uid})
    }
}

/// Applies what the chart renders.
pub(super) fn install(kubeconfig: &Path, values: &Value) {
    apply(kubeconfig, &folder(values));
}

/// Applies a folder.
pub(super) fn apply(kubeconfig: &Path, folder: &Path) {
    stdout_of(kubectl(kubeconfig).args(["apply", "-k"]).arg(folder));
}

/// Requests a token as kubelet does, from a control plane with the manifests applied: a token of
/// `headgate` bound to a Pod on this Node.
pub(super) async fn agent_on(control_plane: &ControlPlane, node: &str) -> Caller {
    acting_on(control_plane, AGENT, node).await
}

/// The same for any account.
pub(super) async fn acting_on(control_plane: &ControlPlane, account: Account, node: &str) -> Caller {
    let administrator = Caller::administrator(control_plane);
    let name = format!("{}-on-{node}", account.name);
    let pod = administrator.pod(account, &name, Some(node)).await;
    let token = administrator.token(account.namespace, account.name, Some(pod)).await;
    Caller::with_token(control_plane, &token).await
}
