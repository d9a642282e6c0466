//! The inputs beside Services: the parts of EndpointSlices, Nodes and ARM load balancers that decide about a Local Service's
//! pools. The caller, which watches and lists the real objects, fills these in.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::local_pools::difference::{Entry, EntryAddress};
use headgate_core::service::NamespacedName;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// A load balancer of the cluster, as it was read from ARM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Its name, in any case.
    pub name: String,
    /// When the read or list was sent.
    pub requested_at: Instant,
    /// The backend pools of the load balancer.
    pub pools: Vec<BackendPool>,
}

impl LoadBalancer {
    /// Whether the same rules send traffic to the same pools.
    pub(crate) fn has_same_rules(&self, other: &Self) -> bool {
        let mut pairs = self.pools.iter().zip(&other.pools);
        self.pools.len() == other.pools.len()
            && pairs.all(|(pool, other)| pool.name == other.name && pool.rules == other.rules)
    }
}

/// A backend pool in its load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPool {
    /// Its name, in any case.
    pub name: String,
    /// Its entries, in their order.
    pub entries: Vec<PoolEntry>,
    /// The names of the load-balancing rules that send traffic to it. Outbound rules do not count.
    pub rules: Vec<String>,
}

/// An entry of a pool, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// `name`. Shared, because one node has entries in many pools.
    pub name: Option<Arc<str>>,
    /// What it stands for.
    pub address: EntryAddress,
}

impl PoolEntry {
    /// For a comparison with the members that the pool is to have.
    #[must_use]
    pub fn as_entry(&self) -> Entry<'_> {
        Entry {
            name: self.name.as_deref(),
            address: self.address,
        }
    }
}
