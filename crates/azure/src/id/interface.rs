//! The id of a network interface that is a resource of its own.

use super::{InvalidId, Name, ResourceGroupId};

/// A network interface, in lower case. A scale set's interfaces, whose ids name their virtual machine, are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkInterfaceId {
    group: ResourceGroupId,
    path: String,
}

impl NetworkInterfaceId {
    /// Reads it from the id of one of its configurations, or from its own.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn parse(id: &str) -> Result<Self, InvalidId> {
        let bad = || InvalidId(id.to_owned(), "a network interface");
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
            return Err(bad());
        };
        if !matches!(rest, [] | ["ipconfigurations", _])
            || [subscription, group, name].iter().any(|part| Name::new(part).is_none())
        {
            return Err(bad());
        }
        let id = ResourceGroupId::new(subscription, group).map_err(|_| bad())?;
        let encoded = [group, name].map(|part| Name((*part).into()).encoded().to_string());
        let [group, name] = encoded;
        Ok(Self {
            group: id,
            path: format!(
                "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/networkInterfaces/{name}"
            ),
        })
    }

    /// Its name, in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Its resource group.
    pub(crate) fn group(&self) -> &ResourceGroupId {
        &self.group
    }

    /// Its path, as it stands in a URL.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_its_own_is_told_from_a_scale_sets() {
        let nic = "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Network/networkInterfaces/NIC";
        let expected = NetworkInterfaceId::parse(nic).unwrap();
        assert_eq!(
            expected.path(),
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic"
        );
        assert_eq!(
            NetworkInterfaceId::parse(&format!("{nic}/ipConfigurations/cfg")).unwrap(),
            expected
        );
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
