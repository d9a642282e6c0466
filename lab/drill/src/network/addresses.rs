//! The address plan of the data plane, and the `ip` commands that build it.
//!
//! One namespace each for the clients, the load balancer and every node. The load balancer's namespace is also the
//! fabric: a bridge joins the nodes, so that traffic between nodes passes no NAT of the load balancer. The ranges are
//! those of RFC 2544 (benchmarks), and kubenet's for Pods.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// The most nodes that the address plan has room for.
pub const MAX_NODES: usize = 50;
/// The frontend address of the load balancer.
pub const FRONTEND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 100);
/// The port of the load balancer's frontend.
pub(crate) const FRONTEND_PORT: u16 = 80;
/// Addresses that clients connect from, so that flows of one run never meet conntrack's entries of another.
pub(crate) const CLIENTS: u8 = 90;
/// Where the load balancer's probes come from.
pub(crate) const PROBE_SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// The Service's node port.
pub(crate) const NODE_PORT: u16 = 30_080;
/// The `healthCheckNodePort` of the Service on each node.
pub(crate) const HEALTH_CHECK_NODE_PORT: u16 = 32_080;
/// The port of kube-proxy's `/healthz` on each node.
pub(crate) const KUBE_PROXY_HEALTH_PORT: u16 = 10_256;
/// The port of headgate's `/healthz` on each node.
pub(crate) const HEADGATE_HEALTH_PORT: u16 = 10_456;
/// The last part of the first node's address.
const FIRST_NODE: u8 = 10;
/// Where processes of a node reach the instance metadata service.
pub(crate) const METADATA_SERVICE: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Where a Pod serves clients.
pub const POD_PORT: u16 = 8080;
/// Where a Pod serves `/ready`, as Envoy's admin port.
pub(crate) const POD_READY_PORT: u16 = 9901;

/// The clients' address in the run with this index; they repeat after [`CLIENTS`] runs.
pub const fn client(run: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, octet(run % CLIENTS as usize) + 2)
}

/// The address of the node with this index, at most [`MAX_NODES`].
pub const fn node(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 1, octet(index).saturating_add(FIRST_NODE))
}

/// The index of the node with this address; none for an address of the load balancer or a client.
pub(crate) const fn node_with_address(address: Ipv4Addr) -> Option<u8> {
    match address.octets() {
        [198, 18, 1, last] => last.checked_sub(FIRST_NODE),
        _ => None,
    }
}

/// The address of the Pod on the node with this index.
pub const fn pod(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, octet(index), 2)
}

/// An index as a part of an address; all are smaller than 200.
#[expect(clippy::cast_possible_truncation, reason = "bounded before the cast")]
const fn octet(index: usize) -> u8 {
    if index < 200 { index as u8 } else { 200 }
}

/// Commands for the load balancer's namespace. `clients` and `nodes` are paths of the other namespaces.
pub(crate) fn load_balancer_commands(clients: &str, nodes: &[String]) -> String {
    let mut commands = format!(
        "link set lo up\n\
         link add clients type veth peer name eth0 netns {clients}\n\
         addr add 198.18.0.1/24 dev clients\n\
         addr add {FRONTEND}/32 dev clients\n\
         link set clients up\n\
         link add fabric type bridge\n\
         addr add {PROBE_SOURCE}/24 dev fabric\n\
         link set fabric up\n"
    );
    for (index, path) in nodes.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(commands, "link add node{index} type veth peer name eth0 netns {path}");
        let _ = writeln!(commands, "link set node{index} master fabric");
        let _ = writeln!(commands, "link set node{index} up");
        let _ = writeln!(commands, "route add 10.244.{index}.0/24 via {}", node(index));
    }
    commands
}

/// Commands for the clients' namespace, once the load balancer's have run.
pub(crate) fn client_commands() -> String {
    let mut commands = "link set lo up\nlink set eth0 up\n".to_owned();
    for run in 0..usize::from(CLIENTS) {
        let _ = writeln!(commands, "addr add {}/24 dev eth0", client(run));
    }
    commands.push_str("route add default via 198.18.0.1\n");
    commands
}

/// Commands for the namespace of the node with this index of `count`, once the load balancer's have run.
pub(crate) fn node_commands(index: usize, count: usize) -> String {
    let mut commands = format!(
        "link set lo up\naddr add {METADATA_SERVICE}/32 dev lo\naddr add {}/32 dev lo\naddr add {}/24 dev eth0\nlink set eth0 up\nroute add default via {PROBE_SOURCE}\n",
        pod(index),
        node(index),
    );
    for other in (0..count).filter(|other| *other != index) {
        let _ = writeln!(commands, "route add 10.244.{other}.0/24 via {}", node(other));
    }
    commands
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_are_distinct_and_their_routes_lead_to_the_node() {
        let all: BTreeSet<_> = (0..MAX_NODES).flat_map(|index| [node(index), pod(index)]).collect();
        assert_eq!(all.len(), 2 * MAX_NODES);
        assert!(!all.contains(&PROBE_SOURCE));
        assert_eq!([node(0), node(49)].map(node_with_address), [Some(0), Some(49)]);
        assert_eq!([PROBE_SOURCE, client(1), pod(1)].map(node_with_address), [None; 3]);
        let commands = node_commands(1, 3);
        assert!(commands.contains("addr add 10.244.1.2/32 dev lo"), "{commands}");
        assert!(
            commands.contains("route add 10.244.2.0/24 via 198.18.1.12"),
            "{commands}"
        );
        assert!(!commands.contains("route add 10.244.1.0/24"), "{commands}");
    }

    #[test]
    fn the_load_balancer_gets_an_interface_for_each_namespace() {
        let commands = load_balancer_commands("/c", &["/a".to_owned(), "/b".to_owned()]);
        for expected in [
            "link add clients type veth peer name eth0 netns /c",
            "link add node1 type veth peer name eth0 netns /b",
            "link set node0 master fabric",
        ] {
            assert!(
                commands.lines().any(|line| line == expected),
                "{expected} in {commands}"
            );
        }
    }
}
