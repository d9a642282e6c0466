//! Whose an entry of a pool is. Pure.
//!
//! An address is a Node's by its `InternalIP`, compared as an address and not as a text; an interface is a Node's
//! by the virtual machine in its `providerID`; a name counts only where there is neither (specs
//! cloud-provider-azure.md 3.4, 3.5).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use headgate_azure::{BackendAddress, NetworkInterfaceId};

use super::cluster::{Cluster, ClusterNode};
use super::interfaces::Interfaces;

/// What an entry is recognised by within its pool, from one read to the next and from one leader to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of an entry; none where nothing tells it from others.
    #[must_use]
    pub fn of(address: BackendAddress<'_>) -> Option<Self> {
        if let Some(ip) = address.ip_address() {
            return Some(Self(ip.to_string().into()));
        }
        let name = address.name().filter(|name| !name.is_empty())?;
        // Apart from every address: an entry may be called like one.
        Some(Self(format!("name:{}", name.to_ascii_lowercase()).into()))
    }

    /// As it was written down.
    #[must_use]
    pub fn written(text: &str) -> Self {
        Self(text.into())
    }

    /// As it is written down.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What in an entry says whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The Node with this address.
    Address(IpAddr),
    /// The Node on this virtual machine, by its id in lower case, which stands in that of a scale set's interface.
    Machine(String),
    /// The Node on the machine that has this interface, which only ARM knows.
    Interface(Box<NetworkInterfaceId>),
    /// The Node of this name, in lower case.
    Name(String),
    /// Nothing.
    Nobody,
}

impl Claim {
    /// Of an entry.
    #[must_use]
    pub fn of(address: BackendAddress<'_>) -> Self {
        if let Some(ip) = address.ip_address() {
            return Self::Address(canonical(ip));
        }
        if let Some(configuration) = address.network_interface_ip_configuration() {
            let interface = || NetworkInterfaceId::parse(configuration).ok();
            return machine_in(configuration)
                .map(Self::Machine)
                .or_else(|| interface().map(|id| Self::Interface(Box::new(id))))
                .unwrap_or(Self::Nobody);
        }
        address
            .name()
            .map_or(Self::Nobody, |name| Self::Name(name.to_ascii_lowercase()))
    }

    /// The Node, if there is one.
    #[must_use]
    pub fn node<'a>(&self, cluster: &'a Cluster, interfaces: &Interfaces) -> Option<&'a Arc<ClusterNode>> {
        match self {
            Self::Address(ip) => cluster.by_address(*ip),
            Self::Machine(machine) => cluster.by_machine(machine),
            Self::Interface(id) => cluster.by_machine(interfaces.machine_of(id)?),
            Self::Name(name) => cluster.by_name(name),
            Self::Nobody => None,
        }
    }
}

/// The machine in the id of a scale set's interface configuration, in lower case.
fn machine_in(configuration: &str) -> Option<String> {
    let lower = configuration.to_ascii_lowercase();
    let (machine, _) = lower.split_once("/networkinterfaces/")?;
    machine.contains("/virtualmachines/").then(|| machine.to_owned())
}

/// An IPv4 address that is written as an IPv6 one is that IPv4 address.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

#[cfg(test)]
mod tests {
    use headgate_azure::{Pool, PoolId};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        for number in 1..=2 {
            cluster.apply(ClusterNode {
                name: format!("n{number}"),
                uid: format!("u{number}"),
                created: Timestamp::UNIX_EPOCH,
                addresses: vec![
                    format!("10.0.0.{number}").parse().unwrap(),
                    format!("fd00::{number}").parse().unwrap(),
                ],
                machine: format!("/subscriptions/s/resourcegroups/rg/providers/microsoft.compute/virtualmachinescalesets/v/virtualmachines/{number}"),
                excluded: None,
                taints: Vec::new(),
                ready: true,
            });
        }
        cluster
    }

    fn pool(entry: &Value) -> Pool {
        Pool {
            id: PoolId::parse(
                "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/l/backendAddressPools/p",
            )
            .unwrap(),
            etag: None,
            document: json!({"properties": {"loadBalancerBackendAddresses": [entry]}}),
        }
    }

    #[test]
    fn whose_an_entry_is() {
        let configuration = |number: u8| {
            format!(
                "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachineScaleSets/V/virtualMachines/{number}/networkInterfaces/nic/ipConfigurations/c"
            )
        };
        for (entry, node, key) in [
            (
                json!({"name": "other", "properties": {"ipAddress": "10.0.0.1"}}),
                "n1",
                "10.0.0.1",
            ),
            (
                json!({"name": "n1", "properties": {"ipAddress": "10.0.0.2"}}),
                "n2",
                "10.0.0.2",
            ),
            (
                json!({"name": "n1", "properties": {"ipAddress": "10.0.0.9"}}),
                "",
                "10.0.0.9",
            ),
            (json!({"properties": {"ipAddress": "FD00:0::1"}}), "n1", "fd00::1"),
            (json!({"name": "N2", "properties": {"ipAddress": ""}}), "n2", "name:n2"),
            (json!({"name": "N2"}), "n2", "name:n2"),
            (json!({"name": "n2", "properties": null}), "n2", "name:n2"),
            (json!({"name": "10.0.0.1"}), "", "name:10.0.0.1"),
            (
                json!({"name": "GUID", "properties": {"networkInterfaceIPConfiguration": {"id": configuration(2)}}}),
                "n2",
                "name:guid",
            ),
            (
                json!({"name": "n1", "properties": {"networkInterfaceIPConfiguration": {"id": configuration(7)}}}),
                "",
                "name:n1",
            ),
            (json!({"properties": {}}), "", ""),
            (json!(null), "", ""),
            (json!({"name": "", "properties": {"ipAddress": "nonsense"}}), "", ""),
        ] {
            let pool = pool(&entry);
            let address = pool.addresses().next().unwrap();
            let cluster = cluster();
            let found = Claim::of(address).node(&cluster, &Interfaces::default());
            let found = found.map_or(String::new(), |node| node.name.clone());
            assert_eq!(found, node, "{entry}");
            assert_eq!(
                Key::of(address).map(|key| key.to_string()).unwrap_or_default(),
                key,
                "{entry}"
            );
        }
    }
}
