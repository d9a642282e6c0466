//! The count on the kernel of this machine: real connections that rules translate, in a network namespace. `churn` compares numbers
//! while connections open and close.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

mod churn;
mod namespace;
mod node;

use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use headgate_agent::connections::{Counter, Destinations, Flows, NodeNetwork, Service, parse_prefix};
use headgate_core::service::{Ingress, NamespacedName, ServicePort};

use namespace::in_network_namespace;
use node::{Node, client, conntrack, insert_entry, listed_tcp, set_sysctl};

const TIMEOUT: Duration = Duration::from_secs(10);

fn service(name: &str, ports: &[(&str, i32)], addresses: &[&str]) -> Service {
    let port = |(protocol, port): &(&str, i32)| ServicePort {
        protocol: (*protocol).to_owned(),
        port: *port,
        ..ServicePort::default()
    };
    let ingress = |ip: &&str| Ingress {
        ip: (*ip).to_owned(),
        hostname: String::new(),
    };
    Service {
        name: NamespacedName::new("default", name),
        ports: ports.iter().map(port).collect(),
        ingress: addresses.iter().map(ingress).collect(),
    }
}

fn flows(counter: &mut Counter, destinations: &Destinations, name: &str) -> Flows {
    let count = counter.count(destinations, &[], TIMEOUT);
    let name = NamespacedName::new("default", name);
    count.unwrap().services.get(&name).copied().unwrap_or_default()
}

