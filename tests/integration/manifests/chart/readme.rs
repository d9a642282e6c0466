//! The chart's README is generated from the comments of values.yaml, as helm-docs does it (`helm-docs --sort-values-order file`): each
//! value has one.

use std::fmt::Write as _;

use serde_json::Value;

use super::text;

/// A value with its comment.
struct Documented {
    path: Vec<String>,
    comment: String,
}

/// The values with a comment that begins with `# -- `, in the order of the file.
fn documented(values: &str) -> Vec<Documented> {
    let (mut found, mut path, mut comment) = (Vec::new(), Vec::<String>::new(), None::<String>);
    // Within a documented value, deeper lines are its default.
    let mut inside = None;
    for line in values.lines() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let line = line.trim();
        if let Some(first) = line.strip_prefix("# -- ") {
            comment = Some(first.to_owned());
            inside = None;
        } else if let Some(more) = line.strip_prefix("# ") {
            if let Some(comment) = &mut comment {
                write!(comment, " {more}").unwrap();
            }
        } else if let Some((key, rest)) = line.split_once(':') {
            if inside.is_some_and(|limit| depth > limit) || line.starts_with('-') {
                continue;
            }
            inside = None;
            path.truncate(depth);
            path.push(key.to_owned());
            if let Some(comment) = comment.take() {
                found.push(Documented {
                    path: path.clone(),
                    comment,
                });
                inside = Some(depth);
            } else {
                assert!(rest.is_empty(), "{} has no comment", path.join("."));
            }
        }
    }
    found
}

/// A row of helm-docs' table.
fn row(values: &Value, value: &Documented) -> String {
    let default = value.path.iter().fold(values, |values, key| &values[key.as_str()]);
    let kind = match default {
        Value::Bool(_) => "bool",
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
        Value::Null => panic!("{} has no default", value.path.join(".")),
    };
    let comment = value.comment.trim();
    assert!(
        !comment.contains('|') && !default.to_string().contains('|'),
        "{comment}"
    );
    format!("| {} | {kind} | `{default}` | {comment} |\n", value.path.join("."))
}

#[test]
fn generated_readme_of_the_chart() {
    let text_of_values = text("charts/headgate/values.yaml");
    let values: Value = serde_yaml::from_str(&text_of_values).unwrap();
    let mut table =
        "## Values\n\n| Key | Type | Default | Description |\n|-----|------|---------|-------------|\n".to_owned();
    let documented = documented(&text_of_values);
    for value in &documented {
        table.push_str(&row(&values, value));
    }
    let page = text("charts/headgate/README.md.gotmpl");
    let place = "{{ template \"chart.valuesSection\" . }}\n";
    assert_eq!(page.matches(place).count(), 1);
    expect_test::expect_file!["../../../../charts/headgate/README.md"].assert_eq(&page.replace(place, &table));
    assert_eq!(documented.len(), leaves(&values, &mut Vec::new(), &documented));
}

/// How many values there are, of which each has a comment or is part of one that has.
fn leaves(values: &Value, path: &mut Vec<String>, documented: &[Documented]) -> usize {
    if documented.iter().any(|value| value.path == *path) {
        return 1;
    }
    let Value::Object(fields) = values else {
        panic!("{} has no comment", path.join("."))
    };
    let mut found = 0;
    for (key, value) in fields {
        path.push(key.clone());
        found += leaves(value, path, documented);
        path.pop();
    }
    found
}

/// The schema and values.yaml have the same values, so that one that is misspelt is refused.
#[test]
fn values_and_their_schema_have_the_same_keys() {
    fn compare(path: &str, values: &Value, schema: &Value) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        let fields = values.as_object().unwrap_or_else(|| panic!("{path}"));
        for key in properties.keys() {
            let is_known = fields.contains_key(key) || (path.is_empty() && key == "global");
            assert!(is_known, "{path}.{key} is not in values.yaml");
        }
        for (key, value) in fields {
            let property = properties
                .get(key)
                .unwrap_or_else(|| panic!("{path}.{key} is not in the schema"));
            compare(&format!("{path}.{key}"), value, property);
        }
    }
    let schema: Value = serde_json::from_str(&text("charts/headgate/values.schema.json")).unwrap();
    let values: Value = serde_yaml::from_str(&text("charts/headgate/values.yaml")).unwrap();
    compare("", &values, &schema);
}
