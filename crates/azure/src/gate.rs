//! How often ARM may be asked: per subscription, reads and writes apart.
//!
//! A 429 closes its gate for as long as its `Retry-After` says, to the second: requests sent meanwhile would be
//! refused and prolong it, so they are refused here. A token bucket, where one is set
//! (`cloudProviderRateLimit*`), makes requests wait in line instead. A 429 about one resource that
//! another operation holds closes nothing: it says nothing about other load balancers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headgate_clock::Clock;
use hyper::StatusCode;
use tokio::time::{Instant, sleep_until};
use tower::ServiceExt as _;

use super::error::{ArmError, ErrorBody, is_rate_limited};
use super::retry_after::retry_after;
use super::stack::{Around, Below, Call};
use super::transport::Answer;
use crate::{RateLimit, RateLimits};

/// Requests that may be sent, as many at once as it holds.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: RateLimit,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    fn new(limit: RateLimit, now: Instant) -> Self {
        let tokens = f64::from(limit.bucket.max(1));
        Self { limit, tokens, at: now }
    }

    /// When the next request may be sent; it has its place in the line then. None where that would be too late.
    fn take(&mut self, now: Instant, by: Instant) -> Option<Instant> {
        // One that never fills gives what it holds.
        let qps = if self.limit.qps > 0.0 { self.limit.qps } else { 0.0 };
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * qps;
        self.tokens = (self.tokens + grown).min(f64::from(self.limit.bucket.max(1)));
        self.at = now;
        let left = self.tokens - 1.0;
        let wait = if left < 0.0 { -left / qps } else { 0.0 };
        let turn = now.checked_add(Duration::try_from_secs_f64(wait).ok()?)?;
        (turn <= by).then(|| {
            self.tokens = left;
            turn
        })
    }
}

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    /// ARM said so.
    Until(Instant),
    /// Its turn would come too late.
    TooLate,
}

/// One kind of requests to one subscription.
#[derive(Clone, Copy, Debug)]
struct Lane {
    bucket: Option<Bucket>,
    closed_until: Option<Instant>,
}

impl Lane {
    fn new(limit: Option<RateLimit>, now: Instant) -> Self {
        Self {
            bucket: limit.map(|limit| Bucket::new(limit, now)),
            closed_until: None,
        }
    }

    /// Whether the gate is open.
    fn open(&self, now: Instant) -> Result<(), Closed> {
        match self.closed_until {
            Some(until) if until > now => Err(Closed::Until(until)),
            _ => Ok(()),
        }
    }

    /// When a request may go, if it may.
    fn enter(&mut self, now: Instant, by: Instant) -> Result<Instant, Closed> {
        self.open(now)?;
        match &mut self.bucket {
            Some(bucket) => bucket.take(now, by).ok_or(Closed::TooLate),
            None => Ok(now),
        }
    }

    /// Shuts the gate; a shorter word does not shorten a longer one.
    fn close(&mut self, until: Instant) {
        self.closed_until = self.closed_until.max(Some(until));
    }
}

/// A subscription's.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    reads: Lane,
    writes: Lane,
}

/// All subscriptions' gates; clones are the same ones.
#[derive(Clone, Debug)]
pub(super) struct Gates {
    limits: Option<RateLimits>,
    clock: Clock,
    lanes: Arc<Mutex<HashMap<String, Lanes>>>,
}

impl Gates {
    pub(super) fn new(limits: Option<RateLimits>, clock: Clock) -> Self {
        Self {
            limits,
            clock,
            lanes: Arc::default(),
        }
    }

    /// Until when ARM is not to be asked this; for whoever would rather wait than be refused.
    pub(super) fn closed_until(&self, subscription: &str, writes: bool) -> Option<Instant> {
        let now = Instant::now();
        match self.with(subscription, writes, now, |lane| lane.open(now)) {
            Err(Closed::Until(until)) => Some(until),
            _ => None,
        }
    }

