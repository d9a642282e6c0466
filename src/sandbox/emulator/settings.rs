//! What can be set about the emulator, at its start and while it runs.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::throttle::ThrottleSettings;
use crate::config::duration_text;

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
    pub(super) fn shows_none(&self) -> bool {
        self.admin_state_none == AdminStateNone::Shown
    }
}

/// Durations as settings spell them, `1m30s`.
pub(super) mod text {
    use super::{Deserialize, Deserializer, Duration, Serializer, SignedDuration, duration_text};

    /// Longer than anybody waits.
    const MOST: Duration = Duration::from_hours(24);

    pub(in super::super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration_text(*duration))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = text.parse::<SignedDuration>().ok();
        let duration = parsed.and_then(|signed| Duration::try_from(signed).ok());
        duration.filter(|duration| *duration <= MOST).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{text:?} is not a duration up to 24h with its unit, such as 500ms or 2s"
            ))
        })
    }
}
