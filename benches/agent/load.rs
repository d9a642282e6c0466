//! The load: as many requests as a server answers, from one thread.
//!
//! A fixed number of connections, each with one request under way; readiness from epoll, plain reads
//! and writes, nothing else. That costs less than any server's side, which [`Measured::server_busy`]
//! shows: well below one, the load was the bottleneck and the rate is not the server's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use crate::cpu;
use crate::figures::float;
use crate::http::{ANSWER_BYTES, Answer, request};
use crate::world::Server;

/// Connections at once.
const CONNECTIONS: u16 = 32;
/// Load before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// A server that gives no answer at all for this long has failed.
const PATIENCE_MS: u16 = 5000;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// One after the other on connections that are kept.
    Kept,
    /// Each on a new connection, which both sides give up after the answer.
    New,
}

/// What a server did under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Answers a second.
    pub(crate) rate: f64,
    /// Half of the answers took less; a new connection's time includes opening it.
    pub(crate) p50: Duration,
    /// 99 of 100 took less.
    pub(crate) p99: Duration,
    /// The server process's share of one core.
    pub(crate) server_busy: f64,
    /// The load's share of one core.
    pub(crate) load_busy: f64,
}

/// Puts load on `server` for `time` and measures it.
pub(crate) fn measure(server: &Server, connections: Connections, time: Duration) -> anyhow::Result<Measured> {
    let mut load = Load::new(server.healthz, connections)?;
    let measured = || -> anyhow::Result<Measured> {
        load.run(WARM_UP)?;
        load.latencies.reset();
        let process = server.process.to_string();
        let (server_before, load_before, start) = (cpu::used(&process)?, cpu::used("thread-self")?, Instant::now());
        load.run(time)?;
        let elapsed = start.elapsed().as_secs_f64();
        let latency = |quantile| Duration::from_nanos(load.latencies.value_at_quantile(quantile));
        Ok(Measured {
            rate: float(load.latencies.len()) / elapsed,
            p50: latency(0.5),
            p99: latency(0.99),
            server_busy: (cpu::used(&process)? - server_before) / elapsed,
            load_busy: (cpu::used("thread-self")? - load_before) / elapsed,
        })
    }();
    measured.with_context(|| format!("load on {}", server.name))
}

struct Load {
    server: SocketAddr,
    connections: Connections,
    request: Vec<u8>,
    epoll: Epoll,
    slots: Vec<Slot>,
    latencies: Histogram<u64>,
}

/// A connection and its request.
struct Slot {
    stream: TcpStream,
    since: Instant,
    /// The connection is not there yet; the request was not written.
    connecting: bool,
    buffer: [u8; ANSWER_BYTES],
    filled: usize,
}

impl Load {
    fn new(server: SocketAddr, connections: Connections) -> anyhow::Result<Self> {
        let mut load = Self {
            server,
            connections,
            request: request(server, connections == Connections::New),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            slots: Vec::new(),
            latencies: Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?,
        };
        for index in 0..CONNECTIONS {
            let slot = load.open(index)?;
            load.slots.push(slot);
        }
        Ok(load)
    }

    /// Goes on until `time` is over; requests under way then stay so.
    fn run(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        let mut events = [EpollEvent::empty(); CONNECTIONS as usize];
        loop {
            let ready = self.epoll.wait(&mut events, EpollTimeout::from(PATIENCE_MS))?;
            anyhow::ensure!(ready > 0, "no answer within {PATIENCE_MS} ms");
            let mut now = Instant::now();
            for event in &events[..ready] {
                now = self.go_on(u16::try_from(event.data())?, now)?;
            }
            if now >= end {
                return Ok(());
            }
        }
    }

    /// Does what the connection at `index` is ready for; the time after that.
    fn go_on(&mut self, index: u16, now: Instant) -> anyhow::Result<Instant> {
        let slot = &mut self.slots[usize::from(index)];
        if slot.connecting {
            slot.stream.write_all(&self.request).context("a request")?;
            slot.connecting = false;
            self.epoll.modify(
                &slot.stream,
                &mut EpollEvent::new(EpollFlags::EPOLLIN, u64::from(index)),
            )?;
            return Ok(now);
        }
        match slot.stream.read(&mut slot.buffer[slot.filled..]).context("an answer")? {
            0 => anyhow::bail!("the connection was closed before its answer was there"),
            read => slot.filled += read,
        }
        let Some(answer) = Answer::parse(&slot.buffer[..slot.filled])? else {
            return Ok(now);
        };
        anyhow::ensure!(answer.status == 200, "an answer {}", answer.status);
        let now = Instant::now();
        let took = u64::try_from((now - slot.since).as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(took);
        if self.connections == Connections::Kept {
            slot.filled = 0;
            slot.since = now;
            slot.stream.write_all(&self.request).context("a request")?;
        } else {
            let slot = self.open(index)?;
            // The old connection is closed here.
            self.slots[usize::from(index)] = slot;
        }
        Ok(now)
    }

    /// Begins a connection and, where it is there at once, its first request.
    fn open(&self, index: u16) -> anyhow::Result<Slot> {
        let since = Instant::now();
        let socket = Socket::new(Domain::for_address(self.server), Type::STREAM.nonblocking(), None)?;
        socket.set_tcp_nodelay(true)?;
        if self.connections == Connections::New {
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
