//! Long chaos, but for the processes: the disturbances that follow from a seed, the history of a run as plain data, the invariants that
//! are checked on it, and the report. `emulator/beside_cloud_controller_manager/chaos.rs` runs it.
//!
//! Pure: times are parameters. Each invariant is shown to fail on a made-up history, and linearizability on known ones.

#![allow(dead_code, reason = "a target without cloud-controller-manager runs the tests alone")]

use serde::Serialize;

pub(crate) mod clocks;
pub(crate) mod connections;
pub(crate) mod history;
pub(crate) mod leadership;
pub(crate) mod registers;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod schedule;
pub(crate) mod writes;

#[cfg(test)]
mod every_order;
#[cfg(test)]
mod made_up;

use self::history::Event;

/// Events around a violation that the report shows.
const CONTEXT_EVENTS: usize = 24;

/// A broken invariant, with the part of the history around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) text: String,
    pub(crate) context: Vec<Event>,
}

impl Violation {
    /// A violation at an event of this history.
    pub(crate) fn at(history: &[Event], event: &Event, invariant: &'static str, text: String) -> Self {
        let position = history.partition_point(|other| other.begin < event.begin);
        let first = position.saturating_sub(CONTEXT_EVENTS / 2);
        let context = history[first..].iter().take(CONTEXT_EVENTS).cloned().collect();
        Self {
            invariant,
            text,
            context,
        }
    }
}

/// What a history shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// PUTs that were on their way when their leader's hold ended, or about to be sent by a leader that then stood still. ARM refuses them
    /// by their etag, or they come before the next leader's read (docs/dev/proof.md).
    pub(crate) late_puts: usize,
    /// PUTs under a hold of the shared Lease that a restore of etcd had taken back.
    pub(crate) puts_after_restore: usize,
    /// Writes of the Lease of the election with a time by a clock that was wrong.
    pub(crate) lease_writes_by_wrong_clocks: usize,
    /// Operations that were checked for linearizability.
    pub(crate) operations: usize,
}

/// What a controller's log says of panics. One in the work of a term ends that alone, and the next leader goes on.
pub(crate) fn panics(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.contains(" panicked at "))
}

/// Checks everything on a history, in order of the begins.
pub(crate) fn check(history: &[Event]) -> Findings {
    let mut findings = Findings::default();
    leadership::check(history, &mut findings);
    registers::check(history, &mut findings);
    writes::check(history, &mut findings);
    findings
}
