//! The load balancers that the ledger names and no list shows: read by their ids, so that headgate's `Down` there is given back,
//! and so that a ledger entry ends only on proof (docs/dev/decisions.md 52).
//!
//! A load balancer is missing from a list if it was deleted, and also if `azure.json` or `azure.clusterName` names others than
//! before. What is read here is never set `Down`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{AdminState, ArmClient, LoadBalancerId, PoolId};
use headgate_core::lower_case;
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::last_reads::PlannedLoadBalancer;
use super::ledger::{Ledger, LedgerAges, LedgerStore, Observation, ObservedState};
use crate::pool::{ListScope, Listing, read_by_id};

/// From one round of reads to the next: each list starts one, and lists may follow each other quickly.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(5);

/// The load balancers to read by id: those of the ledger that the last list does not show.
///
/// One that is configured may merely not be listed yet, so it is read only if a list has succeeded and no newer one failed.
fn missing_load_balancers(ledger: &Ledger, scope: &ListScope, listing: &Listing) -> BTreeSet<LoadBalancerId> {
    let is_list_valid = listing.requested_at.is_some() && listing.last_error.is_none();
    let ids = ledger.load_balancers().into_iter();
    ids.filter(|id| !listing.load_balancers.contains_key(id) && (is_list_valid || !scope.contains(id)))
        .collect()
}

/// Reads the missing load balancers after each list and publishes them. Ends when the sender of `listings` is dropped.
pub(super) async fn read_recorded(
    term: i32,
    arm: ArmClient,
    scope: ListScope,
    ledger: LedgerStore,
    mut listings: watch::Receiver<Arc<Listing>>,
    recorded: watch::Sender<Arc<Listing>>,
) {
    loop {
        let present = ledger.ledger();
        let missing = missing_load_balancers(&present, &scope, &listings.borrow_and_update());
        let previous = Arc::clone(&recorded.borrow());
        let started_at = Instant::now();
        if !missing.is_empty() {
            let span = ReconcileSpan::start(Reconciled::Listing, || Reconcile {
                term: Some(term),
                ..Reconcile::default()
            });
            let pools = present.pool_ids();
            let read = span.run(read_by_id(&arm, missing, &pools, &previous)).await;
            recorded.send_replace(Arc::new(read));
        } else if previous.requested_at.is_some() {
            recorded.send_replace(Arc::default());
        }
        sleep(MIN_READ_INTERVAL.saturating_sub(started_at.elapsed())).await;
        if listings.changed().await.is_err() {
            return;
        }
    }
}

/// Reads once the load balancers that the ledger names and this list does not show.
pub async fn read_recorded_once(arm: &ArmClient, scope: &ListScope, ledger: &Ledger, listing: &Listing) -> Listing {
    let missing = missing_load_balancers(ledger, scope, listing);
    read_by_id(arm, missing, &ledger.pool_ids(), &Listing::default()).await
}

