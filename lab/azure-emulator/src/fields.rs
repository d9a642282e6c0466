//! Strict reading of the control API's JSON objects. Every mistake is collected with its place and what is allowed
//! there, and all of them are reported in one response.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::http::StatusCode;
use headgate_core::settings::format_duration;
use jiff::SignedDuration;
use serde_json::{Map, Value};

use super::error::ErrorResponse;

/// Mistakes that one response lists.
const MAX_MISTAKES: usize = 20;
/// Characters of an unknown field's name that a mistake shows.
const MAX_NAME_CHARS: usize = 60;

/// Reads the object `value`; `what` names it in messages.
pub(super) fn read<T>(
    value: Value,
    what: &str,
    read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
) -> Result<T, ErrorResponse> {
    let mut mistakes = Vec::new();
    let result = Fields::read(String::new(), value, &mut mistakes, read);
    match (result, mistakes.len()) {
        (Some(result), 0) => Ok(result),
        (_, count) => {
            let message = match count {
                0 | 1 => format!("The {what} is not accepted: it has a mistake."),
                _ => format!("The {what} is not accepted: it has {count} mistakes."),
            };
            let error = ErrorResponse::new(StatusCode::BAD_REQUEST, "InvalidRequestContent", message).without_details();
            Err(mistakes
                .iter()
                .take(MAX_MISTAKES)
                .fold(error, |error, mistake| error.detail("InvalidField", mistake)))
        }
    }
}

/// An object being read. A field that is `null` counts as absent.
pub(super) struct Fields<'a> {
    /// Path of the object with a trailing dot, such as `match.`; empty for the outermost object.
    prefix: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
    mistakes: &'a mut Vec<String>,
}

impl Fields<'_> {
    fn read<T>(
        prefix: String,
        value: Value,
        mistakes: &mut Vec<String>,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        let Value::Object(left) = value else {
            let place = if prefix.is_empty() { "it." } else { &prefix };
            mistakes.push(format!("{} must be an object", place.trim_end_matches('.')));
            return None;
        };
        let known = Vec::new();
        let mut fields = Fields {
            prefix,
            left,
            known,
            mistakes,
        };
        let result = read(&mut fields);
        fields.report_unknown();
        result
    }

    /// Reports the fields that were not read as unknown.
    fn report_unknown(self) {
        for key in self.left.keys() {
            let shown: String = key.chars().take(MAX_NAME_CHARS).collect();
            self.mistakes.push(format!(
                "{}{} is unknown; known here: {}",
                self.prefix,
                shown.escape_debug(),
                self.known.join(", ")
            ));
        }
    }

    /// Adds the mistake that `key` must be `what`.
    pub(super) fn must_be(&mut self, key: &str, what: impl Display) {
        self.mistakes.push(format!("{}{key} must be {what}", self.prefix));
    }

    /// Adds a mistake of the whole object: a sentence that begins with its verb.
    pub(super) fn mistake(&mut self, what: impl Display) {
        let place = if self.prefix.is_empty() { "it." } else { &self.prefix };
        self.mistakes.push(format!("{} {what}", place.trim_end_matches('.')));
    }

    /// Adds the mistake that `key` is missing, unless `key` has a mistake already.
    pub(super) fn missing(&mut self, key: &str) {
        let place = format!("{}{key}", self.prefix);
        if !self.mistakes.iter().any(|mistake| mistake.starts_with(&place)) {
            self.mistake(format_args!("must have {key}"));
        }
    }

    /// How many of these fields are present.
    pub(super) fn count_given(&self, keys: &[&str]) -> usize {
        let given = |key: &&&str| self.left.get(**key).is_some_and(|value| !value.is_null());
        keys.iter().filter(given).count()
    }

    /// Reads a field of any type.
    pub(super) fn value(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.left.remove(key).filter(|value| !value.is_null())
    }

    /// Reads a field with `parse`, whose error says what the field must be.
    pub(super) fn parsed<T>(&mut self, key: &'static str, parse: impl FnOnce(Value) -> Result<T, String>) -> Option<T> {
        match parse(self.value(key)?) {
            Ok(value) => Some(value),
            Err(what) => {
                self.must_be(key, what);
                None
            }
        }
    }

    /// Reads a string with `parse`.
    pub(super) fn text<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.parsed(key, |value| match value {
            Value::String(text) => parse(&text),
            _ => Err("text".to_owned()),
        })
    }

    /// Reads a whole number in the range.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.parsed(key, |value| {
            let number = value.as_u64().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Reads a duration with its unit, such as `5s`.
    pub(super) fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.parsed(key, |value| duration(&value, &range))
    }

    /// Reads one of these words and returns what it stands for.
    pub(super) fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parsed(key, |value| {
            let chosen = words.iter().find(|(word, _)| value.as_str() == Some(word));
            chosen.map(|(_, value)| *value).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                format!("one of {}", words.join(", "))
            })
        })
    }

    /// Reads an object within the object.
    pub(super) fn object<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        Fields::read(format!("{}{key}.", self.prefix), value, self.mistakes, read)
    }
}

