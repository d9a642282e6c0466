//! Hostile clients: many invalid connections at once, and valid probes at the same time.
//!
//! One thread does both, in turns, so that a probe waits for the server and not for the flood's share
//! of a core: a burst of hostile connections, one good probe on a connection of its own, and so on; then
//! only probes, while the hostile connections stay as long as the server lets them.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::http::{Prober, request};
use crate::measuring::figures::{mebibytes, millis, percentile, quantile, rounded};
use crate::measuring::memory::{self, Memory};
use crate::world::Server;

/// Hostile connections between two probes while the flood comes.
const BURST: usize = 50;
/// From one good probe to the next.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which hostile connections are checked for their end.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a hostile connection may take to be opened; the queue may be full for a moment.
const OPENING: Duration = Duration::from_secs(10);
/// Source addresses of the flood.
const SOURCES: usize = 16;
/// Maximum bytes that a peer that never reads sends.
const PIPELINED_BYTES: usize = 1 << 20;

/// What a hostile client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Sends half a request and stops.
    HalfSent,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends a header that has no end.
    OversizedHeader,
    /// Sends request after request and never reads an answer.
    NeverReads,
}

impl Attack {
    /// The name in the raw figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HalfSent => "halfSent",
            Self::Garbage => "garbage",
            Self::OversizedHeader => "oversizedHeader",
            Self::NeverReads => "neverReads",
        }
    }

    fn bytes(self, server: SocketAddr) -> Vec<u8> {
        match self {
            Self::HalfSent => format!("GET /healthz HTTP/1.1\r\nHost: {server}\r\nUser-Ag").into_bytes(),
            Self::Garbage => (0..4096u32)
                .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
                .collect(),
            Self::OversizedHeader => {
                let mut bytes = format!("GET /healthz HTTP/1.1\r\nHost: {server}\r\nX-Filler: ").into_bytes();
                bytes.resize(2 << 20, b'x');
                bytes
            }
            Self::NeverReads => {
                let one = request(server, false);
                one.repeat(PIPELINED_BYTES / one.len())
            }
        }
    }
}

/// The result of a flood.
#[derive(Clone, Debug)]
pub(crate) struct FloodResult {
    /// The peak of the server's additional memory in bytes.
    pub(crate) extra_memory: u64,
    /// Time until the last hostile connection was closed; `None` if some are open at the end.
    pub(crate) all_closed_after: Option<Duration>,
    /// Hostile connections still open at the end.
    pub(crate) open: usize,
    /// The duration of the flood.
    pub(crate) lasted: Duration,
    /// How long each good probe took, connection included.
    pub(crate) probes: Vec<Duration>,
    /// The number of failed probes, and the first one's error.
    pub(crate) failed_probes: usize,
    first_failure: Option<String>,
}

impl FloodResult {
    /// The 99th percentile of the probes' durations, and its name.
    pub(crate) fn p99(&self) -> (String, Duration) {
        quantile(&self.probes, 990)
    }

    /// All figures as JSON.
    pub(crate) fn raw(&self) -> Value {
        json!({
            "extraMemoryMiB": rounded(mebibytes(self.extra_memory)),
            "allClosedAfterSeconds": self.all_closed_after.map(|after| rounded(after.as_secs_f64())),
            "openAtEnd": self.open,
            "lastedSeconds": rounded(self.lasted.as_secs_f64()),
            "probes": self.probes.len(),
            "probeP50Ms": rounded(millis(percentile(&self.probes, 500))),
            "probeP99Ms": rounded(millis(self.p99().1)),
            "probeMaxMs": rounded(millis(percentile(&self.probes, 1000))),
            "failedProbes": self.failed_probes,
            "firstFailure": self.first_failure,
        })
    }
}

