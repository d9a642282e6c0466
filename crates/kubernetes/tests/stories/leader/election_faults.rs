//! Leaders that are killed, frozen and cut off, a hundred times each; then all faults at once, at random.
//!
//! `election_fixture` checks at each write and every 50 ms that there are no two valid terms, and that no number repeats. When the
//! faults end there must be a leader within a limit, and it must stay.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use headgate_test_kubernetes::Fault;
use proptest::prelude::*;

use crate::run_paused;

use super::election_fixture::{ElectionFixture, SECOND, TestCandidate, Work};

/// The longest time to a leader after the faults: a read, the rest of a Lease, and one more lease duration if all are signalled.
const LEADER_TIMEOUT: Duration = Duration::from_secs(75);

#[tokio::test(start_paused = true)]
async fn after_each_of_300_lost_leaders_there_is_one_new_leader() {
    let election = ElectionFixture::new(3);
    let mut candidates = election.candidates(3);
    let (mut number, mut holder, _) = election.leader_after(-1, LEADER_TIMEOUT).await;
    for kind in ["killed", "frozen", "cut off"] {
        let mut times = Vec::new();
        for round in 0..100_u32 {
            let after = SECOND * 5 + Duration::from_millis(u64::from(round * 37 % 2000));
            election.pass(after).await;
            let is_leader = |candidate: &TestCandidate| candidate.name == holder;
            let index = candidates.iter().position(is_leader).unwrap();
            match kind {
                "killed" => {
                    candidates.swap_remove(index).kill();
                    candidates.push(election.candidate(&format!("m{round}"), i64::from(round % 7) * 100 - 300));
                }
                "frozen" => candidates[index].freeze(true),
                _ if round % 2 == 0 => candidates[index].line.set(Fault::CutOff),
                _ => candidates[index].line.set(Fault::AnswerLost),
            }
            let (next, successor, took) = election.leader_after(number, LEADER_TIMEOUT).await;
            times.push(took);
            for candidate in &candidates {
                candidate.freeze(false);
                candidate.line.set(Fault::None);
            }
            (number, holder) = (next, successor);
        }
        times.sort();
        println!(
            "{kind} 100 times: the next leader after {:.1?} to {:.1?}, median {:.1?}",
            times[0], times[99], times[50]
        );
        assert!(times[99] < 23 * SECOND);
    }
}

#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Kill,
    Stop,
    Freeze,
    Signal,
    Line(Fault),
    Work(Work),
    Delete,
    Annotate,
}

/// A disturbance: the tenth of a second at which it begins, the index of the candidate, and for how many tenths it lasts.
type Timed = (u64, usize, Disturbance, u64);

fn disturbances() -> impl Strategy<Value = Disturbance> {
    use Disturbance::{Annotate, Delete, Freeze, Kill, Line, Signal, Stop};
    let millis = |millis| Duration::from_millis(millis);
    prop_oneof![
        2 => Just(Kill),
        1 => Just(Stop),
        4 => Just(Freeze),
        2 => Just(Signal),
        2 => Just(Line(Fault::CutOff)),
        2 => Just(Line(Fault::AnswerLost)),
        2 => (0_u64..12_000).prop_map(move |late| Line(Fault::Late(millis(late)))),
        2 => (0_u64..4000).prop_map(move |slow| Line(Fault::Slow(millis(slow)))),
        2 => prop_oneof![Just(500), Just(503), Just(429), Just(403), Just(409)].prop_map(|status| Line(Fault::Status(status))),
        1 => (0_u64..3000).prop_map(move |after| Disturbance::Work(Work::Panics(millis(after)))),
        1 => Just(Disturbance::Work(Work::IgnoresEnd)),
        1 => Just(Delete),
        1 => Just(Annotate),
    ]
}

fn timed_disturbances() -> impl Strategy<Value = Vec<Timed>> {
    proptest::collection::vec((0_u64..1200, 0_usize..3, disturbances(), 1_u64..400), 1..20)
}

