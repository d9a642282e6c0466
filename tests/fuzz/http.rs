//! The health port with any bytes in any pieces at any pace, in paused time over in-memory streams. Nothing
//! panics, every answer is HTTP/1, every connection ends within its limits, and the next probe is answered.

use std::time::Duration;

use bolero::generator::produce;
use bolero::{TypeGenerator, check};
use headgate_agent::health::{LastChange, ProxyStatus, VerdictInputs};
use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeReport, SignalRules, Taint};
use headgate_http::server::ProxyProtocol;
use headgate_http::server::{self, Limits, ServeError};
use headgate_test_kubernetes::series_value;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, WriteHalf, duplex};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::in_memory_listener::InMemoryListener;
use crate::mutated_corpus::{MutatedCorpus, time};

/// A buffer for all answers to one input.
const ROOM: usize = 1024 * 1024;
const NAME: &str = "http";
const WORDS: &[&[u8]] = &[
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET ",
    b"CONNECT ",
    b"OPTIONS * ",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"/healthz",
    b"/livez",
    b"http://x/healthz",
    b"?a=b#c",
    b"%00",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b" HTTP/2.0\r\n",
    b"Host: x\r\n",
    b"Host: \r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b": ",
    b"\0",
    b"\x80",
    b"\x16\x03\x01",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    b"PROXY UNKNOWN\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
];

/// How the peer sends its bytes and reads the answers.
#[derive(Clone, Debug, TypeGenerator)]
struct Peer {
    /// Sizes of the pieces; the rest is one piece.
    pieces: Vec<u8>,
    /// Seconds before each piece.
    #[generator(bolero::generator::produce_with::<Vec<u8>>().values(0..30))]
    delays: Vec<u8>,
    /// Whether the peer reads answers while it sends.
    reads: bool,
    /// Whether the peer closes its sending side.
    finishes: bool,
    /// Bytes that the stream buffers in each direction; `None` for no limit.
    narrow: Option<u8>,
    /// The listener's setting for the PROXY protocol.
    #[generator(0..3)]
    proxy_protocol: usize,
    /// Whether the node has a signal.
    tainted: bool,
}

/// The statuses of the answers in `bytes`, which hold nothing else; the last answer may be cut off unless they
/// are `whole`.
fn statuses(mut bytes: &[u8], whole: bool) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !bytes.is_empty() {
        let begins = bytes.starts_with(b"HTTP/1.1 ") || bytes.starts_with(b"HTTP/1.0 ");
        let shown = || String::from_utf8_lossy(bytes).into_owned();
        assert!(
            begins || (!whole && bytes.len() < 9),
            "an answer begins otherwise: {}",
            shown()
        );
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            assert!(!whole, "an answer was cut off: {}", shown());
            break;
        };
        let head = str::from_utf8(&bytes[..end]).unwrap();
        let status: u16 = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        bytes = &bytes[end + 4..];
        // The answer to HEAD has a length and no body; no body of headgate's begins like an answer.
        if !bytes.is_empty() && !bytes.starts_with(b"HTTP/1.") {
            assert!(bytes.len() >= length || !whole, "a body was cut off: {head}");
            let body = &bytes[..length.min(bytes.len())];
            if matches!(status, 200 | 503) && body.len() == length {
                serde_json::from_slice::<serde_json::Value>(body).unwrap();
            }
            bytes = &bytes[body.len()..];
        }
        if status != 100 {
            statuses.push(status);
        }
    }
    statuses
}

/// A health port of a node with or without a signal.
struct Port {
    limits: Limits,
    tainted: bool,
    registry: Registry,
    hand: mpsc::UnboundedSender<DuplexStream>,
    stop: CancellationToken,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Port {
    fn open(peer: &Peer) -> Self {
        const EXPECTED: [ProxyProtocol; 3] = [
            ProxyProtocol::Disabled,
            ProxyProtocol::Optional,
            ProxyProtocol::Required,
        ];
        let limits = Limits {
            proxy_protocol: EXPECTED[peer.proxy_protocol],
            ..Limits::HEALTH
        };
        let clock = Clock::System;
        let now = clock.now();
        let taint = peer.tainted.then(|| Taint::new("drain", "NoSchedule"));
        let node = Node {
            taints: taint.into_iter().collect(),
            ..Node::default()
        };
        let node = node.with_signals(&SignalRules::new(["drain"], &[]));
        let report = NodeReport::initial(None, &SignalRules::default(), now).with_node(node, now);
        let inputs = VerdictInputs {
            node: watch::Sender::new(report).subscribe(),
            proxy: watch::Sender::new(ProxyStatus::new(Duration::from_mins(1))).subscribe(),
            notices: watch::Sender::default().subscribe(),
        };
        let mut registry = Registry::default();
        let metrics = server::Metrics::register(&mut registry);
        let last_change = watch::Sender::new(None::<LastChange>).subscribe();
        let counts =
            headgate_agent::health::Metrics::register(&mut registry, inputs.clone(), last_change, clock.clone());
        let router = headgate_agent::health::router(inputs, counts, clock);
        let (hand, handed) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let served = tokio::spawn(async move {
            server::serve(
                "fuzz",
                InMemoryListener(Mutex::new(handed)),
                router,
                limits,
                &metrics,
                stopping,
            )
            .await
        });
        Self {
            limits,
            tainted: peer.tainted,
            registry,
            hand,
            stop,
            served,
        }
    }

    fn connect(&self, room: usize) -> DuplexStream {
        let (ours, theirs) = duplex(room);
        self.hand.send(theirs).unwrap();
        ours
    }

    fn counter(&self, series: &str) -> usize {
        series_value(&self.registry, series)
    }

    /// Answers of this status, as counted.
    fn made(&self, status: u16) -> usize {
        ["proxy_healthz_total", "proxy_livez_total"]
            .map(|name| self.counter(&format!("{name}{{code=\"{status}\"}}")))
            .iter()
            .sum()
    }

    /// Sends a request as a load balancer does.
    async fn probe(&self) {
        let mut stream = self.connect(ROOM);
        if self.limits.proxy_protocol == ProxyProtocol::Required {
            stream.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
        }
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let answered = timeout(Duration::from_secs(1), stream.read_to_end(&mut answer));
        answered.await.expect("the next probe is answered").unwrap();
        let want: &[u8] = if self.tainted {
            b"HTTP/1.1 503 "
        } else {
            b"HTTP/1.1 200 "
        };
        assert!(answer.starts_with(want), "{}", String::from_utf8_lossy(&answer));
    }

    async fn close(self) {
        self.stop.cancel();
        let end = self.limits.linger_timeout + Duration::from_secs(5);
        let closed = timeout(end, self.served).await.expect("the listener closes");
        closed.unwrap().unwrap();
    }
}

impl Peer {
    /// Whether the peer receives all answers: hyper drops an answer that waits for room when bytes behind its request
    /// are not a request.
    fn receives_all(&self) -> bool {
        self.reads && self.narrow.is_none()
    }

