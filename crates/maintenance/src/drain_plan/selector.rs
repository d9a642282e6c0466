//! A label selector as plain data that can be compared, ordered and matched.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::{Deserialize, Serialize};

/// Labels, as Kubernetes has them.
pub type Labels = BTreeMap<String, String>;

/// A label selector. All requirements have to match; without any it matches everything.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(from = "LabelSelector", into = "LabelSelector")]
pub struct PodSelector {
    match_labels: Labels,
    match_expressions: BTreeSet<Requirement>,
}

#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Requirement {
    key: String,
    operator: String,
    values: BTreeSet<String>,
}

impl PodSelector {
    /// Selects pods by one label.
    pub fn label(key: &str, value: &str) -> Self {
        Self {
            match_labels: Labels::from([(key.to_owned(), value.to_owned())]),
            match_expressions: BTreeSet::new(),
        }
    }

    /// Whether all requirements match.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }
}

impl From<LabelSelector> for PodSelector {
    fn from(selector: LabelSelector) -> Self {
        let expressions = selector.match_expressions.into_iter().flatten();
        Self {
            match_labels: selector.match_labels.unwrap_or_default(),
            match_expressions: expressions
                .map(|requirement| Requirement {
                    key: requirement.key,
                    operator: requirement.operator,
                    values: requirement.values.into_iter().flatten().collect(),
                })
                .collect(),
        }
    }
}

impl From<PodSelector> for LabelSelector {
    fn from(selector: PodSelector) -> Self {
        let expressions = selector.match_expressions.into_iter();
        let expressions: Vec<_> = expressions
            .map(|requirement| LabelSelectorRequirement {
                key: requirement.key,
                operator: requirement.operator,
                values: (!requirement.values.is_empty()).then(|| requirement.values.into_iter().collect()),
            })
            .collect();
        Self {
            match_labels: (!selector.match_labels.is_empty()).then_some(selector.match_labels),
            match_expressions: (!expressions.is_empty()).then_some(expressions),
        }
    }
}

impl Requirement {
    /// As labels.Requirement of apimachinery. An operator that the API does not know matches nothing.
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn expression(operator: &str, values: &[&str]) -> PodSelector {
        PodSelector::from(LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "app".to_owned(),
                operator: operator.to_owned(),
                values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
            }]),
        })
    }

    #[test]
    fn requirements_match_as_in_kubernetes() {
        let web = labels(&[("app", "web")]);
        let none = labels(&[("tier", "x")]);
        for (selector, on_web, on_none) in [
            (PodSelector::label("app", "web"), true, false),
            (PodSelector::label("app", "db"), false, false),
            (PodSelector::default(), true, true),
            (expression("In", &["web", "db"]), true, false),
            (expression("In", &["db"]), false, false),
            (expression("NotIn", &["web"]), false, true),
            (expression("NotIn", &["db"]), true, true),
            (expression("Exists", &[]), true, false),
            (expression("DoesNotExist", &[]), false, true),
            (expression("Sounds", &["web"]), false, false),
        ] {
            assert_eq!(selector.matches(&web), on_web, "{selector:?} on web");
            assert_eq!(selector.matches(&none), on_none, "{selector:?} without the label");
        }
    }

    #[test]
    fn a_selector_survives_the_way_through_the_api() {
        for selector in [
            PodSelector::label("a", "b"),
            expression("In", &["x", "y"]),
            expression("Exists", &[]),
        ] {
            assert_eq!(PodSelector::from(LabelSelector::from(selector.clone())), selector);
        }
    }
}