fn apply(
    election: &ElectionFixture,
    candidates: &mut [TestCandidate],
    index: usize,
    disturbance: Disturbance,
    begins: bool,
    fresh: &mut u32,
) {
    let mut restart = |candidate: &mut TestCandidate| {
        *fresh += 1;
        *candidate = election.candidate(&format!("new{fresh}"), i64::from(*fresh % 5) * 150 - 300);
    };
    let candidate = &mut candidates[index];
    match disturbance {
        Disturbance::Kill if begins => candidate.kill(),
        Disturbance::Stop if begins => candidate.stop(),
        Disturbance::Kill | Disturbance::Stop => restart(candidate),
        Disturbance::Freeze => candidate.freeze(begins),
        Disturbance::Signal => candidate.signal(begins),
        Disturbance::Line(fault) => candidate.line.set(if begins { fault } else { Fault::None }),
        Disturbance::Work(work) => {
            candidate
                .work
                .send_replace(if begins { work } else { Work::Writes(Duration::ZERO) });
        }
        Disturbance::Delete if begins => election.delete_lease(),
        Disturbance::Annotate if begins => election.annotate("headgate.dev/nodes", "nonsense"),
        Disturbance::Delete | Disturbance::Annotate => {}
    }
}

async fn scenario(disturbances: Vec<Timed>) {
    let election = ElectionFixture::new(3);
    let mut candidates = election.candidates(3);
    let edges = disturbances.iter().flat_map(|(at, index, disturbance, lasts)| {
        [(*at, true), (at + lasts, false)].map(|(at, begins)| (at, *index, *disturbance, begins))
    });
    let mut edges: Vec<_> = edges.collect();
    edges.sort_by_key(|(at, ..)| *at);
    let (mut now, mut fresh, mut killed) = (0, 0, [0_u32; 3]);
    for (at, index, disturbance, begins) in edges {
        election.pass(Duration::from_millis((at - now) * 100)).await;
        now = at;
        // A process that was ended twice is started once.
        if matches!(disturbance, Disturbance::Kill | Disturbance::Stop) {
            killed[index] = if begins { killed[index] + 1 } else { killed[index] - 1 };
            if !begins && killed[index] > 0 {
                continue;
            }
        }
        apply(&election, &mut candidates, index, disturbance, begins, &mut fresh);
    }
    for candidate in &candidates {
        candidate.freeze(false);
        candidate.signal(false);
        candidate.line.set(Fault::None);
        candidate.work.send_replace(Work::Writes(Duration::ZERO));
    }
    let fails = |(_, _, disturbance, _): &Timed| matches!(disturbance, Disturbance::Work(Work::Panics(_)));
    // If work failed, instances abstain.
    let abstain = Duration::from_mins(if disturbances.iter().any(fails) { 10 } else { 0 });
    election.leader_after(-1, LEADER_TIMEOUT + abstain).await;
    // Delayed requests may still arrive.
    election.pass(15 * SECOND).await;
    election.leader_after(-1, LEADER_TIMEOUT).await;
    election.pass(2 * SECOND).await;
    let leader = election.leader();
    election.pass(40 * SECOND).await;
    let is_same = leader.is_some() && election.leader() == leader;
    assert!(is_same, "the leader does not change: {leader:?}");
}

#[test]
fn under_random_faults_there_are_never_two_leaders_and_soon_one_again() {
    run_paused(file!(), 32, &timed_disturbances(), scenario);
}

#[tokio::test(start_paused = true)]
async fn the_checks_detect_two_leaders() {
    // Two elections, each with its own Lease, whose terms one journal gets.
    let (one, other) = (ElectionFixture::new(1), ElectionFixture::new(1));
    let (_a, _b) = (one.candidate("a", 0), other.candidate("b", 0));
    one.pass(LEADER_TIMEOUT).await;
    assert!(one.leader().is_some() && other.leader().is_some());
    let mut terms = std::mem::take(&mut other.journal.lock().unwrap().terms);
    one.journal.lock().unwrap().terms.append(&mut terms);
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| one.leader())).expect_err("the check must panic");
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("two valid terms"), "{text}");
}
