//! The endpoints of the Service, and what kube-proxy makes of them.
//!
//! The rules are kube-proxy's `CategorizeEndpoints` and its `service_health.go`. There is at most one Pod on each node.

use std::net::Ipv4Addr;

/// The `externalTrafficPolicy` of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Any node forwards to any endpoint.
    Cluster,
    /// A node forwards only to its own endpoints.
    Local,
}

/// One endpoint of the Service, as its EndpointSlice has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The index of its node.
    pub node: usize,
    /// The address of the Pod.
    pub address: Ipv4Addr,
    /// It passes its readiness probe.
    pub serving: bool,
    /// Its Pod has a deletion timestamp.
    pub terminating: bool,
}

impl Endpoint {
    /// The condition `ready` of the endpoint.
    pub const fn is_ready(&self) -> bool {
        self.serving && !self.terminating
    }
}

/// The rules by which kube-proxy forwards connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The `externalTrafficPolicy` of the Service.
    pub policy: TrafficPolicy,
    /// KEP-1669 `ProxyTerminatingEndpoints`: without ready endpoints, terminating ones that serve are used. On by
    /// default from Kubernetes 1.26.
    pub uses_terminating: bool,
}

/// Where a node's kube-proxy sends new flows to the node port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backends {
    /// The endpoints' addresses; none drops the flows.
    pub addresses: Vec<Ipv4Addr>,
    /// Whether the client's address is replaced by the node's.
    pub masquerade: bool,
}

impl Forwarding {
    /// What kube-proxy does on the node with this index.
    pub(crate) fn backends(self, endpoints: &[Endpoint], node: usize) -> Backends {
        let is_candidate = |endpoint: &&Endpoint| self.policy == TrafficPolicy::Cluster || endpoint.node == node;
        let addresses_of = |is_in: fn(&Endpoint) -> bool| {
            let chosen = endpoints.iter().filter(is_candidate).filter(|endpoint| is_in(endpoint));
            chosen.map(|endpoint| endpoint.address).collect::<Vec<_>>()
        };
        let mut addresses = addresses_of(Endpoint::is_ready);
        if addresses.is_empty() && self.uses_terminating {
            addresses = addresses_of(|endpoint| endpoint.serving && endpoint.terminating);
        }
        Backends {
            addresses,
            masquerade: self.policy == TrafficPolicy::Cluster,
        }
    }
}

/// Whether `healthCheckNodePort` answers 200 on this node: it has a ready endpoint. Terminating ones never count.
pub(crate) fn has_ready_endpoint(endpoints: &[Endpoint], node: usize) -> bool {
    endpoints
        .iter()
        .any(|endpoint| endpoint.node == node && endpoint.is_ready())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::addresses::pod;

    fn endpoint(node: usize, serving: bool, terminating: bool) -> Endpoint {
        Endpoint {
            node,
            address: pod(node),
            serving,
            terminating,
        }
    }

    #[test]
    fn terminating_endpoints_are_used_only_where_nothing_is_ready() {
        use TrafficPolicy::{Cluster, Local};
        let mixed = [
            endpoint(0, true, true),
            endpoint(1, true, false),
            endpoint(2, false, true),
        ];
        // policy, uses terminating, node, endpoints' nodes
        for (policy, uses_terminating, node, expected) in [
            (Cluster, true, 0, vec![1]),
            (Cluster, true, 5, vec![1]),
            (Local, true, 0, vec![0]),
            (Local, false, 0, vec![]),
            (Local, true, 1, vec![1]),
            (Local, true, 2, vec![]),
        ] {
            let forwarding = Forwarding {
                policy,
                uses_terminating,
            };
            let expected: Vec<_> = expected.into_iter().map(pod).collect();
            let backends = forwarding.backends(&mixed, node);
            assert_eq!(
                backends.addresses, expected,
                "{policy:?} {uses_terminating} on node {node}"
            );
            assert_eq!(backends.masquerade, policy == Cluster);
        }
        let all_terminating = [endpoint(0, true, true), endpoint(1, true, true)];
        let forwarding = Forwarding {
            policy: Cluster,
            uses_terminating: true,
        };
        assert_eq!(forwarding.backends(&all_terminating, 0).addresses, [pod(0), pod(1)]);
    }

    #[test]
    fn the_health_check_fails_as_soon_as_the_only_pod_terminates() {
        let endpoints = [
            endpoint(0, true, true),
            endpoint(1, true, false),
            endpoint(2, false, false),
        ];
        assert_eq!(
            [0, 1, 2, 3].map(|node| has_ready_endpoint(&endpoints, node)),
            [false, true, false, false]
        );
    }
}
