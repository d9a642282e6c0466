//! Hundreds of holds beside another process that locks as cloud-controller-manager does: never both at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_test_kubernetes::{CCM, FakeApi, OtherProcess, control_plane};
use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use super::lock_fixture::{Locker, SECOND};

/// Detects two holders at once, and counts the holds.
#[derive(Default)]
struct CriticalSection {
    taken: AtomicBool,
    ours: AtomicU32,
    theirs: AtomicU32,
}

impl CriticalSection {
    async fn stay(&self, count: &AtomicU32, time: Duration) {
        let is_taken = self.taken.swap(true, Ordering::SeqCst);
        assert!(!is_taken, "both processes hold the Lease");
        count.fetch_add(1, Ordering::SeqCst);
        sleep(time).await;
        self.taken.store(false, Ordering::SeqCst);
    }
}

/// A time that differs from round to round, and is the same in each run.
fn pseudo_random(round: u32, max_millis: u64) -> Duration {
    Duration::from_millis(u64::from(round.wrapping_mul(2_654_435_761) >> 8) % max_millis)
}

/// `noticed_within` is how soon a hold of the rival is counted.
async fn take_turns(client: impl Fn() -> Client, lease: &str, rounds: u32, noticed_within: Duration) {
    let clock = Clock::anchored(jiff::Timestamp::now());
    let section = Arc::new(CriticalSection::default());
    let locker = Locker::new(client(), lease, "headgate", clock.clone());
    let mut others = locker.released_by_others();
    let start = *others.borrow();
    let rival = OtherProcess::new(client(), lease, clock);
    let reconciles = {
        let section = Arc::clone(&section);
        tokio::spawn(async move {
            let mut round = 0;
            while section.theirs.load(Ordering::SeqCst) < rounds {
                round += 1;
                if rival.lock(CCM).await.is_ok() {
                    section.stay(&section.theirs, pseudo_random(round, 20)).await;
                    let before = *others.borrow();
                    rival.unlock(CCM).await.unwrap();
                    // Each hold is counted at once, except that holds in close succession may count once.
                    if round % 2 == 0 {
                        let counted = timeout(noticed_within, others.wait_for(|count| *count > before)).await;
                        assert!(counted.is_ok(), "the hold was not noticed");
                    }
                }
                sleep(pseudo_random(round, 30)).await;
            }
        })
    };
    let writes = {
        let (section, lock) = (Arc::clone(&section), locker.handle());
        tokio::spawn(async move {
            for round in 0..rounds {
                let mut guard = lock.acquire("test", Instant::now() + 60 * SECOND).await.unwrap();
                assert!(guard.accepts_writes());
                section.stay(&section.ours, pseudo_random(round, 15)).await;
                if round % 3 == 0 {
                    guard.mark_written();
                }
                if round % 7 == 0 {
                    drop(guard);
                } else {
                    guard.release().await;
                }
                sleep(pseudo_random(round, 30)).await;
            }
        })
    };
    writes.await.unwrap();
    reconciles.await.unwrap();
    let [ours, theirs] = [&section.ours, &section.theirs].map(|count| count.load(Ordering::SeqCst));
    let noticed = *locker.released_by_others().borrow() - start;
    println!("{ours} own holds, {theirs} of the other process; noticed: {noticed}");
    assert!(ours == rounds && theirs >= rounds);
    assert!(noticed <= theirs.into(), "own holds do not count");
}

#[tokio::test(start_paused = true)]
async fn never_both_hold_the_lease_on_the_fake() {
    let fake = FakeApi::default();
    take_turns(|| fake.client().0, "lock-rivals", 500, SECOND).await;
}

#[tokio::test]
async fn never_both_hold_the_lease_on_kube_apiserver() {
    take_turns(|| control_plane().client(), "lock-rivals", 200, 60 * SECOND).await;
}
