//! headgate's updates of a Local Service's pool beside the real cloud-controller-manager: both updaters run, ARM refuses
//! writes of both, and the pool has the right members within one tick after the last fault. Without headgate,
//! cloud-controller-manager loses changes in the same story; the test prints how many.
//!
//! A tick needs the shared Lease. `lease_holds` records who held it when, so the time for which cloud-controller-manager
//! held it does not count as headgate's.
//!
//! `HEADGATE_MOVES=200` sets how often the endpoints move.

use headgate_test_kubernetes::met;
use tokio::time::{Instant, sleep};

use super::lease_holds::LeaseHolds;

use super::*;
use crate::harness::start_controller;

/// Of both updaters, in `azure.json`.
const INTERVAL: Duration = Duration::from_secs(1);
/// From one move of the endpoints to the next: two ticks and a half.
const BETWEEN_MOVES: Duration = Duration::from_millis(2500);
/// After the last fault: one tick, and the time of the requests on a busy machine.
const LAST_TICK: Duration = Duration::from_secs(6);
const DEFAULT_MOVES: usize = 50;
const POOL: &str = "default-web";

/// From the time when the Lease can be acquired to the right members: the tick under way, which may have read the pool before
/// the move, the next one, and the requests on a busy machine.
const ONE_TICK: Duration = Duration::from_secs(3);

/// How the pool followed the endpoints.
#[derive(Debug, Default)]
struct Followed {
    /// Moves that the pool did not show before the next one.
    late: usize,
    /// PUTs of the pool by cloud-controller-manager and by headgate.
    puts: [usize; 2],
    /// From the last move, which no fault hits, to the right members; `None` if they never came.
    last: Option<Duration>,
    /// For how long of that cloud-controller-manager held the shared Lease.
    held_by_other: Duration,
}

/// Starts headgate's controller with the `azure.json` of cloud-controller-manager.
fn start_headgate(fixture: &Fixture, kubeconfig: &std::path::Path) -> Process {
    let (azure_json, imds) = (
        fixture.emulator.directory.join("azure.json"),
        format!("http://{}", fixture.emulator.arm),
    );
    let flags = [
        ("--azure-config-file", azure_json.as_path()),
        ("--imds-endpoint", std::path::Path::new(&imds)),
    ];
    let settings = format!("azure: {{clusterName: {CLUSTER}}}\n");
    start_controller("node-1", kubeconfig, &settings, &flags)
}

/// The members of the Service's pool.
async fn members(fixture: &Fixture) -> BTreeSet<String> {
    let all = fixture.resources("loadBalancers").await;
    let mut pools = LoadBalancerSummary::from_document(&all[0]).pools;
    pools.remove(POOL).unwrap_or_default()
}

