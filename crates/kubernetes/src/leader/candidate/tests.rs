//! The decisions over a scenario of events, without clock and API.

use headgate_core::clock::Clock;

use super::super::successor_request::InabilityReason;
use super::*;

mod reads;
mod terms;

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
                unable: None,
                throttle: ThrottledUntil::default(),
            },
        }
    }

    /// Handles an event so many milliseconds later.
    fn after(&mut self, millis: u64, event: Event) -> Action {
        self.inputs.now.mono += Duration::from_millis(millis);
        self.candidate.step(event, self.inputs)
    }

    /// Handles an event after which it writes this record.
    #[track_caller]
    fn writes(&mut self, millis: u64, event: Event) -> ElectionRecord {
        match self.after(millis, event) {
            Action::Write(record, _) => record,
            action => panic!("no write: {action:?}"),
        }
    }

    /// Handles an event after which it waits until then.
    #[track_caller]
    fn waits(&mut self, millis: u64, event: Event) -> Instant {
        match self.after(millis, event) {
            Action::Wait(Some(until)) => until,
            action => panic!("no wait: {action:?}"),
        }
    }

    #[track_caller]
    fn reads(&mut self, millis: u64, event: Event) {
        let action = self.after(millis, event);
        assert!(matches!(action, Action::Read(_)), "{action:?}");
    }

    #[track_caller]
    fn creates_ledger(&mut self, millis: u64, event: Event) {
        let action = self.after(millis, event);
        assert!(matches!(action, Action::CreateLedger(_)), "{action:?}");
    }

    /// The handover of the term that it leads.
    #[track_caller]
    fn handover(&self) -> Option<Handover> {
        match self.candidate.task_target() {
            TaskTarget::Run(target) => target.handover,
            target => panic!("no term: {target:?}"),
        }
    }

    /// The first term: the candidate finds a released Lease and acquires it. Returns the record that it wrote.
    fn leading() -> (Self, ElectionRecord) {
        let mut scenario = Self::new();
        scenario.waits(0, Event::Woke);
        let read = scenario.after(5000, Event::Woke);
        let by = |scenario: &Self| scenario.inputs.now.mono + Duration::from_secs(3);
        assert_eq!(read, Action::Read(by(&scenario)));
        let mut released = ElectionRecord::default();
        released.lease.resource_version = Some("1".to_owned());
        released.lease.transitions = 6;
        released.lease.acquired = Some(scenario.inputs.now.wall);
        let Action::Write(acquired, deadline) = scenario.after(10, Event::Read(Some(released))) else {
            panic!("the Lease is free")
        };
        assert_eq!(deadline, by(&scenario));
        assert_eq!((acquired.lease.holder.as_str(), acquired.lease.transitions), ("me", 7));
        assert_eq!(acquired.lease.resource_version.as_deref(), Some("1"));
        let renewed = scenario.inputs.now;
        let began = renewed.mono;
        let wait = scenario.after(500, Event::Written(acquired.clone()));
        assert_eq!(wait, Action::Wait(Some(began + Duration::from_secs(2))));
        let until = began + Duration::from_secs(10);
        let target = TaskTarget::Run(TermTarget {
            number: 7,
            until,
            renewed,
            handover: None,
            throttle: ThrottledUntil::default(),
        });
        // The deadline counts from the start of the write.
        assert_eq!(scenario.candidate.task_target(), target);
        (scenario, acquired)
    }
}

#[test]
fn a_renewal_without_a_response_moves_no_deadline() {
    let (mut scenario, _) = Scenario::leading();
    let until = |scenario: &Scenario| match scenario.candidate.task_target() {
        TaskTarget::Run(target) => Some(target.until),
        _ => None,
    };
    let before = until(&scenario);
    let Action::Write(renewal, by) = scenario.after(1500, Event::Woke) else {
        panic!("the renewal is due")
    };
    assert_eq!(by, scenario.inputs.now.mono + Duration::from_secs(3));
    // The write may have taken effect, so the Lease is read before the next attempt.
    scenario.reads(3000, Event::NoResponse);
    let again = scenario.writes(10, Event::Read(Some(renewal)));
    let read = scenario.after(3000, Event::NoResponse);
    assert_eq!(Some(read), before.map(Action::Read), "limited by the term");
    assert_eq!(until(&scenario), before);
    scenario.waits(10, Event::Written(again));
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
        scenario.writes(1500, Event::Woke);
        let until = scenario.waits(8500, late);
        assert_eq!(until, scenario.inputs.now.mono + Duration::from_secs(3));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Stop { abort: false });
        // It does not contend until its work has ended.
        assert_eq!(scenario.after(3000, Event::Woke), Action::Wait(None));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Stop { abort: true });
        scenario.waits(60_000, Event::WorkEnded(WorkOutcome::Finished));
        assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
    }
}

