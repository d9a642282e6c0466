//! Single writer: a PUT of headgate's begins only while its controller holds the Lease of the election and headgate holds the shared one,
//! as the writes of both show, and while no other accepted PUT of headgate's for the load balancer is carried out. Nobody takes the shared
//! Lease from a holder that has it for less than its duration, less what a clock may be wrong.
//!
//! A leader that stood still may send once more what it had read and decided on before (docs/dev/proof.md), and a restore of etcd takes
//! holds back without the holder's knowledge. Both are counted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::clocks::{Clocks, Reading};
use super::history::{ArmRequest, Event, LEADER_LEASE, LeaseRequest, Outcome, SHARED_LEASE, What};
use super::schedule::MAX_CLOCK_ERROR;
use super::{Findings, Violation};

/// The Lease's duration: from then on others may acquire it.
const LEASE_DURATION: SignedDuration = SignedDuration::from_secs(14);
/// The holder of the shared Lease, for all controllers.
const SHARED_HOLDER: &str = "headgate";
/// A hold of the shared Lease that is not released is free to others so much later by their wall clocks, so sooner by clocks that are ahead.
const SHARED_HOLD: SignedDuration = SignedDuration::from_secs(900 - MAX_CLOCK_ERROR);
/// For how long what was about to be sent may arrive after the thaw, on a busy machine.
const LATE: SignedDuration = SignedDuration::from_secs(3);
/// A hold of the shared Lease admits no new writes after 30 s.
pub(crate) const HOLD: Duration = Duration::from_secs(30);

const SINGLE_WRITER: &str = "single writer";

/// A write of a Lease that succeeded.
#[derive(Clone, Copy, Debug)]
struct Held<'a> {
    event: &'a Event,
    /// When its time was read, by the run's clock.
    renewed: Option<Reading>,
    request: &'a LeaseRequest,
}

/// The controller with this identity in the election.
fn controller_of(holder: &str) -> &str {
    holder.split('_').next().unwrap_or_default()
}

fn writes_of<'a>(history: &'a [Event], lease: &str, clocks: &Clocks<'_>) -> Vec<Held<'a>> {
    let held = |event: &'a Event| match &event.what {
        What::Lease(request) if request.lease == lease && request.is_write && request.outcome == Outcome::Done => {
            Some(Held {
                event,
                renewed: request
                    .renewed
                    .and_then(|shown| clocks.read(controller_of(&request.holder), shown, event.begin)),
                request,
            })
        }
        _ => None,
    };
    history.iter().filter_map(held).collect()
}

