//! What the model is about, as small values: two states that differ in nothing that matters are equal.
//!
//! No version is a number. Whoever holds a document, or has a request on its way, knows of it whether it is still the latest one, and each
//! write makes all others outdated: an etag and a resourceVersion can say no more than that.

/// The pool's entries, and at most as many Nodes. An entry beyond the Nodes of a configuration is a member that belongs to none.
pub(super) const ENTRIES: usize = 3;

/// One bit for each entry.
pub(super) type Mask = u8;
pub(super) type Pool = [Entry; ENTRIES];
pub(super) type Stages = [Stage; ENTRIES];
pub(super) type Records = [Record; ENTRIES];
pub(super) type Signals = [Signal; ENTRIES];

/// The signal on a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Signal {
    #[default]
    None,
    /// The node may come back.
    Revocable,
    /// The machine is about to end.
    Terminal,
}

/// An entry of the pool in ARM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Entry {
    #[default]
    Absent,
    Up,
    /// headgate made it so, whoever wrote it last.
    Down,
}

/// What the ledger has about an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    #[default]
    Absent,
    Intended,
    Down,
    Restored,
}

/// The same with its time. Times differ where the ledger's would, so that a stage that is reached again is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) stage: Stage,
    pub(super) time: u8,
}

/// A change of the pool, on its way from the plan to ARM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Edit {
    /// The whole document, as ARM is to have it.
    pub(super) pool: Pool,
    /// The members that the document had when it was read.
    pub(super) members: Mask,
    /// Whether its etag is the present one.
    pub(super) is_latest: bool,
    /// The nodes with a ready endpoint, as the leader knew it; `None` if it did not.
    pub(super) serving: Option<Mask>,
    /// The nodes that are about to end, as the leader knew it.
    pub(super) ending: Mask,
}

/// The ledger, on its way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LedgerWrite {
    pub(super) ledger: Records,
    /// Whether its resourceVersion is the present one.
    pub(super) is_latest: bool,
    /// Whether a PUT waits for it.
    pub(super) is_record: bool,
}

/// Where the pool writer waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    /// For a plan.
    #[default]
    Idle,
    /// For the read under the shared Lease.
    Reading,
    /// For the ledger.
    Recording(Edit),
    /// To send.
    Ready(Edit),
    /// For the answer to the PUT.
    Sent(Edit),
    /// For the end of the operation.
    Polling,
    /// No answer came: until ARM is not busy.
    Settling,
}

/// The term, by the leader's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Term {
    #[default]
    None,
    Valid,
    Over,
}

/// The shared Lease, as the API server has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Lock {
    #[default]
    Free,
    /// All leaders hold it under this name.
    Headgate,
    CloudControllerManager,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Leader {
    /// Whether the Lease of the election names it.
    pub(super) is_elected: bool,
    /// The shared Lease has its hold, whatever it knows.
    pub(super) is_lock_its_own: bool,
    /// The operation in progress is its own.
    pub(super) is_operating: bool,
    pub(super) is_paused: bool,
    pub(super) term: Term,
    /// It has the shared Lease, as far as it knows.
    pub(super) has_hold: bool,
    /// The nodes whose signals have changed since it was elected: what its view says about them may be old.
    pub(super) changed: Mask,
    /// `None` until all Nodes are listed.
    pub(super) signals: Option<Signals>,
    /// The nodes with a ready endpoint; `None` until Services and EndpointSlices are listed.
    pub(super) serving: Option<Mask>,
    /// What it has read or listed last.
    pub(super) read: Option<Pool>,
    /// Whether that is planned with its present view.
    pub(super) is_planned: bool,
    /// The entries that the last plan held back.
    pub(super) held: Mask,
    /// The ledger of its term.
    pub(super) ledger: Records,
    /// The ledger as the API server had it last.
    pub(super) stored: Records,
    /// Whether nothing suggests that the API server has another one.
    pub(super) is_stored_current: bool,
    /// Whether it has none.
    pub(super) is_stored_latest: bool,
    /// Whether that is a write of its term, or nothing is in it.
    pub(super) is_claimed: bool,
    /// Whether it is about to write the ledger although nothing has changed.
    pub(super) claims: bool,
    /// What the entries of the write under way had in the ledger before.
    pub(super) undo: [Option<Record>; ENTRIES],
    pub(super) phase: Phase,
    pub(super) ledger_write: Option<LedgerWrite>,
}

/// An operation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Operation {
    pub(super) is_ours: bool,
    /// The pool before the write, which a failure brings back.
    pub(super) before: Pool,
}

