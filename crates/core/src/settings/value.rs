//! Text of YAML values and of durations. Pure.

use std::time::Duration;

use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use serde_yaml::Value;

use crate::settings::violation::Printable;

/// Looks up an environment variable by name.
pub type EnvironmentLookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The text of a string, number or boolean; `None` for other values.
pub fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// A text in quotes, with its quotes and backslashes escaped.
fn quoted(text: &str) -> String {
    format!("\"{}\"", Printable(&text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// A value as a violation shows it, with its type: only a text has quotes.
pub fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::Bool(flag) => format!("the boolean {flag}"),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a section".to_owned(),
        Value::Tagged(_) => "a tagged value".to_owned(),
        Value::String(text) => quoted(text),
    }
}

/// A duration in the form that settings have, such as `1m30s`.
pub fn format_duration(duration: Duration) -> String {
    static PRINTER: SpanPrinter = SpanPrinter::new()
        .designator(Designator::Compact)
        .spacing(Spacing::None);
    PRINTER.unsigned_duration_to_string(&duration)
}

/// Parses a duration with its unit, such as `1m30s`.
///
/// # Errors
/// What is allowed, when the text is not a duration from `min` to `max`.
pub fn parse_duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| (min..=max).contains(duration))
        .ok_or_else(|| {
            format!(
                "a duration from {} to {} with its unit, such as 500ms, 5s or 1m30s",
                format_duration(min),
                format_duration(max)
            )
        })
}

/// A parser of durations up to `max`, for clap, which adds the flag and the value to its error.
pub fn duration_up_to(max: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| parse_duration(text, Duration::ZERO, max).map_err(|allowed| format!("allowed: {allowed}"))
}