/// The PUTs of the Service's pool by a client so far.
async fn puts(fixture: &Fixture, caller: &str) -> usize {
    let (mut after, mut count) = (0, 0);
    loop {
        let page = fixture
            .control(
                "GET",
                &format!("journal?after={after}&limit=1000&method=PUT"),
                &Value::Null,
            )
            .await;
        after = page["next"].as_u64().unwrap();
        let entries = page["entries"].as_array().unwrap();
        if entries.is_empty() {
            return count;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let own = entries.iter().filter(|entry| {
            entry["kind"] == "request"
                && text(&entry["path"]).ends_with(POOL)
                && text(&entry["userAgent"]).contains(caller)
        });
        count += own.count();
    }
}

/// Moves the endpoints while ARM refuses writes, with or without headgate.
async fn move_endpoints(with_headgate: bool, moves: usize) -> Followed {
    let (control_plane, client) = own_cluster().await;
    let fixture = Fixture::start(client.clone(), control_plane.kubeconfig()).await;
    for number in 1..=4 {
        fixture.add_node(number).await;
    }
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Local", "ports": [{"name": "p80", "port": 80}]}});
    let services = Api::<Service>::namespaced(client.clone(), "default");
    let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "node-1"}]});
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    objects::create(&slices, slice).await;
    objects::create(&services, service).await;
    let first = |summary: &LoadBalancerSummary| summary.pools.get(POOL).is_some_and(|members| members.len() == 1);
    fixture.wait_for("a pool of its own", first).await;
    let headgate = with_headgate.then(|| start_headgate(&fixture, control_plane.kubeconfig()));
    if let Some(headgate) = &headgate {
        eventually(RECONCILE_TIMEOUT, "headgate updates pools", async || {
            let log = last_log_lines(headgate.log());
            let has_begun = log.contains("started to update pools of Local Services");
            met(has_begun, log)
        })
        .await;
    }

    let holds = LeaseHolds::record(client.clone());
    let mut followed = Followed::default();
    let (mut late_moves, began) = (Vec::new(), Instant::now());
    let names = ["node-1", "node-2", "node-3", "node-4"];
    for number in 0..moves {
        let expected = [names[number % 4], names[(number + 1 + number / 4) % 4]];
        if number + 1 < moves && number % 2 == 0 {
            let answer = match number % 6 {
                0 => json!({"answer": {"status": 409}}),
                2 => json!({"answer": {"status": 412}}),
                _ => json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 1}}),
            };
            for caller in ["kubernetes-cloudprovider", "headgate"] {
                let rule = json!({"match": {"method": "PUT", "path": format!("/{POOL}$"), "caller": caller}, "times": 1, "action": answer});
                fixture.control("POST", "faults", &rule).await;
            }
        }
        if number + 1 == moves {
            fixture.control("DELETE", "faults", &Value::Null).await;
        }
        fixture.set_endpoints(&expected).await;
        let expected: BTreeSet<String> = expected.map(str::to_owned).into();
        if number + 1 == moves {
            let moved_at = Instant::now();
            followed.held_by_other = Duration::ZERO;
            while followed.last.is_none() && moved_at.elapsed() < LAST_TICK {
                sleep(INTERVAL / 20).await;
                if members(&fixture).await == expected {
                    followed.last = Some(moved_at.elapsed());
                }
            }
            followed.held_by_other = holds.held_by("cloud-controller-manager", moved_at, Instant::now());
            println!("the last move came after {:?}", moved_at - began);
            break;
        }
        let moved_at = Instant::now();
        sleep(BETWEEN_MOVES).await;
        if members(&fixture).await != expected {
            followed.late += 1;
            let held = holds.held_by("cloud-controller-manager", moved_at, Instant::now());
            late_moves.push(format!("{number} ({held:.1?})"));
        }
    }
    println!(
        "late moves, and for how long cloud-controller-manager held the Lease meanwhile: {}",
        late_moves.join(", ")
    );
    println!(
        "holds of the Lease longer than 1 s:\n{}",
        holds.long_ones(began, Duration::from_secs(1))
    );
    followed.puts = [
        puts(&fixture, "kubernetes-cloudprovider").await,
        puts(&fixture, "headgate").await,
    ];
    if followed.last.is_none() && with_headgate {
        let log = headgate.as_ref().map(|headgate| last_log_lines(headgate.log()));
        println!("{}", log.unwrap_or_default());
    }
    drop(headgate);
    fixture.emulator.stop().await;
    control_plane.stop().await;
    followed
}

#[tokio::test]
async fn local_pools_follow_although_arm_refuses_both_updaters() {
    let moves = std::env::var("HEADGATE_MOVES").ok().and_then(|text| text.parse().ok());
    let moves = moves.unwrap_or(DEFAULT_MOVES);
    let alone = move_endpoints(false, moves).await;
    println!("cloud-controller-manager alone: {alone:?} of {moves} moves");
    let both = move_endpoints(true, moves).await;
    println!("with headgate: {both:?} of {moves} moves");
    assert!(
        both.last.is_some(),
        "the members are right after the last move: {both:?}"
    );
    let own = both.last.unwrap_or_default().saturating_sub(both.held_by_other);
    assert!(
        own <= ONE_TICK,
        "{own:?} in which the Lease could be acquired: {both:?}"
    );
    assert!(
        both.late < alone.late,
        "headgate repairs what cloud-controller-manager loses"
    );
}
