//! What a load balancer's document says: its pools, their entries, and the rules and probes that use them. Pure.
//!
//! Only load-balancing rules count: a pool that only outbound rules use gets no new connections. The document itself is not
//! kept: the writer has it, or reads it again, and sends it back as it was read, with its edits.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use headgate_azure::{
    AdminState, Etag, LoadBalancerId, LoadBalancerSummary, NetworkInterfaceId, Pool, PoolId, PoolSummary,
    ProvisioningState,
};
use serde_json::Value;

use super::pool_entry::{NodeMatcher, PoolEntry};
use super::{ClusterNode, NodeIndex};

/// A health probe of the load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `Http`, `Https` or `Tcp`; `unknown` if the document has none.
    pub protocol: String,
    /// 0 if the document has none.
    pub port: u16,
    /// The path of an HTTP or HTTPS probe.
    pub path: Option<String>,
}

/// A load-balancing rule that sends traffic to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Empty if the document has none.
    pub name: String,
    /// A rule without a probe ignores admin states.
    pub probe: Option<Probe>,
}

/// A pool without its document, which is many times as large.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolView {
    /// The pool's resource id.
    pub id: PoolId,
    /// In the order of the document.
    pub entries: Vec<PoolEntry>,
    /// The interfaces of the entries whose machine only ARM has.
    pub interfaces: Vec<NetworkInterfaceId>,
    /// Whether an entry that is not `Down` names no Node in a known form, or the entries are not shown.
    pub has_unmatched_entry: bool,
    /// The load-balancing rules that use the pool.
    pub rules: Vec<Rule>,
}

impl PoolView {
    fn new(id: PoolId, entries: Vec<PoolEntry>, rules: Vec<Rule>) -> Self {
        let interfaces = entries.iter().filter_map(|entry| match &entry.matcher {
            NodeMatcher::Interface(id) => Some((**id).clone()),
            _ => None,
        });
        let is_unmatched =
            |entry: &PoolEntry| entry.matcher == NodeMatcher::Unmatched && entry.admin_state != Some(AdminState::Down);
        Self {
            interfaces: interfaces.collect(),
            has_unmatched_entry: entries.iter().any(is_unmatched),
            id,
            entries,
            rules,
        }
    }

    /// Whether a load-balancing rule sends new connections to the pool. No entry of another pool is set `Down`; what
    /// headgate set there while a rule used the pool is restored.
    pub fn is_used(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether a rule has a probe, so that an admin state has an effect.
    pub fn is_probed(&self) -> bool {
        self.rules.iter().any(|rule| rule.probe.is_some())
    }

    /// Whether a rule has no probe, so that it ignores admin states.
    pub(crate) fn has_rule_without_probe(&self) -> bool {
        self.rules.iter().any(|rule| rule.probe.is_none())
    }
}

/// A load balancer as one read showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadBalancerView {
    /// The load balancer's resource id.
    pub id: LoadBalancerId,
    /// The version of the load balancer, which each write of one of its pools changes; not after single pools were read.
    pub etag: Option<Etag>,
    /// Whether ARM is updating or deleting the load balancer or one of its pools. A write would cancel that.
    pub is_busy: bool,
    /// Whether it was too large for one response, and is assembled from its parts.
    pub is_assembled: bool,
    /// In the order of the document. A pool that several reads show in the same way is in memory once.
    pub pools: Vec<Arc<PoolView>>,
}

impl LoadBalancerView {
    /// The view of a document that is in memory.
    ///
    /// # Errors
    /// As [`LoadBalancerSummary::from_document`].
    pub fn new(document: &Value) -> Result<Self, String> {
        LoadBalancerSummary::from_document(document, PoolEntry::new).map(Self::from_summary)
    }

    /// The view of a load balancer that was read, whole or in parts.
    pub fn from_read(load_balancer: LoadBalancerSummary<PoolEntry>, is_assembled: bool) -> Self {
        Self {
            is_assembled,
            ..Self::from_summary(load_balancer)
        }
    }