/// Opens `count` hostile connections to `server` and probes it meanwhile: at least for `least`, until all of
/// them are closed, at most for `most`.
pub(crate) fn flood(
    server: &Server,
    attack: Attack,
    count: usize,
    (least, most): (Duration, Duration),
) -> anyhow::Result<FloodResult> {
    let flood = || -> anyhow::Result<FloodResult> {
        memory::forget_peak(server.process)?;
        let before = Memory::of(server.process)?.resident;
        let bytes = attack.bytes(server.healthz);
        let mut hostile = Vec::with_capacity(count);
        let mut probes = Probes::new(server.healthz);
        let start = Instant::now();
        for number in 0..count {
            hostile.push(Hostile::open(server.healthz, attack, number, bytes.len())?);
            if number % BURST == BURST - 1 {
                go_on(&mut hostile, attack, &bytes);
                probes.ask();
            }
        }
        let mut looked = start;
        let mut all_closed_after = None;
        while start.elapsed() < most && (all_closed_after.is_none() || start.elapsed() < least) {
            if looked.elapsed() >= LOOK_INTERVAL && all_closed_after.is_none() {
                go_on(&mut hostile, attack, &bytes);
                looked = Instant::now();
                if hostile.is_empty() {
                    all_closed_after = Some(start.elapsed());
                }
            }
            probes.ask();
            std::thread::sleep(PROBE_INTERVAL);
        }
        Ok(FloodResult {
            extra_memory: Memory::of(server.process)?.peak.saturating_sub(before),
            all_closed_after,
            open: hostile.len(),
            lasted: start.elapsed(),
            probes: probes.took,
            failed_probes: probes.failed,
            first_failure: probes.first_failure,
        })
    }();
    flood.with_context(|| format!("a flood of {} on {}", attack.name(), server.name))
}

/// Sends on all connections that accept bytes, and drops connections that the server has closed.
fn go_on(hostile: &mut Vec<Hostile>, attack: Attack, bytes: &[u8]) {
    hostile.retain_mut(|connection| connection.go_on(attack, bytes));
}

/// A hostile connection.
struct Hostile {
    stream: TcpStream,
    /// Bytes that are left to send.
    left: usize,
}

impl Hostile {
    /// A connection from one of many addresses, as there are ports for only so many from one.
    fn open(server: SocketAddr, attack: Attack, number: usize, left: usize) -> anyhow::Result<Self> {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        let host = u8::try_from(number % SOURCES)? + 2;
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0)).into())?;
        socket.set_linger(Some(Duration::ZERO))?;
        if attack == Attack::NeverReads {
            // Segments and buffers as on a network: over loopback megabytes would fit in between.
            socket.set_tcp_mss(1400)?;
            socket.set_recv_buffer_size(4096)?;
        }
        socket
            .connect_timeout(&server.into(), OPENING)
            .context("a hostile connection")?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            stream: socket.into(),
            left,
        })
    }

    /// Sends what the attack requires; returns whether the connection is still open.
    fn go_on(&mut self, attack: Attack, bytes: &[u8]) -> bool {
        while self.left > 0 {
            match self.stream.write(&bytes[bytes.len() - self.left..]) {
                Ok(written) => self.left -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        if attack == Attack::NeverReads {
            return !reset(&self.stream);
        }
        let mut answer = [0; 1024];
        loop {
            match self.stream.read(&mut answer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Whether the peer has reset the connection; found without reading.
fn reset(stream: &TcpStream) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    // Errors are reported unasked.
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Good probes: a new connection each, as load balancers do.
struct Probes {
    server: SocketAddr,
    took: Vec<Duration>,
    failed: usize,
    first_failure: Option<String>,
}

impl Probes {
    fn new(server: SocketAddr) -> Self {
        Self {
            server,
            took: Vec::new(),
            failed: 0,
            first_failure: None,
        }
    }

    fn ask(&mut self) {
        let start = Instant::now();
        let failure = match Prober::connect(self.server, true).and_then(|mut prober| Ok(prober.ask()?.0)) {
            Ok(200) => None,
            Ok(status) => Some(format!("answer {status}")),
            Err(error) => Some(error.to_string()),
        };
        // A failed probe counts with its duration.
        self.took.push(start.elapsed());
        if let Some(failure) = failure {
            self.failed += 1;
            self.first_failure.get_or_insert(failure);
        }
    }
}
