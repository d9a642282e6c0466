//! How long to wait between counts. Pure.

use std::time::Duration;

/// The bound on what counting costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least time from the start of one count to the start of the next.
    pub least: Duration,
    /// The share of one core that counting may take.
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
        needed.max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_takes_its_share_at_most() {
        let millis = Duration::from_millis;
        for (percent, cpu_time, expected) in [
            (5, 0, 1_000),
            (5, 50, 1_000),
            (5, 51, 1_020),
            (5, 1_500, 30_000),
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
        assert!(Interval::default().after(Duration::MAX) > Duration::from_hours(1));
    }
}
