//! The text of `-l`, as `kubectl` takes it, to the requirements of a node selector. Pure.

use headgate_core::settings::is_qualified_name;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;

/// Which nodes `-l` selects: those whose labels fulfil every requirement. Never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeQuery(Vec<NodeSelectorRequirement>);

impl NodeQuery {
    /// Reads a selector such as `pool=a,tier in (web, api),!gpu`.
    ///
    /// # Errors
    /// What is wrong with the first requirement that cannot be read, and what is allowed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let requirements: Result<Vec<_>, _> = split_requirements(text).into_iter().map(requirement).collect();
        requirements.map(Self)
    }

    /// The requirements, in the order of the text.
    pub(crate) fn requirements(&self) -> &[NodeSelectorRequirement] {
        &self.0
    }
}

/// The parts between commas that are in no parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let is_separator = |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    };
    text.split(is_separator).map(str::trim).collect()
}

fn requirement(text: &str) -> Result<NodeSelectorRequirement, String> {
    let parsed = parse_requirement(text).filter(|(key, _, values)| {
        let are_good = values.iter().flatten().all(|value| is_label_value(value));
        is_qualified_name(key) && are_good
    });
    match parsed {
        Some((key, operator, values)) => Ok(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: values.map(|values| values.into_iter().map(str::to_owned).collect()),
        }),
        None => Err(format!(
            "{text:?} is no requirement; allowed: KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY, !KEY, with commas between"
        )),
    }
}

type Parsed<'a> = (&'a str, &'static str, Option<Vec<&'a str>>);

fn parse_requirement(text: &str) -> Option<Parsed<'_>> {
    if let Some(key) = text.strip_prefix('!') {
        return Some((key.trim(), "DoesNotExist", None));
    }
    if let Some(listed) = text.strip_suffix(')') {
        let (before, values) = listed.split_once('(')?;
        let (key, operator) = before.trim().rsplit_once(char::is_whitespace)?;
        let operator = match operator {
            "in" => "In",
            "notin" => "NotIn",
            _ => return None,
        };
        return Some((key.trim(), operator, Some(values.split(',').map(str::trim).collect())));
    }
    for (sign, operator) in [("!=", "NotIn"), ("==", "In"), ("=", "In")] {
        if let Some((key, value)) = text.split_once(sign) {
            return Some((key.trim(), operator, Some(vec![value.trim()])));
        }
    }
    Some((text, "Exists", None))
}

/// Whether Kubernetes takes a text as the value of a label. An empty one is.
fn is_label_value(value: &str) -> bool {
    let is_end = |character: Option<char>| character.is_none_or(|character| character.is_ascii_alphanumeric());
    let is_inner = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    value.len() <= 63 && value.chars().all(is_inner) && is_end(value.chars().next()) && is_end(value.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_those_of_kubectl() {
        let all = NodeQuery::parse("a=1, b==2,c!=3,d in (x, y),example.com/e notin (z),f,!g, h=").unwrap();
        let found: Vec<_> = all
            .requirements()
            .iter()
            .map(|one| {
                (
                    one.key.as_str(),
                    one.operator.as_str(),
                    one.values.clone().unwrap_or_default().join("|"),
                )
            })
            .collect();
        let expected = [
            ("a", "In", "1"),
            ("b", "In", "2"),
            ("c", "NotIn", "3"),
            ("d", "In", "x|y"),
            ("example.com/e", "NotIn", "z"),
            ("f", "Exists", ""),
            ("g", "DoesNotExist", ""),
            ("h", "In", ""),
        ];
        assert_eq!(
            found,
            expected.map(|(key, operator, values)| (key, operator, values.to_owned()))
        );
    }

    #[test]
    fn mistakes_name_the_requirement() {
        for text in [
            "", "a=1,", "=1", "a in x", "a on (x)", "a in (x", "a=b=c", "a b", "a=-", "!", "a=1)(",
        ] {
            let error = NodeQuery::parse(text).unwrap_err();
            assert!(error.contains("allowed: KEY=VALUE"), "{text:?}: {error}");
        }
        assert!(NodeQuery::parse("a=1,b c").unwrap_err().starts_with("\"b c\" is no"));
    }
}
