//! The same on both APIs: who gets the Lease when, what it looks like then, and who is told.

use std::time::Duration;

use headgate_clock::Clock;
use headgate_leader::{LockError, LockGuard};
use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::control_plane;
use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use super::world::{CCM, Locker, Others, PREVIOUS, SECOND, soon};

/// One API, and the Lease of one test on it.
struct World {
    client: Box<dyn Fn() -> Client>,
    lease: String,
    clock: Clock,
    others: Others,
}

impl World {
    fn new(client: impl Fn() -> Client + 'static, test: &str) -> Self {
        let clock = Clock::anchored(jiff::Timestamp::now());
        let lease = format!("lock-{}", test.replace('_', "-"));
        Self {
            others: Others::new(client(), &lease, clock.clone()),
            client: Box::new(client),
            lease,
            clock,
        }
    }

    fn locker(&self) -> Locker {
        self.locker_named("headgate")
    }

    fn locker_named(&self, holder: &str) -> Locker {
        Locker::new((self.client)(), &self.lease, holder, self.clock.clone())
    }
}

/// Leaves, and the Lease is given back when that returns.
async fn leaves(world: &World, entered: LockGuard) {
    entered.release().await;
    assert_eq!(world.others.holder().await, "");
}

async fn a_missing_lease_is_made_and_taken(world: World) {
    let locker = world.locker();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    assert!(entered.accepts_writes());
    let spec = world.others.lease().await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("headgate"));
    assert_eq!(spec.lease_duration_seconds, Some(900));
    assert!(spec.acquire_time.is_some() && spec.acquire_time == spec.renew_time);
    assert_eq!(spec.lease_transitions, None, "nobody counts");
    leaves(&world, entered).await;
    assert_eq!(world.others.previous().await, None, "nothing was written");
    assert!(locker.ends().await < SECOND);
}

async fn a_free_lease_is_taken_and_a_writer_names_himself(world: World) {
    world.others.make("", SECOND).await;
    let locker = world.locker();
    let mut entered = locker.enters(5 * SECOND).await.unwrap();
    entered.mark_written();
    leaves(&world, entered).await;
    assert_eq!(world.others.previous().await.as_deref(), Some("headgate"));
    // The next who writes nothing leaves the name of who did.
    assert!(world.others.lock(CCM).await.unwrap(), "caches are dropped");
    world.others.unlock(CCM).await.unwrap();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    leaves(&world, entered).await;
    assert_eq!(world.others.previous().await.as_deref(), Some(CCM));
    assert!(!world.others.lock(CCM).await.unwrap(), "caches are kept");
}

async fn who_does_not_get_it_is_told_who_has_it(world: World) {
    world.others.make(CCM, 2 * SECOND).await;
    let locker = world.locker();
    let began = Instant::now();
    let error = locker.enters(SECOND).await.unwrap_err();
    assert!(began.elapsed() >= SECOND && began.elapsed() < 2 * SECOND);
    let LockError::Held {
        holder, since, expires, ..
    } = &error
    else {
        panic!("{error}")
    };
    let lasts = expires.unwrap().duration_since(since.unwrap());
    assert_eq!((holder.as_str(), lasts.as_secs()), (CCM, 900));
    let told = error.to_string();
    assert!(
        told.starts_with(&format!("Lease {} is held by \"{CCM}\" since 20", world.lease)),
        "{told}"
    );
    assert_eq!(world.others.holder().await, CCM);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &locker.registry).unwrap();
    let series = format!(
        "cloudprovider_azure_lock_wait_duration_seconds_count{{lock=\"{}\",caller=\"test\"}} 1",
        world.lease
    );
    assert!(text.contains(&series), "{text}");
}

async fn an_expired_lease_is_taken(world: World) {
    world.others.make(CCM, 901 * SECOND).await;
    let locker = world.locker();
    let others = locker.released_by_others();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    assert_eq!(*others.borrow(), 1, "he was there");
    leaves(&world, entered).await;
    assert_eq!(*others.borrow(), 1);
}

