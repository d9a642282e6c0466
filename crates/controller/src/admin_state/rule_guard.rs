//! The guard of rules that probe a Service's `healthCheckNodePort`, or its health at headgate, or that have the name of a Service with such a
//! port: such a rule is served only by Nodes with a serving endpoint of that Service in the rule's family, or in each family if it is not known,
//! however many other Nodes the pool has. Pure.
//!
//! Invariants: as long as such a rule has a serving entry, a revocable signal does not take its last one. An entry stays until a
//! read shows another entry in service whose Node is Ready, has no signal, is not about to end by one for `/healthz` alone and serves
//! the rule, or until its own Node serves it no longer. Without an agent a Node serves no rule that probes headgate. Where the serving
//! Nodes are not known, no revocable signal sets an entry `Down` in a pool with a rule that may be such a one. A Node that is about to
//! end is never held back.
//!
//! These holds are not recorded on Nodes, so agents answer 503 as before: rules that probe headgate have other Nodes.

use std::collections::{BTreeMap, BTreeSet};

use headgate_azure::AdminState;
use headgate_core::service::IpFamily;
use headgate_core::telemetry::first_names;

use super::guard::{ClaimedEntry, ends_for_its_agent, is_alive};
use super::plan::{EntryStatus, PlanInputs};
use super::target_states::TargetState;
use crate::local_pools::IPV6_SUFFIX;
use crate::pool::{ClusterNode, NodeMatcher, PoolView, ProbeTarget, Rule};
use crate::service_index::{LocalService, ServiceIndex, Unknown};

/// Ports that cannot be a `healthCheckNodePort`: kube-proxy's, and that of health-probe-proxy in front of it (the mode `shared`).
const SHARED_PROBE_PORTS: [u16; 2] = [10256, 10356];

/// The Services that one message names.
const MAX_SERVICES_NAMED: usize = 4;

/// Why the guard keeps an entry in service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldFor {
    /// Fewer than `adminState.minimumInService` others can serve.
    pub minimum: bool,
    /// The Services, as `NAMESPACE/NAME`, whose rules no other entry serves.
    pub services: BTreeSet<String>,
    /// A rule may need the entry, but the serving Nodes are not known.
    pub unknown: Option<Unknown>,
    /// `adminState.maxNewDown` lets no more entries of the pool go for now.
    pub brake: bool,
}

impl HeldFor {
    /// All reasons of these entries.
    pub(super) fn union<'a>(entries: impl IntoIterator<Item = &'a EntryStatus>) -> Self {
        let mut union = Self::default();
        for entry in entries {
            union.add(&entry.held_for);
        }
        union
    }

    fn add(&mut self, other: &Self) {
        self.minimum |= other.minimum;
        self.services.extend(other.services.iter().cloned());
        self.unknown = self.unknown.or(other.unknown);
        self.brake |= other.brake;
    }

    /// Whether it is known that the entry is needed.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.minimum || !self.services.is_empty()
    }

    /// The same without the first lists of Services, which take a moment.
    pub(super) fn without_listing(self) -> Self {
        let unknown = self.lasting_unknown();
        Self { unknown, ..self }
    }

    fn lasting_unknown(&self) -> Option<Unknown> {
        self.unknown.filter(|unknown| *unknown != Unknown::Listing)
    }

    /// Whether it is for more than the first lists of Services.
    pub(super) fn is_news(&self) -> bool {
        self.is_needed() || self.brake || self.lasting_unknown().is_some()
    }

    /// The reasons, in a phrase.
    #[must_use]
    pub fn reason(&self) -> String {
        let minimum = self.minimum.then(|| "too few others can serve".to_owned());
        let services = (!self.services.is_empty()).then(|| {
            let named = first_names(&self.services, MAX_SERVICES_NAMED);
            format!(
                "no other node in service without a signal has a ready endpoint of {named} in the rule's IP family (externalTrafficPolicy: Local)"
            )
        });
        let unknown = self
            .unknown
            .map(|why| format!("a rule of a Local Service may need it, and {why}"));
        let brake = self.brake.then(|| {
            "adminState.maxNewDown sets no more entries of the pool Down within 5 min, and signals that this leader saw earlier come first"
                .to_owned()
        });
        let reasons: Vec<_> = [minimum, services, unknown, brake].into_iter().flatten().collect();
        reasons.join("; ")
    }
}