/// Waits until the table shows it: the last segments of a connection may be under way.
fn eventually(counter: &mut Counter, destinations: &Destinations, name: &str, expected: Flows) {
    let start = Instant::now();
    loop {
        let found = flows(counter, destinations, name);
        if found == expected {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_mins(1),
            "{found:?} instead of {expected:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn connections_of_clients_count_until_both_sides_are_closed() {
    in_network_namespace("connections_of_clients_count_until_both_sides_are_closed", || {
        let node = Node::start();
        let addresses = ["20.1.2.3", "fd20::3"];
        let web = service("web", &[("TCP", 80), ("UDP", 80)], &addresses);
        let destinations = Destinations::new(vec![web, service("other", &[("TCP", 81)], &addresses)], &[]);
        let mut counter = Counter::default();
        let tcp = |tcp| Flows { tcp, udp: 0 };
        eventually(&mut counter, &destinations, "web", tcp(0));

        let mut clients: Vec<_> = addresses
            .iter()
            .flat_map(|address| [client(address, 80), client(address, 80)])
            .collect();
        let other = client("20.1.2.3", 81);
        eventually(&mut counter, &destinations, "web", tcp(4));
        eventually(&mut counter, &destinations, "other", tcp(1));
        assert_eq!(listed_tcp("20.1.2.3", 80) + listed_tcp("fd20::3", 80), 4);

        // The endpoint does not close its side until the client is gone.
        clients[0].shutdown(Shutdown::Write).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(conntrack(&["-L", "-p", "tcp"]).contains("CLOSE_WAIT"));
        assert_eq!(flows(&mut counter, &destinations, "web"), tcp(4), "half-closed");
        node.close_one();
        eventually(&mut counter, &destinations, "web", tcp(3));
        assert!(conntrack(&["-L", "-p", "tcp"]).contains("TIME_WAIT"));

        let datagram = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        datagram.send_to(b"x", "20.1.2.3:80").unwrap();
        eventually(&mut counter, &destinations, "web", Flows { tcp: 3, udp: 1 });

        // Here the clients are on the node itself.
        let excluded = ["20.1.2.3", "fd20::/64"].map(|prefix| parse_prefix(prefix).unwrap());
        let count = counter.count(&destinations, &excluded, TIMEOUT).unwrap();
        assert!(count.services.is_empty());
        let count = counter.count(&destinations, &[], TIMEOUT).unwrap();
        assert!(count.has_translation && count.oldest.is_some());
        let address = |text: &str| text.parse().unwrap();
        assert!(counter.has_translation(address("20.1.2.3:80"), TIMEOUT).unwrap());
        assert!(!counter.has_translation(address("20.1.2.3:82"), TIMEOUT).unwrap());
        assert_eq!(NodeNetwork::look().bypass(false), None);

        clients.clear();
        drop(other);
        node.close_all();
        eventually(&mut counter, &destinations, "web", Flows { tcp: 0, udp: 1 });
        eventually(&mut counter, &destinations, "other", tcp(0));
    });
}

#[test]
#[ignore = "needs network namespaces"]
fn every_plan_counts_the_same() {
    in_network_namespace("every_plan_counts_the_same", || {
        let states = [
            "NONE",
            "SYN_SENT",
            "SYN_RECV",
            "ESTABLISHED",
            "FIN_WAIT",
            "CLOSE_WAIT",
            "LAST_ACK",
            "TIME_WAIT",
            "CLOSE",
        ];
        for (port, state) in (1_000..).zip(states) {
            insert_entry("192.0.2.1", port, "20.1.2.3", state, &[]);
            insert_entry("192.0.2.1", port, "20.1.2.4", state, &[]);
            insert_entry("fd99::1", port, "fd20::3", state, &[]);
        }
        insert_entry("192.0.2.1", 7, "20.1.2.3", "ESTABLISHED", &["--zone", "7"]);
        assert_eq!(listed_tcp("20.1.2.3", 80), 5, "of the zone as well");
        let mut counter = Counter::default();
        for (ports, further) in [(1, 0), (9, 0), (9, 9)] {
            let ports: Vec<(&str, i32)> = (80..80 + ports).map(|port| ("TCP", port)).collect();
            let further: Vec<String> = (0..further).map(|n| format!("20.9.9.{n}")).collect();
            let mut addresses = vec!["20.1.2.3", "20.1.2.4", "fd20::3"];
            addresses.extend(further.iter().map(String::as_str));
            let destinations = Destinations::new(vec![service("web", &ports, &addresses)], &[]);
            let count = counter.count(&destinations, &[], TIMEOUT).unwrap();
            assert_eq!(
                count.services.values().copied().collect::<Vec<_>>(),
                [Flows { tcp: 12, udp: 0 }],
                "{} destinations",
                destinations.len()
            );
            assert_eq!((count.in_other_zones, count.entries), (1, 28));
            assert!(!count.has_translation);
        }
        set_sysctl("netfilter/nf_conntrack_timestamp", "1");
        let before = SystemTime::now();
        insert_entry("192.0.2.9", 7, "20.1.2.3", "ESTABLISHED", &[]);
        thread::sleep(Duration::from_millis(200));
        let destinations = Destinations::new(vec![service("web", &[("TCP", 80)], &["20.1.2.3"])], &[]);
        let count = Counter::default().count(&destinations, &[], TIMEOUT).unwrap();
        let oldest = count.oldest.unwrap();
        let most = before.elapsed().unwrap();
        assert!(
            Duration::from_millis(150) <= oldest && oldest <= most,
            "{oldest:?} of {most:?}"
        );
    });
}

#[test]
#[ignore = "needs network namespaces"]
fn right_to_read_is_needed() {
    const WITHOUT_IT: &str = "HEADGATE_TEST_WITHOUT_RIGHT";
    in_network_namespace("right_to_read_is_needed", || {
        if std::env::var_os(WITHOUT_IT).is_some() {
            return without_the_right();
        }
        // Keeps every capability but one.
        let program = std::env::current_exe().unwrap();
        let arguments = [
            "--bounding-set=-net_admin",
            "--inh-caps=-net_admin",
            program.to_str().unwrap(),
        ];
        let output = std::process::Command::new("setpriv")
            .args(arguments)
            .args(["--exact", "right_to_read_is_needed", "--include-ignored", "--nocapture"])
            .env(WITHOUT_IT, "true")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    });
}

fn without_the_right() {
    let destinations = Destinations::new(vec![service("web", &[("TCP", 80)], &["20.1.2.3"])], &[]);
    let error = Counter::default().count(&destinations, &[], TIMEOUT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no right to read the connection table: CAP_NET_ADMIN is missing"
    );
}
