//! What a leader does between two of its awaits.

use super::bugs::Bug;
use super::decisions::{Decision, merged};
use super::model::{Action, Protocol, RESTORES, Reached, WRITES, break_property};
use super::state::{
    ENTRIES, Edit, Entry, Leader, LedgerWrite, Lock, Mask, Phase, Record, Records, Signal, State, Term, has, mask,
};

impl Protocol {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::BecomesLeader(number) => {
                let ledger = if self.has(Bug::DoesNotReadLedger) {
                    Records::default()
                } else {
                    state.ledger
                };
                state.leaders[number] = Leader {
                    is_elected: true,
                    term: Term::Valid,
                    ledger,
                    stored: ledger,
                    is_stored_current: true,
                    is_stored_latest: true,
                    is_claimed: ledger == Records::default(),
                    ..Leader::default()
                };
            }
            Action::NoticesEnd(number) => {
                let leader = std::mem::take(&mut state.leaders[number]);
                if let Phase::Sent(edit) = leader.phase {
                    state.late_put.get_or_insert(edit);
                }
                if let Some(write) = leader.ledger_write {
                    state.late_ledger.get_or_insert(write);
                }
            }
            Action::ObservesNodes(number) => {
                let leader = &mut state.leaders[number];
                (leader.signals, leader.is_planned) = (Some(state.signals), false);
            }
            Action::ObservesServices(number) => {
                let leader = &mut state.leaders[number];
                (leader.serving, leader.is_planned) = (Some(state.serving), false);
            }
            Action::Lists(number) => {
                self.plan(state, number);
            }
            Action::AcquiresLock(number) => {
                self.plan(state, number);
                for leader in &mut state.leaders {
                    leader.is_lock_its_own = false;
                }
                state.lock = Lock::Headgate;
                let leader = &mut state.leaders[number];
                (leader.is_lock_its_own, leader.has_hold) = (true, true);
                leader.phase = Phase::Reading;
            }
            Action::ReadsAndPlans(number) => self.read_and_plan(state, number),
            Action::WritesLedger(number) => self.write_ledger(state, number),
            Action::SendsPut(number) => self.send_put(state, number),
            Action::FindsSettled(number) => state.leaders[number].phase = Phase::Reading,
            Action::Reports(number) => {
                if let Some(reported) = self.reported(&state.leaders[number]) {
                    state.change_stages(number, reported);
                }
            }
            Action::ForgetsRestored(number) => {
                let forgotten = self.forgotten(state, &state.leaders[number]);
                state.change_stages(number, forgotten);
            }
            _ => {}
        }
    }

    /// Plans the pool as it is now. Returns what is due.
    fn plan(&self, state: &mut State, number: usize) -> Option<Decision> {
        let pool = state.pool;
        let leader = &mut state.leaders[number];
        let decision = self.decide(leader, &pool)?;
        leader.read = Some(pool);
        leader.is_planned = true;
        leader.held = decision.held;
        if decision.held != 0 {
            self.reach(Reached::HeldBack);
        }
        Some(decision)
    }

    fn read_and_plan(&self, state: &mut State, number: usize) {
        let is_busy = state.operation.is_some() && !self.has(Bug::WritesWhileBusy);
        let decision = self.plan(state, number);
        let due = decision.and_then(|decision| Some((decision, decision.pool?)));
        let Some((decision, pool)) = due.filter(|_| !is_busy) else {
            return release(state, number);
        };
        let leader = &mut state.leaders[number];
        if decision.needs_record && !leader.is_claimed && !self.has(Bug::TakesFoundForRecorded) {
            // The product goes on in the same hold: that is one of the ways from here.
            leader.claims = true;
            return release(state, number);
        }
        let before = leader.ledger;
        state.change_stages(number, decision.intended);
        let leader = &mut state.leaders[number];
        let given_back = |index: usize| state.pool[index] == Entry::Down && pool[index] == Entry::Up;
        let signals = leader.signals.unwrap_or_default();
        let lasts = |index: usize| {
            let was_there = state.signals[index] != Signal::None && !has(leader.changed, index);
            was_there || signals[index] != Signal::None
        };
        // Whatever the guard says: in the view of the leader no other entry stays in service without a signal.
        let stays = |index: usize| [state.pool[index], pool[index]] == [Entry::Up; 2] && signals[index] == Signal::None;
        let is_last = |index: usize, of: Mask| mask(|other| other != index && has(of, other) && stays(other)) == 0;
        let nodes = mask(|index| index < self.config.nodes);
        let is_needed = |index: usize| {
            let is_last_of_rule = |serving| has(serving, index) && is_last(index, serving);
            let may_stay = signals[index] != Signal::Terminal;
            may_stay && (is_last(index, nodes) || leader.serving.is_some_and(is_last_of_rule))
        };
        let is_premature = mask(|index| given_back(index) && lasts(index) && !is_needed(index)) != 0;
        let edit = Edit {
            pool,
            members: mask(|index| state.pool[index] != Entry::Absent),
            is_latest: true,
            serving: leader.serving,
            ending: mask(|index| signals[index] == Signal::Terminal),
        };
        let undo = |index: usize| decision.undo[index].map(|stage| Record { stage, ..before[index] });
        leader.undo = std::array::from_fn(undo);
        leader.phase = if decision.needs_record && !self.has(Bug::RecordsAfterWrite) {
            Phase::Recording(edit)
        } else {
            Phase::Ready(edit)
        };
        // One flush at a time: this one begins when the one before has ended.
        if leader.is_stored_current && leader.ledger_write.is_none() {
            leader.finish_record();
        }
        if mask(given_back) != 0 {
            self.reach(Reached::GivenBack);
        }
        if is_premature {
            break_property(state, RESTORES);
        }
    }

    /// One request of a flush of the ledger: the read after a conflict, or the write.
    fn write_ledger(&self, state: &mut State, number: usize) {
        let ledger = state.ledger;
        let leader = &mut state.leaders[number];
        if leader.is_stored_current {
            leader.ledger_write = Some(LedgerWrite {
                ledger: leader.ledger,
                is_latest: leader.is_stored_latest,
                is_record: matches!(leader.phase, Phase::Recording(..)),
            });
            return;
        }
        leader.ledger = if self.has(Bug::ForgetsOwnChangesInConflict) {
            ledger
        } else {
            merged(&ledger, &leader.ledger, &leader.stored)
        };
        leader.stored = ledger;
        (leader.is_stored_current, leader.is_stored_latest) = (true, true);
        leader.is_claimed = ledger == Records::default();
        leader.finish_record();
    }

    /// The permit, right before the request: the term by the own clock, and the hold as far as is known.
    fn send_put(&self, state: &mut State, number: usize) {
        let leader = &mut state.leaders[number];
        let Phase::Ready(edit) = leader.phase else { return };
        let is_permitted = (leader.term == Term::Valid || self.has(Bug::SendsAfterTerm))
            && (leader.has_hold || self.has(Bug::SendsWithoutHold));
        if !is_permitted {
            self.reach(Reached::NotPermitted);
            return release(state, number);
        }
        leader.phase = Phase::Sent(edit);
        if !leader.is_elected || !leader.is_lock_its_own {
            break_property(state, WRITES);
        }
    }
}

/// Nothing more is written in this hold.
pub(super) fn release(state: &mut State, number: usize) {
    let leader = &mut state.leaders[number];
    if leader.is_lock_its_own {
        state.lock = Lock::Free;
    }
    (leader.is_lock_its_own, leader.has_hold) = (false, false);
    (leader.phase, leader.undo) = (Phase::Idle, [None; ENTRIES]);
}
