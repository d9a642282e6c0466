//! The pools of each Local Service among the load balancers that were read from ARM.
//!
//! Invariants: a pool is found, never created; a pool that no load-balancing rule uses is an orphan and belongs to no one;
//! a pool is updated for one Service only. Two Services can have one pool name (`a/b-c` and `a-b/c`, or the IPv4 pool of
//! `x/foo-ipv6` and the IPv6 pool of `x/foo`); the base names in the rules then decide. Where both use one pool,
//! neither is updated. The cluster's own pool can have such a name, too: a pool with a rule of any other Service is not updated.
//!
//! Source: cloud-provider-azure keeps this in memory (`localServiceNameToServiceInfoMap`); here it is derived from ARM.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headgate_core::service::{IpFamily, NamespacedName, Service};

use crate::local_pools::coexistence::PreConfigured;
use crate::local_pools::difference::{Entry, EntryAddress};
use crate::local_pools::names::{base_name, is_rule_of, pool_name};
use crate::local_pools::operation::{OperationKey, PoolKey};
use crate::pool::{Observation, PoolView};

/// A pool of a Local Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePool {
    /// The Service and the pool.
    pub key: OperationKey,
    /// The family of its members.
    pub family: IpFamily,
}

/// Why a Local Service has no pool to update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolUnavailable {
    /// cloud-controller-manager has not made it yet.
    #[error("no load balancer has the backend pool {0}")]
    NotFound(String),
    /// Only orphans have the name.
    #[error("no load-balancing rule uses the backend pool {0}")]
    Unused(String),
    /// Only pools with rules of other Services have the name.
    #[error("every backend pool {0} is used by rules of another Service with the same pool name")]
    UsedByOther(String),
    /// Several have the name, and no rule carries the Service's base name.
    #[error("the load balancers {load_balancers} have a backend pool {pool}, and no rule shows which is the Service's")]
    Ambiguous {
        /// The name that the pools have in common.
        pool: String,
        /// The names of the load balancers, separated by commas.
        load_balancers: String,
    },
    /// Another Service uses the same pool.
    #[error("the backend pool {pool} also belongs to {others}; rename one of the Services")]
    Collision {
        /// Load balancer and pool.
        pool: PoolKey,
        /// The other Services, separated by commas.
        others: String,
    },
    /// Its members are network interfaces, which are written elsewhere.
    #[error("the backend pool {0} has entries without an IP address; only pools of IP addresses are updated")]
    NetworkInterfaces(PoolKey),
    /// `preConfiguredBackendPoolLoadBalancerTypes` leaves its members to others.
    #[error("preConfiguredBackendPoolLoadBalancerTypes leaves the members of the backend pool {0} to others")]
    PreConfigured(PoolKey),
}

/// A Local Service without a pool of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementSkip {
    /// The namespace and name of the Service.
    pub service: NamespacedName,
    /// The family of the pool.
    pub family: IpFamily,
    /// Why the pool is not updated.
    pub reason: PoolUnavailable,
}

/// The pools of all Local Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pools: BTreeMap<NamespacedName, Vec<ServicePool>>,
    skipped: Vec<PlacementSkip>,
}

impl Placement {
    /// The pools of a Service. Two of one family mean that cloud-controller-manager is moving it between load balancers.
    pub fn pools(&self, service: &NamespacedName) -> &[ServicePool] {
        self.pools.get(service).map_or(&[], Vec::as_slice)
    }

    /// What was skipped, with reasons.
    pub fn skipped(&self) -> &[PlacementSkip] {
        &self.skipped
    }

    /// Whether the Service still has this pool.
    pub fn contains(&self, key: &OperationKey) -> bool {
        self.pools(&key.service).iter().any(|pool| pool.key == *key)
    }
}

/// A Service and a family that have a pool name.
struct Claimant<'a> {
    service: &'a Service,
    family: IpFamily,
    base_name: Option<String>,
}

impl Claimant<'_> {
    fn has_rule(&self, pool: &PoolView) -> bool {
        let base = self.base_name.as_deref();
        base.is_some_and(|base| pool.rules.iter().any(|rule| is_rule_of(&rule.name, base)))
    }

    fn skip(&self, reason: PoolUnavailable) -> PlacementSkip {
        PlacementSkip {
            service: self.service.name.clone(),
            family: self.family,
            reason,
        }
    }
}

/// A pool that was found under a name.
struct Candidate<'a> {
    key: PoolKey,
    pool: &'a PoolView,
}

impl Candidate<'_> {
    /// The Services whose rules use the pool, of those with these base names, which have no dash.
    fn owners<'a>(&self, owners: &HashMap<String, &'a NamespacedName>) -> impl Iterator<Item = &'a NamespacedName> {
        let base_names = self.pool.rules.iter().filter_map(|rule| rule.name.split('-').next());
        base_names.filter_map(|base| owners.get(&base.to_ascii_lowercase()).copied())
    }
}

