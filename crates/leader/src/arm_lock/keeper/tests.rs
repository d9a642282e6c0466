//! Stories of one keeper and a Lease that others write too, without requests and without time.

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const WAITING: Want = Want {
    waiting: true,
    kept: false,
    wrote: false,
};
const KEPT: Want = Want {
    waiting: false,
    kept: true,
    wrote: false,
};
const NOTHING: Want = Want {
    waiting: false,
    kept: false,
    wrote: false,
};
const WROTE: Want = Want { wrote: true, ..NOTHING };

/// The API server, a keeper, and the time.
struct World {
    lease: Option<Lease>,
    version: u64,
    keeper: Keeper,
    now: Moment,
}

impl World {
    fn new(lease: Option<Lease>) -> Self {
        let mut world = Self {
            lease: None,
            version: 0,
            keeper: Keeper::new(LeaseName::default(), "headgate".to_owned(), 1),
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

    fn record(&self) -> Record {
        self.lease.as_ref().map(Record::of).unwrap_or_default()
    }

    /// Somebody else's hold that began this long ago.
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
        self.keeper.watched(lease, self.now);
    }

    /// What is asked for now, which must be something.
    fn ask(&mut self, want: Want) -> Request {
        match self.keeper.next(want, self.now) {
            Step::Ask(request) => request,
            Step::Wait(until) => panic!("waits until {until:?}"),
        }
    }

    /// What a request does at the API server.
    fn carry_out(&mut self, request: &Request) -> Answer {
        let present = self
            .lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        let followed = match request {
            Request::Read => return Answer::Lease(self.lease.clone().map(Box::new)),
            Request::Make(_) => None,
            Request::Take(lease, _) | Request::Release(lease) => lease.metadata.resource_version.clone(),
        };
        let (Request::Make(lease) | Request::Take(lease, _) | Request::Release(lease)) = request else {
            unreachable!()
        };
        if followed != present {
            return Answer::Conflict;
        }
        self.put((**lease).clone());
        Answer::Lease(self.lease.clone().map(Box::new))
    }

    fn answer(&mut self, request: &Request) {
        let answer = self.carry_out(request);
        self.keeper.answered(request, answer, self.now);
    }

    /// Does what is due until there is something to wait for; the requests, and until when it waits.
    fn settle(&mut self, want: Want) -> (String, Option<Duration>) {
        let mut asked = Vec::new();
        for _ in 0..20 {
            // As the door does it.
            let want = Want {
                kept: want.kept || (want.waiting && self.keeper.hold().is_some()),
                ..want
            };
            match self.keeper.next(want, self.now) {
                Step::Ask(request) => {
                    asked.push(match request {
                        Request::Read => "read",
                        Request::Make(_) => "make",
                        Request::Take(..) => "take",
                        Request::Release(_) => "release",
                    });
                    self.answer(&request);
                }
                Step::Wait(until) => {
                    return (asked.join(" "), until.map(|until| until - self.now.mono));
                }
            }
        }
        panic!("no end: {asked:?}");
    }
}

#[test]
fn what_is_found_and_what_is_done() {
    let new = || World::new(None);
    let held = |holder: &'static str, ago| Some(new().held(holder, SECOND * ago));
    for (told, lease, waiting, nothing) in [
        ("none", None, "read make take", "read"),
        ("bare", Some(Lease::default()), "read take", "read"),
        ("released", held("", 1), "read take", "read"),
        ("another's", held("ccm", 900), "read", "read"),
        ("another's, expired", held("ccm", 901), "read take", "read"),
        ("left over", held("headgate", 1), "read take", "read release"),
        (
            "left over, spelt otherwise",
            held("Headgate", 1),
            "read take",
            "read release",
        ),
        ("left over, expired", held("headgate", 901), "read take", "read release"),
    ] {
        assert_eq!(World::new(lease.clone()).settle(WAITING).0, waiting, "{told}");
        assert_eq!(World::new(lease).settle(NOTHING).0, nothing, "{told}");
    }
}

#[test]
fn a_hold_goes_on_while_it_is_wanted_and_is_given_back_then() {
    for (want, previous) in [(NOTHING, None), (WROTE, Some("headgate"))] {
        let mut world = World::new(None);
        let (asked, closes) = world.settle(WAITING);
        assert_eq!((asked.as_str(), closes), ("read make take", Some(OPEN)));
        assert_eq!(world.record().holder, "headgate");
        assert_eq!(world.record().seconds, 900);
        world.watch();
        world.pass(OPEN * 2);
        assert_eq!(world.settle(KEPT), (String::new(), None));
        assert_eq!(world.settle(want).0, "release");
        assert_eq!(world.keeper.hold(), None);
        let record = world.record();
        assert!(record.is_released() && record.previous.as_deref() == previous);
        world.watch();
        assert_eq!(world.settle(NOTHING), (String::new(), None));
        assert_eq!(world.keeper.others(), 0);
    }
}

#[test]
fn who_waits_is_woken_by_the_watch_the_expiry_and_the_poll() {
    let mut world = World::new(None);
    let theirs = world.held("ccm", SECOND * 890);
    world.put(theirs.clone());
    // No watch yet.
    let wait = world.settle(WAITING).1.unwrap();
    assert!(wait >= POLL[0] && wait < POLL[0] * 2, "{wait:?}");
    world.watch();
    world.pass(wait);
    let wait = world.settle(WAITING);
    assert!(wait.0 == "read" && wait.1.unwrap() >= POLL[1], "{wait:?}");
    world.keeper.watch_failed(world.now);
    let wait = world.settle(WAITING).1.unwrap();
    assert!(wait < POLL[0] * 2, "{wait:?}");
    // Nobody waits: nothing is asked.
    assert_eq!(world.settle(NOTHING), (String::new(), None));

    // It expires.
    world.watch();
    world.pass(SECOND * 6);
    assert_eq!(world.settle(WAITING).0, "read");
    let wait = world.settle(WAITING).1.unwrap();
    assert!(wait < POLL[0] * 3, "{wait:?}");
    world.pass(wait);
    assert_eq!(world.settle(WAITING).0, "take");
    assert_eq!(world.keeper.others(), 1, "the former holder was there");

    // It is given back.
    let mut world = World::new(Some(theirs));
    world.settle(WAITING);
    world.put(world.held("", SECOND));
    world.watch();
    assert_eq!(world.settle(WAITING).0, "take", "at once, without a look");
    assert_eq!(world.keeper.others(), 1);
}

#[test]
fn who_comes_second_looks_again() {
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    let take = world.ask(WAITING);
    world.put(world.held("ccm", SECOND));
    world.answer(&take);
    assert_eq!(world.settle(WAITING).0, "read");
    assert!(matches!(
        world.keeper.obstacle(world.now),
        Obstacle::Held { holder, .. } if holder == "ccm"
    ));
    // What was made by somebody else in the meantime is taken.
    let mut world = World::new(None);
    world.settle(NOTHING);
    let make = world.ask(WAITING);
    world.put(Lease::default());
    world.answer(&make);
    assert_eq!(world.settle(WAITING).0, "read take");
    // An API server that knows nothing but conflicts is not stormed.
    let mut asked = 0;
    while let Step::Ask(request) = world.keeper.next(NOTHING, world.now) {
        asked += 1;
        world.keeper.answered(&request, Answer::Conflict, world.now);
    }
    assert!(asked <= 4, "{asked}");
}

#[test]
fn what_is_given_back_is_ours() {
    // Somebody set a label meanwhile.
    let mut world = World::new(None);
    world.settle(WAITING);
    world.put(world.lease.clone().unwrap());
    assert_eq!(world.settle(WROTE).0, "release read release");
    // It had expired and is another's, or ours in another process.
    for holder in ["ccm", "headgate"] {
        let mut world = World::new(None);
        world.settle(WAITING);
        world.put(world.held(holder, SECOND));
        let (asked, _) = world.settle(WROTE);
        assert_eq!(asked, "release read");
        assert_eq!((world.record().holder.as_str(), world.keeper.hold()), (holder, None));
    }
    // It was deleted.
    let mut world = World::new(None);
    world.settle(WAITING);
    world.lease = None;
    assert_eq!(world.settle(WROTE).0, "release read");
    assert_eq!(world.keeper.hold(), None);
}

#[test]
fn a_hold_that_was_lost_is_seen() {
    let mut world = World::new(None);
    world.settle(WAITING);
    world.put(world.held("ccm", Duration::ZERO));
    world.watch();
    assert_eq!(world.keeper.hold(), None);
    let mut world = World::new(None);
    world.settle(WAITING);
    world.lease = None;
    world.watch();
    assert_eq!(world.settle(KEPT).0, "read", "none is asked about again");
    assert_eq!(world.keeper.hold(), None);
}

#[test]
fn a_lost_answer_loses_no_hold() {
    let lost = || Answer::Failed("cut off".to_owned());
    // Taken, and nobody wants it any more.
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    let take = world.ask(WAITING);
    world.carry_out(&take);
    world.keeper.answered(&take, lost(), world.now);
    assert!(matches!(world.keeper.obstacle(world.now), Obstacle::Failed(_)));
    let (asked, rest) = world.settle(NOTHING);
    assert!(asked.is_empty() && rest.unwrap() < 2 * REST);
    world.pass(2 * REST);
    assert_eq!(world.settle(NOTHING).0, "read release");
    assert_eq!(world.record().previous, None, "nothing was written");
    // Taken, and still wanted.
    let take = world.ask(WAITING);
    world.carry_out(&take);
    world.keeper.answered(&take, lost(), world.now);
    world.pass(2 * REST);
    assert_eq!(world.settle(WAITING).0, "read take");
    // Given back.
    let release = world.ask(WROTE);
    world.carry_out(&release);
    world.keeper.answered(&release, lost(), world.now);
    world.pass(2 * REST);
    assert_eq!(world.settle(WROTE).0, "read");
    assert_eq!((world.keeper.hold(), world.keeper.others()), (None, 0));
    assert_eq!(world.record().previous.as_deref(), Some("headgate"));
    // Whoever is told by the watch does not rest.
    let take = world.ask(WAITING);
    world.keeper.answered(&take, lost(), world.now);
    world.put(world.held("", SECOND));
    world.watch();
    assert_eq!(world.settle(WAITING).0, "take");
}

#[test]
fn what_a_former_leader_left_may_have_been_written_in() {
    let mut world = World::new(Some(World::new(None).held("headgate", SECOND)));
    world.settle(NOTHING);
    assert_eq!(world.record().previous.as_deref(), Some("headgate"));
    let mut world = World::new(Some(World::new(None).held("headgate", SECOND)));
    world.settle(WAITING);
    assert!(world.keeper.hold().unwrap().wrote);
    // His request came late: he may be in, for a moment yet.
    let mut world = World::new(Some(Lease::default()));
    world.settle(NOTHING);
    world.put(world.held("headgate", SECOND));
    world.watch();
    assert_eq!(world.settle(NOTHING), (String::new(), Some(SETTLED)));
    world.pass(SETTLED / 2);
    world.put(world.held("headgate", Duration::ZERO));
    world.watch();
    assert_eq!(world.settle(NOTHING), (String::new(), Some(SETTLED)));
    world.pass(SETTLED);
    assert_eq!(world.settle(NOTHING).0, "release");
}

#[test]
fn a_short_lease_closes_early() {
    let mut short = Lease::default();
    short.spec.get_or_insert_default().lease_duration_seconds = Some(20);
    let mut world = World::new(Some(short));
    assert_eq!(world.settle(WAITING).1, Some(10 * SECOND));
    assert_eq!(world.record().seconds, 20, "and stays what others made it");
}
