//! How terms go on, and end.

use super::super::super::fleet::Fleet;
use super::*;

#[test]
fn a_failed_renewal_is_tried_again_after_the_retry_period() {
    let (mut scenario, _) = Scenario::leading();
    for first in [Event::Woke, Event::Conflict] {
        let action = scenario.after(1500, first);
        assert!(matches!(action, Action::Write(..) | Action::Read(_)), "{action:?}");
    }
    // The read after a conflict conflicts too.
    let attempt = scenario.inputs.now.mono;
    for failure in [Event::Conflict, Event::Refused, Event::NoResponse] {
        assert_eq!(scenario.waits(100, failure), attempt + Duration::from_secs(2));
    }
}

#[test]
fn a_term_ends_when_the_lease_is_read_as_that_of_another_term() {
    let held = |holder: &str, term| ElectionRecord::default().acquired(holder, term, jiff::Timestamp::UNIX_EPOCH);
    for (found, goes_on) in [
        (Some(held("me", 7)), true),
        (Some(held("other", 8)), false),
        (Some(held("other", 7)), false),
        (Some(held("me", 8)), false),
        (None, false),
    ] {
        let (mut scenario, _) = Scenario::leading();
        scenario.writes(1500, Event::Woke);
        scenario.reads(3000, Event::NoResponse);
        scenario.after(10, Event::Read(found.clone()));
        let target = scenario.candidate.task_target();
        assert_eq!(matches!(target, TaskTarget::Run(_)), goes_on, "{found:?}: {target:?}");
    }
}

/// What the candidate writes to a free Lease that it reads, perhaps for the second time: others have the first choice, and where leaders have
/// failed, nobody acquires it for a while.
fn acquired(scenario: &mut Scenario, free: ElectionRecord) -> ElectionRecord {
    let read = Event::Read(Some(free));
    if let Action::Write(acquired, _) = scenario.after(0, read.clone()) {
        return acquired;
    }
    scenario.after(90_000, Event::Woke);
    scenario.writes(0, read)
}

/// The own node has a signal, and another candidate's has none.
fn has_healthy_peer(scenario: &mut Scenario) {
    scenario.inputs.is_signalled = true;
    scenario.inputs.fleet = Some(Fleet {
        candidates: 2,
        has_healthy_peer: true,
    });
}

#[test]
fn each_signalled_term_lasts_longer_until_the_signal_ends() {
    let mut scenario = Scenario::new();
    has_healthy_peer(&mut scenario);
    let mut record = ElectionRecord::default();
    record.lease.acquired = Some(scenario.inputs.now.wall);
    for (another_has_led, had_no_signal, minutes) in
        [(false, false, 1), (false, false, 2), (true, false, 4), (true, true, 1)]
    {
        scenario.after(60_000, Event::Woke);
        if another_has_led {
            scenario.inputs.is_signalled = !had_no_signal;
            let theirs = record.acquired("other", record.lease.transitions + 1, scenario.inputs.now.wall);
            scenario.after(0, Event::Read(Some(theirs.clone())));
            scenario.inputs.is_signalled = true;
            record = theirs.released(0, scenario.inputs.now.wall);
            scenario.after(60_000, Event::Woke);
        }
        let written = acquired(&mut scenario, record);
        let mut action = scenario.after(0, Event::Written(written));
        let mut seconds = 0;
        while scenario.handover().is_none() {
            action = if let Action::Write(written, _) = action {
                scenario.after(0, Event::Written(written))
            } else {
                seconds += 1;
                assert!(seconds <= 300, "no handover");
                scenario.after(1000, Event::Woke)
            };
        }
        assert_eq!(seconds, 60 * minutes, "{another_has_led} {had_no_signal}");
        let released = scenario.writes(0, Event::WorkEnded(WorkOutcome::Finished));
        scenario.after(0, Event::Written(released.clone()));
        record = released;
    }
}

/// A leader that hands over, since its node has a signal and another candidate's has none.
fn handing_over() -> (Scenario, ElectionRecord) {
    let (mut scenario, acquired) = Scenario::leading();
    has_healthy_peer(&mut scenario);
    (scenario, acquired)
}

#[test]
fn the_lease_is_read_before_a_release_that_follows_a_renewal_without_a_response() {
    let (mut scenario, _) = handing_over();
    let renewal = scenario.writes(1500, Event::Woke);
    scenario.waits(100, Event::NoResponse);
    let ended = Event::WorkEnded(WorkOutcome::Finished);
    scenario.reads(0, ended);
    let mut found = renewal;
    found.lease.resource_version = Some("9".to_owned());
    let released = scenario.writes(10, Event::Read(Some(found)));
    assert!(released.is_released() && released.lease.transitions == 7);
    assert_eq!(released.lease.resource_version.as_deref(), Some("9"));
}

