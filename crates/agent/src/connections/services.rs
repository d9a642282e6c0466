//! The fields of Services that say which connections a load balancer may send to this node, as plain data.
//!
//! Texts and numbers are as the API server sends them; `destinations` decides which of them are usable. A field that does not
//! change the destinations, such as `externalTrafficPolicy` or `healthCheckNodePort`, is not here.

use std::net::SocketAddr;

use headgate_core::service::{Ingress, NamespacedName, ServiceObject, ServicePort};
use serde::{Deserialize, Serialize};

/// A Service, reduced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The Service's name.
    pub name: NamespacedName,
    /// `spec.type`. Only `LoadBalancer` and `NodePort` have destinations: an external load balancer may send to the node ports
    /// of either.
    pub service_type: String,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
}

/// The cluster address and the first port of a Service, by which the node's own processes and pods reach it.
pub(super) fn cluster_address(service: &ServiceObject) -> Option<SocketAddr> {
    let port = u16::try_from(service.spec.ports.first()?.port).ok()?;
    Some(SocketAddr::new(service.spec.cluster_ip.parse().ok()?, port))
}

impl Service {
    /// What is kept; `None` for an object without a name.
    pub fn read(object: ServiceObject) -> Option<Self> {
        Some(Self {
            name: NamespacedName::of(&object.metadata)?,
            service_type: object.spec.r#type,
            ports: object.spec.ports,
            ingress: object.status.load_balancer.ingress,
        })
    }
}
