//! Faults of the API server, and long holds and waits, in paused time.

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{ArmLock, LockError, LockMetrics};
use headgate_test_kubernetes::{CCM, ClientFaults, FakeApi, Fault, OtherProcess, RecordedRequest};
use hyper::Method;
use k8s_openapi::api::coordination::v1::Lease;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::lock_fixture::{Locker, NAMESPACE, SECOND};

const LEASE: &str = "aks-managed-resource-locker";

struct Fixture {
    fake: FakeApi,
    others: OtherProcess,
    locker: Locker,
    line: ClientFaults,
}

fn fixture() -> Fixture {
    let fake = FakeApi::default();
    let clock = fake.clock();
    let (client, line) = fake.client();
    Fixture {
        others: OtherProcess::new(fake.client().0, LEASE, clock.clone()),
        locker: Locker::new(client, LEASE, "headgate", clock),
        fake,
        line,
    }
}

impl Fixture {
    fn writes(&self) -> usize {
        let all = self.fake.requests().into_iter();
        all.filter(|asked| asked.method == Method::PUT).count()
    }
}

fn is_write(asked: &RecordedRequest) -> bool {
    asked.method != Method::GET
}

#[tokio::test(start_paused = true)]
async fn the_lock_uses_the_lease_of_cloud_controller_manager() {
    let fake = FakeApi::default();
    let (client, _line) = fake.client();
    let metrics = LockMetrics::register(&mut Registry::default());
    let (lock, run) = ArmLock::new(client, Clock::System, metrics);
    let task = tokio::spawn(run);
    let guard = lock.acquire("test", Instant::now() + SECOND).await.unwrap();
    let lease: Lease = fake.peek(NAMESPACE, LEASE).unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("headgate"));
    // The lock and the guard are dropped: the Lease is released, and the task ends.
    drop((lock, guard));
    task.await.unwrap();
    let lease: Lease = fake.peek(NAMESPACE, LEASE).unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_not_released_while_a_dropped_write_may_arrive() {
    let fixture = fixture();
    let mut guard = fixture.locker.acquire_within(SECOND).await.unwrap();
    assert_eq!(guard.write(async { 7 }).await, 7);
    assert_eq!(*fixture.locker.writes().borrow(), 0);
    drop(guard);
    sleep(SECOND).await;
    assert_eq!(fixture.others.holder().await, "", "its write had ended");

    let mut guard = fixture.locker.acquire_within(SECOND).await.unwrap();
    let mut writes = fixture.locker.writes();
    let write = tokio::spawn(async move { guard.write(std::future::pending::<()>()).await });
    writes.wait_for(|writes| *writes == 1).await.unwrap();
    write.abort();
    writes.wait_for(|writes| *writes == 0).await.unwrap();
    sleep(9 * SECOND).await;
    assert_eq!(fixture.others.holder().await, "headgate");
    sleep(2 * SECOND).await;
    assert_eq!(fixture.others.holder().await, "");

    // A process that ends leaves it to the next leader, and does not wait.
    let mut guard = fixture.locker.acquire_within(SECOND).await.unwrap();
    let write = timeout(SECOND, guard.write(std::future::pending::<()>()));
    assert!(write.await.is_err());
    drop(guard);
    assert!(fixture.locker.end().await < SECOND);
    assert_eq!(fixture.others.holder().await, "headgate");
    let next = Locker::new(fixture.fake.client().0, LEASE, "headgate", Clock::System);
    sleep(SECOND).await;
    assert_eq!(fixture.others.holder().await, "");
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn the_lock_cannot_be_acquired_without_its_task() {
    let fake = FakeApi::default();
    let metrics = LockMetrics::register(&mut Registry::default());
    let (lock, run) = ArmLock::new(fake.client().0, Clock::System, metrics.clone());
    let error = lock.acquire("test", Instant::now() + SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    drop(run);
    let error = lock.acquire("test", Instant::now() + SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Stopped { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_admits_no_new_writes_after_half_a_minute() {
    let fixture = fixture();
    let began = Instant::now();
    let first = fixture.locker.acquire_within(SECOND).await.unwrap();
    sleep(29 * SECOND).await;
    let second = fixture.locker.acquire_within(SECOND).await.unwrap();
    assert!(first.accepts_writes() && second.accepts_writes());
    let writes = fixture.writes();
    sleep_until(began + 31 * SECOND).await;
    assert!(!first.accepts_writes() && !second.accepts_writes());
    // A third writer waits until both have left; its timeout names the reason.
    let error = fixture.locker.acquire_within(SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Closed { .. }), "{error}");
    let third = fixture.locker.handle();
    let third = tokio::spawn(async move { third.acquire("test", Instant::now() + 60 * SECOND).await });
    sleep(5 * SECOND).await;
    first.release().await;
    sleep(5 * SECOND).await;
    assert!(!third.is_finished() && fixture.writes() == writes, "one is still in");
    let left = Instant::now();
    second.release().await;
    let third = third.await.unwrap().unwrap();
    // Other processes, which do not queue, had their turn first.
    assert!(left.elapsed() >= 6 * SECOND && left.elapsed() < 7 * SECOND && third.accepts_writes());
    assert_eq!(fixture.writes(), writes + 2, "released and acquired");
    third.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_hold_admits_writers_while_an_operation_from_before_is_under_way() {
    for end in ["operation", "release", "drop", "drop in a write", "watch"] {
        let fixture = fixture();
        let mut first = fixture.locker.acquire_within(SECOND).await.unwrap();
        let second = fixture.locker.acquire_within(SECOND).await.unwrap();
        for _ in 0..2 {
            // One operation, with a request that was repeated.
            first.write(async {}).await;
        }
        sleep(31 * SECOND).await;
        assert!(!second.accepts_writes(), "most operations end soon");
        let mut late = fixture.locker.acquire_within(9 * SECOND).await.unwrap();
        assert!(late.accepts_writes() && second.accepts_writes(), "{end}");
        late.write(async {}).await;
        match end {
            "operation" => first.end_operation(),
            "release" => first.release().await,
            "drop" => drop(first),
            "watch" => {
                fixture.line.set(Fault::Status(500));
                fixture.line.cut_watches();
                sleep(SECOND).await;
            }
            _ => drop(timeout(SECOND, async move { first.write(std::future::pending::<()>()).await }).await),
        }
        assert!(!late.accepts_writes() && !second.accepts_writes(), "{end}");
        let error = fixture.locker.acquire_within(SECOND).await.unwrap_err();
        assert!(matches!(error, LockError::Closed { .. }), "{end}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_a_restart_of_the_api_server() {
    let fixture = fixture();
    let mut others = fixture.locker.released_by_others();
    let guard = fixture.locker.acquire_within(SECOND).await.unwrap();
    fixture.fake.restart(20 * SECOND);
    fixture.line.cut_watches();
    sleep(10 * SECOND).await;
    assert!(guard.accepts_writes(), "no other process can acquire it either");
    let left = Instant::now();
    guard.release().await;
    assert!(left.elapsed() <= 3 * SECOND, "{:?}", left.elapsed());
    let error = fixture.locker.acquire_within(SECOND).await.unwrap_err();
    let is_expected = matches!(error, LockError::Closed { .. } | LockError::Failed { .. });
    assert!(is_expected, "{error}");
    sleep(12 * SECOND).await;
    assert_eq!(fixture.others.holder().await, "", "released as soon as possible");
    // The watch continues.
    fixture.others.lock(CCM).await.unwrap();
    fixture.others.unlock(CCM).await.unwrap();
    let counted = timeout(60 * SECOND, others.changed()).await;
    assert!(counted.is_ok());
}

#[tokio::test(start_paused = true)]
async fn after_any_fault_the_lease_is_soon_released() {
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
        for applies_to in [is_write, |_: &RecordedRequest| true] {
            let fixture = fixture();
            fixture.others.create("", SECOND).await;
            sleep(SECOND).await;
            // While the Lease is acquired.
            fixture.line.set_for(fault, applies_to);
            let began = Instant::now();
            let guard = fixture.locker.acquire_within(3 * SECOND).await;
            assert!(began.elapsed() <= 3 * SECOND, "{fault:?}");
            if let Err(error) = &guard {
                let is_expected = matches!(error, LockError::Failed { .. } | LockError::Timeout { .. });
                assert!(is_expected, "{fault:?}: {error}");
            }
            drop(guard);
            sleep(5 * SECOND).await;
            fixture.line.set(Fault::None);
            // The hold of a delayed request is left alone while a writer may be in it.
            sleep(40 * SECOND).await;
            assert_eq!(fixture.others.holder().await, "", "{fault:?} while acquiring");
            // While the Lease is released.
            let mut guard = fixture.locker.acquire_within(SECOND).await.unwrap();
            guard.mark_written();
            fixture.line.set_for(fault, applies_to);
            let left = Instant::now();
            guard.release().await;
            assert!(left.elapsed() <= 3 * SECOND, "{fault:?}: {:?}", left.elapsed());
            sleep(5 * SECOND).await;
            fixture.line.set(Fault::None);
            sleep(10 * SECOND).await;
            assert_eq!(fixture.others.holder().await, "", "{fault:?} while releasing");
            let previous = fixture.others.previous_holder().await;
            assert_eq!(previous.as_deref(), Some("headgate"), "{fault:?}");
            // The lock still works.
            fixture.others.lock(CCM).await.unwrap();
            assert!(fixture.locker.acquire_within(SECOND).await.is_err());
            fixture.others.unlock(CCM).await.unwrap();
            fixture.locker.acquire_within(SECOND).await.unwrap().release().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_gets_few_requests() {
    for status in [403, 409, 503] {
        let fixture = fixture();
        fixture.others.create("", SECOND).await;
        sleep(SECOND).await;
        fixture.line.set(Fault::Status(status));
        let before = fixture.line.tries();
        assert!(fixture.locker.acquire_within(60 * SECOND).await.is_err());
        let tries = fixture.line.tries() - before;
        assert!((40..500).contains(&tries), "{status}: {tries}");
        let before = fixture.line.tries();
        sleep(60 * SECOND).await;
        let tries = fixture.line.tries() - before;
        println!("{status}: {tries} tries in a minute without a waiting writer");
        assert!(tries < 500, "{status}: {tries}");
    }
}
