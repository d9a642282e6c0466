//! Reading one setting's value: from YAML or a flag's text to its type, or what would be allowed.
//!
//! Each function returns the value or a sentence fragment that completes "allowed: …"; one that reads a
//! list, a fragment for each of its items that is wrong.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_health::services::Cidr;
use headgate_http::server::ProxyProtocol;
use headgate_settings::{describe_value, format_duration, scalar_text};
use jiff::SignedDuration;
use serde_yaml::Value;

use super::qualified_name::is_qualified_name;
use super::{SecretName, ServiceHealth};

/// A value, or what is allowed instead.
pub(super) type Parsed<T> = Result<T, String>;

/// Why a setting's value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// As a whole; this is allowed.
    Whole(String),
    /// For these of its items.
    Items(Vec<Item>),
}

/// An item of a list that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Its place in the list, from 1.
    pub(super) number: usize,
    /// How it is shown.
    pub(super) shown: String,
    /// What is allowed instead.
    pub(super) allowed: String,
}

impl From<String> for Refused {
    fn from(allowed: String) -> Self {
        Self::Whole(allowed)
    }
}

/// Every item of a list, or all those that are refused.
fn items<T>(items: &[Value], mut read: impl FnMut(&Value) -> Parsed<T>) -> Result<Vec<T>, Refused> {
    let mut good = Vec::with_capacity(items.len());
    let mut bad = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match read(item) {
            Ok(value) => good.push(value),
            Err(allowed) => bad.push(Item {
                number: index + 1,
                shown: describe_value(item),
                allowed,
            }),
        }
    }
    if bad.is_empty() {
        Ok(good)
    } else {
        Err(Refused::Items(bad))
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &Value) -> Parsed<bool> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// An IP address with a port, or without one, which then is `default_port`.
pub(super) fn bind_address(value: &Value, default_port: u16) -> Parsed<SocketAddr> {
    let parsed = scalar_text(value).and_then(|text| {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(&text);
        text.parse::<SocketAddr>().ok().or_else(|| {
            bare.parse::<IpAddr>()
                .ok()
                .map(|ip| SocketAddr::from((ip, default_port)))
        })
    });
    parsed.ok_or_else(|| {
        format!("an IP address with a port, such as [::]:{default_port} (both families), 0.0.0.0:{default_port} or 127.0.0.1:0")
    })
}

/// An absolute path.
pub(super) fn directory(value: &Value) -> Parsed<std::path::PathBuf> {
    match value {
        Value::String(text) if text.starts_with('/') => Ok(text.into()),
        _ => Err("an absolute path, such as /var/lib/headgate".to_owned()),
    }
}

/// A duration between `least` and `most`, written as in Kubernetes.
pub(super) fn duration(value: &Value, least: Duration, most: Duration) -> Parsed<Duration> {
    scalar_text(value)
        .and_then(|text| text.parse::<SignedDuration>().ok())
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| (least..=most).contains(duration))
        .ok_or_else(|| {
            format!(
                "a duration from {} to {} with its unit, such as 500ms, 5s or 1m30s",
                format_duration(least),
                format_duration(most)
            )
        })
}

/// A list of taint keys, each a qualified name, none twice.
pub(super) fn taint_keys(value: &Value) -> Result<Vec<String>, Refused> {
    let Value::Sequence(list) = value else {
        return Err("a list of taint keys; it replaces the default list as a whole"
            .to_owned()
            .into());
    };
    let mut seen = BTreeSet::new();
    items(list, |item| match item {
        Value::String(key) if !is_qualified_name(key) => {
            Err("a taint key such as example.com/draining, without value and effect".to_owned())
        }
        Value::String(key) if !seen.insert(key.clone()) => Err("each taint key once".to_owned()),
        Value::String(key) => Ok(key.clone()),
        _ => Err("a taint key such as example.com/draining".to_owned()),
    })
}

/// `off`, or the `http://host:port` of a health server; only the `host:port` is kept.
pub(super) fn health_server(value: &Value) -> Parsed<Option<String>> {
    let allowed = || {
        "off, or the address of kube-proxy's health server without a path, such as http://127.0.0.1:10256 \
         (/livez is asked first, /healthz where that is not there)"
            .to_owned()
    };
    let text = match value {
        // YAML 1.1 readers take a bare `off` for false; ours keeps the word, and both are meant.
        Value::Bool(false) => return Ok(None),
        Value::String(text) if text == "off" => return Ok(None),
        Value::String(text) => text,
        _ => return Err(allowed()),
    };
    let uri: hyper::Uri = text.parse().map_err(|_| allowed())?;
    let plain = uri.scheme_str() == Some("http") && uri.query().is_none() && matches!(uri.path(), "" | "/");
    match uri.authority() {
        Some(authority) if plain && uri.port_u16().is_some() && !authority.as_str().contains('@') => {
            Ok(Some(authority.as_str().to_owned()))
        }
        _ => Err(allowed()),
    }
}