/// Why the Lease was not held at this time; `None` if it was, or if the history begins too late to know.
fn not_held(
    writes: &[Held<'_>],
    is_holder: impl Fn(&str) -> bool,
    lasts: Option<SignedDuration>,
    at: Timestamp,
) -> Option<String> {
    let begun = &writes[..writes.partition_point(|write| write.event.begin <= at)];
    let first = begun.first()?;
    let Some(own) = begun.iter().rposition(|write| is_holder(&write.request.holder)) else {
        return (first.event.end < at).then(|| "it has never held it".to_owned());
    };
    // Of two writes that overlap, either may have come last.
    let is_taken = |write: &&Held<'_>| write.event.begin > begun[own].event.end && write.event.end < at;
    if let Some(taken) = begun[own + 1..].iter().find(is_taken) {
        return Some(format!("{:?} wrote it at {}", taken.request.holder, taken.event.end));
    }
    let renewed = begun[own].renewed?.at;
    let age = at.duration_since(renewed);
    (age > lasts?).then(|| format!("it was renewed at {renewed}, {age:#} before"))
}

/// Whether this controller had just been thawed, held what it needs when it was frozen, and has not read the load balancer since.
pub(crate) fn is_late(
    history: &[Event],
    request: &ArmRequest,
    held_at: impl Fn(Timestamp) -> bool,
    at: Timestamp,
) -> bool {
    let has_read_since = |thawed: Timestamp| {
        history.iter().any(|event| match &event.what {
            What::Arm(read) => {
                let is_own = read.caller == request.caller && read.load_balancer == request.load_balancer;
                is_own && !read.is_write && thawed <= event.begin && event.begin <= at
            }
            _ => false,
        })
    };
    let was_thawed = history.iter().any(|event| {
        let is_own = matches!(&event.what, What::Frozen(controller) if *controller == request.caller);
        let is_just_over = event.begin <= at && at <= event.end + LATE;
        is_own && is_just_over && held_at(event.begin) && !has_read_since(event.end)
    });
    request.if_match.is_some() && was_thawed
}

pub(crate) fn check(history: &[Event], findings: &mut Findings) {
    let clocks = Clocks::of(history);
    let (leader, shared) = (
        writes_of(history, LEADER_LEASE, &clocks),
        writes_of(history, SHARED_LEASE, &clocks),
    );
    check_clocks(history, &leader, findings);
    check_takeovers(history, &shared, findings);
    for event in history {
        let What::Arm(request) = &event.what else { continue };
        if !request.is_headgate || !request.is_write {
            continue;
        }
        let prefix = format!("{}_", request.caller);
        let leads = |at| not_held(&leader, |holder| holder.starts_with(&prefix), Some(LEASE_DURATION), at);
        let holds = |at| not_held(&shared, |holder| holder == SHARED_HOLDER, None, at);
        let at = event.begin;
        for (lease, why) in [(LEADER_LEASE, leads(at)), (SHARED_LEASE, holds(at))] {
            let Some(why) = why else { continue };
            if is_late(history, request, |at| leads(at).is_none() && holds(at).is_none(), at) {
                findings.late_puts += 1;
                break;
            } else if lease == SHARED_LEASE && is_after_restore(history, at) {
                findings.puts_after_restore += 1;
            } else {
                let text = format!("{} sends a PUT at {at} without Lease {lease}: {why}", request.caller);
                findings
                    .violations
                    .push(Violation::at(history, event, SINGLE_WRITER, text));
            }
        }
    }
    check_overlaps(history, findings);
}

/// Each renewal has a time that the holder's clock has shown, so that the run knows how wrong it is.
fn check_clocks(history: &[Event], leader: &[Held<'_>], findings: &mut Findings) {
    for write in leader.iter().filter(|write| !write.request.holder.is_empty()) {
        let Some(reading) = write.renewed else {
            let LeaseRequest { holder, renewed, .. } = write.request;
            let at = write.event.end;
            let text = format!("{holder} renews its Lease at {at} with {renewed:?}, which its clock did not show");
            findings
                .violations
                .push(Violation::at(history, write.event, "clocks", text));
            continue;
        };
        findings.lease_writes_by_wrong_clocks += usize::from(reading.is_wrong);
    }
}

/// Each hold of the shared Lease that another one takes was released, or is old.
fn check_takeovers(history: &[Event], shared: &[Held<'_>], findings: &mut Findings) {
    for (index, taken) in shared.iter().enumerate() {
        let is_followed =
            |before: &&Held<'_>| before.request.version.is_some() && before.request.version == taken.request.expected;
        let Some(before) = shared[..index].iter().rfind(is_followed) else {
            continue;
        };
        let (from, to) = (&before.request.holder, &taken.request.holder);
        let is_takeover = !from.is_empty() && !to.is_empty() && !from.eq_ignore_ascii_case(to);
        let age = taken.event.begin.duration_since(before.event.begin);
        if is_takeover && age < SHARED_HOLD {
            let at = taken.event.end;
            let text = format!("{to:?} takes the shared Lease from {from:?} at {at}, {age:#} after its write");
            findings
                .violations
                .push(Violation::at(history, taken.event, SINGLE_WRITER, text));
        }
    }
}

/// Whether a hold that is used at this time may be from before a restore.
fn is_after_restore(history: &[Event], at: Timestamp) -> bool {
    history
        .iter()
        .any(|event| matches!(event.what, What::Restored(_)) && event.begin <= at && at <= event.end + HOLD)
}

/// A newer write of a load balancer supersedes the older one, so one operation of each is in progress.
fn check_overlaps(history: &[Event], findings: &mut Findings) {
    let mut effects: Vec<&Event> = history.iter().collect();
    effects.sort_by_key(|event| event.end);
    let mut in_progress: std::collections::BTreeMap<&str, &Event> = std::collections::BTreeMap::new();
    for event in effects {
        match &event.what {
            What::Arm(request) if request.change.is_some() => {
                let before = in_progress.remove(request.load_balancer.as_str());
                if !request.is_headgate {
                    continue;
                }
                if let Some(before) = before {
                    let text = format!(
                        "a PUT is accepted at {} while that of {} is carried out",
                        event.end, before.end
                    );
                    findings
                        .violations
                        .push(Violation::at(history, event, SINGLE_WRITER, text));
                }
                in_progress.insert(&request.load_balancer, event);
            }
            What::OperationEnded(end) if !end.is_superseded => {
                in_progress.remove(end.load_balancer.as_str());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{arm, clock_set, frozen, lease, operation_end, restored};
    use super::*;

    fn findings(mut history: Vec<Event>) -> (usize, usize, usize) {
        history.sort_by_key(|event| event.begin);
        let mut findings = Findings::default();
        check(&history, &mut findings);
        (
            findings.violations.len(),
            findings.late_puts,
            findings.puts_after_restore,
        )
    }

    /// node-1 leads from 0 on and renews at 8; headgate holds the shared Lease.
    fn led() -> Vec<Event> {
        vec![
            lease("node-1_a", 0, 1).replaces("1", "2"),
            lease("node-1_a", 8, 9).replaces("2", "3"),
            lease("headgate", 1, 2).shared().replaces("4", "5"),
        ]
    }

    fn with(more: Vec<Event>) -> (usize, usize, usize) {
        findings([led(), more].concat())
    }

    fn put(caller: &str, at: i64) -> Event {
        arm(caller, at, at).puts("a", Some(("a", "b")))
    }

    #[test]
    fn a_put_needs_the_lease_of_the_election() {
        assert_eq!(with(vec![put("node-1", 10)]), (0, 0, 0));
        assert_eq!(with(vec![put("node-2", 10)]), (1, 0, 0), "it has never led");
        assert_eq!(with(vec![put("node-1", 22)]), (0, 0, 0));
        assert_eq!(with(vec![put("node-1", 24)]), (1, 0, 0), "its Lease has expired");
        let next = lease("node-2_b", 12, 13).replaces("3", "6");
        assert_eq!(with(vec![next.clone(), put("node-2", 14)]), (0, 0, 0));
        assert_eq!(
            with(vec![next.clone(), put("node-1", 14)]),
            (1, 0, 0),
            "another one leads"
        );
        assert_eq!(with(vec![next, put("node-1", 12)]), (0, 0, 0), "not yet");
        let released = lease("", 12, 13).replaces("3", "6");
        assert_eq!(
            with(vec![released, put("node-1", 14)]),
            (1, 0, 0),
            "it has released the Lease"
        );
    }

    #[test]
    fn a_put_needs_the_shared_lease() {
        let released = lease("", 8, 9).shared().replaces("5", "7");
        let taken = lease("cloud", 10, 11).shared().replaces("7", "6");
        let taken = vec![released, taken, put("node-1", 13)];
        assert_eq!(with(taken.clone()), (1, 0, 0));
        assert_eq!(with([taken, vec![restored(9, 10, &[])]].concat()), (0, 0, 1));
    }

    #[test]
    fn a_hold_of_the_shared_lease_is_taken_only_when_it_is_old() {
        let taken = |holder, at, expected| with(vec![lease(holder, at, at + 1).shared().replaces(expected, "6")]);
        assert_eq!(taken("cloud", 300, "5"), (1, 0, 0));
        assert_eq!(taken("cloud", 301, "5"), (0, 0, 0), "clocks may be wrong by 10 minutes");
        assert_eq!(taken("HeadGate", 10, "5"), (0, 0, 0), "its own");
        assert_eq!(taken("cloud", 10, "4"), (0, 0, 0), "what a restore brought back");
        let released = lease("", 8, 9).shared().replaces("5", "7");
        let next = lease("cloud", 10, 11).shared().replaces("7", "6");
        assert_eq!(with(vec![released, next]), (0, 0, 0));
    }

    #[test]
    fn a_clock_that_is_wrong_neither_prolongs_a_hold_nor_ends_it() {
        for ahead in [-600, -7, 7, 600] {
            let led = |at| {
                let renewal = lease("node-1_a", 5, 6).by_clock_ahead(ahead).replaces("1", "2");
                let shared = lease("headgate", 1, 2).shared().replaces("4", "5");
                findings(vec![clock_set("node-1", 0, ahead), renewal, shared, put("node-1", at)])
            };
            assert_eq!(led(19), (0, 0, 0), "{ahead}");
            assert_eq!(led(20), (1, 0, 0), "{ahead}");
        }
        let never_shown = lease("node-1_a", 5, 6).replaces("1", "2");
        assert_eq!(findings(vec![clock_set("node-1", 0, -60), never_shown]), (1, 0, 0));
    }

    #[test]
    fn a_leader_that_stood_still_may_send_what_it_had_decided_on() {
        let next = lease("node-2_b", 30, 31).replaces("3", "6");
        let thaw = frozen("node-1", 10, 40);
        assert_eq!(with(vec![next.clone(), thaw.clone(), put("node-1", 41)]), (0, 1, 0));
        assert_eq!(
            with(vec![next.clone(), thaw.clone(), put("node-1", 44)]),
            (1, 0, 0),
            "too late"
        );
        let unconditional = arm("node-1", 41, 41).puts("", Some(("a", "b")));
        assert_eq!(
            with(vec![next.clone(), thaw.clone(), unconditional]),
            (1, 0, 0),
            "without If-Match"
        );
        for (reader, at, expected) in [
            ("node-1", 9, (0, 1, 0)),
            ("node-3", 40, (0, 1, 0)),
            ("node-1", 40, (1, 0, 0)),
        ] {
            let read = arm(reader, at, at).reads("a");
            let found = with(vec![next.clone(), thaw.clone(), read, put("node-1", 41)]);
            assert_eq!(found, expected, "{reader} has read at {at}");
        }
        assert_eq!(with(vec![thaw, next, put("node-3", 41)]), (1, 0, 0), "another one");
    }

    #[test]
    fn two_puts_of_headgate_for_one_load_balancer_do_not_overlap() {
        let first = arm("node-1", 10, 10).puts("a", Some(("a", "b")));
        let second = |at| arm("node-1", at, at).puts("b", Some(("b", "c")));
        assert_eq!(with(vec![first.clone(), second(12)]), (1, 0, 0));
        assert_eq!(
            with(vec![first.clone(), operation_end(11, "b", "b2"), second(12)]),
            (0, 0, 0)
        );
        let foreign = arm("cloud", 11, 11).puts("", Some(("b", "b2")));
        assert_eq!(
            with(vec![first.clone(), foreign, second(12)]),
            (0, 0, 0),
            "it is superseded"
        );
        let refused = arm("node-1", 12, 12).puts("a", None);
        assert_eq!(with(vec![first, refused]), (0, 0, 0));
    }
}
