//! The action of a fault rule, read from the control API's JSON.
//!
//! This module only describes actions; `state.rs` carries them out.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::injected_response::InjectedResponse;
use crate::resource::Object;
use crate::settings::DurationText;

/// The longest stall: longer than any client waits, short enough for a test to end.
const MAX_STALL: Duration = Duration::from_mins(10);
/// The longest path of a concurrent write. No ARM id is longer.
const MAX_PATH_BYTES: usize = 2048;

/// The effect of a rule on a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "GivenAction")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum When {
    #[default]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Effect {
    /// The document stays as written.
    #[default]
    Kept,
    /// The document is reverted to the version before the write.
    Lost,
    /// The pool of the request has no members.
    Emptied,
    /// The document stays as written, unless a newer write supersedes the operation: then the pool of the request has the members of
    /// before, and no answer says so.
    LostWhenSuperseded,
}

/// A write that a rule makes before the request is handled.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "GivenWrite")]
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

/// The object under `action`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenAction {
    answer: Option<InjectedResponse>,
    cut: Option<When>,
    stall: Option<DurationText>,
    when: Option<When>,
    operation: Option<Verb>,
    error: Option<Value>,
    effect: Option<Effect>,
    write: Option<ConcurrentWrite>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Verb {
    Fail,
    Cancel,
    Succeed,
}

impl TryFrom<GivenAction> for Action {
    type Error = String;

    fn try_from(given: GivenAction) -> Result<Self, String> {
        let stall = (given.stall, given.when);
        let operation = (given.operation, given.error, given.effect);
        match (given.answer, given.cut, stall, operation, given.write) {
            (Some(answer), None, (None, None), (None, None, None), None) => Ok(Self::Answer(answer)),
            (None, Some(when), (None, None), (None, None, None), None) => Ok(Self::Cut(when)),
            (None, None, (Some(DurationText(wait)), when), (None, None, None), None) => {
                if !(Duration::from_millis(1)..=MAX_STALL).contains(&wait) {
                    return Err("a stall lasts from 1ms to 10m".to_owned());
                }
                let when = when.unwrap_or_default();
                Ok(Self::Stall { wait, when })
            }
            (None, None, (None, None), (Some(verb), error, effect), None) => {
                operation_action(verb, error, effect.unwrap_or_default())
            }
            (None, None, (None, None), (None, None, None), Some(write)) => Ok(Self::Write(write)),
            _ => Err(
                "an action has exactly one of answer, cut, stall (perhaps with when), operation (perhaps with error and effect), write"
                    .to_owned(),
            ),
        }
    }
}

fn operation_action(verb: Verb, error: Option<Value>, effect: Effect) -> Result<Action, String> {
    let is_error = |error: &Value| error["code"].is_string() && error["message"].is_string();
    if !error.as_ref().is_none_or(is_error) {
        return Err("an error is an object with at least a code and a message, both texts".to_owned());
    }
    if verb == Verb::Succeed && (effect == Effect::Kept || error.is_some()) {
        return Err("the operation succeeds as without a fault: give another effect, and no error".to_owned());
    }
    let default = |code, message| json!({"code": code, "message": message, "details": []});
    let end = match verb {
        Verb::Fail => {
            OperationEnd::Failed(error.unwrap_or_else(|| default("InternalServerError", "An error occurred.")))
        }
        Verb::Cancel => OperationEnd::Canceled(error.unwrap_or_else(|| default("Canceled", "Operation was canceled."))),
        Verb::Succeed => OperationEnd::Succeeded,
    };
    Ok(Action::Operation { end, effect })
}

/// The object under `write`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenWrite {
    path: Option<String>,
    method: Option<Method>,
    body: Option<Object>,
    merge: Option<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Method {
    Put,
    Delete,
}

impl TryFrom<GivenWrite> for ConcurrentWrite {
    type Error = String;

