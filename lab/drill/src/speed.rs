//! Shortened time: a drill divides every interval and delay of its scenario by one factor.
//!
//! What is not of the scenario is not shortened: headgate's own work, the kernel, network latency on this machine. So at
//! a higher speed these look slower than they are. One bound of clients is not shortened either: they wait at least 0.9 real
//! seconds for an answer. So at a higher speed a stall of the network shorter than that is no loss.

use std::time::Duration;

/// Scenario seconds for each real second, from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(f64);

/// The speed is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the speed {0} is out of range; give a number from 1 (real time) to 100")]
pub struct SpeedError(f64);

impl Speed {
    pub(crate) const REAL_TIME: Self = Self(1.0);
    pub(crate) const DEFAULT: Self = Self(10.0);

    /// A factor.
    ///
    /// # Errors
    /// It is not from 1 to 100.
    pub fn new(factor: f64) -> Result<Self, SpeedError> {
        (1.0..=100.0)
            .contains(&factor)
            .then_some(Self(factor))
            .ok_or(SpeedError(factor))
    }

    /// The factor by which the scenario runs faster.
    pub const fn factor(self) -> f64 {
        self.0
    }

    /// How long a time of the scenario takes really.
    pub fn real(self, scenario: Duration) -> Duration {
        scenario.div_f64(self.0)
    }

    /// How long a real time is in the scenario.
    pub fn scenario(self, real: Duration) -> Duration {
        real.mul_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_and_real_times_convert_both_ways() {
        let speed = Speed::new(10.0).unwrap();
        assert_eq!(speed.real(Duration::from_secs(5)), Duration::from_millis(500));
        assert_eq!(speed.scenario(Duration::from_millis(500)), Duration::from_secs(5));
        for wrong in [0.5, 101.0, f64::NAN, f64::INFINITY] {
            assert!(Speed::new(wrong).is_err(), "{wrong}");
        }
    }
}
