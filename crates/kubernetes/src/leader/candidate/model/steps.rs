//! Which steps each state has, and what they do.

use super::*;

impl Election {
    /// The own time of a process.
    fn moment(&self, number: usize, now: u64) -> Moment {
        let since = Duration::from_millis(now).mul_f64(self.rate(number));
        let ahead = Duration::from_secs(60 * u64::try_from(number).unwrap());
        Moment {
            mono: self.start.mono + since,
            wall: self.start.wall + since + ahead,
        }
    }

    /// When a process finds that this time has come.
    fn time(&self, number: usize, at: Instant) -> u64 {
        let since = (at - self.start.mono).div_f64(self.rate(number));
        u64::try_from(since.as_nanos()).unwrap().div_ceil(GRID * 1_000_000) * GRID
    }

    /// How many have a term that is valid by their own clock.
    pub(super) fn leaders(&self, state: &State) -> usize {
        let numbers = 0..state.processes.len();
        numbers.filter(|number| self.leads(state, *number)).count()
    }

    fn leads(&self, state: &State, number: usize) -> bool {
        let now = self.moment(number, state.now).mono;
        let process = state.processes[number].as_ref();
        let target = process.map(|process| process.candidate.task_target());
        matches!(target, Some(TaskTarget::Run(target)) if now < target.until)
    }

    /// What processes do now, or else the passing of time.
    pub(super) fn due(state: &State, steps: &mut Vec<Step>) {
        for (number, process) in state.processes.iter().enumerate() {
            let Some(process) = process.as_ref().filter(|process| !process.is_paused) else {
                continue;
            };
            match process.work {
                Work::Stopping(None) => steps.extend([Step::WorkEnds(number), Step::WorkTakesLong(number)]),
                Work::Stopping(Some(at)) if at <= state.now => steps.push(Step::WorkEnds(number)),
                _ => {}
            }
            match process.pending {
                Pending::Request(ref request, deadline) => {
                    let deliveries = state.deliveries(request, deadline);
                    steps.extend(deliveries.map(|delivery| Step::Request(number, delivery)));
                }
                Pending::Event(Some(at), _) if at <= state.now => steps.push(Step::Continues(number)),
                Pending::Event(..) => {}
            }
        }
        if steps.is_empty() && state.next_time().is_some() {
            steps.push(Step::TimePasses);
        }
    }

    pub(super) fn environment(state: &State, steps: &mut Vec<Step>) {
        if state.now >= CALM_FROM {
            return;
        }
        let may = |disturbance| state.left.contains(&disturbance);
        if may(Deletion) && state.lease.is_some() {
            steps.push(Step::LeaseIsDeleted);
        }
        if state.late.is_some() {
            steps.push(Step::LateRequestArrives);
        }
        for (number, process) in state.processes.iter().enumerate() {
            let Some(process) = process else {
                steps.extend((may(Start)).then_some(Step::Starts(number)));
                continue;
            };
            if process.is_paused {
                steps.push(Step::Wakes(number));
                // It was sent before.
                if matches!(process.pending, Pending::Request(_, deadline) if state.now < deadline) {
                    steps.push(Step::Request(number, Delivery::Answered));
                }
            } else {
                steps.extend((may(Pause)).then_some(Step::Pauses(number)));
            }
            steps.extend((may(Death)).then_some(Step::Dies(number)));
            steps.extend((may(Stop) && !process.is_stopping && !process.is_paused).then_some(Step::Stops(number)));
        }
    }

