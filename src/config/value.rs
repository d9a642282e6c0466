//! Parsers of single values, from YAML or from the text of a flag.
//!
//! Each function returns the value, or the text that completes "allowed: …". A function for a list returns such a text for
//! each invalid item.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_controller::admin_state::{AdminStateMode, ForeignDown, IntOrPercent};
use headgate_health::services::Cidr;
use headgate_http::server::ProxyProtocol;
use headgate_local_pools::{Enabled, EndpointSelection};
use headgate_node::{BuiltInSignal, SignalMatcher};
use headgate_settings::{Printable, describe_value, parse_duration, scalar_text};
use headgate_telemetry::LogFormat;
use serde_yaml::Value;

use super::{ClusterAutoscalerHold, MarkerMode, SecretName, ServiceHealth};

/// A value, or the text of what is allowed.
pub(super) type Parsed<T> = Result<T, String>;

/// Why the value of a setting is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InvalidValue {
    /// The whole value is invalid; the text says what is allowed.
    Value(String),
    /// These items of a list are invalid.
    Items(Vec<InvalidItem>),
}

/// Of an invalid section in a list.
const MAX_SHOWN_CHARS: usize = 200;

/// An item of a list that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidItem {
    /// The position in the list, from 1.
    pub(super) number: usize,
    /// The item as an error shows it.
    pub(super) shown: String,
    /// The allowed values, in words.
    pub(super) allowed: String,
}

impl From<String> for InvalidValue {
    fn from(allowed: String) -> Self {
        Self::Value(allowed)
    }
}

/// Parses every item of a list. Returns all invalid items.
fn parse_items<T>(items: &[Value], mut parse: impl FnMut(&Value) -> Parsed<T>) -> Result<Vec<T>, InvalidValue> {
    let mut good = Vec::with_capacity(items.len());
    let mut bad = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match parse(item) {
            Ok(value) => good.push(value),
            Err(allowed) => bad.push(InvalidItem {
                number: index + 1,
                shown: describe_item(item),
                allowed,
            }),
        }
    }
    if bad.is_empty() {
        Ok(good)
    } else {
        Err(InvalidValue::Items(bad))
    }
}

/// An item as a violation shows it; a section on one line, cut after 200 characters.
fn describe_item(item: &Value) -> String {
    let Ok(text) = serde_json::to_string(item) else {
        return describe_value(item);
    };
    if !item.is_mapping() {
        return describe_value(item);
    }
    let shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let rest = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{rest}", Printable(&shown))
}

/// Parses `true` or `false`.
pub(super) fn boolean(value: &Value) -> Parsed<bool> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// An IP address with a port; without one, the port is `default_port`.
pub(super) fn bind_address(value: &Value, default_port: u16) -> Parsed<SocketAddr> {
    let parsed = scalar_text(value).and_then(|text| {
        let without_brackets = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(&text);
        text.parse::<SocketAddr>().ok().or_else(|| {
            without_brackets
                .parse::<IpAddr>()
                .ok()
                .map(|ip| SocketAddr::from((ip, default_port)))
        })
    });
    parsed.ok_or_else(|| {
        format!("an IP address with a port, such as [::]:{default_port} (both families), 0.0.0.0:{default_port} or 127.0.0.1:0")
    })
}

/// Parses the absolute path of a directory.
pub(super) fn directory(value: &Value) -> Parsed<std::path::PathBuf> {
    match value {
        Value::String(text) if text.starts_with('/') => Ok(text.into()),
        _ => Err("an absolute path, such as /var/lib/headgate".to_owned()),
    }
}

/// A duration from `min` to `max` with its unit, such as `1m30s`.
pub(super) fn duration(value: &Value, min: Duration, max: Duration) -> Parsed<Duration> {
    parse_duration(&scalar_text(value).unwrap_or_default(), min, max)
}

/// A list of taint keys and other matchers, none twice.
pub(super) fn signal_matchers(value: &Value) -> Result<Vec<SignalMatcher>, InvalidValue> {
    let Value::Sequence(list) = value else {
        return Err(
            "a list of taint keys and other matchers; it replaces the default list as a whole"
                .to_owned()
                .into(),
        );
    };
    let mut seen = BTreeSet::new();
    parse_items(list, |item| {
        // A key of YAML that JSON does not have is shown as no matcher.
        let item = serde_json::to_value(item).unwrap_or_default();
        let matcher = SignalMatcher::parse(&item)?;
        if seen.insert(matcher.to_string()) {
            Ok(matcher)
        } else if matches!(matcher, SignalMatcher::Taint(_)) {
            Err("each taint key once".to_owned())
        } else {
            Err(format!("each matcher once; {matcher} is listed before"))
        }
    })
}

/// A list of built-in signals, each of `allowed`, none twice.
pub(super) fn built_in_signals(
    value: &Value,
    allowed: &[BuiltInSignal],
) -> Result<BTreeSet<BuiltInSignal>, InvalidValue> {
    let names: Vec<_> = allowed.iter().map(|built_in| built_in.signal().to_string()).collect();
    let Value::Sequence(list) = value else {
        let what = format!(
            "a list of {}; it replaces the default list as a whole",
            names.join(", ")
        );
        return Err(what.into());
    };
    let mut seen = BTreeSet::new();
    let parsed = parse_items(list, |item| {
        let found = allowed.iter().zip(&names).find(|(_, name)| item.as_str() == Some(name));
        match found {
            None => Err(format!("one of {}", names.join(", "))),
            Some((built_in, _)) if !seen.insert(*built_in) => Err("each signal once".to_owned()),
            Some((built_in, _)) => Ok(*built_in),
        }
    })?;
    Ok(parsed.into_iter().collect())
}

