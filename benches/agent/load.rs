//! The load: requests from one thread, as many as a server answers, or at a given rate.
//!
//! A fixed number of connections, each with one request under way; readiness from epoll, plain reads
//! and writes, nothing else. Where it has a core of its own it never sleeps: otherwise the slower server
//! would pay for waking it up more often. [`Measured::load_busy`] near one means that the load was the
//! bottleneck, and the rate is not the server's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use crate::http::{ANSWER_BYTES, Answer, request};
use crate::measuring::cpu_time;
use crate::measuring::figures::float;
use crate::world::Server;

/// Connections at once.
const CONNECTIONS: u16 = 32;
/// Duration of the warm-up, which is not counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// Timeout after which a server without any answer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pattern of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Requests {
    /// One after the other on keep-alive connections.
    Kept,
    /// Each on a new connection, which ends after the answer; the next follows at once.
    New,
    /// Each on a new connection, this many per second. Latency counts from the scheduled time.
    NewAt(f64),
}

/// The performance of a server under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Answers per second.
    pub(crate) rate: f64,
    /// The median latency, including the time to open a new connection.
    pub(crate) p50: Duration,
    /// The 99th percentile of the latency.
    pub(crate) p99: Duration,
    /// The server process's share of one core.
    pub(crate) server_busy: f64,
    /// The share of time in which the load generator was busy.
    pub(crate) load_busy: f64,
}

/// Puts load on `server` for `time` and measures it. `alone` says that the load has a core of its own.
pub(crate) fn measure(server: &Server, requests: Requests, time: Duration, alone: bool) -> anyhow::Result<Measured> {
    let measured = || -> anyhow::Result<Measured> {
        let mut load = Load::new(server.healthz, requests, alone)?;
        load.run(WARM_UP)?;
        load.latencies.reset();
        load.idle = Duration::ZERO;
        let (server_before, start) = (cpu_time::process(server.process)?, Instant::now());
        load.run(time)?;
        let elapsed = start.elapsed();
        let server_used = cpu_time::process(server.process)?.saturating_sub(server_before);
        let latency = |quantile| Duration::from_nanos(load.latencies.value_at_quantile(quantile));
        Ok(Measured {
            rate: float(load.latencies.len()) / elapsed.as_secs_f64(),
            p50: latency(0.5),
            p99: latency(0.99),
            server_busy: server_used.div_duration_f64(elapsed),
            load_busy: 1.0 - load.idle.div_duration_f64(elapsed),
        })
    }();
    measured.with_context(|| format!("load on {}", server.name))
}

struct Load {
    server: SocketAddr,
    requests: Requests,
    request: Vec<u8>,
    epoll: Epoll,
    /// Timeout of one poll.
    wait: EpollTimeout,
    slots: Vec<Option<Slot>>,
    /// Slots without a connection.
    free: Vec<u16>,
    /// When the next connection is to be opened.
    due: Instant,
    answered: Instant,
    latencies: Histogram<u64>,
    idle: Duration,
}

/// A connection and its request.
struct Slot {
    stream: TcpStream,
    since: Instant,
    /// The connection is not established; the request is not written.
    connecting: bool,
    buffer: [u8; ANSWER_BYTES],
    filled: usize,
}

impl Load {
    fn new(server: SocketAddr, requests: Requests, alone: bool) -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            server,
            requests,
            request: request(server, !matches!(requests, Requests::Kept)),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            wait: if alone {
                EpollTimeout::ZERO
            } else {
                EpollTimeout::from(1u8)
            },
            slots: (0..CONNECTIONS).map(|_| None).collect(),
            free: (0..CONNECTIONS).collect(),
            due: now,
            answered: now,
            latencies: Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?,
            idle: Duration::ZERO,
        })
    }

    /// Runs for `time`; requests in progress are then abandoned.
    fn run(&mut self, time: Duration) -> anyhow::Result<()> {
        let mut now = Instant::now();
        let end = now + time;
        let mut events = [EpollEvent::empty(); CONNECTIONS as usize];
        while now < end {
            self.open_due(now)?;
            let ready = self.epoll.wait(&mut events, self.wait)?;
            if ready == 0 {
                let before = now;
                now = Instant::now();
                self.idle += now - before;
                anyhow::ensure!(
                    now - self.answered < PATIENCE,
                    "no answer within {} s",
                    PATIENCE.as_secs()
                );
            }
            for event in &events[..ready] {
                now = self.go_on(u16::try_from(event.data())?)?;
            }
        }
        Ok(())
    }

    /// Opens the connections that are due.
    fn open_due(&mut self, now: Instant) -> anyhow::Result<()> {
        while let Some(index) = self.free.pop() {
            let since = match self.requests {
                Requests::Kept | Requests::New => Instant::now(),
                Requests::NewAt(_) if self.due > now => {
                    self.free.push(index);
                    break;
                }
                Requests::NewAt(rate) => {
                    let due = self.due;
                    self.due += Duration::from_secs_f64(1.0 / rate);
                    due
                }
            };
            self.slots[usize::from(index)] = Some(self.open(index, since)?);
        }
        Ok(())
    }

    /// Processes readiness of the connection at `index`; returns the time afterwards.
    fn go_on(&mut self, index: u16) -> anyhow::Result<Instant> {
        let slot = self.slots[usize::from(index)]
            .as_mut()
            .context("an event of a closed connection")?;
        if slot.connecting {
            slot.stream.write_all(&self.request).context("a request")?;
            slot.connecting = false;
            let mut reading = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(index));
            self.epoll.modify(&slot.stream, &mut reading)?;
            return Ok(Instant::now());
        }
        match slot.stream.read(&mut slot.buffer[slot.filled..]).context("an answer")? {
            0 => anyhow::bail!("the connection was closed before its answer was there"),
            read => slot.filled += read,
        }
        let now = Instant::now();
        let Some(answer) = Answer::parse(&slot.buffer[..slot.filled])? else {
            return Ok(now);
        };
        anyhow::ensure!(answer.status == 200, "an answer {}", answer.status);
        let took = u64::try_from(now.saturating_duration_since(slot.since).as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(took);
        self.answered = now;
        if matches!(self.requests, Requests::Kept) {
            slot.filled = 0;
            slot.since = now;
            slot.stream.write_all(&self.request).context("a request")?;
        } else {
            // The connection is closed here.
            self.slots[usize::from(index)] = None;
            self.free.push(index);
        }
        Ok(now)
    }

    /// Opens a connection and, if it is established at once, sends its first request.
    fn open(&self, index: u16, since: Instant) -> anyhow::Result<Slot> {
        let socket = Socket::new(Domain::for_address(self.server), Type::STREAM.nonblocking(), None)?;
        if matches!(self.requests, Requests::Kept) {
            socket.set_tcp_nodelay(true)?;
        } else {
            // Closed by a reset after the answer, so that no port is held by TIME_WAIT on either side.
            socket.set_linger(Some(Duration::ZERO))?;
        }
        let connecting = match socket.connect(&self.server.into()) {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => true,
            Err(error) => return Err(error).context("a connection"),
        };
        let mut stream = TcpStream::from(socket);
        if !connecting {
            stream.write_all(&self.request).context("a request")?;
        }
        let readiness = if connecting {
            EpollFlags::EPOLLOUT
        } else {
            EpollFlags::EPOLLIN
        };
        self.epoll.add(&stream, EpollEvent::new(readiness, u64::from(index)))?;
        Ok(Slot {
            stream,
            since,
            connecting,
            buffer: [0; ANSWER_BYTES],
            filled: 0,
        })
    }
}
