//! What a fault does, read from the JSON that people give it as; every mistake in that is told.
//!
//! An [`Action`] says what is to happen. The dispatcher makes it happen.

use std::time::Duration;

use serde_json::{Value, json};

use super::fields::Fields;
use super::injected::Injected;

mod answer;

/// The longest stall: longer than any client of ours waits, short enough for a test to end.
const MAX_STALL: Duration = Duration::from_mins(10);
/// The longest path of a write: no ARM id is longer, whatever its names.
const MAX_PATH_BYTES: usize = 2048;
/// The actions, of which a fault has one.
const TAGS: [&str; 5] = ["answer", "cut", "stall", "operation", "write"];

/// What happens to a request.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// It is answered like this and has no effect.
    Answer(Injected),
    /// Its connection is closed without an answer.
    Cut(When),
    /// It is answered this much later.
    Stall {
        wait: Duration,
        /// Whether the wait is before it has its effect, or between that and the answer.
        when: When,
    },
    /// It is accepted, and the operation it starts ends like this.
    Operation { end: End, effect: Effect },
    /// Somebody else writes first; then it goes on as if nothing had been.
    Write(Write),
}

/// On which side of the request's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// How an operation ends; the value is the `error` object that its status shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Succeeded,
    Failed(Value),
    Canceled(Value),
}

/// What of the write stays once its operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The document stays as written.
    Kept,
    /// The document is again what it was before.
    Lost,
}

/// A write by somebody else.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    /// The resource; none is the one that the request is about.
    pub(super) path: Option<String>,
    pub(super) change: Change,
}

/// What it does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Put(Value),
    Delete,
    /// The document, merged with this as RFC 7386 says, is put.
    Merge(Value),
}

impl Action {
    /// Reads it.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let given = fields.has(&TAGS);
        if given != 1 {
            fields.mistake(format_args!(
                "must have exactly one of {}, not {given}",
                TAGS.join(", ")
            ));
        }
        let sides = [("before", When::Before), ("after", When::After)];
        let answer = fields.object("answer", answer::read).map(Self::Answer);
        let cut = fields.word("cut", &sides).map(Self::Cut);
        let stall = stall(fields, &sides);
        let operation = operation(fields);
        let write = fields.object("write", write).map(Self::Write);
        answer.or(cut).or(stall).or(operation).or(write)
    }
}

fn stall(fields: &mut Fields<'_>, sides: &[(&str, When)]) -> Option<Action> {
    let stalls = fields.has(&["stall"]) > 0;
    let wait = fields.duration("stall", Duration::from_millis(1)..=MAX_STALL);
    let when = if stalls { fields.word("when", sides) } else { None };
    Some(Action::Stall {
        wait: wait?,
        when: when.unwrap_or(When::Before),
    })
}

fn operation(fields: &mut Fields<'_>) -> Option<Action> {
    #[derive(Clone, Copy, PartialEq)]
    enum Verb {
        Fail,
        Cancel,
        Succeed,
    }
    let starts = fields.has(&["operation"]) > 0;
    let verbs = [
        ("fail", Verb::Fail),
        ("cancel", Verb::Cancel),
        ("succeed", Verb::Succeed),
    ];
    let verb = fields.word("operation", &verbs);
    let (error, effect) = if starts {
        (
            fields.parsed("error", error),
            fields.word("effect", &[("kept", Effect::Kept), ("lost", Effect::Lost)]),
        )
    } else {
        (None, None)
    };
    let verb = verb?;
    let effect = effect.unwrap_or(Effect::Kept);
    if verb == Verb::Succeed && (effect == Effect::Kept || error.is_some()) {
        fields.mistake("succeeds as without a fault: give effect lost, and no error");
    }
    let default = |code, message| json!({"code": code, "message": message, "details": []});
    let end = match verb {
        Verb::Fail => End::Failed(error.unwrap_or_else(|| default("InternalServerError", "An error occurred."))),
        Verb::Cancel => End::Canceled(error.unwrap_or_else(|| default("Canceled", "Operation was canceled."))),
        Verb::Succeed => End::Succeeded,
    };
    Some(Action::Operation { end, effect })
}

fn error(value: Value) -> Result<Value, String> {
    if value["code"].is_string() && value["message"].is_string() {
        Ok(value)
    } else {
        Err("an object with at least a code and a message, both texts".to_owned())
    }
}

fn write(fields: &mut Fields<'_>) -> Option<Write> {
    #[derive(Clone, Copy, PartialEq)]
    enum Method {
        Put,
        Delete,
    }
    let path = fields.text("path", path);
    let method = fields.word("method", &[("PUT", Method::Put), ("DELETE", Method::Delete)]);
    let body = fields.parsed("body", object);
    let merge = fields.parsed("merge", object);
    let change = match (method, body, merge) {
        (None | Some(Method::Put), Some(body), None) => Change::Put(body),
        (None, None, Some(merge)) => Change::Merge(merge),
        (Some(Method::Delete), None, None) => Change::Delete,
        _ => {
            fields.mistake("must be one of method PUT with body, method DELETE, merge");
            return None;
        }
    };
    Some(Write { path, change })
}

