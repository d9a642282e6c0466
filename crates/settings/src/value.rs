//! Values of settings as text: what stands in a YAML document, and durations. Pure.

use std::time::Duration;

use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use serde_yaml::Value;

use crate::violation::Printable;

/// The value of a variable by its name.
pub type EnvironmentLookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// A plain scalar as text, the way it was written.
#[must_use]
pub fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Text as it would be written between quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", Printable(&text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// How a wrong value is shown in a mistake.
#[must_use]
pub fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a section".to_owned(),
        Value::Tagged(_) => "a tagged value".to_owned(),
        scalar => scalar_text(scalar).map_or_else(|| "a value".to_owned(), |text| quoted(&text)),
    }
}

/// A duration as settings spell it, `1m30s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    static PRINTER: SpanPrinter = SpanPrinter::new()
        .designator(Designator::Compact)
        .spacing(Spacing::None);
    PRINTER.unsigned_duration_to_string(&duration)
}
