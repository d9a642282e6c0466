//! What each action does at ARM and at the API server, and what the foreign writer does. `steps` has what leaders do.

use super::bugs::Bug;
use super::decisions::{Answer, is_without_effect};
use super::model::{Action, Delivery, MEMBERS, Protocol, RULES, Reached, WRITES, break_property};
use super::state::{ENTRIES, Edit, Entry, LedgerWrite, Lock, Mask, Operation, Phase, Pool, State, Term, has, mask};
use super::steps::release;

impl Protocol {
    pub(super) fn act(&self, state: &mut State, action: Action) {
        match action {
            Action::SignalChanges(number, signal) => {
                state.signals[number] = signal;
                state.left.signals -= 1;
                for leader in state.leaders.iter_mut().filter(|leader| leader.term == Term::Valid) {
                    leader.changed |= 1 << number;
                }
            }
            Action::EndpointMoves(number) => {
                state.serving ^= 1 << number;
                state.left.endpoints -= 1;
            }
            Action::ForeignReads => {
                state.foreign = Some(state.pool);
                state.left.foreign -= 1;
            }
            Action::ForeignWrites(added) => self.write_foreign(state, added),
            Action::ForeignLocks => {
                state.lock = Lock::CloudControllerManager;
                state.left.foreign -= 1;
            }
            Action::ForeignUnlocks => state.lock = Lock::Free,
            Action::OperationEnds { succeeds } => end_operation(state, succeeds),
            Action::Pauses(number) => {
                state.leaders[number].is_paused = true;
                state.left.pauses -= 1;
            }
            Action::Wakes(number) => state.leaders[number].is_paused = false,
            Action::TermExpires(number) => {
                state.leaders[number] = state.leaders[number].after_term();
                self.reach(Reached::TermOver);
            }
            Action::HoldExpires => {
                state.lock = Lock::Free;
                for leader in state.leaders.iter_mut().filter(|leader| leader.is_lock_its_own) {
                    (leader.is_lock_its_own, leader.has_hold) = (false, false);
                }
            }
            Action::PutArrives(number, delivery) => self.deliver_put(state, number, delivery),
            Action::LatePutArrives => {
                let Some(edit) = state.late_put.take() else { return };
                if self.accept(state, &edit) {
                    self.reach(Reached::LateWrite);
                }
            }
            Action::LedgerArrives(number, delivery) => self.deliver_ledger(state, number, delivery),
            Action::LateLedgerArrives => {
                let Some(write) = state.late_ledger.take() else { return };
                self.store(state, &write);
            }
            Action::BecomesLeader(_)
            | Action::NoticesEnd(_)
            | Action::ObservesNodes(_)
            | Action::ObservesServices(_)
            | Action::Lists(_)
            | Action::AcquiresLock(_)
            | Action::ReadsAndPlans(_)
            | Action::WritesLedger(_)
            | Action::SendsPut(_)
            | Action::FindsSettled(_)
            | Action::Reports(_)
            | Action::ForgetsRestored(_) => self.step(state, action),
        }
    }

    fn deliver_ledger(&self, state: &mut State, number: usize, delivery: Delivery) {
        let Some(write) = state.leaders[number].ledger_write.take() else {
            return;
        };
        let is_stored = match delivery {
            Delivery::Answered | Delivery::AnswerLost => self.store(state, &write),
            Delivery::Late => {
                state.late_ledger = Some(write);
                false
            }
            Delivery::Refused => false,
        };
        let leader = &mut state.leaders[number];
        match delivery {
            Delivery::Answered if is_stored => {
                leader.stored = write.ledger;
                leader.is_stored_latest = true;
                (leader.is_claimed, leader.claims) = (true, false);
                match leader.phase {
                    Phase::Recording(edit) if write.is_record => leader.phase = Phase::Ready(edit),
                    _ => leader.finish_record(),
                }
            }
            // A conflict: the flush reads and tries again.
            Delivery::Answered => {
                leader.is_stored_current = false;
                self.reach(Reached::LedgerConflict);
            }
            Delivery::AnswerLost | Delivery::Late | Delivery::Refused => {
                state.left.faults -= 1;
                leader.is_stored_current = false;
                if write.is_record {
                    leader.undo();
                    release(state, number);
                }
            }
        }
    }

    fn store(&self, state: &mut State, write: &LedgerWrite) -> bool {
        let is_stored = write.is_latest || self.has(Bug::WritesLedgerWithoutVersion);
        if is_stored {
            state.store_ledger(write.ledger);
        }
        is_stored
    }

