//! Values about what is reached over a network: addresses, servers, and what is sent to them.

use std::net::{IpAddr, SocketAddr};

use headgate_agent::notify::Template;
use hyper::Uri;
use serde_json::json;
use serde_yaml::Value;

use super::{DISABLED, ValueType, any_text};

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

/// `Disabled`, or the address of a health server, `http://host:port`. The value is `host:port`.
pub(in crate::config) fn health_server() -> ValueType<Option<String>> {
    let allowed = "Disabled, or the address of kube-proxy's health server without a path, such as http://127.0.0.1:10256 \
                   (/livez is polled, or /healthz if /livez does not exist)";
    let has_port = |authority: &String| authority.parse().is_ok_and(|uri: Uri| uri.port_u16().is_some());
    ValueType::text(
        any_text(),
        allowed,
        move |text| match text {
            DISABLED => Some(None),
            text => authority(text).filter(has_port).map(Some),
        },
        |server| {
            let shown = server.as_ref().map(|authority| format!("http://{authority}"));
            shown.unwrap_or_else(|| DISABLED.to_owned())
        },
    )
}

/// A template that compiles and renders; null is the empty one.
pub(in crate::config) fn notification_template() -> ValueType<Template> {
    ValueType::new(
        json!({ "anyOf": [any_text(), { "type": "null" }] }),
        |value| match value {
            Value::Null => Ok(Template::default()),
            Value::String(text) if !text.trim().is_empty() => {
                Template::new(text).map_err(|error| format!("null, or a template; {error}"))
            }
            _ => Err("null, or a template in the language of Jinja, such as {{ name }}: {{ note }}".to_owned()),
        },
        |template| match template.as_str() {
            "" => Value::Null,
            text => Value::from(text),
        },
    )
}
