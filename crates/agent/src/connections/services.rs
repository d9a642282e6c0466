//! The fields of Services that say which connections a load balancer may send to this node, as plain data.
//!
//! Texts and numbers are as the API server sends them; `destinations` decides which of them are usable. A field that does not
//! change the destinations, such as `externalTrafficPolicy` or `healthCheckNodePort`, is not here.

use std::fmt;
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Service as KubernetesService;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

/// The namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name, unique in the namespace.
    pub name: String,
}

impl ServiceName {
    /// The name of the Service `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Service, reduced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The Service's name.
    pub name: ServiceName,
    /// `spec.type`. Only `LoadBalancer` and `NodePort` have destinations: an external load balancer may send to the node ports
    /// of either.
    pub service_type: String,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// `TCP`, `UDP` or `SCTP`; an empty text means `TCP`.
    pub protocol: String,
    /// The port on the load balancer's addresses.
    pub port: i32,
    /// The port on the node's addresses; zero if there is none.
    pub node_port: i32,
}

/// A frontend of the load balancer. Both texts are empty if they are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// The address.
    pub ip: String,
    /// The DNS name, of load balancers without a fixed address.
    pub hostname: String,
}

/// A Service object without what no count needs.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = KubernetesService)]
#[serde(default)]
pub struct ServiceObject {
    /// Read for namespace and name.
    pub metadata: ObjectMeta,
    spec: ServiceSpec,
    status: ServiceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceStatus {
    load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LoadBalancerStatus {
    ingress: Vec<Ingress>,
}

impl ServiceObject {
    /// The name of the Service.
    #[must_use]
    pub fn name(&self) -> ServiceName {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        ServiceName {
            namespace: text(&self.metadata.namespace),
            name: text(&self.metadata.name),
        }
    }

    /// Its cluster address and first port, by which the node's own processes and pods reach it.
    #[must_use]
    pub fn cluster_address(&self) -> Option<SocketAddr> {
        let port = u16::try_from(self.spec.ports.first()?.port).ok()?;
        Some(SocketAddr::new(self.spec.cluster_ip.parse().ok()?, port))
    }
}

impl From<ServiceObject> for Service {
    fn from(object: ServiceObject) -> Self {
        Self {
            name: object.name(),
            service_type: object.spec.r#type,
            ports: object.spec.ports,
            ingress: object.status.load_balancer.ingress,
        }
    }
}
