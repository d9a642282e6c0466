//! The editor of one load balancer's admin states: plans each observed state, records intents in the ledger, and publishes
//! the status that events, metrics and the ledger follow from.

use std::sync::Arc;

use headgate_azure::AdminState;
use headgate_clock::Clock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::ledger::{LedgerChange, LedgerEntry, LedgerStage, LedgerStore};
use super::plan::{EntryStatus, Plan, PlanInputs, Policy, PoolCounts, plan};
use super::target_states::TargetStates;
use crate::local_service::ServiceIndex;
use crate::pool::{
    AdminStateChange, Editor, EntryKey, IntentNotRecorded, InterfaceCache, LastError, LoadBalancerView, PoolEdit,
    PoolView, UnreadablePool, WriteOutcome,
};

/// What the last plan of a load balancer showed.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadBalancerStatus {
    /// The generation of the target states that the plan was made from; `None` before the first plan. Plans made while
    /// interfaces still have to be looked up do not count: their entries may belong to any Node.
    pub(super) planned_generation: Option<u64>,
    /// When the read or list was sent that the plan was made from.
    pub(super) observed_at: Option<Instant>,
    /// Whether every network interface in it has been looked up.
    pub(super) covers_interfaces: bool,
    /// The entries with a target state or a ledger entry.
    pub(super) entries: Vec<EntryStatus>,
    /// The pools that a load-balancing rule uses.
    pub(super) pools: Vec<PoolCounts>,
    /// Changes that are due and not read back yet.
    pub(super) pending_changes: usize,
    /// Changes that ARM has not accepted yet.
    pub(super) unsent_changes: usize,
    /// Pools with entries whose Node is unknown, because an interface cannot be read.
    pub(super) unreadable_pools: Vec<UnreadablePool>,
    /// What the last attempt to write failed with.
    pub(super) last_error: Option<LastError>,
}

impl LoadBalancerStatus {
    /// Whether the plan was made from this generation of the target states or a newer one.
    pub(super) fn has_planned(&self, generation: u64) -> bool {
        self.planned_generation.is_some_and(|planned| planned >= generation)
    }
}

/// The editor of one load balancer's admin states.
pub(super) struct AdminStateEditor {
    pub(super) targets: watch::Receiver<Option<Arc<TargetStates>>>,
    pub(super) ledger: LedgerStore,
    pub(super) policy: Policy,
    /// Whether the load balancer is the cluster's.
    pub(super) is_configured: bool,
    pub(super) guard: GuardSettings,
    /// Which Nodes serve the rules of Local Services.
    pub(super) services: watch::Receiver<Arc<ServiceIndex>>,
    /// The entries that the last plan held back.
    pub(super) held: HeldEntries,
    pub(super) clock: Clock,
    /// When the read or list was sent that the next plan is made from.
    pub(super) observed_at: Option<Instant>,
    pub(super) status: watch::Sender<LoadBalancerStatus>,
    /// Notified with each new status; one for all load balancers.
    pub(super) status_changed: Arc<Notify>,
    /// Undoes the ledger changes of the write under way.
    pub(super) undo: Vec<LedgerChange>,
    /// The generation of the target states that the last plan was made from, of whatever interfaces it knew.
    pub(super) last_generation: Option<u64>,
}

/// The ledger changes before a write, and those that undo them.
struct Intents {
    changes: Vec<LedgerChange>,
    undo: Vec<LedgerChange>,
}

impl AdminStateEditor {
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
        plan(view, &inputs)
    }

    /// The intents of an edit: its `Down`s that are not in the ledger.
    fn intents(&self, edit: &PoolEdit, added_downs: &[EntryKey]) -> Intents {
        let (ledger, now) = (self.ledger.ledger(), self.clock.now().wall);
        let downs = edit.admin_states.iter().filter(|change| change.to == AdminState::Down);
        let downs = downs.map(|change| &change.key).chain(added_downs);
        let intents = downs.filter_map(|key| {
            let known = ledger.entry(&edit.pool, key);
            // A `Down` that was written and lost is the same one, written again.
            if known.is_some_and(|entry| entry.stage != LedgerStage::Restored) {
                return None;
            }
            let intended = LedgerEntry {
                stage: LedgerStage::Intended,
                since: now,
            };
            let change = |entry| LedgerChange::new(&edit.pool, key, entry);
            Some((change(Some(intended)), change(known)))
        });
        let (changes, undo) = intents.unzip();
        Intents { changes, undo }
    }
}