    /// The view of a load balancer that was listed, or read whole.
    pub(crate) fn from_summary(load_balancer: LoadBalancerSummary<PoolEntry>) -> Self {
        let mut rules = rules_by_pool(&load_balancer.rules);
        let states = load_balancer.pools.iter().map(|pool| pool.provisioning_state);
        let is_busy = [load_balancer.provisioning_state]
            .into_iter()
            .chain(states)
            .any(|state| state == ProvisioningState::Busy);
        let pools = load_balancer.pools.into_iter().map(|pool: PoolSummary<PoolEntry>| {
            let rules = rules.remove(&pool.id).unwrap_or_default();
            let mut view = PoolView::new(pool.id, pool.addresses, rules);
            view.has_unmatched_entry |= pool.are_addresses_missing;
            Arc::new(view)
        });
        Self {
            is_busy,
            is_assembled: false,
            pools: pools.collect(),
            etag: load_balancer.etag,
            id: load_balancer.id,
        }
    }

    /// Whether an entry of a used pool may be any Node's: it names none in a known form, or is not shown.
    pub fn has_unmatched_entry(&self) -> bool {
        self.pools.iter().any(|pool| pool.is_used() && pool.has_unmatched_entry)
    }

    /// Whether an entry that is no known Node's may be this one's, which lacks what the entry names.
    pub fn may_have_unknown_entry(&self, node: &ClusterNode, nodes: &NodeIndex) -> bool {
        let (has_address, has_machine) = (!node.addresses.is_empty(), !node.machine.is_empty());
        let lacks_family_of = |ip: &IpAddr| !node.addresses.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
        let may_be_own = |entry: &PoolEntry| match &entry.matcher {
            // Where the Node has addresses of the other family, others may have these; but not the entry that is named for it.
            NodeMatcher::Address(ip) => {
                let is_named =
                    entry.name.as_deref() == Some(&*node.name) && entry.admin_state != Some(AdminState::Down);
                (!has_address || is_named && lacks_family_of(ip)) && nodes.claimants(*ip).is_empty()
            }
            NodeMatcher::Machine(machine) => !has_machine && nodes.machine_claimants(machine.as_str()).is_empty(),
            NodeMatcher::Interface(_) => !has_machine,
            NodeMatcher::Name(_) | NodeMatcher::Unmatched => false,
        };
        // All addresses of a pool are of one family, so that most pools need no look at their entries.
        let is_relevant = |pool: &PoolView| {
            let first = pool.entries.first().map(|entry| &entry.matcher);
            !has_address || !has_machine || matches!(first, Some(NodeMatcher::Address(ip)) if lacks_family_of(ip))
        };
        let used = self.pools.iter().filter(|pool| pool.is_used() && is_relevant(pool));
        used.flat_map(|pool| &pool.entries).any(may_be_own)
    }

    /// The same view, with the pools that an earlier read showed in the same way taken from that one, and of other pools the texts of
    /// entries: there may be a million entries, and a read that changes nothing needs no memory of its own.
    pub(crate) fn sharing_pools(mut self, earlier: &Self) -> Self {
        let known: HashMap<_, _> = earlier.pools.iter().map(|pool| (&pool.id, pool)).collect();
        for pool in &mut self.pools {
            let Some(known) = known.get(&pool.id) else { continue };
            if *known == pool {
                *pool = Arc::clone(known);
            } else if let Some(pool) = Arc::get_mut(pool) {
                let entries = pool.entries.iter_mut().zip(&known.entries);
                entries.for_each(|(entry, known)| entry.share_texts(known));
            }
        }
        self
    }

