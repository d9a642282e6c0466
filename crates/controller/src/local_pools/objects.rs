//! The inputs beside Services and load balancers: the parts of EndpointSlices and Nodes that decide about a Local Service's pools. The
//! caller, which watches the real objects, fills these in.

use std::net::IpAddr;

use headgate_core::service::NamespacedName;
use jiff::Timestamp;

/// The fields of an EndpointSlice that decide about members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The namespace and name of the object.
    pub name: NamespacedName,
    /// The label `kubernetes.io/service-name`. A slice without it belongs to no Service.
    pub service: Option<String>,
    /// `endpoints`, in their order.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `nodeName`. An endpoint without it is on no node.
    pub node_name: Option<String>,
    /// `conditions.ready`; absent means ready.
    pub ready: Option<bool>,
}

/// The fields of a Node that decide about members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The Node's name, `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`: an address that two Nodes have belongs to the younger.
    pub created: Timestamp,
    /// `status.addresses` of type `InternalIP`, of both families, in their order.
    pub internal_addresses: Vec<IpAddr>,
    /// The label for which cloud-controller-manager puts it into no load balancer.
    pub excluded_by: Option<&'static str>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// It has a drain signal that admin states follow. Set it only while admin states are enforced.
    pub is_draining: bool,
}
