//! The probes: sent at a fixed rate, counted by answer, and each compared with the expected answer.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::expected_answer::ExpectedAnswer;
use crate::http::{self, KeepAliveConnection};

/// Probes per second on new connections; keep-alive connections together send the same number.
const RATE: u32 = 100;
/// The number of keep-alive connections.
const KEEP_ALIVE_CONNECTIONS: u32 = 10;
/// The number of errors that are recorded as text; further ones are only counted.
const MAX_ERRORS: usize = 20;

/// Counts of the probes by outcome.
pub(crate) struct ProbeCounts {
    expected_answer: Arc<ExpectedAnswer>,
    pub(crate) good: AtomicU64,
    pub(crate) bad: AtomicU64,
    /// Answers that differ from the expected one.
    pub(crate) wrong: AtomicU64,
    /// Probes with no answer, or with neither 200 nor 503.
    pub(crate) failed: AtomicU64,
    errors: Mutex<Vec<String>>,
    /// From the request to its answer, in microseconds.
    latency: Mutex<Histogram<u64>>,
    latest: watch::Sender<u16>,
}

impl ProbeCounts {
    pub(crate) fn new(expected_answer: Arc<ExpectedAnswer>) -> Self {
        Self {
            expected_answer,
            good: AtomicU64::default(),
            bad: AtomicU64::default(),
            wrong: AtomicU64::default(),
            failed: AtomicU64::default(),
            errors: Mutex::default(),
            latency: Mutex::new(histogram()),
            latest: watch::Sender::new(0),
        }
    }

    /// The code of the latest answer.
    pub(crate) fn latest(&self) -> watch::Receiver<u16> {
        self.latest.subscribe()
    }

    /// The texts of the first errors.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Times from a request to its answer.
    pub(crate) fn latency(&self) -> Histogram<u64> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record_error(&self, counter: &AtomicU64, text: String) {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MAX_ERRORS {
            errors.push(text);
        }
    }

    async fn probe(&self, kind: &str, ask: impl Future<Output = io::Result<u16>>) -> bool {
        let (expectation, begun) = (self.expected_answer.expectation(), Instant::now());
        let outcome = ask.await;
        let took = begun.elapsed();
        let code = match outcome {
            Ok(code @ (200 | 503)) => code,
            Ok(code) => {
                self.record_error(&self.failed, format!("{kind}: answered {code}"));
                return false;
            }
            Err(error) => {
                self.record_error(&self.failed, format!("{kind}: {error} after {took:?}"));
                return false;
            }
        };
        let counter = if code == 200 { &self.good } else { &self.bad };
        counter.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.latency
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .saturating_record(micros);
        self.latest
            .send_if_modified(|latest| std::mem::replace(latest, code) != code);
        if let Some(expectation) =
            expectation.filter(|expectation| expectation.code != code && self.expected_answer.holds(*expectation))
        {
            self.record_error(&self.wrong, format!("{kind}: {code} instead of {}", expectation.code));
        }
        true
    }
}

/// An empty histogram of times in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    // `new` fails only for more than five digits.
    Histogram::new(3).unwrap_or_else(|_| unreachable!())
}

/// Starts all probes. Each ends after its current answer once `stopped` is true.
pub(crate) fn start(address: SocketAddr, counts: &Arc<ProbeCounts>, stopped: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut probers = JoinSet::new();
    probers.spawn(anew(address, Arc::clone(counts), stopped.clone()));
    for number in 0..KEEP_ALIVE_CONNECTIONS {
        let delay = Duration::from_secs(1) / RATE * number;
        probers.spawn(kept(address, Arc::clone(counts), stopped.clone(), delay));
    }
    probers
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    // After a stall, missed probes are skipped.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Sends each probe on a new connection, without waiting for the previous one.
async fn anew(address: SocketAddr, counts: Arc<ProbeCounts>, stopped: watch::Receiver<bool>) {
    let mut ticks = ticks(Duration::from_secs(1) / RATE);
    let mut probes = JoinSet::new();
    while !*stopped.borrow() {
        ticks.tick().await;
        let counts = Arc::clone(&counts);
        probes.spawn(async move {
            let ask = async { Ok(http::get(address, "/healthz").await?.0) };
            counts.probe("new connection", ask).await;
        });
        while probes.try_join_next().is_some() {}
    }
    probes.join_all().await;
}

/// Sends all probes on one keep-alive connection.
async fn kept(address: SocketAddr, counts: Arc<ProbeCounts>, stopped: watch::Receiver<bool>, delay: Duration) {
    tokio::time::sleep(delay).await;
    let mut ticks = ticks(Duration::from_secs(1) * KEEP_ALIVE_CONNECTIONS / RATE);
    let mut connection = None;
    while !*stopped.borrow() {
        ticks.tick().await;
        if connection.is_none() {
            match KeepAliveConnection::open(address).await {
                Ok(opened) => connection = Some(opened),
                Err(error) => {
                    counts.record_error(&counts.failed, format!("kept connection: {error}"));
                    continue;
                }
            }
        }
        if let Some(open) = &mut connection
            && !counts.probe("kept connection", open.healthz()).await
        {
            connection = None;
        }
    }
}
