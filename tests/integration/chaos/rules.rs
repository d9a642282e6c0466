//! No rule is emptied: as samples of the load balancers show, no rule's last backend is set `Down` for signals that may be taken back. That a
//! rule whose endpoint moved to what is `Down` gets it back is measured in calm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::history::{Members, ledger_entry, pools_of};

/// The time until what was planned from an earlier state of nodes and endpoints has been written: reads, an operation, and retries of it.
pub(crate) const IN_FLIGHT: Duration = Duration::from_secs(15);

/// A `Local` Service: where its endpoints are, and when they changed.
#[derive(Clone, Debug)]
pub(crate) struct LocalService {
    pub(crate) name: String,
    pub(crate) port: u64,
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) changed_at: Instant,
}

/// What headgate can know: Services, and the nodes by address. A Node that headgate cannot decode is not among them.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) services: Vec<LocalService>,
    pub(crate) nodes: BTreeMap<String, String>,
    /// When Nodes, or the way to them, changed last.
    pub(crate) changed_at: Instant,
}

/// A rule of the load balancer as one sample shows it.
#[derive(Clone, Debug, Default, PartialEq)]
struct RuleSample {
    /// The members that would serve it, were they not `Down`.
    candidates: BTreeSet<String>,
    /// Those that are not.
    serving: BTreeSet<String>,
    is_local: bool,
    /// Whether an operation writes the pool. What it writes is shown from its begin, and taken back at its end where ARM loses it.
    is_updating: bool,
}

/// What the samples showed.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    pub(crate) samples: u64,
    /// Entries that became `Down`.
    pub(crate) downs: u64,
    pub(crate) most_down: usize,
    /// Rules in samples that were matched to a `Local` Service with an endpoint in the pool.
    pub(crate) local_rules: u64,
    pub(crate) violations: Vec<String>,
    last: BTreeMap<String, RuleSample>,
    was_down: BTreeSet<String>,
}

/// The entries that are `Down`, as the ledger names them.
pub(crate) fn downs_of(load_balancers: &[Value]) -> BTreeSet<String> {
    let downs = load_balancers.iter().flat_map(|load_balancer| {
        let id = load_balancer["id"].as_str().unwrap_or_default().to_lowercase();
        let pools = pools_of(load_balancer).unwrap_or_default().into_iter();
        pools.flat_map(move |(pool, members)| {
            let downs = members.into_iter().filter(|(_, is_down)| *is_down);
            let id = id.clone();
            downs.map(move |(address, _)| ledger_entry(&id, &pool, &address))
        })
    });
    downs.collect()
}

impl Observations {
    pub(crate) fn sample(&mut self, load_balancers: &[Value], world: &World, now: Instant) {
        self.samples += 1;
        let is_down = downs_of(load_balancers);
        self.downs += is_down.difference(&self.was_down).count() as u64;
        self.most_down = self.most_down.max(is_down.len());
        self.was_down = is_down;
        let rules = rules_of(load_balancers, world);
        for (name, (rule, changed_at)) in &rules {
            self.local_rules += u64::from(rule.is_local && !rule.candidates.is_empty());
            if !rule.serving.is_empty() || rule.candidates.is_empty() {
                continue;
            }
            // cloud-controller-manager may take members out.
            let last = self.last.get(name);
            let is_set_down = last.is_some_and(|last| {
                let is_taken_back = last.is_updating && !rule.is_updating;
                !last.serving.is_disjoint(&rule.candidates) && !is_taken_back
            });
            if is_set_down && now.duration_since(*changed_at) > IN_FLIGHT {
                let before = &self.last[name];
                self.violations
                    .push(format!("{name} lost its last backend: {rule:?}, before {before:?}"));
            }
        }
        self.last = rules.into_iter().map(|(name, (rule, _))| (name, rule)).collect();
    }
}

fn last_segment(id: &Value) -> &str {
    let id = id.as_str().unwrap_or_default();
    id.rsplit('/').next().unwrap_or_default()
}

