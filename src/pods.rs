//! headgate's pods, and requests to them through the API server, which reaches pods that this machine does not.
//!
//! It needs the rights to list pods and to get `pods/proxy` in headgate's namespace.

use std::time::Duration;

use bytes::Bytes;
use headgate_core::telemetry::error_chain;
use headgate_kubernetes::Decoded;
use http_body_util::{BodyExt as _, Limited};
use hyper::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::timeout;

use crate::api_error::api_error_text;
use crate::readable_objects::readable_objects;

/// All pods of headgate.
const HEADGATE_PODS: &str = "app.kubernetes.io/name=headgate";
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// Time for the list of pods, and for one answer through the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod of headgate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadgatePod {
    pub(crate) name: String,
    /// Empty before it is scheduled.
    pub(crate) node: String,
    /// `agent`, `controller`, `hold`, or what its label says.
    pub(crate) component: String,
    /// The version of its label; without one, the tag of its image.
    pub(crate) version: Option<String>,
    pub(crate) image: String,
    pub(crate) is_running: bool,
    /// The names of its containers.
    pub(crate) containers: Vec<String>,
}

impl HeadgatePod {
    fn new(pod: Pod) -> Option<Self> {
        let labels = pod.metadata.labels.unwrap_or_default();
        let spec = pod.spec?;
        let containers: Vec<_> = spec.containers.iter().map(|container| container.name.clone()).collect();
        let image = spec.containers.into_iter().next().and_then(|container| container.image);
        let image = image.unwrap_or_default();
        let version = labels.get(VERSION_LABEL).cloned().filter(|label| !label.is_empty());
        Some(Self {
            name: pod.metadata.name?,
            node: spec.node_name.unwrap_or_default(),
            component: labels.get(COMPONENT_LABEL).cloned().unwrap_or_default(),
            version: version.or_else(|| tag(&image).map(str::to_owned)),
            image,
            is_running: pod.status.and_then(|status| status.phase).as_deref() == Some("Running"),
            containers,
        })
    }
}

/// The tag of an image, if it has one.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or_default();
    let (_, tag) = name.rsplit_once(':')?;
    (!tag.contains('/') && !tag.is_empty()).then_some(tag)
}

/// The pods of headgate in its namespace.
pub(crate) struct HeadgatePods {
    client: Client,
    pub(crate) namespace: String,
    pub(crate) all: Vec<HeadgatePod>,
}

impl HeadgatePods {
    /// Lists the pods, of one component or of all, on one node or on all.
    ///
    /// # Errors
    /// A text that says why they cannot be listed.
    pub(crate) async fn list(
        client: &Client,
        namespace: &str,
        component: Option<&str>,
        node: Option<&str>,
    ) -> Result<Self, String> {
        let labels = component.map_or_else(
            || HEADGATE_PODS.to_owned(),
            |component| format!("{HEADGATE_PODS},{COMPONENT_LABEL}={component}"),
        );
        let mut selection = ListParams::default().labels(&labels);
        if let Some(node) = node {
            selection = selection.fields(&format!("spec.nodeName={node}"));
        }
        let api = Api::<Decoded<Pod>>::namespaced(client.clone(), namespace);
        let listed = timeout(REQUEST_TIMEOUT, api.list(&selection))
            .await
            .map_err(|_| format!("no list of pods within {} s", REQUEST_TIMEOUT.as_secs()))?
            .map_err(|error| format!("the pods of {namespace} cannot be listed: {}", api_error_text(&error)))?;
        let all = readable_objects(listed).into_iter().filter_map(HeadgatePod::new);
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            all: all.collect(),
        })
    }

    /// The pod for people.
    pub(crate) fn place(&self, pod: &str) -> String {
        format!("pod {}/{pod}", self.namespace)
    }

    /// Gets a JSON document of at most `max_bytes` from a port of a pod.
    ///
    /// # Errors
    /// A text that names the pod and what is wrong.
    pub(crate) async fn get(&self, pod: &str, port: u16, path: &str, max_bytes: usize) -> Result<Bytes, String> {
        let place = self.place(pod);
        let uri = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}", self.namespace);
        let request = Request::get(uri).header("Accept", "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let exchange = async {
            let response = self.client.send(request).await;
            let response = response.map_err(|error| api_error_text(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), max_bytes).collect().await;
            let body = body.map_err(|error| error_chain(&*error))?;
            Ok((status, body.to_bytes()))
        };
        let (status, body) = timeout(REQUEST_TIMEOUT, exchange)
            .await
            .map_err(|_| format!("{place}: no answer within {} s", REQUEST_TIMEOUT.as_secs()))?
            .map_err(|error: String| format!("{place}: {error}"))?;
        match status {
            StatusCode::OK => Ok(body),
            status => Err(format!("{place} answers {status}{}", reason(&body))),
        }
    }
}

/// Why the API server did not pass a request on, after a colon; empty where the pod itself answered.
fn reason(body: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    let status = status.filter(|body| body["kind"] == "Status");
    let message = status.as_ref().and_then(|status| status["message"].as_str());
    message.map_or_else(String::new, |message| format!(": {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(labels: &Value, image: &str) -> HeadgatePod {
        let pod = json!({"metadata": {"name": "p", "labels": labels}, "spec": {"nodeName": "n",
            "containers": [{"name": "headgate", "image": image}]}, "status": {"phase": "Running"}});
        HeadgatePod::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn the_reason_of_a_refusal_is_that_of_the_api_server() {
        let refusal = json!({"kind": "Status", "message": "address not allowed", "code": 400}).to_string();
        assert_eq!(reason(refusal.as_bytes()), ": address not allowed");
        for answer in [
            "",
            "not found",
            "{\"kind\": \"Status\"}",
            "{\"message\": \"of the pod\"}",
        ] {
            assert_eq!(reason(answer.as_bytes()), "", "{answer}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_label_or_the_tag() {
        let labels = json!({"app.kubernetes.io/component": "agent", "app.kubernetes.io/version": "0.2.0"});
        let found = pod(&labels, "registry:5000/headgate:0.1.0");
        assert_eq!((found.version.as_deref(), &*found.component), (Some("0.2.0"), "agent"));
        for (image, expected) in [
            ("registry:5000/headgate:0.1.0", Some("0.1.0")),
            ("registry:5000/headgate", None),
            ("headgate:0.1.0@sha256:abc", Some("0.1.0")),
            ("headgate@sha256:abc", None),
        ] {
            assert_eq!(pod(&json!({}), image).version.as_deref(), expected, "{image}");
        }
    }
}
