//! Scenarios of a few candidates: stops, handovers, faults, and failed terms.

use std::time::Duration;

use headgate_kubernetes::leader::{CANDIDATES_ANNOTATION, CandidatePlacement, FAILED_TERMS_ANNOTATION};
use headgate_test_kubernetes::Fault;
use hyper::Method;
use tokio::time::Instant;

use super::election_fixture::{ElectionFixture, SECOND, TestCandidate, Work, named, nodes};

const MINUTE: Duration = Duration::from_mins(1);

/// So many candidates, one of which has led for a minute. Returns also the number and the holder of its term.
async fn settled(count: u8) -> (ElectionFixture, Vec<TestCandidate>, i32, String) {
    settle(ElectionFixture::new(count.into()), count).await
}

/// The same for candidates of this election.
async fn settle(election: ElectionFixture, count: u8) -> (ElectionFixture, Vec<TestCandidate>, i32, String) {
    let candidates = election.candidates(count);
    let (number, holder, _) = election.leader_after(-1, MINUTE).await;
    election.pass(MINUTE).await;
    // The leader does not change.
    assert_eq!(election.leader(), Some((number, holder.clone())));
    (election, candidates, number, holder)
}

fn annotation(election: &ElectionFixture, name: &str) -> Option<String> {
    election.lease()?.metadata.annotations?.get(name).cloned()
}

fn failed_terms(election: &ElectionFixture) -> Option<String> {
    annotation(election, FAILED_TERMS_ANNOTATION)
}