    /// This view after some of its pools were read again, alone. Their rules stay as the whole load balancer had them. `None` if
    /// one of them is not in this view.
    pub(crate) fn with_pools(&self, read: &[&Pool], load_balancer_state: ProvisioningState) -> Option<Self> {
        let mut view = Self {
            etag: None,
            ..self.clone()
        };
        let states = read.iter().map(|pool| pool.provisioning_state());
        view.is_busy = states
            .chain([load_balancer_state])
            .any(|state| state == ProvisioningState::Busy);
        for pool in read {
            let known = view.pools.iter_mut().find(|known| known.id == pool.id)?;
            let entries = pool.addresses().map(PoolEntry::new).collect();
            *known = Arc::new(PoolView::new(known.id.clone(), entries, known.rules.clone()));
        }
        Some(view)
    }

    /// A load balancer that no longer exists: no pools.
    pub fn deleted(id: LoadBalancerId) -> Self {
        Self {
            id,
            etag: None,
            is_busy: false,
            is_assembled: false,
            pools: Vec::new(),
        }
    }
}

/// The load-balancing rules of each pool.
fn rules_by_pool(properties: &Value) -> HashMap<PoolId, Vec<Rule>> {
    let mut found: HashMap<PoolId, Vec<Rule>> = HashMap::new();
    for rule in children(properties, "loadBalancingRules") {
        let probe = text(rule, "/properties/probe/id").map(|id| {
            let name = id.rsplit('/').next().unwrap_or_default();
            let mut probes = children(properties, "probes");
            probe(probes.find(|probe| text(probe, "/name").is_some_and(|known| known.eq_ignore_ascii_case(name))))
        });
        let parsed = Rule {
            name: text(rule, "/name").unwrap_or_default().to_owned(),
            probe,
        };
        let several = rule
            .pointer("/properties/backendAddressPools")
            .and_then(Value::as_array);
        let one = text(rule, "/properties/backendAddressPool/id");
        let ids = several.into_iter().flatten().filter_map(|pool| text(pool, "/id"));
        let ids: HashSet<PoolId> = ids.chain(one).filter_map(|id| PoolId::parse(id).ok()).collect();
        for id in ids {
            found.entry(id).or_default().push(parsed.clone());
        }
    }
    found
}

/// The probe that a rule names; a rule whose probe has no document counts as probed.
fn probe(document: Option<&Value>) -> Probe {
    let property = |name: &str| document.and_then(|probe| probe.get("properties")?.get(name));
    let port = property("port").and_then(Value::as_u64);
    let path = property("requestPath").and_then(Value::as_str);
    Probe {
        protocol: property("protocol")
            .and_then(Value::as_str)
            .unwrap_or("unknown")
            .to_owned(),
        port: port.and_then(|port| port.try_into().ok()).unwrap_or_default(),
        path: path.map(str::to_owned),
    }
}

