//! One pool entry: the key that identifies it, and the Nodes that it may belong to. Pure.
//!
//! An entry with an address belongs to the Node with that `InternalIP`, compared as an address and not as text. An entry with a
//! network interface belongs to the Node on that virtual machine, by its `providerID`. The entry's name counts only if it
//! has neither (docs/dev/decisions.md 31), or if several Nodes claim the address (`entry_owner`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use headgate_azure::{AdminState, BackendAddress, NetworkInterfaceId};
use headgate_core::lower_case;

use super::fingerprint::Fingerprint;
use super::interface_cache::InterfaceCache;
use super::view::PoolView;
use super::{ClusterNode, NodeIndex};

/// One backend address of a pool, parsed once for each read: plans are made far more often than reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// `None` if nothing distinguishes the entry from others; such an entry is never written.
    pub key: Option<EntryKey>,
    /// The name of an entry with an address, in lower case: that of a Node, where cloud-controller-manager wrote it.
    pub name: Option<Arc<str>>,
    /// Decides which Node the entry belongs to.
    pub matcher: NodeMatcher,
    /// `None` if ARM answers a value that headgate does not know.
    pub admin_state: Option<AdminState>,
}

impl PoolEntry {
    /// The entry with this backend address.
    pub fn new(address: BackendAddress<'_>) -> Self {
        Self::with_texts(address, &mut SharedTexts::default())
    }

    /// Reads the entries of one or more load balancers. Equal texts are in memory once: a node has an entry in each of many pools. An entry
    /// that is the one in its place in these pools, which an earlier read showed, has the texts of that one.
    pub fn reader(earlier: Vec<Arc<PoolView>>) -> impl Fn(BackendAddress<'_>) -> Self + Clone + Send + Sync + 'static {
        let earlier = earlier.into_iter().flat_map(|pool| {
            let places = 0..pool.entries.len();
            places.map(move |place| (Arc::clone(&pool), place))
        });
        let known = Arc::new(Mutex::new((earlier, SharedTexts::default())));
        move |address| {
            let (earlier, texts) = &mut *known.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it = |(pool, place): &(Arc<PoolView>, usize)| pool.entries[*place].is_of(address);
            match earlier.next().filter(is_it) {
                Some((pool, place)) => Self {
                    admin_state: address.admin_state(),
                    ..pool.entries[place].clone()
                },
                None => Self::with_texts(address, texts),
            }
        }
    }

    /// Whether the address is this entry's, whatever its admin state. Only those with an IPv4 address are compared.
    fn is_of(&self, address: BackendAddress<'_>) -> bool {
        let (Some(IpAddr::V4(ip)), NodeMatcher::Address(IpAddr::V4(known))) = (address.ip_address(), &self.matcher)
        else {
            return false;
        };
        let is_same_name = match (address.name(), &self.name) {
            (Some(name), Some(known)) => name.eq_ignore_ascii_case(known),
            (name, known) => name.is_none() && known.is_none(),
        };
        // The key of an IPv4-mapped address begins with a colon.
        let is_mapped = || self.key.as_ref().is_none_or(|key| key.as_str().starts_with(':'));
        ip == *known && is_same_name && !is_mapped()
    }

    /// The same entry, with the texts of one that an earlier read showed in its place if they are equal.
    pub(super) fn share_texts(&mut self, earlier: &Self) {
        let shared = Self {
            admin_state: self.admin_state,
            ..earlier.clone()
        };
        if shared == *self {
            *self = shared;
        }
    }

    fn with_texts(address: BackendAddress<'_>, texts: &mut SharedTexts) -> Self {
        let matcher = texts.matcher(address);
        let has_address = matches!(matcher, NodeMatcher::Address(_));
        let name = address.name().filter(|_| has_address);
        Self {
            key: texts.entry_key(address),
            name: name.map(|name| texts.name(name)),
            matcher,
            admin_state: address.admin_state(),
        }
    }
}

/// Texts that many entries have in common.
#[derive(Debug, Default)]
struct SharedTexts {
    keys: HashMap<IpAddr, EntryKey>,
    /// Names, machines, and keys of entries without an address, in lower case.
    others: HashMap<Fingerprint, Arc<str>>,
}

impl SharedTexts {
    fn entry_key(&mut self, address: BackendAddress<'_>) -> Option<EntryKey> {
        if let Some(ip) = address.ip_address() {
            let key = || EntryKey::from_text(&ip.to_string());
            return Some(self.keys.entry(ip).or_insert_with(key).clone());
        }
        let name = address.name().filter(|name| !name.is_empty())?;
        // The prefix keeps a name that looks like an address apart from that address.
        let mut text = format!("name:{name}");
        text.make_ascii_lowercase();
        let (text, fingerprint) = self.shared(&text);
        Some(EntryKey { text, fingerprint })
    }

