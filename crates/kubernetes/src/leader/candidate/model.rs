//! A model of the election: candidates, the API server with the Lease and the ledger, and time, explored state by state. What a candidate
//! decides is the product's own `Candidate`; the model has what happens to its requests, its work and its process, and what others do.
//!
//! Time goes on to what is due next, in steps of 0.1 s. A request is answered at once, or it is disturbed. Disturbances come in the first 20 s;
//! a run ends once somebody leads after that. A process that stands still keeps its clocks; each wall clock is a minute ahead of the one before.
//! docs/dev/proof.md has the results.

mod bugs;
mod steps;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use headgate_core::clock::Clock;
use stateright::{Checker, HasDiscoveries, Model, Property};

use self::bugs::{BUGS, Bug};
use super::*;

/// Set by `make prove`.
const EXPLORE_ALL: &str = "HEADGATE_PROVE";

/// All times are milliseconds since the start.
const GRID: u64 = 100;
const CALM_FROM: u64 = 20_000;
const SETTLED_AFTER: u64 = 3000;

const LEADERS: &str = "E1 one candidate at most has a valid term";
const NUMBERS: &str = "E2 the numbers of a Lease's terms grow";
const FRESH: &str = "E3 a fresh cluster has a leader after its first reads";
const MISSING: &str = "E3 a Lease missing beside a ledger is acquired after its duration";
const STOP: &str = "E4 another leads soon after the release by a leader that stops";
const RELEASED: &str = "E4 somebody leads within 3 s of the start where all have stopped";
const DEATH: &str = "E5 another leads within 15 s of a leader's death";
const KILLED: &str = "E5 somebody leads within 15 s of the start where all have died";
const LEADER: &str = "E6 somebody leads soon after the last disturbance";
const WORK: &str = "E7 the Lease is released after the work of the term, before the candidate stops";

/// For how long nobody may lead.
const BOUNDS: [(&str, u64); 7] = [
    (FRESH, 1000),
    (MISSING, 20_000),
    (STOP, 600),
    (RELEASED, 3000),
    (DEATH, 15_000),
    (KILLED, 15_000),
    (LEADER, 30_000),
];
const OVERDUE_AFTER: u64 = 30_000 + GRID;

/// What may happen, once for each time that it is listed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disturbance {
    /// A request without an answer in time.
    Fault,
    /// A process stands still.
    Pause,
    Death,
    Stop,
    /// A new process in place of one that has ended.
    Start,
    Deletion,
}
use Disturbance::{Death, Deletion, Fault, Pause, Start, Stop};

/// What is there at the start of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    Nothing,
    /// Somebody has deleted the Lease.
    Ledger,
    /// The Lease as a leader released it that had published the number of candidates.
    ReleasedLease,
    /// The same Lease, renewed at the start by a leader that is killed with all others.
    HeldLease,
}

use Found::{HeldLease, Ledger, Nothing, ReleasedLease};

