//! The probes: at a fixed rate, each counted by its answer, each held to the truth.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::http::{self, Kept};
use crate::truth::Truth;

/// Probes a second on new connections, and the same on kept ones together.
const RATE: u32 = 100;
/// Connections that are kept.
const KEPT: u32 = 10;
/// More of what went wrong than anybody reads.
const MAX_TOLD: usize = 20;

/// What came of the probes.
pub(crate) struct Tally {
    truth: Arc<Truth>,
    pub(crate) good: AtomicU64,
    pub(crate) bad: AtomicU64,
    /// Answers whose verdict was not the taint's.
    pub(crate) wrong: AtomicU64,
    /// Probes without an answer, or with another one.
    pub(crate) failed: AtomicU64,
    told: Mutex<Vec<String>>,
    /// Microseconds.
    latency: Mutex<Histogram<u64>>,
    latest: watch::Sender<u16>,
}

impl Tally {
    pub(crate) fn new(truth: Arc<Truth>) -> Self {
        Self {
            truth,
            good: AtomicU64::default(),
            bad: AtomicU64::default(),
            wrong: AtomicU64::default(),
            failed: AtomicU64::default(),
            told: Mutex::default(),
            latency: Mutex::new(histogram()),
            latest: watch::Sender::new(0),
        }
    }

    /// The code of the latest answer.
    pub(crate) fn latest(&self) -> watch::Receiver<u16> {
        self.latest.subscribe()
    }

    /// What went wrong, the first of it.
    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Times from the question to the answer.
    pub(crate) fn latency(&self) -> Histogram<u64> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, counter: &AtomicU64, what: String) {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD {
            told.push(what);
        }
    }

    async fn probe(&self, kind: &str, ask: impl Future<Output = io::Result<u16>>) -> bool {
        let (demand, begun) = (self.truth.demand(), Instant::now());
        let outcome = ask.await;
        let took = begun.elapsed();
        let code = match outcome {
            Ok(code @ (200 | 503)) => code,
            Ok(code) => {
                self.tell(&self.failed, format!("{kind}: answered {code}"));
                return false;
            }
            Err(error) => {
                self.tell(&self.failed, format!("{kind}: {error} after {took:?}"));
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
        if let Some(demand) = demand.filter(|demand| demand.code != code && self.truth.holds(*demand)) {
            self.tell(&self.wrong, format!("{kind}: {code} instead of {}", demand.code));
        }
        true
    }
}

/// Of times in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    // Three digits are a valid precision.
    Histogram::new(3).unwrap_or_else(|_| unreachable!())
}

/// Starts all probes; they end when they are told, each with its last answer.
pub(crate) fn start(address: SocketAddr, tally: &Arc<Tally>, stopped: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut probers = JoinSet::new();
    probers.spawn(anew(address, Arc::clone(tally), stopped.clone()));
    for number in 0..KEPT {
        let delay = Duration::from_secs(1) / RATE * number;
        probers.spawn(kept(address, Arc::clone(tally), stopped.clone(), delay));
    }
    probers
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    // A machine that was busy is not to be flooded afterwards.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A new connection each, without waiting for one to start the next.
async fn anew(address: SocketAddr, tally: Arc<Tally>, stopped: watch::Receiver<bool>) {
    let mut ticks = ticks(Duration::from_secs(1) / RATE);
    let mut probes = JoinSet::new();
    while !*stopped.borrow() {
        ticks.tick().await;
        let tally = Arc::clone(&tally);
        probes.spawn(async move {
            let ask = async { Ok(http::get(address, "/healthz").await?.0) };
            tally.probe("new connection", ask).await;
        });
        while probes.try_join_next().is_some() {}
    }
    probes.join_all().await;
}

/// One connection for all.
async fn kept(address: SocketAddr, tally: Arc<Tally>, stopped: watch::Receiver<bool>, delay: Duration) {
    tokio::time::sleep(delay).await;
    let mut ticks = ticks(Duration::from_secs(1) * KEPT / RATE);
    let mut connection = None;
    while !*stopped.borrow() {
        ticks.tick().await;
        if connection.is_none() {
            match Kept::open(address).await {
                Ok(opened) => connection = Some(opened),
                Err(error) => {
                    tally.tell(&tally.failed, format!("kept connection: {error}"));
                    continue;
                }
            }
        }
        if let Some(open) = &mut connection
            && !tally.probe("kept connection", open.healthz()).await
        {
            connection = None;
        }
    }
}
