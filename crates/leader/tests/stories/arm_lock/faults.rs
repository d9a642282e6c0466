//! What can go wrong on the way, and what takes its time, in paused time.

use std::time::Duration;

use headgate_clock::Clock;
use headgate_leader::{ArmLock, LockError, LockMetrics};
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault, RecordedRequest};
use hyper::Method;
use k8s_openapi::api::coordination::v1::Lease;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, sleep_until};

use super::world::{CCM, Locker, NAMESPACE, Others, SECOND, soon};

const LEASE: &str = "aks-managed-resource-locker";

struct World {
    fake: FakeApi,
    clock: Clock,
    others: Others,
    locker: Locker,
    line: ClientFaults,
}

fn world() -> World {
    let fake = FakeApi::default();
    let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
    let (client, line) = fake.client();
    World {
        others: Others::new(fake.client().0, LEASE, clock.clone()),
        locker: Locker::new(client, LEASE, "headgate", clock.clone()),
        fake,
        clock,
        line,
    }
}

impl World {
    fn writes(&self) -> usize {
        let all = self.fake.requests().into_iter();
        all.filter(|asked| asked.method == Method::PUT).count()
    }
}

fn is_write(asked: &RecordedRequest) -> bool {
    asked.method != Method::GET
}

fn is_watch(asked: &RecordedRequest) -> bool {
    asked.is_watch
}

