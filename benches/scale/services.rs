//! 2,000 Services of type `LoadBalancer` with the policy `Local`, each with one EndpointSlice.

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

const SERVICES: usize = 2000;
/// Endpoints of each Service, each on a node of its own.
pub(crate) const ENDPOINTS: usize = 10;
/// Concurrent requests to the API server.
const AT_ONCE: usize = 16;

/// Creates all Services and slices, with ready endpoints on these nodes.
pub(crate) async fn create(client: &Client, node: impl Fn(usize) -> String) -> anyhow::Result<()> {
    let services = Api::<Service>::default_namespaced(client.clone());
    let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
    stream::iter((0..SERVICES).map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, async |number| {
            let slice = serde_json::from_value(slice(number, &node))?;
            slices.create(&PostParams::default(), &slice).await?;
            let service = json!({"metadata": {"name": format!("web-{number}")}, "spec": {"type": "LoadBalancer",
                "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}});
            let service = serde_json::from_value(service)?;
            services.create(&PostParams::default(), &service).await?;
            Ok(())
        })
        .await
        .context("creating Services")
}

/// The EndpointSlice of a Service.
fn slice(number: usize, node: impl Fn(usize) -> String) -> Value {
    let endpoint = |place: usize| {
        json!({"addresses": [format!("10.{}.{}.{}", 64 + number / 250, number % 250, place + 1)], "nodeName": node(place),
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-{number}-5f6d8b7c9-{place}"),
                "uid": "0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b"}})
    };
    let endpoints: Vec<Value> = (0..ENDPOINTS).map(endpoint).collect();
    json!({"metadata": {"name": format!("web-{number}-1"), "labels": {"kubernetes.io/service-name": format!("web-{number}")}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]})
}
