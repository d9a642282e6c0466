//! Which actions each state has.

use super::bugs::Bug;
use super::decisions::expired;
use super::model::{Action, Delivery, Protocol};
use super::state::{ENTRIES, Entry, Events, Leader, Lock, Phase, Signal, Stage, Stages, State, Term};

const DELIVERIES: [Delivery; 4] = [
    Delivery::Answered,
    Delivery::AnswerLost,
    Delivery::Late,
    Delivery::Refused,
];

impl Protocol {
    pub(super) fn environment(&self, state: &State, actions: &mut Vec<Action>) {
        let Events {
            signals,
            endpoints,
            foreign,
            pauses,
            faults,
        } = state.left;
        for number in 0..self.config.nodes {
            if signals > 0 {
                let others = [Signal::None, Signal::Revocable, Signal::Terminal].into_iter();
                let others = others.filter(|signal| *signal != state.signals[number]);
                actions.extend(others.map(|signal| Action::SignalChanges(number, signal)));
            }
            // One endpoint at least stays.
            if endpoints > 0 && state.serving != 1 << number {
                actions.push(Action::EndpointMoves(number));
            }
        }
        if foreign > 0 && state.foreign.is_none() {
            actions.push(Action::ForeignReads);
            if state.lock == Lock::Free {
                actions.push(Action::ForeignLocks);
            }
        }
        if let Some(read) = &state.foreign {
            actions.push(Action::ForeignWrites(None));
            let absent = (0..ENTRIES).filter(|number| read[*number] == Entry::Absent);
            actions.extend(absent.map(|number| Action::ForeignWrites(Some(number))));
        }
        if state.lock == Lock::CloudControllerManager {
            actions.push(Action::ForeignUnlocks);
        }
        if faults > 0 && state.operation.is_some() {
            actions.push(Action::OperationEnds { succeeds: false });
        }
        for (number, leader) in state.leaders.iter().enumerate() {
            if leader.is_paused {
                actions.push(Action::Wakes(number));
                if leader.is_elected {
                    actions.push(Action::TermExpires(number));
                }
            } else if pauses > 0 && leader.term == Term::Valid {
                actions.push(Action::Pauses(number));
            }
        }
        let is_in_use = |leader: &Leader| leader.is_lock_its_own && !leader.is_paused;
        if state.lock == Lock::Headgate && !state.leaders.iter().any(is_in_use) {
            actions.push(Action::HoldExpires);
        }
    }

    pub(super) fn network(state: &State, actions: &mut Vec<Action>) {
        if state.operation.is_some() {
            actions.push(Action::OperationEnds { succeeds: true });
        }
        if state.late_put.is_some() {
            actions.push(Action::LatePutArrives);
        }
        if state.late_ledger.is_some() {
            actions.push(Action::LateLedgerArrives);
        }
        for (number, leader) in state.leaders.iter().enumerate() {
            let deliveries = |has_room: bool| {
                let all = DELIVERIES.into_iter();
                all.filter(move |delivery| match delivery {
                    Delivery::Answered => true,
                    // One that stands still gives nothing up and releases nothing.
                    _ if state.left.faults == 0 || leader.is_paused => false,
                    Delivery::Late => has_room,
                    Delivery::AnswerLost | Delivery::Refused => true,
                })
            };
            if matches!(leader.phase, Phase::Sent(_)) {
                let put = deliveries(state.late_put.is_none());
                actions.extend(put.map(|delivery| Action::PutArrives(number, delivery)));
            }
            if leader.ledger_write.is_some() {
                let write = deliveries(state.late_ledger.is_none());
                actions.extend(write.map(|delivery| Action::LedgerArrives(number, delivery)));
            }
        }
    }

