//! When a request to ARM may be sent: for each subscription, reads and writes separately.
//!
//! A 429 closes the throttle gate for the `Retry-After` that it carries, or for a second. ARM would reject requests until then, and extend
//! the time, so the client refuses them itself. A token bucket, if `cloudProviderRateLimit` sets one, delays requests
//! instead. A 429 because another operation holds one resource closes no gate: it does not concern other load balancers.
//! Lookups, which are many and may wait, get half of the limit of reads beforehand, so that other reads never wait behind them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headgate_core::clock::Clock;
use hyper::StatusCode;
use tokio::time::Instant;

use crate::error::{ArmError, ErrorBody, MIN_THROTTLE_WAIT, is_rate_limited};
use crate::retry_after::parse_retry_after;
use crate::transport::BufferedResponse;
use crate::{RateLimit, RateLimits};

/// ARM's limit of reads, for each subscription and principal.
const ARM_READS: RateLimit = RateLimit { qps: 25.0, bucket: 250 };

/// A token bucket whose requests queue: the level is negative while some wait.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    limit: RateLimit,
    level: f64,
    updated: Instant,
}

impl TokenBucket {
    /// A bucket that starts full.
    fn new(limit: RateLimit, now: Instant) -> Self {
        Self {
            limit,
            level: f64::from(limit.bucket.max(1)),
            updated: now,
        }
    }

    /// Takes a token and returns when its request may be sent. Returns `None`, and takes none, if that is after
    /// `deadline`.
    fn take(&mut self, now: Instant, deadline: Instant) -> Option<Instant> {
        // At a rate that is negative or not a number a bucket is never refilled: only the tokens it began with can be taken.
        let qps = self.limit.qps.max(0.0);
        let refill = now.saturating_duration_since(self.updated).as_secs_f64() * qps;
        self.level = (self.level + refill).min(f64::from(self.limit.bucket.max(1)));
        self.updated = now;
        let remaining = self.level - 1.0;
        let wait = if remaining < 0.0 { -remaining / qps } else { 0.0 };
        let send_at = now.checked_add(Duration::try_from_secs_f64(wait).ok()?)?;
        (send_at <= deadline).then(|| {
            self.level = remaining;
            send_at
        })
    }
}

/// ARM limits reads and writes separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestKind {
    Read,
    Write,
    /// What a lookup enters before it enters as a read.
    Lookup,
}

/// Half of what reads have.
fn lookup_limit(reads: Option<RateLimit>) -> RateLimit {
    let reads = reads.unwrap_or(ARM_READS);
    RateLimit {
        qps: reads.qps.min(ARM_READS.qps) / 2.0,
        bucket: reads.bucket.min(ARM_READS.bucket) / 2,
    }
}

/// The limits of one kind of requests to one subscription.
#[derive(Clone, Copy, Debug)]
struct ThrottleGate {
    bucket: Option<TokenBucket>,
    closed_until: Option<Instant>,
}

impl ThrottleGate {
    fn new(limit: Option<RateLimit>, now: Instant) -> Self {
        Self {
            bucket: limit.map(|limit| TokenBucket::new(limit, now)),
            closed_until: None,
        }
    }

    fn check_open(&self, now: Instant) -> Result<(), ArmError> {
        match self.closed_until {
            Some(until) if until > now => Err(ArmError::Throttled { until }),
            _ => Ok(()),
        }
    }

    /// Returns when a request may be sent.
    fn enter(&mut self, now: Instant, deadline: Instant) -> Result<Instant, ArmError> {
        self.check_open(now)?;
        match &mut self.bucket {
            Some(bucket) => bucket.take(now, deadline).ok_or(ArmError::RateLimited),
            None => Ok(now),
        }
    }

    /// Closes the gate until then, or leaves it closed for longer.
    fn close(&mut self, until: Instant) {
        self.closed_until = self.closed_until.max(Some(until));
    }
}

/// The gates of all subscriptions. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ThrottleGates {
    limits: Option<RateLimits>,
    clock: Clock,
    /// By subscription in lower case.
    gates: Arc<Mutex<HashMap<(String, RequestKind), ThrottleGate>>>,
}

impl ThrottleGates {
    pub(crate) fn new(limits: Option<RateLimits>, clock: Clock) -> Self {
        Self {
            limits,
            clock,
            gates: Arc::default(),
        }
    }

    /// The end of the present `Retry-After`, for a caller that waits instead of being refused.
    pub(crate) fn closed_until(&self, subscription: &str, kind: RequestKind) -> Option<Instant> {
        match self.check_open(subscription, kind, Instant::now()) {
            Err(ArmError::Throttled { until }) => Some(until),
            _ => None,
        }
    }

    /// Returns when a request may be sent; it has its place in the queue of the token bucket then.
    pub(crate) fn enter(
        &self,
        subscription: &str,
        kind: RequestKind,
        now: Instant,
        deadline: Instant,
    ) -> Result<Instant, ArmError> {
        self.with_gate(subscription, kind, now, |gate| gate.enter(now, deadline))
    }

    pub(crate) fn check_open(&self, subscription: &str, kind: RequestKind, now: Instant) -> Result<(), ArmError> {
        self.with_gate(subscription, kind, now, |gate| gate.check_open(now))
    }

