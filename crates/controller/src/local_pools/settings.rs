//! The updater's settings, with the defaults and limits of `azure.json`.
//!
//! Source: cloud-provider-azure `loadBalancerBackendPoolUpdateIntervalInSeconds`,
//! `loadBalancerBackendPoolUpdateMaxRetries`.

use std::time::Duration;

/// The default time between two ticks of the updater.
pub const DEFAULT_UPDATE_INTERVAL: Duration = Duration::from_secs(30);
/// Attempts after the first.
pub const DEFAULT_MAX_RETRIES: u32 = 3;

/// The most attempts after the first; 0 means that a retriable failure is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxRetries(u32);

impl MaxRetries {
    /// From `loadBalancerBackendPoolUpdateMaxRetries`: absent is 3, and negative is 0.
    pub fn from_config(value: Option<i64>) -> Self {
        Self(value.map_or(DEFAULT_MAX_RETRIES, |value| {
            u32::try_from(value.max(0)).unwrap_or(u32::MAX)
        }))
    }

    /// The number of retries.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for MaxRetries {
    fn default() -> Self {
        Self(DEFAULT_MAX_RETRIES)
    }
}

/// The time between two ticks: `loadBalancerBackendPoolUpdateIntervalInSeconds`, where absent, 0 and negative mean 30 s.
pub fn update_interval(config_seconds: Option<i64>) -> Duration {
    let seconds = config_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|seconds| *seconds > 0);
    seconds.map_or(DEFAULT_UPDATE_INTERVAL, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries() {
        for (value, retries) in [
            (None, 3),
            (Some(0), 0),
            (Some(5), 5),
            (Some(-1), 0),
            (Some(i64::MAX), u32::MAX),
        ] {
            assert_eq!(MaxRetries::from_config(value).get(), retries, "{value:?}");
        }
        assert_eq!(MaxRetries::default(), MaxRetries::from_config(None));
    }

    #[test]
    fn intervals() {
        for (config, interval) in [(None, 30), (Some(0), 30), (Some(-5), 30), (Some(7), 7)] {
            assert_eq!(update_interval(config), Duration::from_secs(interval), "{config:?}");
        }
    }
}
