//! How long to wait between counts. Pure.

use std::time::Duration;

/// The most time from the start of one count to the start of the next, so that a count holds until the next one ends, and two in a row
/// can find nothing.
const MAX_INTERVAL: Duration = Duration::from_secs(40);

/// The bound on what counting costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least time from the start of one count to the start of the next.
    pub least: Duration,
    /// The share of one core, in percent, that counting may take, as long as a count takes no more processor time than this share of 40 s: 2 s
    /// at 5 %, about 750,000 entries. Above that the share grows to 25 %, because a count is given up after 10 s.
    pub percent: u32,
}

impl Default for Interval {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(1),
            percent: 5,
        }
    }
}

impl Interval {
    /// The time from the start of a count that took this CPU time to the start of the next.
    pub fn after(&self, cpu_time: Duration) -> Duration {
        let needed = cpu_time.saturating_mul(100) / self.percent.clamp(1, 100);
        needed.max(self.least).min(MAX_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::TIMEOUT;
    use super::super::drained::STALE_AFTER;
    use super::*;

    #[test]
    fn counting_takes_its_share_at_most() {
        let millis = Duration::from_millis;
        for (percent, cpu_time, expected) in [
            (5, 0, 1_000),
            (5, 50, 1_000),
            (5, 51, 1_020),
            (5, 1_500, 30_000),
            (5, 2_000, 40_000),
            (5, 4_000, 40_000),
            (5, 10_000, 40_000),
            (100, 1_500, 1_500),
            (0, 100, 10_000),
            (200, 2_000, 2_000),
        ] {
            let interval = Interval {
                percent,
                ..Interval::default()
            };
            assert_eq!(
                interval.after(millis(cpu_time)),
                millis(expected),
                "{cpu_time} ms, {percent} %"
            );
        }
        let longest = Interval::default().after(Duration::MAX);
        assert!(longest + TIMEOUT < STALE_AFTER, "a count holds until the next one ends");
    }
}
