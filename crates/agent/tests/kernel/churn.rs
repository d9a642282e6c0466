//! The count beside `conntrack -L` and the clients themselves, while a thousand connections a second open and close.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headgate_agent::connections::{Counter, Destinations, Flows};

use super::namespace::in_network_namespace;
use super::node::{Node, client, listed_tcp, set_sysctl};
use super::{eventually, flows, service};

/// What the clients know: each number only rises.
#[derive(Default)]
struct Clients {
    connecting: AtomicI64,
    connected: AtomicI64,
    closing: AtomicI64,
    closed: AtomicI64,
    is_over: AtomicBool,
}

impl Clients {
    /// Opens `rate` connections a second, each for up to 400 ms, which follows from the seed.
    fn work(&self, rate: u32, seed: u32) {
        let mut random = fastrand::Rng::with_seed(seed.into());
        let pause = Duration::from_secs(1) / rate;
        let mut open = VecDeque::new();
        let mut next = Instant::now();
        while !self.is_over.load(Ordering::SeqCst) {
            self.connecting.fetch_add(1, Ordering::SeqCst);
            open.push_back((
                Instant::now() + Duration::from_millis(random.u64(1..400)),
                client("20.1.2.3", 80),
            ));
            self.connected.fetch_add(1, Ordering::SeqCst);
            while let Some((_, stream)) = open.pop_front_if(|(until, _)| *until < Instant::now()) {
                self.close(&stream);
            }
            next += pause;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        for (_, stream) in &open {
            self.close(stream);
        }
    }

    fn close(&self, stream: &std::net::TcpStream) {
        self.closing.fetch_add(1, Ordering::SeqCst);
        stream.shutdown(Shutdown::Write).unwrap();
        // The endpoint closes its side as well.
        let mut stream = stream;
        assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0);
        self.closed.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs `count` and compares: those that were open all the time count, and those that were not open at any time do not.
    fn compare(&self, what: &str, count: impl FnOnce() -> i64) -> i64 {
        let (connected, closed) = (
            self.connected.load(Ordering::SeqCst),
            self.closed.load(Ordering::SeqCst),
        );
        let found = count();
        let (closing, connecting) = (
            self.closing.load(Ordering::SeqCst),
            self.connecting.load(Ordering::SeqCst),
        );
        let (least, most) = (connected - closing, connecting - closed);
        assert!(
            least <= found && found <= most,
            "{what}: {found}, but the clients have {least} to {most}"
        );
        most - least
    }
}

/// `HEADGATE_COUNT_SAMPLES=200` is the whole comparison.
#[test]
#[ignore = "needs network namespaces"]
fn count_is_right_while_a_thousand_connections_a_second_open_and_close() {
    const THREADS: u32 = 10;
    in_network_namespace(
        "churn::count_is_right_while_a_thousand_connections_a_second_open_and_close",
        || {
            let samples = std::env::var("HEADGATE_COUNT_SAMPLES").map_or(20, |text| text.parse().unwrap());
            let node = Node::start();
            node.close_at_once();
            // Otherwise ports are used up, and conntrack lists more and more connections that are closed.
            set_sysctl("ipv4/tcp_max_tw_buckets", "0");
            set_sysctl("netfilter/nf_conntrack_tcp_timeout_time_wait", "1");
            let destinations = Destinations::new(vec![service("web", &[("TCP", 80)], &["20.1.2.3"])], &[]);
            let mut counter = Counter::default();
            let clients = Arc::new(Clients::default());
            let start = Instant::now();
            let threads: Vec<_> = (0..THREADS)
                .map(|seed| {
                    let clients = clients.clone();
                    thread::spawn(move || clients.work(1_000 / THREADS, seed))
                })
                .collect();
            thread::sleep(Duration::from_millis(500));
            let (mut slack, mut largest) = (0, 0);
            for _ in 0..samples {
                slack += clients.compare("headgate", || {
                    let found = i64::try_from(flows(&mut counter, &destinations, "web").tcp).unwrap();
                    largest = largest.max(found);
                    found
                });
                clients.compare("conntrack", || i64::try_from(listed_tcp("20.1.2.3", 80)).unwrap());
                thread::sleep(Duration::from_millis(20));
            }
            let rate =
                clients.connected.load(Ordering::SeqCst) * 1_000 / i64::try_from(start.elapsed().as_millis()).unwrap();
            clients.is_over.store(true, Ordering::SeqCst);
            for thread in threads {
                thread.join().unwrap();
            }
            println!(
                "{samples} samples at {rate} connections a second, up to {largest} open, known to {} on average",
                slack / samples
            );
            eventually(&mut counter, &destinations, "web", Flows::default());
        },
    );
}
