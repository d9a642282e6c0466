//! The settings, which the flags set at the start and the control API changes.

use std::time::Duration;

use headgate_core::settings::format_duration;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::deviations::Deviations;
use super::throttle::ThrottleSettings;

/// The settings, as `GET /emulator/v1/settings` shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Time from the acceptance of a write to the end of its operation.
    #[serde(with = "duration_as_text")]
    pub operation_delay: Duration,
    /// `Retry-After` of an operation in progress, in seconds. Azure's is not recorded; 10 fits old recordings of a
    /// pool's PUT.
    pub poll_retry_after: u64,
    /// How far reads of resources lag writes: they show what was there this long ago. Whether Azure's do is not recorded.
    #[serde(with = "duration_as_text")]
    pub read_lag: Duration,
    /// Items on a page of a list.
    pub page_size: usize,
    /// Whether an admin state that was set back to `None` is shown or left out.
    pub admin_state_none: AdminStateNone,
    /// The limits of the token buckets.
    pub throttle: ThrottleSettings,
    /// Assumptions about Azure that are turned false.
    pub deviations: Deviations,
}

/// How an admin state that was set back to `None` is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AdminStateNone {
    /// The field is left out, as before it was set.
    #[default]
    Omitted,
    /// The field is shown as `"adminState": "None"`.
    Shown,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operation_delay: Duration::from_secs(1),
            poll_retry_after: 1,
            read_lag: Duration::ZERO,
            page_size: 100,
            admin_state_none: AdminStateNone::default(),
            throttle: ThrottleSettings::default(),
            deviations: Deviations::default(),
        }
    }
}

impl Settings {
    /// The upper bound of `operation_delay`.
    pub const MAX_OPERATION_DELAY: Duration = Duration::from_hours(24);
    /// The largest `poll_retry_after`, from ARM's contract.
    pub const MAX_POLL_RETRY_AFTER_SECONDS: u64 = 600;

    /// The settings with these changes, as `PUT /emulator/v1/settings` takes them.
    ///
    /// # Errors
    /// What is unknown, of another type, or out of bounds.
    pub fn changed(&self, changes: &Value) -> Result<Self, String> {
        let mut settings = serde_json::to_value(self).map_err(|error| error.to_string())?;
        json_patch::merge(&mut settings, changes);
        // Serde would accept a list of values in the order of the fields.
        let object = settings
            .is_object()
            .then_some(settings)
            .ok_or("they are not an object")?;
        let settings: Self = serde_json::from_value(object).map_err(|error| error.to_string())?;
        settings.validated()
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// The setting that is out of bounds, and its bounds.
    fn validated(self) -> Result<Self, String> {
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

/// A duration as text, where it may be left out.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DurationText(#[serde(with = "duration_as_text")] pub(super) Duration);

/// Serializes durations as text, such as `1m30s`.
pub(super) mod duration_as_text {
    use super::{Deserialize, Deserializer, Duration, Serializer, SignedDuration, format_duration};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
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
