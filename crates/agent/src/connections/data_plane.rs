//! Whether the packets of Services pass the connection table at all.
//!
//! Some data planes forward them in eBPF programs with tables of their own. A count of zero then means nothing, so it must not be taken
//! for one. What a node shows without further rights: whether the kernel has the table, and the interfaces that such data planes make.
//! Cilium and Calico can also run beside kube-proxy, with the same interface in Cilium's case; a translated flow to a Service proves
//! that. A data plane that is not in [`BYPASSING_INTERFACES`] and bypasses the table is not noticed.

use std::path::Path;

use nix::net::if_::if_nameindex;

/// Interfaces in the node's network namespace of data planes that bypass the table, or may.
const BYPASSING_INTERFACES: [(&str, &str); 2] = [("cilium_host", "Cilium"), ("bpfin.cali", "Calico's eBPF data plane")];
/// Exists if the kernel tracks connections.
const TABLE_LENGTH: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Why zero connections in the table does not mean that there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bypass {
    /// The kernel tracks no connections.
    #[error("the kernel tracks no connections: the module nf_conntrack is missing")]
    NoTable,
    /// This data plane has its own table, and no translated flow shows that kube-proxy forwards the Services beside it.
    #[error("{0} forwards the connections of Services past the kernel's connection table")]
    DataPlane(&'static str),
}

/// What this node shows, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    /// Whether the kernel tracks connections.
    pub has_table: bool,
    /// The names of the interfaces.
    pub interfaces: Vec<String>,
}

impl NodeNetwork {
    /// Looks at the network namespace of this thread. Interfaces that cannot be listed are none.
    pub fn look() -> Self {
        let interfaces = if_nameindex().map_or_else(
            |_| Vec::new(),
            |found| {
                found
                    .iter()
                    .map(|interface| interface.name().to_string_lossy().into_owned())
                    .collect()
            },
        );
        Self {
            has_table: Path::new(TABLE_LENGTH).exists(),
            interfaces,
        }
    }

    /// The reason not to believe a zero. `has_translation` is [`Count::has_translation`](crate::connections::Count::has_translation) of any count, or
    /// what [`Counter::has_translation`](crate::connections::Counter::has_translation) found.
    pub fn bypass(&self, has_translation: bool) -> Option<Bypass> {
        if !self.has_table {
            return Some(Bypass::NoTable);
        }
        if has_translation {
            return None;
        }
        let mut known = BYPASSING_INTERFACES.into_iter();
        let (_, data_plane) = known.find(|(interface, _)| self.interfaces.iter().any(|name| name == interface))?;
        Some(Bypass::DataPlane(data_plane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_believed_unless_a_data_plane_bypasses_the_table() {
        for (has_table, interfaces, has_translation, expected) in [
            (true, vec!["lo", "eth0"], false, None),
            (true, vec![], false, None),
            (false, vec!["lo"], true, Some(Bypass::NoTable)),
            (
                true,
                vec!["lo", "cilium_host"],
                false,
                Some(Bypass::DataPlane("Cilium")),
            ),
            (true, vec!["lo", "cilium_host"], true, None),
            (
                true,
                vec!["bpfin.cali"],
                false,
                Some(Bypass::DataPlane("Calico's eBPF data plane")),
            ),
            (true, vec!["cali1234", "cilium_hosts"], false, None),
        ] {
            let network = NodeNetwork {
                has_table,
                interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
            };
            assert_eq!(network.bypass(has_translation), expected, "{interfaces:?}");
        }
    }

    #[test]
    fn loopback_is_an_interface() {
        assert!(NodeNetwork::look().interfaces.iter().any(|name| name == "lo"));
    }
}
