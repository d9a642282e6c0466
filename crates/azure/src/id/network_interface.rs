//! The id of a network interface that is a resource of its own, not part of a virtual machine of a scale set.

use super::{InvalidId, Name, ResourceGroupId};

/// The id of a network interface, in lower case. An interface of a scale set has another form of id, which names its
/// virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkInterfaceId {
    group: ResourceGroupId,
    path: String,
}

impl NetworkInterfaceId {
    /// Parses the id of the interface, or of one of its IP configurations.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(id: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId(id.to_owned(), "a network interface");
        let lower = id.to_ascii_lowercase();
        let segments: Vec<&str> = lower.split('/').collect();
        let [
            "",
            "subscriptions",
            subscription,
            "resourcegroups",
            group,
            "providers",
            "microsoft.network",
            "networkinterfaces",
            name,
            rest @ ..,
        ] = segments.as_slice()
        else {
            return Err(invalid());
        };
        let group = ResourceGroupId::new(subscription, group).map_err(|_| invalid())?;
        let name = Name::new(name).filter(|_| matches!(rest, [] | ["ipconfigurations", _]));
        let name = name.ok_or_else(invalid)?;
        let path = format!(
            "{}/providers/Microsoft.Network/networkInterfaces/{}",
            group.path(),
            name.encoded()
        );
        Ok(Self { group, path })
    }

    /// The name, in lower case.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The id of its resource group.
    pub fn group(&self) -> &ResourceGroupId {
        &self.group
    }

    /// The URL path, with encoded names.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_scale_sets_are_rejected() {
        let nic = "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Network/networkInterfaces/NIC";
        let expected = NetworkInterfaceId::parse(nic).unwrap();
        let path = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic";
        assert_eq!(expected.path(), path);
        let configuration = NetworkInterfaceId::parse(&format!("{nic}/ipConfigurations/cfg"));
        assert_eq!(configuration.unwrap(), expected);
        for bad in [
            "",
            "nic",
            "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines/0/networkInterfaces/n/ipConfigurations/c",
            "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Network/networkInterfaces/n/other/c",
            "/subscriptions/S/resourceGroups/../providers/Microsoft.Network/networkInterfaces/n",
        ] {
            assert!(NetworkInterfaceId::parse(bad).is_err(), "{bad}");
        }
    }
}
