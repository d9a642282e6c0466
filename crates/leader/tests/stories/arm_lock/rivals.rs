//! Hundreds of rounds beside somebody who locks as cloud-controller-manager does: never are both inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headgate_clock::Clock;
use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::control_plane;
use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use super::world::{CCM, Locker, Others, SECOND};

/// What nobody may be in beside another; how often who was in.
#[derive(Default)]
struct Room {
    taken: AtomicBool,
    ours: AtomicU32,
    theirs: AtomicU32,
}

impl Room {
    async fn stay(&self, count: &AtomicU32, time: Duration) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "both are inside");
        count.fetch_add(1, Ordering::SeqCst);
        sleep(time).await;
        self.taken.store(false, Ordering::SeqCst);
    }
}

/// Differs from round to round, the same in each run.
fn chance(round: u32, most: u64) -> Duration {
    Duration::from_millis(u64::from(round.wrapping_mul(2_654_435_761) >> 8) % most)
}

async fn both_work(client: impl Fn() -> Client, lease: &str, rounds: u32) {
    let clock = Clock::anchored(jiff::Timestamp::now());
    let room = Arc::new(Room::default());
    let locker = Locker::new(client(), lease, "headgate", clock.clone());
    let mut others = locker.released_by_others();
    let start = *others.borrow();
    let rival = Others::new(client(), lease, clock);
    let reconciles = {
        let room = Arc::clone(&room);
        tokio::spawn(async move {
            let mut round = 0;
            while room.theirs.load(Ordering::SeqCst) < rounds {
                round += 1;
                if rival.lock(CCM).await.is_ok() {
                    room.stay(&room.theirs, chance(round, 20)).await;
                    let before = *others.borrow();
                    rival.unlock(CCM).await.unwrap();
                    // Each time we are told, at once; of turns that come one right after another perhaps once.
                    if round % 2 == 0 {
                        let told = timeout(SECOND, others.wait_for(|count| *count > before)).await;
                        assert!(told.is_ok(), "his turn was not noticed");
                    }
                }
                sleep(chance(round, 30)).await;
            }
        })
    };
    let writes = {
        let (room, lock) = (Arc::clone(&room), locker.handle());
        tokio::spawn(async move {
            for round in 0..rounds {
                let mut entered = lock.acquire("test", Instant::now() + 60 * SECOND).await.unwrap();
                assert!(entered.accepts_writes());
                room.stay(&room.ours, chance(round, 15)).await;
                if round % 3 == 0 {
                    entered.mark_written();
                }
                if round % 7 == 0 {
                    drop(entered);
                } else {
                    entered.release().await;
                }
                sleep(chance(round, 30)).await;
            }
        })
    };
    writes.await.unwrap();
    reconciles.await.unwrap();
    let (ours, theirs) = (room.ours.load(Ordering::SeqCst), room.theirs.load(Ordering::SeqCst));
    let noticed = *locker.released_by_others().borrow() - start;
    println!("{ours} of our holds, {theirs} of theirs; noticed: {noticed}");
    assert!(ours == rounds && theirs >= rounds);
    assert!(noticed <= theirs.into(), "ours are not among them");
}

#[tokio::test(start_paused = true)]
async fn never_both_inside_on_the_fake() {
    let fake = FakeApi::default();
    both_work(|| fake.client().0, "lock-rivals", 500).await;
}

#[tokio::test]
async fn never_both_inside_on_kube_apiserver() {
    both_work(|| control_plane().client(), "lock-rivals", 200).await;
}