/// Finds the pools of all Local Services.
pub fn place<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    load_balancers: &[Observation],
    pre_configured: PreConfigured,
) -> Placement {
    let mut by_name: HashMap<String, Vec<Candidate<'_>>> = HashMap::new();
    for load_balancer in load_balancers {
        for pool in &load_balancer.view.pools {
            let key = PoolKey::new(load_balancer.view.id.name(), pool.id.name());
            by_name
                .entry(key.pool().to_owned())
                .or_default()
                .push(Candidate { key, pool });
        }
    }
    let mut claimants: BTreeMap<String, Vec<Claimant<'_>>> = BTreeMap::new();
    let mut owners = HashMap::new();
    for service in services {
        owners.extend(base_name(&service.uid).map(|base| (base, &service.name)));
        if !service.has_local_pools() {
            continue;
        }
        for family in service.pool_families() {
            claimants
                .entry(pool_name(&service.name, *family))
                .or_default()
                .push(Claimant {
                    service,
                    family: *family,
                    base_name: base_name(&service.uid),
                });
        }
    }
    let mut placement = Placement::default();
    for (name, claimants) in &claimants {
        let candidates = by_name.get(name).map_or(&[][..], Vec::as_slice);
        placement.add(name, claimants, candidates, &owners, pre_configured);
    }
    placement
}

impl Placement {
    /// Decides about all Services that have one pool name.
    fn add(
        &mut self,
        name: &str,
        claimants: &[Claimant<'_>],
        candidates: &[Candidate<'_>],
        owners: &HashMap<String, &NamespacedName>,
        pre_configured: PreConfigured,
    ) {
        let choices: Vec<_> = claimants
            .iter()
            .map(|claimant| choose(name, claimant, claimants, candidates))
            .collect();
        for (place, (claimant, choice)) in claimants.iter().zip(&choices).enumerate() {
            let chosen = match choice {
                Ok(chosen) => chosen,
                Err(reason) => {
                    self.skipped.push(claimant.skip(reason.clone()));
                    continue;
                }
            };
            for candidate in chosen {
                let others = choices
                    .iter()
                    .zip(claimants)
                    .enumerate()
                    .filter(|(other, (choice, _))| {
                        let is_chosen =
                            |choice: &Vec<&Candidate<'_>>| choice.iter().any(|other| other.key == candidate.key);
                        *other != place && choice.as_ref().is_ok_and(is_chosen)
                    });
                let others = others.map(|(_, (_, other))| &other.service.name);
                let others = others.chain(
                    candidate
                        .owners(owners)
                        .filter(|owner| **owner != claimant.service.name),
                );
                let others: BTreeSet<_> = others.map(ToString::to_string).collect();
                match check(candidate, others, pre_configured) {
                    Err(reason) => self.skipped.push(claimant.skip(reason)),
                    Ok(()) => self
                        .pools
                        .entry(claimant.service.name.clone())
                        .or_default()
                        .push(ServicePool {
                            key: OperationKey {
                                service: claimant.service.name.clone(),
                                pool: candidate.key.clone(),
                            },
                            family: claimant.family,
                        }),
                }
            }
        }
    }
}

/// The pools with rules that carry the Service's base name; otherwise the only one that a rule uses and that carries the base
/// name of no other Service of this pool name.
fn choose<'a, 'b>(
    name: &str,
    claimant: &Claimant<'_>,
    claimants: &[Claimant<'_>],
    candidates: &'a [Candidate<'b>],
) -> Result<Vec<&'a Candidate<'b>>, PoolUnavailable> {
    let own: Vec<_> = candidates
        .iter()
        .filter(|candidate| claimant.has_rule(candidate.pool))
        .collect();
    if !own.is_empty() {
        return Ok(own);
    }
    let used = candidates.iter().filter(|candidate| !candidate.pool.rules.is_empty());
    let used: Vec<_> = used
        .filter(|candidate| !claimants.iter().any(|other| other.has_rule(candidate.pool)))
        .collect();
    match used.as_slice() {
        [_] => Ok(used),
        [] if candidates.iter().any(|candidate| candidate.pool.rules.is_empty()) => {
            Err(PoolUnavailable::Unused(name.to_owned()))
        }
        [] if candidates.is_empty() => Err(PoolUnavailable::NotFound(name.to_owned())),
        [] => Err(PoolUnavailable::UsedByOther(name.to_owned())),
        several => {
            let names: Vec<_> = several.iter().map(|candidate| candidate.key.load_balancer()).collect();
            Err(PoolUnavailable::Ambiguous {
                pool: name.to_owned(),
                load_balancers: names.join(", "),
            })
        }
    }
}

/// Whether a pool that was chosen may be updated.
fn check(
    candidate: &Candidate<'_>,
    others: BTreeSet<String>,
    pre_configured: PreConfigured,
) -> Result<(), PoolUnavailable> {
    let key = || candidate.key.clone();
    if !others.is_empty() {
        return Err(PoolUnavailable::Collision {
            pool: key(),
            others: others.into_iter().collect::<Vec<_>>().join(", "),
        });
    }
    if pre_configured.covers(candidate.key.load_balancer()) {
        return Err(PoolUnavailable::PreConfigured(key()));
    }
    let mut entries = candidate.pool.entries.iter();
    if entries.any(|entry| Entry::of(entry).address == EntryAddress::Missing) {
        return Err(PoolUnavailable::NetworkInterfaces(key()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