    pub(super) fn act(&self, state: &mut State, step: Step) {
        match step {
            Step::TimePasses => Self::pass_time(state),
            Step::Continues(number) => {
                let Pending::Event(_, event) = state.process(number).pending.clone() else {
                    return;
                };
                self.step(state, number, event);
            }
            Step::Request(number, delivery) => self.deliver(state, number, delivery),
            Step::WorkEnds(number) => {
                let process = state.process(number);
                process.work = Work::None;
                // While a request is in progress the candidate learns of it later.
                if process.is_waiting() {
                    self.step(state, number, Event::WorkEnded(WorkOutcome::Finished));
                }
            }
            Step::WorkTakesLong(number) => {
                let at = state.now + u64::try_from(WORK_STOP_TIMEOUT.as_millis()).unwrap();
                state.process(number).work = Work::Stopping(Some(at));
            }
            Step::LateRequestArrives => {
                if let Some(request) = state.late.take() {
                    self.apply(state, None, &request);
                }
                state.disturb();
            }
            Step::Pauses(number) | Step::Wakes(number) => {
                let is_paused = matches!(step, Step::Pauses(_));
                if is_paused {
                    state.take(Pause);
                }
                state.process(number).is_paused = is_paused;
                state.disturb();
            }
            Step::Dies(number) => {
                state.take(Death);
                let was_leader = self.leads(state, number);
                state.processes[number] = None;
                if was_leader && state.is_prepared() {
                    state.leaderless = Some((DEATH, state.now));
                } else if state.leaderless.is_some() {
                    state.disturb();
                }
            }
            Step::Stops(number) => {
                state.take(Stop);
                if state.leaderless.is_some() {
                    state.disturb();
                }
                let process = state.process(number);
                process.is_stopping = true;
                if process.is_waiting() {
                    self.step(state, number, Event::Woke);
                }
            }
            Step::Starts(number) => {
                state.take(Start);
                self.begin(state, number);
            }
            Step::LeaseIsDeleted => {
                state.take(Deletion);
                state.lease = None;
                state.disturb();
            }
        }
    }

    fn pass_time(state: &mut State) {
        let Some(next) = state.next_time() else { return };
        (state.now, state.writes) = (next, 0);
        if next == CALM_FROM {
            state.left.clear();
            state.late = None;
            state.is_disturbed = true;
            for process in state.processes.iter_mut().flatten() {
                if std::mem::take(&mut process.is_paused)
                    && let Some((bound, since)) = &mut state.leaderless
                {
                    (*bound, *since) = (LEADER, next);
                }
            }
        }
    }

    /// A process starts. Its identity is unique.
    pub(super) fn begin(&self, state: &mut State, number: usize) {
        let identity = format!("{number}.{}", state.left.len());
        state.processes[number] = Some(Process {
            candidate: Candidate::new(identity, self.seed, self.moment(number, state.now)),
            pending: Pending::Event(None, Event::Woke),
            term: None,
            work: Work::None,
            is_stopping: false,
            is_paused: false,
        });
        self.step(state, number, Event::Woke);
    }

    fn deliver(&self, state: &mut State, number: usize, delivery: Delivery) {
        let process = state.process(number);
        let Pending::Request(request, deadline) = process.pending.clone() else {
            return;
        };
        let is_paused = process.is_paused;
        let deadline = deadline.max(state.now);
        if delivery != Delivery::Answered && deadline > state.now {
            state.take(Fault);
            state.disturb();
        }
        let event = match delivery {
            Delivery::Answered | Delivery::Slow => self.apply(state, Some(number), &request),
            Delivery::AnswerLost => {
                self.apply(state, Some(number), &request);
                Event::NoResponse
            }
            Delivery::Lost => Event::NoResponse,
            Delivery::Late => {
                state.late = Some(request);
                Event::NoResponse
            }
        };
        let at = match delivery {
            Delivery::Answered => state.now,
            Delivery::Slow => deadline - GRID,
            Delivery::AnswerLost | Delivery::Lost | Delivery::Late => deadline,
        };
        if at <= state.now && !is_paused {
            self.step(state, number, event);
        } else {
            state.process(number).pending = Pending::Event(Some(at), event);
        }
    }