    fn matcher(&mut self, address: BackendAddress<'_>) -> NodeMatcher {
        if let Some(ip) = address.ip_address() {
            // An IPv4-mapped IPv6 address matches the IPv4 address.
            return NodeMatcher::Address(ip.to_canonical());
        }
        if let Some(configuration) = address.network_interface_ip_configuration() {
            let interface = || NetworkInterfaceId::parse(configuration).ok();
            return self
                .scale_set_machine(configuration)
                .map(NodeMatcher::Machine)
                .or_else(|| interface().map(|id| NodeMatcher::Interface(Box::new(id))))
                .unwrap_or(NodeMatcher::Unmatched);
        }
        let name = address.name().map(str::to_ascii_lowercase);
        name.map_or(NodeMatcher::Unmatched, NodeMatcher::Name)
    }

    /// The machine in the id of a scale set's interface configuration, in lower case.
    fn scale_set_machine(&mut self, configuration: &str) -> Option<MachineId> {
        let lower = lower_case(configuration);
        // From the end, because a resource group may have any of these names.
        let mut segments = lower.rsplitn(5, '/');
        let is_interface = segments.nth(1)? == "ipconfigurations" && segments.nth(1)? == "networkinterfaces";
        let machine = segments.next()?;
        let is_machine = is_interface && machine.rsplit('/').nth(1)? == "virtualmachines";
        is_machine.then(|| {
            let (text, fingerprint) = self.shared(machine);
            MachineId { text, fingerprint }
        })
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        let mut name = Cow::Borrowed(name);
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            name.to_mut().make_ascii_lowercase();
        }
        self.shared(&name).0
    }

    /// The text and its fingerprint.
    fn shared(&mut self, text: &str) -> (Arc<str>, Fingerprint) {
        let fingerprint = Fingerprint::of(text);
        let known = self.others.entry(fingerprint).or_insert_with(|| text.into());
        // Other texts may have the same fingerprint.
        let shared = if **known == *text {
            Arc::clone(known)
        } else {
            text.into()
        };
        (shared, fingerprint)
    }
}

/// Identifies an entry within its pool, from one read to the next and in the ledger: its address, or `name:` and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    text: Arc<str>,
    fingerprint: Fingerprint,
}

impl EntryKey {
    /// The key of an entry; `None` if it has neither an address nor a name.
    pub fn from_address(address: BackendAddress<'_>) -> Option<Self> {
        SharedTexts::default().entry_key(address)
    }

    /// The key with this text, as the ledger has it.
    pub fn from_text(text: &str) -> Self {
        Self {
            text: text.into(),
            fingerprint: Fingerprint::of(text),
        }
    }

    /// The text that the ledger and `headgate status` show.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The fingerprint of that text.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The resource id of a virtual machine, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineId {
    text: Arc<str>,
    fingerprint: Fingerprint,
}

impl MachineId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The fingerprint of that text.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// Decides which Node a pool entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeMatcher {
    /// The Node with this address.
    Address(IpAddr),
    /// The Node on this virtual machine, by its id. The id of a scale set's interface contains it.
    Machine(MachineId),
    /// The Node on the machine that has this interface. Only ARM has the machine: see [`InterfaceCache`].
    Interface(Box<NetworkInterfaceId>),
    /// The Node of this name, in lower case.
    Name(String),
    /// No Node: the entry names none, or an interface in a form that is not known.
    Unmatched,
}