/// A name, the number of candidates, what they find, and what may happen.
type Config = (&'static str, usize, &'static [Found], &'static [Disturbance]);
const ANY: &[Found] = &[Nothing, Ledger, ReleasedLease];
const EVERY: &[Found] = &[Nothing, Ledger, ReleasedLease, HeldLease];
const STOPPED: &[Found] = &[ReleasedLease];
const DEAD: &[Found] = &[HeldLease];

/// Explored by each run of the tests.
const SMALL: &[Config] = &[
    ("election with a fault", 2, ANY, &[Fault]),
    ("election with a pause", 2, STOPPED, &[Pause]),
    ("election with a death", 2, ANY, &[Death]),
    ("election with a stop", 2, ANY, &[Stop]),
    ("election with a deletion", 2, &[Nothing], &[Deletion]),
    ("election after a kill", 2, DEAD, &[Fault]),
];

/// Explored by `make prove`.
const FULL: &[Config] = &[
    ("election with any pause", 2, ANY, &[Pause]),
    ("election with any deletion", 2, ANY, &[Deletion]),
    ("election with a death and a start", 2, ANY, &[Death, Start]),
    ("election with a stop and a start", 2, ANY, &[Stop, Start]),
    ("election with a death and a fault", 2, STOPPED, &[Death, Fault]),
    ("election with a stop and a fault", 2, ANY, &[Stop, Fault]),
    ("election with two faults", 2, ANY, &[Fault, Fault]),
    ("election after a kill with a death", 2, DEAD, &[Death]),
    ("election after a kill with a stop", 2, DEAD, &[Stop]),
    ("election after a kill with a pause", 2, DEAD, &[Pause]),
    ("election of three with a fault", 3, STOPPED, &[Fault]),
    ("election of three with a death", 3, STOPPED, &[Death]),
    ("election of three with a stop", 3, STOPPED, &[Stop]),
];

#[derive(Clone, Debug)]
enum Pending {
    /// With its deadline.
    Request(Action, u64),
    /// What the process learns at this time.
    Event(Option<u64>, Event),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    None,
    Running,
    /// It is to end: at once, or at this time.
    Stopping(Option<u64>),
}

#[derive(Clone, Debug)]
struct Process {
    candidate: Candidate,
    pending: Pending,
    /// The term that its work has.
    term: Option<i32>,
    work: Work,
    is_stopping: bool,
    is_paused: bool,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    lease: Option<ElectionRecord>,
    has_ledger: bool,
    /// Of the Lease, at this time: its versions are named by the time.
    writes: u8,
    processes: Vec<Option<Process>>,
    /// A request whose sender no longer waits for it.
    late: Option<Action>,
    left: Vec<Disturbance>,
    /// Something happened that no bound but the last one allows for.
    is_disturbed: bool,
    /// Since when nobody leads, and which bound holds.
    leaderless: Option<(&'static str, u64)>,
    /// The Lease and the number of the last term.
    last_term: (Option<String>, i32),
    /// No term begins before this time, and the property that it would break.
    not_before: Option<(&'static str, u64)>,
    broken: Option<&'static str>,
}

/// The types of the product are not `Hash`, but their texts have all that they contain. Times are in them since one start.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        struct Text<'a, H>(&'a mut H);
        impl<H: Hasher> fmt::Write for Text<'_, H> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        write!(Text(hasher), "{self:?}").unwrap();
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    TimePasses,
    Continues(usize),
    Request(usize, Delivery),
    WorkEnds(usize),
    WorkTakesLong(usize),
    LateRequestArrives,
    Pauses(usize),
    Wakes(usize),
    Dies(usize),
    Stops(usize),
    Starts(usize),
    LeaseIsDeleted,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Delivery {
    Answered,
    /// It has its effect at once, and the answer comes just in time.
    Slow,
    AnswerLost,
    Lost,
    /// The sender gives up before it arrives.
    Late,
}

struct Election {
    candidates: usize,
    found: &'static [Found],
    events: &'static [Disturbance],
    bug: Option<Bug>,
    start: Moment,
    /// Its first draw is nearly the longest jitter.
    seed: u64,
    /// The longest time without a leader under each bound.
    longest: [AtomicU64; BOUNDS.len()],
}

impl Election {
    fn new((_, candidates, found, events): Config, bug: Option<Bug>) -> Self {
        Self {
            candidates,
            found,
            events,
            bug,
            start: Clock::System.now(),
            seed: (0..9999).find(|seed| Rng::with_seed(*seed).f64() > 0.99).unwrap(),
            longest: [const { AtomicU64::new(0) }; BOUNDS.len()],
        }
    }
}

impl Model for Election {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let state = |found| {
            let unheld = ElectionRecord {
                candidates: u32::try_from(self.candidates).ok(),
                ..ElectionRecord::unheld(3)
            };
            let wall = self.start.wall;
            let held = unheld.acquired("before", 4, wall);
            let (bound, lease, not_before) = match found {
                Nothing => (FRESH, None, None),
                Ledger => (MISSING, None, Some((MISSING, 14_000))),
                ReleasedLease => (RELEASED, Some(held.released(0, wall)), None),
                HeldLease => (KILLED, Some(held), Some((LEADERS, 14_000))),
            };
            let mut state = State {
                now: 0,
                lease: None,
                has_ledger: found != Nothing,
                writes: 0,
                processes: vec![None; self.candidates],
                late: None,
                left: self.events.to_vec(),
                is_disturbed: false,
                leaderless: None,
                last_term: (None, 0),
                not_before,
                broken: None,
            };
            if let Some(lease) = lease {
                self.store(&mut state, lease);
            }
            for number in 0..self.candidates {
                self.begin(&mut state, number);
            }
            state.leaderless = Some((bound, 0));
            state
        };
        self.found.iter().copied().map(state).collect()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // By then no request of a disturbed time is in progress.
        let is_over = state.now > CALM_FROM + SETTLED_AFTER && self.leaders(state) > 0;
        if state.broken.is_none() && !is_over {
            Self::due(state, steps);
            Self::environment(state, steps);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.act(&mut next, step);
        self.judge(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_in_time(model: &Election, state: &State, name: &str) -> bool {
            let Some((bound, since)) = state.leaderless.filter(|(bound, _)| *bound == name) else {
                return state.broken != Some(name);
            };
            let number = BOUNDS.iter().position(|(known, _)| *known == bound).unwrap();
            model.longest[number].fetch_max(state.now - since, Ordering::Relaxed);
            state.now - since <= BOUNDS[number].1
        }
        vec![
            Property::always(LEADERS, |model: &Self, state: &State| {
                model.leaders(state) <= 1 && state.broken != Some(LEADERS)
            }),
            Property::always(NUMBERS, |_, state: &State| state.broken != Some(NUMBERS)),
            Property::always(FRESH, |model, state| is_in_time(model, state, FRESH)),
            Property::always(MISSING, |model, state| is_in_time(model, state, MISSING)),
            Property::always(STOP, |model, state| is_in_time(model, state, STOP)),
            Property::always(RELEASED, |model, state| is_in_time(model, state, RELEASED)),
            Property::always(DEATH, |model, state| is_in_time(model, state, DEATH)),
            Property::always(KILLED, |model, state| is_in_time(model, state, KILLED)),
            Property::always(LEADER, |model, state| is_in_time(model, state, LEADER)),
            Property::always(WORK, |_, state: &State| state.broken != Some(WORK)),
        ]
    }
}

/// Explores all states, or those until `property` is broken; returns the failures with the ways to them.
fn explore(config: Config, bug: Option<Bug>, property: Option<&'static str>) -> Vec<(&'static str, String)> {
    let began = std::time::Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let until = property.map_or(HasDiscoveries::AnyFailures, |property| {
        HasDiscoveries::AllOf(BTreeSet::from([property]))
    });
    let model = Election::new(config, bug).checker().threads(threads).finish_when(until);
    let checker = model.spawn_dfs().join();
    let failures = checker.discoveries().into_iter().map(|(property, path)| {
        let steps = path.into_vec();
        let text = steps
            .iter()
            .filter_map(|(state, step)| Some(format!("{} {:?}", state.now, step.as_ref()?)));
        let last = steps.last().map(|(state, _)| format!("{state:?}"));
        let text: Vec<_> = text.chain(last).collect();
        (property, text.join("\n"))
    });
    let longest = checker
        .model()
        .longest
        .each_ref()
        .map(|time| time.load(Ordering::Relaxed));
    println!(
        "{}: {} states, depth {}, without a leader for at most {longest:?} ms, {:.1} s, {threads} threads",
        config.0,
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64(),
    );
    failures.collect()
}

#[test]
fn election_keeps_its_properties_in_every_state() {
    let is_full = std::env::var_os(EXPLORE_ALL).is_some();
    let full = if is_full { FULL } else { &[] };
    for config in [SMALL, full].concat() {
        if let Some((property, path)) = explore(config, None, None).first() {
            panic!("{}: not kept: {property}\n{path}", config.0);
        }
    }
}

#[test]
fn each_property_notices_its_bugs() {
    for (bug, property, events) in BUGS {
        let failures = explore(("", 2, EVERY, events), Some(bug), Some(property));
        let found: Vec<_> = failures.iter().map(|(failed, _)| *failed).collect();
        assert!(
            found.contains(&property),
            "{bug:?} is not noticed by {property}, but by {found:?}"
        );
        println!("{bug:?}: {property}");
    }
}
