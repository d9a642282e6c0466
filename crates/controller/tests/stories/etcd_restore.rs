//! A restore of etcd while a leader is at work: all objects, and the API server's version, are as they were earlier.

use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_test_kubernetes::FakeApi;
use tokio::time::{Instant, sleep};

use crate::rows::cluster::DRAINING;
use crate::world::{ENFORCE, Leader, SECOND, World, entries, load_balancer, set_taints};

const MINUTE: Duration = Duration::from_mins(1);
const POOL: &str = "kubernetes";
const NODES: &str = "/api/v1/nodes";

async fn start() -> (FakeApi, World, Leader) {
    let resources = [load_balancer("kubernetes", &[(POOL, entries(1..=3, false))])];
    let (fake, world) = World::with_nodes(3, &resources, Settings::default()).await;
    let leader = Leader::start(&world, fake.client().0, "a", ENFORCE).await;
    sleep(MINUTE).await;
    (fake, world, leader)
}

#[tokio::test(start_paused = true)]
async fn leader_lists_nodes_again_within_a_minute_after_a_restore() {
    for is_restarted in [false, true] {
        for wait in [0, 7, 23, 44] {
            let (fake, world, leader) = start().await;
            let snapshot = fake.snapshot();
            set_taints(&fake, 1, &[DRAINING]);
            sleep(3 * MINUTE + wait * SECOND).await;
            assert!(world.down("kubernetes", POOL).contains("node-1"));
            fake.skip_versions(1_000_000);
            sleep(MINUTE).await;

            fake.restore(&snapshot);
            if is_restarted {
                fake.restart(5 * SECOND);
            }
            let restored = Instant::now();
            // A change of an object that was there before, in a version that was there before.
            set_taints(&fake, 2, &[DRAINING]);
            while !world.down("kubernetes", POOL).contains("node-2") {
                sleep(SECOND / 10).await;
                assert!(restored.elapsed() <= MINUTE + 2 * SECOND, "{is_restarted} {wait}");
            }
            // The leader has written its ledger again, and gives back what is in it.
            sleep(10 * SECOND).await;
            let down: Vec<_> = world.down("kubernetes", POOL).into_iter().collect();
            assert_eq!(down, ["node-2"], "{is_restarted} {wait}");
            assert!(leader.terms.borrow().as_ref().is_some_and(|term| term.permit().is_ok()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn verification_costs_the_api_server_two_requests_a_minute() {
    let (fake, _world, _leader) = start().await;
    let began = Instant::now();
    sleep(Duration::from_hours(1)).await;
    let requests = fake.requests().into_iter();
    let nodes = requests.filter(|request| request.path == NODES && request.at > began);
    let (watches, lists): (Vec<_>, Vec<_>) = nodes.partition(|request| request.is_watch);
    println!(
        "in an hour, {} watches and {} lists of one Node",
        watches.len(),
        lists.len()
    );
    assert!((70..=73).contains(&watches.len()), "{}", watches.len());
    assert!((70..=73).contains(&lists.len()), "{}", lists.len());
}