    /// Sends `bytes` as the peer is configured, until the server closes.
    async fn send(&self, bytes: &[u8], mut stream: WriteHalf<DuplexStream>) {
        let mut rest = bytes;
        let mut delays = self.delays.iter();
        for piece in &self.pieces {
            sleep(Duration::from_secs(delays.next().copied().unwrap_or(0).into())).await;
            let (now, later) = rest.split_at(rest.len().min(usize::from(*piece)));
            rest = later;
            if stream.write_all(now).await.is_err() {
                return;
            }
        }
        if stream.write_all(rest).await.is_ok() && self.finishes {
            // A closed connection cannot be shut down.
            let _ = stream.shutdown().await;
        }
    }

    /// Sends `bytes` and waits for the connection to end within its limits; what was answered.
    async fn talk(&self, bytes: &[u8], port: &Port) -> Vec<u8> {
        let (mut read, write) =
            tokio::io::split(port.connect(self.narrow.map_or(ROOM, |narrow| 16 + usize::from(narrow))));
        let mut answers = Vec::new();
        // The longest limit is the one between requests; it begins with the last byte at the latest.
        let end = port.limits.idle_timeout + Duration::from_secs(3);
        if self.reads {
            let over = async {
                self.send(bytes, write).await;
                sleep(end).await;
            };
            tokio::select! {
                biased;
                outcome = read.read_to_end(&mut answers) => drop(outcome.unwrap()),
                () = over => panic!("the connection has not ended"),
            }
        } else {
            let longest = Duration::from_secs(30 * self.pieces.len() as u64) + port.limits.write_timeout + end;
            let sent = timeout(longest, self.send(bytes, write));
            sent.await.expect("who never reads is closed");
            sleep(end).await;
            let ended = timeout(Duration::ZERO, read.read_to_end(&mut answers));
            ended.await.expect("the connection has ended").unwrap();
        }
        answers
    }
}

async fn any_bytes(bytes: &[u8], peer: &Peer) {
    let port = Port::open(peer);
    let statuses = statuses(&peer.talk(bytes, &port).await, peer.receives_all());
    for status in [200, 503] {
        let seen = statuses.iter().filter(|seen| **seen == status).count();
        let made = port.made(status);
        assert!(
            seen == made || (seen < made && !peer.receives_all()),
            "{seen} answers of {status} were read, {made} counted"
        );
    }
    if port.served.is_finished() {
        // The server ended before it was stopped: this is the cause.
        port.served.await.unwrap().unwrap();
        return;
    }
    port.probe().await;
    assert_eq!(port.counter("headgate_listener_connections{listener=\"fuzz\"}"), 0);
    port.close().await;
}

#[test]
fn any_bytes_leave_the_health_port_serving_probes() {
    let holds = |bytes: &[u8], peer: &Peer| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(any_bytes(bytes, peer));
    };
    let mutated_corpus = MutatedCorpus::load(NAME, WORDS);
    for bytes in mutated_corpus.files() {
        for (proxy_protocol, narrow) in (0..3).flat_map(|setting| [(setting, None), (setting, Some(0))]) {
            for pieces in [vec![], vec![1; bytes.len()], vec![7; bytes.len() / 7]] {
                let peer = Peer {
                    pieces,
                    delays: Vec::new(),
                    reads: narrow.is_none(),
                    finishes: narrow.is_some(),
                    narrow,
                    proxy_protocol,
                    tainted: false,
                };
                holds(bytes, &peer);
            }
        }
    }
    check!(name = NAME)
        .with_generator((mutated_corpus, produce::<Peer>()))
        .with_test_time(time())
        .for_each(|(bytes, peer)| holds(bytes, peer));
}