/// `off`, or the URL of a health server, `http://host:port`. Returns `host:port`.
pub(super) fn health_server(value: &Value) -> Parsed<Option<String>> {
    let allowed = || {
        "off, or the address of kube-proxy's health server without a path, such as http://127.0.0.1:10256 \
         (/livez is polled, or /healthz if /livez does not exist)"
            .to_owned()
    };
    let text = match value {
        // A YAML 1.1 writer turns a bare `off` into false.
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

/// One of a list of words.
fn choice<T: Copy>(value: &Value, words: &[(&str, T)]) -> Parsed<T> {
    // A YAML 1.1 writer turns a bare `off` into false.
    let given = if *value == Value::Bool(false) {
        Some("off".to_owned())
    } else {
        scalar_text(value)
    };
    let found = words.iter().find(|(word, _)| given.as_deref() == Some(word));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("one of {}", words.join(", "))
    })
}

/// `enforce`, `observe` or `off`.
pub(super) fn admin_state_mode(value: &Value) -> Parsed<AdminStateMode> {
    choice(value, &AdminStateMode::ALL.map(|mode| (mode.as_str(), mode)))
}

/// Parses `off` or `adminState`.
pub(super) fn marker_mode(value: &Value) -> Parsed<MarkerMode> {
    choice(value, &MarkerMode::ALL.map(|mode| (mode.as_str(), mode)))
}

/// Parses `auto`, `text` or `json`.
pub(super) fn log_format(value: &Value) -> Parsed<LogFormat> {
    choice(value, &LogFormat::ALL.map(|format| (format.as_str(), format)))
}

/// Parses the levels of logs by target, or `none`.
pub(super) fn log_filter(value: &Value) -> Parsed<Option<String>> {
    match value {
        Value::String(text) if text == NONE => Ok(None),
        Value::String(text) if headgate_telemetry::is_log_filter(text) => Ok(Some(text.clone())),
        _ => Err("levels by target, such as info or warn,headgate=debug".to_owned()),
    }
}

/// Parses 0 to [`MAX_MARKER_PROBES`].
pub(super) fn marker_probes(value: &Value) -> Parsed<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| *number <= MAX_MARKER_PROBES)
        .ok_or_else(|| format!("a whole number from 0 to {MAX_MARKER_PROBES}"))
}

/// Parses `off` or `candidates`.
pub(super) fn cluster_autoscaler_hold(value: &Value) -> Parsed<ClusterAutoscalerHold> {
    choice(value, &ClusterAutoscalerHold::ALL.map(|hold| (hold.as_str(), hold)))
}

/// Parses `keep` or `restore`.
pub(super) fn foreign_down(value: &Value) -> Parsed<ForeignDown> {
    choice(value, &ForeignDown::ALL.map(|what| (what.as_str(), what)))
}

/// `auto`, `on` or `off`. YAML 1.1 reads the last two as booleans where they have no quotes.
pub(super) fn local_pools_enabled(value: &Value) -> Parsed<Enabled> {
    match value {
        Value::Bool(true) => Ok(Enabled::On),
        Value::Bool(false) => Ok(Enabled::Off),
        other => choice(other, &Enabled::ALL.map(|enabled| (enabled.as_str(), enabled))),
    }
}

/// `all` or `ready`.
pub(super) fn endpoint_selection(value: &Value) -> Parsed<EndpointSelection> {
    choice(value, &EndpointSelection::ALL.map(|which| (which.as_str(), which)))
}

/// Pools have up to 5,000 entries.
const MAX_ENTRIES: u32 = 5000;
/// More than any load balancer's threshold, times the load balancers of a node.
pub(super) const MAX_MARKER_PROBES: u32 = 100;

/// A number of pool entries from `least`, or a percentage from 1% to 100%.
pub(super) fn int_or_percent(value: &Value, least: u32) -> Parsed<IntOrPercent> {
    let allowed = || format!("a number from {least} to {MAX_ENTRIES}, or a percentage from 1% to 100%");
    let text = scalar_text(value).ok_or_else(allowed)?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.strip_suffix('%') {
        Some(percent) if is_number(percent) => {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            percent.map(IntOrPercent::Percent).ok_or_else(allowed)
        }
        None if is_number(&text) => {
            let count = text.parse().ok().filter(|count| (least..=MAX_ENTRIES).contains(count));
            count.map(IntOrPercent::Int).ok_or_else(allowed)
        }
        _ => Err(allowed()),
    }
}

/// The word for no file, no Secret or no address.
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

/// A cluster name that can be the name of a load balancer.
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

/// The spelling of a PROXY protocol mode in the settings.
pub(super) fn proxy_protocol_text(setting: ProxyProtocol) -> &'static str {
    match setting {
        ProxyProtocol::Off => "off",
        ProxyProtocol::Optional => "optional",
        ProxyProtocol::Required => "required",
    }
}

/// A list of address ranges.
pub(super) fn cidrs(value: &Value) -> Result<Vec<Cidr>, InvalidValue> {
    let Value::Sequence(list) = value else {
        let allowed = "a list of address ranges, such as [10.0.0.0/8, \"2001:db8::/32\"]";
        return Err(allowed.to_owned().into());
    };
    parse_items(list, |item| {
        let range = item.as_str().and_then(|text| text.parse().ok());
        range.ok_or_else(|| "an address range, such as 10.0.0.0/8 or 2001:db8::/32".to_owned())
    })
}

/// The URL of a server, `http://host` or `http://host:port`. Returns the part after the scheme.
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
