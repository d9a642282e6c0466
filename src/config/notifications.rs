//! The values of the settings `notifications`. Pure.

use std::collections::BTreeSet;

use headgate_notify::{Template, TemplateError};
use hyper::header::HeaderValue;
use serde_yaml::Value;

use super::Settings;
use super::value::{NONE, Parsed};

/// A list of event names.
pub(super) fn events(value: &Value) -> Parsed<BTreeSet<String>> {
    let is_name = |text: &&str| {
        text.starts_with(|first: char| first.is_ascii_uppercase())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let names = value.as_sequence().and_then(|list| {
        let names = list.iter().map(|item| item.as_str().filter(is_name).map(str::to_owned));
        names.collect::<Option<BTreeSet<_>>>()
    });
    names.ok_or_else(|| "a list of event names in PascalCase, such as [NodeSignalled, NodeSignalsEnded]".to_owned())
}

/// A template that compiles and renders, or `none`.
pub(super) fn template(value: &Value) -> Parsed<Template> {
    match value {
        Value::String(text) if text == NONE => Ok(Template::default()),
        Value::String(text) if !text.trim().is_empty() => {
            Template::new(text, false).map_err(|error| format!("none, or a template; {error}"))
        }
        _ => Err("none, or a template in the language of Jinja, such as {{ name }}: {{ note }}".to_owned()),
    }
}

/// The value of a `Content-Type`.
pub(super) fn content_type(value: &Value) -> Parsed<String> {
    let text = value
        .as_str()
        .filter(|text| text.contains('/') && HeaderValue::from_str(text).is_ok());
    text.map(str::to_owned)
        .ok_or_else(|| "a media type, such as application/json or text/plain; charset=utf-8".to_owned())
}

/// The conflict of a template with the content type: a body that is called JSON must be JSON.
pub(super) fn conflict(settings: &Settings) -> Option<(&'static str, String)> {
    let notifications = &settings.notifications;
    let media_type = notifications.content_type.split(';').next().unwrap_or_default().trim();
    let is_json = media_type.ends_with("/json") || media_type.ends_with("+json");
    let checked = Template::new(notifications.template.as_str(), is_json);
    checked.err().map(|error: TemplateError| {
        let message = format!("{error}; or set notifications.contentType to that of the body, such as text/plain");
        ("notifications.template", message)
    })
}
