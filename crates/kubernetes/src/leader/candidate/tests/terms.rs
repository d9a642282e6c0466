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
        assert_eq!(
            scenario.after(100, failure),
            Action::Wait(Some(attempt + Duration::from_secs(2)))
        );
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
        assert!(matches!(scenario.after(1500, Event::Woke), Action::Write(..)));
        assert!(matches!(scenario.after(3000, Event::NoResponse), Action::Read(_)));
        scenario.after(10, Event::Read(found.clone()));
        let target = scenario.candidate.task_target();
        assert_eq!(
            matches!(target, TaskTarget::Run { .. }),
            goes_on,
            "{found:?}: {target:?}"
        );
    }
}

#[test]
fn an_instance_whose_work_fails_again_abstains_for_longer() {
    let (mut scenario, _) = Scenario::leading();
    for (failed_terms, seconds) in [(1, 15), (2, 30)] {
        let Action::Write(released, _) = scenario.after(100, Event::WorkEnded(WorkOutcome::Failed)) else {
            panic!("the Lease is released")
        };
        assert_eq!(released.failed_terms, failed_terms);
        let read_at = scenario.inputs.now.mono + Duration::from_secs(seconds);
        assert_eq!(
            scenario.after(0, Event::Written(released.clone())),
            Action::Wait(Some(read_at))
        );
        assert!(matches!(scenario.after(seconds * 1000, Event::Woke), Action::Read(_)));
        let mut action = scenario.after(0, Event::Read(Some(released.clone())));
        if matches!(action, Action::Wait(_)) {
            // Where leaders have failed, nobody acquires the Lease for a while.
            scenario.after(60_000, Event::Woke);
            action = scenario.after(0, Event::Read(Some(released)));
        }
        let Action::Write(acquired, _) = action else {
            panic!("nobody else leads")
        };
        assert!(matches!(
            scenario.after(0, Event::Written(acquired)),
            Action::Wait(Some(_))
        ));
    }
}

#[test]
fn each_signalled_term_lasts_longer_until_another_candidate_leads() {
    let mut scenario = Scenario::new();
    scenario.inputs.is_signalled = true;
    scenario.inputs.fleet = Some(Fleet {
        candidates: 2,
        has_healthy_peer: true,
    });
    let mut record = ElectionRecord::default();
    record.lease.acquired = Some(scenario.inputs.now.wall);
    for (another_has_led, minutes) in [(false, 1), (false, 2), (true, 1)] {
        scenario.after(60_000, Event::Woke);
        if another_has_led {
            let theirs = record.acquired("other", record.lease.transitions + 1, scenario.inputs.now.wall);
            scenario.after(0, Event::Read(Some(theirs.clone())));
            record = theirs.released(0, scenario.inputs.now.wall);
            scenario.after(60_000, Event::Woke);
        }
        let mut action = scenario.after(0, Event::Read(Some(record.clone())));
        if matches!(action, Action::Wait(_)) {
            // The others have the first choice.
            scenario.after(60_000, Event::Woke);
            action = scenario.after(0, Event::Read(Some(record)));
        }
        let mut seconds = 0;
        while !matches!(
            scenario.candidate.task_target(),
            TaskTarget::Run { handover: Some(_), .. }
        ) {
            action = if let Action::Write(written, _) = action {
                scenario.after(0, Event::Written(written))
            } else {
                seconds += 1;
                assert!(seconds <= 300, "no handover");
                scenario.after(1000, Event::Woke)
            };
        }
        assert_eq!(seconds, 60 * minutes, "{another_has_led}");
        let Action::Write(released, _) = scenario.after(0, Event::WorkEnded(WorkOutcome::Finished)) else {
            panic!("the Lease is released")
        };
        scenario.after(0, Event::Written(released.clone()));
        record = released;
    }
}

/// A leader that hands over, since its node has a signal and another candidate's has none.
fn handing_over() -> (Scenario, ElectionRecord) {
    let (mut scenario, acquired) = Scenario::leading();
    scenario.inputs.is_signalled = true;
    scenario.inputs.fleet = Some(Fleet {
        candidates: 2,
        has_healthy_peer: true,
    });
    (scenario, acquired)
}

#[test]
fn the_lease_is_read_before_a_release_that_follows_a_renewal_without_a_response() {
    let (mut scenario, _) = handing_over();
    let Action::Write(renewal, _) = scenario.after(1500, Event::Woke) else {
        panic!("the renewal is due")
    };
    assert!(matches!(scenario.after(100, Event::NoResponse), Action::Wait(_)));
    let ended = Event::WorkEnded(WorkOutcome::Finished);
    assert!(matches!(scenario.after(0, ended), Action::Read(_)));
    let mut found = renewal;
    found.lease.resource_version = Some("9".to_owned());
    let Action::Write(released, _) = scenario.after(10, Event::Read(Some(found))) else {
        panic!("it still holds the Lease")
    };
    assert!(released.is_released() && released.lease.transitions == 7);
    assert_eq!(released.lease.resource_version.as_deref(), Some("9"));
}

