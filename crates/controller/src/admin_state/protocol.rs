//! A model of the protocol between leaders, ARM, the API server and a foreign writer, explored state by state. What a leader decides is the
//! product's own (`decisions`); the model has what happens between one decision and the next: which request arrives when, what is
//! refused, lost or late, who stands still, and what others write meanwhile.
//!
//! A leader's step is what the product does between two awaits of `pool::writer`, of the ledger's flush or of the controller's loop. So a
//! transition is: read and plan; write the ledger; ask the permit and send; report what a read proved.
//!
//! Assumptions: a request, or a foreign writer's copy of a pool, is no older than the ledger remembers a restored entry (5 min); the
//! API server gives the election's Lease to another only after the term of the holder is over by the holder's own clock; and the etag of a
//! pool changes with each accepted write and each end of an operation, as in the emulator. docs/dev/proof.md has the results.

mod actions;
mod bugs;
mod decisions;
mod model;
mod state;
mod steps;
mod transitions;

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model as _};

use self::bugs::{BUGS, Bug};
use self::model::{CALM, Config, Protocol, Reached};
use self::state::Events;

/// Set by `make prove`.
const EXPLORE_ALL: &str = "HEADGATE_PROVE";

const NONE: Events = Events {
    signals: 0,
    endpoints: 0,
    foreign: 0,
    faults: 0,
    pauses: 0,
};
const PAIR: Config = Config {
    name: "",
    nodes: 2,
    leaders: 2,
    events: NONE,
    serving: &[0b01, 0b11],
    has_members: false,
    max_depth: None,
};

