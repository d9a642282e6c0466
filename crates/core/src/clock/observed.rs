//! How long ago another process wrote what this one observes.
//!
//! Invariant: the age of a value counts on the own monotonic clock, from when this process observed it. Only the first value takes an
//! age from elsewhere, usually from its writer's wall clock, so that a restart prolongs nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Moment;

/// What another process writes again and again, or not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed<T> {
    current: Option<Current<T>>,
    has_observed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Current<T> {
    value: T,
    observed_at: Instant,
    /// At that time.
    age: Duration,
}

impl<T> Default for Observed<T> {
    fn default() -> Self {
        Self {
            current: None,
            has_observed: false,
        }
    }
}

impl<T: PartialEq> Observed<T> {
    /// Adopts what is there now. The same value grows older; another one is new, apart from the first of all, whose age is
    /// `first_age`.
    pub fn observe(&mut self, value: Option<T>, first_age: impl FnOnce(&T) -> Duration, now: Moment) {
        let Some(value) = value else {
            self.current = None;
            return;
        };
        if self.current.as_ref().is_some_and(|known| known.value == value) {
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_observed, true);
        self.current = Some(Current {
            age: if is_first { first_age(&value) } else { Duration::ZERO },
            value,
            observed_at: now.mono,
        });
    }

    /// Replaces the present value by one that is as old.
    pub fn replace(&mut self, value: T) {
        if let Some(current) = &mut self.current {
            current.value = value;
        }
    }

    /// What is there now.
    pub fn value(&self) -> Option<&T> {
        self.current.as_ref().map(|current| &current.value)
    }

    /// How old the present value is at `now`.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let current = self.current.as_ref()?;
        Some(
            current
                .age
                .saturating_add(now.saturating_duration_since(current.observed_at)),
        )
    }

    /// When the present value is older than `ttl`.
    pub fn expires_at(&self, ttl: Duration) -> Option<Instant> {
        let current = self.current.as_ref()?;
        Some(current.observed_at + ttl.saturating_sub(current.age))
    }

    /// Makes the time from `since` to `now` not count.
    pub fn pause(&mut self, since: Instant, now: Instant) {
        if let Some(current) = &mut self.current {
            let since = since.max(current.observed_at);
            current.observed_at += now.saturating_duration_since(since);
        }
    }
}

/// The time since `at` by the wall clock; 0 for a time in the future.
pub fn age_by_wall_clock(at: jiff::Timestamp, now: Moment) -> Duration {
    Duration::try_from(now.wall.duration_since(at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const TTL: Duration = Duration::from_mins(3);

    #[test]
    fn only_the_first_value_has_an_age_from_elsewhere() {
        let start = Clock::System.now();
        let after = |seconds: u64| Moment {
            wall: start.wall,
            mono: start.mono + Duration::from_secs(seconds),
        };
        let age = |_: &&str| Duration::from_secs(100);
        let mut observed = Observed::default();
        observed.observe(None, age, after(0));
        assert_eq!((observed.value(), observed.expires_at(TTL)), (None, None));
        for (value, at, expected) in [
            (Some("a"), 10, Some(90)),
            (Some("a"), 50, Some(90)),
            (Some("b"), 60, Some(240)),
            (None, 70, None),
            (Some("b"), 80, Some(260)),
        ] {
            observed.observe(value, age, after(at));
            let expected = expected.map(|second| after(second).mono);
            assert_eq!(observed.expires_at(TTL), expected, "{value:?} at {at}");
            assert_eq!(observed.value(), value.as_ref());
        }
        observed.pause(after(20).mono, after(100).mono);
        assert_eq!(observed.expires_at(TTL), Some(after(280).mono), "from its observation");
        observed.pause(after(100).mono, after(130).mono);
        assert_eq!(observed.expires_at(TTL), Some(after(310).mono));
        observed.replace("c");
        assert_eq!(observed.value(), Some(&"c"));
        assert_eq!(observed.expires_at(TTL), Some(after(310).mono));
        let mut expired = Observed::default();
        expired.observe(Some("a"), |_| Duration::MAX, after(5));
        assert_eq!(expired.expires_at(TTL), Some(after(5).mono));
        assert_eq!(expired.age(after(0).mono), Some(Duration::MAX));
        assert_eq!(observed.age(after(140).mono), Some(Duration::from_secs(10)));
    }

    #[test]
    fn wall_clocks_that_disagree_give_no_negative_age() {
        let now = Clock::System.now();
        for (offset, expected) in [(-100, 100), (0, 0), (50, 0)] {
            let at = now.wall + jiff::SignedDuration::from_secs(offset);
            assert_eq!(age_by_wall_clock(at, now).as_secs(), expected, "{offset}");
        }
    }
}
