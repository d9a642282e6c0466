//! The action of a fault rule, parsed from the control API's JSON. All mistakes are reported at once.
//!
//! This module only describes actions; `state.rs` carries them out.

use std::time::Duration;

use serde_json::{Value, json};

use super::injected_response::InjectedResponse;
use super::parse_response;
use crate::fields::Fields;

/// The longest stall: longer than any client waits, short enough for a test to end.
const MAX_STALL: Duration = Duration::from_mins(10);
/// The longest path of a concurrent write. No ARM id is longer.
const MAX_PATH_BYTES: usize = 2048;
/// The fields that name an action; a rule has exactly one of them.
const ACTION_FIELDS: [&str; 5] = ["answer", "cut", "stall", "operation", "write"];

/// The effect of a rule on a request.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// The request gets this response and has no effect.
    Answer(InjectedResponse),
    /// The connection is closed without a response.
    Cut(When),
    /// The response is delayed.
    Stall {
        wait: Duration,
        /// `Before`: before the request has its effect. `After`: between the effect and the response.
        when: When,
    },
    /// The write is accepted, and its operation ends like this.
    Operation { end: OperationEnd, effect: Effect },
    /// Another write happens first, then the request continues.
    Write(ConcurrentWrite),
}

/// Before or after the request has its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

/// How an operation ends. The value is the `error` object of its status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OperationEnd {
    Succeeded,
    Failed(Value),
    Canceled(Value),
}

/// Whether the write is still there after its operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The document stays as written.
    Kept,
    /// The document is reverted to the version before the write.
    Lost,
    /// The pool of the request has no members.
    Emptied,
    /// The document stays as written, unless a newer write supersedes the operation: then the pool of the request has the members of
    /// before, and no answer says so.
    LostWhenSuperseded,
}

const EFFECTS: [(&str, Effect); 4] = [
    ("kept", Effect::Kept),
    ("lost", Effect::Lost),
    ("emptied", Effect::Emptied),
    ("lostWhenSuperseded", Effect::LostWhenSuperseded),
];

/// A write that a rule makes before the request is handled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConcurrentWrite {
    /// The resource. `None`: the one that the request is about.
    pub(crate) path: Option<String>,
    pub(crate) change: DocumentChange,
}

/// The change that a [`ConcurrentWrite`] makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DocumentChange {
    Put(Value),
    Delete,
    /// PUT of the current document with this JSON merge patch (RFC 7386) applied.
    Merge(Value),
}

impl Action {
    /// Parses the object under `action`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let given = fields.count_given(&ACTION_FIELDS);
        if given != 1 {
            fields.mistake(format_args!(
                "must have exactly one of {}, not {given}",
                ACTION_FIELDS.join(", ")
            ));
        }
        let sides = [("before", When::Before), ("after", When::After)];
        let answer = fields.object("answer", parse_response::read).map(Self::Answer);
        let cut = fields.word("cut", &sides).map(Self::Cut);
        let stall = read_stall(fields, &sides);
        let operation = read_operation(fields);
        let write = fields.object("write", read_write).map(Self::Write);
        answer.or(cut).or(stall).or(operation).or(write)
    }
}

fn read_stall(fields: &mut Fields<'_>, sides: &[(&str, When)]) -> Option<Action> {
    let stalls = fields.count_given(&["stall"]) > 0;
    let wait = fields.duration("stall", Duration::from_millis(1)..=MAX_STALL);
    let when = if stalls { fields.word("when", sides) } else { None };
    Some(Action::Stall {
        wait: wait?,
        when: when.unwrap_or(When::Before),
    })
}

