//! Which facts of a Node object are signals: the matchers that count for one purpose. Pure. `known_signals` makes them from the settings.
//!
//! To add a kind of matcher, add a variant to [`SignalMatcher`] here. The compiler then requires its form in the settings
//! ([`SignalMatcher::parse`] and [`SignalMatcher::to_value`]), its name, and how it is found in a [`Node`]; what it means to an operator
//! is in `signal.rs`. Facts that only a matcher reads are kept for the keys and types that a matcher names, so nothing is stored
//! for a matcher that is not configured.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::known_signals::KnownSignal;
use super::object::Taint;
use super::reader::Node;
use super::signal::Signal;
use super::spot_notice::AzureNotice;
use crate::settings::{format_duration, is_qualified_name, parse_duration};

/// The name of a cordon in the settings.
const CORDON: &str = "cordon";
/// How long a node must be cordoned unless the entry says otherwise.
pub(super) const DEFAULT_UNSCHEDULABLE_FOR: Duration = Duration::from_secs(10);
const MAX_UNSCHEDULABLE_FOR: Duration = Duration::from_hours(1);
/// Bounds the texts that become part of a signal's name.
const MAX_TEXT_BYTES: usize = 256;
/// The forms of an entry of `signals.extra`, for errors.
pub(super) const FORMS: &str = "{taint: example.com/draining, for: [health, adminState]}, {taint: example.com/*, …}, \
    {condition: {type: T, status: \"True\", reason: R, messagePrefix: P}, …}, {label: {key: K, value: V}, …}, \
    {annotation: {key: K, value: V}, …} or {signal: cordon, after: 10s, …}";

/// What finds a signal in a Node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignalMatcher {
    /// A taint with this key, whatever its value and effect.
    Taint(String),
    /// A taint whose key begins with this text; `*` in the settings stands for the rest.
    TaintPrefix(String),
    /// A condition in the Node's status.
    Condition(ConditionMatcher),
    /// A label of the Node.
    Label(KeyMatcher),
    /// An annotation of the Node.
    Annotation(KeyMatcher),
    /// The Node is cordoned for at least this long.
    Unschedulable(Duration),
    /// The Node object is being deleted.
    Deletion,
    /// kubelet reports the node's graceful shutdown.
    Shutdown,
    /// Azure announces in Scheduled Events what happens to this VM. Not in the Node object.
    Azure(AzureNotice),
}

/// A condition by its type and status; reason and message where the type alone does not say what happens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionMatcher {
    /// The condition's `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The condition's `status`: `True`, `False` or `Unknown`.
    pub status: String,
    /// The condition's `reason`; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How the condition's message begins; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_prefix: Option<String>,
}

/// A label or an annotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KeyMatcher {
    /// The key.
    pub key: String,
    /// The value; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

impl KeyMatcher {
    fn is_match(&self, values: &BTreeMap<String, String>) -> bool {
        let found = values.get(&self.key);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}

impl fmt::Display for KeyMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

/// The name in metrics and `/statusz`: that of the signal, except that a prefix stands for all its keys.
impl fmt::Display for SignalMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaintPrefix(prefix) => write!(f, "{prefix}*"),
            Self::Taint(key) => f.write_str(key),
            Self::Condition(ConditionMatcher {
                kind,
                status,
                reason,
                message_prefix,
            }) => {
                write!(f, "condition:{kind}={status}")?;
                if let Some(reason) = reason {
                    write!(f, ",reason={reason}")?;
                }
                message_prefix
                    .as_ref()
                    .map_or(Ok(()), |prefix| write!(f, ",message={prefix}*"))
            }
            Self::Label(label) => write!(f, "label:{label}"),
            Self::Annotation(annotation) => write!(f, "annotation:{annotation}"),
            Self::Unschedulable(_) => Signal::Unschedulable.fmt(f),
            Self::Deletion => Signal::Deletion.fmt(f),
            Self::Shutdown => Signal::Shutdown.fmt(f),
            Self::Azure(notice) => Signal::Azure(*notice).fmt(f),
        }
    }
}

impl SignalMatcher {
    /// Those without a form of their own in the settings, in the order of the settings reference.
    pub const BUILT_IN: [Self; 6] = [
        Self::Deletion,
        Self::Shutdown,
        Self::Azure(AzureNotice::Preempt),
        Self::Azure(AzureNotice::Terminate),
        Self::Azure(AzureNotice::Redeploy),
        Self::Azure(AzureNotice::Reboot),
    ];

