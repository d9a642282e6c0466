//! What follows for the election when load balancers cannot be listed: whether the leader is unable to do its work, and until
//! when ARM throttles the requests of the next one, too. Pure.
//!
//! Only lists that are due count, and time spent throttled does not: then every other instance would be throttled as well.

use std::time::Duration;

use headgate_azure::ThrottledUntil;
use headgate_core::clock::Moment;
use headgate_kubernetes::leader::{Inability, InabilityReason, ThrottleDeadlines};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::pool::{ListOutage, Listing};

/// Throttle deadlines that differ by less are the same one, read at different times.
const DEADLINE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// What a listing says about lists that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListState {
    /// When the last successful list was sent.
    pub(super) last_success: Option<Timestamp>,
    /// Since when lists fail, if any is due.
    pub(super) failing_since: Option<Timestamp>,
    /// When they have failed for too long, if they do not succeed before.
    pub(super) unable_at: Option<Instant>,
}

impl ListState {
    /// `timeout` is for how long lists may fail; `is_due` whether any list is due at all.
    pub(super) fn new(listing: &Listing, is_due: bool, timeout: Duration, now: Moment) -> Self {
        let outage = listing.outage.filter(|_| is_due);
        Self {
            last_success: listing.requested_at.map(|at| wall_time(at, now)),
            failing_since: outage.map(|outage| wall_time(outage.since, now)),
            unable_at: outage.map(|ListOutage { since, throttled }| since + throttled + timeout),
        }
    }

    /// The report to the election.
    pub(super) fn inability(&self, now: Instant) -> Option<Inability> {
        let since = self.failing_since?;
        self.unable_at.filter(|at| now >= *at).map(|_| Inability {
            reason: InabilityReason::Lists,
            since,
        })
    }
}

/// The deadlines of this process for others. Those of `known` stay as they are if they are the same.
pub(super) fn to_deadlines(until: ThrottledUntil, known: ThrottleDeadlines, now: Moment) -> ThrottleDeadlines {
    let deadline = |until: Option<Instant>, known: Option<Timestamp>| {
        let found = wall_time(until?, now);
        known
            .filter(|known| found.duration_since(*known).abs() < DEADLINE_PRECISION)
            .or(Some(found))
    };
    ThrottleDeadlines {
        reads: deadline(until.reads, known.reads),
        writes: deadline(until.writes, known.writes),
    }
}

/// The deadlines of another process, on this one's clock.
pub(super) fn from_deadlines(deadlines: ThrottleDeadlines, now: Moment) -> ThrottledUntil {
    let deadlines = deadlines.remaining(now.wall);
    let until = |deadline: Option<Timestamp>| {
        let wait = Duration::try_from(deadline?.duration_since(now.wall)).unwrap_or_default();
        Some(now.mono + wait)
    };
    ThrottledUntil {
        reads: until(deadlines.reads),
        writes: until(deadlines.writes),
    }
}

/// The wall-clock time of an instant, to the next second, so that no request comes before a deadline.
fn wall_time(at: Instant, now: Moment) -> Timestamp {
    let exact = now.wall_at(at);
    let seconds = exact.as_second() + i64::from(exact.subsec_nanosecond() > 0);
    Timestamp::from_second(seconds).unwrap_or(exact)
}

#[cfg(test)]
mod tests {
    use headgate_core::clock::Clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_mins(2);

    fn listing(outage: Option<ListOutage>) -> Listing {
        Listing {
            outage,
            ..Listing::default()
        }
    }

    #[test]
    fn lists_that_are_due_may_fail_for_the_timeout_without_the_throttled_time() {
        let now = Clock::System.now();
        for (throttled, is_due, after, is_unable) in [
            (0, true, 119, false),
            (0, true, 120, true),
            (0, false, 500, false),
            (300, true, 419, false),
            (300, true, 420, true),
        ] {
            let outage = ListOutage {
                since: now.mono,
                throttled: throttled * SECOND,
            };
            let state = ListState::new(&listing(Some(outage)), is_due, TIMEOUT, now);
            let found = state.inability(now.mono + after * SECOND);
            assert_eq!(found.is_some(), is_unable, "{throttled} {is_due} {after}");
        }
        assert_eq!(ListState::new(&listing(None), true, TIMEOUT, now), ListState::default());
    }

    #[test]
    fn a_throttle_deadline_is_the_same_on_both_sides() {
        let now = Clock::System.now();
        let until = ThrottledUntil {
            reads: Some(now.mono + 90 * SECOND),
            writes: None,
        };
        let deadlines = to_deadlines(until, ThrottleDeadlines::default(), now);
        let obeyed = from_deadlines(deadlines, now);
        let reads = obeyed.reads.unwrap() - now.mono;
        assert!(reads >= 90 * SECOND && reads < 91 * SECOND, "{reads:?}");
        assert_eq!(obeyed.writes, None);
        let later = Moment {
            wall: now.wall + SignedDuration::from_millis(1_700),
            mono: now.mono + Duration::from_millis(1_700),
        };
        assert_eq!(to_deadlines(until, deadlines, later), deadlines, "not written again");
        let moved = |by: i64| ThrottleDeadlines {
            reads: deadlines.reads.map(|at| at + SignedDuration::from_millis(by)),
            writes: None,
        };
        for (known, expected) in [(moved(-999), moved(-999)), (moved(1000), deadlines)] {
            assert_eq!(to_deadlines(until, known, now), expected);
        }
    }

    #[test]
    fn wall_times_are_whole_seconds_and_not_too_early() {
        let mono = Clock::System.now().mono;
        for (milliseconds, second) in [(0, 90), (1, 91), (999, 91)] {
            let wall = Timestamp::from_millisecond(milliseconds).unwrap();
            let found = wall_time(mono + 90 * SECOND, Moment { wall, mono });
            assert_eq!(found.as_millisecond(), second * 1000, "{milliseconds}");
        }
    }
}
