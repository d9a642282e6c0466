//! The planner of one load balancer: plans each observed state, with the due members of its pools, records intents in the ledger, and
//! publishes the status that events, metrics and the ledger follow from.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use headgate_azure::{AdminState, ArmError, PoolId};
use headgate_core::changed;
use headgate_core::clock::Clock;
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerStage, LedgerStore};
use super::plan::{EntryStatus, Plan, PlanInputs, Policy, PoolCounts, plan};
use super::target_states::TargetStates;
use crate::local_pools::{Members, join_members};
use crate::pool::{
    AdminStateChange, EntryKey, IntentNotRecorded, InterfaceCache, LastError, LoadBalancerView, Observation, Outcome,
    Planner, PoolEdit, PoolView, UnreadablePool,
};
use crate::service_index::ServiceIndex;

/// What the last plan of a load balancer showed.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadBalancerStatus {
    /// The generation of the target states that the plan was made from; `None` before the first plan. Plans made while
    /// interfaces still have to be looked up do not count: their entries may belong to any Node.
    pub(super) planned_generation: Option<u64>,
    /// When the read or list was sent that the plan was made from.
    pub(super) observed_at: Option<Instant>,
    /// What it showed.
    pub(super) view: Option<Arc<LoadBalancerView>>,
    /// Whether every network interface in it has been looked up.
    pub(super) covers_interfaces: bool,
    /// When the oldest of the answers was requested that an interface in a used pool has no machine.
    pub(super) no_machine_since: Option<Instant>,
    /// The entries with a target state or a ledger entry; shared, because each report has a copy of the status.
    pub(super) entries: Arc<[EntryStatus]>,
    /// The pools that a load-balancing rule uses.
    pub(super) pools: Vec<PoolCounts>,
    /// Changes that are due and not read back yet.
    pub(super) pending_changes: usize,
    /// Changes that ARM has not accepted yet.
    pub(super) unsent_changes: usize,
    /// Pools with entries whose Node is unknown, because an interface cannot be read.
    pub(super) unreadable_pools: Vec<UnreadablePool>,
    /// The entries that are `Down`, and in the ledger, and whose Node is unknown, because their interface cannot be read.
    pub(super) unreadable_entries: Vec<UnreadableEntry>,
    /// What the last attempt to write failed with.
    pub(super) last_error: Option<LastError>,
}

/// An entry that is `Down` and in the ledger, and whose Node is unknown.
#[derive(Clone, Debug)]
pub(super) struct UnreadableEntry {
    pub(super) pool: PoolId,
    pub(super) key: EntryKey,
    /// Why its interface cannot be read.
    pub(super) error: LastError,
}

impl LoadBalancerStatus {
    /// Whether the plan was made from this generation of the target states or a newer one.
    pub(super) fn has_planned(&self, generation: u64) -> bool {
        self.planned_generation.is_some_and(|planned| planned >= generation)
    }

    /// ARM has accepted so many changes.
    fn accept(&mut self, changes: usize) {
        self.unsent_changes = self.unsent_changes.saturating_sub(changes);
        // The error may be about what is not sent yet, and acceptance says nothing about a write that ARM ignores.
        let is_ignored = self.last_error.as_ref().is_some_and(LastError::is_ignored_write);
        if !is_ignored && self.unsent_changes == 0 {
            self.last_error = None;
        }
    }
}

/// The planner of one load balancer.
pub(super) struct LoadBalancerPlanner {
    pub(super) targets: watch::Receiver<Option<Arc<TargetStates>>>,
    pub(super) ledger: LedgerStore,
    pub(super) policy: Policy,
    /// The names of the only Nodes whose entries change; `None` for all.
    pub(super) only_nodes: Option<Arc<BTreeSet<String>>>,
    /// Whether the load balancer is the cluster's.
    pub(super) is_configured: bool,
    pub(super) guard: GuardSettings,
    /// Which Nodes serve the rules of Local Services.
    pub(super) services: watch::Receiver<Arc<ServiceIndex>>,
    /// The entries that the last plan held back.
    pub(super) held: HeldEntries,
    pub(super) clock: Clock,
    /// The due members of its pools; `None` if they are not updated.
    pub(super) members: Option<Members>,
    pub(super) status: watch::Sender<LoadBalancerStatus>,
    /// Notified with each new status; one for all load balancers.
    pub(super) status_changed: Arc<Notify>,
    /// Undoes the ledger changes of the write under way.
    pub(super) undo: Vec<LedgerChange>,
    /// The generation of the target states that the last plan was made from, of whatever interfaces it knew.
    pub(super) last_generation: Option<u64>,
    /// That of holds; `None` if the last plan did not choose by holds.
    pub(super) last_hold_generation: Option<u64>,
    /// The ledger that the last plan was made from, if the brake held something back: what it has given back since makes room.
    pub(super) braked_by: Option<Arc<Ledger>>,
}

