//! The model: its configuration, its states and transitions as stateright explores them, and what must hold.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use stateright::{Model, Property};

use super::bugs::Bug;
use super::decisions::{Decision, Known, decide};
use super::state::{
    ENTRIES, Entry, Events, Leader, Lock, Mask, Pool, Records, Signal, Signals, Stage, Stages, State, Term, has, mask,
};

pub(super) const MEMBERS: &str = "P1 no member is lost by a write of ours";
pub(super) const LEDGER: &str = "P2 no entry of ours is Down outside of the ledger";
pub(super) const RULES: &str = "P3 no write of ours for a revocable signal empties a rule or the pool";
pub(super) const WRITES: &str =
    "P4 a write of ours is sent under both Leases, and accepted while no other one of ours is carried out";
pub(super) const CALM: &str = "P5 calm ends, and with nothing Down";
pub(super) const RESTORES: &str = "P6 nothing is given back while its signal lasts but what is needed";
/// Broken by a transition, in the order of the bits of [`State::broken`].
pub(super) const OF_TRANSITIONS: [&str; 4] = [MEMBERS, RULES, WRITES, RESTORES];

/// How many of each there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) name: &'static str,
    pub(super) nodes: usize,
    pub(super) leaders: usize,
    pub(super) events: Events,
    /// The nodes with a ready endpoint at first.
    pub(super) serving: &'static [Mask],
    /// Whether leaders update the members of the pool, as in the pools of Local Services.
    pub(super) has_members: bool,
    /// States that are deeper are not checked; `None` checks all.
    pub(super) max_depth: Option<usize>,
}

/// Transitions that show that a configuration meets what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Down,
    GivenBack,
    OtherEtag,
    LedgerConflict,
    HeldBack,
    SupersedesOurs,
    TermOver,
    LateWrite,
    NotPermitted,
}

impl Reached {
    pub(super) const ALL: [Self; 9] = [
        Self::Down,
        Self::GivenBack,
        Self::OtherEtag,
        Self::LedgerConflict,
        Self::HeldBack,
        Self::SupersedesOurs,
        Self::TermOver,
        Self::LateWrite,
        Self::NotPermitted,
    ];
}

pub(super) struct Protocol {
    pub(super) config: Config,
    pub(super) bug: Option<Bug>,
    /// It takes most of the time.
    checks_calm: bool,
    /// The product's answers: they are functions of what is known.
    decisions: Mutex<HashMap<Known, Decision>>,
    pub(super) expiries: Mutex<HashMap<(Stages, Pool), Stages>>,
    /// The states from which calm is known to end with nothing `Down`.
    settled: Mutex<HashSet<u64>>,
    reached: AtomicU32,
    /// The states whose properties were checked.
    checked: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    SignalChanges(usize, Signal),
    EndpointMoves(usize),
    ForeignReads,
    /// Writes what it has read, with another member or without.
    ForeignWrites(Option<usize>),
    ForeignLocks,
    ForeignUnlocks,
    OperationEnds {
        succeeds: bool,
    },
    Pauses(usize),
    Wakes(usize),
    TermExpires(usize),
    HoldExpires,
    BecomesLeader(usize),
    NoticesEnd(usize),
    ObservesNodes(usize),
    ObservesServices(usize),
    Lists(usize),
    AcquiresLock(usize),
    ReadsAndPlans(usize),
    WritesLedger(usize),
    SendsPut(usize),
    FindsSettled(usize),
    Reports(usize),
    ForgetsRestored(usize),
    PutArrives(usize, Delivery),
    LatePutArrives,
    LedgerArrives(usize, Delivery),
    LateLedgerArrives,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Answered,
    AnswerLost,
    /// The sender gives up before it arrives.
    Late,
    Refused,
}

pub(super) fn break_property(state: &mut State, name: &str) {
    let number = OF_TRANSITIONS.iter().position(|known| *known == name);
    state.broken |= 1 << number.unwrap();
}

