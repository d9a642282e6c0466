//! The Service of a drill in the API, and its endpoints: what kube-proxy's process works from, and headgate's counter.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, ClusterError, answered};
use crate::azure;
use crate::endpoints::{Endpoint, TrafficPolicy};
use crate::network::addresses::{FRONTEND, FRONTEND_PORT, HEALTH_CHECK_NODE_PORT, NODE_PORT, POD_PORT};

const NAMESPACE: &str = "default";
const NAME: &str = "drill";
const MANAGER: &str = "headgate-drill";
const PORT_NAME: &str = "tcp";

impl Cluster {
    /// Creates the Service, without endpoints, and with the load balancer's address.
    pub(super) async fn create_service(&self) -> Result<(), ClusterError> {
        let services = Api::<Service>::namespaced(self.client.clone(), NAMESPACE);
        let (parameters, patch) = (apply(), Patch::Apply(service(self.settings.policy)));
        let applied = services.patch(NAME, &parameters, &patch);
        answered(format!("create Service {NAME}"), applied).await?;
        let patch = Patch::Apply(status());
        let applied = services.patch_status(NAME, &parameters, &patch);
        answered(format!("write the status of Service {NAME}"), applied)
            .await
            .map(drop)
    }

    /// Replaces the endpoints of the Service, if kube-proxy's process or agents work from them.
    pub(crate) async fn publish(&self, endpoints: &[Endpoint]) -> Result<(), ClusterError> {
        if self.settings.kube_proxy.is_none() && !self.answers_for_service() {
            return Ok(());
        }
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), NAMESPACE);
        let (parameters, patch) = (apply(), Patch::Apply(slice(endpoints)));
        let applied = slices.patch(NAME, &parameters, &patch);
        answered(format!("write EndpointSlice {NAME}"), applied).await.map(drop)
    }
}

fn apply() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

fn service(policy: TrafficPolicy) -> Value {
    let mut spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster",
        "ports": [{"name": PORT_NAME, "protocol": "TCP", "port": FRONTEND_PORT, "targetPort": POD_PORT, "nodePort": NODE_PORT}]});
    if policy == TrafficPolicy::Local {
        spec["externalTrafficPolicy"] = json!("Local");
        spec["healthCheckNodePort"] = json!(HEALTH_CHECK_NODE_PORT);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec})
}

/// What a cloud-controller-manager writes.
fn status() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME},
        "status": {"loadBalancer": {"ingress": [{"ip": FRONTEND}]}}})
}

fn slice(endpoints: &[Endpoint]) -> Value {
    let endpoint = |endpoint: &Endpoint| {
        json!({"addresses": [endpoint.address], "nodeName": azure::name(endpoint.node), "conditions": {
            "ready": endpoint.is_ready(), "serving": endpoint.serving, "terminating": endpoint.terminating}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": NAME, "labels": {
            "kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": MANAGER}},
        "ports": [{"name": PORT_NAME, "protocol": "TCP", "port": POD_PORT}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::addresses::pod;

    #[test]
    fn only_local_has_a_health_check_node_port() {
        assert_eq!(
            service(TrafficPolicy::Local)["spec"]["healthCheckNodePort"],
            HEALTH_CHECK_NODE_PORT
        );
        assert!(service(TrafficPolicy::Cluster)["spec"]["healthCheckNodePort"].is_null());
        assert_eq!(status()["status"]["loadBalancer"]["ingress"], json!([{"ip": FRONTEND}]));
        assert_eq!(
            (apply().force, apply().field_manager.as_deref()),
            (true, Some("headgate-drill"))
        );
    }

    #[test]
    fn a_terminating_endpoint_is_not_ready_and_may_serve() {
        let endpoint = Endpoint {
            node: 1,
            address: pod(1),
            serving: true,
            terminating: true,
        };
        let written = &slice(&[endpoint])["endpoints"][0];
        assert_eq!(
            written["conditions"],
            json!({"ready": false, "serving": true, "terminating": true})
        );
        assert_eq!(
            (&written["addresses"], &written["nodeName"]),
            (&json!(["10.244.1.2"]), &json!("node-2"))
        );
    }
}
