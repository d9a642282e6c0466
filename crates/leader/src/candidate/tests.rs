//! The decisions over a scenario of events, without clock and API.

use headgate_clock::Clock;

use super::super::lease_state::LeaseState;
use super::*;

/// A candidate with inputs that a test sets, the time included.
struct Scenario {
    candidate: Candidate,
    inputs: Inputs,
}

impl Scenario {
    fn new() -> Self {
        let now = Clock::System.now();
        Self {
            candidate: Candidate::new("me".to_owned(), 7, now),
            inputs: Inputs {
                now,
                is_stopping: false,
                is_signalled: false,
                fleet: None,
            },
        }
    }

    /// Handles an event so many milliseconds later.
    fn after(&mut self, millis: u64, event: Event) -> Action {
        self.inputs.now.mono += Duration::from_millis(millis);
        self.candidate.step(event, self.inputs)
    }

    /// The first term: the candidate finds a released Lease and acquires it. Returns the record that it wrote.
    fn leading() -> (Self, ElectionRecord) {
        let mut scenario = Self::new();
        assert!(matches!(scenario.after(0, Event::Woke), Action::Wait(Some(_))));
        assert!(matches!(scenario.after(5000, Event::Woke), Action::Read(_)));
        let released = ElectionRecord {
            lease: LeaseState {
                resource_version: Some("1".to_owned()),
                transitions: 6,
                acquired: Some(scenario.inputs.now.wall),
                ..LeaseState::default()
            },
            ..ElectionRecord::default()
        };
        let Action::Write(acquired, _) = scenario.after(10, Event::Read(Some(released))) else {
            panic!("the Lease is free")
        };
        assert_eq!(
            (
                acquired.lease.holder.as_str(),
                acquired.lease.transitions,
                acquired.lease.resource_version.as_deref()
            ),
            ("me", 7, Some("1"))
        );
        let began = scenario.inputs.now.mono;
        let wait = scenario.after(500, Event::Written(acquired.clone()));
        assert_eq!(wait, Action::Wait(Some(began + Duration::from_secs(2))));
        let until = began + Duration::from_secs(10);
        let target = TaskTarget::Run {
            term: 7,
            until,
            handover: false,
        };
        assert_eq!(
            scenario.candidate.task_target(),
            target,
            "the deadline counts from the start of the write"
        );
        (scenario, acquired)
    }
}

#[test]
fn a_renewal_without_a_response_moves_no_deadline() {
    let (mut scenario, _) = Scenario::leading();
    let until = |scenario: &Scenario| match scenario.candidate.task_target() {
        TaskTarget::Run { until, .. } => Some(until),
        _ => None,
    };
    let before = until(&scenario);
    let Action::Write(renewal, by) = scenario.after(1500, Event::Woke) else {
        panic!("the renewal is due")
    };
    assert_eq!(by, scenario.inputs.now.mono + Duration::from_secs(3));
    // The write may have taken effect, so the Lease is read before the next attempt.
    assert!(matches!(scenario.after(3000, Event::NoResponse), Action::Read(_)));
    let Action::Write(again, _) = scenario.after(10, Event::Read(Some(renewal))) else {
        panic!("the Lease is still held")
    };
    assert!(
        matches!(scenario.after(3000, Event::NoResponse), Action::Read(by) if Some(by) == before),
        "limited by the term"
    );
    assert_eq!(until(&scenario), before);
    assert!(matches!(scenario.after(10, Event::Written(again)), Action::Wait(_)));
    assert!(until(&scenario) > before);
}

#[test]
fn a_term_past_its_deadline_is_not_continued_by_a_late_response() {
    for late in [
        Event::Woke,
        Event::DeadlinePassed,
        Event::NoResponse,
        Event::Written(ElectionRecord::default()),
    ] {
        let (mut scenario, _) = Scenario::leading();
        assert!(matches!(scenario.after(1500, Event::Woke), Action::Write(..)));
        assert!(matches!(scenario.after(8500, late), Action::Wait(Some(_))));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Stop { abort: false });
        // It does not contend until its work has ended.
        assert_eq!(scenario.after(3000, Event::Woke), Action::Wait(None));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Stop { abort: true });
        assert!(matches!(
            scenario.after(60_000, Event::WorkEnded(WorkOutcome::Finished)),
            Action::Wait(Some(_))
        ));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
    }
}

#[test]
fn the_lease_is_released_as_it_was_written_and_only_after_the_work() {
    let (mut scenario, acquired) = Scenario::leading();
    scenario.inputs.is_stopping = true;
    assert!(matches!(scenario.after(100, Event::Woke), Action::Wait(Some(_))));
    assert!(
        matches!(scenario.candidate.task_target(), TaskTarget::Run { handover: true, .. }),
        "the work may still finish"
    );
    let Action::Write(released, _) = scenario.after(100, Event::WorkEnded(WorkOutcome::Finished)) else {
        panic!("the Lease is released")
    };
    assert_eq!(released.lease.resource_version, acquired.lease.resource_version);
    assert!(released.is_released() && released.lease.transitions == 7);
    assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
    assert_eq!(
        scenario.after(10, Event::Conflict),
        Action::Stop,
        "another holder's Lease stays as it is"
    );
}

#[test]
fn a_missing_lease_is_created_first_and_acquired_later() {
    let mut scenario = Scenario::new();
    assert!(matches!(scenario.after(5000, Event::Woke), Action::Read(_)));
    let Action::Write(created, _) = scenario.after(10, Event::Read(None)) else {
        panic!("the Lease is created")
    };
    assert!(created.was_never_held() && created.lease.resource_version.is_none());
    let Action::Wait(Some(read_at)) = scenario.after(10, Event::Written(created.clone())) else {
        panic!("the candidate waits")
    };
    let millis = u64::try_from((read_at - scenario.inputs.now.mono).as_millis()).unwrap();
    assert!(millis <= 15_000);
    assert!(matches!(scenario.after(15_000, Event::Woke), Action::Read(_)));
    assert!(
        matches!(scenario.after(10, Event::Read(Some(created))), Action::Write(acquired, _) if acquired.lease.transitions == 1)
    );
}
