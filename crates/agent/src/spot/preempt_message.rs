//! The message of a Node event `PreemptScheduled`, as AKS' node-problem-detector writes it. Pure.
//!
//! The reason alone proves nothing: the detector emits the same event when its own query of the metadata service timed out, and the
//! newer agent reports advisories in the same place. Only a message that begins in a known form is a notice.

use headgate_core::node::AzureNotice;
use jiff::Timestamp;

use super::document::parse_not_before;
use super::notice::Notice;

/// The forms in which a scheduled eviction is announced; a date follows.
const SCHEDULED: [&str; 2] = ["Scheduled:", "Preempt Scheduled:"];
/// The forms of an eviction that has started; a date in them is ignored.
const STARTED: [&str; 2] = ["Started", "Preempt Started"];
/// The message of a query that failed.
const QUERY_FAILED: &str = "IMDS query failed";
/// A recommendation to move away, which is no eviction.
const ADVISORY: &str = "SpotRebalanceRecommendation Advisory";
/// Longer than any id of Azure's.
const MAX_ID_CHARS: usize = 128;

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreemptMessage {
    /// Azure has announced the eviction of the VM.
    Notice(Notice),
    /// The eviction has started.
    Started {
        /// The event's id, if the message has it.
        event_id: String,
    },
    /// The detector could not query the metadata service: nothing is known.
    QueryFailed,
    /// A recommendation only.
    Advisory,
    /// A text in no known form.
    Unknown,
}

impl PreemptMessage {
    /// Reads the message of an event.
    pub fn parse(message: &str) -> Self {
        let message = message.trim_start();
        let event_id = event_id(message).unwrap_or_default();
        if message.starts_with(ADVISORY) {
            return Self::Advisory;
        }
        if message.starts_with(QUERY_FAILED) {
            return Self::QueryFailed;
        }
        if STARTED.iter().any(|form| message.starts_with(form)) {
            return Self::Started { event_id };
        }
        let scheduled = SCHEDULED.iter().find_map(|form| message.strip_prefix(form));
        match scheduled.and_then(date) {
            Some(not_before) => Self::Notice(Notice {
                event_type: AzureNotice::Preempt,
                event_id,
                not_before: Some(not_before),
            }),
            None => Self::Unknown,
        }
    }
}

/// The date at the beginning of `text`, up to the sentence's end.
fn date(text: &str) -> Option<Timestamp> {
    let end = text.find(" GMT").or_else(|| text.find(" UTC"))?;
    parse_not_before(text.get(..end + 4)?)
}

/// The id after `EventId:`.
fn event_id(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("EventId:")?;
    let id: String = rest
        .trim_start()
        .chars()
        .take_while(|character| character.is_ascii_alphanumeric() || *character == '-')
        .take(MAX_ID_CHARS + 1)
        .collect();
    (!id.is_empty() && id.len() <= MAX_ID_CHARS).then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn notice(event_id: &str, not_before: &str) -> PreemptMessage {
        PreemptMessage::Notice(Notice {
            event_type: AzureNotice::Preempt,
            event_id: event_id.to_owned(),
            not_before: Some(not_before.parse().unwrap()),
        })
    }

    #[test]
    fn only_messages_in_a_known_form_are_notices() {
        let started = |id: &str| PreemptMessage::Started {
            event_id: id.to_owned(),
        };
        let more = "DurationInSeconds: -1.  For more information, see https://aka.ms/aks/scheduledevents.";
        for (message, want) in [
            (
                format!("Scheduled: Fri, 06 Dec 2024 18:09:55 GMT. {more}"),
                notice("", "2024-12-06T18:09:55Z"),
            ),
            (
                format!("Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. {more}"),
                notice("", "2025-02-26T10:13:13Z"),
            ),
            (
                format!(
                    "Preempt Scheduled: Wed, 6 Aug 2026 10:13:13 UTC. {more} EventId: 218E4ED7-0A1B-4C2D-8E3F-112233445566"
                ),
                notice("218E4ED7-0A1B-4C2D-8E3F-112233445566", "2026-08-06T10:13:13Z"),
            ),
            (
                format!("Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. {more}\nThrottle Result: Too Many Requests"),
                notice("", "2025-02-26T10:13:13Z"),
            ),
            (
                "Preempt Started: Wed, 26 Feb 2025 10:13:13 GMT. EventId: A-1.".to_owned(),
                started("A-1"),
            ),
            ("Started.".to_owned(), started("")),
            (
                "IMDS query failed, exit code: 28\nConnection timed out after 24 seconds.".to_owned(),
                PreemptMessage::QueryFailed,
            ),
            (
                "SpotRebalanceRecommendation Advisory: Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.".to_owned(),
                PreemptMessage::Advisory,
            ),
            (
                "Scheduled: Fri, 06 Dec 2024 18:09:55 PST.".to_owned(),
                PreemptMessage::Unknown,
            ),
            (
                "Scheduled: Fri, 06 Dec 2024 18:09:55 +0200.".to_owned(),
                PreemptMessage::Unknown,
            ),
            ("Scheduled: soon GMT.".to_owned(), PreemptMessage::Unknown),
            ("Scheduled:".to_owned(), PreemptMessage::Unknown),
            (
                "The VM has Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.".to_owned(),
                PreemptMessage::Unknown,
            ),
            (
                "Freeze Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.".to_owned(),
                PreemptMessage::Unknown,
            ),
            (String::new(), PreemptMessage::Unknown),
        ] {
            assert_eq!(PreemptMessage::parse(&message), want, "{message}");
        }
    }

    #[test]
    fn ids_are_bounded() {
        let message = format!("Preempt Started. EventId: {}", "a".repeat(MAX_ID_CHARS + 1));
        assert_eq!(
            PreemptMessage::parse(&message),
            PreemptMessage::Started {
                event_id: String::new()
            }
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(Preempt |)(Scheduled:|Started|IMDS query failed|)[ -~é\n]{0,200}( GMT)?(EventId:[ -~]{0,200})?") {
            let _ = PreemptMessage::parse(&text);
        }
    }
}