/// What may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Events {
    /// Signals that come or go.
    pub(super) signals: u8,
    /// Endpoints that come or go.
    pub(super) endpoints: u8,
    /// Reads of the foreign writer, each of which it may write back, changed or not, at any time.
    pub(super) foreign: u8,
    /// Requests that are refused, answers that are lost or come late, operations that fail.
    pub(super) faults: u8,
    /// Leaders that stand still, for any time.
    pub(super) pauses: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct State {
    pub(super) signals: Signals,
    /// The nodes with a ready endpoint of the `Local` Service.
    pub(super) serving: Mask,
    pub(super) pool: Pool,
    pub(super) operation: Option<Operation>,
    /// The `ConfigMap`.
    pub(super) ledger: Records,
    pub(super) lock: Lock,
    /// What the foreign writer has read, and has not written yet.
    pub(super) foreign: Option<Pool>,
    /// In their order: which of them is the first does not matter.
    pub(super) leaders: Vec<Leader>,
    /// A PUT whose sender does not wait for it any more.
    pub(super) late_put: Option<Edit>,
    pub(super) late_ledger: Option<LedgerWrite>,
    pub(super) left: Events,
    /// Nothing happens any more but what the leaders do.
    pub(super) is_calm: bool,
    /// The properties that the last transition broke.
    pub(super) broken: Mask,
}

pub(super) fn has(mask: Mask, number: usize) -> bool {
    (mask >> number) & 1 == 1
}

pub(super) fn mask(is_in: impl Fn(usize) -> bool) -> Mask {
    (0..ENTRIES)
        .filter(|number| is_in(*number))
        .map(|number| 1_u8 << number)
        .sum()
}

impl State {
    /// A write was accepted or ended, so the pool has a new etag.
    pub(super) fn renew_etag(&mut self) {
        let leaders = self.leaders.iter_mut().filter_map(|leader| match &mut leader.phase {
            Phase::Recording(edit) | Phase::Ready(edit) | Phase::Sent(edit) => Some(edit),
            _ => None,
        });
        for edit in leaders.chain(&mut self.late_put) {
            edit.is_latest = false;
        }
    }

    /// A leader changes the ledger of its term to these stages.
    pub(super) fn change_stages(&mut self, number: usize, stages: Stages) {
        for (index, stage) in stages.into_iter().enumerate() {
            if self.leaders[number].ledger[index].stage != stage {
                let is_absent = stage == Stage::Absent;
                let time = if is_absent { 0 } else { self.new_time(index) };
                self.leaders[number].ledger[index] = Record { stage, time };
            }
        }
    }

    /// A time that no ledger has about this entry.
    fn new_time(&self, index: usize) -> u8 {
        let writes = self.leaders.iter().filter_map(|leader| leader.ledger_write.as_ref());
        let written = writes.chain(&self.late_ledger).map(|write| &write.ledger);
        let known = self.leaders.iter().flat_map(|leader| [&leader.ledger, &leader.stored]);
        let undone = self.leaders.iter().filter_map(|leader| leader.undo[index]);
        let ledgers = [&self.ledger].into_iter().chain(known).chain(written);
        let used: Vec<u8> = ledgers
            .map(|ledger| ledger[index])
            .chain(undone)
            .map(|record| record.time)
            .collect();
        (1..=u8::MAX).find(|time| !used.contains(time)).unwrap_or_default()
    }

    /// The ledger was written, so it has a new resourceVersion.
    pub(super) fn store_ledger(&mut self, ledger: Records) {
        self.ledger = ledger;
        for leader in &mut self.leaders {
            leader.is_stored_latest = false;
        }
        let writes = self
            .leaders
            .iter_mut()
            .filter_map(|leader| leader.ledger_write.as_mut());
        for write in writes.chain(&mut self.late_ledger) {
            write.is_latest = false;
        }
    }

    /// Nothing comes from outside any more: no signal, no foreign write, no fault. Leaders that stand still go on. What is on its way
    /// still arrives.
    pub(super) fn calm(&self) -> Self {
        let mut calm = Self {
            signals: Signals::default(),
            foreign: None,
            left: Events::default(),
            is_calm: true,
            ..self.clone()
        };
        if calm.lock == Lock::CloudControllerManager {
            calm.lock = Lock::Free;
        }
        for leader in &mut calm.leaders {
            leader.is_paused = false;
            // History that only tells what happened before.
            leader.changed = Mask::MAX;
        }
        calm.leaders.sort_unstable();
        calm
    }
}

impl Leader {
    /// The same after its term: what it knows does not matter any more, but what it has in hand does.
    pub(super) fn after_term(&self) -> Self {
        let phase = match self.phase {
            Phase::Recording(..) | Phase::Ready(_) | Phase::Sent(_) => self.phase,
            Phase::Idle | Phase::Reading | Phase::Polling | Phase::Settling => Phase::Idle,
        };
        Self {
            term: Term::Over,
            is_paused: self.is_paused,
            is_lock_its_own: self.is_lock_its_own,
            has_hold: self.has_hold,
            phase,
            ledger_write: self.ledger_write,
            ..Self::default()
        }
    }

    pub(super) fn stages(&self) -> Stages {
        self.ledger.map(|record| record.stage)
    }

    /// The write under way had no effect, or does not happen.
    pub(super) fn undo(&mut self) {
        for (record, before) in self.ledger.iter_mut().zip(&mut self.undo) {
            if let Some(before) = before.take() {
                *record = before;
            }
        }
    }

    /// The ledger of the term is the one that the API server has, so the PUT that waits for it is ready.
    pub(super) fn finish_record(&mut self) {
        if let Phase::Recording(edit) = self.phase
            && self.ledger == self.stored
        {
            self.phase = Phase::Ready(edit);
        }
    }
}
