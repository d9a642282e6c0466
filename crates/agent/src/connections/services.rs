//! The fields of Services that say which connections a load balancer may send to this node, as plain data.
//!
//! Texts and numbers are as the API server sends them; `destinations` decides which of them are usable. A field that does not
//! change the destinations, such as `externalTrafficPolicy` or `healthCheckNodePort`, is not here.

use std::fmt;

/// The namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// `TCP`, `UDP` or `SCTP`; an empty text means `TCP`.
    pub protocol: String,
    /// The port on the load balancer's addresses.
    pub port: i32,
    /// The port on the node's addresses; zero if there is none.
    pub node_port: i32,
}

/// A frontend of the load balancer. Both texts are empty if they are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The address.
    pub ip: String,
    /// The DNS name, of load balancers without a fixed address.
    pub hostname: String,
}