    fn with<T>(&self, subscription: &str, writes: bool, now: Instant, work: impl FnOnce(&mut Lane) -> T) -> T {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = lanes.entry(subscription.to_ascii_lowercase()).or_insert_with(|| Lanes {
            reads: Lane::new(self.limits.map(|limits| limits.read), now),
            writes: Lane::new(self.limits.map(|limits| limits.write), now),
        });
        work(if writes { &mut lanes.writes } else { &mut lanes.reads })
    }

    /// Waits for the request's turn.
    async fn turn(&self, call: &Call) -> Result<(), ArmError> {
        let refused = |closed| match closed {
            Closed::Until(until) => ArmError::Throttled { until },
            Closed::TooLate => ArmError::DeadlineExceeded,
        };
        let now = Instant::now();
        let (subscription, writes) = (&call.subscription, call.writes());
        let turn = self
            .with(subscription, writes, now, |lane| lane.enter(now, call.deadline))
            .inspect_err(|closed| {
                if *closed == Closed::TooLate {
                    call.seen.held_up(Duration::ZERO);
                }
            })
            .map_err(refused)?;
        if turn > now {
            call.seen.held_up(turn - now);
            sleep_until(turn).await;
            // It may have been shut meanwhile.
            let now = Instant::now();
            self.with(subscription, writes, now, |lane| lane.open(now))
                .map_err(refused)?;
        }
        Ok(())
    }

    /// Learns from an answer.
    fn learn(&self, call: &Call, answer: &BufferedResponse) {
        if answer.status() != StatusCode::TOO_MANY_REQUESTS {
            return;
        }
        let now = self.clock.now();
        let Some(wait) = retry_after(answer.headers(), now.wall) else {
            return;
        };
        if is_rate_limited(&ErrorBody::parse(answer.body())) {
            let (subscription, writes) = (&call.subscription, call.writes());
            tracing::warn!(%subscription, writes, wait = ?wait, "ARM is_rate_limited; it is left alone for so long");
            self.with(subscription, writes, now.mono, |lane| lane.close(now.mono + wait));
        }
    }
}

impl Around for Gates {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        self.turn(&call).await?;
        let answer = below.oneshot(call.clone()).await?;
        self.learn(&call, &answer);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_lets_so_many_through_and_then_one_after_the_other() {
        let start = Instant::now();
        let never = start + 3600 * SECOND;
        let mut bucket = Bucket::new(RateLimit { qps: 2.0, bucket: 3 }, start);
        let turns: Vec<_> = (0..6).map(|_| bucket.take(start, never).unwrap() - start).collect();
        assert_eq!(turns, [0, 0, 0, 500, 1000, 1500].map(Duration::from_millis));
        // Whoever would come too late takes nobody's place.
        assert_eq!(bucket.take(start, start + SECOND), None);
        assert_eq!(bucket.take(start, never), Some(start + 2 * SECOND));
        // Refilled, and never more than it holds.
        let later = start + 60 * SECOND;
        let turns: Vec<_> = (0..4)
            .map(|_| bucket.take(later, never + 60 * SECOND).unwrap() - later)
            .collect();
        assert_eq!(turns, [0, 0, 0, 500].map(Duration::from_millis));
    }

    #[test]
    fn a_bucket_that_never_fills_ends() {
        let start = Instant::now();
        for qps in [0.0, -1.0, f64::NAN] {
            let mut bucket = Bucket::new(RateLimit { qps, bucket: 0 }, start);
            assert_eq!(bucket.take(start, start + SECOND), Some(start), "{qps}");
            assert_eq!(bucket.take(start, start + SECOND), None, "{qps}");
        }
    }

    #[test]
    fn a_gate_is_shut_to_the_instant() {
        let start = Instant::now();
        let by = start + 60 * SECOND;
        let mut lane = Lane::new(None, start);
        assert_eq!(lane.enter(start, by), Ok(start));
        lane.close(start + 10 * SECOND);
        lane.close(start + 5 * SECOND);
        let last = start + Duration::from_millis(9999);
        assert_eq!(lane.enter(last, by), Err(Closed::Until(start + 10 * SECOND)));
        assert_eq!(lane.enter(start + 10 * SECOND, by), Ok(start + 10 * SECOND));
    }
}
