//! Scenarios of a state machine and a Lease that others write too, without requests and clock.

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const WAITING: Demand = demand(true, false, false);
const KEPT: Demand = demand(false, true, false);
const NOTHING: Demand = demand(false, false, false);
const WRITTEN: Demand = demand(false, false, true);

const fn demand(has_waiters: bool, keep_hold: bool, has_written: bool) -> Demand {
    Demand {
        has_waiters,
        keep_hold,
        kept_until: None,
        has_written,
    }
}

/// The API server, a state machine, and the time.
struct World {
    lease: Option<Lease>,
    version: u64,
    machine: StateMachine,
    now: Moment,
}

impl World {
    fn new(lease: Option<Lease>) -> Self {
        let mut world = Self {
            lease: None,
            version: 0,
            machine: StateMachine::new(LeaseName::default(), "headgate".to_owned(), Rng::with_seed(1)),
            now: Moment {
                wall: Timestamp::from_second(10_000).unwrap(),
                mono: Instant::now(),
            },
        };
        if let Some(lease) = lease {
            world.put(lease);
        }
        world
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono += time;
        self.now.wall += SignedDuration::try_from(time).unwrap();
    }

    fn put(&mut self, mut lease: Lease) {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease);
    }

    fn record(&self) -> LockRecord {
        self.lease.as_ref().map(LockRecord::from_lease).unwrap_or_default()
    }

    /// The Lease, held by `holder` since so long ago.
    fn held(&self, holder: &str, ago: Duration) -> Lease {
        let since = self.now.wall - SignedDuration::try_from(ago).unwrap();
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                acquire_time: Some(MicroTime(since)),
                renew_time: Some(MicroTime(since)),
                lease_duration_seconds: Some(900),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    fn watch(&mut self) {
        let lease = self.lease.clone();
        self.machine.handle_watch(lease, self.now);
    }

    /// The request that is due now.
    fn request(&mut self, demand: Demand) -> Request {
        match self.machine.next(demand, self.now) {
            Step::Send(request) => request,
            Step::Wait(until) => panic!("waits until {until:?}"),
        }
    }

    /// Carries a request out, as the API server does.
    fn respond(&mut self, request: &Request) -> Response {
        let present = self.lease.as_ref().map(|lease| &lease.metadata.resource_version);
        let present = present.cloned().flatten();
        let followed = match request {
            Request::Read => return Ok(self.lease.clone()),
            Request::Create(_) => None,
            Request::Acquire(lease, _) | Request::Release(lease) => lease.metadata.resource_version.clone(),
        };
        let (Request::Create(lease) | Request::Acquire(lease, _) | Request::Release(lease)) = request else {
            unreachable!()
        };
        if followed != present {
            return Err(LeaseError::Conflict);
        }
        self.put((**lease).clone());
        Ok(self.lease.clone())
    }

    fn send(&mut self, request: &Request) {
        let response = self.respond(request);
        self.machine.handle_response(request, response, self.now);
    }

    /// Sends all requests that are due. Returns them, and how long the state machine then waits.
    fn settle(&mut self, demand: Demand) -> (String, Option<Duration>) {
        let mut sent = Vec::new();
        for _ in 0..20 {
            // As the hold state does it.
            let demand = Demand {
                keep_hold: demand.keep_hold || (demand.has_waiters && self.machine.hold().is_some()),
                ..demand
            };
            match self.machine.next(demand, self.now) {
                Step::Send(request) => {
                    sent.push(match request {
                        Request::Read => "read",
                        Request::Create(_) => "create",
                        Request::Acquire(..) => "acquire",
                        Request::Release(_) => "release",
                    });
                    self.send(&request);
                }
                Step::Wait(until) => return (sent.join(" "), until.map(|until| until - self.now.mono)),
            }
        }
        panic!("no end: {sent:?}");
    }
}

#[test]
fn each_state_of_the_lease_has_its_requests() {
    let new = || World::new(None);
    let held = |holder: &'static str, ago| Some(new().held(holder, SECOND * ago));
    for (state, lease, waiting, nothing) in [
        ("none", None, "read create acquire", "read"),
        ("bare", Some(Lease::default()), "read acquire", "read"),
        ("released", held("", 1), "read acquire", "read"),
        ("another's", held("ccm", 900), "read", "read"),
        ("another's, expired", held("ccm", 901), "read acquire", "read"),
        ("leftover", held("headgate", 1), "read acquire", "read release"),
        ("in another case", held("Headgate", 1), "read acquire", "read release"),
        ("expired", held("headgate", 901), "read acquire", "read release"),
    ] {
        assert_eq!(World::new(lease.clone()).settle(WAITING).0, waiting, "{state}");
        assert_eq!(World::new(lease).settle(NOTHING).0, nothing, "{state}");
    }
}

