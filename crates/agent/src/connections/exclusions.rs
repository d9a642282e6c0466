//! Sources whose connections do not count. Pure.
//!
//! - A load balancer's probes. On Azure they come from 168.63.129.16, and for IPv6 from `fe80::1234:5678:9abc`, as documented; not tried
//!   on Azure. Most never reach a destination that is counted: they ask kube-proxy's or headgate's health port, or a
//!   `healthCheckNodePort`. A rule whose probe is TCP on the node port does, and then one is open for a moment at each count or two.
//!   kubelet's probes go to pods' addresses.
//! - Clients on this node: its own addresses, and the addresses of its pods. kube-proxy sends a pod that connects to the load
//!   balancer's address straight to an endpoint, so the connection is in the table although it never came from the load balancer. It
//!   ends with its client; a client in a `DaemonSet` would otherwise keep the node for ever.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Azure's probes of health, of both families. The first address is also that of its DNS and instance metadata, which connect to nobody.
pub(super) const AZURE_PROBES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x1234, 0x5678, 0x9abc)),
];

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// A text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address nor a prefix such as 10.244.1.0/24")]
pub struct PrefixError(String);

impl Prefix {
    /// Whether the address begins with these bits.
    pub fn contains(&self, address: IpAddr) -> bool {
        // A shift by all bits is none.
        match (self.address, address) {
            (IpAddr::V4(prefix), IpAddr::V4(address)) => {
                let differing = prefix.to_bits() ^ address.to_bits();
                differing.checked_shr(32 - u32::from(self.length)).unwrap_or(0) == 0
            }
            (IpAddr::V6(prefix), IpAddr::V6(address)) => {
                let differing = prefix.to_bits() ^ address.to_bits();
                differing.checked_shr(128 - u32::from(self.length)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parse = || {
            let Some((address, length)) = text.split_once('/') else {
                return Some(Self::from(text.parse::<IpAddr>().ok()?));
            };
            let address: IpAddr = address.parse().ok()?;
            let length = length.parse().ok()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            (length <= longest).then_some(Self { address, length })
        };
        parse().ok_or_else(|| PrefixError(text.to_owned()))
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;

    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The sources whose flows do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExcludedSources(Vec<Prefix>);

impl ExcludedSources {
    /// These prefixes.
    pub fn new(prefixes: Vec<Prefix>) -> Self {
        Self(prefixes)
    }

    /// Whether a flow from this address does not count.
    pub fn contains(&self, source: IpAddr) -> bool {
        self.0.iter().any(|prefix| prefix.contains(source))
    }
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
            let prefix: Prefix = prefix.parse().unwrap();
            assert_eq!(
                prefix.contains(address.parse().unwrap()),
                expected,
                "{prefix} {address}"
            );
        }
        for probe in AZURE_PROBES {
            assert!(Prefix::from(probe).contains(probe));
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
            let error = text.parse::<Prefix>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