    /// The signals that this matcher finds, each with how long it must last before it counts.
    fn find<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (Signal, Duration)> + 'a {
        let at_once =
            |is_found: bool, signal: fn(String) -> Signal| is_found.then(|| (signal(self.to_string()), Duration::ZERO));
        let (taints, other): (&[Taint], _) = match self {
            Self::Taint(_) | Self::TaintPrefix(_) => (&node.taints, None),
            Self::Condition(condition) => (&[], at_once(condition.is_match(node), Signal::Condition)),
            Self::Label(label) => (&[], at_once(label.is_match(&node.labels), Signal::Label)),
            Self::Annotation(annotation) => (&[], at_once(annotation.is_match(&node.annotations), Signal::Annotation)),
            Self::Unschedulable(after) => (&[], node.unschedulable.then_some((Signal::Unschedulable, *after))),
            Self::Deletion => (&[], at_once(node.is_deleting, |_| Signal::Deletion)),
            Self::Shutdown => (&[], at_once(node.shutting_down, |_| Signal::Shutdown)),
            Self::Azure(_) => (&[], None),
        };
        let found = taints.iter().map(|taint| &taint.key).filter(|key| match self {
            Self::Taint(wanted) => *key == wanted,
            Self::TaintPrefix(prefix) => key.starts_with(prefix.as_str()),
            _ => false,
        });
        found
            .map(|key| (Signal::Taint(key.clone()), Duration::ZERO))
            .chain(other)
    }

    /// Whether `signal` comes from this matcher.
    pub(crate) fn is_source_of(&self, signal: &Signal) -> bool {
        match (self, signal) {
            (Self::TaintPrefix(prefix), Signal::Taint(key)) => key.starts_with(prefix.as_str()),
            (Self::Taint(wanted), Signal::Taint(key)) => wanted == key,
            (Self::Condition(_), Signal::Condition(name))
            | (Self::Label(_), Signal::Label(name))
            | (Self::Annotation(_), Signal::Annotation(name)) => *name == self.to_string(),
            (Self::Unschedulable(_), Signal::Unschedulable)
            | (Self::Deletion, Signal::Deletion)
            | (Self::Shutdown, Signal::Shutdown) => true,
            (Self::Azure(wanted), Signal::Azure(notice)) => wanted == notice,
            _ => false,
        }
    }

    /// Reads what an entry of `signals.extra` finds: the entry without its `for`. Of the signals with a name only a cordon has a matcher's
    /// form of its own.
    ///
    /// # Errors
    /// What is allowed, in words.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or_else(|| format!("an entry such as {FORMS}"))?;
        let kinds = ["signal", "taint", "condition", "label", "annotation"];
        let mut given = kinds.into_iter().filter_map(|kind| Some((kind, fields.get(kind)?)));
        let (Some((kind, value)), None) = (given.next(), given.next()) else {
            return Err(format!("an entry with exactly one of {}: {FORMS}", kinds.join(", ")));
        };
        let others: &[&str] = if kind == "signal" { &["after"] } else { &[] };
        if let Some(unknown) = fields
            .keys()
            .find(|field| *field != kind && !others.contains(&field.as_str()))
        {
            return Err(format!("no field {unknown:?} beside {kind}; {FORMS}"));
        }
        match kind {
            "taint" => parse_taint(value),
            "condition" => ConditionMatcher::parse(value).map(Self::Condition),
            "label" => parse_key(value, kind, is_label_value).map(Self::Label),
            "annotation" => parse_key(value, kind, is_short_text).map(Self::Annotation),
            _ => parse_cordon(value, fields.get("after")),
        }
    }

    /// The entry in the settings.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Taint(key) => json!({"taint": key}),
            Self::TaintPrefix(prefix) => json!({"taint": format!("{prefix}*")}),
            Self::Condition(condition) => json!({"condition": condition}),
            Self::Label(label) => json!({"label": label}),
            Self::Annotation(annotation) => json!({"annotation": annotation}),
            Self::Unschedulable(after) => json!({"signal": CORDON, "after": format_duration(*after)}),
            Self::Deletion | Self::Shutdown | Self::Azure(_) => {
                json!({"signal": KnownSignal::of(self).map(KnownSignal::as_str)})
            }
        }
    }
}

impl ConditionMatcher {
    fn is_match(&self, node: &Node) -> bool {
        node.conditions.get(&self.kind).is_some_and(|found| {
            found.status == self.status
                && self.reason.as_ref().is_none_or(|reason| *reason == found.reason)
                && self
                    .message_prefix
                    .as_ref()
                    .is_none_or(|prefix| found.message.starts_with(prefix.as_str()))
        })
    }

