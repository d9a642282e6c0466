//! The same cases on both APIs: who acquires the Lease when, what it contains then, and what errors say. Bounds of time are exact on the
//! fake, whose time is paused; kube-apiserver may be on a busy machine.

use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{LockError, LockGuard};
use headgate_test_kubernetes::{CCM, FakeApi, OtherProcess, control_plane, series_value};
use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use super::lock_fixture::{Locker, SECOND, soon};

/// One API, and the Lease of one case on it.
struct Fixture {
    client: Box<dyn Fn() -> Client>,
    lease: String,
    clock: Clock,
    others: OtherProcess,
    /// Whether time passes by itself.
    is_real: bool,
}

impl Fixture {
    fn new(client: impl Fn() -> Client + 'static, test: &str, is_real: bool) -> Self {
        let clock = Clock::anchored(jiff::Timestamp::now());
        let lease = format!("lock-{}", test.replace('_', "-"));
        Self {
            others: OtherProcess::new(client(), &lease, clock.clone()),
            client: Box::new(client),
            lease,
            clock,
            is_real,
        }
    }

    /// What takes at most so long.
    fn at_most(&self, paused: Duration) -> Duration {
        if self.is_real { 60 * SECOND } else { paused }
    }

    /// What takes less than a second in paused time; another's API server may stand still.
    fn assert_soon(&self, took: Duration) {
        assert!(self.is_real || took < SECOND, "{took:?}");
    }

    fn locker(&self) -> Locker {
        Locker::new((self.client)(), &self.lease, "headgate", self.clock.clone())
    }
}

/// Releases the lock, and checks that the Lease is released when that returns.
async fn release(fixture: &Fixture, guard: LockGuard) {
    guard.release().await;
    assert_eq!(fixture.others.holder().await, "");
}

async fn a_missing_lease_is_created_and_acquired(fixture: Fixture) {
    let locker = fixture.locker();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    assert!(guard.accepts_writes());
    let spec = fixture.others.lease().await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("headgate"));
    assert_eq!(spec.lease_duration_seconds, Some(900));
    assert!(spec.acquire_time.is_some() && spec.acquire_time == spec.renew_time);
    assert_eq!(spec.lease_transitions, None, "no user of this Lease counts transitions");
    release(&fixture, guard).await;
    assert_eq!(fixture.others.previous_holder().await, None, "nothing was written");
    fixture.assert_soon(locker.end().await);
}

async fn a_writer_becomes_the_previous_holder(fixture: Fixture) {
    fixture.others.create("", SECOND).await;
    let locker = fixture.locker();
    let mut guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    guard.mark_written();
    release(&fixture, guard).await;
    assert_eq!(fixture.others.previous_holder().await.as_deref(), Some("headgate"));
    // A hold without a write keeps the previous holder.
    assert!(fixture.others.lock(CCM).await.unwrap(), "caches are dropped");
    fixture.others.unlock(CCM).await.unwrap();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    release(&fixture, guard).await;
    assert_eq!(fixture.others.previous_holder().await.as_deref(), Some(CCM));
    assert!(!fixture.others.lock(CCM).await.unwrap(), "caches are kept");
}

async fn a_timeout_names_the_holder(fixture: Fixture) {
    fixture.others.create(CCM, 2 * SECOND).await;
    let locker = fixture.locker();
    let began = Instant::now();
    let error = locker.acquire_within(SECOND).await.unwrap_err();
    assert!(began.elapsed() >= SECOND && began.elapsed() < 2 * SECOND);
    let (text, lease) = (error.to_string(), &fixture.lease);
    let begins = format!("Lease {lease} is held by \"{CCM}\" since 20");
    assert!(text.starts_with(&begins), "{text}");
    let LockError::Held { since, expires, .. } = error else {
        panic!("{text}")
    };
    let lasts = expires.unwrap().duration_since(since.unwrap());
    assert_eq!(lasts.as_secs(), 900);
    assert_eq!(fixture.others.holder().await, CCM);
    let labels = format!("lock=\"{lease}\",caller=\"test\"");
    let series = format!("cloudprovider_azure_lock_wait_duration_seconds_count{{{labels}}}");
    assert_eq!(series_value::<u32>(&locker.registry, &series), 1);
}

async fn an_expired_lease_is_acquired(fixture: Fixture) {
    fixture.others.create(CCM, 901 * SECOND).await;
    let locker = fixture.locker();
    let others = locker.released_by_others();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    assert_eq!(*others.borrow(), 1, "the other's hold has ended");
    release(&fixture, guard).await;
    assert_eq!(*others.borrow(), 1);
}

async fn a_waiting_writer_acquires_the_lease_as_soon_as_it_is_released(fixture: Fixture) {
    fixture.others.create("", SECOND).await;
    let locker = fixture.locker();
    let mut others = locker.released_by_others();
    let mut times = Vec::new();
    for round in 1..=10 {
        soon("locked", async || fixture.others.lock(CCM).await.is_ok()).await;
        let (waits, longest) = (locker.handle(), fixture.at_most(10 * SECOND));
        let waits = tokio::spawn(async move {
            let guard = waits.acquire("test", Instant::now() + longest).await.unwrap();
            (guard, Instant::now())
        });
        sleep(Duration::from_millis(300 + 37 * round)).await;
        assert!(!waits.is_finished());
        let released_at = Instant::now();
        fixture.others.unlock(CCM).await.unwrap();
        let (guard, at) = waits.await.unwrap();
        times.push(at - released_at);
        assert_eq!(fixture.others.holder().await, "headgate");
        release(&fixture, guard).await;
        let counted = timeout(fixture.at_most(SECOND), others.wait_for(|count| *count >= round)).await;
        assert_eq!(*counted.expect("the hold is counted").unwrap(), round, "once");
    }
    times.sort();
    println!("acquired {:.1?} to {:.1?} after the release", times[0], times[9]);
    assert!(times[9] < fixture.at_most(SECOND / 2), "{times:?}");
}