fn duration(value: &Value, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let parsed = value.as_str().and_then(|text| text.parse::<SignedDuration>().ok());
    parsed
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| range.contains(duration))
        .ok_or_else(|| {
            format!(
                "a duration from {} to {} with its unit, such as 500ms or 5s",
                format_duration(*range.start()),
                format_duration(*range.end())
            )
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Sample = (Option<u64>, Option<Duration>, Option<u8>, Option<u64>);

    fn sample(value: Value) -> Result<Sample, Vec<String>> {
        let result = read(value, "sample", |fields| {
            let number = fields.number("number", 1..=9);
            let wait = fields.duration("wait", Duration::ZERO..=Duration::from_mins(1));
            let word = fields.word("word", &[("one", 1), ("two", 2)]);
            let inner = fields.object("inner", |fields| fields.number("deep", 0..=1));
            Some((number, wait, word, inner))
        });
        result.map_err(|error| {
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            let details = error.details.unwrap();
            details.into_iter().map(|detail| detail.message).collect()
        })
    }

    #[test]
    fn valid_objects_are_read() {
        let (one, two) = (Duration::from_millis(1500), Duration::from_mins(1));
        for (value, want) in [
            (json!({}), (None, None, None, None)),
            (json!({"number": null, "word": "one"}), (None, None, Some(1), None)),
            (json!({"number": 9, "wait": "1.5s"}), (Some(9), Some(one), None, None)),
            (
                json!({"wait": "1m", "inner": {"deep": 1}}),
                (None, Some(two), None, Some(1)),
            ),
        ] {
            assert_eq!(sample(value.clone()), Ok(want), "{value}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_its_place() {
        for (value, want) in [
            (json!([]), vec!["it must be an object"]),
            (
                json!({"number": 10, "wait": 5, "word": "three", "inner": {"deep": -1, "x\n": 1}, "other": 1}),
                vec![
                    "number must be a whole number from 1 to 9",
                    "wait must be a duration from 0s to 1m with its unit, such as 500ms or 5s",
                    "word must be one of one, two",
                    "inner.deep must be a whole number from 0 to 1",
                    "inner.x\\n is unknown; known here: deep",
                    "other is unknown; known here: number, wait, word, inner",
                ],
            ),
            (
                json!({"inner": 1, "wait": "-1s"}),
                vec![
                    "wait must be a duration from 0s to 1m with its unit, such as 500ms or 5s",
                    "inner must be an object",
                ],
            ),
        ] {
            let want: Vec<_> = want.into_iter().map(str::to_owned).collect();
            assert_eq!(sample(value.clone()), Err(want), "{value}");
        }
    }

    #[test]
    fn reported_mistakes_are_bounded() {
        let many: Map<_, _> = (0..1000)
            .map(|n| (format!("{n}{}", "x".repeat(1000)), json!(1)))
            .collect();
        let reported = sample(Value::Object(many)).unwrap_err();
        assert_eq!(reported.len(), MAX_MISTAKES);
        assert!(reported.iter().all(|mistake| mistake.len() < 200));
    }
}
