//! The members of NIC-based pools. The network interfaces state the membership; the pool's document does not.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::guids;
use super::id::ResourceId;
use super::resource::{self, Resource};

/// An IP configuration that is in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NicMember {
    /// The name of its address in the pool.
    pub(super) name: String,
    /// The id of the IP configuration.
    pub(super) configuration: String,
    /// The key of its network interface.
    interface: String,
}

/// The members of every pool, by the key of the pool and the lower-case name of the address.
#[derive(Clone, Debug, Default)]
pub(super) struct NicMembers(HashMap<String, BTreeMap<String, NicMember>>);

impl NicMembers {
    /// The members of a pool, by the lower-case names of their addresses.
    pub(super) fn get(&self, pool: &str) -> Option<&BTreeMap<String, NicMember>> {
        self.0.get(pool)
    }

    /// Takes the pools of an interface from its document; returns the keys of the pools whose members changed.
    pub(super) fn update(&mut self, interface: &Resource) -> Vec<String> {
        let before = self.take(&interface.id.key());
        let after = memberships(interface);
        for (pool, member) in &after {
            let members = self.0.entry(pool.clone()).or_default();
            members.insert(member.name.to_lowercase(), member.clone());
        }
        let changed = |one: &[(String, NicMember)], other: &[(String, NicMember)]| {
            let missing = one.iter().filter(|pair| !other.contains(pair));
            missing.map(|(pool, _)| pool.clone()).collect::<Vec<_>>()
        };
        let mut pools = changed(&before, &after);
        pools.extend(changed(&after, &before));
        pools
    }

    /// Removes an interface; returns the keys of the pools it was in.
    pub(super) fn remove(&mut self, interface: &ResourceId) -> Vec<String> {
        let gone = self.take(&interface.key());
        gone.into_iter().map(|(pool, _)| pool).collect()
    }

    fn take(&mut self, interface: &str) -> Vec<(String, NicMember)> {
        let mut taken = Vec::new();
        self.0.retain(|pool, members| {
            members.retain(|_, member| {
                let stays = member.interface != interface;
                if !stays {
                    taken.push((pool.clone(), member.clone()));
                }
                stays
            });
            !members.is_empty()
        });
        taken
    }
}

/// Whether a resource is a network interface.
pub(super) fn is_interface(id: &ResourceId) -> bool {
    id.is_a("networkInterfaces")
}

/// The pools that the document of an interface lists.
fn memberships(interface: &Resource) -> Vec<(String, NicMember)> {
    let mut found = Vec::new();
    for configuration in resource::children(&interface.document, "ipConfigurations") {
        let Some(name) = resource::name_of(configuration) else {
            continue;
        };
        let id = interface.child_id("ipConfigurations", name);
        let pools = configuration.pointer("/properties/loadBalancerBackendAddressPools");
        for pool in pools.and_then(Value::as_array).into_iter().flatten() {
            let Some(pool) = pool.get("id").and_then(Value::as_str).and_then(ResourceId::parse) else {
                continue;
            };
            let member = NicMember {
                // Reported: the name is a GUID for an instance of a scale set, and otherwise made from the interface's
                // names.
                name: if interface.id.segments.len() > 1 {
                    guids::guid_for_name(&id.to_lowercase()).to_string()
                } else {
                    format!("{}_{}{name}", interface.id.group, interface.id.name())
                },
                configuration: id.clone(),
                interface: interface.id.key(),
            };
            found.push((pool.key(), member));
        }
    }
    found
}
