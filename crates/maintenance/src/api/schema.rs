//! Schemas of types that come from Kubernetes itself.
//!
//! Every list and every text has a bound, because the API server estimates what a CEL rule may cost from them.
//! The rules follow the validation of the same types in Kubernetes.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The most terms of a node selector: one for each node, because a term names at most one.
const MAX_TERMS: usize = 100;
const MAX_REQUIREMENTS: usize = 16;
const MAX_VALUES: usize = 64;
/// A prefix of 253 characters, a slash, and a name of 63.
const MAX_LABEL_KEY: usize = 317;
const MAX_LABEL_VALUE: usize = 63;
const MAX_OBJECT_NAME: usize = 253;

/// The schema of an enum of a status: a newer version may write a value that this definition does not list.
pub(super) fn open_enum(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^[A-Z][A-Za-z]*$", "maxLength": 64})
}

/// The schema of `v1.NodeSelector`, with bounds on terms, requirements and values.
pub(super) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "description": "The nodes of this maintenance. A node is selected if any term matches it.",
        "required": ["nodeSelectorTerms"],
        "x-kubernetes-map-type": "atomic",
        "properties": {"nodeSelectorTerms": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_TERMS,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "description": "All requirements of a term have to match. A term without requirements matches no node.",
                "properties": {
                    "matchExpressions": node_requirements(MAX_LABEL_KEY, MAX_LABEL_VALUE, &[
                        "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt",
                    ], &[
                        ("(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0) || self.operator in ['Gt', 'Lt']",
                         "operators In and NotIn need values, Exists and DoesNotExist take none"),
                        ("!(self.operator in ['Gt', 'Lt']) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]+$'))",
                         "operators Gt and Lt need one value, an integer"),
                    ]),
                    "matchFields": node_requirements(MAX_LABEL_KEY, MAX_OBJECT_NAME, &["In", "NotIn"], &[
                        ("self.key == 'metadata.name'", "the only field is metadata.name"),
                        ("has(self.values) && size(self.values) == 1", "a field needs one value; write one term for each node"),
                    ]),
                },
            },
        }},
    })
}

fn node_requirements(key: usize, value: usize, operators: &[&str], rules: &[(&str, &str)]) -> serde_json::Value {
    let rules: Vec<_> = rules
        .iter()
        .map(|(rule, message)| serde_json::json!({"rule": rule, "message": message}))
        .collect();
    serde_json::json!({
        "type": "array",
        "maxItems": MAX_REQUIREMENTS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": {"type": "string", "minLength": 1, "maxLength": key},
                "operator": {"type": "string", "enum": operators},
                "values": values(value),
            },
            "x-kubernetes-validations": rules,
        },
    })
}

fn values(length: usize) -> serde_json::Value {
    serde_json::json!({
        "type": "array",
        "maxItems": MAX_VALUES,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "string", "maxLength": length},
    })
}

/// `meta/v1.LabelSelector` that selects by something: an empty one would select every pod, as leaving it out does.
pub(super) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "description": "Selects pods by their labels. Left out, the entry is for all pods.",
        "nullable": true,
        "minProperties": 1,
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": MAX_REQUIREMENTS,
                "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE},
            },
            "matchExpressions": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_REQUIREMENTS,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL_KEY},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": values(MAX_LABEL_VALUE),
                    },
                },
            },
        },
    })
}

/// The schema of `meta/v1.Time`: a required text in the format of RFC 3339.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// A `meta/v1.Time` that may be absent.
pub(super) fn optional_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "nullable": true})
}

/// `meta/v1.Condition`, listed by type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 316},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                "message": {"type": "string", "maxLength": 32768},
            },
        },
    })
}
