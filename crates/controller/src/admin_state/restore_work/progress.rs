//! What a restore has achieved in one load balancer, by each status of its planner.

use std::collections::{BTreeMap, BTreeSet};

use headgate_azure::{AdminState, ErrorClass, LoadBalancerId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::OwnedEntry;
use crate::admin_state::ledger::{LedgerEntry, LedgerStage};
use crate::admin_state::plan::EntryStatus;
use crate::admin_state::planner::LoadBalancerStatus;
use crate::pool::LoadBalancerView;

/// The progress of one load balancer, from each status of its planner.
pub(super) struct Progress {
    pub(super) load_balancer: LoadBalancerId,
    statuses: watch::Receiver<LoadBalancerStatus>,
    pub(super) status: LoadBalancerStatus,
    pub(super) restored: BTreeSet<OwnedEntry>,
    /// Those that are pending, and those that were until their Node was gone.
    pub(super) remaining: BTreeSet<OwnedEntry>,
}

impl Progress {
    pub(super) fn new(load_balancer: LoadBalancerId, statuses: watch::Receiver<LoadBalancerStatus>) -> Self {
        Self {
            load_balancer,
            statuses,
            status: LoadBalancerStatus::default(),
            restored: BTreeSet::new(),
            remaining: BTreeSet::new(),
        }
    }

    /// What is not pending any more is restored only if the read shows that: the entry of a Node that was deleted stays `Down`.
    fn observe(&mut self, status: LoadBalancerStatus) {
        let pending = status.entries.iter().filter(|entry| entry.is_pending());
        let mut remaining: BTreeSet<_> = pending.map(owned_entry).collect();
        let planned = status
            .entries
            .iter()
            .map(|entry| (entry.pool.name(), entry.key.as_str()));
        let planned: BTreeSet<_> = planned.collect();
        let shown: BTreeMap<_, _> = status.view.as_deref().into_iter().flat_map(admin_states).collect();
        for entry in std::mem::take(&mut self.remaining) {
            let place = (entry.pool.as_str(), entry.entry.as_str());
            let is_down = shown.get(&place).map(|state| *state == Some(AdminState::Down));
            let is_planned = planned.contains(&place);
            if is_down == Some(false) {
                self.restored.insert(entry);
            } else if is_down == Some(true) && !is_planned {
                remaining.insert(entry);
            }
        }
        self.restored.retain(|entry| !remaining.contains(entry));
        self.remaining = remaining;
        self.status = status;
    }

    /// Whether a plan that knows every interface leaves nothing to do by a read that was sent after `since`, or nothing that can
    /// be done.
    fn is_complete(&self, since: Option<Instant>) -> bool {
        let last_error = self.status.last_error.as_ref();
        let is_terminal = last_error.is_some_and(|error| error.class == ErrorClass::Terminal);
        let is_pending = self.status.entries.iter().any(EntryStatus::is_pending);
        let is_restored = !is_pending && self.status.observed_at > since;
        let mut unreadable = self.status.unreadable_entries.iter();
        // A lookup that failed is repeated with a later list.
        let knows_interfaces =
            self.status.covers_interfaces && unreadable.all(|entry| entry.error.class == ErrorClass::Terminal);
        knows_interfaces && (is_restored || is_terminal)
    }

    /// The entries to restore, of these Nodes or of all, that are not `Down`, although the ledger says so.
    pub(super) fn outdated(&self, only_nodes: Option<&BTreeSet<String>>) -> impl Iterator<Item = &EntryStatus> {
        let is_down_in_ledger = |entry: LedgerEntry| entry.stage != LedgerStage::Restored;
        let entries = self.status.entries.iter();
        let entries = entries.filter(move |entry| only_nodes.is_none_or(|only| only.contains(&entry.node.name)));
        entries.filter(move |entry| {
            entry.ledger_entry.is_some_and(is_down_in_ledger) && entry.observed != Some(AdminState::Down)
        })
    }

    /// Follows the planner until the load balancer is complete.
    pub(super) async fn follow(&mut self, since: Option<Instant>) {
        loop {
            let status = self.statuses.borrow_and_update().clone();
            self.observe(status);
            if self.is_complete(since) {
                return;
            }
            if self.statuses.changed().await.is_err() {
                // A writer that has panicked makes no more progress.
                return;
            }
        }
    }
}

/// The admin states of a load balancer's entries, by pool and key.
fn admin_states(view: &LoadBalancerView) -> impl Iterator<Item = ((&str, &str), Option<AdminState>)> {
    view.pools.iter().flat_map(|pool| {
        let entries = pool.entries.iter();
        entries.filter_map(|entry| Some(((pool.id.name(), entry.key.as_ref()?.as_str()), entry.admin_state)))
    })
}

pub(super) fn owned_entry(status: &EntryStatus) -> OwnedEntry {
    OwnedEntry {
        load_balancer: status.pool.load_balancer().name().to_owned(),
        pool: status.pool.name().to_owned(),
        entry: status.key.to_string(),
        node: Some(status.node.name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use headgate_core::clock::Clock;

    use super::*;
    use crate::admin_state::fixtures::{ledger, node, plan_inputs, target_states, view};
    use crate::admin_state::plan::{PlanInputs, plan};
    use crate::admin_state::planner::UnreadableEntry;
    use crate::admin_state::restore_work::RESTORE_POLICY;
    use crate::pool::fixtures::pool_id;
    use crate::pool::{EntryKey, LastError};

    const DOWN: LedgerStage = LedgerStage::Down;

    fn progress() -> Progress {
        Progress::new(
            pool_id("p").load_balancer().clone(),
            watch::channel(LoadBalancerStatus::default()).1,
        )
    }

    /// The status of a plan of the pool `p`, where the ledger has these stages and the cluster the Nodes 1 to 3.
    fn status(states: &[(u8, &str)], stages: &[(&str, u8, LedgerStage)]) -> LoadBalancerStatus {
        let now = Clock::System.now();
        let (view, ledger) = (view(&[("p", states, true)]), ledger(stages));
        let targets = target_states(&[1, 2, 3].map(|number| node(number, &[])), now);
        let inputs = PlanInputs {
            policy: RESTORE_POLICY,
            ..plan_inputs(&targets, &ledger, now)
        };
        let entries = plan(&view, &inputs).entries.into();
        LoadBalancerStatus {
            observed_at: Some(now.mono),
            covers_interfaces: true,
            entries,
            view: Some(Arc::new(view)),
            ..LoadBalancerStatus::default()
        }
    }

    fn failure(class: ErrorClass) -> LastError {
        LastError {
            class,
            code: String::new(),
            message: String::new(),
            since: Instant::now(),
        }
    }

    fn numbers(entries: &BTreeSet<OwnedEntry>) -> Vec<&str> {
        entries.iter().map(|entry| entry.entry.as_str()).collect()
    }

    #[test]
    fn an_entry_is_restored_by_a_read_that_shows_it_and_remains_otherwise() {
        let mut progress = progress();
        progress.observe(status(
            &[(1, "Down"), (2, "Down"), (3, "Down")],
            &[("p", 1, DOWN), ("p", 2, DOWN), ("p", 3, DOWN)],
        ));
        assert_eq!(numbers(&progress.remaining), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        // The first is given back, and the third has left the pool. The Node of the second is gone: no plan has its entry, and it is `Down`.
        progress.observe(status(&[(1, "None"), (2, "Down")], &[("p", 1, DOWN)]));
        let (restored, remaining) = (numbers(&progress.restored), numbers(&progress.remaining));
        assert_eq!((restored, remaining), (vec!["10.0.0.1"], vec!["10.0.0.2"]));
        // An older answer, or somebody's write: the first is `Down` again.
        progress.observe(status(&[(1, "Down"), (2, "Down")], &[("p", 1, DOWN)]));
        let (restored, remaining) = (numbers(&progress.restored), numbers(&progress.remaining));
        assert_eq!((restored, remaining), (vec![], vec!["10.0.0.1", "10.0.0.2"]));
        // It has the state that is due, so it is nothing to restore any more.
        let mut due = status(&[(1, "Down"), (2, "Down")], &[("p", 1, DOWN)]);
        due.entries = due
            .entries
            .iter()
            .map(|entry| EntryStatus {
                becomes: None,
                ..entry.clone()
            })
            .collect();
        progress.observe(due);
        let (restored, remaining) = (numbers(&progress.restored), numbers(&progress.remaining));
        assert_eq!((restored, remaining), (vec![], vec!["10.0.0.2"]));
    }

    #[test]
    fn a_load_balancer_is_complete_by_a_newer_read_that_knows_all_or_by_a_final_error() {
        let (pending, done) = (
            status(&[(1, "Down")], &[("p", 1, DOWN)]),
            status(&[(1, "None")], &[("p", 1, DOWN)]),
        );
        let (before, after) = (Duration::from_secs(1), Duration::from_secs(1));
        let with_error = |status: &LoadBalancerStatus, class| LoadBalancerStatus {
            last_error: Some(failure(class)),
            ..status.clone()
        };
        let unreadable = |class| LoadBalancerStatus {
            unreadable_entries: vec![UnreadableEntry {
                pool: pool_id("p"),
                key: EntryKey::from_text("10.0.0.9"),
                error: failure(class),
            }],
            ..done.clone()
        };
        let without_interfaces = LoadBalancerStatus {
            covers_interfaces: false,
            ..done.clone()
        };
        let terminal = ErrorClass::Terminal;
        for (what, status, expected) in [
            ("pending", &pending, false),
            ("done", &done, true),
            ("pending, refused for good", &with_error(&pending, terminal), true),
            (
                "pending, refused for now",
                &with_error(&pending, ErrorClass::Retriable),
                false,
            ),
            ("done after an error", &with_error(&done, ErrorClass::Retriable), true),
            ("interfaces not looked up", &without_interfaces, false),
            (
                "refused for good, interfaces not looked up",
                &with_error(&without_interfaces, terminal),
                false,
            ),
            (
                "an interface that may be read later",
                &unreadable(ErrorClass::Retriable),
                false,
            ),
            ("an interface that cannot be read", &unreadable(terminal), true),
        ] {
            let mut progress = progress();
            progress.observe(status.clone());
            assert_eq!(progress.is_complete(None), expected, "{what}");
            let observed = status.observed_at.unwrap();
            assert_eq!(progress.is_complete(observed.checked_sub(before)), expected, "{what}");
            let is_final = expected && status.last_error.as_ref().is_some_and(|error| error.class == terminal);
            assert_eq!(
                progress.is_complete(Some(observed)),
                is_final,
                "{what}: read before it was asked for"
            );
            assert_eq!(
                progress.is_complete(Some(observed + after)),
                is_final,
                "{what}: read before it was asked for"
            );
        }
    }

    #[test]
    fn the_ledger_is_outdated_about_what_is_in_service() {
        let mut progress = progress();
        let states = [(1, "None"), (2, "Down"), (3, "None")];
        let stages = [("p", 1, DOWN), ("p", 2, DOWN), ("p", 3, LedgerStage::Restored)];
        progress.observe(status(&states, &stages));
        let outdated = |only: Option<&str>| {
            let only = only.map(|name| BTreeSet::from([name.to_owned()]));
            let entries = progress.outdated(only.as_ref());
            entries.map(|entry| entry.node.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(outdated(None), ["n1"]);
        assert_eq!(outdated(Some("n1")), ["n1"]);
        assert_eq!(outdated(Some("n2")), Vec::<String>::new());
    }
}
