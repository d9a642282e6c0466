//! How often changes of Nodes are published: each publication leads to a plan of every load balancer. Pure.
//!
//! A change is published at once, and so are [`BURST`] in a row. In a longer series one publication in [`INTERVAL`] has all
//! changes since the last one. Where what follows from a publication takes time, the next one comes as much later: the watch of the Nodes
//! has the same thread, and would fall behind. A receiver sees the same state in the end, later by at most [`INTERVAL`] or by as long
//! as that took, a second at most.

use std::time::Duration;

use headgate_core::clock::pause_after;
use tokio::time::Instant;

/// Between two publications of a long series.
const INTERVAL: Duration = Duration::from_millis(100);
/// Publications that are not delayed.
const BURST: u32 = 5;

/// Limits a rate as a token bucket does.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublishLimit {
    /// When the bucket is full again.
    full_at: Instant,
    /// Until when nothing is published.
    rests_until: Instant,
}

impl PublishLimit {
    /// A limit that has not been used yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            full_at: now,
            rests_until: now,
        }
    }

    /// When the next publication is allowed.
    pub(super) fn next_publish(&self) -> Instant {
        let earlier = self.full_at.checked_sub((BURST - 1) * INTERVAL);
        earlier.unwrap_or(self.full_at).max(self.rests_until)
    }

    /// Keeps half of the time free of what follows from a publication, which took this long and is over.
    pub(super) fn rest(&mut self, now: Instant, took: Duration) {
        self.rests_until = now + pause_after(took, 1);
    }

    /// Counts a publication if it is allowed now.
    pub(super) fn try_publish(&mut self, now: Instant) -> bool {
        let is_allowed = self.next_publish() <= now;
        if is_allowed {
            self.full_at = self.full_at.max(now) + INTERVAL;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Publishes changes at these times, as the watch does. Returns the times of publications and how many changes each has.
    fn publish(changes: &[Instant], start: Instant) -> Vec<(Instant, usize)> {
        let mut limit = PublishLimit::new(start);
        let (mut published, mut waiting) = (Vec::new(), 0);
        for (index, change) in changes.iter().enumerate() {
            waiting += 1;
            let next = changes.get(index + 1);
            let due = limit.next_publish().max(*change);
            if next.is_none_or(|next| due <= *next) {
                assert!(limit.try_publish(due));
                published.push((due, waiting));
                waiting = 0;
            } else {
                assert!(!limit.try_publish(*change));
            }
        }
        published
    }

    proptest! {
        #[test]
        fn every_change_is_published_within_the_interval_and_the_rate_is_bounded(
            gaps in prop::collection::vec(prop_oneof![0..5_u64, 0..300_u64], 1..200),
        ) {
            let start = Instant::now() + INTERVAL * BURST;
            let mut at = start;
            let changes: Vec<_> = gaps.iter().map(|gap| { at += Duration::from_millis(*gap); at }).collect();
            let published = publish(&changes, start);
            prop_assert_eq!(published.iter().map(|(_, count)| count).sum::<usize>(), changes.len());
            let mut first = 0;
            for (time, count) in &published {
                prop_assert!(*time >= changes[first] && *time <= changes[first] + INTERVAL);
                first += count;
            }
            let length = published.last().map(|(last, _)| last.duration_since(start)).unwrap_or_default();
            let most = length.as_millis() / INTERVAL.as_millis() + u128::from(BURST) + 1;
            prop_assert!((published.len() as u128) <= most, "{} in {length:?}", published.len());
        }
    }

    #[test]
    fn a_rest_is_as_long_as_what_it_follows() {
        let start = Instant::now();
        let mut limit = PublishLimit::new(start);
        assert!(limit.try_publish(start));
        let end = start + 2 * INTERVAL;
        limit.rest(end, 2 * INTERVAL);
        assert_eq!(limit.next_publish(), end + 2 * INTERVAL);
    }

    #[test]
    fn single_changes_are_not_delayed() {
        let start = Instant::now() + INTERVAL * BURST;
        let changes: Vec<_> = (0..50).map(|number| start + number * INTERVAL).collect();
        for (change, (published, count)) in changes.iter().zip(publish(&changes, start)) {
            assert_eq!((*change, 1), (published, count));
        }
        let burst = vec![start; 5];
        let at: Vec<_> = publish(&burst, start).into_iter().map(|(at, _)| at).collect();
        assert_eq!(at, burst);
        let (last, _) = publish(&[start; 6], start).pop().unwrap();
        assert_eq!(last, start + INTERVAL, "one more waits");
    }
}
