//! A roll of headgate is not a drain: old and new process overlap on one port and no probe is lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headgate_test_kubernetes::{control_plane, create_node, eventually, met, own_cluster};
use nix::sys::signal::Signal;

use crate::harness::{AgentOptions, http, in_network_namespace};

/// Probes per second.
const RATE: u32 = 500;
const ROLLS: usize = 4;
/// Probes that are answered before the old processes of a roll are stopped, and after they have ended.
const BETWEEN: u64 = 500;
/// An answer after this time is late.
const LATE: Duration = Duration::from_secs(1);
/// The machine was too busy to tell where an answer of this test's own listener takes as long.
const BUSY: Duration = Duration::from_millis(300);
/// The sources of the probes: an address has 28,000 ports, and each waits for a minute after its connection.
const SOURCES: u8 = 50;

/// Outcomes of the probes.
#[derive(Default)]
struct ProbeCounts {
    good: AtomicU64,
    late: AtomicU64,
    /// Answers of this test's own listener that took longer than [`BUSY`].
    busy: AtomicU64,
    failures: std::sync::Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// Probes `address` at a fixed rate, a new connection each, without waiting for one to start the next.
async fn probe(address: SocketAddr, counts: Arc<ProbeCounts>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut probes = tokio::task::JoinSet::new();
    for number in (0..SOURCES).cycle() {
        if counts.stop.load(Ordering::Relaxed) {
            break;
        }
        ticks.tick().await;
        let counts = Arc::clone(&counts);
        probes.spawn(async move {
            let started = Instant::now();
            match http::get_from(Some(Ipv4Addr::new(127, 0, 1, number)), address, "/healthz").await {
                Ok(answer) if answer.status == 200 => {
                    counts.good.fetch_add(1, Ordering::Relaxed);
                    let is_late = started.elapsed() > LATE;
                    counts.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
                }
                Ok(answer) => counts.failures.lock().unwrap().push(answer.status_line),
                Err(error) => counts.failures.lock().unwrap().push(error.to_string()),
            }
        });
        while probes.try_join_next().is_some() {}
    }
    while probes.join_next().await.is_some() {}
}

/// Connects to a listener of this test twenty times a second: what takes long here is the machine's doing.
async fn probe_itself(counts: Arc<ProbeCounts>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    while !counts.stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let (accepted, connected) = tokio::join!(listener.accept(), tokio::net::TcpStream::connect(address));
        accepted.and(connected).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let is_busy = started.elapsed() > BUSY;
        counts.busy.fetch_add(u64::from(is_busy), Ordering::Relaxed);
    }
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
    let itself = tokio::spawn(probe_itself(Arc::clone(&counts)));
    let more_probes = async || {
        let before = counts.good.load(Ordering::Relaxed);
        eventually(Duration::from_mins(2), "probes are answered", async || {
            let good = counts.good.load(Ordering::Relaxed);
            met(good >= before + BETWEEN, good)
        })
        .await;
    };
    for _ in 0..ROLLS {
        // As with the DaemonSet, the new processes are ready before the old ones are stopped.
        let mut new = Vec::new();
        for _ in 0..leaving_at_once {
            new.push(options(address).start().await);
        }
        more_probes().await;
        for agent in &old {
            agent.signal(Signal::SIGTERM);
        }
        for mut agent in old {
            assert!(agent.wait(Duration::from_secs(30)).await.unwrap().success());
        }
        more_probes().await;
        old = new;
    }
    counts.stop.store(true, Ordering::Relaxed);
    probes.await.unwrap();
    kept.await.unwrap();
    itself.await.unwrap();
    let failures = counts.failures.lock().unwrap().clone();
    let good = counts.good.load(Ordering::Relaxed);
    let late = counts.late.load(Ordering::Relaxed);
    let busy = counts.busy.load(Ordering::Relaxed);
    println!(
        "{bind}: {good} probes answered over {ROLLS} rolls, {late} after more than {LATE:?}; the machine was busy {busy} times"
    );
    let some = &failures[..failures.len().min(5)];
    assert!(
        failures.is_empty(),
        "{} of {good} probes were lost: {some:?}",
        failures.len()
    );
    assert!(good >= 2 * BETWEEN * ROLLS as u64, "only {good} probes were made");
    assert!(
        late == 0 || busy > 0,
        "{late} of {good} answers were late, and the machine was not busy"
    );
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
#[ignore = "needs network namespaces"]
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
