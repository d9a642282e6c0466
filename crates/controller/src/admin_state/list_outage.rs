//! What follows for the election when load balancers cannot be listed: whether the leader is unable to do its work. Pure.
//!
//! Only lists that are due count, and time spent throttled does not: then every other instance would be throttled as well.

use std::time::Duration;

use headgate_core::clock::Moment;
use headgate_kubernetes::leader::{Inability, InabilityReason};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::pool::{ListOutage, Listing};

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
            last_success: listing.requested_at.map(|at| now.whole_second_at(at)),
            failing_since: outage.map(|outage| now.whole_second_at(outage.since)),
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
}
