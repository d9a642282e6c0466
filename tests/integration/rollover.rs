//! A roll of headgate is not a drain: old and new process overlap on one port and no probe is lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{AgentOptions, control_plane, create_node, http};

/// Probes a second, as promised in the README.
const RATE: u32 = 500;
const ROLLS: usize = 6;

/// Outcomes of the probes.
#[derive(Default)]
struct Tally {
    good: AtomicU64,
    late: AtomicU64,
    failures: std::sync::Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// Probes `address` at a fixed rate, a new connection each, without waiting for one to start the next.
async fn probe(address: SocketAddr, tally: Arc<Tally>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut probes = tokio::task::JoinSet::new();
    while !tally.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let tally = Arc::clone(&tally);
        probes.spawn(async move {
            let started = Instant::now();
            match http::get(address, "/healthz").await {
                Ok(answer) if answer.status == 200 => {
                    tally.good.fetch_add(1, Ordering::Relaxed);
                    tally
                        .late
                        .fetch_add(u64::from(started.elapsed() > Duration::from_secs(1)), Ordering::Relaxed);
                }
                Ok(answer) => tally.failures.lock().unwrap().push(answer.status_line),
                Err(error) => tally.failures.lock().unwrap().push(error.to_string()),
            }
        });
        while probes.try_join_next().is_some() {}
    }
    while probes.join_next().await.is_some() {}
}

/// Probes on one kept connection each second, as some load balancers do; a close that was announced is no loss.
async fn probe_kept(address: SocketAddr, tally: Arc<Tally>) {
    let mut connection = None;
    while !tally.stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Some(http::Connection::open(address).await.unwrap());
        }
        let kept = connection.as_mut().unwrap();
        let asked = async {
            kept.send(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
                .await?;
            kept.answer().await
        };
        match asked.await {
            Ok(answer) => {
                tally.good.fetch_add(1, Ordering::Relaxed);
                if answer.header("connection") == Some("close") {
                    connection = None;
                }
            }
            Err(error) => {
                tally.failures.lock().unwrap().push(format!("kept connection: {error}"));
                connection = None;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_roll_under_500_probes_a_second_loses_none() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "roll").await;
    let mut old = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let address = old.healthz_address();
    let tally = Arc::new(Tally::default());
    let probes = tokio::spawn(probe(address, Arc::clone(&tally)));
    let kept = tokio::spawn(probe_kept(address, Arc::clone(&tally)));
    for _ in 0..ROLLS {
        // As the DaemonSet does it: the new one is ready before the old one is told to stop.
        let new = AgentOptions::new(&node, &cluster.kubeconfig)
            .healthz(address)
            .start()
            .await;
        assert_eq!(new.healthz_address(), address);
        assert!(old.stop(Duration::from_secs(20)).await.success());
        old = new;
    }
    tally.stop.store(true, Ordering::Relaxed);
    probes.await.unwrap();
    kept.await.unwrap();
    let failures = tally.failures.lock().unwrap().clone();
    let good = tally.good.load(Ordering::Relaxed);
    println!(
        "{good} probes answered over {ROLLS} rolls, {} after more than 1 s",
        tally.late.load(Ordering::Relaxed)
    );
    assert!(
        failures.is_empty(),
        "{} of {good} probes were lost: {:?}",
        failures.len(),
        &failures[..failures.len().min(5)]
    );
    assert!(good > 500, "only {good} probes were made");
}
