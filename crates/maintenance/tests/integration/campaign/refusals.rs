//! Whether a refusal of the API server says what to change: the field, its value, and what is allowed there. Pure.
//!
//! Where the type is wrong, the API server names that in place of the value. It names no value that is missing, forbidden, too long, of a
//! wrong format, or cannot be decoded. What it shows of a list, an object or a long text is not compared.

use headgate_test_kubernetes::Sample;
use kube::core::Status;
use serde_json::Value;

/// How the API server begins the message about a field. What is allowed follows; after the first two, it may.
const BEGINNINGS: [&str; 8] = [
    "Required value",
    "Duplicate value: ",
    "Invalid value: ",
    "Unsupported value: ",
    "Too long: ",
    "Too many: ",
    "Too few: ",
    "Forbidden: ",
];
/// Of these the ones with a value.
const WITH_VALUE: [&str; 3] = ["Duplicate value: ", "Invalid value: ", "Unsupported value: "];
/// What the API server says of a wrong type, and of a wrong format, of which it shows no value.
const WRONG_TYPE: &str = " must be of type ";
const WRONG_FORMAT: &str = "Checked value must be of type ";
/// A longer text may be shortened.
const LONG: usize = 64;
/// What the API server adds where a schema refuses.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid";
const STAGES: [&str; 4] = ["Idle", "Cordon", "Drain", "Complete"];

/// A field, and what is allowed there. Either is empty if the message does not say.
#[derive(Debug, PartialEq)]
struct Cause {
    field: String,
    /// What follows the kind of the message, the value first; `None` where such a message has none.
    value: Option<String>,
    allowed: String,
}

impl Cause {
    fn new(field: &str, allowed: &str) -> Self {
        Self {
            field: field.to_owned(),
            value: None,
            allowed: allowed.to_owned(),
        }
    }

    fn with_value(self, value: &str) -> Self {
        Self {
            value: Some(value.to_owned()),
            ..self
        }
    }

    /// Whether the value is the one that was sent, or its type if that is what is wrong.
    fn names_value(&self, sent: &Value) -> bool {
        let (Some(shown), Some(sent)) = (&self.value, value_at(sent, &self.field)) else {
            return true;
        };
        let named = unquoted(split_value(shown).0);
        let is_of_type = |text: &str, kinds: &[&str]| {
            // Types of Go where the schema has a format. Of a boolean it is left out, and of a time the value follows.
            kinds.contains(&&*named) && (self.allowed.contains(WRONG_TYPE) || self.allowed.contains(text))
        };
        match sent {
            // A stage that a change takes away becomes the default.
            Value::Null => named == "null" || (self.field == "spec.stage" && named == STAGES[0]),
            Value::Bool(flag) => named == flag.to_string() || is_of_type(WRONG_TYPE, &["boolean", ""]),
            Value::Number(number) => {
                named.parse().ok() == number.as_f64()
                    || is_of_type(&number.to_string(), &["integer", "number", "int64", "float64"])
            }
            // A message of ours has the text as it is, and none with a line break.
            Value::String(text) if text.chars().count() < LONG && !text.contains('\n') => {
                named == *text || shown.starts_with(&format!("\"{text}\": ")) || is_of_type(text, &["string"])
            }
            Value::String(_) | Value::Array(_) | Value::Object(_) => true,
        }
    }
}

/// The value at a place such as `spec.drainPlan[0].podSelector`; `None` where nothing was sent.
fn value_at<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    let mut parts = field.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.try_fold(value, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        object => object.get(part),
    })
}

/// What is wrong with the refusal of an object, or of a change of the object `before`.
pub(super) fn wrong_refusal(sample: &Sample, before: Option<&Value>, status: &Status) -> Option<String> {
    let causes = causes(status);
    let broken = before.map_or_else(Vec::new, |before| broken_transitions(before, &sample.value));
    // An object that breaks two rules may be refused by either. The name of an Evacuation follows from its pod.
    let is_found = |cause: &Cause| {
        let field = cause.field.as_str();
        sample.is_about(field)
            || broken.contains(&field)
            || (field == "metadata.name" && sample.is_about("spec.podRef"))
    };
    let is_clear =
        |cause: &Cause| !cause.field.is_empty() && !cause.allowed.is_empty() && cause.names_value(&sample.value);
    let is_right = causes.iter().all(is_clear) && causes.iter().any(is_found);
    (!is_right).then(|| format!("{} {}", status.code, status.message))
}

fn causes(status: &Status) -> Vec<Cause> {
    let listed = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        422 => listed
            .filter(|cause| !cause.message.contains(UNCHECKED))
            .map(|cause| of_validation(&cause.field, &cause.message))
            .collect(),
        400 => of_decoding(&status.message).into_iter().collect(),
        409 if status.message.ends_with(" already exists") => {
            let name = status.message.split('"').nth(1).unwrap_or_default();
            vec![Cause::new("metadata.name", "one that does not exist").with_value(&format!("\"{name}\""))]
        }
        _ => Vec::new(),
    }
}