#[test]
fn the_lease_is_released_as_it_was_written_and_only_after_the_work() {
    let (mut scenario, acquired) = Scenario::leading();
    scenario.inputs.is_stopping = true;
    scenario.waits(100, Event::Woke);
    assert_eq!(scenario.handover(), Some(Handover::Requested));
    let released = scenario.writes(100, Event::WorkEnded(WorkOutcome::Finished));
    assert_eq!(released.lease.resource_version, acquired.lease.resource_version);
    assert!(released.is_released() && released.lease.transitions == 7);
    assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
    scenario.reads(10, Event::Conflict);
    let others = ElectionRecord::default().acquired("other", 8, scenario.inputs.now.wall);
    // Another holder's Lease stays as it is.
    assert_eq!(scenario.after(10, Event::Read(Some(others))), Action::Stop);
}

#[test]
fn a_lease_without_a_ledger_is_acquired_as_it_is_created() {
    let mut scenario = Scenario::new();
    scenario.reads(5000, Event::Woke);
    let created = scenario.after(10, Event::Read(None));
    let began = scenario.inputs.now.mono;
    assert_eq!(created, Action::CreateLedger(began + Duration::from_secs(3)));
    let created = scenario.writes(2000, Event::LedgerCreated);
    assert_eq!((created.lease.holder.as_str(), created.lease.transitions), ("me", 1));
    assert_eq!(created.lease.resource_version, None);
    scenario.after(1000, Event::Written(created));
    let TaskTarget::Run(target) = scenario.candidate.task_target() else {
        panic!("it leads")
    };
    // The deadline counts from before the ledger.
    assert_eq!((target.number, target.until), (1, began + Duration::from_secs(10)));
}

#[test]
fn a_ledger_created_too_long_ago_begins_no_term() {
    let mut scenario = Scenario::new();
    scenario.reads(5000, Event::Woke);
    scenario.creates_ledger(10, Event::Read(None));
    // The process stands still.
    let created = scenario.writes(60_000, Event::LedgerCreated);
    scenario.waits(10, Event::Written(created));
    assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
}

/// What a candidate does whose creation of the ledger gets this response.
fn after_ledger(change: impl FnOnce(&mut Scenario), response: Event) -> Action {
    let mut scenario = Scenario::new();
    change(&mut scenario);
    scenario.after(5000, Event::Woke);
    scenario.creates_ledger(10, Event::Read(None));
    scenario.after(10, response)
}

#[test]
fn only_who_creates_the_ledger_and_knows_of_no_lease_leads_at_once() {
    let is_held = |action: &Action| matches!(action, Action::Write(record, _) if !record.is_released());
    let is_unheld = |action: &Action| matches!(action, Action::Write(record, _) if record.was_never_held());
    assert!(is_held(&after_ledger(|_| (), Event::LedgerCreated)));
    let signalled = after_ledger(|scenario| scenario.inputs.is_signalled = true, Event::LedgerCreated);
    assert!(is_unheld(&signalled), "{signalled:?}");
    // The Lease existed, and the ledger was deleted as well.
    let has_led = |scenario: &mut Scenario| {
        scenario.after(5000, Event::Woke);
        let held = ElectionRecord::default().acquired("other", 3, scenario.inputs.now.wall);
        scenario.waits(10, Event::Read(Some(held)));
    };
    let deleted = after_ledger(has_led, Event::LedgerCreated);
    assert!(is_unheld(&deleted), "{deleted:?}");
    // Terms are counted on.
    let counts_on = matches!(&deleted, Action::Write(record, _) if record.lease.transitions == 3);
    assert!(counts_on, "{deleted:?}");
    // Without the right to create it.
    let refused = after_ledger(|_| (), Event::Refused);
    assert!(is_unheld(&refused), "{refused:?}");
    for response in [Event::Conflict, Event::NoResponse] {
        assert!(matches!(after_ledger(|_| (), response), Action::Wait(Some(_))));
    }
}

