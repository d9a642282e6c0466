//! One load balancer's editor: the plan at each look, the record before each write, and what others see of both.

use std::sync::Arc;

use headgate_azure::AdminState;
use headgate_clock::Clock;
use tokio::sync::{Notify, watch};

use super::desired::Desired;
use super::ledger::{Ledger, Line, Record, Stage};
use super::plan::{Plan, Policy, PoolCounts, Standing, plan};
use crate::pool::{Editor, Interfaces, NotRecorded, Outcome, PoolEdit, Trouble, Unread, View};

/// What a load balancer's editor shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The version of what is desired that the plan was made from; `None` before the first. A plan that lacks entries whose
    /// interfaces were not asked about yet does not count: somebody's may be among them.
    pub(super) generation: Option<u64>,
    /// The entries that matter.
    pub(super) standings: Vec<Standing>,
    /// The pools in numbers.
    pub(super) pools: Vec<PoolCounts>,
    /// Changes that are still to be made.
    pub(super) pending: usize,
    /// Changes that ARM has not accepted yet.
    pub(super) unsent: usize,
    /// Pools with entries of which nobody knows whose they are.
    pub(super) unread: Vec<Unread>,
    /// What is in the way.
    pub(super) trouble: Option<Trouble>,
}

/// A load balancer's editor.
pub(super) struct AdminStateEditor {
    pub(super) desired: watch::Receiver<Option<Arc<Desired>>>,
    pub(super) ledger: Ledger,
    pub(super) policy: Policy,
    pub(super) clock: Clock,
    pub(super) observed: watch::Sender<Observed>,
    /// Wakes whoever looks at what is observed.
    pub(super) woken: Arc<Notify>,
    /// The lines that stand in the ledger for what is being written, as they were before.
    pub(super) before: Vec<Line>,
}

impl AdminStateEditor {
    fn show(&self, change: impl FnOnce(&mut Observed)) {
        self.observed.send_modify(change);
        self.woken.notify_one();
    }

    /// Lines for those of an edit that nothing of ours stands for yet, and the lines to undo them.
    fn intents(&self, edit: &PoolEdit) -> (Vec<Line>, Vec<Line>) {
        let (book, now) = (self.ledger.book(), self.clock.now().wall);
        let downs = edit.changes.iter().filter(|change| change.to == AdminState::Down);
        let lines = downs.filter_map(|change| {
            let known = book.record(&edit.pool, &change.key);
            // What was written before and is lost is the same Down, written again.
            if known.is_some_and(|record| record.stage != Stage::Restored) {
                return None;
            }
            let intended = Record {
                stage: Stage::Intended,
                since: now,
            };
            let line = |record| Line::new(&edit.pool, &change.key, record);
            Some((line(Some(intended)), line(known)))
        });
        lines.unzip()
    }
}

impl Editor for AdminStateEditor {
    async fn changed(&mut self) {
        if self.desired.changed().await.is_err() {
            // Nobody watches Nodes any more: the term has ended, and this task with it.
            std::future::pending::<()>().await;
        }
    }

    fn plan(&mut self, view: &View, interfaces: &Interfaces) -> Vec<PoolEdit> {
        let Some(desired) = self.desired.borrow_and_update().clone() else {
            return Vec::new();
        };
        let now = self.clock.now().mono;
        let plan = plan(view, interfaces, &desired, &self.ledger.book(), self.policy, now);
        let changes = plan.changes();
        let (is_whole, unread) = (interfaces.were_asked_about(view), interfaces.unread(view));
        let Plan {
            edits,
            standings,
            pools,
        } = plan;
        self.show(|observed| {
            if is_whole {
                observed.generation = Some(desired.generation);
            }
            observed.unread = unread;
            observed.standings = standings;
            observed.pools = pools;
            observed.pending = changes;
            observed.unsent = changes;
        });
        edits
    }

    async fn record(&mut self, edit: &PoolEdit) -> Result<(), NotRecorded> {
        let (lines, before) = self.intents(edit);
        self.ledger.note(lines);
        let written = self.ledger.flush().await;
        written.map_err(|error| {
            self.ledger.note(before.clone());
            NotRecorded(error.to_string())
        })?;
        self.before = before;
        Ok(())
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted(edit) => self.show(|observed| {
                observed.unsent = observed.unsent.saturating_sub(edit.changes.len());
                // What was in the way of earlier writes is so no more.
                observed.trouble = None;
            }),
            // Whoever sets these entries Down now is somebody else.
            Outcome::Refused => self.ledger.note(self.before.drain(..)),
            Outcome::Failed(trouble) => self.show(|observed| observed.trouble = Some(trouble)),
            Outcome::Clear => self.show(|observed| observed.trouble = None),
        }
    }
}
