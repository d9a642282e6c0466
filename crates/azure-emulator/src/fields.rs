//! Reads the control API's objects strictly: every mistake is noted with its place and what is allowed there,
//! and all of them are told at once.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::http::StatusCode;
use headgate_settings::format_duration;
use jiff::SignedDuration;
use serde_json::{Map, Value};

use super::error::ArmError;

/// No more mistakes are told at once; nobody reads on.
const MAX_MISTAKES: usize = 20;
/// No more of a field's name is shown.
const MAX_NAME_CHARS: usize = 60;

/// Reads all of `value`, which people call `what`.
pub(super) fn read<T>(
    value: Value,
    what: &str,
    read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
) -> Result<T, ArmError> {
    let mut mistakes = Vec::new();
    let result = Fields::read(String::new(), value, &mut mistakes, read);
    match (result, mistakes.len()) {
        (Some(result), 0) => Ok(result),
        (_, count) => {
            let message = match count {
                0 | 1 => format!("The {what} is not taken: it has a mistake."),
                _ => format!("The {what} is not taken: it has {count} mistakes."),
            };
            let error = ArmError::new(StatusCode::BAD_REQUEST, "InvalidRequestContent", message).without_details();
            Err(mistakes
                .iter()
                .take(MAX_MISTAKES)
                .fold(error, |error, mistake| error.detail("InvalidField", mistake)))
        }
    }
}

/// One object that is being read. `null` is the same as absent.
pub(super) struct Fields<'a> {
    /// Where it stands, such as `match.`; empty at the top.
    at: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
    mistakes: &'a mut Vec<String>,
}

impl Fields<'_> {
    fn read<T>(
        at: String,
        value: Value,
        mistakes: &mut Vec<String>,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        let Value::Object(left) = value else {
            let place = if at.is_empty() { "it." } else { &at };
            mistakes.push(format!("{} must be an object", place.trim_end_matches('.')));
            return None;
        };
        let known = Vec::new();
        let mut fields = Fields {
            at,
            left,
            known,
            mistakes,
        };
        let result = read(&mut fields);
        fields.end();
        result
    }

    /// What nobody has asked for is unknown.
    fn end(self) {
        for key in self.left.keys() {
            let shown: String = key.chars().take(MAX_NAME_CHARS).collect();
            self.mistakes.push(format!(
                "{}{} is unknown; known here: {}",
                self.at,
                shown.escape_debug(),
                self.known.join(", ")
            ));
        }
    }

    /// Says what `key` must be.
    pub(super) fn must_be(&mut self, key: &str, what: impl Display) {
        self.mistakes.push(format!("{}{key} must be {what}", self.at));
    }

    /// Says what is wrong with the object, in a sentence that begins with its verb.
    pub(super) fn mistake(&mut self, what: impl Display) {
        let place = if self.at.is_empty() { "it." } else { &self.at };
        self.mistakes.push(format!("{} {what}", place.trim_end_matches('.')));
    }

    /// Says that `key` must be there, unless something was wrong with it.
    pub(super) fn missing(&mut self, key: &str) {
        let place = format!("{}{key}", self.at);
        if !self.mistakes.iter().any(|mistake| mistake.starts_with(&place)) {
            self.mistake(format_args!("must have {key}"));
        }
    }

    /// How many of these are given.
    pub(super) fn has(&self, keys: &[&str]) -> usize {
        let given = |key: &&&str| self.left.get(**key).is_some_and(|value| !value.is_null());
        keys.iter().filter(given).count()
    }

    /// Any value.
    pub(super) fn value(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.left.remove(key).filter(|value| !value.is_null())
    }

    /// What `parse` makes of the value, or a mistake that says what it must be.
    pub(super) fn parsed<T>(&mut self, key: &'static str, parse: impl FnOnce(Value) -> Result<T, String>) -> Option<T> {
        match parse(self.value(key)?) {
            Ok(value) => Some(value),
            Err(what) => {
                self.must_be(key, what);
                None
            }
        }
    }

    /// Text.
    pub(super) fn text<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.parsed(key, |value| match value {
            Value::String(text) => parse(&text),
            _ => Err("text".to_owned()),
        })
    }

    /// A whole number.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.parsed(key, |value| {
            let number = value.as_u64().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// A duration with its unit.
    pub(super) fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.parsed(key, |value| duration(&value, &range))
    }

    /// One of these words.
    pub(super) fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parsed(key, |value| {
            let chosen = words.iter().find(|(word, _)| value.as_str() == Some(word));
            chosen.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                format!("one of {}", words.join(", "))
            })
        })
    }

    /// An object in it.
    pub(super) fn object<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        Fields::read(format!("{}{key}.", self.at), value, self.mistakes, read)
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
        let taken = read(value, "sample", |fields| {
            let number = fields.number("number", 1..=9);
            let wait = fields.duration("wait", Duration::ZERO..=Duration::from_mins(1));
            let word = fields.word("word", &[("one", 1), ("two", 2)]);
            let inner = fields.object("inner", |fields| fields.number("deep", 0..=1));
            Some((number, wait, word, inner))
        });
        taken.map_err(|error| {
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            let details = error.details.unwrap();
            details.into_iter().map(|detail| detail.message).collect()
        })
    }

    #[test]
    fn what_is_right_is_taken() {
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
    fn every_mistake_is_told_with_its_place() {
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
    fn what_is_told_is_bounded() {
        let many: Map<_, _> = (0..1000)
            .map(|n| (format!("{n}{}", "x".repeat(1000)), json!(1)))
            .collect();
        let told = sample(Value::Object(many)).unwrap_err();
        assert_eq!(told.len(), MAX_MISTAKES);
        assert!(told.iter().all(|mistake| mistake.len() < 200));
    }
}
