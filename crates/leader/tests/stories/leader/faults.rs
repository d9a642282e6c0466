//! Leaders that die, stand still and are cut off, a hundred times each; then everything at once, at random.
//!
//! Never two valid terms (each write and every 50 ms are looked at: see `world`), never a number twice, and once the
//! faults stop, a leader within the bound, who stays.

use std::time::Duration;

use headgate_test_kubernetes::Fault;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::time::sleep;

use super::world::{Member, SECOND, Work, World};

/// Once nothing fails any more: a look, what is left of a Lease, one more lease duration if all have a signal.
const BOUND: Duration = Duration::from_secs(75);

#[tokio::test(start_paused = true)]
async fn a_hundred_leaders_die_a_hundred_stand_still_and_a_hundred_are_cut_off() {
    let world = World::new(3);
    let mut members = world.members(3);
    let (mut number, mut holder, _) = world.leader_after(-1, BOUND).await;
    for kind in ["killed", "frozen", "cut off"] {
        let mut times = Vec::new();
        for round in 0..100_u32 {
            world
                .pass(SECOND * 5 + Duration::from_millis(u64::from(round * 37 % 2000)))
                .await;
            let index = members.iter().position(|member| member.name == holder).unwrap();
            match kind {
                "killed" => {
                    members.swap_remove(index).kill();
                    members.push(world.member(&format!("m{round}"), i64::from(round % 7) * 100 - 300));
                }
                "frozen" => members[index].freeze(true),
                _ => members[index].line.set(if round % 2 == 0 {
                    Fault::CutOff
                } else {
                    Fault::AnswerLost
                }),
            }
            let (next, heir, took) = world.leader_after(number, BOUND).await;
            times.push(took);
            for member in &members {
                member.freeze(false);
                member.line.set(Fault::None);
            }
            (number, holder) = (next, heir);
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
enum Trouble {
    Kill,
    Stop,
    Freeze,
    Signal,
    Line(Fault),
    Work(Work),
    Delete,
    Annotate,
}

/// What happens to which of three, at which tenth of a second, for how many.
type Happening = (u64, usize, Trouble, u64);

fn troubles() -> impl Strategy<Value = Trouble> {
    use Trouble::{Annotate, Delete, Freeze, Kill, Line, Signal, Stop};
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
        1 => (0_u64..3000).prop_map(move |after| Trouble::Work(Work::Panics(millis(after)))),
        1 => Just(Trouble::Work(Work::Deaf)),
        1 => Just(Delete),
        1 => Just(Annotate),
    ]
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    proptest::collection::vec((0_u64..1200, 0_usize..3, troubles(), 1_u64..400), 1..20)
}

fn apply(world: &World, members: &mut [Member], index: usize, trouble: Trouble, begins: bool, fresh: &mut u32) {
    let mut anew = |member: &mut Member| {
        *fresh += 1;
        *member = world.member(&format!("new{fresh}"), i64::from(*fresh % 5) * 150 - 300);
    };
    let member = &mut members[index];
    match trouble {
        Trouble::Kill if begins => member.kill(),
        Trouble::Stop if begins => member.stop(),
        Trouble::Kill | Trouble::Stop => anew(member),
        Trouble::Freeze => member.freeze(begins),
        Trouble::Signal => member.signal(begins),
        Trouble::Line(fault) => member.line.set(if begins { fault } else { Fault::None }),
        Trouble::Work(work) => {
            member
                .work
                .send_replace(if begins { work } else { Work::Writes(Duration::ZERO) });
        }
        Trouble::Delete if begins => world.delete_lease(),
        Trouble::Annotate if begins => world.annotate("headgate.dev/nodes", "nonsense"),
        Trouble::Delete | Trouble::Annotate => {}
    }
}

async fn story(happenings: Vec<Happening>) {
    let world = World::new(3);
    let mut members = world.members(3);
    let mut edges: Vec<_> = happenings
        .iter()
        .flat_map(|(at, index, trouble, lasts)| [(*at, *index, *trouble, true), (at + lasts, *index, *trouble, false)])
        .collect();
    edges.sort_by_key(|(at, ..)| *at);
    let (mut now, mut fresh, mut killed) = (0, 0, [0_u32; 3]);
    for (at, index, trouble, begins) in edges {
        world.pass(Duration::from_millis((at - now) * 100)).await;
        now = at;
        // A process that was ended twice begins anew once.
        if matches!(trouble, Trouble::Kill | Trouble::Stop) {
            killed[index] = if begins { killed[index] + 1 } else { killed[index] - 1 };
            if !begins && killed[index] > 0 {
                continue;
            }
        }
        apply(&world, &mut members, index, trouble, begins, &mut fresh);
    }
    for member in &members {
        member.freeze(false);
        member.signal(false);
        member.line.set(Fault::None);
        member.work.send_replace(Work::Writes(Duration::ZERO));
    }
    let failed = happenings
        .iter()
        .any(|(_, _, trouble, _)| matches!(trouble, Trouble::Work(Work::Panics(_))));
    // Work that failed everywhere: all rest, the longer the more often.
    let bound = if failed { BOUND + Duration::from_mins(10) } else { BOUND };
    world.leader_after(-1, bound).await;
    // What was sent late may still arrive.
    world.pass(15 * SECOND).await;
    world.leader_after(-1, BOUND).await;
    world.pass(2 * SECOND).await;
    let leader = world.leader();
    world.pass(40 * SECOND).await;
    assert!(leader.is_some() && world.leader() == leader, "it stays: {leader:?}");
}

#[test]
fn whatever_fails_there_are_never_two_leaders_and_soon_one_again() {
    let asked_for = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        cases: if asked_for { Config::default().cases } else { 32 },
        max_shrink_iters: 200,
        ..Config::with_source_file(file!())
    };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&happenings(), |happenings| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(story(happenings));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test(start_paused = true)]
async fn the_checks_see_two_leaders() {
    // Two worlds' worth of writers on one journal, each with a Lease of its own.
    let (one, mut other) = (World::new(1), World::new(1));
    other.journal = std::sync::Arc::clone(&one.journal);
    other.fake.skip_versions(10);
    let (_a, _b) = (one.member("a", 0), other.member("b", 0));
    let seen = tokio::spawn(async move {
        one.pass(BOUND).await;
    });
    sleep(BOUND * 2).await;
    assert!(seen.await.is_err(), "they would be seen");
}
