//! Sources whose connections do not count. Pure.
//!
//! - A load balancer's probes. On Azure they come from 168.63.129.16, and for IPv6 from `fe80::1234:5678:9abc`, as documented; not tried
//!   on Azure. Most never reach a destination that is counted: they ask kube-proxy's or headgate's health port, or a
//!   `healthCheckNodePort`. A rule whose probe is TCP on the node port does, and then one is open for a moment at each count or two.
//!   kubelet's probes go to pods' addresses.
//! - Clients on this node: its own addresses, and the addresses of its pods. kube-proxy sends a pod that connects to the load
//!   balancer's address straight to an endpoint, so the connection is in the table although it never came from the load balancer. It
//!   ends with its client; a client in a `DaemonSet` would otherwise keep the node for ever.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Azure's probes of health, of both families. The first address is also that of its DNS and instance metadata, which connect to nobody.
pub(super) const AZURE_PROBES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x1234, 0x5678, 0x9abc)),
];

/// A text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address nor a prefix such as 10.244.1.0/24")]
pub struct PrefixError(String);

/// The prefix of one address.
pub(super) fn prefix_of(address: IpAddr) -> IpNet {
    address.to_canonical().into()
}

/// Parses an address or a prefix.
///
/// # Errors
/// If it is neither.
pub fn parse_prefix(text: &str) -> Result<IpNet, PrefixError> {
    let address = text.parse().map(prefix_of);
    address.or_else(|_| text.parse().map_err(|_| PrefixError(text.to_owned())))
}

/// Whether a flow from this address does not count.
pub(super) fn is_excluded(source: IpAddr, excluded: &[IpNet]) -> bool {
    excluded.iter().any(|prefix| prefix.contains(&source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_addresses_of_their_family() {
        for (prefix, address, expected) in [
            ("10.244.1.0/24", "10.244.1.255", true),
            ("10.244.1.0/24", "10.244.2.0", false),
            ("10.244.1.7/24", "10.244.1.1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("::/0", "fd00::1", true),
            ("::/0", "192.0.2.1", false),
            ("fd00::/64", "fd00::ffff", true),
            ("fd00::/64", "fd00:0:0:1::", false),
            ("168.63.129.16", "168.63.129.16", true),
            ("168.63.129.16", "168.63.129.17", false),
            ("::ffff:168.63.129.16", "168.63.129.16", true),
            ("fd00::1/128", "fd00::1", true),
        ] {
            let prefix = parse_prefix(prefix).unwrap();
            let found = is_excluded(address.parse().unwrap(), &[prefix]);
            assert_eq!(found, expected, "{prefix} {address}");
        }
        for probe in AZURE_PROBES {
            assert!(is_excluded(probe, &[prefix_of(probe)]));
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            "/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0/8",
            "10.0.0.0/8/8",
            "probe",
        ] {
            let error = parse_prefix(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
