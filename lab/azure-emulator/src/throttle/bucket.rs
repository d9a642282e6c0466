//! A token bucket: the tokens in it, and the wait when it is empty.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The longest time between two tokens, for rates near zero.
const MAX_INTERVAL: Duration = Duration::from_hours(1);

/// Characters kept of the name of a subscription or a principal, which come from the request.
const MAX_NAME_CHARS: usize = 100;

/// The size of a bucket, and how fast it refills.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Tokens in a full bucket: the requests that may come at once.
    pub capacity: u32,
    /// Tokens added each second.
    pub refill_per_second: f64,
}

impl RateLimit {
    pub(super) fn new(capacity: u32, refill_per_second: f64) -> Self {
        Self {
            capacity,
            refill_per_second,
        }
    }

    /// The time between two tokens. A rate that is not positive counts as the slowest.
    fn interval(self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.refill_per_second)
            .unwrap_or(MAX_INTERVAL)
            .clamp(Duration::from_nanos(1), MAX_INTERVAL)
    }

    /// The limit for `factor` principals together.
    pub(super) fn times(self, factor: u32) -> Self {
        Self {
            capacity: self.capacity.saturating_mul(factor),
            refill_per_second: self.refill_per_second * f64::from(factor),
        }
    }
}

/// The requests that share a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Scope {
    /// One principal's to one subscription.
    Principal,
    /// All principals' to one subscription.
    Global,
    /// One principal's to the network provider.
    Network,
}

impl Scope {
    /// The scope as the control API shows it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Global => "global",
            Self::Network => "network",
        }
    }
}

/// A name as part of a key: lower case and bounded.
pub(super) fn key_name(text: &str) -> String {
    text.chars().take(MAX_NAME_CHARS).flat_map(char::to_lowercase).collect()
}

/// A token bucket; its tokens follow from the time when it will be full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// When the bucket will be full.
    pub(super) full_at: Instant,
    /// Until when all requests are refused, after one was.
    pub(super) closed_until: Option<Instant>,
    pub(super) limit: RateLimit,
}

impl Bucket {
    pub(super) fn full(limit: RateLimit, now: Instant) -> Self {
        Self {
            full_at: now,
            closed_until: None,
            limit,
        }
    }

    /// Whether the bucket is full and refuses nothing, so that it can be dropped.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now && self.closed_until.is_none_or(|until| until <= now)
    }

    /// The whole tokens in the bucket.
    pub(super) fn tokens(&self, now: Instant) -> u32 {
        let interval = self.limit.interval().as_nanos();
        let missing = self
            .full_at
            .saturating_duration_since(now)
            .as_nanos()
            .div_ceil(interval);
        self.limit
            .capacity
            .saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.limit.interval();
    }

    /// `None` if there is a token. Otherwise the wait in seconds, for which the bucket refuses all requests.
    pub(super) fn wait(&mut self, scope: Scope, now: Instant) -> Option<u64> {
        if let Some(until) = self.closed_until.filter(|until| *until > now) {
            return Some(whole_seconds(until - now));
        }
        self.closed_until = None;
        if self.tokens(now) > 0 {
            return None;
        }
        let until_full = self.full_at.saturating_duration_since(now);
        let wait = whole_seconds(match scope {
            Scope::Principal | Scope::Global => until_full,
            // Guess: the time to the next token. Five minutes to the full bucket would be longer than any client waits
            // (Go's gives up above 60 seconds).
            Scope::Network => until_full.saturating_sub(self.limit.interval() * self.limit.capacity.saturating_sub(1)),
        });
        self.closed_until = Some(now + Duration::from_secs(wait));
        Some(wait)
    }
}

/// Seconds, rounded up; at least one.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    (wait.as_secs() + up).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_refills_and_an_empty_one_refuses_until_it_is_full() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RateLimit::new(4, 2.0), start);
        // Milliseconds, the wait in the answer, tokens afterwards.
        for (at, wait, tokens) in [
            (0, None, 3),
            (0, None, 2),
            (0, None, 1),
            (499, None, 0),
            // The first token is back and is taken. Then the bucket is empty, and full again in 2 seconds.
            (500, None, 0),
            (500, Some(2), 0),
            (1500, Some(1), 2),
            (2499, Some(1), 3),
            (2500, None, 3),
            (9000, None, 3),
        ] {
            let now = start + Duration::from_millis(at);
            let waited = bucket.wait(Scope::Principal, now);
            if waited.is_none() {
                bucket.take(now);
            }
            assert_eq!((waited, bucket.tokens(now)), (wait, tokens), "at {at} ms");
        }
        assert!(!bucket.is_full(start + Duration::from_secs(9)));
        assert!(bucket.is_full(start + Duration::from_millis(9500)));
    }

    #[test]
    fn invalid_rates_neither_panic_nor_let_requests_through() {
        let now = Instant::now();
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX] {
            for capacity in [0, 1, u32::MAX] {
                let limit = RateLimit::new(capacity, rate);
                for scope in [Scope::Principal, Scope::Network] {
                    let mut bucket = Bucket::full(limit.times(15), now);
                    let waited = bucket.wait(scope, now);
                    assert_eq!(waited.is_some(), capacity == 0, "{capacity} {rate}");
                    bucket.take(now);
                    bucket.wait(scope, now);
                }
            }
        }
    }
}
