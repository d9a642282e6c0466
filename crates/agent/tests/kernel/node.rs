//! A network namespace as a node: addresses of a load balancer, rules that translate them to an endpoint, and the endpoint.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// As kube-proxy writes them for a node's own clients.
const RULES: &str = "
table inet node {
  chain output {
    type nat hook output priority -100;
    ip daddr 20.1.2.3 tcp dport { 80, 81 } dnat ip to 127.0.0.1:8080
    ip daddr 20.1.2.3 udp dport 80 dnat ip to 127.0.0.1:8080
    ip6 daddr fd20::3 tcp dport { 80, 81 } dnat ip6 to [::1]:8080
  }
}";

/// The endpoint.
pub(crate) struct Node {
    accepted: Arc<Mutex<Vec<TcpStream>>>,
    closes_at_once: Arc<AtomicBool>,
}

impl Node {
    pub(crate) fn start() -> Self {
        run("ip", &["address", "add", "20.1.2.3/32", "dev", "lo"]);
        run("ip", &["address", "add", "fd20::3/128", "dev", "lo", "nodad"]);
        run("nft", &[RULES]);
        let node = Self {
            accepted: Arc::default(),
            closes_at_once: Arc::default(),
        };
        for address in ["127.0.0.1:8080", "[::1]:8080"] {
            let listener = TcpListener::bind(address).unwrap();
            let (accepted, closes_at_once) = (node.accepted.clone(), node.closes_at_once.clone());
            thread::spawn(move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    if closes_at_once.load(Ordering::SeqCst) {
                        let small = thread::Builder::new().stack_size(64 * 1024);
                        small.spawn(move || stream.read(&mut [0])).unwrap();
                    } else {
                        accepted.lock().unwrap().push(stream);
                    }
                }
            });
        }
        node
    }

    /// From now on the endpoint closes a connection when its client does.
    pub(crate) fn close_at_once(&self) {
        self.closes_at_once.store(true, Ordering::SeqCst);
    }

    /// Closes the first connection whose client has closed its side.
    pub(crate) fn close_one(&self) {
        let mut accepted = self.accepted.lock().unwrap();
        let is_closed = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            matches!(stream.read(&mut [0]), Ok(0))
        };
        let at = accepted.iter().position(is_closed).unwrap();
        accepted.remove(at);
    }

    pub(crate) fn close_all(&self) {
        self.accepted.lock().unwrap().clear();
    }
}

/// A connection.
pub(crate) fn client(address: &str, port: u16) -> TcpStream {
    TcpStream::connect((address, port)).unwrap()
}

/// The output of a program, which must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Sets a value of this network namespace.
pub(crate) fn set_sysctl(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
}

pub(crate) fn conntrack(arguments: &[&str]) -> String {
    run("conntrack", arguments)
}

/// Adds an entry of a TCP connection to port 80.
pub(crate) fn insert_entry(source: &str, source_port: u16, destination: &str, state: &str, further: &[&str]) {
    let source_port = source_port.to_string();
    let ports = ["-p", "tcp", "--sport", &source_port, "--dport", "80", "--state", state];
    let rest = ["--timeout", "1000", "-u", "SEEN_REPLY"];
    conntrack(&[&["-I", "-s", source, "-d", destination], &ports[..], &rest, further].concat());
}

/// How many TCP connections to an address and port `conntrack` lists as open.
pub(crate) fn listed_tcp(address: &str, port: u16) -> usize {
    let family = if address.contains(':') { "ipv6" } else { "ipv4" };
    let list = conntrack(&[
        "-L",
        "-f",
        family,
        "-p",
        "tcp",
        "--orig-dst",
        address,
        "--orig-port-dst",
        &port.to_string(),
    ]);
    let is_open = |line: &&str| {
        ["ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK"]
            .iter()
            .any(|state| line.contains(&format!(" {state} ")))
    };
    list.lines().filter(is_open).count()
}