/// The ledger changes before a write, and those that undo them.
pub(super) struct Intents {
    pub(super) changes: Vec<LedgerChange>,
    pub(super) undo: Vec<LedgerChange>,
}

impl LoadBalancerPlanner {
    fn update_status(&self, update: impl FnOnce(&mut LoadBalancerStatus)) {
        self.status.send_modify(update);
        self.status_changed.notify_one();
    }

    fn plan_view(&self, view: &LoadBalancerView, targets: &TargetStates, interfaces: &InterfaceCache) -> Plan {
        let services = &**self.services.borrow();
        let inputs = PlanInputs {
            interfaces,
            targets,
            ledger: &self.ledger.ledger(),
            policy: self.policy,
            guard: GuardInputs {
                settings: &self.guard,
                held: &self.held,
                services: Some(services),
            },
            is_configured: self.is_configured,
            now: self.clock.now(),
        };
        let mut plan = plan(view, &inputs);
        if let Some(only) = &self.only_nodes {
            plan.retain_changes(|node| only.contains(&node.name));
        }
        plan
    }

    /// The admin states that are due in a pool that is not written yet.
    fn plan_pool(&self, pool: PoolView, targets: &TargetStates, interfaces: &InterfaceCache) -> Vec<AdminStateChange> {
        let view = LoadBalancerView {
            id: pool.id.load_balancer().clone(),
            etag: None,
            is_busy: false,
            is_assembled: false,
            pools: vec![Arc::new(pool)],
        };
        let plan = self.plan_view(&view, targets, interfaces);
        plan.edits.into_iter().flat_map(|edit| edit.admin_states).collect()
    }
}

impl Planner for LoadBalancerPlanner {
    async fn changed(&mut self) {
        let mut makes_room = pin!(ledger_changed(self.ledger.subscribe(), self.braked_by.clone()));
        loop {
            let is_about_nodes = tokio::select! {
                () = &mut makes_room => return,
                () = changed(&mut self.targets) => true,
                () = changed(&mut self.services) => false,
                () = members_changed(&mut self.members) => return,
            };
            let targets = self.targets.borrow();
            let targets = targets.as_ref();
            // What serves counts beside a signal only.
            let is_due = if is_about_nodes {
                is_plan_due(
                    targets.map(Arc::as_ref),
                    self.last_generation,
                    self.last_hold_generation,
                )
            } else {
                targets.is_some_and(|targets| targets.has_signal_periods())
            };
            if is_due {
                return;
            }
        }
    }

    fn plan(&mut self, observation: &Observation, interfaces: &InterfaceCache) -> Vec<PoolEdit> {
        let Some(targets) = self.targets.borrow_and_update().clone() else {
            return Vec::new();
        };
        self.services.mark_unchanged();
        self.last_generation = Some(targets.generation);
        let (view, ledger) = (&*observation.view, self.ledger.ledger());
        let plan = self.plan_view(view, &targets, interfaces);
        self.braked_by = plan.entries.iter().any(|entry| entry.held_for.brake).then_some(ledger);
        let changes = plan.change_count();
        // Where the guard keeps a minimum in service it prefers Nodes with a hold; nothing else of a plan reads holds.
        let has_choice = plan.entries.iter().any(|entry| entry.held_for.minimum);
        self.last_hold_generation = has_choice.then_some(targets.hold_generation);
        let (is_complete, unreadable_pools) = (interfaces.covers(view), interfaces.unreadable_pools(view));
        let unreadable_entries = unreadable_entries(view, &self.ledger.ledger(), interfaces);
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        self.held = held.map(|entry| (entry.pool.clone(), entry.node.uid.clone())).collect();
        let Plan {
            mut edits,
            entries,
            pools,
        } = plan;
        self.update_status(|status| {
            if is_complete {
                status.planned_generation = Some(targets.generation);
            }
            status.observed_at = Some(observation.requested_at);
            status.view = Some(Arc::clone(&observation.view));
            status.covers_interfaces = is_complete;
            status.no_machine_since = interfaces.no_machine_since(view);
            status.unreadable_pools = unreadable_pools;
            status.unreadable_entries = unreadable_entries;
            status.entries = entries.into();
            status.pools = pools;
            status.pending_changes = changes;
            status.unsent_changes = changes;
        });
        let due = self.members.as_mut().map(|members| members.due(view));
        for (pool, mut members) in due.unwrap_or_default() {
            // Their plans may choose, too.
            self.last_hold_generation = Some(targets.hold_generation);
            let edit = edits.iter_mut().find(|edit| edit.pool == pool.id);
            let as_read = edit.as_ref().map_or(&[][..], |edit| edit.admin_states.as_slice());
            join_members(&pool, as_read, &mut members, |pool| {
                self.plan_pool(pool, &targets, interfaces)
            });
            match edit {
                Some(edit) => edit.members = Some(members),
                None => edits.push(PoolEdit {
                    pool: pool.id.clone(),
                    admin_states: Vec::new(),
                    members: Some(members),
                }),
            }
        }
        edits
    }