#[test]
fn a_release_that_may_have_failed_is_tried_once_more() {
    let held = |holder: &str, term| ElectionRecord::default().acquired(holder, term, jiff::Timestamp::UNIX_EPOCH);
    let (own, others) = (held("me", 7), held("other", 8));
    for (failure, retries_after, found, is_tried) in [
        (Event::NoResponse, Some(2000), Some(own.clone()), true),
        (Event::NoResponse, Some(2000), Some(others.clone()), false),
        (Event::NoResponse, Some(2000), None, false),
        (Event::Conflict, Some(0), Some(own), true),
        (Event::Conflict, Some(0), Some(others), false),
        (Event::Refused, None, None, false),
    ] {
        let (mut scenario, _) = Scenario::leading();
        scenario.inputs.is_stopping = true;
        assert!(matches!(scenario.after(100, Event::Woke), Action::Wait(_)));
        let ended = Event::WorkEnded(WorkOutcome::Finished);
        assert!(matches!(scenario.after(100, ended), Action::Write(..)));
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
        assert!(matches!(action, Action::Read(_)), "{failure:?}: {action:?}");
        let action = scenario.after(10, Event::Read(found.clone()));
        if is_tried {
            assert!(
                matches!(&action, Action::Write(record, _) if record.is_released()),
                "{action:?}"
            );
            assert_eq!(scenario.after(10, failure), Action::Stop, "twice is enough");
        } else {
            assert_eq!(action, Action::Stop, "{failure:?} {found:?}");
        }
    }
}

#[test]
fn a_lease_that_a_candidate_finds_its_own_is_released_where_another_is_to_lead() {
    for (is_signalled, is_stopping) in [(false, false), (true, false), (false, true)] {
        let mut scenario = Scenario::new();
        scenario.inputs.is_signalled = is_signalled;
        scenario.after(5000, Event::Woke);
        let released = ElectionRecord::default()
            .acquired("other", 3, scenario.inputs.now.wall)
            .released(0, scenario.inputs.now.wall);
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
            action = scenario.after(60_000, Event::Woke);
        }
        assert!(matches!(action, Action::Read(_)));
        let Action::Write(written, _) = scenario.after(10, Event::Read(Some(acquired))) else {
            panic!("it is its own")
        };
        assert_eq!(
            written.is_released(),
            is_signalled || is_stopping,
            "{is_signalled} {is_stopping}"
        );
    }
}

#[test]
fn failed_terms_before_a_long_successful_one_make_an_instance_abstain_no_longer() {
    /// Ends the term, and returns after how many seconds the candidate reads the Lease, and the Lease as released.
    fn end(scenario: &mut Scenario, outcome: WorkOutcome) -> (u64, ElectionRecord) {
        let Action::Write(released, _) = scenario.after(0, Event::WorkEnded(outcome)) else {
            panic!("the Lease is released")
        };
        let Action::Wait(Some(read_at)) = scenario.after(0, Event::Written(released.clone())) else {
            panic!("it waits")
        };
        ((read_at - scenario.inputs.now.mono).as_secs(), released)
    }
    fn acquire(scenario: &mut Scenario, released: ElectionRecord) {
        // Longer than it abstains, and than all wait where leaders have failed.
        scenario.after(90_000, Event::Woke);
        let mut action = scenario.after(0, Event::Read(Some(released.clone())));
        if matches!(action, Action::Wait(_)) {
            scenario.after(90_000, Event::Woke);
            action = scenario.after(0, Event::Read(Some(released)));
        }
        let Action::Write(acquired, _) = action else {
            panic!("nobody else leads")
        };
        assert!(matches!(scenario.after(0, Event::Written(acquired)), Action::Wait(_)));
    }
    let (mut scenario, _) = Scenario::leading();
    for seconds in [15, 30, 60] {
        let (after, released) = end(&mut scenario, WorkOutcome::Failed);
        assert_eq!(after, seconds);
        acquire(&mut scenario, released);
    }
    for _ in 0..300 {
        let Action::Write(renewal, _) = scenario.after(2000, Event::Woke) else {
            panic!("the renewal is due")
        };
        assert!(matches!(scenario.after(0, Event::Written(renewal)), Action::Wait(_)));
    }
    let (_, released) = end(&mut scenario, WorkOutcome::Finished);
    acquire(&mut scenario, released);
    assert_eq!(end(&mut scenario, WorkOutcome::Failed).0, 15);
}
