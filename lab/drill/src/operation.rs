//! How long an operation of ARM takes: a time that grows with the pool, and that differs from run to run.
//!
//! Azure publishes neither. Within one run all operations take the same time, in the runs of every strategy with the same seed.

use std::time::Duration;

/// Times of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationTime {
    /// Of a pool without members.
    pub base: Duration,
    /// For each member of the pool.
    pub per_member: Duration,
    /// The share by which a run's time may be shorter or longer than the mean, from 0 to 1.
    pub spread: f64,
}

impl OperationTime {
    /// The mean for a pool of this size.
    pub fn mean(&self, members: usize) -> Duration {
        self.base + self.per_member * u32::try_from(members).unwrap_or(u32::MAX)
    }

    /// The time in the run with this seed: uniform around the mean.
    pub fn draw(&self, members: usize, seed: u64) -> Duration {
        let shift = (2.0 * fastrand::Rng::with_seed(seed).f64() - 1.0) * self.spread.clamp(0.0, 1.0);
        self.mean(members).mul_f64(1.0 + shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_take_longer_in_larger_pools_and_differ_from_run_to_run() {
        let time = OperationTime {
            base: Duration::from_secs(1),
            per_member: Duration::from_millis(10),
            spread: 0.5,
        };
        assert_eq!(time.mean(6), Duration::from_millis(1060));
        let drawn: Vec<_> = (0..1000).map(|seed| time.draw(100, seed).as_secs_f64()).collect();
        assert!(drawn.iter().all(|seconds| (1.0..=3.0).contains(seconds)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((mean - 2.0).abs() < 0.06, "three standard errors: {mean}");
        assert_eq!(time.draw(100, 7), time.draw(100, 7));
        let fixed = OperationTime { spread: 0.0, ..time };
        assert_eq!(fixed.draw(0, 1), fixed.base);
    }
}