#[test]
fn a_lease_missing_beside_a_ledger_is_created_first_and_acquired_later() {
    let mut scenario = Scenario::new();
    scenario.reads(5000, Event::Woke);
    scenario.creates_ledger(10, Event::Read(None));
    // Perhaps its creator creates the Lease now.
    scenario.waits(10, Event::Conflict);
    scenario.reads(2400, Event::Woke);
    scenario.creates_ledger(10, Event::Read(None));
    let created = scenario.writes(10, Event::Conflict);
    assert!(created.was_never_held() && created.lease.resource_version.is_none());
    let read_at = scenario.waits(10, Event::Written(created.clone()));
    let millis = u64::try_from((read_at - scenario.inputs.now.mono).as_millis()).unwrap();
    assert!(millis <= 14_000);
    scenario.reads(14_000, Event::Woke);
    let acquired = scenario.writes(10, Event::Read(Some(created)));
    assert_eq!(acquired.lease.transitions, 1);
}

/// That lists fail, since now.
fn unable(scenario: &Scenario) -> Inability {
    Inability {
        reason: InabilityReason::Lists,
        since: scenario.inputs.now.wall,
    }
}

#[test]
fn an_unable_leader_keeps_its_term_until_a_candidate_volunteers() {
    let (mut scenario, _) = Scenario::leading();
    let reported = unable(&scenario);
    scenario.inputs.unable = Some(reported);
    let renewal = scenario.writes(1500, Event::Woke);
    assert_eq!(renewal.unable, Some(reported));
    scenario.waits(10, Event::Written(renewal.clone()));
    assert_eq!(scenario.handover(), None);
    // The write of the volunteer makes the next renewal a conflict.
    scenario.writes(2000, Event::Woke);
    scenario.reads(10, Event::Conflict);
    let volunteered = renewal.with_successor("other");
    scenario.writes(10, Event::Read(Some(volunteered)));
    assert_eq!(scenario.handover(), Some(Handover::GaveUp(InabilityReason::Lists)));
    let released = scenario.writes(10, Event::WorkEnded(WorkOutcome::Finished));
    assert!(released.is_released() && released.unable.is_none() && released.successor.is_none());
    assert!(released.give_ups.contains("me", scenario.inputs.now.wall));
}

#[test]
fn a_leader_that_recovers_does_not_give_up() {
    let (mut scenario, acquired) = Scenario::leading();
    scenario.inputs.unable = Some(unable(&scenario));
    scenario.writes(1500, Event::Woke);
    scenario.reads(10, Event::Conflict);
    scenario.inputs.unable = None;
    let mut record = acquired.with_successor("other");
    record.unable = Some(unable(&scenario));
    let renewal = scenario.writes(10, Event::Read(Some(record)));
    assert_eq!((renewal.unable, renewal.successor), (None, None));
    assert_eq!(scenario.handover(), None);
}

#[test]
fn only_a_candidate_that_may_be_better_volunteers() {
    let now = |scenario: &Scenario| scenario.inputs.now.wall;
    // Whether another has volunteered, the own node has a signal, and how many minutes ago this candidate gave up.
    for (has_successor, is_signalled, gave_up, volunteers) in [
        (false, false, None, true),
        (true, false, None, false),
        (false, true, None, false),
        (false, false, Some(9), false),
        (false, false, Some(11), true),
    ] {
        let mut scenario = Scenario::new();
        scenario.inputs.is_signalled = is_signalled;
        let mut record = ElectionRecord::default().acquired("holder", 3, now(&scenario));
        record.unable = Some(unable(&scenario));
        record.successor = has_successor.then(|| "other".to_owned());
        if let Some(minutes) = gave_up {
            let at = now(&scenario) - jiff::SignedDuration::from_mins(minutes);
            record = record.gave_up("me", InabilityReason::Lists, at);
        }
        scenario.reads(5000, Event::Woke);
        let expected = record.with_successor("me");
        match scenario.after(10, Event::Read(Some(record))) {
            Action::Write(written, _) => {
                assert!(volunteers);
                assert_eq!(written, expected, "nothing else changes");
                let read_at = scenario.waits(10, Event::Written(written));
                let wait = read_at - scenario.inputs.now.mono;
                assert!(wait >= Duration::from_secs(4), "as after a read");
                assert_eq!(scenario.candidate.task_target(), TaskTarget::Idle);
            }
            action => assert!(!volunteers && matches!(action, Action::Wait(Some(_))), "{action:?}"),
        }
    }
}