#[test]
fn a_hold_is_kept_while_it_is_needed_and_then_released() {
    for (demand, previous) in [(NOTHING, None), (WRITTEN, Some("headgate"))] {
        let mut world = World::new(None);
        let (sent, closes) = world.settle(WAITING);
        assert_eq!((sent.as_str(), closes), ("read create acquire", Some(MAX_WRITE_WINDOW)));
        assert_eq!(world.record().lease.holder, "headgate");
        assert_eq!(world.record().lease.duration_seconds, 900);
        world.watch();
        for opens in [Some(REOPENING_DELAY), None] {
            world.pass(MAX_WRITE_WINDOW);
            assert_eq!(world.settle(KEPT), (String::new(), opens), "it is closed");
        }
        let dropped = Demand {
            kept_until: Some(world.now.mono + SECOND),
            ..KEPT
        };
        assert_eq!(world.settle(dropped), (String::new(), Some(SECOND)));
        assert_eq!(world.settle(demand).0, "release");
        assert_eq!(world.machine.hold(), None);
        let record = world.record();
        assert!(record.is_released() && record.previous_holder.as_deref() == previous);
        assert_eq!(world.settle(WAITING), (String::new(), Some(TURN_OF_OTHERS)));
        world.pass(TURN_OF_OTHERS);
        world.settle(WAITING);
        assert_eq!(world.machine.hold().map(|hold| hold.number), Some(2), "another hold");
        assert_eq!(world.settle(NOTHING).0, "release");
        world.watch();
        assert_eq!(world.settle(NOTHING), (String::new(), None));
        assert_eq!(world.machine.other_holds(), 0);
    }
}

#[test]
fn a_waiting_writer_gets_the_lease_by_watch_expiry_or_read() {
    let mut world = World::new(None);
    let theirs = world.held("ccm", SECOND * 890);
    world.put(theirs.clone());
    // No watch yet.
    let wait = world.settle(WAITING).1.unwrap();
    let unwatched = UNWATCHED_READ_INTERVAL..UNWATCHED_READ_INTERVAL * 2;
    assert!(unwatched.contains(&wait), "{wait:?}");
    world.watch();
    world.pass(wait);
    let wait = world.settle(WAITING);
    assert!(wait.0 == "read" && wait.1.unwrap() >= WATCHED_READ_INTERVAL, "{wait:?}");
    world.machine.handle_watch_error(world.now);
    let wait = world.settle(WAITING);
    assert!(wait.0.is_empty() && wait.1.unwrap() < unwatched.end, "{wait:?}");
    // No writer waits: no requests.
    assert_eq!(world.settle(NOTHING), (String::new(), None));

    // It expires.
    world.watch();
    world.pass(SECOND * 6);
    assert_eq!(world.settle(WAITING).0, "read");
    let wait = world.settle(WAITING).1.unwrap();
    assert!(wait < UNWATCHED_READ_INTERVAL * 3, "{wait:?}");
    world.pass(wait);
    assert_eq!(world.settle(WAITING).0, "acquire");
    assert_eq!(world.machine.other_holds(), 1, "the other's hold has ended");

    // It is released.
    let mut world = World::new(Some(theirs));
    world.settle(WAITING);
    world.put(world.held("", SECOND));
    world.watch();
    assert_eq!(world.settle(WAITING).0, "acquire", "at once, without a read");
    assert_eq!(world.machine.other_holds(), 1);
}

#[test]
fn after_a_conflict_the_lease_is_read_again() {
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    assert!(matches!(world.machine.obstacle(world.now), LockError::Timeout { .. }));
    let acquire = world.request(WAITING);
    world.put(world.held("ccm", SECOND));
    world.send(&acquire);
    assert_eq!(world.settle(WAITING).0, "read");
    let obstacle = world.machine.obstacle(world.now);
    assert!(matches!(obstacle, LockError::Held { holder, .. } if holder == "ccm"));
    // A Lease that another process has created meanwhile is acquired.
    let mut world = World::new(None);
    world.settle(NOTHING);
    let create = world.request(WAITING);
    world.put(Lease::default());
    world.send(&create);
    assert_eq!(world.settle(WAITING).0, "read acquire");
    // Endless conflicts get a delay.
    let mut sent = 0;
    while let Step::Send(request) = world.machine.next(NOTHING, world.now) {
        sent += 1;
        let conflict = Err(LeaseError::Conflict);
        world.machine.handle_response(&request, conflict, world.now);
    }
    assert!(sent <= 4, "{sent}");
    // So do those of writes alone, while reads succeed.
    world.pass(2 * RETRY_DELAY);
    let mut conflicts = 0;
    while let Step::Send(request) = world.machine.next(NOTHING, world.now) {
        let response = if matches!(request, Request::Read) {
            world.respond(&request)
        } else {
            conflicts += 1;
            Err(LeaseError::Conflict)
        };
        assert!(conflicts <= 4);
        world.machine.handle_response(&request, response, world.now);
    }
}