fn children<'a>(properties: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = properties.get(name);
    list.and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(document: &'a Value, pointer: &str) -> Option<&'a str> {
    document.pointer(pointer).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/kubernetes";

    fn view(properties: &Value) -> LoadBalancerView {
        LoadBalancerView::new(&json!({"id": ID, "properties": properties})).unwrap()
    }

    #[test]
    fn only_pools_of_load_balancing_rules_are_used() {
        let pool = |name: &str| json!({"name": name, "properties": {"provisioningState": "Succeeded"}});
        let id = |name: &str| json!({"id": format!("{}/backendAddressPools/{name}", ID.to_uppercase())});
        let view = view(&json!({
            "backendAddressPools": [pool("a"), pool("b"), pool("outbound"), {"properties": {}}, null],
            "probes": [{"name": "P", "properties": {"protocol": "Http", "port": 10456, "requestPath": "/healthz"}}],
            "outboundRules": [{"properties": {"backendAddressPool": id("outbound")}}],
            "loadBalancingRules": [
                {"name": "one", "properties": {"backendAddressPool": id("a"), "backendAddressPools": [id("A")], "probe": {"id": format!("{ID}/probes/p")}}},
                {"name": "bare", "properties": {"backendAddressPool": id("a")}},
                {"name": "lost", "properties": {"backendAddressPools": [id("b"), null, {"id": 7}], "probe": {"id": format!("{ID}/probes/gone")}}},
                {"name": "broken", "properties": null}, {}]}));
        let shown: Vec<_> = view
            .pools
            .iter()
            .filter(|pool| pool.is_used())
            .map(|pool| {
                let rules: Vec<_> = pool.rules.iter().map(|rule| rule.name.as_str()).collect();
                (
                    pool.id.name().to_lowercase(),
                    rules,
                    pool.is_probed(),
                    pool.has_rule_without_probe(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("a".to_owned(), vec!["one", "bare"], true, true),
                ("b".to_owned(), vec!["lost"], true, false)
            ]
        );
        let probe = view.pools[0].rules[0].probe.as_ref().unwrap();
        assert_eq!((probe.port, probe.path.as_deref()), (10456, Some("/healthz")));
        assert!(!view.is_busy);
        let unused = view.pools.iter().filter(|pool| !pool.is_used());
        let unused: Vec<_> = unused.map(|pool| pool.id.name()).collect();
        assert_eq!(unused, ["outbound"]);
    }

    #[test]
    fn busy_pool_makes_the_load_balancer_busy() {
        let with = |own: &str, pool: &str| {
            view(&json!({"provisioningState": own, "backendAddressPools": [{"name": "a", "properties": {"provisioningState": pool}}]})).is_busy
        };
        assert!(!with("Succeeded", "Failed"));
        assert!(with("Updating", "Succeeded"));
        assert!(with("Succeeded", "Deleting"));
    }

    #[test]
    fn pool_that_shows_members_and_no_entries_may_have_one_of_any_node() {
        let rule =
            json!({"name": "r", "properties": {"backendAddressPool": {"id": format!("{ID}/backendAddressPools/a")}}});
        let (none, one) = (json!([]), json!([{"id": "/configuration"}]));
        let down = json!([{"properties": {"adminState": "Down"}}]);
        for (properties, expected) in [
            (json!({}), false),
            (json!({"backendIPConfigurations": none}), false),
            (json!({"backendIPConfigurations": one}), true),
            (
                json!({"backendIPConfigurations": one, "loadBalancerBackendAddresses": none}),
                false,
            ),
            (json!({"loadBalancerBackendAddresses": [{"properties": {}}]}), true),
            (json!({"loadBalancerBackendAddresses": down}), false),
        ] {
            let pools = json!([{"name": "a", "properties": properties}]);
            let view = |rules: &[&Value]| view(&json!({"backendAddressPools": pools, "loadBalancingRules": rules}));
            assert_eq!(view(&[&rule]).has_unmatched_entry(), expected, "{properties}");
            assert!(!view(&[]).has_unmatched_entry());
        }
    }

    #[test]
    fn entries_of_a_pool_that_changed_share_the_texts_of_the_read_before() {
        let read = |second: &str, state: &str| {
            let entry = |address: &str, state: &str| json!({"name": "n", "properties": {"ipAddress": address, "adminState": state}});
            let entries = [entry("10.0.0.1", state), entry(second, "None")];
            view(
                &json!({"backendAddressPools": [{"name": "a", "properties": {"loadBalancerBackendAddresses": entries}}]}),
            )
        };
        let text = |view: &LoadBalancerView, index: usize| {
            view.pools[0].entries[index].key.as_ref().unwrap().as_str().as_ptr()
        };
        let earlier = read("10.0.0.2", "None");
        let same = read("10.0.0.2", "None").sharing_pools(&earlier);
        let changed = || read("10.0.0.3", "Down");
        assert!(Arc::ptr_eq(&same.pools[0], &earlier.pools[0]));
        let shared = changed().sharing_pools(&earlier);
        assert_eq!(shared, changed());
        assert_eq!(text(&shared, 0), text(&earlier, 0));
        assert_ne!(text(&shared, 1), text(&earlier, 1));
    }

    #[test]
    fn null_and_missing_parts_are_empty() {
        for properties in [
            json!(null),
            json!({}),
            json!({"backendAddressPools": null, "loadBalancingRules": null}),
            json!([]),
        ] {
            assert!(view(&properties).pools.is_empty(), "{properties}");
        }
    }
}
