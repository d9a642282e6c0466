//! The snapshot: what is known of this VM's events. The taint reconciler, the health port, metrics and `/statusz`
//! read it.

use std::collections::BTreeMap;
use std::fmt;

use headgate_core::node::Signal;
use headgate_core::telemetry::words;
use jiff::Timestamp;
use serde::Serialize;

use super::document::ScheduledEvent;
use super::notice::{NoticeTrackers, TrackedNotice};

/// The events of this VM after the latest poll, in the form of `/statusz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsSnapshot {
    /// Azure's name for this VM, once its Node was observed.
    pub vm: Option<String>,
    /// The number of the latest document.
    pub incarnation: Option<i64>,
    /// The events of this VM in the latest document.
    pub events: Vec<ScheduledEvent>,
    /// The notices that follow from all documents so far.
    #[serde(skip)]
    pub trackers: NoticeTrackers,
    /// Why the last poll got no document, or one that is not complete.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ImdsError>,
}

words! {
    /// Why a poll got no document, or one that is not complete; the label `reason` of the metric.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ImdsErrorReason {
        /// The connection failed, or the response was too large.
        Connection = "connection",
        /// The response is not a document of Scheduled Events.
        Document = "document",
        /// The document has an event that is not readable; the other events count.
        Event = "event",
        /// The response has another status than 200.
        Status = "status",
        /// There was no response in time.
        Timeout = "timeout",
    }
}

/// The current failure of polls, from its first until a poll succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImdsError {
    /// The kind of the latest failures.
    pub reason: ImdsErrorReason,
    /// The text of the first failure of this kind.
    pub error: String,
    /// The time of that failure.
    pub since: Timestamp,
    /// The time of the first of the polls without a document, whatever their reasons; or without a complete one.
    #[serde(skip)]
    pub first_at: Timestamp,
}

impl EventsSnapshot {
    /// The signals that follow, each with its start.
    pub fn signals(&self) -> BTreeMap<Signal, Timestamp> {
        let notices = self.trackers.notices();
        notices
            .map(|notice| (Signal::Azure(notice.latest.event_type), notice.since))
            .collect()
    }

    /// The notice of the snapshot `before` that has ended without confirmation, if one has.
    pub fn expired_notice(&self, before: &Self) -> Option<TrackedNotice> {
        let (known, tracker) = (before.trackers.gravest().notice, self.trackers.gravest());
        known.filter(|_| tracker.notice.is_none() && tracker.is_unconfirmed)
    }

    /// What is known where nothing asks for documents: none confirms a notice that the Node has recorded.
    pub fn without_documents() -> Self {
        Self {
            trackers: NoticeTrackers::without_documents(),
            ..Self::default()
        }
    }
}

/// The lines of the text form of `/statusz`.
impl fmt::Display for EventsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.vm, &self.last_error) {
            (_, Some(failure)) => writeln!(
                f,
                "IMDS       {} since {:.0}: {}",
                failure.reason.as_str(),
                failure.since,
                failure.error
            )?,
            (None, None) => writeln!(
                f,
                "IMDS       the Node's providerID is not known yet, so no event belongs to this VM"
            )?,
            (Some(vm), None) => writeln!(f, "IMDS       VM {vm}, {} scheduled events", self.events.len())?,
        }
        for event in &self.events {
            write!(f, "event      {} {:?}", event.event_type.as_str(), event.status)?;
            if let Some(not_before) = event.not_before {
                write!(f, " not before {not_before}")?;
            }
            writeln!(f, ", id {:?}: {:?}", event.event_id, event.description)?;
        }
        Ok(())
    }
}
