//! Values about what is reached over a network: addresses, servers, and what is sent to them.

use std::net::{IpAddr, SocketAddr};

use headgate_agent::notify::Template;
use hyper::Uri;
use hyper::header::HeaderValue;
use serde_json::json;
use serde_yaml::Value;

use super::{ValueType, any_text};

/// An IP address with a port; without one, the port is `default_port`.
pub(in crate::config) fn bind_address(default_port: u16) -> ValueType<SocketAddr> {
    let [both, one] = ["[::]", "0.0.0.0"].map(|ip| format!("{ip}:{default_port}"));
    ValueType::text(
        json!({ "type": "string", "examples": [both, one] }),
        format!("an IP address with a port, such as {both} (both families), {one} or 127.0.0.1:0"),
        move |text| {
            let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let ip = || bracketed.unwrap_or(text).parse::<IpAddr>().ok();
            let parsed = text.parse().ok();
            parsed.or_else(|| Some(SocketAddr::from((ip()?, default_port))))
        },
        SocketAddr::to_string,
    )
}

/// The authority of the address of an HTTP server without path and user.
fn authority(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let is_plain = uri.scheme_str() == Some("http") && uri.query().is_none() && matches!(uri.path(), "" | "/");
    let authority = uri.authority().filter(|_| is_plain)?.to_string();
    (!authority.contains('@')).then_some(authority)
}

/// The address of a server, `http://host` or `http://host:port`. The value is the part after the scheme.
pub(in crate::config) fn http_server() -> ValueType<String> {
    let allowed = "the address of a server without a path, such as http://169.254.169.254 or http://127.0.0.1:8080";
    ValueType::text(any_text(), allowed, authority, |authority| {
        format!("http://{authority}")
    })
}

/// `off`, or the address of a health server, `http://host:port`. The value is `host:port`.
pub(in crate::config) fn health_server() -> ValueType<Option<String>> {
    let allowed = "off, or the address of kube-proxy's health server without a path, such as http://127.0.0.1:10256 \
                   (/livez is polled, or /healthz if /livez does not exist)";
    let has_port = |authority: &String| authority.parse().is_ok_and(|uri: Uri| uri.port_u16().is_some());
    ValueType::new(
        any_text(),
        move |value| match value {
            // A YAML 1.1 writer turns a bare `off` into false.
            Value::Bool(false) => Ok(None),
            Value::String(text) if text == "off" => Ok(None),
            value => {
                let server = value.as_str().and_then(authority).filter(has_port);
                server.map(Some).ok_or_else(|| allowed.to_owned())
            }
        },
        |server| {
            let shown = server.as_ref().map(|authority| format!("http://{authority}"));
            Value::String(shown.unwrap_or_else(|| "off".to_owned()))
        },
    )
}

/// The base address of an OpenTelemetry collector.
pub(in crate::config) fn otlp_endpoint() -> ValueType<String> {
    let allowed = if cfg!(feature = "otlp") {
        "the base address of an OpenTelemetry collector, such as http://127.0.0.1:4318"
    } else {
        "an address if this program were built with the feature otlp"
    };
    let parse = |text: &str| parse_collector(text).filter(|_| cfg!(feature = "otlp"));
    ValueType::text(any_text(), allowed, parse, String::clone)
}

/// An http or https URL without query, user and trailing slash.
pub(in crate::config) fn parse_collector(text: &str) -> Option<String> {
    let uri: Uri = text.trim().parse().ok()?;
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    (scheme && host && uri.query().is_none()).then(|| text.trim().trim_end_matches('/').to_owned())
}

/// A template that compiles and renders; null is the empty one.
pub(in crate::config) fn notification_template() -> ValueType<Template> {
    ValueType::new(
        json!({ "anyOf": [any_text(), { "type": "null" }] }),
        |value| match value {
            Value::Null => Ok(Template::default()),
            Value::String(text) if !text.trim().is_empty() => {
                Template::new(text, false).map_err(|error| format!("null, or a template; {error}"))
            }
            _ => Err("null, or a template in the language of Jinja, such as {{ name }}: {{ note }}".to_owned()),
        },
        |template| match template.as_str() {
            "" => Value::Null,
            text => Value::from(text),
        },
    )
}

/// The value of a `Content-Type`.
pub(in crate::config) fn content_type() -> ValueType<String> {
    ValueType::text(
        any_text(),
        "a media type, such as application/json or text/plain; charset=utf-8",
        |text| {
            let is_media_type = text.contains('/') && HeaderValue::from_str(text).is_ok();
            is_media_type.then(|| text.to_owned())
        },
        String::clone,
    )
}