impl Editor for AdminStateEditor {
    async fn changed(&mut self) {
        loop {
            let (changed, is_about_nodes) = tokio::select! {
                changed = self.targets.changed() => (changed, true),
                changed = self.services.changed() => (changed, false),
            };
            if changed.is_err() {
                // The watches end with the term, and so does this task.
                std::future::pending::<()>().await;
            }
            let targets = self.targets.borrow();
            let targets = targets.as_ref();
            // The condition that headgate writes on a Node leads to no other plan, and what serves counts beside a signal only.
            let is_due = if is_about_nodes {
                targets.map(|targets| targets.generation) != self.last_generation
            } else {
                targets.is_some_and(|targets| targets.has_signal_periods())
            };
            if is_due {
                return;
            }
        }
    }

    fn plans_from(&mut self, requested_at: Instant) {
        self.observed_at = Some(requested_at);
    }

    fn plan(&mut self, view: &LoadBalancerView, interfaces: &InterfaceCache) -> Vec<PoolEdit> {
        let Some(targets) = self.targets.borrow_and_update().clone() else {
            return Vec::new();
        };
        self.services.mark_unchanged();
        self.last_generation = Some(targets.generation);
        let plan = self.plan_view(view, &targets, interfaces);
        let changes = plan.change_count();
        let (is_complete, unreadable_pools) = (interfaces.covers(view), interfaces.unreadable_pools(view));
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        self.held = held.map(|entry| (entry.pool.clone(), entry.node.uid.clone())).collect();
        let Plan { edits, entries, pools } = plan;
        let observed_at = self.observed_at;
        self.update_status(|status| {
            if is_complete {
                status.planned_generation = Some(targets.generation);
            }
            status.observed_at = observed_at;
            status.covers_interfaces = is_complete;
            status.unreadable_pools = unreadable_pools;
            status.entries = entries;
            status.pools = pools;
            status.pending_changes = changes;
            status.unsent_changes = changes;
        });
        edits
    }

    fn plan_pool(&self, pool: &PoolView, interfaces: &InterfaceCache) -> Option<Vec<AdminStateChange>> {
        let targets = self.targets.borrow().clone()?;
        let view = LoadBalancerView {
            id: pool.id.load_balancer().clone(),
            is_busy: false,
            is_assembled: false,
            pools: vec![Arc::new(pool.clone())],
        };
        let plan = self.plan_view(&view, &targets, interfaces);
        Some(plan.edits.into_iter().flat_map(|edit| edit.admin_states).collect())
    }

    async fn record_intent(&mut self, edit: &PoolEdit, added_downs: &[EntryKey]) -> Result<(), IntentNotRecorded> {
        self.undo.clear();
        if !edit.sets_down() && added_downs.is_empty() {
            // The ledger has these entries already.
            return Ok(());
        }
        let Intents { changes, undo } = self.intents(edit, added_downs);
        self.ledger.apply(changes);
        let written = self.ledger.flush().await;
        written.map_err(|error| {
            self.ledger.apply(undo.clone());
            IntentNotRecorded(error.to_string())
        })?;
        self.undo = undo;
        Ok(())
    }

    fn handle_outcome(&mut self, outcome: WriteOutcome) {
        match outcome {
            // Its `Down`s, if any, show in the next read.
            WriteOutcome::Accepted(edit) if edit.is_members_only() => {}
            WriteOutcome::Accepted(edit) => self.update_status(|status| {
                status.unsent_changes = status.unsent_changes.saturating_sub(edit.admin_states.len());
                // What is given back says nothing about a `Down` that cannot be recorded, and acceptance nothing about a write that
                // ARM ignores.
                let is_ignored = status.last_error.as_ref().is_some_and(LastError::is_ignored_write);
                if !is_ignored && (edit.sets_down() || status.unsent_changes == 0) {
                    status.last_error = None;
                }
            }),
            // From now on a `Down` of these entries is another writer's.
            WriteOutcome::Rejected => self.ledger.apply(self.undo.drain(..)),
            WriteOutcome::Failed(error) => self.update_status(|status| status.last_error = Some(error)),
            WriteOutcome::Recovered => self.update_status(|status| status.last_error = None),
        }
    }
}
