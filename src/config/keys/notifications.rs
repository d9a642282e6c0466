//! The settings of webhook notifications, for every process.

use std::time::Duration;

use super::{HOUR, Key};
use crate::config::value::{content_type, duration, event_names, file, notification_template, optional};

/// These settings, in the order of the reference.
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "notifications.urlFile",
            optional(file()),
            |s| &mut s.notifications.url_file,
            "A file with the http or https URL to which notices are sent with POST, usually from a mounted Secret: the URL is a \
             secret. It is read for each attempt. With null nothing is sent. Guide: docs/guides/monitoring.md.",
        ),
        Key::new(
            "notifications.events",
            event_names(),
            |s| &mut s.notifications.events,
            "The events that are sent: `NodeSignalled` and `NodeSignalsEnded` of the agents, and reasons of the leader's Kubernetes \
             events. The list replaces the default. An empty list sends all.",
        ),
        Key::new(
            "notifications.template",
            notification_template(),
            |s| &mut s.notifications.template,
            "The body in the language of Jinja, such as `{\"text\": {{ (name ~ \": \" ~ note) | tojson }}}`, checked at the start. \
             With null the body is a JSON object of all fields: `event`, `time`, `kind`, `namespace`, `name`, `warning`, `note`, \
             `signals`, `reporter`.",
        ),
        Key::new(
            "notifications.contentType",
            content_type(),
            |s| &mut s.notifications.content_type,
            "The `Content-Type` of the body. If it is that of JSON, the template must render JSON.",
        ),
        Key::new(
            "notifications.caFile",
            optional(file()),
            |s| &mut s.notifications.authorities_file,
            "A file with the certificate authorities of the receiver, in PEM form. With null those of the image apply, or those in \
             the file that `SSL_CERT_FILE` names.",
        ),
        Key::new(
            "notifications.retryTimeout",
            duration(Duration::ZERO, 24 * HOUR),
            |s| &mut s.notifications.retry_timeout,
            "For how long a notice is tried again, at pauses that grow from 1 s to 1 min (`0s` to `24h`; `0s` tries once). \
             Later notices wait meanwhile: 1,000 in a queue, and further ones are dropped.",
        ),
    ]
}
