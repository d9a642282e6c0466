//! One token bucket: how much there is, and how long to wait when there is nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Between two tokens of a bucket that hardly refills.
const LONGEST_INTERVAL: Duration = Duration::from_hours(1);

/// What is kept of a subscription's or a principal's name, which are whatever the request says.
const MAX_NAME: usize = 100;

/// The size of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Requests that may come at once.
    pub capacity: u32,
    /// Tokens that come back each second.
    pub refill_per_second: f64,
}

impl RateLimit {
    /// This many at once, and this many more each second.
    pub(super) fn new(capacity: u32, refill_per_second: f64) -> Self {
        Self {
            capacity,
            refill_per_second,
        }
    }

    /// The time one token takes to come back; a rate that is none counts as hardly any.
    fn interval(self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.refill_per_second)
            .unwrap_or(LONGEST_INTERVAL)
            .clamp(Duration::from_nanos(1), LONGEST_INTERVAL)
    }

    /// The same for this many principals together.
    pub(super) fn times(self, factor: u32) -> Self {
        Self {
            capacity: self.capacity.saturating_mul(factor),
            refill_per_second: self.refill_per_second * f64::from(factor),
        }
    }
}

/// Whose bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Scope {
    /// A principal's own in a subscription.
    Principal,
    /// All principals' together.
    Global,
    /// A principal's with the network provider.
    Network,
}

impl Scope {
    /// As the snapshot has it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Global => "global",
            Self::Network => "network",
        }
    }
}

/// A name as a key: without case, and not longer than names are.
pub(super) fn name(text: &str) -> String {
    text.chars().take(MAX_NAME).flat_map(char::to_lowercase).collect()
}

/// A bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// When there will be as many tokens as it holds.
    pub(super) full_at: Instant,
    /// Until when everything is refused, once something was.
    pub(super) shut_until: Option<Instant>,
    /// Its size.
    pub(super) limit: RateLimit,
}

impl Bucket {
    /// A full one.
    pub(super) fn full(limit: RateLimit, now: Instant) -> Self {
        Self {
            full_at: now,
            shut_until: None,
            limit,
        }
    }

    /// Whether it may be forgotten.
    pub(super) fn is_as_new(&self, now: Instant) -> bool {
        self.full_at <= now && self.shut_until.is_none_or(|until| until <= now)
    }

    /// Whole tokens that are there.
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

    /// Takes one token.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.limit.interval();
    }

    /// None if a token is there to be taken; else how many seconds to wait, and so shuts the bucket.
    pub(super) fn wait(&mut self, scope: Scope, now: Instant) -> Option<u64> {
        if let Some(until) = self.shut_until.filter(|until| *until > now) {
            return Some(whole_seconds(until - now));
        }
        self.shut_until = None;
        if self.tokens(now) > 0 {
            return None;
        }
        let until_full = self.full_at.saturating_duration_since(now);
        let wait = whole_seconds(match scope {
            Scope::Principal | Scope::Global => until_full,
            // A guess: five minutes to the full bucket would be more than any client waits (Go's gives up
            // above 60 seconds), so it is the time to the next request that may pass.
            Scope::Network => until_full.saturating_sub(self.limit.interval() * self.limit.capacity.saturating_sub(1)),
        });
        self.shut_until = Some(now + Duration::from_secs(wait));
        Some(wait)
    }
}

/// Seconds, rounded up; a wait is never none.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    (wait.as_secs() + up).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_it_holds_refills_and_shuts_until_it_is_full() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RateLimit::new(4, 2.0), start);
        // Milliseconds, the wait that was answered, tokens afterwards.
        for (at, wait, tokens) in [
            (0, None, 3),
            (0, None, 2),
            (0, None, 1),
            (499, None, 0),
            // The first token is back, and taken; then there is none, and full is 2 seconds away.
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
        assert!(!bucket.is_as_new(start + Duration::from_secs(9)));
        assert!(bucket.is_as_new(start + Duration::from_millis(9500)));
    }

    #[test]
    fn rates_that_are_none_neither_panic_nor_let_through() {
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
