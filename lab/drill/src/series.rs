//! New connections counted by second, for plots over time.

use serde::{Deserialize, Serialize};

use crate::result::Attempt;

/// The new connections that clients began in one second of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Second {
    /// The second's beginning, since the first connection.
    pub t: u32,
    /// How many clients began.
    pub attempted: u32,
    /// Those without an answer in time.
    pub failed: u32,
}

/// Counts connections by the second in which they began. They must be in order.
pub(crate) fn per_second(attempts: &[Attempt]) -> Vec<Second> {
    let mut seconds: Vec<Second> = Vec::new();
    for attempt in attempts {
        let t = u32::try_from(attempt.at.as_secs()).unwrap_or(u32::MAX);
        if seconds.last().is_none_or(|last| last.t != t) {
            seconds.push(Second {
                t,
                attempted: 0,
                failed: 0,
            });
        }
        if let Some(second) = seconds.last_mut() {
            second.attempted += 1;
            second.failed += u32::from(!attempt.succeeded);
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn connections_are_counted_by_the_second_in_which_they_began() {
        let attempt = |tenths: u32| Attempt {
            at: Duration::from_millis(100) * tenths,
            succeeded: !(10..13).contains(&tenths),
        };
        let attempts: Vec<_> = (0..20).chain([45]).map(attempt).collect();
        let second = |t: u32, attempted: u32, failed: u32| Second { t, attempted, failed };
        assert_eq!(
            per_second(&attempts),
            [second(0, 10, 0), second(1, 10, 3), second(4, 1, 0)]
        );
        assert_eq!(
            serde_json::to_value(second(1, 10, 3)).unwrap(),
            serde_json::json!({"t": 1, "attempted": 10, "failed": 3})
        );
        assert!(per_second(&[]).is_empty());
    }
}