/// Explored by each run of the tests.
const SMALL: &[Config] = &[
    Config {
        name: "leaders",
        events: Events {
            signals: 1,
            pauses: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "faults",
        leaders: 1,
        events: Events {
            signals: 2,
            faults: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "foreign writer",
        leaders: 1,
        events: Events {
            signals: 2,
            foreign: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "endpoints",
        leaders: 1,
        events: Events {
            signals: 1,
            endpoints: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "members",
        leaders: 1,
        events: Events {
            signals: 1,
            endpoints: 1,
            ..NONE
        },
        has_members: true,
        ..PAIR
    },
    Config {
        name: "members of leaders",
        events: Events {
            endpoints: 1,
            pauses: 1,
            ..NONE
        },
        has_members: true,
        ..PAIR
    },
];

/// Explored by `make prove`.
const FULL: &[Config] = &[
    Config {
        name: "more faults",
        leaders: 1,
        events: Events {
            signals: 2,
            faults: 2,
            ..NONE
        },
        ..PAIR
    },
    Config {
        // Also a foreign operation that superseded one of ours and fails.
        name: "foreign writer and faults",
        leaders: 1,
        events: Events {
            signals: 1,
            foreign: 1,
            faults: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "members and faults",
        leaders: 1,
        events: Events {
            signals: 1,
            endpoints: 1,
            faults: 1,
            ..NONE
        },
        has_members: true,
        ..PAIR
    },
    Config {
        name: "members and a foreign writer",
        leaders: 1,
        events: Events {
            signals: 1,
            endpoints: 1,
            foreign: 1,
            ..NONE
        },
        has_members: true,
        ..PAIR
    },
    Config {
        name: "more signals of leaders",
        events: Events {
            signals: 2,
            pauses: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "leaders and faults",
        events: Events {
            signals: 1,
            faults: 1,
            pauses: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        name: "leaders and a foreign writer",
        events: Events {
            signals: 1,
            foreign: 1,
            pauses: 1,
            ..NONE
        },
        ..PAIR
    },
    Config {
        // With one pause the third leader is never elected.
        name: "three leaders",
        leaders: 3,
        events: Events {
            signals: 1,
            pauses: 2,
            ..NONE
        },
        max_depth: Some(26),
        ..PAIR
    },
    Config {
        name: "members and signals of leaders",
        events: Events {
            signals: 1,
            endpoints: 1,
            pauses: 1,
            ..NONE
        },
        has_members: true,
        ..PAIR
    },
];

struct Explored {
    failures: Vec<(&'static str, String)>,
    states: usize,
    depth: usize,
    reached: Vec<Reached>,
}

/// Explores all states, or those until `property` is broken.
fn explore(config: Config, bug: Option<Bug>, property: Option<&'static str>) -> Explored {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let until = property.map_or(HasDiscoveries::AnyFailures, |property| {
        HasDiscoveries::AllOf(BTreeSet::from([property]))
    });
    let checks_calm = property.is_none_or(|property| property == CALM);
    let mut model = Protocol::new(config, bug, checks_calm).checker();
    // With one thread each state is met on a shortest way: one that is cut off is deeper on every way, and a failure has a short one.
    let threads = if bug.is_some() || config.max_depth.is_some() {
        1
    } else {
        threads
    };
    if let Some(max_depth) = config.max_depth {
        // stateright checks nothing in the states of its limit: those have to be one deeper.
        model = model.target_max_depth(max_depth + 1);
    }
    let checker = model.threads(threads).finish_when(until).spawn_bfs().join();
    let failures = checker.discoveries().into_iter().map(|(property, path)| {
        let steps = path.into_vec();
        let actions: Vec<_> = steps
            .iter()
            .filter_map(|(_, action)| Some(format!("{:?}", action.as_ref()?)))
            .collect();
        let last = steps.last().map(|(state, _)| format!("{state:?}"));
        (
            property,
            format!("{}\n{}", actions.join("\n"), last.unwrap_or_default()),
        )
    });
    let model = checker.model();
    let reached = Reached::ALL.into_iter().filter(|reached| model.has_reached(*reached));
    let (name, states, depth) = (config.name, model.checked_states(), checker.max_depth());
    let cut_off = checker.unique_state_count() - states;
    let depth = config.max_depth.filter(|_| cut_off > 0).unwrap_or(depth);
    let explored = Explored {
        failures: failures.collect(),
        states,
        depth,
        reached: reached.collect(),
    };
    println!(
        "{name}: {states} states, depth {depth}, {cut_off} cut off, {} of calm, {} different plans, {:.1} s, {threads} threads",
        model.calm_states(),
        model.decisions(),
        began.elapsed().as_secs_f64(),
    );
    explored
}

#[test]
fn protocol_keeps_its_properties_in_every_state() {
    let is_full = std::env::var_os(EXPLORE_ALL).is_some();
    let configs = if is_full {
        [SMALL, FULL].concat()
    } else {
        SMALL.to_vec()
    };
    let mut reached = BTreeSet::new();
    for config in configs {
        let explored = explore(config, None, None);
        if let Some((property, path)) = explored.failures.first() {
            panic!("{}: not kept: {property}\n{path}", config.name);
        }
        for one in [Reached::Down, Reached::GivenBack] {
            let is_reached = config.events.signals == 0 || explored.reached.contains(&one);
            assert!(is_reached, "{}: never reached: {one:?}", config.name);
        }
        reached.extend(explored.reached.iter().map(|reached| format!("{reached:?}")));
    }
    let missing: Vec<_> = Reached::ALL
        .iter()
        .map(|one| format!("{one:?}"))
        .filter(|one| !reached.contains(one))
        .collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn each_property_notices_its_bugs() {
    for (bug, property, [signals, endpoints, foreign, faults, pauses]) in BUGS {
        let config = Config {
            name: "",
            events: Events {
                signals,
                endpoints,
                foreign,
                faults,
                pauses,
            },
            has_members: matches!(bug, Bug::DropsForeignMembers | Bug::DropsMembers),
            ..PAIR
        };
        let explored = explore(config, Some(bug), Some(property));
        let found = explored.failures.iter().find(|(failed, _)| *failed == property);
        let others: Vec<_> = explored.failures.iter().map(|(failed, _)| failed).collect();
        assert!(
            found.is_some(),
            "{bug:?} is not noticed by {property}, but by {others:?}"
        );
        println!(
            "{bug:?}: {property}; {} states, depth {}",
            explored.states, explored.depth
        );
    }
}
