//! Which nodes a `v1.NodeSelector` matches, as the scheduler has it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::drain_plan::Labels;

/// Whether any term of `selector` matches a node. A term without requirements matches none.
pub fn selects(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| term_matches(term, name, labels))
}

/// The names of which a node that `selector` matches has one; `None` if it may have any other.
pub(crate) fn possible_names(selector: &NodeSelector) -> Option<BTreeSet<&str>> {
    let terms = selector.node_selector_terms.iter();
    let names: Option<Vec<_>> = terms.map(required_names).collect();
    Some(names?.into_iter().flatten().map(String::as_str).collect())
}

fn required_names(term: &NodeSelectorTerm) -> Option<&[String]> {
    let mut fields = term.match_fields.iter().flatten();
    let names = fields.find(|field| field.key == "metadata.name" && field.operator == "In")?;
    Some(names.values.as_deref().unwrap_or_default())
}

fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let of_label = |requirement: &NodeSelectorRequirement| {
        requirement_matches(requirement, labels.get(&requirement.key).map(String::as_str))
    };
    // metadata.name is the only field, here and in Kubernetes.
    let of_field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && requirement_matches(requirement, Some(name))
    };
    (!expressions.is_empty() || !fields.is_empty()) && expressions.iter().all(of_label) && fields.iter().all(of_field)
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let numbers = || match values {
        [limit] => Some((value?.parse::<i64>().ok()?, limit.parse::<i64>().ok()?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(key: &str, operator: &str, values: &[&str]) -> NodeSelectorRequirement {
        NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        }
    }

    fn term(expressions: Vec<NodeSelectorRequirement>, fields: Vec<NodeSelectorRequirement>) -> NodeSelector {
        NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: Some(expressions),
                match_fields: Some(fields),
            }],
        }
    }

    #[test]
    fn requirements_match_as_in_the_scheduler() {
        let labels = Labels::from([
            ("pool".to_owned(), "a".to_owned()),
            ("cores".to_owned(), "8".to_owned()),
        ]);
        for (key, operator, values, matches) in [
            ("pool", "In", &["a", "b"][..], true),
            ("pool", "In", &["b"], false),
            ("none", "In", &["a"], false),
            ("pool", "NotIn", &["a"], false),
            ("none", "NotIn", &["a"], true),
            ("pool", "Exists", &[], true),
            ("none", "Exists", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("pool", "DoesNotExist", &[], false),
            ("cores", "Gt", &["7"], true),
            ("cores", "Gt", &["8"], false),
            ("cores", "Lt", &["9"], true),
            ("cores", "Lt", &["8"], false),
            ("pool", "Gt", &["7"], false),
            ("cores", "Gt", &["x"], false),
            ("cores", "Gt", &["1", "2"], false),
            ("none", "Lt", &["9"], false),
            ("pool", "Like", &["a"], false),
        ] {
            let selector = term(vec![requirement(key, operator, values)], Vec::new());
            let found = selects(&selector, "one", &labels);
            assert_eq!(found, matches, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn names_and_terms() {
        let labels = Labels::from([("pool".to_owned(), "a".to_owned())]);
        let named = |name| requirement("metadata.name", "In", &[name]);
        let pool = || requirement("pool", "In", &["a"]);
        let uid = requirement("metadata.uid", "In", &["one"]);
        let not_one = requirement("metadata.name", "NotIn", &["one"]);
        for (what, expressions, fields, name, expected) in [
            ("its name", vec![], vec![named("one")], "one", true),
            ("another name", vec![], vec![named("two")], "one", false),
            ("both have to match", vec![pool()], vec![named("two")], "one", false),
            ("no other field", vec![], vec![uid], "one", false),
            ("all but it", vec![], vec![not_one.clone()], "one", false),
            ("all but another", vec![], vec![not_one], "two", true),
            ("an empty term matches nothing", vec![], vec![], "one", false),
        ] {
            assert_eq!(selects(&term(expressions, fields), name, &labels), expected, "{what}");
        }
        let mut either = term(Vec::new(), vec![named("two")]);
        let of_pool = term(vec![pool()], Vec::new()).node_selector_terms;
        either.node_selector_terms.extend(of_pool);
        assert!(selects(&either, "one", &labels), "any term");
    }

    #[test]
    fn nodes_of_other_names_are_never_selected() {
        let labels = Labels::from([("pool".to_owned(), "a".to_owned())]);
        let name = |operator, values: &[&str]| requirement("metadata.name", operator, values);
        let fields = [
            Vec::new(),
            vec![name("In", &["one"])],
            vec![name("In", &["two", "one"])],
            vec![name("In", &[])],
            vec![name("NotIn", &["one"])],
            vec![name("NotIn", &["one"]), name("In", &["one", "two"])],
            vec![name("In", &["one"]), name("In", &["two"])],
            vec![requirement("metadata.uid", "In", &["one"])],
        ];
        let expressions = [Vec::new(), vec![requirement("pool", "In", &["a"])]];
        let terms = fields.iter().flat_map(|fields| {
            let with = move |expressions: &Vec<_>| term(expressions.clone(), fields.clone()).node_selector_terms;
            expressions.iter().map(with)
        });
        let terms: Vec<_> = terms.collect();
        for (first, second) in terms.iter().flat_map(|one| terms.iter().map(move |other| (one, other))) {
            let selector = NodeSelector {
                node_selector_terms: first.iter().chain(second).cloned().collect(),
            };
            let possible = possible_names(&selector);
            for name in ["one", "two", "three"] {
                let is_possible = possible.as_ref().is_none_or(|names| names.contains(name));
                assert!(is_possible || !selects(&selector, name, &labels), "{name} {selector:?}");
            }
        }
        let possible = |fields| possible_names(&term(Vec::new(), fields)).map(|names| names.len());
        let counts = fields.map(possible);
        assert_eq!(counts, [None, Some(1), Some(2), Some(0), None, Some(2), Some(1), None]);
    }
}
