//! Who is in NIC-based pools: the membership stands on the network interfaces, never in the pool.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::guids;
use super::id::{ResourceId, is};
use super::record::{self, Record};

/// One IP configuration in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The name of its address in the pool.
    pub(super) name: String,
    /// The id of the IP configuration.
    pub(super) configuration: String,
    /// Of which network interface.
    interface: String,
}

/// The members of every pool, by the pool's key and the address's name in lower case.
#[derive(Clone, Debug, Default)]
pub(super) struct Members(HashMap<String, BTreeMap<String, Member>>);

impl Members {
    /// The members of a pool, by the lower-case names of their addresses.
    pub(super) fn of(&self, pool: &str) -> Option<&BTreeMap<String, Member>> {
        self.0.get(pool)
    }

    /// Takes in what a network interface says; the keys of the pools whose members it changed.
    pub(super) fn apply(&mut self, interface: &Record) -> Vec<String> {
        let before = self.take(&interface.id.key());
        let after = stated(interface);
        for (pool, member) in &after {
            let members = self.0.entry(pool.clone()).or_default();
            members.insert(member.name.to_lowercase(), member.clone());
        }
        let changed = |one: &[(String, Member)], other: &[(String, Member)]| {
            let missing = one.iter().filter(|pair| !other.contains(pair));
            missing.map(|(pool, _)| pool.clone()).collect::<Vec<_>>()
        };
        let mut pools = changed(&before, &after);
        pools.extend(changed(&after, &before));
        pools
    }

    /// A network interface is gone; the keys of the pools it was in.
    pub(super) fn remove(&mut self, interface: &ResourceId) -> Vec<String> {
        let gone = self.take(&interface.key());
        gone.into_iter().map(|(pool, _)| pool).collect()
    }

    fn take(&mut self, interface: &str) -> Vec<(String, Member)> {
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
    id.segments
        .last()
        .is_some_and(|(kind, _)| is(kind, "networkInterfaces"))
}

/// The pools that a network interface says it is in.
fn stated(interface: &Record) -> Vec<(String, Member)> {
    let mut found = Vec::new();
    for configuration in record::children(&interface.document, "ipConfigurations") {
        let Some(name) = record::name_of(configuration) else {
            continue;
        };
        let id = interface.child_id("ipConfigurations", name);
        let pools = configuration.pointer("/properties/loadBalancerBackendAddressPools");
        for pool in pools.and_then(Value::as_array).into_iter().flatten() {
            let Some(pool) = pool.get("id").and_then(Value::as_str).and_then(ResourceId::parse) else {
                continue;
            };
            let member = Member {
                // Seen in dumps: a scale set's member has a GUID, any other says where it comes from.
                name: if interface.id.segments.len() > 1 {
                    guids::named(&id.to_lowercase()).to_string()
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
