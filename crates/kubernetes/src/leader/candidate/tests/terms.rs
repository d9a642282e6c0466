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