impl Protocol {
    pub(super) fn new(config: Config, bug: Option<Bug>, checks_calm: bool) -> Self {
        Self {
            config,
            bug,
            checks_calm,
            decisions: Mutex::default(),
            expiries: Mutex::default(),
            settled: Mutex::default(),
            reached: AtomicU32::new(0),
            checked: AtomicUsize::new(0),
        }
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn reach(&self, reached: Reached) {
        self.reached.fetch_or(1 << (reached as u32), Ordering::Relaxed);
    }

    pub(super) fn has_reached(&self, reached: Reached) -> bool {
        (self.reached.load(Ordering::Relaxed) >> (reached as u32)) & 1 == 1
    }

    pub(super) fn decisions(&self) -> usize {
        self.decisions.lock().unwrap().len()
    }

    pub(super) fn checked_states(&self) -> usize {
        self.checked.load(Ordering::Relaxed)
    }

    pub(super) fn calm_states(&self) -> usize {
        self.settled.lock().unwrap().len()
    }

    /// What a leader decides about the pool as it sees it; `None` before all Nodes are listed, as in the product.
    pub(super) fn decide(&self, leader: &Leader, pool: &Pool) -> Option<Decision> {
        let unlisted = self.has(Bug::PlansBeforeNodesAreListed).then(Signals::default);
        let signals = leader.signals.or(unlisted)?;
        let missed = if self.has(Bug::MissesOthersInService) {
            mask(|number| signals[number] == Signal::None)
        } else {
            0
        };
        let known = Known {
            nodes: self.config.nodes,
            signals,
            serving: leader.serving.map(|serving| serving & !missed),
            pool: *pool,
            ledger: leader.stages(),
            held: leader.held,
            is_guarded: !self.has(Bug::IgnoresGuard),
            has_members: self.config.has_members,
        };
        if let Some(decision) = self.decisions.lock().unwrap().get(&known) {
            return Some(*decision);
        }
        let mut decision = decide(&known);
        let is_dropped = |number: usize| match self.bug {
            Some(Bug::DropsForeignMembers) => number >= self.config.nodes,
            Some(Bug::DropsMembers) => number == 0,
            _ => false,
        };
        if let Some(entries) = &mut decision.pool {
            for number in (0..ENTRIES).filter(|number| is_dropped(*number)) {
                entries[number] = Entry::Absent;
            }
        }
        self.decisions.lock().unwrap().insert(known, decision);
        Some(decision)
    }

    /// Whether every way on from a state, with nothing from outside, ends with nothing `Down`.
    fn settles(&self, state: &State) -> bool {
        self.settles_from(&state.calm(), &mut HashSet::new())
    }

    fn settles_from(&self, state: &State, path: &mut HashSet<u64>) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let print = hasher.finish();
        if self.settled.lock().unwrap().contains(&print) {
            return true;
        }
        if !path.insert(print) {
            // A circle: it does not end.
            return false;
        }
        let next = self.next_states(state);
        let settles = if next.is_empty() {
            let is_led = state.leaders.iter().any(|leader| leader.term == Term::Valid);
            is_led && !state.pool.contains(&Entry::Down)
        } else {
            next.iter().all(|next| self.settles_from(next, path))
        };
        path.remove(&print);
        if settles {
            self.settled.lock().unwrap().insert(print);
        }
        settles
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    /// One leads and has listed everything; nothing has a signal. The last entry is absent, or where members are updated also one that is
    /// no node's.
    fn init_states(&self) -> Vec<State> {
        let state = |serving: &Mask, has_foreign: bool| {
            let up = |number| number < self.config.nodes.min(ENTRIES - 1);
            let is_member = |number| {
                if self.config.has_members {
                    if number < self.config.nodes {
                        has(*serving, number)
                    } else {
                        has_foreign
                    }
                } else {
                    up(number)
                }
            };
            let entry = |number| if is_member(number) { Entry::Up } else { Entry::Absent };
            let pool: Pool = std::array::from_fn(entry);
            let mut leaders = vec![Leader::default(); self.config.leaders];
            leaders[0] = Leader {
                is_elected: true,
                term: Term::Valid,
                signals: Some(Signals::default()),
                serving: Some(*serving),
                read: Some(pool),
                is_planned: true,
                is_stored_current: true,
                is_stored_latest: true,
                is_claimed: true,
                ..Leader::default()
            };
            leaders.sort_unstable();
            State {
                signals: Signals::default(),
                serving: *serving,
                pool,
                operation: None,
                ledger: Records::default(),
                lock: Lock::Free,
                foreign: None,
                leaders,
                late_put: None,
                late_ledger: None,
                left: self.config.events,
                is_calm: false,
                broken: 0,
            }
        };
        let foreign: &[bool] = if self.config.has_members {
            &[true, false]
        } else {
            &[false]
        };
        let serving = self.config.serving.iter();
        serving
            .flat_map(|serving| foreign.iter().map(move |has_foreign| (serving, *has_foreign)))
            .map(|(serving, has_foreign)| state(serving, has_foreign))
            .collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken != 0 {
            return;
        }
        if !state.is_calm {
            self.environment(state, actions);
        }
        Self::network(state, actions);
        for (number, leader) in state.leaders.iter().enumerate() {
            if !leader.is_paused {
                self.steps(state, number, actions);
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.act(&mut next, action);
        // What has no effect when it arrives need not arrive.
        if !self.has(Bug::PutsWithoutEtag) {
            next.late_put.take_if(|edit| !edit.is_latest);
        }
        if !self.has(Bug::WritesLedgerWithoutVersion) {
            next.late_ledger.take_if(|write| !write.is_latest);
        }
        for leader in next.leaders.iter_mut().filter(|leader| leader.term == Term::Over) {
            *leader = leader.after_term();
        }
        next.leaders.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_broken(state: &State, name: &str) -> bool {
            let number = OF_TRANSITIONS.iter().position(|known| *known == name);
            number.is_some_and(|number| has(state.broken, number))
        }
        vec![
            Property::always(MEMBERS, |model: &Self, state: &State| {
                model.checked.fetch_add(1, Ordering::Relaxed);
                !is_broken(state, MEMBERS)
            }),
            Property::always(LEDGER, |_, state: &State| {
                let is_recorded = |number: usize| state.ledger[number].stage != Stage::Absent;
                mask(|number| state.pool[number] == Entry::Down && !is_recorded(number)) == 0
            }),
            Property::always(RULES, |_, state: &State| !is_broken(state, RULES)),
            Property::always(WRITES, |_, state: &State| !is_broken(state, WRITES)),
            Property::always(CALM, |model: &Self, state: &State| {
                !model.checks_calm || state.broken != 0 || model.settles(state)
            }),
            Property::always(RESTORES, |_, state: &State| !is_broken(state, RESTORES)),
        ]
    }
}