/// What the choice is made from.
#[derive(Clone, Copy)]
pub(super) struct RuleGuard<'a> {
    pub(super) pool: &'a PoolView,
    pub(super) inputs: &'a PlanInputs<'a>,
}

/// What a rule's probe needs of a Node.
enum Need<'a> {
    Endpoint(LocalService<'a>),
    /// The same, and an agent, which answers the probe.
    EndpointAndAgent(LocalService<'a>),
    /// A serving endpoint, if the probe is a Service's.
    Unknown(Unknown),
}

impl RuleGuard<'_> {
    /// Adds what rules need to the entries that are held back. `owned` are the entries whose Nodes may have a signal.
    pub(super) fn hold_back(&self, owned: &[ClaimedEntry<'_>], held: &mut BTreeMap<usize, HeldFor>) {
        let Some(services) = self.inputs.guard.services else {
            return;
        };
        let may_be_held = |entry: &&ClaimedEntry<'_>| {
            let node = entry.owner.node;
            let is_out = entry.target == TargetState::Down || self.inputs.targets.is_damped(node, self.inputs.now.mono);
            is_out && !node.is_terminal() && node.excluded.is_none()
        };
        let revocable: Vec<_> = owned.iter().filter(may_be_held).collect();
        if revocable.is_empty() {
            return;
        }
        let (mut needed, mut unknown) = (BTreeMap::new(), None);
        let pool_family = family_of(self.pool);
        for rule in &self.pool.rules {
            let (service, needs_agent) = match self.need(rule, services) {
                Some(Need::Endpoint(service)) => (service, false),
                Some(Need::EndpointAndAgent(service)) => (service, true),
                Some(Need::Unknown(why)) => {
                    unknown = Some(why);
                    continue;
                }
                None => continue,
            };
            let is_named_after = |named: LocalService<'_>| named.name == service.name;
            let family = pool_family.or_else(|| {
                // cloud-provider-azure puts the rules of IPv6 into pools with the suffix.
                let named = services.service_of_rule(&rule.name);
                named.is_some_and(is_named_after).then_some(IpFamily::IPv4)
            });
            let families = IpFamily::ALL.into_iter();
            for family in families.filter(|each| family.is_none_or(|known| known == *each)) {
                let need = needed.entry((service.name, family)).or_insert((service, false));
                need.1 |= needs_agent;
            }
        }
        if let Some(why) = unknown {
            let in_service = revocable
                .iter()
                .filter(|entry| entry.observed != Some(AdminState::Down) && entry.target == TargetState::Down);
            for entry in in_service {
                held.entry(entry.index).or_default().unknown = Some(why);
            }
        }
        let may_lift = self.inputs.interfaces.knows_pool(self.pool);
        for ((name, family), (service, needs_agent)) in needed {
            let lacks_agent = |node: &ClusterNode| needs_agent && node.lacks_agent;
            let serving = revocable.iter().filter_map(|entry| {
                let claimants = entry.owner.claimants.iter();
                let since = claimants
                    .filter_map(|node| service.serves_since(&node.name, family))
                    .min()?;
                let may_serve = entry.may_be_in_service(may_lift) && !lacks_agent(entry.owner.node);
                may_serve.then_some((*entry, since))
            });
            let serving: Vec<_> = serving.collect();
            if serving.is_empty() || self.is_served_by_others(service, family, lacks_agent) {
                continue;
            }
            // What does not end, then what is in service, then what is held back already, then the Node that has served longest;
            // false comes first.
            let preferences = serving.iter().map(|(entry, since)| {
                let node = entry.owner.node;
                let key = (self.pool.id.clone(), node.uid.clone());
                let is_down = entry.observed == Some(AdminState::Down);
                let (is_not_chosen, is_not_held) =
                    (!held.contains_key(&entry.index), !self.inputs.guard.held.contains(&key));
                let order = (
                    ends_for_its_agent(node),
                    is_down,
                    is_not_chosen,
                    is_not_held,
                    !node.ready,
                );
                (order, *since, node.name.as_str(), entry.index)
            });
            let chosen = preferences.min().map(|(.., index)| index);
            if let Some(index) = chosen {
                held.entry(index).or_default().services.insert(name.to_string());
            }
        }
    }

    fn is_targeted(&self, node: &ClusterNode) -> bool {
        self.inputs.targets.target_state(node, self.inputs.now.mono) == TargetState::Down
    }

    /// Whether a rule needs more of a Node than that it works.
    fn need<'s>(&self, rule: &Rule, services: &'s ServiceIndex) -> Option<Need<'s>> {
        let probe = rule.probe.as_ref()?;
        // An annotation may choose another port of the Service than `healthCheckNodePort`.
        let by_name = services.service_of_rule(&rule.name);
        let (service, asks_agent) = match ProbeTarget::from_rule(rule, self.inputs.guard.settings.health_port) {
            ProbeTarget::Elsewhere => (services.service_with_port(probe.port).or(by_name), false),
            ProbeTarget::PortOnly => match probe.service() {
                Some((namespace, name)) => (services.service(namespace, name), true),
                None => (by_name, true),
            },
            // A Node with a signal fails such a probe whatever its admin state.
            ProbeTarget::Headgate | ProbeTarget::NoProbe => return None,
        };
        if let Some(why) = services.unknown() {
            let is_other = ["tcp", "https"]
                .iter()
                .any(|known| probe.protocol.eq_ignore_ascii_case(known));
            let may_be_local = if asks_agent {
                probe.service().is_some()
            } else {
                !is_other && !SHARED_PROBE_PORTS.contains(&probe.port)
            };
            return (may_be_local || by_name.is_some()).then_some(Need::Unknown(why));
        }
        service.map(if asks_agent {
            Need::EndpointAndAgent
        } else {
            Need::Endpoint
        })
    }

    /// Whether an entry is in service whose Node has no signal and serves the Service in this family.
    fn is_served_by_others(
        &self,
        service: LocalService<'_>,
        family: IpFamily,
        lacks_agent: impl Fn(&ClusterNode) -> bool,
    ) -> bool {
        let can_serve = |name: &str| {
            let node = self.inputs.targets.nodes.by_name(name);
            node.is_some_and(|node| {
                is_alive(node) && !ends_for_its_agent(node) && !lacks_agent(node) && !self.is_targeted(node)
            })
        };
        // Each entry needs a lookup.
        let able: BTreeSet<&str> = service.nodes(family).filter(|name| can_serve(name)).collect();
        !able.is_empty()
            && self.pool.entries.iter().any(|entry| {
                let is_up = matches!(entry.admin_state, Some(AdminState::None | AdminState::Up));
                let owner = || self.inputs.owner(entry);
                is_up
                    && owner().is_some_and(|owner| {
                        let mut claimants = owner.claimants.iter();
                        claimants.any(|node| able.contains(node.name.as_str()))
                    })
            })
    }
}

/// The family of a pool's entries: of the first address; IPv6 for a pool of interfaces with cloud-provider-azure's name of such a one. `None` if
/// neither tells it.
fn family_of(pool: &PoolView) -> Option<IpFamily> {
    let address = pool.entries.iter().find_map(|entry| match entry.matcher {
        NodeMatcher::Address(address) => Some(IpFamily::from(address)),
        _ => None,
    });
    let is_ipv6 = || pool.id.name().to_ascii_lowercase().ends_with(IPV6_SUFFIX);
    address.or_else(|| is_ipv6().then_some(IpFamily::IPv6))
}

#[cfg(test)]
mod tests;