    fn parse(value: &Value) -> Result<Self, String> {
        let allowed = |what: &str| {
            format!(
                "a condition with {what}, such as {{type: VMEventScheduled, status: \"True\", messagePrefix: \"Preempt Scheduled:\"}}"
            )
        };
        let fields = value.as_object().ok_or_else(|| allowed("type and status"))?;
        let known = ["type", "status", "reason", "messagePrefix"];
        if fields.keys().any(|field| !known.contains(&field.as_str())) {
            return Err(allowed("only type, status, reason and messagePrefix"));
        }
        // YAML reads a bare `True` as a boolean.
        let status = match fields.get("status") {
            Some(Value::Bool(true)) => "True",
            Some(Value::Bool(false)) => "False",
            Some(Value::String(text)) => text,
            _ => "",
        };
        if !["True", "False", "Unknown"].contains(&status) {
            return Err(allowed("the status True, False or Unknown"));
        }
        let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
        if !is_qualified_name(kind) {
            return Err(allowed("a type"));
        }
        let text = |field: &str| match fields.get(field) {
            None => Ok(None),
            Some(Value::String(text)) if is_short_text(text) && !text.is_empty() => Ok(Some(text.clone())),
            Some(_) => Err(allowed(&format!(
                "a {field} of 1 to {MAX_TEXT_BYTES} bytes without control characters"
            ))),
        };
        Ok(Self {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: text("reason")?,
            message_prefix: text("messagePrefix")?,
        })
    }
}

fn parse_taint(value: &Value) -> Result<SignalMatcher, String> {
    let text = value.as_str().unwrap_or_default();
    let allowed =
        || "a taint key such as example.com/draining, or how it begins: example.com/* or example.com/drain*".to_owned();
    match text.strip_suffix('*') {
        None if is_qualified_name(text) => Ok(SignalMatcher::Taint(text.to_owned())),
        // What precedes the star must be the beginning of a qualified name.
        Some(prefix) if is_qualified_name(&format!("{prefix}x")) && !prefix.is_empty() => {
            Ok(SignalMatcher::TaintPrefix(prefix.to_owned()))
        }
        _ => Err(allowed()),
    }
}

fn parse_key(value: &Value, kind: &str, is_value: fn(&str) -> bool) -> Result<KeyMatcher, String> {
    let allowed = || format!("{{{kind}: {{key: example.com/name, value: text}}}}; without value, any value matches");
    let fields = value.as_object().ok_or_else(allowed)?;
    if fields.keys().any(|field| field != "key" && field != "value") {
        return Err(allowed());
    }
    let key = fields.get("key").and_then(Value::as_str).unwrap_or_default();
    let text = match fields.get("value") {
        None => None,
        Some(Value::String(text)) if is_value(text) => Some(text.clone()),
        Some(Value::Bool(_) | Value::Number(_)) => {
            return Err(format!("{}; quote a value that YAML does not read as text", allowed()));
        }
        Some(_) => return Err(allowed()),
    };
    if is_qualified_name(key) {
        Ok(KeyMatcher {
            key: key.to_owned(),
            value: text,
        })
    } else {
        Err(allowed())
    }
}

fn parse_cordon(value: &Value, after: Option<&Value>) -> Result<SignalMatcher, String> {
    if value.as_str() != Some(CORDON) {
        return Err(format!("the signal {CORDON}; only it has `after`"));
    }
    let after = match after {
        None => Ok(DEFAULT_UNSCHEDULABLE_FOR),
        Some(value) => parse_duration(
            value.as_str().unwrap_or_default(),
            Duration::ZERO,
            MAX_UNSCHEDULABLE_FOR,
        ),
    };
    after.map(SignalMatcher::Unschedulable)
}

fn is_short_text(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES && !text.chars().any(char::is_control)
}

/// Whether the API server accepts the text as the value of a label.
fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= 63 && !text.contains('/') && is_qualified_name(text)
}

/// What counts as a signal for one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalRules {
    /// The matchers, in the order of the settings; built-in ones last.
    pub matchers: Vec<SignalMatcher>,
}

impl SignalRules {
    /// The rules for taints with these keys, and for `built_in`.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>, built_in: &[SignalMatcher]) -> Self {
        let taints = keys.into_iter().map(|key| SignalMatcher::Taint(key.into()));
        Self {
            matchers: taints.chain(built_in.iter().cloned()).collect(),
        }
    }

    /// The signals of a Node, each with how long it must last before it counts.
    pub(crate) fn detect(&self, node: &Node) -> BTreeMap<Signal, Duration> {
        let mut found: BTreeMap<Signal, Duration> = BTreeMap::new();
        for (signal, after) in self.matchers.iter().flat_map(|matcher| matcher.find(node)) {
            let shortest = found.entry(signal).or_insert(after);
            *shortest = after.min(*shortest);
        }
        found
    }

    /// The names of everything that could be a signal, each with whether one of `signals` comes from it.
    pub fn names<'a>(&'a self, signals: &'a BTreeMap<Signal, impl Sized>) -> impl Iterator<Item = (String, bool)> + 'a {
        self.matchers.iter().map(|matcher| {
            let is_present = signals.keys().any(|signal| matcher.is_source_of(signal));
            (matcher.to_string(), is_present)
        })
    }
}

#[cfg(test)]
mod tests;
