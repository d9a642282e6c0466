//! All faults at once, at random: a hold that accepts writes has the Lease, and when the faults end the Lease is soon released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headgate_kubernetes::leader::ArmLock;
use headgate_test_kubernetes::{CCM, FakeApi, Fault, OtherProcess};
use k8s_openapi::api::coordination::v1::Lease;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::run_paused;

use super::lock_fixture::{Locker, NAMESPACE, SECOND};

const LEASE: &str = "lock-random";

#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Line(Fault),
    /// The same for watches only.
    Watches(Fault),
    CutWatches,
    Restart,
    Annotate,
    /// The process is killed, and another one starts.
    Crash,
}

/// A disturbance: after how many tenths of a second it begins, and for how many it lasts.
type Timed = (u64, Disturbance, u64);

fn faults() -> impl Strategy<Value = Fault> {
    let millis = |range: std::ops::Range<u64>| range.prop_map(Duration::from_millis);
    prop_oneof![
        2 => Just(Fault::CutOff),
        2 => Just(Fault::AnswerLost),
        2 => millis(0..9000).prop_map(Fault::Late),
        2 => millis(0..4000).prop_map(Fault::Slow),
        1 => prop_oneof![Just(500), Just(429), Just(403), Just(409)].prop_map(Fault::Status),
    ]
}

fn timed_disturbances() -> impl Strategy<Value = Vec<Timed>> {
    let disturbances = prop_oneof![
        4 => faults().prop_map(Disturbance::Line),
        2 => faults().prop_map(Disturbance::Watches),
        1 => Just(Disturbance::CutWatches),
        1 => Just(Disturbance::Restart),
        1 => Just(Disturbance::Annotate),
        1 => Just(Disturbance::Crash),
    ];
    proptest::collection::vec((0_u64..40, disturbances, 1_u64..150), 1..12)
}

fn holder(fake: &FakeApi) -> String {
    let spec = fake.peek::<Lease>(NAMESPACE, LEASE).and_then(|lease| lease.spec);
    spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// Acquires and releases the lock, and checks that the process holds the Lease while the hold accepts writes.
async fn write_repeatedly(lock: ArmLock, fake: FakeApi, seed: u64, holds: Arc<AtomicU32>) {
    for round in 0_u64.. {
        sleep(Duration::from_millis((seed * 577 + round * 131) % 900)).await;
        let Ok(mut guard) = lock.acquire("test", Instant::now() + 5 * SECOND).await else {
            continue;
        };
        holds.fetch_add(1, Ordering::Relaxed);
        for _ in 0..(seed + round) % 40 {
            if guard.accepts_writes() {
                assert_eq!(holder(&fake), "headgate", "in a hold that accepts writes");
            }
            sleep(Duration::from_millis(20)).await;
        }
        match round % 3 {
            0 => drop(guard),
            1 => guard.release().await,
            _ => {
                guard.mark_written();
                guard.release().await;
            }
        }
    }
}

async fn reconcile_repeatedly(others: OtherProcess, fake: FakeApi, over: Arc<AtomicBool>) {
    for round in 0_u64.. {
        sleep(Duration::from_millis(round * 211 % 700)).await;
        if over.load(Ordering::Relaxed) {
            return;
        }
        if others.lock(CCM).await.is_ok() {
            for _ in 0..round % 20 {
                assert_eq!(holder(&fake), CCM, "in the hold of the other process");
                sleep(Duration::from_millis(20)).await;
            }
            // After a conflict it tries again, as at the end of its next reconcile.
            while others.unlock(CCM).await.is_err() {
                sleep(SECOND).await;
            }
        }
    }
}

async fn scenario(disturbances: Vec<Timed>, holds: Arc<AtomicU32>) {
    let fake = FakeApi::default();
    let clock = fake.clock();
    let others = OtherProcess::new(fake.client().0, LEASE, clock.clone());
    let mut tasks = JoinSet::new();
    let begin = |tasks: &mut JoinSet<()>| {
        let (client, line) = fake.client();
        let locker = Locker::new(client, LEASE, "headgate", clock.clone());
        for seed in 1..4 {
            let (lock, fake, holds) = (locker.handle(), fake.clone(), Arc::clone(&holds));
            tasks.spawn(write_repeatedly(lock, fake, seed, holds));
        }
        (locker, line)
    };
    let over = Arc::new(AtomicBool::new(false));
    let rival = tokio::spawn(reconcile_repeatedly(others.clone(), fake.clone(), Arc::clone(&over)));
    let (mut locker, mut line) = begin(&mut tasks);
    for (pause, disturbance, lasts) in disturbances {
        sleep(Duration::from_millis(pause * 100)).await;
        let time = Duration::from_millis(lasts * 100);
        match disturbance {
            Disturbance::Line(fault) => line.set(fault),
            Disturbance::Watches(fault) => line.set_for(fault, |asked| asked.is_watch),
            Disturbance::CutWatches => line.cut_watches(),
            Disturbance::Restart => fake.restart(time),
            Disturbance::Annotate => fake.annotate::<Lease>(NAMESPACE, LEASE, "other", "1"),
            Disturbance::Crash => {
                check_writers(&mut tasks).await;
                locker.crash().await;
                sleep(15 * SECOND).await;
                (locker, line) = begin(&mut tasks);
            }
        }
        sleep(time).await;
        line.set(Fault::None);
    }
    let before = holds.load(Ordering::Relaxed);
    sleep(30 * SECOND).await;
    assert!(holds.load(Ordering::Relaxed) > before, "the lock still works");
    check_writers(&mut tasks).await;
    over.store(true, Ordering::Relaxed);
    rival.await.unwrap();
    sleep(15 * SECOND).await;
    assert_eq!(holder(&fake), "", "released at the end");
    assert!(locker.acquire_within(SECOND).await.is_ok());
}

/// Ends the writers, and panics if one of them has panicked.
async fn check_writers(tasks: &mut JoinSet<()>) {
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            assert!(error.is_cancelled(), "{error}");
        }
    }
}

#[test]
fn under_random_faults_a_hold_has_the_lease_and_none_stays() {
    let holds = Arc::new(AtomicU32::new(0));
    run_paused(file!(), 24, &timed_disturbances(), |disturbances| {
        scenario(disturbances, Arc::clone(&holds))
    });
    println!("{} holds", holds.load(Ordering::Relaxed));
}