fn of_validation(field: &str, message: &str) -> Cause {
    // The result of a merge patch is decoded once more.
    if let Some(cause) = of_decoding(message).filter(|_| field == "patch") {
        return cause;
    }
    let beginning = BEGINNINGS.iter().copied().find(|text| message.starts_with(text));
    let rest = beginning.map_or("", |beginning| split_value(&message[beginning.len()..]).1);
    let allowed = match beginning {
        Some("Required value" | "Duplicate value: ") => message,
        _ => rest,
    };
    let cause = match (field, allowed.split_once(" in ")) {
        // Of a format the field is in the message.
        ("<nil>", Some((kind, place))) if kind.starts_with(WRONG_FORMAT) => return Cause::new(place, kind),
        // The whole object is no field.
        ("<nil>", _) => Cause::new("", allowed),
        _ => Cause::new(field, allowed),
    };
    match beginning.filter(|beginning| WITH_VALUE.contains(beginning)) {
        Some(beginning) => cause.with_value(&message[beginning.len()..]),
        None => cause,
    }
}

/// A value, which is quoted or has no spaces, and what follows. A rule without a message of its own does not say what is allowed.
fn split_value(text: &str) -> (&str, &str) {
    let end = text.strip_prefix('"').map_or_else(
        || text.find(": ").filter(|end| !text[..*end].contains(' ')),
        |quoted| {
            let mut is_escaped = false;
            let closes = |c: char| {
                let closes = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                closes
            };
            quoted.find(closes).map(|end| end + 2)
        },
    );
    let (value, rest) = text.split_at(end.unwrap_or(0));
    let rest = rest.trim_start_matches(": ");
    (value, if rest.starts_with("failed rule") { "" } else { rest })
}

/// A text without the quotes and escapes of Go; anything else as it is.
fn unquoted(text: &str) -> String {
    let Some(mut rest) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return text.to_owned();
    };
    let mut plain = String::new();
    while let Some((before, escape)) = rest.split_once('\\') {
        plain.push_str(before);
        let kind = escape.chars().next().unwrap_or_default();
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let code = escape
            .get(1..=digits)
            .and_then(|code| u32::from_str_radix(code, 16).ok());
        plain.extend(match kind {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            'x' | 'u' | 'U' => code.and_then(char::from_u32),
            other => Some(other),
        });
        rest = escape.get(kind.len_utf8() + digits..).unwrap_or_default();
    }
    plain + rest
}

/// The errors of Go's JSON, and of the API server about fields that no schema has.
fn of_decoding(message: &str) -> Option<Cause> {
    if let Some((_, rest)) = message.split_once("strict decoding error: unknown field \"") {
        return Some(Cause::new(rest.split_once('"')?.0, "the fields of the schema"));
    }
    // Without a kind it is no object.
    if message.contains("(must be of type ") {
        return Some(Cause::new("object", message));
    }
    let (place, allowed) = message
        .split_once("json: cannot unmarshal ")?
        .1
        .split_once(" of type ")?;
    // Nothing but `metadata` is decoded into types of the API server.
    let field = match place.split_once(" into Go struct field ") {
        Some((_, path)) => format!("metadata.{}", path.split_once('.')?.1),
        None if allowed == "v1.ObjectMeta" => "metadata".to_owned(),
        None => return None,
    };
    Some(Cause::new(&field, allowed))
}