fn read_operation(fields: &mut Fields<'_>) -> Option<Action> {
    #[derive(Clone, Copy, PartialEq)]
    enum Verb {
        Fail,
        Cancel,
        Succeed,
    }
    let starts = fields.count_given(&["operation"]) > 0;
    let verbs = [
        ("fail", Verb::Fail),
        ("cancel", Verb::Cancel),
        ("succeed", Verb::Succeed),
    ];
    let verb = fields.word("operation", &verbs);
    let (error, effect) = if starts {
        (fields.parsed("error", parse_error), fields.word("effect", &EFFECTS))
    } else {
        (None, None)
    };
    let verb = verb?;
    let effect = effect.unwrap_or(Effect::Kept);
    if verb == Verb::Succeed && (effect == Effect::Kept || error.is_some()) {
        fields.mistake("succeeds as without a fault: give another effect, and no error");
    }
    let default = |code, message| json!({"code": code, "message": message, "details": []});
    let end = match verb {
        Verb::Fail => {
            OperationEnd::Failed(error.unwrap_or_else(|| default("InternalServerError", "An error occurred.")))
        }
        Verb::Cancel => OperationEnd::Canceled(error.unwrap_or_else(|| default("Canceled", "Operation was canceled."))),
        Verb::Succeed => OperationEnd::Succeeded,
    };
    Some(Action::Operation { end, effect })
}

fn parse_error(value: Value) -> Result<Value, String> {
    if value["code"].is_string() && value["message"].is_string() {
        Ok(value)
    } else {
        Err("an object with at least a code and a message, both texts".to_owned())
    }
}

fn read_write(fields: &mut Fields<'_>) -> Option<ConcurrentWrite> {
    #[derive(Clone, Copy, PartialEq)]
    enum Method {
        Put,
        Delete,
    }
    let path = fields.text("path", parse_path);
    let method = fields.word("method", &[("PUT", Method::Put), ("DELETE", Method::Delete)]);
    let body = fields.parsed("body", parse_object);
    let merge = fields.parsed("merge", parse_object);
    let change = match (method, body, merge) {
        (None | Some(Method::Put), Some(body), None) => DocumentChange::Put(body),
        (None, None, Some(merge)) => DocumentChange::Merge(merge),
        (Some(Method::Delete), None, None) => DocumentChange::Delete,
        _ => {
            fields.mistake("must be one of method PUT with body, method DELETE, merge");
            return None;
        }
    };
    Some(ConcurrentWrite { path, change })
}

fn parse_object(value: Value) -> Result<Value, String> {
    Some(value)
        .filter(Value::is_object)
        .ok_or_else(|| "an object".to_owned())
}

pub(super) fn parse_path(text: &str) -> Result<String, String> {
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
    use super::*;
    use crate::fields;

    fn read(value: Value) -> Result<Action, Vec<String>> {
        fields::read(value, "fault", Action::read).map_err(|error| {
            let details = error.details.unwrap_or_default();
            details.into_iter().map(|detail| detail.message).collect()
        })
    }

    #[test]
    fn actions_are_parsed() {
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
                        end: OperationEnd::Failed(boom.clone()),
                        effect: Effect::Kept
                    }
                ),
            ),
            (
                json!({"operation": "fail", "effect": "lost"}),
                format!(
                    "{:?}",
                    Action::Operation {
                        end: OperationEnd::Failed(failed),
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
                r#"Write(ConcurrentWrite { path: Some("/a"), change: Put(Object {"x": Number(1)}) })"#.to_owned(),
            ),
            (
                json!({"write": {"method": "DELETE"}}),
                "Write(ConcurrentWrite { path: None, change: Delete })".to_owned(),
            ),
            (
                json!({"write": {"merge": {"tags": null}}}),
                r#"Write(ConcurrentWrite { path: None, change: Merge(Object {"tags": Null}) })"#.to_owned(),
            ),
        ] {
            assert_eq!(format!("{:?}", read(given.clone()).unwrap()), want, "{given}");
        }
    }

    #[test]
    fn mistakes_are_reported() {
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
            (json!({"operation": "succeed"}), "give another effect"),
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
                "a status that is no error",
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
