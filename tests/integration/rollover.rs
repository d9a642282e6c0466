//! A roll of headgate is not a drain: old and new process overlap on one port and no probe is lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headgate_test_kubernetes::{control_plane, create_node, own_cluster};
use nix::sys::signal::Signal;

use crate::harness::{AgentOptions, http, in_network_namespace};

/// Probes per second.
const RATE: u32 = 500;
const ROLLS: usize = 4;

/// Outcomes of the probes.
#[derive(Default)]
struct ProbeCounts {
    good: AtomicU64,
    late: AtomicU64,
    failures: std::sync::Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// Probes `address` at a fixed rate, a new connection each, without waiting for one to start the next.
async fn probe(address: SocketAddr, counts: Arc<ProbeCounts>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut probes = tokio::task::JoinSet::new();
    while !counts.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let counts = Arc::clone(&counts);
        probes.spawn(async move {
            let started = Instant::now();
            match http::get(address, "/healthz").await {
                Ok(answer) if answer.status == 200 => {
                    counts.good.fetch_add(1, Ordering::Relaxed);
                    counts
                        .late
                        .fetch_add(u64::from(started.elapsed() > Duration::from_secs(1)), Ordering::Relaxed);
                }
                Ok(answer) => counts.failures.lock().unwrap().push(answer.status_line),
                Err(error) => counts.failures.lock().unwrap().push(error.to_string()),
            }
        });
        while probes.try_join_next().is_some() {}
    }
    while probes.join_next().await.is_some() {}
}

/// Probes each second on one keep-alive connection, as some load balancers do; an announced close is no loss.
async fn probe_kept(address: SocketAddr, counts: Arc<ProbeCounts>) {
    let mut connection = None;
    while !counts.stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Some(http::Connection::open(address).await.unwrap());
        }
        let kept = connection.as_mut().unwrap();
        let asked = async {
            kept.send(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
                .await?;
            kept.response().await
        };
        match asked.await {
            Ok(answer) => {
                counts.good.fetch_add(1, Ordering::Relaxed);
                if answer.header("connection") == Some("close") {
                    connection = None;
                }
            }
            Err(error) => {
                counts
                    .failures
                    .lock()
                    .unwrap()
                    .push(format!("kept connection: {error}"));
                connection = None;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The address at which to probe a listener that may be bound to the wildcard address.
fn probed(bound: SocketAddr) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port()))
}

/// Replaces `leaving_at_once` agents that listen at `bind`, under probes.
async fn roll(kubeconfig: &Path, node: &str, bind: SocketAddr, leaving_at_once: usize) {
    let options = |address| AgentOptions::new(node, kubeconfig).healthz(address);
    let first = options(bind).start().await;
    let address = first.healthz_address();
    let mut old = vec![first];
    while old.len() < leaving_at_once {
        old.push(options(address).start().await);
    }
    let counts = Arc::new(ProbeCounts::default());
    let probes = tokio::spawn(probe(probed(address), Arc::clone(&counts)));
    let kept = tokio::spawn(probe_kept(probed(address), Arc::clone(&counts)));
    for _ in 0..ROLLS {
        // As with the DaemonSet, the new processes are ready before the old ones are stopped.
        let mut new = Vec::new();
        for _ in 0..leaving_at_once {
            new.push(options(address).start().await);
        }
        for agent in &old {
            agent.signal(Signal::SIGTERM);
        }
        for mut agent in old {
            assert!(agent.wait(Duration::from_secs(30)).await.unwrap().success());
        }
        old = new;
    }
    counts.stop.store(true, Ordering::Relaxed);
    probes.await.unwrap();
    kept.await.unwrap();
    let failures = counts.failures.lock().unwrap().clone();
    let good = counts.good.load(Ordering::Relaxed);
    let late = counts.late.load(Ordering::Relaxed);
    println!("{bind}: {good} probes answered over {ROLLS} rolls, {late} after more than 1 s");
    let some = &failures[..failures.len().min(5)];
    assert!(
        failures.is_empty(),
        "{} of {good} probes were lost: {some:?}",
        failures.len()
    );
    assert!(good > 200, "only {good} probes were made");
}

#[tokio::test]
async fn a_rolling_update_under_500_probes_per_second_loses_no_probe() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "roll").await;
    for bind in ["127.0.0.1:0", "[::]:0"] {
        roll(&cluster.kubeconfig, &node, bind.parse().unwrap(), 1).await;
    }
}

#[tokio::test]
async fn two_simultaneous_handovers_lose_no_probe() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "roll-two").await;
    roll(&cluster.kubeconfig, &node, "127.0.0.1:0".parse().unwrap(), 2).await;
}

/// `[::]` binds where IPv6 is switched off by sysctl, but `::1` cannot be reached.
#[test]
fn a_rolling_update_without_ipv6_loses_no_probe() {
    in_network_namespace("rollover::a_rolling_update_without_ipv6_loses_no_probe", async || {
        for interface in ["all", "lo"] {
            let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
            if Path::new(&path).exists() {
                std::fs::write(path, "1").unwrap();
            }
        }
        let (control_plane, client) = own_cluster().await;
        let node = create_node(&client, "roll-v4").await;
        roll(control_plane.kubeconfig(), &node, "[::]:0".parse().unwrap(), 1).await;
        control_plane.stop().await;
    });
}