    /// What the API server does with a request, and answers.
    fn apply(&self, state: &mut State, sender: Option<usize>, request: &Action) -> Event {
        match request {
            Action::CreateLedger(_) if state.has_ledger => Event::Conflict,
            Action::CreateLedger(_) => {
                state.has_ledger = true;
                Event::LedgerCreated
            }
            Action::Write(record, _) => {
                let found = state.lease.as_ref().map(|found| &found.lease.resource_version);
                let follows = record.lease.resource_version.as_ref();
                let is_overwriting = self.has(Bug::WritesWithoutVersion) && follows.is_some() && found.is_some();
                if found.and_then(Option::as_ref) != follows && !is_overwriting {
                    return Event::Conflict;
                }
                let written = self.store(state, record.clone());
                let process = sender.and_then(|number| state.processes[number].as_ref());
                let is_stopping = process.is_some_and(|process| process.is_stopping);
                if is_stopping && record.is_released() && state.is_prepared() {
                    state.leaderless = Some((STOP, state.now));
                }
                Event::Written(written)
            }
            Action::Read(_) | Action::Wait(_) | Action::Stop => Event::Read(state.lease.clone()),
        }
    }

    pub(super) fn store(&self, state: &mut State, mut record: ElectionRecord) -> ElectionRecord {
        self.alter_stored(&mut record);
        let version = Some(format!("{:05}.{}", state.now, state.writes));
        state.writes += 1;
        record.lease.uid = record.lease.uid.or_else(|| version.clone());
        record.lease.resource_version = version;
        state.lease = Some(record.clone());
        // What follows an older version need not arrive.
        state
            .late
            .take_if(|request| matches!(request, Action::Write(late, _) if late.lease.resource_version.is_some()));
        record
    }

    /// A step of a candidate, and what follows for its work, as `leader_elector` and `leader_task` do it.
    fn step(&self, state: &mut State, number: usize, mut event: Event) {
        let now = self.moment(number, state.now);
        let process = state.processes[number].as_mut().unwrap();
        let action = loop {
            let has_work = process.term.is_some();
            let inputs = Inputs {
                now,
                is_stopping: process.is_stopping,
                is_signalled: false,
                fleet: has_work.then_some(Fleet {
                    candidates: u32::try_from(self.candidates).unwrap(),
                    has_healthy_peer: true,
                }),
                unable: None,
                throttle: ThrottledUntil::default(),
            };
            self.alter_before(&mut process.candidate, &mut event, now);
            let mut action = process.candidate.step(event, inputs);
            self.alter_after(&mut process.candidate, &mut action);
            // Each jitter is the longest, so that a candidate does not depend on how many it drew.
            process.candidate.rng = Rng::with_seed(self.seed);
            let ended = Event::WorkEnded(WorkOutcome::Finished);
            match (process.candidate.task_target(), process.term) {
                (TaskTarget::Run(target), Some(running)) if target.number == running => {
                    if process.work == Work::None {
                        event = ended;
                        continue;
                    }
                    if target.handover.is_some() && process.work == Work::Running {
                        process.work = Work::Stopping(None);
                        if self.has(Bug::ReleasesBeforeWorkEnds) {
                            event = ended;
                            continue;
                        }
                    }
                }
                (TaskTarget::Run(TermTarget { number: term, .. }), _) => {
                    (process.term, process.work) = (Some(term), Work::Running);
                    let lease = match &process.candidate.phase {
                        Phase::Leading(held) => held.record.lease.uid.clone(),
                        _ => None,
                    };
                    let last = std::mem::replace(&mut state.last_term, (lease, term));
                    if state.last_term <= last {
                        state.broken = Some(NUMBERS);
                    } else if let Some((property, at)) = state.not_before
                        && state.now < at
                    {
                        state.broken = Some(property);
                    }
                }
                (TaskTarget::Stop { abort }, _) => {
                    if abort {
                        process.work = Work::None;
                    }
                    match process.work {
                        Work::None => {
                            event = ended;
                            continue;
                        }
                        Work::Running => process.work = Work::Stopping(None),
                        Work::Stopping(_) => {}
                    }
                }
                (TaskTarget::Idle, _) => process.term = None,
            }
            break action;
        };
        let is_release =
            matches!(&action, Action::Write(record, _) if record.is_released() && !record.was_never_held());
        if is_release && process.work != Work::None {
            state.broken = Some(WORK);
        }
        let deadline = match action {
            Action::Read(at) | Action::CreateLedger(at) | Action::Write(_, at) => self.time(number, at),
            Action::Wait(_) | Action::Stop => 0,
        };
        process.pending = match action {
            Action::Wait(until) => {
                let until = until.map(|until| self.time(number, until));
                let is_ahead = until.is_none_or(|until| until > state.now);
                assert!(is_ahead, "it waits for what has passed");
                Pending::Event(until, Event::Woke)
            }
            Action::Stop => {
                let holder = state.lease.as_ref().map(|found| &found.lease.holder);
                if holder == Some(&process.candidate.identity) {
                    state.broken = Some(WORK);
                }
                state.processes[number] = None;
                return;
            }
            request => Pending::Request(request, deadline),
        };
    }

