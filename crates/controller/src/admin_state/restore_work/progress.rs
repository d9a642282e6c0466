//! What a restore has achieved in one load balancer, by each status of its planner.
//!
//! Invariant: an entry counts as restored only if a read shows it in service.

use std::collections::{BTreeMap, BTreeSet};

use headgate_azure::{AdminState, ErrorClass, LoadBalancerId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::OwnedEntry;
use crate::admin_state::ledger::{LedgerEntry, LedgerStage};
use crate::admin_state::plan::EntryStatus;
use crate::admin_state::planner::LoadBalancerStatus;
use crate::pool::LoadBalancerView;

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

    /// The status of a plan of the pool `p`, whose entries have these states, with these Nodes and these stages in the ledger.
    fn status(states: &[(u8, &str)], nodes: &[u8], in_ledger: &[(u8, LedgerStage)]) -> LoadBalancerStatus {
        let now = Clock::System.now();
        let in_ledger: Vec<_> = in_ledger.iter().map(|(number, stage)| ("p", *number, *stage)).collect();
        let (view, ledger) = (view(&[("p", states, true)]), ledger(&in_ledger));
        let nodes: Vec<_> = nodes.iter().map(|number| node(*number, &[])).collect();
        let targets = target_states(&nodes, now);
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

    /// The last numbers of the addresses that are restored, and that remain.
    fn observed(progress: &mut Progress, status: LoadBalancerStatus) -> [String; 2] {
        progress.observe(status);
        let numbers =
            |entries: &BTreeSet<OwnedEntry>| entries.iter().filter_map(|entry| entry.entry.chars().last()).collect();
        [numbers(&progress.restored), numbers(&progress.remaining)]
    }

    #[test]
    fn an_entry_is_restored_by_a_read_that_shows_it_and_remains_otherwise() {
        let (mut progress, all) = (progress(), [(1, DOWN), (2, DOWN), (3, DOWN)]);
        let before = status(&[(1, "Down"), (2, "Down"), (3, "Down")], &[1, 2, 3], &all);
        assert_eq!(observed(&mut progress, before), ["", "123"]);
        // The Node of the second is gone, so that no plan has its entry, and the third entry has left the pool.
        let given_back = status(&[(1, "None"), (2, "Down")], &[1, 3], &all);
        assert_eq!(observed(&mut progress, given_back), ["1", "2"]);
        // An older answer.
        let older = status(&[(1, "Down"), (2, "Down")], &[1, 3], &all);
        assert_eq!(observed(&mut progress, older.clone()), ["", "12"]);
        let entries = older.entries.iter().cloned();
        let is_due = LoadBalancerStatus {
            entries: entries.map(|entry| EntryStatus { becomes: None, ..entry }).collect(),
            ..older
        };
        assert_eq!(
            observed(&mut progress, is_due),
            ["", "2"],
            "the first has the state that is due"
        );
    }

    #[test]
    fn a_load_balancer_is_complete_by_a_newer_read_that_knows_all_or_by_a_final_error() {
        let (pending, done) = (
            status(&[(1, "Down")], &[1], &[(1, DOWN)]),
            status(&[(1, "None")], &[1], &[(1, DOWN)]),
        );
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
        let (retriable, terminal) = (ErrorClass::Retriable, ErrorClass::Terminal);
        let (asked_before, asked_after) = ([true, false], [true, true]);
        // Whether it is complete: for a read after the request for it, and for one before.
        for (what, status, expected) in [
            ("pending", &pending, [false, false]),
            ("done", &done, asked_before),
            (
                "pending, refused for good",
                &with_error(&pending, terminal),
                asked_after,
            ),
            (
                "pending, refused for now",
                &with_error(&pending, retriable),
                [false, false],
            ),
            ("done after an error", &with_error(&done, retriable), asked_before),
            ("interfaces not looked up", &without_interfaces, [false, false]),
            (
                "interfaces not looked up, refused for good",
                &with_error(&without_interfaces, terminal),
                [false, false],
            ),
            (
                "an interface that may be read later",
                &unreadable(retriable),
                [false, false],
            ),
            ("an interface that cannot be read", &unreadable(terminal), asked_before),
        ] {
            let (mut progress, second) = (progress(), Duration::from_secs(1));
            let read_at = status.observed_at.unwrap();
            progress.observe(status.clone());
            for (since, expected) in [
                (None, expected[0]),
                (read_at.checked_sub(second), expected[0]),
                (Some(read_at), expected[1]),
                (Some(read_at + second), expected[1]),
            ] {
                assert_eq!(
                    progress.is_complete(since),
                    expected,
                    "{what}, since {since:?}, read at {read_at:?}"
                );
            }
        }
        let mut unread = progress();
        unread.observe(LoadBalancerStatus {
            observed_at: None,
            ..done
        });
        assert!(!unread.is_complete(None));
    }

    #[test]
    fn the_ledger_is_outdated_about_what_is_in_service() {
        let mut progress = progress();
        let states = [(1, "None"), (2, "Down"), (3, "None")];
        let in_ledger = [(1, DOWN), (2, DOWN), (3, LedgerStage::Restored)];
        progress.observe(status(&states, &[1, 2, 3], &in_ledger));
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
