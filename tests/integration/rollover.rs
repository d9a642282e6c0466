//! A roll of headgate is not a drain: old and new process overlap on one port and no probe is lost.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headgate_test_kubernetes::{control_plane, create_node, eventually, met, own_cluster};
use nix::sys::signal::Signal;
use tokio::time::MissedTickBehavior;

use crate::harness::{AgentOptions, http, in_network_namespace};

/// Probes per second, on a machine that is quick enough.
const RATE: u32 = 500;
const ROLLS: usize = 4;
/// Probes that are answered before the old processes of a roll are stopped, and after they have ended.
const BETWEEN: u64 = 500;
/// An answer after this time, and as much as the machine stood still, is late.
const LATE: Duration = Duration::from_millis(700);
/// Of so many probes one may be late where the machine stood still; a process that lets connections wait makes more of them late.
const PROBES_PER_LATE: u64 = 100;
/// A machine that stood still for longer is busy: without that no probe is late.
const BUSY: Duration = Duration::from_millis(300);
/// For so long no probe may be answered, and for as long as the machine stood still.
const LONGEST_GAP: Duration = Duration::from_millis(300);
/// Between two looks of this test at itself.
const LOOK: Duration = Duration::from_millis(50);
/// The sources of the probes: an address has 28,000 ports, and each waits for a minute after its connection.
const SOURCES: u8 = 50;

/// Outcomes of the probes.
#[derive(Default)]
struct ProbeCounts {
    begun: AtomicU64,
    good: AtomicU64,
    /// How long the answers took.
    latencies: Mutex<Vec<Duration>>,
    /// The last answer, and the longest time between two of them.
    answers: Mutex<(Option<Instant>, Duration)>,
    failures: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl ProbeCounts {
    /// What became of a probe that began at `began`.
    fn record(&self, began: Instant, outcome: io::Result<http::Response>) {
        match outcome {
            Ok(answer) if answer.status == 200 => {
                let now = Instant::now();
                self.good.fetch_add(1, Ordering::Relaxed);
                self.latencies.lock().unwrap().push(now - began);
                let mut answers = self.answers.lock().unwrap();
                let gap = now - answers.0.unwrap_or(now);
                *answers = (Some(now), answers.1.max(gap));
            }
            Ok(answer) => self.failures.lock().unwrap().push(answer.status_line),
            Err(error) => self.failures.lock().unwrap().push(error.to_string()),
        }
    }
}

/// Probes `address` at a fixed rate, a new connection each, without waiting for one to start the next. Those that a slow machine has
/// missed do not follow all at once.
async fn probe(address: SocketAddr, counts: Arc<ProbeCounts>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut probes = tokio::task::JoinSet::new();
    for number in (0..SOURCES).cycle() {
        if counts.stop.load(Ordering::Relaxed) {
            break;
        }
        ticks.tick().await;
        counts.begun.fetch_add(1, Ordering::Relaxed);
        let counts = Arc::clone(&counts);
        probes.spawn(async move {
            let (began, source) = (Instant::now(), Ipv4Addr::new(127, 0, 1, number));
            counts.record(began, http::get_from(Some(source), address, "/healthz").await);
        });
        while probes.try_join_next().is_some() {}
    }
    while probes.join_next().await.is_some() {}
}

/// Connects to a listener of this test again and again. Returns the longest time for which the machine stood still: what takes long here
/// is its doing.
async fn probe_itself(counts: Arc<ProbeCounts>) -> Duration {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut longest = Duration::ZERO;
    while !counts.stop.load(Ordering::Relaxed) {
        let look = Instant::now();
        let (accepted, connected) = tokio::join!(listener.accept(), tokio::net::TcpStream::connect(address));
        accepted.and(connected).unwrap();
        tokio::time::sleep(LOOK).await;
        longest = longest.max(look.elapsed().saturating_sub(LOOK));
    }
    longest
}

/// Probes each second on one keep-alive connection, as some load balancers do; an announced close is no loss.
async fn probe_kept(address: SocketAddr, counts: Arc<ProbeCounts>) {
    let mut connection = None;
    while !counts.stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Some(http::Connection::open(address).await.unwrap());
        }
        let kept = connection.as_mut().unwrap();
        let began = Instant::now();
        counts.begun.fetch_add(1, Ordering::Relaxed);
        let asked = async {
            kept.send(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
                .await?;
            kept.response().await
        };
        let outcome = asked.await;
        let is_kept = outcome
            .as_ref()
            .is_ok_and(|answer| answer.header("connection") != Some("close"));
        if !is_kept {
            connection = None;
        }
        let named = |error: io::Error| io::Error::other(format!("kept connection: {error}"));
        counts.record(began, outcome.map_err(named));
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
    let stall = itself.await.unwrap();
    judge(&format!("{bind}, {leaving_at_once} at once"), &counts, stall);
}

/// Fails if a probe was not answered, if many were late, or if none was answered for some time, on a machine that stood still for `stall`.
fn judge(what: &str, counts: &ProbeCounts, stall: Duration) {
    let [begun, good] = [&counts.begun, &counts.good].map(|count| count.load(Ordering::Relaxed));
    let latencies = counts.latencies.lock().unwrap();
    let late_after = LATE + stall;
    let late = latencies.iter().filter(|latency| **latency > late_after).count() as u64;
    let slowest = latencies.iter().max().copied().unwrap_or_default();
    let gap = counts.answers.lock().unwrap().1;
    let failures = counts.failures.lock().unwrap();
    let text = format!(
        "{what}: {good} of {begun} probes answered over {ROLLS} rolls, {late} after more than {late_after:?}, the slowest after \
         {slowest:?}, the longest time without an answer {gap:?}"
    );
    println!("{text}");
    assert_eq!(good, begun, "{text}: {:?}", &failures[..failures.len().min(5)]);
    assert!(good >= 2 * BETWEEN * ROLLS as u64, "{text}");
    assert!(late == 0 || stall > BUSY, "{text}");
    assert!(late * PROBES_PER_LATE <= begun, "{text}");
    assert!(gap <= LONGEST_GAP + stall, "{text}");
}

#[tokio::test]
async fn a_rolling_update_under_steady_probes_loses_none() {
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
