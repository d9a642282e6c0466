//! What a load balancer's document says: its pools, the rules that send traffic into them, the probes of those. Pure.
//!
//! Source: cloud-provider-azure `ListManagedLBs` for whose load balancers these are. A pool counts if a
//! load-balancing rule uses it: one with outbound rules only has no new connections to keep away.

use std::collections::{HashMap, HashSet};

use headgate_azure::{AdminState, LoadBalancer, LoadBalancerId, NetworkInterfaceId, Pool, PoolId, ProvisioningState};
use serde_json::Value;

use super::member::{Claim, Key};

/// Which load balancers are the cluster's.
#[derive(Clone, Debug)]
pub struct Managed(HashSet<String>);

const INTERNAL: &str = "-internal";

impl Managed {
    /// Those of these names, and their internal twins.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(str::to_ascii_lowercase).collect())
    }

    /// Whether this is one.
    #[must_use]
    pub fn holds(&self, id: &LoadBalancerId) -> bool {
        let name = id.name().to_ascii_lowercase();
        self.0.contains(name.strip_suffix(INTERNAL).unwrap_or(&name)) || self.0.contains(&name)
    }
}

/// How a load balancer asks whether a member is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `Http`, `Https` or `Tcp`.
    pub protocol: String,
    /// Where.
    pub port: u16,
    /// What for, unless by TCP.
    pub path: Option<String>,
}

/// A load-balancing rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Its probe; without one an admin state has no effect on it.
    pub probe: Option<Probe>,
}

/// An entry of a pool, read once: plans are made far more often than reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What it is recognised by; none where nothing tells it from others, which then is nobody's.
    pub key: Option<Key>,
    /// What says whose it is.
    pub claim: Claim,
    /// Its admin state; none for a word that is not known.
    pub admin_state: Option<AdminState>,
}

/// A pool in its load balancer, without its document, which is many times as large.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolView {
    /// Which.
    pub id: PoolId,
    /// Its entries, in their order.
    pub members: Vec<Member>,
    /// The interfaces among them that only ARM knows the machine of.
    pub interfaces: Vec<NetworkInterfaceId>,
    /// The rules that send traffic to it.
    pub rules: Vec<Rule>,
}

impl PoolView {
    /// Whether a load-balancing rule sends new connections to it. Nobody is taken out of a pool without one; what is ours
    /// there, from when it had one, is given back.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether an admin state has an effect on some of its traffic.
    #[must_use]
    pub fn is_probed(&self) -> bool {
        self.rules.iter().any(|rule| rule.probe.is_some())
    }

    /// Whether some of its traffic takes no notice of admin states.
    #[must_use]
    pub fn has_rule_without_probe(&self) -> bool {
        self.rules.iter().any(|rule| rule.probe.is_none())
    }
}

/// A load balancer as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Which.
    pub id: LoadBalancerId,
    /// Whether ARM is busy with it or with one of its pools.
    pub busy: bool,
    /// Its pools, in their order.
    pub pools: Vec<PoolView>,
}

impl View {
    /// Of its document.
    #[must_use]
    pub fn of(load_balancer: LoadBalancer) -> Self {
        Self::with_pools(load_balancer).0
    }

    /// Of its document, and its pools, to be written.
    #[must_use]
    pub fn with_pools(mut load_balancer: LoadBalancer) -> (Self, Vec<Pool>) {
        let mut rules = rules(&load_balancer);
        let pools = load_balancer.take_pools();
        let busy = [load_balancer.provisioning_state()]
            .into_iter()
            .chain(pools.iter().map(Pool::provisioning_state))
            .any(|state| state == ProvisioningState::Busy);
        let seen = pools.iter().map(|pool| {
            let members = pool.addresses().map(|address| Member {
                key: Key::of(address),
                claim: Claim::of(address),
                admin_state: address.admin_state(),
            });
            let members: Vec<_> = members.collect();
            let interfaces = members.iter().filter_map(|member| match &member.claim {
                Claim::Interface(id) => Some((**id).clone()),
                _ => None,
            });
            PoolView {
                interfaces: interfaces.collect(),
                members,
                rules: rules.remove(&pool.id).unwrap_or_default(),
                id: pool.id.clone(),
            }
        });
        let view = Self {
            busy,
            pools: seen.collect(),
            id: load_balancer.id,
        };
        (view, pools)
    }

    /// Of one that is not there any more.
    #[must_use]
    pub fn gone(id: LoadBalancerId) -> Self {
        Self {
            id,
            busy: false,
            pools: Vec::new(),
        }
    }
}

/// The load-balancing rules by the pool they use.
fn rules(load_balancer: &LoadBalancer) -> HashMap<PoolId, Vec<Rule>> {
    let document = &load_balancer.document;
    let mut found: HashMap<PoolId, Vec<Rule>> = HashMap::new();
    for rule in children(document, "loadBalancingRules") {
        let probe = text(rule, "/properties/probe/id").map(|id| {
            let name = id.rsplit('/').next().unwrap_or_default();
            let mut probes = children(document, "probes");
            probe(probes.find(|probe| text(probe, "/name").is_some_and(|known| known.eq_ignore_ascii_case(name))))
        });
        let rule_view = Rule {
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
            found.entry(id).or_default().push(rule_view.clone());
        }
    }
    found
}

/// A probe that a rule names; one whose document is not to be found is one nevertheless.
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

fn children<'a>(document: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = document.get("properties").and_then(|properties| properties.get(name));
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

    fn view(properties: &Value) -> View {
        View::of(LoadBalancer {
            id: LoadBalancerId::parse(ID).unwrap(),
            etag: None,
            document: json!({"id": ID, "properties": properties}),
        })
    }

    #[test]
    fn whose_load_balancers_these_are() {
        let managed = Managed::new(["Kubernetes", "lb2", "odd-internal"]);
        let holds = |name: &str| {
            let id = ID.replace("kubernetes", name);
            managed.holds(&LoadBalancerId::parse(&id).unwrap())
        };
        for name in [
            "kubernetes",
            "KUBERNETES-Internal",
            "lb2",
            "lb2-internal",
            "odd-internal",
        ] {
            assert!(holds(name), "{name}");
        }
        for name in ["kubernetes2", "lb", "odd", "internal"] {
            assert!(!holds(name), "{name}");
        }
    }

    #[test]
    fn a_pool_counts_by_its_load_balancing_rules() {
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
        assert!(!view.busy);
        let unused = view.pools.iter().filter(|pool| !pool.is_used());
        let unused: Vec<_> = unused.map(|pool| pool.id.name()).collect();
        assert_eq!(unused, ["outbound"]);
    }

    #[test]
    fn busy_is_a_load_balancer_with_a_busy_pool() {
        let with = |own: &str, pool: &str| {
            view(&json!({"provisioningState": own, "backendAddressPools": [{"name": "a", "properties": {"provisioningState": pool}}]})).busy
        };
        assert!(!with("Succeeded", "Failed"));
        assert!(with("Updating", "Succeeded"));
        assert!(with("Succeeded", "Deleting"));
    }

    #[test]
    fn null_and_missing_parts_are_none() {
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
