//! What can be set about the emulator, at its start and while it runs.

use std::time::Duration;

use headgate_settings::duration_text;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::throttle::ThrottleSettings;

/// Settings, as `GET /emulator/v1/settings` shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Time from an accepted write to the end of its operation.
    #[serde(with = "text")]
    pub operation_delay: Duration,
    /// `Retry-After` of an operation in progress, in whole seconds: Azure's is not recorded. 10 fits what
    /// old recordings show of a pool's PUT.
    pub poll_retry_after: u64,
    /// Items on a page of a list.
    pub page_size: usize,
    /// Whether an admin state that was set back to None is shown as `None` or left out; both may be.
    pub admin_state_none: AdminStateNone,
    /// How many requests are let through.
    pub throttle: ThrottleSettings,
}

/// How an admin state that was set back to None is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum AdminStateNone {
    /// As if it never had been set.
    #[default]
    Omitted,
    /// As `"adminState": "None"`.
    Shown,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operation_delay: Duration::from_secs(1),
            poll_retry_after: 1,
            page_size: 100,
            admin_state_none: AdminStateNone::default(),
            throttle: ThrottleSettings::default(),
        }
    }
}

impl Settings {
    /// The longest operation: longer than anybody waits.
    pub const MAX_OPERATION_DELAY: Duration = Duration::from_hours(24);
    /// The longest wait between two questions about an operation, as ARM's contract has it, in seconds.
    pub const MAX_POLL_RETRY_AFTER_SECONDS: u64 = 600;

    /// Itself, if it can be.
    ///
    /// # Errors
    /// What cannot be, and what could.
    pub(super) fn checked(self) -> Result<Self, String> {
        if !(1..=usize::from(u16::MAX)).contains(&self.page_size) {
            return Err(format!("pageSize must be a whole number from 1 to {}", u16::MAX));
        }
        if self.poll_retry_after > Self::MAX_POLL_RETRY_AFTER_SECONDS {
            return Err(format!(
                "pollRetryAfter must be a whole number of seconds up to {}",
                Self::MAX_POLL_RETRY_AFTER_SECONDS
            ));
        }
        Ok(self)
    }

    pub(super) fn shows_none(&self) -> bool {
        self.admin_state_none == AdminStateNone::Shown
    }
}

/// Durations as settings spell them, `1m30s`.
pub(super) mod text {
    use super::{Deserialize, Deserializer, Duration, Serializer, SignedDuration, duration_text};

    pub(in super::super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration_text(*duration))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = text.parse::<SignedDuration>().ok();
        let duration = parsed.and_then(|signed| Duration::try_from(signed).ok());
        duration
            .filter(|duration| *duration <= super::Settings::MAX_OPERATION_DELAY)
            .ok_or_else(|| {
                serde::de::Error::custom(format!(
                    "{text:?} is not a duration up to 24h with its unit, such as 500ms or 2s"
                ))
            })
    }
}