fn object(value: Value) -> Result<Value, String> {
    Some(value)
        .filter(Value::is_object)
        .ok_or_else(|| "an object".to_owned())
}

fn path(text: &str) -> Result<String, String> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#');
    if text.starts_with('/') && plain && text.len() <= MAX_PATH_BYTES {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a path that begins with /, has no query and at most {MAX_PATH_BYTES} bytes"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields;
    use super::*;

    fn read(value: Value) -> Result<Action, Vec<String>> {
        fields::read(value, "fault", Action::read).map_err(|error| {
            let details = error.details.unwrap_or_default();
            details.into_iter().map(|detail| detail.message).collect()
        })
    }

    #[test]
    fn actions() {
        let boom = json!({"code": "Boom", "message": "It went.", "target": "x"});
        let failed = json!({"code": "InternalServerError", "message": "An error occurred.", "details": []});
        for (given, want) in [
            (json!({"cut": "before"}), "Cut(Before)".to_owned()),
            (json!({"cut": "after", "answer": null}), "Cut(After)".to_owned()),
            (json!({"stall": "5s"}), "Stall { wait: 5s, when: Before }".to_owned()),
            (
                json!({"stall": "5ms", "when": "after"}),
                "Stall { wait: 5ms, when: After }".to_owned(),
            ),
            (
                json!({"operation": "fail", "error": boom}),
                format!(
                    "{:?}",
                    Action::Operation {
                        end: End::Failed(boom.clone()),
                        effect: Effect::Kept
                    }
                ),
            ),
            (
                json!({"operation": "fail", "effect": "lost"}),
                format!(
                    "{:?}",
                    Action::Operation {
                        end: End::Failed(failed),
                        effect: Effect::Lost
                    }
                ),
            ),
            (
                json!({"operation": "succeed", "effect": "lost"}),
                "Operation { end: Succeeded, effect: Lost }".to_owned(),
            ),
            (
                json!({"write": {"path": "/a", "body": {"x": 1}}}),
                r#"Write(Write { path: Some("/a"), change: Put(Object {"x": Number(1)}) })"#.to_owned(),
            ),
            (
                json!({"write": {"method": "DELETE"}}),
                "Write(Write { path: None, change: Delete })".to_owned(),
            ),
            (
                json!({"write": {"merge": {"tags": null}}}),
                r#"Write(Write { path: None, change: Merge(Object {"tags": Null}) })"#.to_owned(),
            ),
        ] {
            assert_eq!(format!("{:?}", read(given.clone()).unwrap()), want, "{given}");
        }
    }

    #[test]
    fn mistakes() {
        for (given, want) in [
            (
                json!({}),
                "must have exactly one of answer, cut, stall, operation, write, not 0",
            ),
            (json!({"cut": "before", "stall": "1s"}), "write, not 2"),
            (json!({"cut": "between"}), "cut must be one of before, after"),
            (json!({"cut": "after", "when": "after"}), "when is unknown"),
            (json!({"stall": "5"}), "stall must be a duration from 1ms to 10m"),
            (json!({"stall": "11m"}), "stall must be a duration"),
            (
                json!({"operation": "fail", "error": {"code": 1}}),
                "error must be an object with at least a code",
            ),
            (json!({"operation": "succeed"}), "give effect lost"),
            (
                json!({"operation": "stop"}),
                "operation must be one of fail, cancel, succeed",
            ),
            (json!({"answer": {}}), "answer must have a status or a code"),
            (
                json!({"answer": {"status": 99}}),
                "answer.status must be a whole number from 200 to 599",
            ),
            (
                json!({"answer": {"code": "Drain"}}),
                "answer.code must be one of SubscriptionRequestsThrottled,",
            ),
            (
                json!({"answer": {"code": "PreconditionFailed", "status": 200}}),
                "no status of one",
            ),
            (
                json!({"answer": {"status": 400, "body": 1, "text": ""}}),
                "at most one of code, body, text",
            ),
            (json!({"answer": {"status": 204, "body": 1}}), "comes without a body"),
            (json!({"answer": {"status": 400, "resource": "/x"}}), "has a resource"),
            (
                json!({"answer": {"status": 400, "headers": {"Content-Length": "1"}}}),
                "headers must be an object of",
            ),
            (
                json!({"answer": {"status": 400, "headers": {"a": "1\n2"}}}),
                "headers must be an object of",
            ),
            (
                json!({"answer": {"status": 400, "retryAfter": 1, "headers": {"retry-after": "2"}}}),
                "has Retry-After twice",
            ),
            (
                json!({"write": {}}),
                "must be one of method PUT with body, method DELETE, merge",
            ),
            (json!({"write": {"method": "DELETE", "body": {}}}), "must be one of"),
            (
                json!({"write": {"method": "POST"}}),
                "write.method must be one of PUT, DELETE",
            ),
            (
                json!({"write": {"path": "/a?b", "merge": {}}}),
                "write.path must be a path that begins with /",
            ),
        ] {
            let mistakes = read(given.clone()).unwrap_err();
            assert!(
                mistakes.iter().any(|mistake| mistake.contains(want)),
                "{given}: {mistakes:?}"
            );
        }
    }
}
