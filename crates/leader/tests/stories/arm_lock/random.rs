//! Everything at once, at random: whoever is in an open hold has the Lease, and once nothing fails any more it is soon
//! free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headgate_clock::Clock;
use headgate_leader::ArmLock;
use headgate_test_kubernetes::{FakeApi, Fault};
use k8s_openapi::api::coordination::v1::Lease;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::world::{CCM, Locker, NAMESPACE, Others, SECOND};

const LEASE: &str = "lock-random";

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Line(Fault),
    /// The same for watches only.
    Watches(Fault),
    CutWatches,
    Restart,
    Annotate,
    /// The process is killed, and another one leads.
    Crash,
}

/// What happens at which tenth of a second, and for how many it lasts.
type Happening = (u64, Trouble, u64);

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

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let troubles = prop_oneof![
        4 => faults().prop_map(Trouble::Line),
        2 => faults().prop_map(Trouble::Watches),
        1 => Just(Trouble::CutWatches),
        1 => Just(Trouble::Restart),
        1 => Just(Trouble::Annotate),
        1 => Just(Trouble::Crash),
    ];
    proptest::collection::vec((0_u64..40, troubles, 1_u64..150), 1..12)
}

fn holder(fake: &FakeApi) -> String {
    let spec = fake.peek::<Lease>(NAMESPACE, LEASE).and_then(|lease| lease.spec);
    spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// Goes in and out, watching that the Lease is ours as long as the hold is open.
async fn writes(lock: ArmLock, fake: FakeApi, seed: u64, holds: Arc<AtomicU32>) {
    for round in 0_u64.. {
        sleep(Duration::from_millis((seed * 577 + round * 131) % 900)).await;
        let Ok(mut entered) = lock.enter("test", Instant::now() + 5 * SECOND).await else {
            continue;
        };
        holds.fetch_add(1, Ordering::Relaxed);
        for _ in 0..(seed + round) % 40 {
            if entered.open() {
                assert_eq!(holder(&fake), "headgate", "in an open hold");
            }
            sleep(Duration::from_millis(20)).await;
        }
        match round % 3 {
            0 => drop(entered),
            1 => entered.leave().await,
            _ => {
                entered.wrote();
                entered.leave().await;
            }
        }
    }
}

async fn reconciles(others: Others, fake: FakeApi, over: Arc<AtomicBool>) {
    for round in 0_u64.. {
        sleep(Duration::from_millis(round * 211 % 700)).await;
        if over.load(Ordering::Relaxed) {
            return;
        }
        if others.lock(CCM).await.is_ok() {
            for _ in 0..round % 20 {
                assert_eq!(holder(&fake), CCM, "in his turn");
                sleep(Duration::from_millis(20)).await;
            }
            // Somebody may have noted something meanwhile: he does it again, as at the end of his next reconcile.
            while others.unlock(CCM).await.is_err() {
                sleep(SECOND).await;
            }
        }
    }
}

async fn story(happenings: Vec<Happening>, holds: Arc<AtomicU32>) {
    let fake = FakeApi::default();
    let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
    let others = Others::new(fake.client().0, LEASE, clock.clone());
    let mut tasks = JoinSet::new();
    let begin = |tasks: &mut JoinSet<()>| {
        let (client, line) = fake.client();
        let locker = Locker::new(client, LEASE, "headgate", clock.clone());
        for seed in 1..4 {
            tasks.spawn(writes(locker.handle(), fake.clone(), seed, Arc::clone(&holds)));
        }
        (locker, line)
    };
    let over = Arc::new(AtomicBool::new(false));
    let rival = tokio::spawn(reconciles(others.clone(), fake.clone(), Arc::clone(&over)));
    let (mut locker, mut line) = begin(&mut tasks);
    for (pause, trouble, lasts) in happenings {
        sleep(Duration::from_millis(pause * 100)).await;
        let time = Duration::from_millis(lasts * 100);
        match trouble {
            Trouble::Line(fault) => line.set(fault),
            Trouble::Watches(fault) => line.set_for(fault, |asked| asked.is_watch),
            Trouble::CutWatches => line.cut_watches(),
            Trouble::Restart => fake.restart(time),
            Trouble::Annotate => fake.annotate::<Lease>(NAMESPACE, LEASE, "other", "1"),
            Trouble::Crash => {
                fails_if_one_failed(&mut tasks).await;
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
    assert!(holds.load(Ordering::Relaxed) > before, "it goes on");
    fails_if_one_failed(&mut tasks).await;
    over.store(true, Ordering::Relaxed);
    rival.await.unwrap();
    sleep(15 * SECOND).await;
    assert_eq!(holder(&fake), "", "and is free at the end");
    assert!(locker.enters(SECOND).await.is_ok());
}

/// Ends those who write; what one of them saw go wrong is told.
async fn fails_if_one_failed(tasks: &mut JoinSet<()>) {
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            assert!(error.is_cancelled(), "{error}");
        }
    }
}

#[test]
fn whatever_fails_an_open_hold_is_ours_and_none_stays() {
    let asked_for = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        cases: if asked_for { Config::default().cases } else { 24 },
        max_shrink_iters: 200,
        ..Config::with_source_file(file!())
    };
    let mut runner = TestRunner::new(config);
    let holds = Arc::new(AtomicU32::new(0));
    let outcome = runner.run(&happenings(), |happenings| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(story(happenings, Arc::clone(&holds)));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    println!("{} times in", holds.load(Ordering::Relaxed));
}