#[test]
fn only_an_own_hold_is_released() {
    // Another process set a label meanwhile.
    let mut world = World::new(None);
    world.settle(WAITING);
    world.put(world.lease.clone().unwrap());
    assert_eq!(world.settle(WRITTEN).0, "release read release");
    // It had expired and is another's, or another headgate process's.
    for holder in ["ccm", "headgate"] {
        let mut world = World::new(None);
        world.settle(WAITING);
        world.put(world.held(holder, SECOND));
        let (sent, _) = world.settle(WRITTEN);
        assert_eq!(sent, "release read");
        assert_eq!(world.record().lease.holder, holder);
        assert_eq!(world.machine.hold(), None);
    }
    // It was deleted.
    let mut world = World::new(None);
    world.settle(WAITING);
    world.lease = None;
    assert_eq!(world.settle(WRITTEN).0, "release read");
    assert_eq!(world.machine.hold(), None);
}

#[test]
fn a_lost_hold_is_noticed() {
    let mut world = World::new(None);
    world.settle(WAITING);
    world.put(world.held("ccm", Duration::ZERO));
    world.watch();
    assert_eq!(world.machine.hold(), None);
    let mut world = World::new(None);
    world.settle(WAITING);
    world.lease = None;
    world.watch();
    assert_eq!(world.settle(KEPT).0, "read", "a missing Lease is read again");
    assert_eq!(world.machine.hold(), None);
    // etcd was restored from a backup, and another process has acquired the Lease since.
    let mut world = World::new(None);
    world.version = 1000;
    world.settle(WAITING);
    world.watch();
    world.version = 900;
    world.put(world.held("ccm", Duration::ZERO));
    world.watch();
    assert_eq!(world.settle(KEPT).0, "read", "an older version is read again");
    assert_eq!(world.machine.hold(), None);
}

#[test]
fn lease_is_read_again_after_a_lost_response() {
    let lost = || Err(LeaseError::NoResponse("cut off".to_owned()));
    // Acquired, and no longer needed.
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    let acquire = world.request(WAITING);
    world.respond(&acquire).unwrap();
    world.watch();
    assert!(world.machine.is_confirmed());
    world.machine.handle_response(&acquire, lost(), world.now);
    assert!(!world.machine.is_confirmed());
    assert!(matches!(world.machine.obstacle(world.now), LockError::Failed { .. }));
    let (sent, delay) = world.settle(NOTHING);
    assert!(sent.is_empty() && delay.unwrap() < 2 * RETRY_DELAY);
    world.pass(delay.unwrap());
    assert_eq!(world.settle(NOTHING).0, "read release");
    assert_eq!(world.record().previous_holder, None, "nothing was written");
    // Acquired, and still needed.
    let acquire = world.request(WAITING);
    world.respond(&acquire).unwrap();
    world.machine.handle_response(&acquire, lost(), world.now);
    world.pass(2 * RETRY_DELAY);
    assert_eq!(world.settle(WAITING).0, "read acquire");
    // Released.
    let release = world.request(WRITTEN);
    world.respond(&release).unwrap();
    world.machine.handle_response(&release, lost(), world.now);
    world.pass(2 * RETRY_DELAY);
    assert_eq!(world.settle(WRITTEN).0, "read");
    assert_eq!((world.machine.hold(), world.machine.other_holds()), (None, 0));
    assert_eq!(world.record().previous_holder.as_deref(), Some("headgate"));
    // A change that the watch shows ends the delay.
    let acquire = world.request(WAITING);
    world.machine.handle_response(&acquire, lost(), world.now);
    world.put(world.held("", SECOND));
    world.watch();
    assert_eq!(world.settle(WAITING).0, "acquire");
}

#[test]
fn leftover_hold_counts_as_written() {
    let mut world = World::new(Some(World::new(None).held("headgate", SECOND)));
    world.settle(NOTHING);
    assert_eq!(world.record().previous_holder.as_deref(), Some("headgate"));
    let mut world = World::new(Some(World::new(None).held("headgate", SECOND)));
    world.settle(WAITING);
    assert!(world.machine.hold().unwrap().has_written);
    // The request of a former leader came late: its writers may still be in the hold.
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    world.put(world.held("headgate", SECOND));
    world.watch();
    assert_eq!(world.settle(NOTHING), (String::new(), Some(LEFTOVER_MIN_AGE)));
    world.pass(LEFTOVER_MIN_AGE / 2);
    world.put(world.held("headgate", Duration::ZERO));
    world.watch();
    assert_eq!(world.settle(NOTHING), (String::new(), Some(LEFTOVER_MIN_AGE)));
    // A label does not make it younger.
    world.pass(LEFTOVER_MIN_AGE / 2);
    world.put(world.lease.clone().unwrap());
    world.watch();
    assert_eq!(world.settle(NOTHING), (String::new(), Some(LEFTOVER_MIN_AGE / 2)));
    world.pass(LEFTOVER_MIN_AGE / 2);
    assert_eq!(world.settle(NOTHING).0, "release");
}

#[test]
fn a_short_lease_closes_early() {
    let mut short = Lease::default();
    short.spec.get_or_insert_default().lease_duration_seconds = Some(20);
    let mut world = World::new(Some(short));
    assert_eq!(world.settle(WAITING).1, Some(10 * SECOND));
    let expires_at = world.machine.hold().map(|hold| hold.expires_at);
    assert_eq!(expires_at, Some(world.now.mono + 20 * SECOND));
    assert_eq!(world.record().lease.duration_seconds, 20, "and stays as others set it");
}
