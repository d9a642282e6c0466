//! What becomes of one Lease among a few candidates: from the first install to everybody's node being taken away.

use std::time::Duration;

use headgate_leader::{FAILED_TERMS_ANNOTATION, Fleet};
use headgate_test_kubernetes::Fault;
use hyper::Method;
use tokio::time::Instant;

use super::world::{Member, SECOND, Work, World, named};

const MINUTE: Duration = Duration::from_mins(1);

/// A world with this many candidates, one of which has led for a minute; its term's number and its name.
async fn settled(count: u8) -> (World, Vec<Member>, i32, String) {
    let world = World::new(count.into());
    let members = world.members(count);
    let (number, holder, _) = world.leader_after(-1, MINUTE).await;
    world.pass(MINUTE).await;
    assert_eq!(world.leader(), Some((number, holder.clone())), "it stays");
    (world, members, number, holder)
}

fn failed_terms(world: &World) -> Option<String> {
    let annotations = world.lease()?.metadata.annotations?;
    annotations.get(FAILED_TERMS_ANNOTATION).cloned()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_is_made_and_taken_after_one_lease_duration() {
    let world = World::new(2);
    let _members = world.members(2);
    let (number, _, took) = world.leader_after(-1, MINUTE).await;
    assert_eq!(number, 1);
    assert!(took > 15 * SECOND && took < 22 * SECOND, "{took:?}");
    world.pass(10 * SECOND).await;
    let lease = world.lease().unwrap();
    assert_eq!(lease.metadata.annotations.unwrap()["headgate.dev/nodes"], "2");
    let spec = lease.spec.unwrap();
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(15), Some(1))
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_gives_the_lease_back_once_its_work_has_ended() {
    let (world, members, number, holder) = settled(3).await;
    named(&members, &holder).work.send_replace(Work::Writes(SECOND));
    world.pass(SECOND).await;
    let stopped = Instant::now();
    named(&members, &holder).stop();
    world.pass(SECOND / 2).await;
    assert_eq!(
        world.leader(),
        Some((number, holder.clone())),
        "its work goes on until it ends"
    );
    let (.., took) = world.leader_after(number, MINUTE).await;
    assert!(took < 4 * SECOND, "{took:?}");
    let last = world.last_write(number) - stopped;
    assert!(last > SECOND * 4 / 5 && last < SECOND * 6 / 5, "{last:?}");
    assert!(named(&members, &holder).has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_work_does_not_end_gives_the_lease_back_after_three_seconds() {
    let (world, members, number, holder) = settled(3).await;
    named(&members, &holder).work.send_replace(Work::Deaf);
    world.pass(SECOND).await;
    let stopped = Instant::now();
    named(&members, &holder).stop();
    world.leader_after(number, MINUTE).await;
    let last = world.last_write(number) - stopped;
    assert!(last > 2 * SECOND && last <= 3 * SECOND, "{last:?}");
    assert!(stopped.elapsed() < 6 * SECOND && named(&members, &holder).has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_signal_hands_over_to_one_without() {
    let (world, members, number, holder) = settled(3).await;
    let other = members.iter().find(|member| member.name != holder).unwrap();
    other.signal(true);
    named(&members, &holder).signal(true);
    let (next, heir, took) = world.leader_after(number, MINUTE).await;
    assert!(took < 4 * SECOND, "{took:?}");
    assert_eq!(next, number + 1);
    assert!(heir != other.name && heir != holder, "the one without a signal");
    world.pass(MINUTE).await;
    assert_eq!(world.leader(), Some((next, heir)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_signal_stays_until_there_is_somebody_without_one() {
    let (world, members, number, holder) = settled(2).await;
    let fleet = |has_healthy_peer| {
        Some(Fleet {
            candidates: 2,
            has_healthy_peer,
        })
    };
    world.fleet.send_replace(fleet(false));
    named(&members, &holder).signal(true);
    world.pass(MINUTE).await;
    world.fleet.send_replace(None);
    world.pass(MINUTE).await;
    assert_eq!(
        world.leader(),
        Some((number, holder.clone())),
        "nobody else is known of"
    );
    world.fleet.send_replace(fleet(true));
    let (_, heir, took) = world.leader_after(number, MINUTE).await;
    assert!(heir != holder && took < 4 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn where_everybody_has_a_signal_one_stands_in() {
    let (world, members, number, holder) = settled(3).await;
    for member in &members {
        member.signal(true);
    }
    // As it was last known, before all were signalled.
    let (next, heir, took) = world.leader_after(number, MINUTE).await;
    assert!(
        took > 4 * SECOND && took < 9 * SECOND,
        "the others would have looked twice by then: {took:?}"
    );
    world.pass(50 * SECOND).await;
    assert_eq!(
        world.leader(),
        Some((next, heir.clone())),
        "not given over at once to nobody"
    );
    world.fleet.send_replace(Some(Fleet {
        candidates: 3,
        has_healthy_peer: false,
    }));
    named(&members, &heir).kill();
    let (last, _, took) = world.leader_after(next, 2 * MINUTE).await;
    assert!(
        took > 17 * SECOND && took < 26 * SECOND,
        "expired, and somewhat more: {took:?}"
    );
    assert!(last > next && !holder.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lone_candidate_with_a_signal_leads_nearly_all_the_time() {
    let (world, members, _, _) = settled(1).await;
    // A Deployment that was scaled down to one: by the Nodes, somebody could take over.
    world.fleet.send_replace(Some(Fleet {
        candidates: 2,
        has_healthy_peer: true,
    }));
    members[0].signal(true);
    let (began, mut without) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < 60 * MINUTE {
        without += if world.leader().is_none() {
            SECOND / 10
        } else {
            Duration::ZERO
        };
        tokio::time::sleep(SECOND / 10).await;
    }
    println!("without a leader for {without:.1?} of an hour");
    assert!(without > SECOND && without < 60 * SECOND, "{without:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_has_stopped_before_the_next_begins() {
    let (world, members, number, holder) = settled(3).await;
    let cut = Instant::now();
    named(&members, &holder).line.set(Fault::CutOff);
    let (next, heir, took) = world.leader_after(number, MINUTE).await;
    let last = world.last_write(number) - cut;
    println!("cut off: last write after {last:.1?}, the next leader after {took:.1?}");
    assert!(last > 7 * SECOND && last <= 10 * SECOND, "{last:?}");
    assert!(took > 13 * SECOND && took < 22 * SECOND);
    named(&members, &holder).line.set(Fault::None);
    world.pass(MINUTE).await;
    assert_eq!(world.leader(), Some((next, heir)), "it comes back as a follower");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stood_still_writes_nothing_and_leaves_the_lease_alone() {
    let (world, members, number, holder) = settled(3).await;
    let leader = named(&members, &holder);
    leader.freeze(true);
    let frozen = Instant::now();
    let (next, heir, _) = world.leader_after(number, MINUTE).await;
    // On waking it is to stop, too: its Lease is another's now.
    leader.stop();
    leader.freeze(false);
    world.pass(10 * SECOND).await;
    assert!(leader.has_ended() && world.last_write(number) <= frozen);
    assert_eq!(world.leader(), Some((next, heir.clone())));
    assert_eq!(world.holder(), heir);
}

#[tokio::test(start_paused = true)]
async fn short_trouble_ends_no_term() {
    let (world, members, number, holder) = settled(3).await;
    for fault in [
        Fault::CutOff,
        Fault::AnswerLost,
        Fault::Late(4 * SECOND),
        Fault::Status(500),
        Fault::Status(429),
        Fault::Status(403),
        Fault::Slow(SECOND),
        Fault::Slow(2 * SECOND),
    ] {
        named(&members, &holder).line.set(fault);
        world.pass(5 * SECOND).await;
        named(&members, &holder).line.set(Fault::None);
        world.pass(15 * SECOND).await;
        assert_eq!(world.leader(), Some((number, holder.clone())), "{fault:?}");
    }
    world.annotate("other", "1");
    world.pass(15 * SECOND).await;
    assert_eq!(world.leader(), Some((number, holder)), "what others note on it");
    assert_eq!(world.lease().unwrap().metadata.annotations.unwrap()["other"], "1");
}

#[tokio::test(start_paused = true)]
async fn whoever_won_without_hearing_of_it_soon_leads_with_another_number() {
    let (world, members, number, holder) = settled(3).await;
    for member in members.iter().filter(|member| member.name != holder) {
        member.line.set(Fault::AnswerLost);
    }
    named(&members, &holder).stop();
    while world.holder() == holder || world.holder().is_empty() {
        world.pass(SECOND / 10).await;
        // Looks have to be answered, the write that wins has not.
        let free = world.holder().is_empty();
        for member in members.iter().filter(|member| member.name != holder) {
            member.line.set(if free { Fault::None } else { Fault::AnswerLost });
        }
        if free {
            // Until the look that finds it free has been answered.
            world.pass(SECOND / 100).await;
        }
    }
    for member in &members {
        member.line.set(Fault::None);
    }
    let (next, _, took) = world.leader_after(number, MINUTE).await;
    assert!(took < 8 * SECOND && next > number, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_makes_no_second_leader_and_no_number_twice() {
    let (world, _members, number, _) = settled(3).await;
    world.delete_lease();
    let (next, _, took) = world.leader_after(number, MINUTE).await;
    assert!(
        next == number + 1 && took > 14 * SECOND && took < 22 * SECOND,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_ends_the_term_and_another_instance_begins() {
    for work in [Work::Panics(Duration::ZERO), Work::Fails(Duration::ZERO)] {
        let (world, members, number, holder) = settled(3).await;
        named(&members, &holder).work.send_replace(work);
        let (next, heir, took) = world.leader_after(number, MINUTE).await;
        assert!(heir != holder && took < 4 * SECOND, "{took:?}");
        assert_eq!(failed_terms(&world).as_deref(), Some("1"));
        assert!(!named(&members, &holder).has_ended(), "the process goes on");
        world.pass(2 * MINUTE).await;
        assert_eq!(failed_terms(&world), None, "it goes well");
        assert_eq!(world.leader(), Some((next, heir)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_work_fails_again_and_again_rests_ever_longer() {
    let world = World::new(1);
    let members = world.members(1);
    members[0].work.send_replace(Work::Panics(SECOND));
    world.pass(90 * MINUTE).await;
    let journal = world.journal.lock().unwrap();
    let begun: Vec<_> = journal.terms.iter().map(|(.., begun)| *begun).collect();
    let pauses: Vec<_> = begun.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    println!("terms that fail at once begin after {pauses:?} s");
    assert!(pauses.len() > 8 && pauses[0] >= 15 && pauses.iter().all(|pause| *pause < 16 * 60));
    assert!(pauses[1] >= 30 && pauses[2] >= 60 && pauses[6] >= 600);
}

#[tokio::test(start_paused = true)]
async fn what_fails_everywhere_does_not_go_round_the_fleet() {
    let world = World::new(40);
    let members: Vec<_> = (0..40).map(|n| world.member(&format!("m{n}"), 0)).collect();
    let all = |work| members.iter().for_each(|member| _ = member.work.send_replace(work));
    all(Work::Fails(Duration::ZERO));
    world.pass(10 * MINUTE).await;
    let terms = world.terms();
    println!("{terms} terms in 10 minutes of nothing but failures");
    assert!((4..=8).contains(&terms), "{terms}");
    all(Work::Writes(Duration::ZERO));
    world.leader_after(i32::try_from(terms).unwrap(), 6 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_or_is_away_is_not_stormed() {
    for fault in [Fault::Status(403), Fault::Status(503)] {
        let world = World::new(10);
        let members = world.members(10);
        world.leader_after(-1, MINUTE).await;
        world.pass(MINUTE).await;
        for member in &members {
            member.line.set(fault);
        }
        let before = world.fake.requests().len();
        world.pass(5 * MINUTE).await;
        assert_eq!(world.fake.requests().len(), before, "none arrived");
        for member in &members {
            member.line.set(Fault::None);
        }
        let (.., took) = world.leader_after(1, MINUTE).await;
        assert!(took < 3 * SECOND, "the Lease had long expired: {took:?}");
        world.pass(10 * SECOND).await;
        let gets = world.fake.requests()[before..]
            .iter()
            .filter(|asked| asked.method == Method::GET)
            .count();
        assert!(gets < 80, "{gets}");
    }
}
