//! What a count costs with 250,000 entries: `cargo bench -p headgate-agent --bench connections`, as root. It needs `unshare` and
//! `conntrack`.
//!
//! Each line is a process of its own in a network namespace that the kernel's table is filled for: the CPU time of the count, the
//! kernel's part included, the time that it took, and the peak memory of the process. The bounds are those of the requirement.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for the terminal, which ends at the first failure"
)]

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use headgate_agent::connections::{
    Counter, Destinations, ExcludedSources, Ingress, Interval, Service, ServiceName, ServicePort,
};

const ENTRIES: u32 = 250_000;
/// To the second destination, half of them established.
const MATCHES: u32 = 50_000;
/// To the first destination.
const FEW: u32 = 4;
const COUNTS: usize = 5;

/// Name, addresses of frontends, ports of each, and the bound in milliseconds.
const CASES: [(&str, &[&str], i32, u64); 5] = [
    ("one destination", &["20.0.0.1"], 1, 150),
    ("one destination, 50,000 matches", &["20.0.0.2"], 1, 500),
    ("one destination, IPv6", &["fd20::1"], 1, 150),
    ("1,000 ports of one address", &["20.0.0.2"], 1_000, 500),
    (
        "everything",
        &[
            "20.0.0.1", "20.0.0.2", "20.0.0.3", "20.0.0.4", "20.0.0.5", "20.0.0.6", "20.0.0.7", "fd20::1", "fd20::2",
        ],
        1_000,
        1_500,
    ),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let program = std::env::current_exe().unwrap();
    match arguments.get(1).map(String::as_str) {
        Some("inside") => inside(&program),
        Some("case") => measure(arguments.get(2).unwrap().parse().unwrap()),
        _ => {
            let mut command = Command::new("unshare");
            command.args(["--net", "--"]).arg(program).arg("inside");
            assert!(command.status().unwrap().success());
        }
    }
}

/// Fills the table, then measures each case in a process of its own.
fn inside(program: &std::path::Path) {
    let start = Instant::now();
    let path = std::env::temp_dir().join(format!("headgate-count-{}", std::process::id()));
    std::fs::write(&path, entries()).unwrap();
    let restored = Command::new("conntrack")
        .arg("-R")
        .arg(&path)
        .stderr(Stdio::null())
        .status();
    std::fs::remove_file(&path).unwrap();
    assert!(restored.unwrap().success());
    let length = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
    println!("{} entries, made in {:.0?}", length.trim(), start.elapsed());
    for case in 0..CASES.len() {
        let status = Command::new(program)
            .args(["case", &case.to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }
}

/// The entries in the form that `conntrack -R` reads: few to one destination, many to another, the rest to the pods' DNS.
fn entries() -> String {
    let mut text = String::new();
    for n in 0..ENTRIES {
        let source = format!("10.{}.{}.{}", 1 + (n >> 16), (n >> 8) & 255, n & 255);
        let (destination, state) = match n {
            n if n < FEW => ("20.0.0.1", "ESTABLISHED"),
            n if n < FEW + MATCHES && n % 2 == 0 => ("20.0.0.2", "ESTABLISHED"),
            n if n < FEW + MATCHES => ("20.0.0.2", "TIME_WAIT"),
            _ => ("10.0.0.10", "ESTABLISHED"),
        };
        let port = 1_024 + n % 60_000;
        writeln!(
            text,
            "-A -t 1000 -u SEEN_REPLY,ASSURED -s {source} -d {destination} -r 10.244.0.7 -q {source} -p tcp --sport {port} --dport 80 \
             --reply-port-src 8080 --reply-port-dst {port} --state {state}"
        )
        .unwrap();
    }
    text
}

fn measure(case: usize) {
    let (name, addresses, ports, bound) = CASES[case];
    let destinations = destinations(addresses, ports);
    let mut counter = Counter::default();
    let (mut cpu_times, mut longest) = (Vec::new(), Duration::ZERO);
    let mut last = None;
    for _ in 0..COUNTS {
        let start = Instant::now();
        let count = counter
            .count(&destinations, &ExcludedSources::default(), Duration::from_secs(30))
            .unwrap();
        longest = longest.max(start.elapsed());
        cpu_times.push(count.cpu_time);
        last = Some(count);
    }
    cpu_times.sort_unstable();
    let (median, most, last) = (cpu_times[COUNTS / 2], cpu_times[COUNTS - 1], last.unwrap());
    println!(
        "{name}: {} of {} entries, CPU {median:.0?} (up to {most:.0?}, bound {bound} ms), took up to {longest:.0?}, {}; again after {:.1?}",
        last.total().tcp,
        last.entries,
        peak_memory(),
        Interval::default().after(median),
    );
}

/// All of them of one Service.
fn destinations(addresses: &[&str], ports: i32) -> Destinations {
    let port = |port| ServicePort {
        port,
        ..ServicePort::default()
    };
    let ingress = |ip: &&str| Ingress {
        ip: (*ip).to_owned(),
        hostname: String::new(),
    };
    let service = Service {
        name: ServiceName::new("default", "web"),
        service_type: "LoadBalancer".to_owned(),
        ports: (80..80 + ports).map(port).collect(),
        ingress: addresses.iter().map(ingress).collect(),
    };
    Destinations::new(vec![service], &[])
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    format!("peak memory {}", line.trim())
}
