//! The fields of Services that say which connections a load balancer may send to this node, as plain data.
//!
//! Texts and numbers are as the API server sends them; `destinations` decides which of them are usable. A field that does not
//! change the destinations, such as `externalTrafficPolicy` or `healthCheckNodePort`, is not here.

use std::net::SocketAddr;

use headgate_core::service::{Ingress, NamespacedName, ServiceObject, ServicePort};
use serde::{Deserialize, Serialize};

/// A Service of type `LoadBalancer`, reduced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The Service's name.
    pub name: NamespacedName,
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
    /// What is kept; `None` for an object without a name or of another type, which an API server that cannot select by type sends, too.
    pub fn read(object: ServiceObject) -> Option<Self> {
        if !object.is_load_balancer() {
            return None;
        }
        Some(Self {
            name: NamespacedName::of(&object.metadata)?,
            ports: object.spec.ports,
            ingress: object.status.load_balancer.ingress,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_services_of_type_load_balancer_are_kept() {
        for (service_type, is_kept) in [
            ("LoadBalancer", true),
            ("NodePort", false),
            ("ClusterIP", false),
            ("", false),
        ] {
            let object = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {"type": service_type}});
            let read = Service::read(serde_json::from_value(object).unwrap());
            assert_eq!(read.is_some(), is_kept, "{service_type}");
        }
    }
}