/// The rules by name, with the last change of their nodes or endpoints.
fn rules_of(load_balancers: &[Value], world: &World) -> BTreeMap<String, (RuleSample, Instant)> {
    let mut found = BTreeMap::new();
    for load_balancer in load_balancers {
        let children = |kind: &str| load_balancer["properties"][kind].as_array().into_iter().flatten();
        let pools = pools_of(load_balancer).unwrap_or_default();
        let probes: BTreeMap<&str, &Value> = children("probes")
            .map(|probe| (last_segment(&probe["name"]), &probe["properties"]["port"]))
            .collect();
        for rule in children("loadBalancingRules") {
            let pool = last_segment(&rule["properties"]["backendAddressPool"]["id"]).to_lowercase();
            let port = probes.get(last_segment(&rule["properties"]["probe"]["id"]));
            let port = port.and_then(|port| port.as_u64());
            let service = world.services.iter().find(|service| port == Some(service.port));
            let is_pool = |document: &&Value| last_segment(&document["name"]).to_lowercase() == pool;
            let state = children("backendAddressPools").find(is_pool);
            let state = state.map(|document| &document["properties"]["provisioningState"]);
            let sample = RuleSample {
                is_updating: state.is_some_and(|state| state == "Updating"),
                ..rule_sample(pools.get(&pool), service, &world.nodes)
            };
            let changed_at = service.map_or(world.changed_at, |service| service.changed_at.max(world.changed_at));
            found.insert(last_segment(&rule["name"]).to_owned(), (sample, changed_at));
        }
    }
    found
}

fn rule_sample(
    members: Option<&Members>,
    service: Option<&LocalService>,
    nodes: &BTreeMap<String, String>,
) -> RuleSample {
    let mut sample = RuleSample {
        is_local: service.is_some(),
        ..RuleSample::default()
    };
    for (address, is_down) in members.into_iter().flatten() {
        let Some(node) = nodes.get(address) else { continue };
        if service.is_some_and(|service| !service.nodes.contains(node)) {
            continue;
        }
        sample.candidates.insert(node.clone());
        if !is_down {
            sample.serving.insert(node.clone());
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A load balancer with two members and a rule that probes this port.
    fn load_balancer(port: u64, downs: [bool; 2], state: &str) -> Value {
        let member = |(index, is_down): (usize, &bool)| {
            let state = if *is_down { "Down" } else { "None" };
            json!({"name": format!("node-{index}"), "properties": {"ipAddress": format!("10.0.0.{index}"), "adminState": state}})
        };
        let members: Vec<Value> = downs.iter().enumerate().map(member).collect();
        json!({"properties": {
            "backendAddressPools": [{"name": "Pool", "properties":
                {"provisioningState": state, "loadBalancerBackendAddresses": members}}],
            "probes": [{"name": "probe", "properties": {"port": port}}],
            "loadBalancingRules": [{"name": "rule", "properties":
                {"backendAddressPool": {"id": "/x/Pool"}, "probe": {"id": "/x/probe"}}}]}})
    }

    /// The violations of samples, each this many seconds after the begin.
    fn violations(endpoints: &[&str], samples: &[(u64, [bool; 2])]) -> usize {
        let samples: Vec<_> = samples
            .iter()
            .map(|&(second, downs)| (second, downs, "Succeeded"))
            .collect();
        violations_in(endpoints, &samples)
    }

    /// The same, with the pool's state.
    fn violations_in(endpoints: &[&str], samples: &[(u64, [bool; 2], &str)]) -> usize {
        let began = Instant::now();
        let service = LocalService {
            name: "local".to_owned(),
            port: 30_000,
            nodes: endpoints.iter().map(|&node| node.to_owned()).collect(),
            changed_at: began,
        };
        let nodes = ["node-0", "node-1"].map(str::to_owned);
        let addresses = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (format!("10.0.0.{index}"), node.clone()));
        let world = World {
            services: vec![service],
            nodes: addresses.collect(),
            changed_at: began,
        };
        let mut observations = Observations::default();
        for (second, downs, state) in samples {
            let now = began + Duration::from_secs(*second);
            observations.sample(&[load_balancer(30_000, *downs, state)], &world, now);
        }
        observations.violations.len()
    }

    #[test]
    fn a_rule_does_not_lose_its_last_backend() {
        let both = ["node-0", "node-1"];
        assert_eq!(violations(&both, &[(20, [false, false]), (21, [true, false])]), 0);
        assert_eq!(violations(&both, &[(20, [true, false]), (21, [true, true])]), 1);
        assert_eq!(violations(&["node-0"], &[(20, [false, false]), (21, [true, false])]), 1);
        assert_eq!(
            violations(&["node-0"], &[(10, [false, false]), (11, [true, false])]),
            0,
            "it has just moved"
        );
        assert_eq!(
            violations(&["node-7"], &[(20, [false, false]), (21, [true, true])]),
            0,
            "it has none"
        );
    }

    #[test]
    fn arm_may_take_back_at_the_end_of_an_operation_what_it_showed_before() {
        let (given_back, down) = ([true, false], [true, true]);
        for (before, after, expected) in [
            ("Updating", "Succeeded", 0),
            ("Updating", "Updating", 1),
            ("Succeeded", "Updating", 1),
            ("Succeeded", "Succeeded", 1),
        ] {
            let samples = [(20, given_back, before), (21, down, after)];
            assert_eq!(violations_in(&["node-1"], &samples), expected, "{before}, then {after}");
        }
    }
}
