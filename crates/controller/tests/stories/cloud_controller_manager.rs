//! Beside a simulated cloud-controller-manager that does what was measured of the real one: it holds the shared Lease in each
//! round, writes whole pools without `If-Match` from its cache, removes entries and adds them without their admin state, and
//! writes load balancers with `If-Match`. It and headgate hold the Lease until their operations have ended.
//!
//! `HEADGATE_ROUNDS=20000` sets the number of rounds.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_controller::admin_state::GuardSettings;
use headgate_test_kubernetes::{FakeApi, Random};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::world::{ENFORCE, Leader, SECOND, World, address, entries, id_of, load_balancer, pool_path};

const NODES: usize = 6;
/// The nodes that get and lose signals.
const SIGNALLED: [usize; 3] = [1, 2, 3];
const ROUNDS: u64 = 400;
const LOCK: &str = "aks-managed-resource-locker";
const POOLS: [&str; 2] = ["kubernetes", "kubernetes-IPv6"];

/// The simulated cloud-controller-manager, with its cache of a load balancer.
struct SimulatedManager {
    /// The time of an operation, which it waits for.
    operation: Duration,
    cache: Option<(Instant, Value)>,
    rounds: u64,
    lost: u64,
    superseded: u64,
}

fn lease(fake: &FakeApi) -> Lease {
    fake.peek("kube-system", LOCK).unwrap_or_default()
}

fn previous_holder(fake: &FakeApi) -> String {
    let annotations = lease(fake).metadata.annotations.unwrap_or_default();
    annotations
        .get("aks-managed-resource-locker-previous-holder")
        .cloned()
        .unwrap_or_default()
}

fn pool_of<'a>(document: &'a mut Value, name: &str) -> &'a mut Value {
    let pools = document["properties"]["backendAddressPools"].as_array_mut().unwrap();
    pools.iter_mut().find(|pool| pool["name"] == name).unwrap()
}