#[test]
fn a_candidate_that_gave_up_leaves_a_free_lease_to_others_first() {
    let mut scenario = Scenario::new();
    let now = scenario.inputs.now.wall;
    let released = ElectionRecord::default().acquired("me", 3, now).released(0, now);
    let released = released.gave_up("me", InabilityReason::Lists, now);
    scenario.reads(5000, Event::Woke);
    scenario.waits(10, Event::Read(Some(released.clone())));
    // Alone, it leads again.
    scenario.reads(16_000, Event::Woke);
    scenario.writes(10, Event::Read(Some(released)));
}

/// Throttled for this long from now on, on the clock of the scenario.
fn throttled_writes(now: Moment, seconds: u64) -> ThrottledUntil {
    ThrottledUntil {
        reads: None,
        writes: Some(now.mono + Duration::from_secs(seconds)),
    }
}

/// For how many seconds writes are throttled, as the record says to a process with this clock.
fn remaining(record: &ElectionRecord, now: Moment) -> i64 {
    let until = record.throttle.writes.expect("a deadline");
    until.duration_since(now.wall).as_secs()
}

/// A leader's record when it released the Lease, throttled for 30 s, with a clock that shows `ahead` more than the scenario's.
fn released_by_another(scenario: &Scenario, ahead: jiff::SignedDuration) -> ElectionRecord {
    let mut theirs = scenario.inputs.now;
    theirs.wall += ahead;
    let held = ElectionRecord::default().acquired("other", 3, theirs.wall);
    held.released(0, theirs.wall)
        .reported(None, throttled_writes(theirs, 30), theirs)
}

#[test]
fn a_throttle_deadline_passes_from_leader_to_leader() {
    let mut scenario = Scenario::new();
    let free = released_by_another(&scenario, jiff::SignedDuration::ZERO);
    let expected = scenario.inputs.now.mono + Duration::from_secs(30);
    // The wall clock of the scenario stands still while 5 s pass.
    scenario.inputs.now.wall += jiff::SignedDuration::from_secs(5);
    scenario.reads(5000, Event::Woke);
    let acquired = scenario.writes(0, Event::Read(Some(free)));
    scenario.waits(10, Event::Written(acquired));
    let TaskTarget::Run(TermTarget { throttle, .. }) = scenario.candidate.task_target() else {
        panic!("it leads")
    };
    let writes = throttle.writes.expect("a deadline");
    assert!(writes >= expected && writes - expected < Duration::from_secs(1));
    scenario.inputs.throttle = throttle;
    let renewal = scenario.writes(2000, Event::Woke);
    assert!(renewal.throttle.writes.is_some());
    scenario.waits(10, Event::Written(renewal));
    // Its clock was an hour ahead, and is corrected before it stops.
    scenario.inputs.now.wall -= jiff::SignedDuration::from_hours(1);
    scenario.inputs.is_stopping = true;
    scenario.waits(10, Event::Woke);
    let released = scenario.writes(10, Event::WorkEnded(WorkOutcome::Finished));
    let seconds = remaining(&released, scenario.inputs.now);
    assert!((20..30).contains(&seconds), "{seconds} s");
}

#[test]
fn a_throttle_deadline_by_a_clock_that_is_ahead_lasts_no_longer_for_the_next_leader() {
    for minutes_ahead in [-10, 0, 10] {
        let mut scenario = Scenario::new();
        let free = released_by_another(&scenario, jiff::SignedDuration::from_mins(minutes_ahead));
        scenario.reads(5000, Event::Woke);
        let acquired = scenario.writes(10, Event::Read(Some(free)));
        let seconds = remaining(&acquired, scenario.inputs.now);
        assert!(seconds <= 31, "{minutes_ahead} min ahead: {seconds} s");
    }
}