/// One of some words.
fn choice<T: Copy>(value: &Value, words: &[(&str, T)]) -> Parsed<T> {
    // A bare `off` is false to some who write YAML.
    let given = if *value == Value::Bool(false) {
        Some("off".to_owned())
    } else {
        scalar_text(value)
    };
    let found = words.iter().find(|(word, _)| given.as_deref() == Some(word));
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("one of {}", words.join(", "))
    })
}

/// `enforce`, `observe` or `off`.
pub(super) fn admin_state_mode(value: &Value) -> Parsed<AdminStateMode> {
    choice(value, &AdminStateMode::ALL.map(|mode| (mode.as_str(), mode)))
}

/// `keep` or `restore`.
pub(super) fn foreign_down(value: &Value) -> Parsed<ForeignDown> {
    choice(value, &ForeignDown::ALL.map(|what| (what.as_str(), what)))
}

/// What stands for a file or an object that there is none of.
pub(super) const NONE: &str = "none";

/// An absolute path of a file, or `none`.
pub(super) fn file(value: &Value) -> Parsed<Option<std::path::PathBuf>> {
    match value {
        Value::String(text) if text == NONE => Ok(None),
        Value::String(text) if text.starts_with('/') && !text.ends_with('/') => Ok(Some(text.into())),
        _ => Err("none, or the absolute path of a file, such as /etc/kubernetes/azure.json".to_owned()),
    }
}

/// A Secret, or `none`.
pub(super) fn secret_name(value: &Value) -> Parsed<Option<SecretName>> {
    match value {
        Value::String(text) if text == NONE => Ok(None),
        Value::String(text) => text.parse().map(Some),
        _ => Err(()),
    }
    .map_err(|()| "none, or a Secret as NAMESPACE/NAME, such as kube-system/azure-cloud-provider".to_owned())
}

/// A name that load balancers can be called after.
pub(super) fn cluster_name(value: &Value) -> Parsed<String> {
    let good = |text: &String| {
        (1..=71).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    scalar_text(value).filter(good).ok_or_else(|| {
        "1 to 71 letters, digits, dashes, underscores and dots, as cloud-controller-manager's --cluster-name".to_owned()
    })
}

/// `off`, `path` or `nodePorts`.
pub(super) fn service_health(value: &Value) -> Parsed<ServiceHealth> {
    let all = [ServiceHealth::Off, ServiceHealth::Path, ServiceHealth::NodePorts];
    choice(value, &all.map(|mode| (mode.as_str(), mode)))
}

/// `off`, `optional` or `required`.
pub(super) fn proxy_protocol(value: &Value) -> Parsed<ProxyProtocol> {
    let all = [ProxyProtocol::Off, ProxyProtocol::Optional, ProxyProtocol::Required];
    choice(value, &all.map(|setting| (proxy_protocol_text(setting), setting)))
}

/// How settings spell it.
pub(super) fn proxy_protocol_text(setting: ProxyProtocol) -> &'static str {
    match setting {
        ProxyProtocol::Off => "off",
        ProxyProtocol::Optional => "optional",
        ProxyProtocol::Required => "required",
    }
}

/// A list of address ranges.
pub(super) fn cidrs(value: &Value) -> Result<Vec<Cidr>, Refused> {
    let Value::Sequence(list) = value else {
        let allowed = "a list of address ranges, such as [10.0.0.0/8, \"2001:db8::/32\"]";
        return Err(allowed.to_owned().into());
    };
    items(list, |item| {
        let range = item.as_str().and_then(|text| text.parse().ok());
        range.ok_or_else(|| "an address range, such as 10.0.0.0/8 or 2001:db8::/32".to_owned())
    })
}

/// The `http://host` or `http://host:port` of a server; only what follows the scheme is kept.
pub(super) fn http_server(value: &Value) -> Parsed<String> {
    let uri = scalar_text(value).and_then(|text| text.parse::<hyper::Uri>().ok());
    let plain =
        uri.filter(|uri| uri.scheme_str() == Some("http") && uri.query().is_none() && matches!(uri.path(), "" | "/"));
    let authority = plain.and_then(|uri| uri.authority().map(ToString::to_string));
    authority.filter(|authority| !authority.contains('@')).ok_or_else(|| {
        "the address of a server without a path, such as http://169.254.169.254 or http://127.0.0.1:8080".to_owned()
    })
}

#[cfg(test)]
mod tests;