async fn a_lease_is_taken_when_it_expires(world: World) {
    world.others.make(CCM, 898 * SECOND).await;
    let began = Instant::now();
    let locker = world.locker();
    let entered = locker.enters(10 * SECOND).await.unwrap();
    let took = began.elapsed();
    assert!(took > 3 * SECOND / 2 && took < 3 * SECOND, "{took:?}");
    leaves(&world, entered).await;
}

async fn who_waits_has_it_as_soon_as_it_is_given_back(world: World) {
    world.others.make("", SECOND).await;
    let locker = world.locker();
    let mut others = locker.released_by_others();
    let mut times = Vec::new();
    for round in 1..=10 {
        soon("locked", async || world.others.lock(CCM).await.is_ok()).await;
        let waits = locker.handle();
        let waits = tokio::spawn(async move {
            let entered = waits.acquire("test", Instant::now() + 10 * SECOND).await.unwrap();
            (entered, Instant::now())
        });
        sleep(Duration::from_millis(300 + 37 * round)).await;
        assert!(!waits.is_finished());
        let given_back = Instant::now();
        world.others.unlock(CCM).await.unwrap();
        let (entered, at) = waits.await.unwrap();
        times.push(at - given_back);
        assert_eq!(world.others.holder().await, "headgate");
        leaves(&world, entered).await;
        let counted = timeout(SECOND, others.wait_for(|count| *count >= round)).await;
        assert_eq!(*counted.expect("it is counted").unwrap(), round, "and once");
    }
    times.sort();
    println!("taken {:.1?} to {:.1?} after it was given back", times[0], times[9]);
    assert!(times[9] < SECOND / 2, "{times:?}");
}

async fn many_share_one_hold(world: World) {
    let locker = world.locker();
    let entered: Vec<_> = futures::future::join_all((0..50).map(|_| locker.enters(5 * SECOND))).await;
    let mut entered: Vec<_> = entered.into_iter().map(Result::unwrap).collect();
    let acquired = async || world.others.lease().await.unwrap().spec.unwrap().acquire_time.unwrap();
    let first = acquired().await;
    entered[7].mark_written();
    let last = entered.pop().unwrap();
    for one in entered {
        one.release().await;
        assert_eq!(acquired().await, first);
    }
    assert_eq!(world.others.holder().await, "headgate");
    leaves(&world, last).await;
    assert_eq!(world.others.previous().await.as_deref(), Some("headgate"));
    assert_eq!(acquired().await, first, "one hold for all");
}

async fn who_is_dropped_has_left(world: World) {
    let locker = world.locker();
    let panics = locker.handle();
    let task = tokio::spawn(async move {
        let mut entered = panics.acquire("test", Instant::now() + 5 * SECOND).await.unwrap();
        entered.mark_written();
        panic!("a defect, with {entered:?}");
    });
    assert!(task.await.is_err());
    soon("given back", async || world.others.holder().await.is_empty()).await;
    assert_eq!(world.others.previous().await.as_deref(), Some("headgate"));
    // And who gives up waiting waits no more.
    world.others.lock(CCM).await.unwrap();
    let waits = locker.handle();
    let waits = tokio::spawn(async move { waits.acquire("test", Instant::now() + 60 * SECOND).await });
    sleep(SECOND / 5).await;
    waits.abort();
    world.others.unlock(CCM).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(world.others.holder().await, "", "nobody wants it");
}

async fn the_next_leader_gives_back_what_one_that_crashed_held(world: World) {
    let locker = world.locker();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    locker.crash().await;
    entered.release().await;
    assert_eq!(world.others.holder().await, "headgate");
    assert!(world.others.lock(CCM).await.is_err());
    let next = world.locker();
    soon("given back", async || world.others.holder().await.is_empty()).await;
    assert_eq!(
        world.others.previous().await.as_deref(),
        Some("headgate"),
        "who knows what he wrote"
    );
    drop(next);
}