#[test]
fn a_release_that_may_have_failed_is_tried_once_more() {
    let held = |holder: &str, term| ElectionRecord::default().acquired(holder, term, jiff::Timestamp::UNIX_EPOCH);
    let (own, others) = (held("me", 7), held("other", 8));
    let in_time = |by: Instant, scenario: &Scenario| by == scenario.inputs.now.mono + REQUEST_TIMEOUT;
    for (failure, retries_after, found, is_tried) in [
        (Event::NoResponse, Some(2000), Some(own.clone()), true),
        (Event::NoResponse, Some(2000), Some(others.clone()), false),
        (Event::NoResponse, Some(2000), Some(held("me", 8)), false),
        (Event::NoResponse, Some(2000), None, false),
        (Event::Conflict, Some(0), Some(own), true),
        (Event::Conflict, Some(0), Some(others), false),
        (Event::Refused, None, None, false),
    ] {
        let (mut scenario, _) = Scenario::leading();
        scenario.inputs.is_stopping = true;
        scenario.waits(100, Event::Woke);
        let ended = Event::WorkEnded(WorkOutcome::Finished);
        scenario.writes(100, ended);
        let began = scenario.inputs.now.mono;
        let mut action = scenario.after(100, failure.clone());
        let Some(after) = retries_after else {
            assert_eq!(action, Action::Stop, "{failure:?}");
            continue;
        };
        if after > 0 {
            assert_eq!(action, Action::Wait(Some(began + Duration::from_millis(after))));
            action = scenario.after(after, Event::Woke);
        }
        let is_read = matches!(action, Action::Read(by) if in_time(by, &scenario));
        assert!(is_read, "{failure:?}: {action:?}");
        let action = scenario.after(10, Event::Read(found.clone()));
        if is_tried {
            let Action::Write(record, by) = action else {
                panic!("{action:?}")
            };
            assert!(record.is_released() && in_time(by, &scenario));
            assert_eq!(scenario.after(10, failure), Action::Stop, "twice is enough");
        } else {
            assert_eq!(action, Action::Stop, "{failure:?} {found:?}");
        }
    }
}

#[test]
fn a_lease_that_a_candidate_finds_its_own_is_released_where_another_is_to_lead() {
    // Whether the own node has a signal, and whether the process stops during the request, and after it.
    for (is_signalled, is_stopping, stops_later) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (false, false, true),
    ] {
        let mut scenario = Scenario::new();
        scenario.inputs.is_signalled = is_signalled;
        scenario.after(5000, Event::Woke);
        let now = scenario.inputs.now.wall;
        let released = ElectionRecord::default().acquired("other", 3, now).released(0, now);
        let mut action = scenario.after(0, Event::Read(Some(released.clone())));
        if is_signalled {
            scenario.after(60_000, Event::Woke);
            action = scenario.after(0, Event::Read(Some(released)));
        }
        let Action::Write(acquired, _) = action else {
            panic!("the Lease is free")
        };
        scenario.inputs.is_stopping = is_stopping;
        let mut action = scenario.after(3000, Event::NoResponse);
        if !is_stopping {
            assert!(matches!(action, Action::Wait(_)));
            scenario.inputs.is_stopping = stops_later;
            action = scenario.after(if stops_later { 100 } else { 60_000 }, Event::Woke);
        }
        assert!(matches!(action, Action::Read(_)), "{action:?}");
        let is_stopping = scenario.inputs.is_stopping;
        if is_stopping {
            let without_answer = scenario.candidate.clone().step(Event::NoResponse, scenario.inputs);
            assert_eq!(without_answer, Action::Stop, "once is enough");
        }
        let written = scenario.writes(10, Event::Read(Some(acquired)));
        let is_left = is_signalled || is_stopping;
        assert_eq!(written.is_released(), is_left, "{is_signalled} {is_stopping}");
        if is_stopping {
            let refused = scenario.after(10, Event::Refused);
            assert_eq!(refused, Action::Stop, "nor is it released again and again");
        }
    }
}

#[test]
fn an_instance_whose_work_fails_again_abstains_for_longer_until_a_long_successful_term() {
    /// Ends the term, and returns after what time the candidate reads the Lease, and the Lease as released.
    fn end(scenario: &mut Scenario, outcome: WorkOutcome) -> (Duration, ElectionRecord) {
        let released = scenario.writes(0, Event::WorkEnded(outcome));
        let read_at = scenario.waits(0, Event::Written(released.clone()));
        (read_at - scenario.inputs.now.mono, released)
    }
    fn acquire(scenario: &mut Scenario, released: ElectionRecord) {
        // Longer than it abstains, and than all wait where leaders have failed.
        scenario.reads(90_000, Event::Woke);
        let acquired = acquired(scenario, released);
        scenario.waits(0, Event::Written(acquired));
    }
    let (mut scenario, _) = Scenario::leading();
    for (failed_terms, seconds) in [(1, 14), (2, 28), (3, 56)] {
        let (after, released) = end(&mut scenario, WorkOutcome::Failed);
        assert_eq!((released.failed_terms, after.as_secs()), (failed_terms, seconds));
        acquire(&mut scenario, released);
    }
    for _ in 0..300 {
        let renewal = scenario.writes(2000, Event::Woke);
        scenario.waits(0, Event::Written(renewal));
    }
    let (_, released) = end(&mut scenario, WorkOutcome::Finished);
    acquire(&mut scenario, released);
    assert_eq!(end(&mut scenario, WorkOutcome::Failed).0, Duration::from_secs(14));
}