    fn try_from(given: GivenWrite) -> Result<Self, String> {
        let change = match (given.method, given.body, given.merge) {
            (None | Some(Method::Put), Some(body), None) => DocumentChange::Put(body.into()),
            (None, None, Some(merge)) => DocumentChange::Merge(merge.into()),
            (Some(Method::Delete), None, None) => DocumentChange::Delete,
            _ => return Err("a write is one of method PUT with body, method DELETE, merge".to_owned()),
        };
        let path = given.path.map(checked_path).transpose()?;
        Ok(Self { path, change })
    }
}

pub(super) fn checked_path(path: String) -> Result<String, String> {
    let plain = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#');
    if path.starts_with('/') && plain && path.len() <= MAX_PATH_BYTES {
        Ok(path)
    } else {
        Err(format!(
            "a path begins with /, has no query and at most {MAX_PATH_BYTES} bytes"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::rows;

    fn read(text: &str) -> Result<Action, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn actions_are_parsed() {
        let table = r#"
{"cut": "before"} → Cut(Before)
{"cut": "after", "answer": null} → Cut(After)
{"stall": "5s"} → Stall { wait: 5s, when: Before }
{"stall": "5ms", "when": "after"} → Stall { wait: 5ms, when: After }
{"operation": "fail", "error": {"code": "C", "message": "m", "target": "x"}} → Operation { end: Failed(Object {"code": String("C"), "message": String("m"), "target": String("x")}), effect: Kept }
{"operation": "fail", "effect": "lost"} → Operation { end: Failed(Object {"code": String("InternalServerError"), "details": Array [], "message": String("An error occurred.")}), effect: Lost }
{"operation": "succeed", "effect": "lost"} → Operation { end: Succeeded, effect: Lost }
{"write": {"path": "/a", "body": {"x": 1}}} → Write(ConcurrentWrite { path: Some("/a"), change: Put(Object {"x": Number(1)}) })
{"write": {"method": "DELETE"}} → Write(ConcurrentWrite { path: None, change: Delete })
{"write": {"merge": {"tags": null}}} → Write(ConcurrentWrite { path: None, change: Merge(Object {"tags": Null}) })
"#;
        for (given, want) in rows(table) {
            assert_eq!(format!("{:?}", read(given).unwrap()), want, "{given}");
        }
    }

    #[test]
    fn invalid_actions_are_refused() {
        let table = r#"
{} → exactly one of
{"cut": "before", "stall": "1s"} → exactly one of
{"cut": "between"} → expected `before` or `after`
{"cut": "after", "when": "after"} → exactly one of
{"stall": "5"} → is not a duration
{"stall": "11m"} → from 1ms to 10m
{"operation": "fail", "error": {"code": 1}} → an object with at least a code
{"operation": "succeed"} → give another effect
{"operation": "stop"} → expected one of `fail`, `cancel`, `succeed`
{"answer": {}} → a status from 200 to 599
{"answer": {"status": 99}} → a status from 200 to 599
{"answer": {"code": "Drain"}} → expected one of `SubscriptionRequestsThrottled`,
{"answer": {"code": "PreconditionFailed", "status": 200}} → a status that is no error
{"answer": {"status": 400, "body": 1, "text": ""}} → at most one of code, body, text
{"answer": {"status": 204, "body": 1}} → comes without a body
{"answer": {"status": 400, "resource": "/x"}} → has a resource
{"answer": {"status": 400, "headers": {"Content-Length": "1"}}} → is not a header
{"answer": {"status": 400, "headers": {"a": "1\n2"}}} → is not a header
{"answer": {"status": 400, "retryAfter": 1, "headers": {"retry-after": "2"}}} → has Retry-After twice
{"write": {}} → one of method PUT with body, method DELETE, merge
{"write": {"method": "DELETE", "body": {}}} → one of method PUT
{"write": {"method": "POST"}} → expected `PUT` or `DELETE`
{"write": {"path": "/a?b", "merge": {}}} → a path begins with /
"#;
        for (given, want) in rows(table) {
            let mistake = read(given).unwrap_err();
            assert!(mistake.contains(want), "{given}: {mistake}");
        }
    }
}