    /// Closes the gate if the response is a 429 about the rate of requests, for a second at least.
    pub(crate) fn record_response(&self, subscription: &str, kind: RequestKind, response: &BufferedResponse) {
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return;
        }
        let now = self.clock.now();
        let requested = parse_retry_after(response.headers(), now.wall);
        let wait = requested.unwrap_or_default().max(MIN_THROTTLE_WAIT);
        if is_rate_limited(&ErrorBody::parse(response.body())) {
            tracing::info!(subscription, ?kind, retry_in = ?wait, "ARM throttled requests; those of this kind wait");
            self.with_gate(subscription, kind, now.mono, |gate| gate.close(now.mono + wait));
        }
    }

    /// Closes the gate until then, as a 429 that another process got has it.
    pub(crate) fn close(&self, subscription: &str, kind: RequestKind, until: Instant) {
        self.with_gate(subscription, kind, Instant::now(), |gate| gate.close(until));
    }

    fn with_gate<T>(
        &self,
        subscription: &str,
        kind: RequestKind,
        now: Instant,
        work: impl FnOnce(&mut ThrottleGate) -> T,
    ) -> T {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = match kind {
            RequestKind::Read => self.limits.map(|limits| limits.read),
            RequestKind::Write => self.limits.map(|limits| limits.write),
            RequestKind::Lookup => Some(lookup_limit(self.limits.map(|limits| limits.read))),
        };
        let gate = gates.entry((subscription.to_ascii_lowercase(), kind));
        work(gate.or_insert_with(|| ThrottleGate::new(limit, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn bucket_passes_a_burst_and_then_one_request_after_another() {
        let start = Instant::now();
        let never = start + 3600 * SECOND;
        let mut bucket = TokenBucket::new(RateLimit { qps: 2.0, bucket: 3 }, start);
        let turns: Vec<_> = (0..6).map(|_| bucket.take(start, never).unwrap() - start).collect();
        assert_eq!(turns, [0, 0, 0, 500, 1000, 1500].map(Duration::from_millis));
        // A request that would be too late takes no place in the queue.
        assert_eq!(bucket.take(start, start + SECOND), None);
        assert_eq!(bucket.take(start, never), Some(start + 2 * SECOND));
        // Refilled, and never above its capacity.
        let later = start + 60 * SECOND;
        let turns = [(); 4].map(|()| bucket.take(later, never + 60 * SECOND).unwrap() - later);
        assert_eq!(turns, [0, 0, 0, 500].map(Duration::from_millis));
        // In a second it gets two tokens, and one of them was taken before.
        let turns = [(); 2].map(|()| bucket.take(later + SECOND, never + 60 * SECOND).unwrap() - later);
        assert_eq!(turns, [1000, 1500].map(Duration::from_millis));
    }

    #[test]
    fn bucket_without_refill_gives_its_first_token_only() {
        let start = Instant::now();
        for qps in [0.0, -1.0, f64::NAN] {
            let mut bucket = TokenBucket::new(RateLimit { qps, bucket: 0 }, start);
            assert_eq!(bucket.take(start, start + SECOND), Some(start), "{qps}");
            assert_eq!(bucket.take(start, start + SECOND), None, "{qps}");
        }
    }

    #[test]
    fn gate_opens_at_the_exact_instant() {
        let start = Instant::now();
        let by = start + 60 * SECOND;
        let mut gate = ThrottleGate::new(None, start);
        assert_eq!(gate.enter(start, by).unwrap(), start);
        gate.close(start + 10 * SECOND);
        gate.close(start + 5 * SECOND);
        let last = start + Duration::from_millis(9999);
        let closed = gate.enter(last, by);
        assert!(matches!(closed, Err(ArmError::Throttled { until }) if until == start + 10 * SECOND));
        assert_eq!(gate.enter(start + 10 * SECOND, by).unwrap(), start + 10 * SECOND);
    }

    #[test]
    fn lookups_get_half_of_the_limit_of_reads() {
        let limit = |qps, bucket| RateLimit { qps, bucket };
        let arm = limit(12.5, 125);
        assert_eq!(lookup_limit(None), arm);
        assert_eq!(lookup_limit(Some(limit(1.0, 5))), limit(0.5, 2));
        assert_eq!(lookup_limit(Some(limit(100.0, 1000))), arm);
        // However many wait, another read is sent at once.
        let (start, read, write) = (Instant::now(), limit(1.0, 5), limit(1.0, 1));
        let limits = RateLimits { read, write };
        let gates = ThrottleGates::new(Some(limits), Clock::System);
        let enter = |kind| gates.enter("s", kind, start, start + 60 * SECOND).unwrap() - start;
        let turns = [(); 4].map(|()| enter(RequestKind::Lookup));
        assert_eq!(turns, [0, 0, 2, 4].map(|seconds| seconds * SECOND));
        assert_eq!(enter(RequestKind::Read), Duration::ZERO);
    }

    #[test]
    fn closed_gate_says_until_when() {
        let gates = ThrottleGates::new(None, Clock::System);
        let until = Instant::now() + 60 * SECOND;
        gates.close("S", RequestKind::Write, until);
        assert_eq!(gates.closed_until("s", RequestKind::Write), Some(until));
        assert_eq!(gates.closed_until("s", RequestKind::Read), None);
    }
}