    fn deliver_put(&self, state: &mut State, number: usize, delivery: Delivery) {
        let Phase::Sent(edit) = state.leaders[number].phase else {
            return;
        };
        // Before ARM has it, the leader waits for nothing else.
        state.leaders[number].phase = Phase::Reading;
        let is_accepted = match delivery {
            Delivery::Answered | Delivery::AnswerLost => self.accept(state, &edit),
            Delivery::Late => {
                state.late_put = Some(edit);
                false
            }
            Delivery::Refused => false,
        };
        let answer = match delivery {
            Delivery::Answered if is_accepted => {
                let leader = &mut state.leaders[number];
                (leader.phase, leader.is_operating) = (Phase::Polling, true);
                leader.undo = [None; ENTRIES];
                return;
            }
            Delivery::Answered => {
                self.reach(Reached::OtherEtag);
                Answer::OtherVersion
            }
            Delivery::Refused => Answer::Refused,
            Delivery::AnswerLost | Delivery::Late => Answer::Missing,
        };
        let is_mistaken = self.has(Bug::TakesLostAnswerForRefusal) && matches!(answer, Answer::Missing);
        let leader = &mut state.leaders[number];
        if is_without_effect(answer) || is_mistaken {
            leader.undo();
        }
        leader.undo = [None; ENTRIES];
        if matches!(answer, Answer::Missing) {
            leader.phase = Phase::Settling;
        }
        if !matches!(answer, Answer::OtherVersion) {
            state.left.faults -= 1;
        }
        if matches!(answer, Answer::Refused) {
            release(state, number);
        }
    }

    /// ARM accepts a PUT of ours if it has the present etag. It ends the operation in progress.
    fn accept(&self, state: &mut State, edit: &Edit) -> bool {
        if !edit.is_latest && !self.has(Bug::PutsWithoutEtag) {
            return false;
        }
        let before = state.pool;
        let after = edit.pool;
        let is_node = |index: usize| index < self.config.nodes;
        // The one reason to remove a member, if it was read: its node has no endpoint.
        let leaves = |index: usize| {
            let has_endpoint = edit.serving.is_none_or(|serving| has(serving, index));
            has(edit.members, index) && is_node(index) && self.config.has_members && !has_endpoint
        };
        let is_gone = |index: usize| before[index] != Entry::Absent && after[index] == Entry::Absent;
        let is_lost = mask(|index| is_gone(index) && !leaves(index)) != 0;
        let newly_down = mask(|index| before[index] != Entry::Down && after[index] == Entry::Down);
        if newly_down != 0 {
            self.reach(Reached::Down);
        }
        let up = |pool: &Pool, of: Mask| {
            mask(|index| pool[index] == Entry::Up && has(of, index) && !has(edit.ending, index)) != 0
        };
        let nodes = mask(is_node);
        let empties = |of: Mask| up(&before, of) && !up(&after, of);
        // A member without an endpoint leaves in the same write.
        let is_revocable = newly_down & !edit.ending != 0;
        let is_emptied = is_revocable
            && match edit.serving {
                Some(serving) => empties(serving) || empties(nodes),
                // Nobody knows which node a rule needs.
                None => true,
            };
        let is_second = state.operation.is_some_and(|operation| operation.is_ours);
        begin_operation(state, after, true);
        for (name, is_broken) in [(MEMBERS, is_lost), (RULES, is_emptied), (WRITES, is_second)] {
            if is_broken {
                break_property(state, name);
            }
        }
        true
    }

    fn write_foreign(&self, state: &mut State, added: Option<usize>) {
        let Some(mut pool) = state.foreign.take() else { return };
        if let Some(added) = added {
            pool[added] = Entry::Up;
        }
        if state.operation.is_some_and(|operation| operation.is_ours) {
            self.reach(Reached::SupersedesOurs);
        }
        begin_operation(state, pool, false);
    }
}

fn begin_operation(state: &mut State, pool: Pool, is_ours: bool) {
    // The one before is superseded.
    finish_operation(state);
    let before = state.pool;
    state.operation = Some(Operation { is_ours, before });
    state.pool = pool;
    state.renew_etag();
}

fn end_operation(state: &mut State, succeeds: bool) {
    let Some(operation) = state.operation.take() else {
        return;
    };
    if !succeeds {
        state.left.faults -= 1;
        state.pool = operation.before;
    }
    finish_operation(state);
    state.renew_etag();
}

/// The leader that waits for it reads again, whatever became of it.
fn finish_operation(state: &mut State) {
    for leader in &mut state.leaders {
        if std::mem::take(&mut leader.is_operating) {
            leader.phase = Phase::Reading;
        }
    }
}

const _: () = assert!(ENTRIES < 8, "a mask has 8 bits");