async fn the_next_leader_enters_what_one_that_crashed_held(world: World) {
    let locker = world.locker();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    locker.crash().await;
    drop(entered);
    let next = world.locker();
    let began = Instant::now();
    let entered = next.enters(5 * SECOND).await.unwrap();
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    leaves(&world, entered).await;
    assert_eq!(world.others.previous().await.as_deref(), Some("headgate"));
}

async fn a_release_leaves_somebody_else_s_hold_alone(world: World) {
    let locker = world.locker();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    // Taken away, as after 15 minutes.
    world.others.delete().await;
    world.others.make(CCM, SECOND).await;
    soon("the loss is seen", async || !entered.accepts_writes()).await;
    let began = Instant::now();
    entered.release().await;
    assert!(began.elapsed() < SECOND);
    sleep(SECOND / 2).await;
    assert_eq!(world.others.holder().await, CCM);
    // The same unseen: given back in the very moment.
    world.others.unlock(CCM).await.unwrap();
    let entered = locker.enters(5 * SECOND).await.unwrap();
    world.others.delete().await;
    world.others.make(CCM, SECOND).await;
    entered.release().await;
    sleep(SECOND / 2).await;
    assert_eq!(world.others.holder().await, CCM);
}

async fn another_version_of_our_own_hold_is_given_back_too(world: World) {
    let locker = world.locker();
    for _ in 0..5 {
        let entered = locker.enters(5 * SECOND).await.unwrap();
        // Somebody notes something, which must stay.
        let note = serde_json::json!({"metadata": {"annotations": {"other": "1"}, "labels": {"a": "b"}}});
        world.others.merge(note).await;
        leaves(&world, entered).await;
        let metadata = world.others.lease().await.unwrap().metadata;
        assert_eq!(metadata.annotations.unwrap()["other"], "1");
        assert_eq!(metadata.labels.unwrap()["a"], "b");
        world.others.delete().await;
    }
    assert!(world.others.lease().await.is_none(), "and {PREVIOUS} with it");
}

async fn two_who_come_at_once_have_it_one_after_the_other(world: World) {
    let lockers = ["headgate", "another"].map(|holder| world.locker_named(holder));
    let enters = |locker: &Locker| {
        let lock = locker.handle();
        async move {
            for _ in 0..10 {
                let entered = lock.acquire("test", Instant::now() + 30 * SECOND).await.unwrap();
                assert!(entered.accepts_writes());
                sleep(Duration::from_millis(5)).await;
                assert!(entered.accepts_writes(), "nobody took it away");
                entered.release().await;
            }
        }
    };
    tokio::join!(enters(&lockers[0]), enters(&lockers[1]));
    assert_eq!(world.others.holder().await, "");
}

/// Each on both; its name is that of its Lease.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod on_the_fake {
            use super::*;

            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                let fake = FakeApi::default();
                super::$case(World::new(move || fake.client().0, stringify!($case))).await;
            })*
        }

        mod on_kube_apiserver {
            use super::*;

            $(#[tokio::test]
            async fn $case() {
                super::$case(World::new(|| control_plane().client(), stringify!($case))).await;
            })*
        }
    };
}

on_both! {
    a_missing_lease_is_made_and_taken
    a_free_lease_is_taken_and_a_writer_names_himself
    who_does_not_get_it_is_told_who_has_it
    an_expired_lease_is_taken
    a_lease_is_taken_when_it_expires
    who_waits_has_it_as_soon_as_it_is_given_back
    many_share_one_hold
    who_is_dropped_has_left
    the_next_leader_gives_back_what_one_that_crashed_held
    the_next_leader_enters_what_one_that_crashed_held
    a_release_leaves_somebody_else_s_hold_alone
    another_version_of_our_own_hold_is_given_back_too
    two_who_come_at_once_have_it_one_after_the_other
}