    /// Since when nobody leads, after a step.
    pub(super) fn judge(&self, state: &mut State) {
        if self.leaders(state) > 0 || !state.able().any(|_| true) {
            state.leaderless = None;
        } else if state.leaderless.is_none() {
            state.leaderless = Some((LEADER, state.now));
        }
    }
}

impl Process {
    /// Neither a request nor its answer is in progress.
    fn is_waiting(&self) -> bool {
        matches!(self.pending, Pending::Event(_, Event::Woke))
    }
}

impl State {
    /// When the next process has something to do, or calm begins.
    fn next_time(&self) -> Option<u64> {
        let processes = self.processes.iter().flatten().filter(|process| !process.is_paused);
        let due = processes.flat_map(|process| {
            let event = match process.pending {
                Pending::Event(at, _) => at,
                Pending::Request(..) => None,
            };
            let end = match process.work {
                Work::Stopping(at) => at,
                _ => None,
            };
            [event, end]
        });
        let calm = (self.now < CALM_FROM).then_some(CALM_FROM);
        // Whatever the candidates wait for, a bound is exceeded then.
        let overdue = self.leaderless.map(|(_, since)| since + OVERDUE_AFTER);
        let overdue = overdue.filter(|at| *at > self.now);
        due.flatten().chain(calm).chain(overdue).min()
    }

    /// What can become of a request.
    fn deliveries(&self, request: &Action, deadline: u64) -> impl Iterator<Item = Delivery> {
        use Delivery::{AnswerLost, Answered, Late, Lost, Slow};
        let is_write = !matches!(request, Action::Read(_));
        let is_sent_in_time = self.now < deadline;
        let may_fail = self.left.contains(&Fault) && is_sent_in_time;
        let (may_be_slow, may_be_late) = (deadline > self.now + GRID, self.late.is_none());
        let all = [Answered, Slow, AnswerLost, Lost, Late];
        all.into_iter().filter(move |delivery| match delivery {
            Answered => is_sent_in_time,
            Slow => may_fail && may_be_slow,
            Late => may_fail && is_write && may_be_late,
            // After a pause nobody waits for the answer.
            AnswerLost => (may_fail && is_write) || !is_sent_in_time,
            Lost => may_fail || !is_sent_in_time,
        })
    }

    fn process(&mut self, number: usize) -> &mut Process {
        self.processes[number].as_mut().unwrap()
    }

    fn take(&mut self, disturbance: Disturbance) {
        let number = self.left.iter().position(|left| *left == disturbance);
        self.left.remove(number.unwrap());
    }

    /// Those that can lead.
    fn able(&self) -> impl Iterator<Item = &Process> {
        let all = self.processes.iter().flatten();
        all.filter(|process| !process.is_paused && !process.is_stopping)
    }

    /// Whether nothing but ends of processes has happened, and all others have read how many candidates there are, and the present term.
    fn is_prepared(&self) -> bool {
        let term = |record: Option<&ElectionRecord>| record.map(|record| record.lease.transitions);
        let mut able = self.able().map(|process| &process.candidate.observed).peekable();
        let has_read = |observed: &ObservedLease| {
            observed.candidates().is_some() && term(observed.record()) == term(self.lease.as_ref())
        };
        !self.is_disturbed && able.peek().is_some() && able.all(has_read)
    }

    fn disturb(&mut self) {
        self.is_disturbed = true;
        if self.leaderless.is_some() {
            self.leaderless = Some((LEADER, self.now));
        }
    }
}