impl NodeMatcher {
    /// The Nodes that match; none if there is none, or if the interface has not been looked up yet.
    pub(super) fn claimants<'a>(&self, nodes: &'a NodeIndex, interfaces: &InterfaceCache) -> &'a [Arc<ClusterNode>] {
        match self {
            Self::Address(ip) => nodes.claimants(*ip),
            Self::Machine(machine) => nodes.machine_claimants(machine.as_str()),
            Self::Interface(id) => {
                let machine = interfaces.machine_of(id);
                machine.map_or(&[], |machine| nodes.machine_claimants(machine))
            }
            Self::Name(name) => nodes.by_name(name).map_or(&[], std::slice::from_ref),
            Self::Unmatched => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fixtures::pool_of;
    use super::*;

    fn node_index() -> NodeIndex {
        let mut nodes = NodeIndex::default();
        for (number, group) in [(1, "rg"), (2, "rg"), (3, "networkinterfaces")] {
            let machine = if number == 3 { 2 } else { number };
            nodes.apply(ClusterNode {
                name: format!("n{number}"),
                uid: format!("u{number}"),
                addresses: vec![
                    format!("10.0.0.{number}").parse().unwrap(),
                    format!("fd00::{number}").parse().unwrap(),
                ],
                machine: format!("/subscriptions/s/resourcegroups/{group}/providers/microsoft.compute/virtualmachinescalesets/v/virtualmachines/{machine}"),
                ready: true,
                ..ClusterNode::default()
            });
        }
        nodes
    }

    #[test]
    fn entries_of_one_machine_in_several_load_balancers_have_the_same_texts() {
        let read = PoolEntry::reader(Vec::new());
        let interface = |name: &str| {
            let configuration =
                format!("/VirtualMachineScaleSets/V/virtualMachines/1/networkInterfaces/{name}/ipConfigurations/c");
            let entry =
                json!({"name": "GUID", "properties": {"networkInterfaceIPConfiguration": {"id": configuration}}});
            read(pool_of(&entry).addresses().next().unwrap())
        };
        let texts = |entry: &PoolEntry| match (&entry.key, &entry.matcher) {
            (Some(key), NodeMatcher::Machine(machine)) => [&key.text, &machine.text].map(Arc::clone),
            other => panic!("{other:?}"),
        };
        let [one, other] = ["a", "b"].map(|name| texts(&interface(name)));
        assert_eq!(
            one.each_ref().map(|text| &**text),
            ["name:guid", "/virtualmachinescalesets/v/virtualmachines/1"]
        );
        assert!(one.iter().zip(&other).all(|(one, other)| Arc::ptr_eq(one, other)));
    }

    #[test]
    fn entry_that_is_as_the_one_in_its_place_before_has_the_texts_of_that_one() {
        let entry =
            |name: Value, ip: &str| json!({"name": name, "properties": {"ipAddress": ip, "adminState": "Down"}});
        let before = entry(json!("n"), "10.0.0.1");
        for (earlier, now, is_shared) in [
            (
                &before,
                json!({"name": "N", "properties": {"ipAddress": "10.0.0.1"}}),
                true,
            ),
            (&entry(json!(null), "10.0.0.1"), entry(json!(null), "10.0.0.1"), true),
            (&before, entry(json!("m"), "10.0.0.1"), false),
            (&before, entry(json!(null), "10.0.0.1"), false),
            (&before, entry(json!("n"), "10.0.0.2"), false),
            (&before, entry(json!("n"), "::ffff:10.0.0.1"), false),
            (&entry(json!("n"), "::ffff:10.0.0.1"), before.clone(), false),
            (&before, json!({"name": "n"}), false),
            (&json!(null), json!(null), false),
        ] {
            let (earlier, now) = (pool_of(earlier), pool_of(&now));
            let view = PoolView {
                id: earlier.id.clone(),
                entries: earlier.addresses().map(PoolEntry::new).collect(),
                interfaces: Vec::new(),
                has_unmatched_entry: false,
                rules: Vec::new(),
            };
            let known = view.entries[0].clone();
            let read = PoolEntry::reader(vec![Arc::new(view)]);
            let address = now.addresses().next().unwrap();
            for is_shared in [is_shared, false] {
                let found = read(address);
                assert_eq!(found, PoolEntry::new(address));
                let is_found = known.key.as_ref().zip(found.key.as_ref());
                let is_found = is_found.is_some_and(|(known, found)| Arc::ptr_eq(&known.text, &found.text));
                assert_eq!(is_found, is_shared, "{now:?}");
            }
        }
    }

    #[test]
    fn entry_belongs_to_the_node_with_its_address_machine_or_name() {
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
            // The names of a resource group and of an interface say nothing.
            (
                json!({"name": "GUID", "properties": {"networkInterfaceIPConfiguration": {
                    "id": configuration(2).replace("/RG/", "/networkInterfaces/").replace("/nic/", "/networkInterfaces/")}}}),
                "n3",
                "name:guid",
            ),
            (json!({"properties": {}}), "", ""),
            (json!(null), "", ""),
            (json!({"name": "", "properties": {"ipAddress": "nonsense"}}), "", ""),
        ] {
            let pool = pool_of(&entry);
            let address = pool.addresses().next().unwrap();
            let nodes = node_index();
            let found = PoolEntry::new(address).owner(&nodes, &InterfaceCache::default(), |_| ());
            let found = found.map_or(String::new(), |owner| owner.node.name.clone());
            assert_eq!(found, node, "{entry}");
            assert_eq!(
                EntryKey::from_address(address)
                    .map(|key| key.to_string())
                    .unwrap_or_default(),
                key,
                "{entry}"
            );
        }
    }
}
