//! Schemas of types that come from Kubernetes itself.
//!
//! Every list and every text has a bound, because the API server estimates what a CEL rule may cost from them.
//! The rules follow the validation of the same types in Kubernetes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::{Schema, SchemaGenerator, json_schema};

/// The most terms of a node selector: one for each node, because a term names at most one.
const MAX_TERMS: usize = 100;
const MAX_REQUIREMENTS: usize = 16;
const MAX_VALUES: usize = 64;
/// A prefix of 253 characters, a slash, and a name of 63.
const MAX_LABEL_KEY: usize = 317;
const MAX_LABEL_VALUE: usize = 63;
const MAX_OBJECT_NAME: usize = 253;

/// The most requirements and values of a selector of pods. The status has the drain plan and the targets of nodes once more, and an
/// object has to stay below 1.5 MiB.
const MAX_POD_REQUIREMENTS: usize = 8;
const MAX_POD_VALUES: usize = 16;
/// The pattern of a label's key: perhaps a DNS name and a slash, then a name.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The pattern of a label's value.
const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// The same definition, in which no field can be `null`: fields that may be missing are optional. Rules can say that they are about a name.
pub(super) fn completed(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut();
        if let Some(schema) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            remove_nullable(schema);
            declare_names(schema);
            show_names(schema);
        }
    }
    definition
}

/// The `fieldPath` of a rule has to be in the schema. Of `metadata` a schema may have names only.
fn declare_names(schema: &mut JSONSchemaProps) {
    let of_type = |kind: &str| JSONSchemaProps {
        type_: Some(kind.to_owned()),
        ..JSONSchemaProps::default()
    };
    let names = ["generateName", "name"].map(|name| (name.to_owned(), of_type("string")));
    let metadata = JSONSchemaProps {
        properties: Some(names.into()),
        ..of_type("object")
    };
    let properties = schema.properties.get_or_insert_default();
    properties.insert("metadata".to_owned(), metadata);
}

/// The message of a rule about an object, of which the API server does not name the value. One with a line break is not shown.
fn with_value(value: &str, allowed: &str) -> String {
    format!("'\"' + {value} + '\": {}'", allowed.replace('\'', "\\'"))
}

/// Rules about names are rules about the whole object.
fn show_names(schema: &mut JSONSchemaProps) {
    for rule in schema.x_kubernetes_validations.iter_mut().flatten() {
        if let (Some(place), Some(message)) = (&rule.field_path, &rule.message)
            && place.starts_with(".metadata.")
        {
            rule.message_expression = Some(with_value(&format!("self{place}"), message));
        }
    }
}

fn remove_nullable(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema
        .properties
        .iter_mut()
        .flat_map(|all| all.values_mut())
        .for_each(remove_nullable);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => remove_nullable(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(remove_nullable),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        remove_nullable(values);
    }
}

/// The schema of an enum of a status: a newer version may write a value that this definition does not list.
pub(super) fn open_enum(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^[A-Z][A-Za-z]*$", "maxLength": 64})
}

/// The schema of `v1.NodeSelector`, with bounds on terms, requirements and values.
pub(super) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "description": "The nodes of this maintenance, of which 500 are under maintenance at once at most. A node is selected if any of the terms matches it, 100 at most. Whoever may delete the nodes by name and not all of them writes 16 terms at most, each with one name in matchFields metadata.name.",
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
                    "matchExpressions": node_requirements("Requirements of labels.", Some(LABEL_KEY), MAX_LABEL_VALUE, &[
                        "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt",
                    ], &[
                        ("(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0) || self.operator in ['Gt', 'Lt']",
                         "self.operator", "operators In and NotIn need values, Exists and DoesNotExist take none"),
                        ("!(self.operator in ['Gt', 'Lt']) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]+$'))",
                         "self.operator", "operators Gt and Lt need one value, an integer"),
                    ]),
                    "matchFields": node_requirements("Requirements of fields. The only field is metadata.name.", None, MAX_OBJECT_NAME, &["In", "NotIn"], &[
                        ("self.key == 'metadata.name'", "self.key", "the only field is metadata.name"),
                        ("has(self.values) && size(self.values) == 1", "self.key", "a field needs one value; write one term for each node"),
                    ]),
                },
            },
        }},
    })
}

fn node_requirements(
    description: &str,
    pattern: Option<&str>,
    value: usize,
    operators: &[&str],
    rules: &[(&str, &str, &str)],
) -> serde_json::Value {
    let mut key = serde_json::json!({"type": "string", "description": "The label or the field.", "minLength": 1, "maxLength": MAX_LABEL_KEY});
    if let Some(pattern) = pattern {
        key["pattern"] = pattern.into();
    }
    let rules: Vec<_> = rules
        .iter()
        .map(|(rule, value, message)| {
            serde_json::json!({"rule": rule, "message": message, "messageExpression": with_value(value, message)})
        })
        .collect();
    serde_json::json!({
        "type": "array",
        "description": description,
        "maxItems": MAX_REQUIREMENTS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": key,
                "operator": {"type": "string", "description": "How the value is compared.", "enum": operators},
                "values": values(MAX_VALUES, value, None),
            },
            "x-kubernetes-validations": rules,
        },
    })
}

fn values(most: usize, length: usize, pattern: Option<&str>) -> serde_json::Value {
    let mut value = serde_json::json!({"type": "string", "maxLength": length});
    if let Some(pattern) = pattern {
        value["pattern"] = pattern.into();
    }
    serde_json::json!({
        "type": "array",
        "description": "The values, where the operator takes some.",
        "maxItems": most,
        "x-kubernetes-list-type": "atomic",
        "items": value,
    })
}

/// `meta/v1.LabelSelector` that selects by something: an empty one would select every pod, as leaving it out does.
pub(super) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "description": "Selects pods by their labels. Left out, the entry is for all pods.",
        "minProperties": 1,
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "description": "Labels that a pod has to have.",
                "minProperties": 1,
                "maxProperties": MAX_POD_REQUIREMENTS,
                "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE, "pattern": LABEL_VALUE},
            },
            "matchExpressions": {
                "type": "array",
                "description": "Requirements of labels.",
                "minItems": 1,
                "maxItems": MAX_POD_REQUIREMENTS,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "description": "The label.", "minLength": 1, "maxLength": MAX_LABEL_KEY, "pattern": LABEL_KEY},
                        "operator": {"type": "string", "description": "How the value is compared.", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": values(MAX_POD_VALUES, MAX_LABEL_VALUE, Some(LABEL_VALUE)),
                    },
                },
            },
        },
    })
}

/// The schema of `meta/v1.Time`: a text in the format of RFC 3339.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "x-kubernetes-validations": [is_text()]})
}

/// The API server takes a list in the place of a text with a format, which no client can decode. A rule that reads the value refuses it.
fn is_text() -> serde_json::Value {
    serde_json::json!({"rule": "self == self", "message": "has to be a time such as 2030-01-02T03:04:05Z"})
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
                "type": {"type": "string", "description": "What the condition is about.", "maxLength": 316},
                "status": {"type": "string", "description": "Whether it holds.", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0, "description": "The metadata.generation that the condition is about."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When the status changed last.", "x-kubernetes-validations": [is_text()]},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Why, in one word."},
                "message": {"type": "string", "maxLength": 32768, "description": "Why, for people."},
            },
        },
    })
}
