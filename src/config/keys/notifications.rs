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
            "A file with the http or https URL to which notices are sent with POST, usually from a mounted Secret: the URL \
             is a secret, and no log, metric or error has it. It is read for each attempt. With null nothing is sent. \
             docs/guides/monitoring.md is the guide.",
        ),
        Key::new(
            "notifications.events",
            event_names(),
            |s| &mut s.notifications.events,
            "The events that are sent. Each agent reports `NodeSignalled` and `NodeSignalsEnded` of its own node; the leader \
             reports the reasons of its Kubernetes events, such as `LoadBalancerAdminStateDown` (out of rotation) and \
             `LoadBalancerAdminStateNone` (returned). The list replaces the whole default. An empty list sends all.",
        ),
        Key::new(
            "notifications.template",
            notification_template(),
            |s| &mut s.notifications.template,
            "The body in the language of Jinja, with the fields `event`, `time`, `kind`, `namespace`, `name`, `warning`, `note`, \
             `signals` and `reporter`, such as `{\"text\": {{ (name ~ \": \" ~ note) | tojson }}}`. With null the body is a \
             JSON object of these fields. The start of the process checks the template with an example.",
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
            "A file with the certificate authorities that the receiver's certificate is verified with, in PEM form. With null \
             those of the image apply, or those in the file that `SSL_CERT_FILE` names.",
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