/// The fields that a change of a NodeMaintenance may not change so.
fn broken_transitions(before: &Value, change: &Value) -> Vec<&'static str> {
    let (old, new) = (&before["spec"], &change["spec"]);
    let rank = |spec: &Value| STAGES.iter().position(|stage| spec["stage"] == **stage);
    let mut broken = Vec::new();
    if rank(new) < rank(old) && !new["stage"].is_null() {
        broken.push("spec.stage");
    }
    if new["dryRun"] == true && old["dryRun"] != true && old["stage"] != "Idle" {
        broken.push("spec.dryRun");
    }
    // As it was sent: a default of an entry may be the only difference.
    if !new["drainPlan"].is_null() && new["drainPlan"] != old["drainPlan"] {
        broken.push("spec.drainPlan");
    }
    broken
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HANDLED: &str = "NodeMaintenance in version \"v1alpha1\" cannot be handled as a NodeMaintenance: ";
    const BACKWARDS: &str = "Invalid value: \"Idle\": the order of the stages is Idle, Cordon, Drain, Complete; a stage cannot be left backwards";
    const DRY_RUN: &str = "Forbidden: dryRun cannot be switched on after the Idle stage";

    fn sample(at: &str, value: Value) -> Sample {
        Sample {
            value,
            at: at.to_owned(),
            change: "changed".to_owned(),
        }
    }

    fn answer(code: u16, message: &str) -> Status {
        serde_json::from_value(json!({"code": code, "message": message})).unwrap()
    }

    fn invalid(causes: &[(&str, &str)]) -> Status {
        let causes: Vec<_> = causes
            .iter()
            .map(|(field, message)| json!({"reason": "FieldValueInvalid", "field": field, "message": message}))
            .collect();
        serde_json::from_value(json!({"code": 422, "message": "invalid", "details": {"causes": causes}})).unwrap()
    }

    /// As kube-apiserver 1.37 answers.
    #[test]
    fn answers_that_name_the_field_and_what_is_allowed() {
        let handled = |error: &str| answer(400, &format!("{HANDLED}{error}"));
        let whole = "the object provided is unrecognized (must be of type NodeMaintenance): Object 'Kind' is missing in 'null' (6e756c6c)";
        let unchecked = format!("Invalid value: null: {UNCHECKED}; correct the existing errors to complete validation");
        let patch = "Invalid value: \"{\\\"spec\\\":{\\\"reason\\\": \\\"a: b\\\"}}\": strict decoding error: unknown field \"spec.evacuation.rollout\"";
        let rows = [
            (
                "metadata",
                handled("json: cannot unmarshal string into Go value of type v1.ObjectMeta"),
            ),
            (
                "metadata.labels[]",
                handled("json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
            ),
            (
                "metadata.ownerReferences[].name",
                handled(
                    "json: cannot unmarshal number into Go struct field OwnerReference.ownerReferences.name of type string",
                ),
            ),
            (
                "metadata",
                handled("strict decoding error: unknown field \"metadata.unknown\""),
            ),
            ("", answer(400, whole)),
            (
                "metadata.name",
                answer(409, "nodemaintenances.headgate.dev \"a\" already exists"),
            ),
            ("spec.evacuation", invalid(&[("patch", patch)])),
            (
                "spec",
                invalid(&[
                    (
                        "spec",
                        "Invalid value: \"integer\": spec in body must be of type object: \"integer\"",
                    ),
                    ("<nil>", &unchecked),
                ]),
            ),
            (
                "spec.progressDeadlineSeconds",
                invalid(&[(
                    "<nil>",
                    "Invalid value: \"\": Checked value must be of type integer with format int32 in spec.progressDeadlineSeconds",
                )]),
            ),
            (
                "spec.nodeSelector",
                invalid(&[("spec.nodeSelector", "Required value"), ("<nil>", &unchecked)]),
            ),
            (
                "spec.reason",
                invalid(&[("spec.reason", "Too long: may not be more than 1024 bytes")]),
            ),
            (
                "spec.drainPlan",
                invalid(&[("spec.drainPlan", "Invalid value: duplicate entries are not allowed")]),
            ),
        ];
        for (at, status) in rows {
            assert_eq!(wrong_refusal(&sample(at, json!({})), None, &status), None, "{at}");
        }
    }

    #[test]
    fn answers_that_do_not() {
        let rows = [
            (
                "about no field",
                "spec.reason",
                invalid(&[("<nil>", "Invalid value: the name has to be podRef.uid")]),
            ),
            (
                "about another field",
                "spec.reason",
                invalid(&[("spec.stage", BACKWARDS)]),
            ),
            ("no cause", "spec.reason", invalid(&[])),
            (
                "a value alone",
                "spec.reason",
                invalid(&[("spec.reason", "Invalid value: \"a: b\"")]),
            ),
            (
                "nothing after the value",
                "spec.reason",
                invalid(&[("spec.reason", "Invalid value: \"a\": ")]),
            ),
            (
                "a rule alone",
                "spec.reason",
                invalid(&[("spec.reason", "Invalid value: failed rule: self == oldSelf")]),
            ),
            (
                "an unknown beginning",
                "spec.reason",
                invalid(&[("spec.reason", "is wrong")]),
            ),
            (
                "one of two is unclear",
                "spec.reason",
                invalid(&[("spec.reason", "Required value"), ("<nil>", "Invalid value: no")]),
            ),
            (
                "another key",
                "spec.reason",
                answer(400, "strict decoding error: unknown field \"spec.unknown\""),
            ),
            (
                "no field in JSON",
                "spec.reason",
                answer(400, "json: cannot unmarshal string into Go value of type int"),
            ),
            (
                "a wrong field in JSON",
                "spec.reason",
                answer(400, "json: cannot unmarshal string into Go value of type v1.ObjectMeta"),
            ),
            (
                "no reason",
                "metadata.name",
                answer(409, "the object has been modified"),
            ),
            (
                "no answer of a rule",
                "spec.reason",
                answer(500, "spec.reason has to be a text"),
            ),
        ];
        for (what, at, status) in rows {
            assert!(wrong_refusal(&sample(at, json!({})), None, &status).is_some(), "{what}");
        }
    }

    #[test]
    fn a_value_is_the_one_that_was_sent() {
        let long = "a".repeat(LONG);
        let sent = json!({"metadata": {"name": "a"}, "spec": {"stage": "Id\u{202e}\"le", "seconds": 7, "list": ["b"], "flag": null, "on": true,
            "time": "2026-01-02t", "odd": "\"'\\", "long": long}});
        let rows = [
            (
                "spec.stage",
                r#"Unsupported value: "Id\u202e\"le": supported values: "Idle""#,
                true,
            ),
            (
                "spec.stage",
                r#"Unsupported value: "Idle": supported values: "Idle""#,
                false,
            ),
            ("spec.stage", "Unsupported value: one of the stages is allowed", false),
            ("spec.stage", "Too long: may not be more than 4 bytes", true),
            ("spec.stage", "Required value", true),
            ("spec.seconds", "Invalid value: 7: should be less than 5", true),
            ("spec.seconds", "Invalid value: 8: should be less than 5", false),
            ("spec.seconds", r#"Invalid value: "integer": has to be even"#, false),
            (
                "spec.seconds",
                r#"Invalid value: "integer": it must be of type string: "integer""#,
                true,
            ),
            (
                "spec.seconds",
                r#"Invalid value: "object": it must be of type string: "object""#,
                false,
            ),
            (
                "spec.seconds",
                r#"Invalid value: "float64": it must be of type int32: "float64""#,
                true,
            ),
            ("spec.on", r#"Invalid value: "": it must be of type int32: """#, true),
            ("spec.on", r#"Invalid value: "": has to be false"#, false),
            (
                "spec.time",
                r#"Invalid value: "string": Invalid date-time formatted string 2026-01-02t"#,
                true,
            ),
            (
                "spec.time",
                r#"Invalid value: "string": Invalid date-time formatted string soon"#,
                false,
            ),
            ("spec.odd", r#"Invalid value: ""'\": has to be even"#, true),
            ("spec.flag", "Invalid value: null: has to be true or false", true),
            ("spec.list[0]", r#"Duplicate value: "b""#, true),
            ("spec.list[0]", r#"Duplicate value: "c""#, false),
            ("spec.list", "Invalid value: duplicate entries are not allowed", true),
            ("spec.long", r#"Invalid value: "aa…": has to be short"#, true),
        ];
        for (field, message, is_right) in rows {
            let wrong = wrong_refusal(&sample(field, sent.clone()), None, &invalid(&[(field, message)]));
            assert_eq!(wrong.is_none(), is_right, "{field}: {message}");
        }
        for (name, is_right) in [("a", true), ("b", false)] {
            let status = answer(409, &format!("nodemaintenances.headgate.dev \"{name}\" already exists"));
            let wrong = wrong_refusal(&sample("metadata.name", sent.clone()), None, &status);
            assert_eq!(wrong.is_none(), is_right, "{name}");
        }
    }

    #[test]
    fn a_stage_that_is_taken_away_is_refused_as_the_default() {
        let before = json!({"spec": {"stage": "Cordon"}});
        let change = sample("spec.stage", json!({"spec": {"stage": null}}));
        let wrong = |message: &str| wrong_refusal(&change, Some(&before), &invalid(&[("spec.stage", message)]));
        assert_eq!(wrong(BACKWARDS), None);
        assert!(wrong(&BACKWARDS.replacen("\"Idle\"", "\"Drain\"", 1)).is_some());
    }

    #[test]
    fn a_change_that_breaks_two_rules_is_refused_by_either() {
        let before = json!({"spec": {"stage": "Cordon", "dryRun": false, "drainPlan": []}});
        let rows = [
            (json!({"stage": "Idle"}), "spec.stage", BACKWARDS, true),
            (json!({"stage": "Drain"}), "spec.stage", BACKWARDS, false),
            (json!({}), "spec.stage", BACKWARDS, false),
            (json!({"dryRun": true}), "spec.dryRun", DRY_RUN, true),
            (json!({"dryRun": false}), "spec.dryRun", DRY_RUN, false),
            (
                json!({"drainPlan": [{"podPriority": 5}]}),
                "spec.drainPlan",
                "Forbidden: drainPlan is immutable",
                true,
            ),
            (
                json!({"drainPlan": []}),
                "spec.drainPlan",
                "Forbidden: drainPlan is immutable",
                false,
            ),
        ];
        for (spec, field, message, is_right) in rows {
            let change = sample("spec.reason", json!({ "spec": spec }));
            let wrong = wrong_refusal(&change, Some(&before), &invalid(&[(field, message)]));
            assert_eq!(wrong.is_none(), is_right, "{change:?}");
        }
    }
}
