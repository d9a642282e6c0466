//! From a load balancer as it was read, and what Nodes wish, to what is to be written. Pure.
//!
//! | signal on the Node | the entry | ours by the ledger | becomes |
//! |---|---|---|---|
//! | yes | `None` | | `Down` |
//! | yes | `Down` | | stays |
//! | no | `Down` | yes | `None` |
//! | no | `Down` | no | stays, or `None` with `adminState.foreignDown: restore` |
//! | | `Up`, or a word that is not known | | stays |
//!
//! An entry that belongs to no Node stays as it is, and so does one whose Node's signal ended a moment ago. A Node that
//! belongs in no load balancer is not set `Down`; one that is `Down` already stays so until its signal ends, since it is
//! on its way out.

use std::sync::Arc;

use headgate_azure::{AdminState, PoolId};
use tokio::time::Instant;

use super::desired::{Concerned, Desired, Wish};
use super::ledger::{Book, Record, Stage};
use crate::admin_state::{AdminStateMode, ForeignDown};
use crate::pool::{Change, ClusterNode, Interfaces, Key, Member, PoolEdit, PoolView, View};

/// How far the plan may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether anything is written.
    pub mode: AdminStateMode,
    /// What becomes of a `Down` that is not ours.
    pub foreign_down: ForeignDown,
}

/// How an entry stands whose Node has a signal, or that is on record.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// In which pool.
    pub pool: PoolId,
    /// Which entry.
    pub key: Key,
    /// Whose it is.
    pub node: Arc<ClusterNode>,
    /// What its Node wishes.
    pub wish: Wish,
    /// What it is.
    pub actual: Option<AdminState>,
    /// What it is to become.
    pub to: Option<AdminState>,
    /// What the ledger says of it.
    pub record: Option<Record>,
    /// Whether all, some or none of the pool's rules have a probe, without which an admin state has no effect.
    pub probed: Probed,
}

/// How many of a pool's rules have a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// All of them.
    All,
    /// Not all of them.
    Some,
    /// None.
    None,
}

impl Probed {
    /// Of a pool.
    #[must_use]
    pub fn of(pool: &PoolView) -> Self {
        match (pool.is_probed(), pool.has_rule_without_probe()) {
            (true, false) => Self::All,
            (true, true) => Self::Some,
            (false, _) => Self::None,
        }
    }
}

/// One pool in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCounts {
    /// Which.
    pub pool: PoolId,
    /// Entries.
    pub entries: usize,
    /// Entries whose Node wishes them `Down`.
    pub desired_down: usize,
    /// Entries that are `Down`, whoever set them.
    pub actual_down: usize,
    /// Entries that will get new connections once the plan is carried out.
    pub eligible: usize,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// One for each pool that is to be changed, those that take somebody out first.
    pub edits: Vec<PoolEdit>,
    /// The entries that matter.
    pub standings: Vec<Standing>,
    /// All pools that a load-balancing rule uses.
    pub pools: Vec<PoolCounts>,
}

impl Plan {
    /// The changes that it makes.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.edits.iter().map(|edit| edit.changes.len()).sum()
    }
}

/// What an entry is to become; nothing where it stays. `node` is whose it is.
fn verdict(
    node: &ClusterNode,
    wish: Wish,
    actual: Option<AdminState>,
    record: Option<Record>,
    policy: Policy,
) -> Option<AdminState> {
    let is_ours = record.is_some();
    let takes_foreign = policy.foreign_down == ForeignDown::Restore && policy.mode == AdminStateMode::Enforce;
    match (wish, actual?) {
        (Wish::Down, AdminState::None) if node.excluded.is_none() => Some(AdminState::Down),
        (Wish::Free, AdminState::Down) if is_ours || takes_foreign => Some(AdminState::None),
        _ => None,
    }
}

/// The plan for a load balancer.
#[must_use]
pub fn plan(
    view: &View,
    interfaces: &Interfaces,
    desired: &Desired,
    book: &Book,
    policy: Policy,
    now: Instant,
) -> Plan {
    let mut plan = Plan::default();
    let known = Known {
        interfaces,
        desired,
        concerned: desired.concerned(now),
        book,
        now,
    };
    for pool in &view.pools {
        plan.add(pool, &known, policy);
    }
    if policy.mode == AdminStateMode::Observe {
        plan.edits.clear();
    }
    plan.edits.sort_by_key(|edit| !edit.takes_out());
    plan
}

/// What is known at this time.
struct Known<'a> {
    interfaces: &'a Interfaces,
    desired: &'a Desired,
    concerned: Concerned<'a>,
    book: &'a Book,
    now: Instant,
}

impl Known<'_> {
    /// Whose an entry is, if anything may become of it or is to be shown: it is `Down`, on record, or its Node has or
    /// had a signal a moment ago.
    fn node(&self, member: &Member, record: Option<Record>) -> Option<&Arc<ClusterNode>> {
        let matters = record.is_some()
            || member.admin_state == Some(AdminState::Down)
            || self.concerned.may_have(&member.claim, self.interfaces);
        let node = || member.claim.node(&self.desired.cluster, self.interfaces);
        matters.then(node).flatten()
    }
}

impl Plan {
    fn add(&mut self, view: &PoolView, known: &Known<'_>, policy: Policy) {
        let id = &view.id;
        let (page, probed) = (known.book.page(id), Probed::of(view));
        let mut changes = Vec::new();
        let mut counts = PoolCounts {
            pool: id.clone(),
            entries: view.members.len(),
            desired_down: 0,
            actual_down: 0,
            eligible: 0,
        };
        for (place, member) in view.members.iter().enumerate() {
            let actual = member.admin_state;
            counts.actual_down += usize::from(actual == Some(AdminState::Down));
            let mut becomes = actual;
            let record = member.key.as_ref().and_then(|key| page.record(key));
            if let Some(key) = &member.key
                && let Some(node) = known.node(member, record)
            {
                let wish = match known.desired.wish(node, known.now).in_mode(policy.mode) {
                    Wish::Down if !view.is_used() => Wish::Wait,
                    wish => wish,
                };
                let to = verdict(node, wish, actual, record, policy).filter(|_| view.is_used() || record.is_some());
                counts.desired_down += usize::from(wish == Wish::Down && node.excluded.is_none());
                // Nothing becomes of it where one only observes.
                becomes = to.filter(|_| policy.mode != AdminStateMode::Observe).or(actual);
                let matters = wish != Wish::Free && view.is_used() || wish == Wish::Free && record.is_some();
                if matters || to.is_some() {
                    self.standings.push(Standing {
                        pool: id.clone(),
                        key: key.clone(),
                        node: Arc::clone(node),
                        wish,
                        actual,
                        to,
                        record,
                        probed,
                    });
                }
                changes.extend(to.map(|to| Change {
                    place,
                    key: key.clone(),
                    node: Arc::clone(node),
                    to,
                }));
            }
            counts.eligible += usize::from(becomes != Some(AdminState::Down));
        }
        if !changes.is_empty() {
            self.edits.push(PoolEdit {
                pool: id.clone(),
                changes,
            });
        }
        if view.is_used() {
            self.pools.push(counts);
        }
    }
}

impl Standing {
    /// Whether it is not yet as it should be.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.to.is_some()
    }

    /// Whether it is `Down` by a write of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.actual == Some(AdminState::Down)
            && self
                .record
                .is_some_and(|record| record.stage != Stage::Restored || self.wish == Wish::Free)
    }
}

#[cfg(test)]
mod tests;
