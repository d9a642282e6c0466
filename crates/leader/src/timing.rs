//! How long a Lease lasts, and how often each candidate looks at it.
//!
//! Invariant: a holder gives up well before a candidate may take over. Pure: chance is a number that is carried
//! along.

use std::time::Duration;

/// No Lease lasts longer; what a record says beyond it is not believed.
pub(super) const LONGEST_LEASE: Duration = Duration::from_mins(5);
/// What each candidate adds to everybody's interval.
const PER_CANDIDATE: Duration = Duration::from_millis(100);
/// The longest interval.
const LONGEST_INTERVAL: Duration = Duration::from_mins(5);
/// The interval while nobody has said how many candidates there are: that of 300.
const UNKNOWN_INTERVAL: Duration = Duration::from_secs(30);
/// The first look comes within this time, so that a whole fleet that starts at once does not look at once.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// What chance adds to an interval at most, as a part of it.
const JITTER: f64 = 0.2;

/// The times of a Lease, as client-go names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Why these times make no election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The API knows seconds only.
    #[error("a lease duration of {0:?} is not possible; give whole seconds from 1 to {max}", max = LONGEST_LEASE.as_secs())]
    LeaseDuration(Duration),
    /// Two leaders would be possible.
    #[error("the renew deadline, {renew:?}, has to be shorter than the lease duration, {lease:?}")]
    RenewDeadline {
        /// The deadline.
        renew: Duration,
        /// The duration.
        lease: Duration,
    },
    /// One failed request would end a term.
    #[error("the retry period, {retry:?}, may be at most half of the renew deadline, {renew:?}, and not zero")]
    RetryPeriod {
        /// The period.
        retry: Duration,
        /// The deadline.
        renew: Duration,
    },
}

impl Default for Timing {
    /// client-go's.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl Timing {
    /// A Lease that lasts `lease` after it was last seen to change, whose holder gives up `renew` after its last
    /// good write and tries each `retry`.
    ///
    /// # Errors
    /// When two leaders, or none, would come of it.
    pub fn new(lease: Duration, renew: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease.subsec_nanos() != 0 || lease.is_zero() || lease > LONGEST_LEASE {
            return Err(TimingError::LeaseDuration(lease));
        }
        if renew >= lease {
            return Err(TimingError::RenewDeadline { renew, lease });
        }
        if retry.is_zero() || retry > renew / 2 {
            return Err(TimingError::RetryPeriod { retry, renew });
        }
        Ok(Self {
            lease_duration: lease,
            renew_deadline: renew,
            retry_period: retry,
        })
    }

    /// How long a record has to be seen unchanged before it may be taken.
    #[must_use]
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// How long a term lasts after the start of its last good write.
    #[must_use]
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// From the start of one renewal to that of the next.
    #[must_use]
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }

    /// Bound on one request: three that hang fit into a term.
    pub(super) fn request_timeout(&self) -> Duration {
        self.renew_deadline * 3 / 10
    }

    /// What a living holder's record is at most behind: one renewal that failed.
    pub(super) fn freshness(&self) -> Duration {
        self.lease_duration / 3
    }

    /// For so long more one with a signal leaves a free Lease to others: a lease duration, and less where all others look
    /// twice in less.
    pub(super) fn stood_back(&self, candidates: Option<u32>) -> Duration {
        self.lease_duration
            .min(2 * self.interval(candidates).mul_f64(1.0 + JITTER))
    }

    /// From one look to the next, before chance has its part: what finds a dead leader is the looks of all.
    pub(super) fn interval(&self, candidates: Option<u32>) -> Duration {
        candidates.map_or(UNKNOWN_INTERVAL, |candidates| {
            let shared = PER_CANDIDATE.saturating_mul(candidates);
            shared.min(LONGEST_INTERVAL).max(self.retry_period)
        })
    }
}

/// Chance, the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 up to 1.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let top = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or_default();
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }

    /// An interval with its part of chance.
    pub(super) fn jitter(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(1.0 + JITTER * self.part())
    }

    /// Any time within the mean of an interval with its part of chance, which keeps a fleet's rate even.
    pub(super) fn spread(&mut self, interval: Duration) -> Duration {
        interval.mul_f64((1.0 + JITTER / 2.0) * self.part())
    }

    /// When the first look comes after the start.
    pub(super) fn first_look(&mut self) -> Duration {
        FIRST_LOOK.mul_f64(self.part())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_make_no_election_are_refused() {
        let of = |lease, renew, retry| {
            let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_millis);
            Timing::new(lease, renew, retry).map_err(|error| error.to_string())
        };
        assert_eq!(of(15_000, 10_000, 2000), Ok(Timing::default()));
        for (times, told) in [
            (
                [0, 0, 0],
                "a lease duration of 0ns is not possible; give whole seconds from 1 to 300",
            ),
            (
                [1500, 1000, 200],
                "a lease duration of 1.5s is not possible; give whole seconds from 1 to 300",
            ),
            (
                [301_000, 1000, 200],
                "a lease duration of 301s is not possible; give whole seconds from 1 to 300",
            ),
            (
                [15_000, 15_000, 2000],
                "the renew deadline, 15s, has to be shorter than the lease duration, 15s",
            ),
            (
                [15_000, 10_000, 5001],
                "the retry period, 5.001s, may be at most half of the renew deadline, 10s, and not zero",
            ),
            (
                [15_000, 10_000, 0],
                "the retry period, 0ns, may be at most half of the renew deadline, 10s, and not zero",
            ),
        ] {
            assert_eq!(of(times[0], times[1], times[2]).unwrap_err(), told);
        }
    }

    #[test]
    fn the_more_candidates_the_rarer_each_looks() {
        let interval = |candidates| Timing::default().interval(candidates).as_millis();
        for (candidates, millis) in [
            (0, 2000),
            (2, 2000),
            (20, 2000),
            (21, 2100),
            (150, 15_000),
            (1000, 100_000),
            (3000, 300_000),
            (5000, 300_000),
            (u32::MAX, 300_000),
        ] {
            assert_eq!(interval(Some(candidates)), millis, "{candidates}");
        }
        assert_eq!(interval(None), 30_000);
    }

    #[test]
    fn chance_is_spread_evenly_and_only_makes_longer() {
        let mut chance = Chance::new(7);
        let second = Duration::from_secs(1);
        let all: Vec<_> = (0..10_000).map(|_| chance.jitter(second)).collect();
        assert!(all.iter().all(|each| *each >= second && *each < second.mul_f64(1.2)));
        let mean = all.iter().sum::<Duration>() / 10_000;
        assert!(mean > second.mul_f64(1.098) && mean < second.mul_f64(1.102), "{mean:?}");
        assert!((0..1000).all(|_| chance.first_look() < FIRST_LOOK));
    }
}
