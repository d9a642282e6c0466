//! What is known of this VM's events: read by the taint's keeper, by the health port, metrics and people.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::document::Event;
use super::notice::Follow;

/// The signal of an eviction that IMDS announces.
pub const PREEMPT: &str = "azurePreempt";

/// The state of this VM's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// The name by which Azure knows this VM, once its Node has been seen.
    pub vm: Option<String>,
    /// The last document's number.
    pub incarnation: Option<i64>,
    /// The events of this VM in the last document.
    pub events: Vec<Event>,
    /// The eviction that follows from this and earlier documents.
    #[serde(skip)]
    pub follow: Follow,
    /// Why the last question got no document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

/// Why IMDS gives no document just now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// Its kind, as in metrics.
    pub reason: &'static str,
    /// The first error of this kind.
    pub error: String,
    /// When it began.
    pub since: Timestamp,
}

impl Seen {
    /// The signals in force, each since when.
    #[must_use]
    pub fn signals(&self) -> BTreeMap<String, Timestamp> {
        let eviction = self.follow.notice.as_ref();
        eviction
            .map(|notice| (PREEMPT.to_owned(), notice.since))
            .into_iter()
            .collect()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.vm, &self.trouble) {
            (_, Some(trouble)) => writeln!(
                f,
                "IMDS       {} since {:.0}: {}",
                trouble.reason, trouble.since, trouble.error
            )?,
            (None, None) => writeln!(
                f,
                "IMDS       the name of this VM is not known yet, so no event is its own"
            )?,
            (Some(vm), None) => writeln!(f, "IMDS       VM {vm}, {} scheduled events", self.events.len())?,
        }
        for event in &self.events {
            write!(f, "event      {} {:?}", event.kind.as_str(), event.state)?;
            if let Some(not_before) = event.not_before {
                write!(f, " not before {not_before}")?;
            }
            writeln!(f, ", id {:?}: {:?}", event.event_id, event.description)?;
        }
        Ok(())
    }
}
