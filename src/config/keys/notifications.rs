//! The settings of webhook notifications, for every process.

use super::Key;
use crate::config::value::{event_names, file, notification_template, optional};

/// These settings, in the order of the reference.
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "notifications.urlFile",
            optional(file()),
            |s| &mut s.notifications.url_file,
            "A file with the http or https URL to which notices are sent with POST, usually from a mounted Secret, read for each attempt. \
             With null nothing is sent. In the chart: `notifications.secretName`. Guide: docs/guides/monitoring.md.",
        ),
        Key::new(
            "notifications.events",
            event_names(),
            |s| &mut s.notifications.events,
            "The events that are sent: `NodeSignalled` and `NodeSignalsEnded` of the agents, and reasons of the leader's events. The list \
             replaces the default. An empty list sends all.",
        ),
        Key::new(
            "notifications.template",
            notification_template(),
            |s| &mut s.notifications.template,
            "The body in the language of Jinja, such as `{\"text\": {{ (name ~ \": \" ~ note) | tojson }}}`, checked at the start: what \
             begins with a brace must be JSON, and anything else is sent as text. With null the body is a JSON object of all fields: \
             `event`, `time`, `kind`, `namespace`, `name`, `warning`, `note`, `signals`, `reporter`.",
        ),
    ]
}