#[tokio::test(start_paused = true)]
async fn the_lock_is_cloud_controller_manager_s_lease() {
    let fake = FakeApi::default();
    let (client, _line) = fake.client();
    let metrics = LockMetrics::register(&mut Registry::default());
    let (lock, keep) = ArmLock::new(client, Clock::System, metrics);
    let keep = tokio::spawn(keep);
    let entered = lock.enter("test", Instant::now() + SECOND).await.unwrap();
    let lease: Lease = fake.peek(NAMESPACE, LEASE).unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("headgate"));
    // All handles are gone: it is given back, and the task ends.
    drop((lock, entered));
    keep.await.unwrap();
    let lease: Lease = fake.peek(NAMESPACE, LEASE).unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn nobody_enters_without_the_task() {
    let fake = FakeApi::default();
    let metrics = LockMetrics::register(&mut Registry::default());
    let (lock, keep) = ArmLock::new(fake.client().0, Clock::System, metrics.clone());
    let error = lock.enter("test", Instant::now() + SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::TooLate { .. }), "{error}");
    drop(keep);
    let error = lock.enter("test", Instant::now() + SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Ended { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_takes_no_new_writes_after_a_minute() {
    let world = world();
    let began = Instant::now();
    let first = world.locker.enters(SECOND).await.unwrap();
    sleep(59 * SECOND).await;
    let second = world.locker.enters(SECOND).await.unwrap();
    assert!(first.open() && second.open());
    let writes = world.writes();
    sleep_until(began + 61 * SECOND).await;
    assert!(!first.open() && !second.open());
    // A third waits until both have left, and is told why if that is too long.
    let error = world.locker.enters(SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Closed { .. }), "{error}");
    let third = world.locker.handle();
    let third = tokio::spawn(async move { third.enter("test", Instant::now() + 60 * SECOND).await });
    sleep(5 * SECOND).await;
    first.leave().await;
    sleep(5 * SECOND).await;
    assert!(!third.is_finished() && world.writes() == writes, "one is still in");
    let left = Instant::now();
    second.leave().await;
    let third = third.await.unwrap().unwrap();
    // Others had their turn first, who do not wait in line.
    assert!(left.elapsed() >= 6 * SECOND && left.elapsed() < 7 * SECOND && third.open());
    assert_eq!(world.writes(), writes + 2, "given back, and taken anew");
    third.leave().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_who_waits_looks_each_second() {
    let world = world();
    world.line.set_for(Fault::Status(503), is_watch);
    world.others.make(CCM, SECOND).await;
    for round in 0..20 {
        let waits = world.locker.handle();
        let waits = tokio::spawn(async move {
            let entered = waits.enter("test", Instant::now() + 60 * SECOND).await.unwrap();
            (entered, Instant::now())
        });
        sleep(7 * SECOND + Duration::from_millis(97 * round)).await;
        let given_back = Instant::now();
        world.others.unlock(CCM).await.unwrap();
        let (entered, at) = waits.await.unwrap();
        assert!(at - given_back < 3 * SECOND / 2, "{:?}", at - given_back);
        entered.leave().await;
        let requests = world.fake.requests().len();
        sleep(60 * SECOND).await;
        let later = world.fake.requests().len() - requests;
        assert!(later < 10, "nobody waits, yet there are {later} requests");
        world.others.lock(CCM).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_costs_five_seconds() {
    let world = world();
    world.others.make(CCM, SECOND).await;
    sleep(SECOND).await;
    world.line.set_for(Fault::CutOff, is_watch);
    let waits = world.locker.handle();
    let waits = tokio::spawn(async move { waits.enter("test", Instant::now() + 60 * SECOND).await });
    sleep(7 * SECOND).await;
    let given_back = Instant::now();
    world.others.unlock(CCM).await.unwrap();
    let entered = waits.await.unwrap().unwrap();
    assert!(given_back.elapsed() < 7 * SECOND, "{:?}", given_back.elapsed());
    entered.leave().await;
    // What it tells when it is heard again is the past.
    let others = *world.locker.released_by_others().borrow();
    world.line.set(Fault::None);
    sleep(SECOND).await;
    assert_eq!(*world.locker.released_by_others().borrow(), others);
    let entered = world.locker.enters(SECOND).await.unwrap();
    assert!(entered.open());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_comes_back_finds_the_hold_as_it_was() {
    let world = world();
    let mut others = world.locker.released_by_others();
    let entered = world.locker.enters(SECOND).await.unwrap();
    world.fake.restart(20 * SECOND);
    world.line.cut_watches();
    sleep(10 * SECOND).await;
    assert!(entered.open(), "nobody else can take it either");
    let left = Instant::now();
    entered.leave().await;
    assert!(left.elapsed() <= 3 * SECOND, "{:?}", left.elapsed());
    let error = world.locker.enters(SECOND).await.unwrap_err();
    assert!(
        matches!(error, LockError::Closed { .. } | LockError::Failed { .. }),
        "{error}"
    );
    sleep(12 * SECOND).await;
    assert_eq!(world.others.holder().await, "", "given back as soon as it can be");
    // And the watch goes on.
    world.others.lock(CCM).await.unwrap();
    world.others.unlock(CCM).await.unwrap();
    let told = tokio::time::timeout(60 * SECOND, others.changed()).await;
    assert!(told.is_ok());
}

#[tokio::test(start_paused = true)]
async fn whatever_befalls_requests_no_hold_is_lost_for_long() {
    for fault in [
        Fault::AnswerLost,
        Fault::Late(4 * SECOND),
        Fault::Late(20 * SECOND),
        Fault::CutOff,
        Fault::Slow(2 * SECOND),
        Fault::Status(500),
        Fault::Status(429),
        Fault::Status(409),
        Fault::Status(403),
    ] {
        for befalls in [is_write, |_: &RecordedRequest| true] {
            let world = world();
            world.others.make("", SECOND).await;
            sleep(SECOND).await;
            // When it is taken.
            world.line.set_for(fault, befalls);
            let began = Instant::now();
            let entered = world.locker.enters(3 * SECOND).await;
            assert!(began.elapsed() <= 3 * SECOND, "{fault:?}");
            if let Err(error) = &entered {
                assert!(
                    matches!(error, LockError::Failed { .. } | LockError::TooLate { .. }),
                    "{fault:?}: {error}"
                );
            }
            drop(entered);
            sleep(5 * SECOND).await;
            world.line.set(Fault::None);
            // A late request is another's hold for as long as somebody might be in it.
            sleep(40 * SECOND).await;
            assert_eq!(world.others.holder().await, "", "{fault:?} when it is taken");
            // When it is given back.
            let mut entered = world.locker.enters(SECOND).await.unwrap();
            entered.wrote();
            world.line.set_for(fault, befalls);
            let left = Instant::now();
            entered.leave().await;
            assert!(left.elapsed() <= 3 * SECOND, "{fault:?}: {:?}", left.elapsed());
            sleep(5 * SECOND).await;
            world.line.set(Fault::None);
            sleep(10 * SECOND).await;
            assert_eq!(world.others.holder().await, "", "{fault:?} when it is given back");
            let previous = world.others.previous().await;
            assert_eq!(previous.as_deref(), Some("headgate"), "{fault:?}");
            // And it goes on.
            world.others.lock(CCM).await.unwrap();
            assert!(world.locker.enters(SECOND).await.is_err());
            world.others.unlock(CCM).await.unwrap();
            world.locker.enters(SECOND).await.unwrap().leave().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_s_hold_is_given_back_though_his_request_came_late() {
    let world = world();
    world.others.make("", SECOND).await;
    sleep(SECOND).await;
    let former = Locker::new(world.fake.client().0, LEASE, "headgate", world.clock.clone());
    let entered = former.enters(SECOND).await.unwrap();
    former.crash().await;
    drop(entered);
    let seen = Instant::now();
    soon("given back", async || {
        world.others.holder().await.is_empty() || seen.elapsed() > 9 * SECOND
    })
    .await;
    assert_eq!(world.others.holder().await, "headgate", "he might still be in");
    sleep(3 * SECOND).await;
    assert_eq!(world.others.holder().await, "");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_is_not_stormed() {
    for status in [403, 409, 503] {
        let world = world();
        world.others.make("", SECOND).await;
        sleep(SECOND).await;
        world.line.set(Fault::Status(status));
        let before = world.line.tries();
        assert!(world.locker.enters(60 * SECOND).await.is_err());
        let tries = world.line.tries() - before;
        assert!((40..500).contains(&tries), "{status}: {tries}");
        let before = world.line.tries();
        sleep(60 * SECOND).await;
        let tries = world.line.tries() - before;
        println!("{status}: {tries} tries in a minute in which nobody waits");
        assert!(tries < 500, "{status}: {tries}");
    }
}