/// What lists and reads prove about the pool entries of the ledger.
///
/// While lists fail nothing counts as proof: what the last one showed may be long ago.
pub(super) struct Evidence<'a> {
    ages: &'a LedgerAges,
    listing: &'a Listing,
    recorded: &'a Listing,
    /// By pool, in lower case, and key.
    states: HashMap<String, HashMap<&'a str, Option<AdminState>>>,
    /// The load balancers whose plans know which Node each entry belongs to.
    planned: BTreeSet<&'a LoadBalancerId>,
    /// The keys of the entries of Nodes in these, by pool, in lower case.
    owned: HashMap<String, HashSet<&'a str>>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(
        listing: &'a Listing,
        recorded: &'a Listing,
        load_balancers: &'a [PlannedLoadBalancer],
        ages: &'a LedgerAges,
    ) -> Self {
        let mut states: HashMap<_, HashMap<_, _>> = HashMap::new();
        // What the list shows is newer.
        let views = recorded.load_balancers.values().chain(listing.load_balancers.values());
        for pool in views.flat_map(|view| &view.pools) {
            let entries = pool.entries.iter();
            let entries = entries.filter_map(|entry| Some((entry.key.as_ref()?.as_str(), entry.admin_state)));
            states.insert(lower_case(&pool.id.to_string()), entries.collect());
        }
        let planned = load_balancers.iter().filter(|one| one.status.covers_interfaces);
        let mut owned: HashMap<_, HashSet<_>> = HashMap::new();
        let entries = planned.clone().map(|one| &one.status.entries);
        // The entries are ordered by pool, so the name of each pool is made once.
        for entries in entries.flat_map(|entries| entries.chunk_by(|one, other| one.pool == other.pool)) {
            let keys = entries.iter().map(|entry| entry.key.as_str());
            owned.extend(
                entries
                    .first()
                    .map(|first| (lower_case(&first.pool.to_string()), keys.collect())),
            );
        }
        Self {
            ages,
            listing,
            recorded,
            states,
            planned: planned.map(|one| &one.id).collect(),
            owned,
        }
    }

    /// What is proved about the pool entry with this key; `None` while nothing is.
    pub(super) fn observe(&self, pool: &str, key: &str) -> Option<Observation> {
        if self.listing.last_error.is_some() {
            return None;
        }
        let parsed = PoolId::parse(pool).ok();
        let load_balancer = parsed.as_ref().map(PoolId::load_balancer);
        let requested_at = match load_balancer {
            Some(load_balancer) => self.shown_at(load_balancer),
            // Not the name of a pool, so no pool has such an entry.
            None => self.listing.requested_at,
        }?;
        let is_nodes = || {
            let is_planned = load_balancer.is_some_and(|load_balancer| self.planned.contains(load_balancer));
            !is_planned || self.owned.get(pool).is_some_and(|keys| keys.contains(key))
        };
        let state = match self.states.get(pool).and_then(|states| states.get(key)) {
            Some(Some(AdminState::Down)) => ObservedState::Down,
            Some(_) if is_nodes() => ObservedState::NotDown,
            Some(_) | None => ObservedState::Absent,
        };
        Some(Observation {
            state,
            known_for: requested_at.saturating_duration_since(self.ages.since(pool, key)?),
        })
    }

    /// When the request was sent that showed the load balancer, or that it does not exist.
    fn shown_at(&self, id: &LoadBalancerId) -> Option<Instant> {
        let sources = [self.listing, self.recorded];
        let source = sources
            .into_iter()
            .find(|source| source.load_balancers.contains_key(id) || source.deleted.contains(id));
        source?.requested_at
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::ErrorClass;
    use headgate_core::clock::Clock;

    use super::super::fixtures::{ledger, listing, node, plan_inputs, planned, pool_id, status, target_states, view};
    use super::super::ledger::LedgerStage;
    use super::super::plan::plan;
    use super::super::planner::LoadBalancerStatus;
    use super::*;
    use crate::pool::{LastError, ManagedLoadBalancers};

    #[test]
    fn load_balancer_is_read_by_id_if_the_list_lacks_it_or_it_is_another_clusters() {
        let ledger = ledger(&[("p", 1, LedgerStage::Down)]);
        let id = pool_id("p").load_balancer().clone();
        let error = LastError::new(ErrorClass::Retriable, "ServiceUnavailable", String::new(), None);
        let shown = [(id.clone(), Arc::new(view(&[])))];
        for (cluster, is_listed, has_failed, is_shown, is_read) in [
            ("lb", true, false, false, true),
            ("lb", true, false, true, false),
            ("lb", true, true, false, false),
            ("lb", false, false, false, false),
            ("other", false, false, false, true),
            ("other", true, true, false, true),
            ("other", true, false, true, false),
        ] {
            let scope = ListScope {
                group: id.group().clone(),
                managed: ManagedLoadBalancers::new([cluster]),
            };
            let listing = Listing {
                requested_at: is_listed.then(Instant::now),
                last_error: has_failed.then(|| error.clone()),
                load_balancers: shown.iter().filter(|_| is_shown).cloned().collect(),
                ..Listing::default()
            };
            let missing = missing_load_balancers(&ledger, &scope, &listing);
            assert_eq!(missing.contains(&id), is_read, "{cluster} {listing:?}");
        }
    }

    #[test]
    fn what_is_in_service_is_absent_where_a_plan_knows_that_it_is_no_nodes() {
        let now = Clock::System.now();
        let recorded = ledger(&[1, 2, 3, 4].map(|number| ("p", number, LedgerStage::Down)));
        let mut ages = LedgerAges::default();
        ages.observe(&Arc::new(recorded.clone()), now.mono);
        let (listed, targets) = (
            view(&[("p", &[(1, "None"), (2, "None"), (3, "Down")], true)]),
            target_states(&[node(1, &[])], now),
        );
        for (is_planned, of_no_node) in [(true, ObservedState::Absent), (false, ObservedState::NotDown)] {
            let planned = [planned(LoadBalancerStatus {
                covers_interfaces: is_planned,
                ..status(plan(&listed, &plan_inputs(&targets, &recorded, now)), &targets)
            })];
            let listing = listing(now.mono, &[&listed]);
            let nothing = Listing::default();
            let evidence = Evidence::new(&listing, &nothing, &planned, &ages);
            let pool = pool_id("p").to_string().to_ascii_lowercase();
            let states = [1, 2, 3, 4].map(|number| evidence.observe(&pool, &format!("10.0.0.{number}")).unwrap().state);
            let expected = [
                ObservedState::NotDown,
                of_no_node,
                ObservedState::Down,
                ObservedState::Absent,
            ];
            assert_eq!(states, expected, "{is_planned}");
        }
    }
}
