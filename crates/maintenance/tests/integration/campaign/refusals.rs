//! Whether a refusal of the API server says what to change: the field, and what is allowed there. Pure.
//!
//! The API server names a value where it is short, and its type where the type is wrong; of a list or an object it names the field.

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
/// What the API server adds where a schema refuses.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid";
const STAGES: [&str; 4] = ["Idle", "Cordon", "Drain", "Complete"];

/// A field, and what is allowed there. Either is empty if the message does not say.
#[derive(Debug, PartialEq)]
struct Cause {
    field: String,
    allowed: String,
}

impl Cause {
    fn new(field: &str, allowed: &str) -> Self {
        Self {
            field: field.to_owned(),
            allowed: allowed.to_owned(),
        }
    }
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
    let is_clear = |cause: &Cause| !cause.field.is_empty() && !cause.allowed.is_empty();
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
            vec![Cause::new("metadata.name", "one that does not exist")]
        }
        _ => Vec::new(),
    }
}

fn of_validation(field: &str, message: &str) -> Cause {
    // The result of a merge patch is decoded once more.
    if let Some(cause) = of_decoding(message).filter(|_| field == "patch") {
        return cause;
    }
    let beginning = BEGINNINGS.iter().find(|text| message.starts_with(**text));
    let allowed = match beginning {
        None => "",
        Some(&("Required value" | "Duplicate value: ")) => message,
        Some(beginning) => without_value(&message[beginning.len()..]),
    };
    match (field, allowed.split_once(" in ")) {
        // Of a format the field is in the message.
        ("<nil>", Some((kind, place))) if kind.starts_with("Checked value must be of type ") => Cause::new(place, kind),
        // The whole object is no field.
        ("<nil>", _) => Cause::new("", allowed),
        _ => Cause::new(field, allowed),
    }
}

/// What follows a value, which is quoted or has no spaces. A rule without a message of its own does not say what is allowed.
fn without_value(text: &str) -> &str {
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
    let rest = end.map_or(text, |end| text[end..].trim_start_matches(": "));
    if rest.starts_with("failed rule") { "" } else { rest }
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