    /// What a leader that does not stand still can do next.
    pub(super) fn steps(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let leader = &state.leaders[number];
        let is_free = !state.leaders.iter().any(|leader| leader.is_elected);
        match leader.term {
            Term::None if is_free => actions.push(Action::BecomesLeader(number)),
            Term::None => {}
            Term::Over => {
                actions.push(Action::NoticesEnd(number));
                // Until it does, what it has in hand goes on.
                if matches!(leader.phase, Phase::Ready(_)) {
                    actions.push(Action::SendsPut(number));
                }
            }
            Term::Valid => self.steps_of_term(state, number, actions),
        }
    }

    fn steps_of_term(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let leader = &state.leaders[number];
        if leader.signals != Some(state.signals) {
            actions.push(Action::ObservesNodes(number));
        }
        if leader.serving != Some(state.serving) {
            actions.push(Action::ObservesServices(number));
        }
        match leader.phase {
            Phase::Idle => {
                if let Some(decision) = self.decide(leader, &state.pool) {
                    let is_known = leader.is_planned && leader.read == Some(state.pool) && leader.held == decision.held;
                    // Where ARM is busy a calm leader waits: otherwise it might try again without end. Each waits for its claim.
                    let may_write = (!state.is_calm || state.operation.is_none()) && !leader.claims;
                    if decision.pool.is_none() && !is_known {
                        actions.push(Action::Lists(number));
                    } else if decision.pool.is_some() && state.lock != Lock::CloudControllerManager && may_write {
                        actions.push(Action::AcquiresLock(number));
                    }
                }
            }
            Phase::Reading => actions.push(Action::ReadsAndPlans(number)),
            Phase::Ready(_) => actions.push(Action::SendsPut(number)),
            Phase::Settling if state.operation.is_none() => actions.push(Action::FindsSettled(number)),
            Phase::Recording(..) | Phase::Sent(_) | Phase::Polling | Phase::Settling => {}
        }
        let is_unwritten = leader.ledger != leader.stored;
        let is_recording = matches!(leader.phase, Phase::Recording(..));
        if leader.ledger_write.is_none() && (is_unwritten || is_recording || leader.claims) {
            actions.push(Action::WritesLedger(number));
        }
        if self
            .reported(leader)
            .is_some_and(|reported| reported != leader.stages())
        {
            actions.push(Action::Reports(number));
        }
        // It takes minutes, in which a calm leader ends its write and reads again. Otherwise reports of an old read might bring back what is
        // forgotten without end.
        let is_as_read = leader.phase == Phase::Idle && leader.is_planned && leader.read == Some(state.pool);
        let may_forget = !state.is_calm || is_as_read;
        if may_forget && self.forgotten(state, leader) != leader.stages() {
            actions.push(Action::ForgetsRestored(number));
        }
    }

    /// The ledger after a report of the last plan, if that is of the present view.
    pub(super) fn reported(&self, leader: &Leader) -> Option<Stages> {
        let read = leader.read.filter(|_| leader.is_planned)?;
        let mut reported = self.decide(leader, &read)?.reported;
        if self.has(Bug::ForgetsRestoredAtOnce) {
            for stage in reported.iter_mut().filter(|stage| **stage == Stage::Restored) {
                *stage = Stage::Absent;
            }
        }
        Some(reported)
    }

    /// The ledger after the time in which older writes may still arrive: so it stays as it is while there may be one.
    pub(super) fn forgotten(&self, state: &State, leader: &Leader) -> Stages {
        let puts = state.leaders.iter().filter_map(|leader| match &leader.phase {
            Phase::Recording(edit) | Phase::Ready(edit) | Phase::Sent(edit) => Some(&edit.pool),
            _ => None,
        });
        let late = state.late_put.iter().map(|edit| &edit.pool);
        let before = state.operation.iter().map(|operation| &operation.before);
        let mut all = puts.chain(late).chain(&state.foreign).chain(before);
        let (ledger, pool) = (leader.stages(), state.pool);
        if ledger == Stages::default() || all.any(|pool| pool.contains(&Entry::Down)) {
            return ledger;
        }
        let mut expiries = self.expiries.lock().unwrap();
        *expiries
            .entry((ledger, pool))
            .or_insert_with(|| expired(&ledger, &pool))
    }
}
