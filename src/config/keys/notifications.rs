//! The settings of webhook notifications, for every process.

use std::time::Duration;

use serde_yaml::Value;

use super::{HOUR, Key, duration_value};
use crate::config::{notifications, schema, value};

/// These settings, in the order of the reference.
pub(super) const NOTIFICATIONS: &[Key] = &[
    Key {
        path: "notifications.urlFile",
        former: None,
        is_optional: true,
        schema: || schema::absolute_path(),
        flag: None,
        about: "A file with the http or https URL to which notices are sent with POST, usually from a mounted Secret: the URL \
                is a secret, and no log, metric or error has it. It is read for each attempt. With null nothing is sent. \
                docs/webhook.md is the guide.",
        set: |settings, value| {
            settings.notifications.url_file = value::file(value)?;
            Ok(())
        },
        get: |settings| path_value(settings.notifications.url_file.as_deref()),
    },
    Key {
        path: "notifications.events",
        former: None,
        is_optional: false,
        schema: || schema::texts(),
        flag: None,
        about: "The events that are sent. Each agent reports `NodeSignalled` and `NodeSignalsEnded` of its own node; the leader \
                reports the reasons of its Kubernetes events, such as `LoadBalancerAdminStateDown` (out of rotation) and \
                `LoadBalancerAdminStateNone` (returned). The list replaces the whole default. An empty list sends all.",
        set: |settings, value| {
            settings.notifications.events = notifications::events(value)?;
            Ok(())
        },
        get: |settings| {
            let events = settings.notifications.events.iter().cloned();
            Value::Sequence(events.map(Value::String).collect())
        },
    },
    Key {
        path: "notifications.template",
        former: None,
        is_optional: true,
        schema: || schema::text(),
        flag: None,
        about: "The body in the language of Jinja, with the fields `event`, `time`, `kind`, `namespace`, `name`, `warning`, `note`, \
                `signals` and `reporter`, such as `{\"text\": {{ (name ~ \": \" ~ note) | tojson }}}`. With null the body is a \
                JSON object of these fields. The start of the process checks the template with an example.",
        set: |settings, value| {
            settings.notifications.template = notifications::template(value)?;
            Ok(())
        },
        get: |settings| match settings.notifications.template.as_str() {
            "" => Value::Null,
            text => Value::String(text.to_owned()),
        },
    },
    Key {
        path: "notifications.contentType",
        former: None,
        is_optional: false,
        schema: || schema::text(),
        flag: None,
        about: "The `Content-Type` of the body. If it is that of JSON, the template must render JSON.",
        set: |settings, value| {
            settings.notifications.content_type = notifications::content_type(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.notifications.content_type.clone()),
    },
    Key {
        path: "notifications.caFile",
        former: None,
        is_optional: true,
        schema: || schema::absolute_path(),
        flag: None,
        about: "A file with the certificate authorities that the receiver's certificate is verified with, in PEM form. With null \
                those of the image apply, or those in the file that `SSL_CERT_FILE` names.",
        set: |settings, value| {
            settings.notifications.authorities_file = value::file(value)?;
            Ok(())
        },
        get: |settings| path_value(settings.notifications.authorities_file.as_deref()),
    },
    Key {
        path: "notifications.retryTimeout",
        former: None,
        is_optional: false,
        schema: || schema::duration(),
        flag: None,
        about: "For how long a notice is tried again, at pauses that grow from 1 s to 1 min (`0s` to `24h`; `0s` tries once). \
                Later notices wait meanwhile: 1,000 in a queue, and further ones are dropped.",
        set: |settings, value| {
            settings.notifications.retry_timeout = value::duration(value, Duration::ZERO, 24 * HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.notifications.retry_timeout),
    },
];

fn path_value(path: Option<&std::path::Path>) -> Value {
    path.map_or(Value::Null, |path| Value::String(path.display().to_string()))
}
