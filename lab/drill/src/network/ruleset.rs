//! nftables rulesets as text: the load balancer's, kube-proxy's and those of a machine that is off.
//!
//! All NAT happens for the first packet of a flow only; conntrack keeps the mapping of established flows whatever the
//! rules say afterwards. That is how a pass-through load balancer and kube-proxy treat established TCP flows too.
//! The kernel tracks flows only while a rule needs it. So one rule always asks for a flow's state: without a backend in rotation, none of NAT
//! does.
//!
//! No rule looks anything up in a map: a packet that meets the rules while they are replaced has the old ones to their end,
//! but finds a map of theirs already empty, and is dropped.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::addresses::{FRONTEND, FRONTEND_PORT, NODE_PORT, POD_PORT};
use crate::draining::FlowEnd;
use crate::endpoints::Backends;
use crate::machine::PowerOff;

/// The load balancer's table, without a backend in rotation: new flows to the frontend are dropped.
pub fn load_balancer() -> String {
    format!(
        "table ip load_balancer {{
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr {FRONTEND} drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    ip daddr {FRONTEND} ct state new drop
    ip daddr {FRONTEND} drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
  }}
}}
"
    )
}

/// Replaces the backends whose established flows have ended; no rule of NAT changes by it.
pub fn ended_flows(ended: &[(Ipv4Addr, FlowEnd)]) -> String {
    let mut rules = "flush chain ip load_balancer forward\n".to_owned();
    for (address, how) in ended {
        let verdict = match how {
            FlowEnd::Reset => "reject with tcp reset",
            FlowEnd::Drop => "drop",
        };
        for side in ["daddr", "saddr"] {
            let _ = writeln!(
                rules,
                "add rule ip load_balancer forward ct original ip daddr {FRONTEND} ip {side} {address} meta l4proto tcp {verdict}"
            );
        }
    }
    rules
}

/// Replaces the backends that new flows are spread over by a hash of their addresses and ports; established flows stay
/// where they are. `seed` makes the hash repeatable.
pub fn rotation(backends: &[SocketAddrV4], seed: u32) -> String {
    let mut rules = "flush chain ip load_balancer prerouting\n".to_owned();
    for (index, backend) in backends.iter().enumerate() {
        let _ = writeln!(
            rules,
            "add rule ip load_balancer prerouting ip daddr {FRONTEND} tcp dport {FRONTEND_PORT} \
             jhash ip saddr . tcp sport . ip daddr . tcp dport mod {} seed {seed:#x} == {index} dnat to {backend}",
            backends.len(),
        );
    }
    let _ = writeln!(rules, "add rule ip load_balancer prerouting ip daddr {FRONTEND} drop");
    rules
}

/// kube-proxy's table on a node: what new flows to the node port get. Replaces the rules before.
pub fn kube_proxy(backends: &Backends) -> String {
    let mut rules = "table ip kube_proxy {
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
  }
}
flush table ip kube_proxy
"
    .to_owned();
    let to_node_port = format!("add rule ip kube_proxy prerouting fib daddr type local tcp dport {NODE_PORT}");
    for (index, address) in backends.addresses.iter().enumerate() {
        // Each rule takes its share of what those before have left.
        let left = backends.addresses.len() - index;
        let endpoint = SocketAddrV4::new(*address, POD_PORT);
        let _ = writeln!(rules, "{to_node_port} numgen random mod {left} == 0 dnat to {endpoint}");
    }
    if backends.addresses.is_empty() {
        let _ = writeln!(rules, "{to_node_port} drop");
    }
    if backends.masquerade {
        rules.push_str("add rule ip kube_proxy postrouting ct status dnat ip daddr 10.244.0.0/16 masquerade\n");
    }
    rules
}

/// A machine that is off: its packets are dropped in both directions, without RST, FIN or ICMP; or TCP gets a RST.
pub(crate) fn powered_off(how: PowerOff) -> String {
    let (arriving, leaving) = match how {
        PowerOff::Silent => ("", ""),
        PowerOff::Reset => (
            "    meta l4proto tcp reject with tcp reset\n",
            "    tcp flags & rst == rst accept\n",
        ),
    };
    format!(
        "table inet powered_off {{
  chain prerouting {{
    type filter hook prerouting priority raw; policy drop;
    iifname \"lo\" accept
{arriving}  }}
  chain postrouting {{
    type filter hook postrouting priority raw; policy drop;
    oifname \"lo\" accept
{leaving}  }}
}}
"
    )
}

/// The machine is on again, with none of its former flows.
pub(crate) fn powered_on() -> String {
    "table inet powered_off\ndelete table inet powered_off\n".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::addresses::{node, pod};

    #[test]
    fn an_empty_rotation_drops_new_flows() {
        let rules = rotation(&[], 7);
        assert!(!rules.contains("dnat"), "{rules}");
        assert!(rules.contains("198.18.0.100 drop"), "{rules}");
    }

    #[test]
    fn a_rotation_spreads_over_its_members_only() {
        let members = [0, 2].map(|index| SocketAddrV4::new(node(index), NODE_PORT));
        let rules = rotation(&members, 7);
        for expected in [
            "mod 2 seed 0x7 == 0 dnat to 198.18.1.10:30080",
            "mod 2 seed 0x7 == 1 dnat to 198.18.1.12:30080",
        ] {
            assert!(rules.contains(expected), "{expected} in {rules}");
        }
        assert!(!rules.contains("map"), "{rules}");
    }

    #[test]
    fn flows_end_in_both_directions_and_of_the_given_nodes_alone() {
        assert_eq!(ended_flows(&[]).lines().count(), 1);
        let rules = ended_flows(&[(node(0), FlowEnd::Reset), (node(1), FlowEnd::Drop)]);
        for expected in [
            "ip daddr 198.18.1.10 meta l4proto tcp reject with tcp reset",
            "ip saddr 198.18.1.10 meta l4proto tcp reject with tcp reset",
            "ip saddr 198.18.1.11 meta l4proto tcp drop",
        ] {
            assert!(rules.contains(expected), "{expected} in {rules}");
        }
        assert_eq!(rules.matches("ct original ip daddr 198.18.0.100").count(), 4);
    }

    #[test]
    fn kube_proxy_masquerades_or_drops_as_its_policy_says() {
        let cluster = Backends {
            addresses: vec![pod(0), pod(1)],
            masquerade: true,
        };
        let rules = kube_proxy(&cluster);
        for expected in [
            "mod 2 == 0 dnat to 10.244.0.2:8080",
            "mod 1 == 0 dnat to 10.244.1.2:8080",
            "masquerade",
        ] {
            assert!(rules.contains(expected), "{expected} in {rules}");
        }
        assert!(!rules.contains("map"), "{rules}");
        let nothing = Backends {
            addresses: Vec::new(),
            masquerade: false,
        };
        let rules = kube_proxy(&nothing);
        assert!(rules.contains("tcp dport 30080 drop"), "{rules}");
        assert!(!rules.contains("masquerade"), "{rules}");
    }
}