    async fn record_intent(&mut self, edit: &PoolEdit, added_downs: &[EntryKey]) -> Result<(), IntentNotRecorded> {
        self.undo.clear();
        if self.members.as_mut().is_some_and(|members| !members.take(edit)) {
            return Err(IntentNotRecorded::Outdated);
        }
        if !edit.sets_down() && added_downs.is_empty() {
            // The ledger has these entries already.
            return Ok(());
        }
        let mut undo = Vec::new();
        let recorded = async {
            // What is recorded already was perhaps only found.
            self.ledger.claim().await?;
            let intents = intents(&self.ledger.ledger(), edit, added_downs, self.clock.now().wall);
            self.ledger.apply(intents.changes);
            undo = intents.undo;
            self.ledger.flush().await
        };
        if let Err(error) = recorded.await {
            self.ledger.apply(undo);
            if let Some(members) = &mut self.members {
                members.give_back();
            }
            return Err(IntentNotRecorded::Ledger(error.to_string()));
        }
        self.undo = undo;
        Ok(())
    }

    fn handle_outcome(&mut self, outcome: Outcome<'_>) {
        if let Some(members) = &mut self.members {
            members.handle_outcome(outcome);
        }
        match outcome {
            // The `Down`s of an edit of members, if any, show in the next read.
            Outcome::Accepted(edit) => self.update_status(|status| status.accept(edit.admin_states.len())),
            // From now on a `Down` of these entries is another writer's.
            Outcome::Written(_, Err(error)) if has_no_effect(error) => self.ledger.apply(self.undo.drain(..)),
            Outcome::AttemptFailed(Some(error)) | Outcome::Ignored(error) => {
                self.update_status(|status| status.last_error = Some(error.clone()));
            }
            Outcome::Recovered => self.update_status(|status| status.last_error = None),
            _ => {}
        }
    }
}

/// Whether a plan from these target states may differ from the last one. What headgate writes on a Node leads to no other plan, unless holds
/// decided.
fn is_plan_due(
    targets: Option<&TargetStates>,
    last_generation: Option<u64>,
    last_hold_generation: Option<u64>,
) -> bool {
    let hold_generation = targets.map(|targets| targets.hold_generation);
    targets.map(|targets| targets.generation) != last_generation
        || last_hold_generation.is_some() && last_hold_generation != hold_generation
}

async fn members_changed(members: &mut Option<Members>) {
    match members {
        Some(members) => members.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until the ledger differs from this one; without one for ever.
async fn ledger_changed(mut ledger: watch::Receiver<Arc<Ledger>>, before: Option<Arc<Ledger>>) {
    let Some(before) = before else {
        return std::future::pending().await;
    };
    if ledger.wait_for(|ledger| **ledger != *before).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn unreadable_entries(view: &LoadBalancerView, ledger: &Ledger, interfaces: &InterfaceCache) -> Vec<UnreadableEntry> {
    let entries = view
        .pools
        .iter()
        .flat_map(|pool| pool.entries.iter().map(move |entry| (&pool.id, entry)));
    let down = entries.filter(|(_, entry)| entry.admin_state == Some(AdminState::Down));
    let unreadable = down.filter_map(|(pool, entry)| {
        let error = interfaces.lookup_error(entry)?;
        let (pool, key) = (pool.clone(), entry.key.clone()?);
        ledger.entry(&pool, &key)?;
        Some(UnreadableEntry { pool, key, error })
    });
    unreadable.collect()
}

/// The intents of an edit: its `Down`s that are not in the ledger.
pub(super) fn intents(ledger: &Ledger, edit: &PoolEdit, added_downs: &[EntryKey], now: Timestamp) -> Intents {
    let downs = edit.admin_states.iter().filter(|change| change.to == AdminState::Down);
    let downs = downs.map(|change| &change.key).chain(added_downs);
    let intents = downs.filter_map(|key| {
        let known = ledger.entry(&edit.pool, key);
        // A `Down` that was written and lost is the same one, written again.
        if known.is_some_and(|entry| entry.stage != LedgerStage::Restored) {
            return None;
        }
        let intended = LedgerEntry::new(LedgerStage::Intended, now);
        let change = |entry| LedgerChange::new(&edit.pool, key, entry);
        Some((change(Some(intended)), change(known)))
    });
    let (changes, undo) = intents.unzip();
    Intents { changes, undo }
}

/// Whether a write that failed with this error had no effect and will have none.
pub(super) fn has_no_effect(error: &ArmError) -> bool {
    match error {
        ArmError::ErrorResponse { status, .. } => status.is_client_error() && !error.may_have_been_accepted(),
        ArmError::Busy(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
