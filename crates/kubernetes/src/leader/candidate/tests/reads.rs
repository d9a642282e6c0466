//! When a candidate that does not lead reads the Lease.

use super::*;

#[test]
fn reads_spread_once_their_interval_has_more_than_doubled() {
    // The numbers of candidates that a leader has published by each read, and the wait after the last one in milliseconds.
    for (published, expected) in [
        (&[None][..], 4000..4800),
        (&[None, None], 8000..9600),
        (&[Some(300)], 0..33_000),
        (&[Some(300), Some(300)], 30_000..36_000),
        (&[Some(200), Some(400)], 40_000..48_000),
        (&[Some(100), Some(300)], 0..33_000),
    ] {
        let wait = |seed| {
            let mut scenario = Scenario::new();
            scenario.candidate = Candidate::new("me".to_owned(), seed, scenario.inputs.now);
            let mut record = ElectionRecord::default().acquired("other", 3, scenario.inputs.now.wall);
            let mut wait = 5000;
            for candidates in published {
                scenario.reads(wait, Event::Woke);
                record = record.renewed(*candidates, scenario.inputs.now.wall);
                let read_at = scenario.waits(0, Event::Read(Some(record.clone())));
                wait = u64::try_from((read_at - scenario.inputs.now.mono).as_millis()).unwrap() + 1;
            }
            wait - 1
        };
        let waits: Vec<u64> = (0..100).map(wait).collect();
        let is_expected = waits.iter().all(|wait| expected.contains(wait));
        assert!(is_expected, "{published:?}: {waits:?}");
        let fifth = (expected.end - expected.start) / 5;
        assert!(waits.iter().any(|wait| *wait < expected.start + fifth), "{published:?}");
        assert!(waits.iter().any(|wait| *wait >= expected.end - fifth), "{published:?}");
    }
}

#[test]
fn an_extra_read_long_before_the_regular_one_leaves_it_where_it_is() {
    let half = Duration::from_secs(12);
    let (mut early, mut late) = (0, 0);
    for seed in 0..100 {
        let mut scenario = Scenario::new();
        scenario.candidate = Candidate::new("me".to_owned(), seed, scenario.inputs.now);
        let mut record = ElectionRecord::default().acquired("other", 3, scenario.inputs.now.wall);
        let mut read = |scenario: &mut Scenario, millis, age| {
            scenario.reads(millis, Event::Woke);
            record = record.renewed(
                Some(240),
                scenario.inputs.now.wall - jiff::SignedDuration::from_secs(age),
            );
            scenario.waits(0, Event::Read(Some(record.clone())))
        };
        let millis =
            |scenario: &Scenario, at: Instant| u64::try_from((at - scenario.inputs.now.mono).as_millis()).unwrap() + 1;
        let first = read(&mut scenario, 5000, 0);
        let wait = millis(&scenario, first);
        let regular = read(&mut scenario, wait, 0);
        let regular_after = regular - scenario.inputs.now.mono;
        // The holder seems to be gone: one more read shows that it is not.
        let wait = millis(&scenario, regular);
        let extra = read(&mut scenario, wait, 9);
        assert_eq!(extra - scenario.inputs.now.mono, LEASE_DURATION, "{regular_after:?}");
        let Phase::Waiting(schedule) = &scenario.candidate.phase else {
            panic!("it waits")
        };
        let regular = schedule.next_read;
        let next = read(&mut scenario, 14_000, 0);
        let left = regular - scenario.inputs.now.mono;
        if left >= half {
            early += 1;
            assert_eq!(next, regular);
        } else {
            late += 1;
            assert!(next - scenario.inputs.now.mono >= 2 * half);
        }
    }
    assert!(early > 5 && late > 5, "{early} {late}");
}

#[test]
fn only_a_write_that_may_have_acquired_the_lease_is_followed_by_an_early_read() {
    let others = ElectionRecord::default().acquired("other", 3, jiff::Timestamp::UNIX_EPOCH);
    let others = Event::Read(Some(others));
    // Whether a read failed before, and the responses to one acquisition after the other, or a read that allows none.
    for (has_read_failed, responses, seconds) in [
        (false, &[Event::Conflict][..], 30..36),
        (false, &[Event::Refused], 30..36),
        (false, &[Event::NoResponse], 2..3),
        (true, &[Event::NoResponse], 2..3),
        (false, &[Event::NoResponse, Event::NoResponse], 30..36),
        (false, &[Event::NoResponse, Event::Conflict, Event::NoResponse], 2..3),
        (false, &[Event::NoResponse, Event::Refused, Event::NoResponse], 2..3),
        (false, &[Event::NoResponse, others, Event::NoResponse], 2..3),
    ] {
        let mut scenario = Scenario::new();
        let held = ElectionRecord::default().acquired("other", 3, scenario.inputs.now.wall);
        let released = ElectionRecord {
            candidates: Some(300),
            ..held.released(0, scenario.inputs.now.wall)
        };
        if has_read_failed {
            scenario.after(5000, Event::Woke);
            scenario.waits(0, Event::NoResponse);
        }
        let mut wait = 0;
        for response in responses {
            scenario.reads(36_000, Event::Woke);
            if matches!(response, Event::Read(_)) {
                scenario.waits(10, response.clone());
                continue;
            }
            scenario.writes(10, Event::Read(Some(released.clone())));
            let read_at = scenario.waits(10, response.clone());
            wait = (read_at - scenario.inputs.now.mono).as_secs();
        }
        assert!(seconds.contains(&wait), "{has_read_failed} {responses:?}: {wait} s");
    }
}