async fn many_writers_share_one_hold(fixture: Fixture) {
    let locker = fixture.locker();
    let longest = fixture.at_most(5 * SECOND);
    let guards = futures::future::join_all((0..50).map(|_| locker.acquire_within(longest))).await;
    let mut guard: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let acquired = async || {
        let lease = fixture.others.lease().await.unwrap();
        lease.spec.unwrap().acquire_time.unwrap()
    };
    let first = acquired().await;
    guard[7].mark_written();
    let last = guard.pop().unwrap();
    for one in guard {
        one.release().await;
        assert_eq!(acquired().await, first);
    }
    assert_eq!(fixture.others.holder().await, "headgate");
    release(&fixture, last).await;
    assert_eq!(fixture.others.previous_holder().await.as_deref(), Some("headgate"));
    assert_eq!(acquired().await, first, "one hold for all");
}

async fn a_dropped_writer_has_left(fixture: Fixture) {
    let locker = fixture.locker();
    let (panics, longest) = (locker.handle(), fixture.at_most(5 * SECOND));
    let task = tokio::spawn(async move {
        let mut guard = panics.acquire("test", Instant::now() + longest).await.unwrap();
        guard.mark_written();
        panic!("a defect, with {guard:?}");
    });
    assert!(task.await.is_err());
    soon("released", async || fixture.others.holder().await.is_empty()).await;
    assert_eq!(fixture.others.previous_holder().await.as_deref(), Some("headgate"));
    // A writer that stops waiting does not count any more.
    fixture.others.lock(CCM).await.unwrap();
    let waits = locker.handle();
    let waits = tokio::spawn(async move { waits.acquire("test", Instant::now() + 60 * SECOND).await });
    sleep(SECOND / 5).await;
    waits.abort();
    fixture.others.unlock(CCM).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(fixture.others.holder().await, "", "no writer waits");
}

async fn the_next_leader_releases_the_hold_of_a_crashed_one(fixture: Fixture) {
    let locker = fixture.locker();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    locker.crash().await;
    guard.release().await;
    assert_eq!(fixture.others.holder().await, "headgate");
    assert!(fixture.others.lock(CCM).await.is_err());
    let next = fixture.locker();
    soon("released", async || fixture.others.holder().await.is_empty()).await;
    // Something may have been written.
    assert_eq!(fixture.others.previous_holder().await.as_deref(), Some("headgate"));
    drop(next);
}

async fn a_release_does_not_touch_the_hold_of_another_process(fixture: Fixture) {
    let locker = fixture.locker();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    // The hold is lost, as after 15 minutes.
    fixture.others.delete().await;
    fixture.others.create(CCM, SECOND).await;
    soon("the loss is noticed", async || !guard.accepts_writes()).await;
    let began = Instant::now();
    guard.release().await;
    fixture.assert_soon(began.elapsed());
    sleep(SECOND / 2).await;
    assert_eq!(fixture.others.holder().await, CCM);
    // The same without time to notice: released at once.
    fixture.others.unlock(CCM).await.unwrap();
    let guard = locker.acquire_within(fixture.at_most(5 * SECOND)).await.unwrap();
    fixture.others.delete().await;
    fixture.others.create(CCM, SECOND).await;
    guard.release().await;
    sleep(SECOND / 2).await;
    assert_eq!(fixture.others.holder().await, CCM);
}

/// Runs each case on the fake, and the first ones on kube-apiserver too. The others are about times, which paused time alone
/// makes exact. The name of the case is the name of its Lease.
macro_rules! cases {
    (both: [$($both:ident)*] fake: [$($fake:ident)*]) => {
        mod on_the_fake {
            use super::*;

            $(cases!(fake $both);)*
            $(cases!(fake $fake);)*
        }

        mod on_kube_apiserver {
            use super::*;

            $(#[tokio::test]
            async fn $both() {
                super::$both(Fixture::new(|| control_plane().client(), stringify!($both), true)).await;
            })*
        }
    };
    (fake $case:ident) => {
        #[tokio::test(start_paused = true)]
        async fn $case() {
            let fake = FakeApi::default();
            super::$case(Fixture::new(move || fake.client().0, stringify!($case), false)).await;
        }
    };
}

cases! {
    both: [
        a_missing_lease_is_created_and_acquired
        a_writer_becomes_the_previous_holder
        an_expired_lease_is_acquired
        a_waiting_writer_acquires_the_lease_as_soon_as_it_is_released
        many_writers_share_one_hold
        a_dropped_writer_has_left
        the_next_leader_releases_the_hold_of_a_crashed_one
        a_release_does_not_touch_the_hold_of_another_process
    ]
    fake: [
        a_timeout_names_the_holder
    ]
}