#[tokio::test(start_paused = true)]
async fn the_first_leader_waits_for_no_lease() {
    for count in [1, 2, 20] {
        let election = ElectionFixture::new(count.into());
        let _candidates = election.candidates(count);
        let (number, holder, took) = election.leader_after(-1, MINUTE).await;
        assert!(number == 1 && took < 3 * SECOND, "{count}: {took:?}");
        election.pass(MINUTE).await;
        assert_eq!(election.leader(), Some((number, holder)));
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_orderly_stop_of_all_the_next_leader_comes_within_three_seconds() {
    let (election, candidates, number, _) = settled(3).await;
    for candidate in &candidates {
        candidate.stop();
    }
    election.pass(5 * SECOND).await;
    assert!(candidates.iter().all(TestCandidate::has_ended));
    let _next = election.candidate("next", 0);
    let (.., took) = election.leader_after(number, MINUTE).await;
    assert!(took < 3 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_of_all_the_next_leader_waits_a_lease_duration_from_its_first_read() {
    let (election, candidates, number, _) = settled(3).await;
    for candidate in &candidates {
        candidate.kill();
    }
    let _next = election.candidate("next", 0);
    let (.., took) = election.leader_after(number, MINUTE).await;
    assert!(took >= 14 * SECOND && took < 15 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_deleted_beside_its_ledger_is_waited_for() {
    let (election, candidates, ..) = settled(1).await;
    // It leads on until its term ends.
    candidates[0].line.set(Fault::CutOff);
    election.delete_lease();
    let _new = election.candidate("new", 0);
    election.pass(15 * SECOND).await;
    assert_eq!(election.terms(), 1);
    election.pass(7 * SECOND).await;
    assert_eq!(election.leader().map(|(_, holder)| holder).as_deref(), Some("new"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_releases_the_lease_when_its_work_has_ended() {
    let (election, candidates, number, holder) = settled(3).await;
    named(&candidates, &holder).work.send_replace(Work::Writes(SECOND));
    election.pass(SECOND).await;
    let stopped = Instant::now();
    named(&candidates, &holder).stop();
    election.pass(SECOND / 2).await;
    // The work continues until it ends.
    assert_eq!(election.leader(), Some((number, holder.clone())));
    let (.., took) = election.leader_after(number, MINUTE).await;
    assert!(took < 4 * SECOND, "{took:?}");
    let last = election.last_write(number) - stopped;
    assert!(last > SECOND * 4 / 5 && last < SECOND * 6 / 5, "{last:?}");
    assert!(named(&candidates, &holder).has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_aborts_its_work_and_releases_the_lease_after_three_seconds() {
    let (election, candidates, number, holder) = settled(3).await;
    named(&candidates, &holder).work.send_replace(Work::IgnoresEnd);
    election.pass(SECOND).await;
    let stopped = Instant::now();
    named(&candidates, &holder).stop();
    election.leader_after(number, MINUTE).await;
    let last = election.last_write(number) - stopped;
    assert!(last > 2 * SECOND && last <= 3 * SECOND, "{last:?}");
    assert!(stopped.elapsed() < 6 * SECOND && named(&candidates, &holder).has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_signalled_leader_hands_over_to_a_candidate_without_a_signal() {
    let (election, candidates, number, holder) = settled(3).await;
    let other = candidates.iter().find(|candidate| candidate.name != holder).unwrap();
    other.signal(true);
    named(&candidates, &holder).signal(true);
    let (next, successor, took) = election.leader_after(number, MINUTE).await;
    assert!(took < 4 * SECOND, "{took:?}");
    assert_eq!(next, number + 1);
    let is_healthy = successor != other.name && successor != holder;
    assert!(is_healthy, "{successor}");
    election.pass(MINUTE).await;
    assert_eq!(election.leader(), Some((next, successor)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_hands_over_though_the_release_fails_at_first() {
    for (is_stop, fault) in [
        (false, Fault::Status(429)),
        (false, Fault::Status(503)),
        (true, Fault::Status(429)),
        (true, Fault::Status(503)),
    ] {
        let (election, candidates, number, holder) = settled(3).await;
        let leader = named(&candidates, &holder);
        leader.line.set_for(fault, |request| request.method == Method::PUT);
        if is_stop {
            leader.stop();
        } else {
            leader.signal(true);
        }
        election.pass(SECOND * 3 / 10).await;
        leader.line.set(Fault::None);
        let (_, successor, took) = election.leader_after(number, MINUTE).await;
        let found = format!("{is_stop} {fault:?}: {successor} after {took:?}");
        assert!(successor != holder && took < 4 * SECOND, "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signalled_leader_hands_over_before_others_know_how_often_to_read() {
    for published_after in [0, 3, 6, 12, 18, 60] {
        let election = ElectionFixture::new(3);
        let nodes = election.nodes.send_replace(None);
        let candidates = election.candidates(3);
        let (number, holder, _) = election.leader_after(-1, MINUTE).await;
        election.pass(published_after * SECOND).await;
        election.nodes.send_replace(nodes);
        // Its next renewal publishes their number; the others read that some seconds later.
        election.pass(3 * SECOND).await;
        let other = candidates.iter().find(|candidate| candidate.name != holder).unwrap();
        other.signal(true);
        named(&candidates, &holder).signal(true);
        let (_, successor, took) = election.leader_after(number, MINUTE).await;
        assert!(took <= 18 * SECOND, "{published_after}: {took:?}");
        let is_healthy = successor != other.name && successor != holder;
        assert!(is_healthy, "{published_after}: {successor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signalled_leader_hands_over_before_others_know_that_they_are_fewer() {
    // From the last read of the other candidate, more or less.
    for after in [0, 2, 4, 6, 8] {
        let (election, candidates, number, holder) = settled(2).await;
        election.nodes.send_replace(Some(nodes(100, true)));
        election.pass(3 * MINUTE + after * SECOND).await;
        // Two steps: that others read each 10 s is not forgotten after the second.
        for fewer in [6, 5] {
            election.nodes.send_replace(Some(nodes(fewer, true)));
            election.pass(5 * SECOND / 2).await;
        }
        named(&candidates, &holder).signal(true);
        let (_, successor, took) = election.leader_after(number, MINUTE).await;
        let found = format!("{after}: {successor} after {took:?}");
        assert!(successor != holder && took <= 13 * SECOND, "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signalled_leader_stays_until_there_is_a_healthy_peer() {
    let (election, candidates, number, holder) = settled(2).await;
    election.nodes.send_replace(Some(nodes(2, false)));
    named(&candidates, &holder).signal(true);
    election.pass(MINUTE).await;
    election.nodes.send_replace(None);
    election.pass(MINUTE).await;
    // No healthy peer is known.
    assert_eq!(election.leader(), Some((number, holder.clone())));
    election.nodes.send_replace(Some(nodes(2, true)));
    let (_, successor, took) = election.leader_after(number, MINUTE).await;
    assert!(successor != holder && took < 4 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn replicas_are_counted_though_no_work_reports_nodes() {
    let mut election = ElectionFixture::new(2);
    election.placement = CandidatePlacement::Replicas;
    election.nodes.send_replace(None);
    let (election, candidates, number, holder) = settle(election, 2).await;
    assert_eq!(annotation(&election, CANDIDATES_ANNOTATION).as_deref(), Some("2"));
    named(&candidates, &holder).signal(true);
    election.pass(2 * MINUTE).await;
    // No healthy peer is known.
    assert_eq!(election.leader(), Some((number, holder.clone())));
    named(&candidates, &holder).kill();
    let (next, successor, took) = election.leader_after(number, MINUTE).await;
    assert!(took <= 23 * SECOND, "{took:?}");
    // An orderly stop is noticed as soon as among candidates that were reported.
    let returned = election.candidate("returned", 0);
    election.pass(MINUTE).await;
    named(&candidates, &successor).stop();
    let (.., took) = election.leader_after(next, MINUTE).await;
    assert!(took < 4 * SECOND && !returned.has_ended(), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_candidate_leads_while_all_are_signalled() {
    let (election, candidates, number, holder) = settled(3).await;
    for candidate in &candidates {
        candidate.signal(true);
    }
    // The last report is from before all were signalled.
    let (next, successor, took) = election.leader_after(number, MINUTE).await;
    // The others would have read twice by then.
    assert!(took > SECOND && took < 3 * SECOND, "{took:?}");
    election.pass(50 * SECOND).await;
    // There is no handover without a successor.
    assert_eq!(election.leader(), Some((next, successor.clone())));
    election.nodes.send_replace(Some(nodes(3, false)));
    named(&candidates, &successor).kill();
    let (last, _, took) = election.leader_after(next, 2 * MINUTE).await;
    // A lease duration and the delay of signalled candidates.
    assert!(took > 14 * SECOND && took < 19 * SECOND, "{took:?}");
    assert!(last > next && !holder.is_empty());
}

#[tokio::test(start_paused = true)]
async fn signalled_candidates_lead_nearly_all_the_time() {
    // Deployments that were scaled down: from the Nodes it seems that another candidate exists.
    for replicas in [1, 2] {
        let (election, candidates, first, _) = settled(replicas).await;
        election.nodes.send_replace(Some(nodes(3, true)));
        for candidate in &candidates {
            candidate.signal(true);
        }
        let (began, mut without, mut last) = (Instant::now(), Duration::ZERO, first);
        while began.elapsed() < 60 * MINUTE {
            match election.leader() {
                Some((term, _)) => last = term,
                None => without += SECOND / 10,
            }
            tokio::time::sleep(SECOND / 10).await;
        }
        let terms = last - first;
        println!("{replicas}: {terms} terms, and without a leader for {without:.1?} of an hour");
        assert!(without > SECOND && without < 60 * SECOND, "{without:?}");
        assert!(terms < 20, "{terms} terms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_connection_stops_before_the_next_one_begins() {
    let (election, candidates, number, holder) = settled(3).await;
    let cut = Instant::now();
    named(&candidates, &holder).line.set(Fault::CutOff);
    let (next, successor, took) = election.leader_after(number, MINUTE).await;
    let last = election.last_write(number) - cut;
    println!("cut off: last write after {last:.1?}, the next leader after {took:.1?}");
    assert!(last > 7 * SECOND && last <= 10 * SECOND, "{last:?}");
    assert!(took > 13 * SECOND && took < 22 * SECOND);
    named(&candidates, &holder).line.set(Fault::None);
    election.pass(MINUTE).await;
    assert_eq!(election.leader(), Some((next, successor)), "the former leader follows");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_frozen_writes_nothing_and_does_not_touch_the_lease() {
    let (election, candidates, number, holder) = settled(3).await;
    let leader = named(&candidates, &holder);
    leader.freeze(true);
    let frozen = Instant::now();
    let (next, successor, _) = election.leader_after(number, MINUTE).await;
    // It is also asked to stop; the Lease is another's by then.
    leader.stop();
    leader.freeze(false);
    election.pass(10 * SECOND).await;
    assert!(leader.has_ended() && election.last_write(number) <= frozen);
    assert_eq!(election.leader(), Some((next, successor.clone())));
    assert_eq!(election.holder(), successor);
}

#[tokio::test(start_paused = true)]
async fn short_faults_end_no_term() {
    let (election, candidates, number, holder) = settled(3).await;
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
        named(&candidates, &holder).line.set(fault);
        election.pass(5 * SECOND).await;
        named(&candidates, &holder).line.set(Fault::None);
        election.pass(15 * SECOND).await;
        assert_eq!(election.leader(), Some((number, holder.clone())), "{fault:?}");
    }
    election.annotate("other", "1");
    election.pass(15 * SECOND).await;
    // An annotation of others ends no term.
    assert_eq!(election.leader(), Some((number, holder)));
    assert_eq!(election.lease().unwrap().metadata.annotations.unwrap()["other"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_whose_acquisition_got_no_response_soon_leads_with_a_new_number() {
    let (election, candidates, number, holder) = settled(3).await;
    for candidate in candidates.iter().filter(|candidate| candidate.name != holder) {
        candidate.line.set(Fault::AnswerLost);
    }
    named(&candidates, &holder).stop();
    while election.holder() == holder || election.holder().is_empty() {
        election.pass(SECOND / 10).await;
        // Reads get responses; the write that acquires the Lease does not.
        let free = election.holder().is_empty();
        for candidate in candidates.iter().filter(|candidate| candidate.name != holder) {
            candidate.line.set(if free { Fault::None } else { Fault::AnswerLost });
        }
        if free {
            // Until the read that finds the Lease free has its response.
            election.pass(SECOND / 100).await;
        }
    }
    for candidate in &candidates {
        candidate.line.set(Fault::None);
    }
    let (next, _, took) = election.leader_after(number, MINUTE).await;
    assert!(took < 8 * SECOND && next > number, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_work_ends_the_term_and_another_instance_leads() {
    for work in [Work::Panics(Duration::ZERO), Work::Fails(Duration::ZERO)] {
        let (election, candidates, number, holder) = settled(3).await;
        named(&candidates, &holder).work.send_replace(work);
        let (next, successor, took) = election.leader_after(number, MINUTE).await;
        assert!(successor != holder && took < 4 * SECOND, "{took:?}");
        assert_eq!(failed_terms(&election).as_deref(), Some("1"));
        assert!(!named(&candidates, &holder).has_ended(), "the process continues");
        election.pass(2 * MINUTE).await;
        assert_eq!(failed_terms(&election), None, "a term succeeded");
        assert_eq!(election.leader(), Some((next, successor)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_work_is_noticed_though_each_renewal_takes_longer_than_the_retry_period() {
    for is_stop in [false, true] {
        let (election, candidates, number, holder) = settled(3).await;
        let leader = named(&candidates, &holder);
        // Each way of a request takes this long.
        leader.line.set(Fault::Slow(Duration::from_millis(1100)));
        election.pass(5 * SECOND).await;
        if is_stop {
            leader.stop();
        } else {
            leader.work.send_replace(Work::Fails(Duration::ZERO));
        }
        let (_, successor, took) = election.leader_after(number, MINUTE).await;
        let found = format!("{is_stop}: {successor} after {took:?}");
        assert!(successor != holder && took < 6 * SECOND, "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_failing_work_abstains_longer_each_time() {
    let election = ElectionFixture::new(1);
    let candidates = election.candidates(1);
    candidates[0].work.send_replace(Work::Panics(SECOND));
    election.pass(90 * MINUTE).await;
    let journal = election.journal.lock().unwrap();
    let begun: Vec<_> = journal.terms.iter().map(|(.., begun)| *begun).collect();
    let pauses: Vec<_> = begun.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    println!("terms that fail at once begin after {pauses:?} s");
    assert!(pauses.len() > 8 && pauses[0] >= 15 && pauses.iter().all(|pause| *pause < 16 * 60));
    assert!(pauses[1] >= 30 && pauses[2] >= 60 && pauses[6] >= 600);
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_everywhere_causes_few_terms() {
    let election = ElectionFixture::new(40);
    let candidates: Vec<_> = (0..40).map(|n| election.candidate(&format!("m{n}"), 0)).collect();
    let all = |work| {
        for candidate in &candidates {
            candidate.work.send_replace(work);
        }
    };
    all(Work::Fails(Duration::ZERO));
    election.pass(10 * MINUTE).await;
    let terms = election.terms();
    println!("{terms} terms in 10 minutes in which all work fails");
    assert!((4..=8).contains(&terms), "{terms}");
    all(Work::Writes(Duration::ZERO));
    election.leader_after(i32::try_from(terms).unwrap(), 6 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_or_is_down_gets_few_requests() {
    for fault in [Fault::Status(403), Fault::Status(503)] {
        let election = ElectionFixture::new(10);
        let candidates = election.candidates(10);
        election.leader_after(-1, MINUTE).await;
        election.pass(MINUTE).await;
        for candidate in &candidates {
            candidate.line.set(fault);
        }
        let attempts = || -> usize { candidates.iter().map(|candidate| candidate.line.tries()).sum() };
        let (before, tried) = (election.fake.requests().len(), attempts());
        election.pass(5 * MINUTE).await;
        assert_eq!(election.fake.requests().len(), before, "no request arrived");
        let tried = attempts() - tried;
        assert!((300..3300).contains(&tried), "ten a second of all candidates: {tried}");
        for candidate in &candidates {
            candidate.line.set(Fault::None);
        }
        let (.., took) = election.leader_after(1, MINUTE).await;
        assert!(took < 3 * SECOND, "the Lease had expired long before: {took:?}");
        election.pass(10 * SECOND).await;
        let requests = &election.fake.requests()[before..];
        let gets = requests.iter().filter(|asked| asked.method == Method::GET).count();
        assert!(gets < 110, "ten a second of all candidates: {gets}");
    }
}