fn names(pool: &Value) -> BTreeSet<String> {
    let list = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    list.iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The entries of signalled nodes that are not `Down`: pool and name.
fn not_down(world: &World, signalled: &BTreeSet<usize>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for pool in POOLS {
        for (name, state) in world.states("kubernetes", pool) {
            let number = name
                .strip_prefix("node-")
                .and_then(|number| number.parse().ok())
                .unwrap();
            if signalled.contains(&number) && state != "Down" {
                found.push((pool.to_owned(), name));
            }
        }
    }
    found
}

impl SimulatedManager {
    /// One round under the Lease; returns what it wrote: path, members, round.
    async fn round(
        &mut self,
        world: &World,
        fake: &FakeApi,
        random: &mut Random,
    ) -> Vec<(String, BTreeSet<String>, u64)> {
        while !world.take_arm_lease().await {
            sleep(SECOND / 20).await;
        }
        self.rounds += 1;
        // Sometimes it ignores the annotation, as its updater does.
        let invalidated = previous_holder(fake) == "headgate" && random.below(4) > 0;
        let stale = self
            .cache
            .as_ref()
            .is_none_or(|(at, _)| at.elapsed() > Duration::from_mins(2));
        if invalidated || stale || random.below(3) == 0 {
            self.cache = Some((Instant::now(), world.get(&id_of("kubernetes")).await));
        }
        sleep(Duration::from_millis(random.below(300))).await;
        let mut left = Vec::new();
        let (_, document) = self.cache.as_mut().unwrap();
        if random.below(4) == 0 {
            // A whole load balancer with `If-Match`; after a 412 it reads again.
            let etag = document["etag"].as_str().unwrap().to_owned();
            document["tags"] = json!({"round": self.rounds.to_string()});
            let answer = world.put(&id_of("kubernetes"), document, Some(&etag)).await;
            if answer.status() == 412 {
                self.superseded += 1;
            } else {
                assert!(answer.status().is_success(), "{answer:?}");
                sleep(self.operation).await;
            }
            self.cache = None;
        } else {
            let name = POOLS[usize::try_from(random.below(2)).unwrap()];
            let pool = pool_of(document, name);
            let node = usize::try_from(random.below(NODES as u64)).unwrap() + 1;
            let list = pool["properties"]["loadBalancerBackendAddresses"]
                .as_array_mut()
                .unwrap();
            let before = list.len();
            list.retain(|entry| entry["name"] != format!("node-{node}"));
            if list.len() == before {
                list.push(json!({"name": format!("node-{node}"), "properties": {"ipAddress": address(node, name == POOLS[1])}}));
            }
            pool["properties"]["drainPeriodInSeconds"] = json!(self.rounds);
            let path = pool_path("kubernetes", name);
            let body = pool.clone();
            let answer = world.put(&path, &body, None).await;
            assert!(answer.status().is_success(), "{answer:?}");
            sleep(self.operation).await;
            left.push((path, names(&body), self.rounds));
        }
        world.release_arm_lease().await;
        left
    }
}

/// Publishes the longest hold of the shared Lease by headgate, sampled every 40 ms.
async fn watch_holds(fake: FakeApi, longest: tokio::sync::watch::Sender<Duration>) {
    let mut since: Option<Instant> = None;
    loop {
        let holder = lease(&fake)
            .spec
            .and_then(|spec| spec.holder_identity)
            .unwrap_or_default();
        match (holder == "headgate", since) {
            (true, None) => since = Some(Instant::now()),
            (true, Some(since)) => {
                longest.send_if_modified(|longest| {
                    let held = since.elapsed();
                    let more = held > *longest;
                    *longest = held.max(*longest);
                    more
                });
            }
            (false, _) => since = None,
        }
        sleep(SECOND / 25).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_downs_are_repaired_beside_cloud_controller_manager_without_losing_its_writes() {
    for operation in [Duration::ZERO, SECOND] {
        are_repaired(operation).await;
    }
}

/// An operation takes this time, and so long it is until the next poll of one.
async fn are_repaired(operation: Duration) {
    let rounds = std::env::var("HEADGATE_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(ROUNDS);
    let pools = [
        (POOLS[0], entries(1..=NODES, false)),
        (POOLS[1], entries(1..=NODES, true)),
    ];
    let settings = Settings {
        operation_delay: operation,
        poll_retry_after: operation.as_secs(),
        ..Settings::default()
    };
    let (fake, mut world) = World::with_nodes(NODES, &[load_balancer("kubernetes", &pools)], settings).await;
    // A pool may have lost so many members that it would hold back a lost `Down`.
    world.guard = GuardSettings::DISABLED;
    let leader = Leader::start(&world, fake.client().0, "one", ENFORCE).await;
    let mut terms = leader.terms.clone();
    terms.wait_for(Option::is_some).await.unwrap();
    let longest = tokio::sync::watch::Sender::new(Duration::ZERO);
    let watching = tokio::spawn(watch_holds(fake.clone(), longest.clone()));

    let mut random = Random::new(7);
    let mut signalled: BTreeSet<usize> = BTreeSet::new();
    let mut manager = SimulatedManager {
        operation,
        cache: None,
        rounds: 0,
        lost: 0,
        superseded: 0,
    };
    let mut slowest = Duration::ZERO;
    while manager.rounds < rounds {
        if random.below(10) == 0 {
            let node = SIGNALLED[usize::try_from(random.below(3)).unwrap()];
            let keys: &[&str] = if signalled.remove(&node) {
                &[]
            } else {
                signalled.insert(node);
                &["ToBeDeletedByClusterAutoscaler"]
            };
            world.taint(node, keys).await;
            if keys.is_empty() {
                // The restore after the debounce is not what this test measures.
                sleep(3 * SECOND + 2 * operation).await;
            }
        }
        let left = manager.round(&world, &fake, &mut random).await;
        let released = Instant::now();
        let lost = not_down(&world, &signalled);
        manager.lost += u64::try_from(lost.len()).unwrap();
        // Usually the Lease stays free for long enough; sometimes the next round starts at once.
        if random.below(5) > 0 {
            loop {
                let lost = not_down(&world, &signalled);
                if lost.is_empty() {
                    break;
                }
                // Within a second, and where both pools lost theirs after the operation of the first one.
                assert!(
                    released.elapsed() <= SECOND + operation,
                    "round {}: {lost:?} is not repaired",
                    manager.rounds
                );
                sleep(SECOND / 25).await;
            }
            if !lost.is_empty() {
                slowest = slowest.max(released.elapsed());
            }
            sleep(Duration::from_millis(random.below(1500))).await;
        }
        for (path, members, round) in left {
            let now = world.get(&path).await;
            assert_eq!(names(&now), members, "members of {path}");
            assert_eq!(now["properties"]["drainPeriodInSeconds"], round, "{path}");
        }
    }
    watching.abort();
    let held = *longest.borrow();
    println!(
        "{} rounds; {} entries lost their Down, each was Down again within {slowest:?}; {} writes of the load balancer got a 412; the Lease was held for {held:?} at most; {} writes of pools",
        manager.rounds,
        manager.lost,
        manager.superseded,
        world.puts().len()
    );
    assert!(
        manager.lost > rounds / 50,
        "too few entries lost their Down: {}",
        manager.lost
    );
    assert!(
        manager.superseded > rounds / 50,
        "too few writes got a 412: {}",
        manager.superseded
    );
    assert!(held < SECOND + 2 * operation, "held for {held:?}");
}
