//! How evacuators register: a pod's annotations `evacuation.headgate.dev/priority_CLASS: PRIORITY[/ROLE]`, or the same
//! of `evacuation.coordination.k8s.io`.
//!
//! Annotations are written by anybody who may write the pod. A malformed one is left out and reported, and never keeps the
//! others from being used.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use headgate_core::settings::is_subdomain;
use headgate_core::telemetry::first_names;
use thiserror::Error;

use crate::api::names::{
    CONTROLLER_PRIORITY, CONTROLLER_ROLE, DAEMON_SET_EVACUATOR, evacuator_class, is_daemon_set_evacuator,
};
use crate::api::{Evacuator, PodType};
use crate::snapshot::PodFacts;

/// The most evacuators of a pod. One place is kept for the controller.
const MAX_EVACUATORS: usize = 100;
/// The name part of an annotation's key has at most 63 characters, 9 of which are `priority_`.
const MAX_CLASS: usize = 54;
const MAX_ROLE: usize = 63;
const MAX_PRIORITY: i32 = 100_000;
/// The mistakes that an event and its log line name: the annotations of one pod may have thousands.
const MAX_MISTAKES_NAMED: usize = 5;

/// The evacuators of a pod, and what is wrong with its other annotations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ParsedEvacuators {
    /// In the order of their turns.
    pub evacuators: Vec<Evacuator>,
    /// One sentence for each annotation that is left out.
    pub mistakes: Vec<AnnotationError>,
}

/// An annotation that registers no evacuator.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("annotation {key}: {value:?} is left out: {problem}")]
pub struct AnnotationError {
    key: String,
    value: String,
    problem: &'static str,
}

/// The evacuators that the Evacuation of a pod gets, in any order: those that the pod registers, and for a pod of a DaemonSet, which the
/// Eviction API does not support, the one that deletes it, unless it registers a controller.
pub(crate) fn evacuators_of(pod: &PodFacts) -> Vec<Evacuator> {
    let mut evacuators = parse_evacuators(&pod.evacuators).evacuators;
    let has_controller = evacuators
        .iter()
        .any(|evacuator| evacuator.priority == CONTROLLER_PRIORITY);
    if pod.pod_type == PodType::DaemonSet && !has_controller {
        // The DaemonSet controller does not annotate its pods.
        evacuators.retain(|evacuator| !is_daemon_set_evacuator(&evacuator.evacuator_class));
        evacuators.push(daemon_set_evacuator());
    }
    evacuators
}

/// The evacuator that deletes pods of DaemonSets.
pub(super) fn daemon_set_evacuator() -> Evacuator {
    Evacuator {
        evacuator_class: DAEMON_SET_EVACUATOR.to_owned(),
        priority: CONTROLLER_PRIORITY,
        role: Some(CONTROLLER_ROLE.to_owned()),
    }
}

/// Reads the annotations of a pod; others than those of evacuators are ignored.
pub fn parse_evacuators(annotations: &BTreeMap<String, String>) -> ParsedEvacuators {
    let mut parsed = ParsedEvacuators::default();
    let mut registered: Vec<_> = annotations
        .iter()
        .filter_map(|(key, value)| Some((evacuator_class(key)?, key, value)))
        .collect();
    registered.sort();
    for ((_, class), key, value) in registered {
        let result = parse(class, value).and_then(|evacuator| parsed.check(evacuator));
        match result {
            Ok(evacuator) => parsed.evacuators.push(evacuator),
            Err(problem) => parsed.mistakes.push(AnnotationError {
                key: key.clone(),
                value: value.chars().take(80).collect(),
                problem,
            }),
        }
    }
    parsed.evacuators.sort_by(|a, b| turn(a).cmp(&turn(b)));
    parsed
}

impl ParsedEvacuators {
    /// The first mistakes, and how many more there are; `None` if there is none.
    pub(crate) fn note(&self) -> Option<String> {
        (!self.mistakes.is_empty()).then(|| first_names(&self.mistakes, MAX_MISTAKES_NAMED))
    }

    fn check(&self, evacuator: Evacuator) -> Result<Evacuator, &'static str> {
        let is_known = |known: &Evacuator| known.evacuator_class == evacuator.evacuator_class;
        if self.evacuators.iter().any(is_known) {
            return Err("another annotation registers the same class");
        }
        let is_controller = |evacuator: &Evacuator| evacuator.priority == CONTROLLER_PRIORITY;
        let has_controller = self.evacuators.iter().any(is_controller);
        if is_controller(&evacuator) && has_controller {
            return Err("there is another evacuator with the role controller");
        }
        let others = self.evacuators.len() - usize::from(has_controller);
        if !is_controller(&evacuator) && others >= MAX_EVACUATORS - 1 {
            return Err("there are 99 other evacuators");
        }
        Ok(evacuator)
    }
}

fn parse(class: &str, value: &str) -> Result<Evacuator, &'static str> {
    if class.len() > MAX_CLASS || !is_subdomain(class) {
        return Err("the class has to be a lowercase DNS name of at most 54 characters");
    }
    let (priority, role) = match value.split_once('/') {
        Some((priority, role)) => (priority, Some(role)),
        None => (value, None),
    };
    let priority = priority
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| priority.parse().ok())
        .flatten()
        .filter(|priority| *priority <= MAX_PRIORITY)
        .ok_or("the priority has to be an integer from 0 to 100000")?;
    if role.is_some_and(|role| role.is_empty() || role.len() > MAX_ROLE) {
        return Err("the role has to have 1 to 63 characters");
    }
    if (role == Some(CONTROLLER_ROLE)) != (priority == CONTROLLER_PRIORITY) {
        return Err("the role controller has priority 10000, and nothing else has");
    }
    Ok(Evacuator {
        evacuator_class: class.to_owned(),
        priority,
        role: role.map(str::to_owned),
    })
}

/// The order of turns: higher priorities first, then by the labels of the class from the top-level domain down.
pub(super) fn turn(evacuator: &Evacuator) -> (Reverse<i32>, Vec<&str>) {
    (
        Reverse(evacuator.priority),
        evacuator.evacuator_class.rsplit('.').collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::names::EVACUATOR_ANNOTATION_PREFIXES;

    const OWN: &str = EVACUATOR_ANNOTATION_PREFIXES[0];

    fn parsed(annotations: &[(&str, &str)]) -> ParsedEvacuators {
        let annotations = annotations.iter();
        let annotations = annotations.map(|(class, value)| (format!("{OWN}{class}"), (*value).to_owned()));
        parse_evacuators(&annotations.collect())
    }

    /// The classes and priorities in the order of their turns.
    fn turns(result: &ParsedEvacuators) -> Vec<(&str, i32)> {
        let evacuators = result.evacuators.iter();
        evacuators
            .map(|found| (found.evacuator_class.as_str(), found.priority))
            .collect()
    }

    #[test]
    fn a_value_is_a_priority_and_perhaps_a_role() {
        let (longest, long) = ("a".repeat(54), "a".repeat(55));
        let [longest_role, long_role] = [63, 64].map(|length| "r".repeat(length));
        let [with_longest_role, with_long_role] = [&longest_role, &long_role].map(|role| format!("5/{role}"));
        for (class, value, expected) in [
            ("a.example", "0", Some((0, None))),
            ("a.example", "100000", Some((100_000, None))),
            ("a.example", "5/backup", Some((5, Some("backup")))),
            ("a.example", "10000/controller", Some((10_000, Some("controller")))),
            ("a.example", "10000", None),
            ("a.example", "10000/x", None),
            ("a.example", "9999/controller", None),
            ("a.example", "100001", None),
            ("a.example", "-1", None),
            ("a.example", "+1", None),
            ("a.example", "", None),
            ("a.example", "99999999999999999999", None),
            ("a.example", "5/", None),
            ("a.example", &with_longest_role, Some((5, Some(longest_role.as_str())))),
            ("a.example", &with_long_role, None),
            ("A.example", "5", None),
            ("a..example", "5", None),
            ("-a.example", "5", None),
            (&longest, "5", Some((5, None))),
            (&long, "5", None),
            ("", "5", None),
        ] {
            let result = parsed(&[(class, value)]);
            let first = result.evacuators.first();
            let found = first.map(|found| (found.priority, found.role.as_deref()));
            assert_eq!(found, expected, "{class} {value:?}");
            let mistakes = usize::from(expected.is_none());
            assert_eq!(result.mistakes.len(), mistakes, "{class} {value:?}");
        }
    }

    #[test]
    fn turns_go_by_priority_then_by_domain() {
        let result = parsed(&[
            ("b.example.com", "5"),
            ("z.example.com", "7"),
            ("a.example.org", "5"),
            ("a.zoo.com", "5"),
            ("a.example.com", "5"),
        ]);
        let expected = [
            ("z.example.com", 7),
            ("a.example.com", 5),
            ("b.example.com", 5),
            ("a.zoo.com", 5),
            ("a.example.org", 5),
        ];
        assert_eq!(turns(&result), expected);
    }

    #[test]
    fn one_controller_and_99_others() {
        let result = parsed(&[("a.example", "10000/controller"), ("b.example", "10000/controller")]);
        assert_eq!(result.evacuators.len(), 1);
        assert_eq!(
            result.mistakes[0].to_string(),
            "annotation evacuation.headgate.dev/priority_b.example: \"10000/controller\" is left out: \
             there is another evacuator with the role controller"
        );
        let classes: Vec<_> = (0..120).map(|n| format!("e{n:03}.example")).collect();
        for controller in ["a.example", "z.example"] {
            let mut many: Vec<_> = classes.iter().map(|class| (class.as_str(), "5")).collect();
            many.push((controller, "10000/controller"));
            let result = parsed(&many);
            assert_eq!(result.evacuators.len(), 100);
            assert_eq!(result.evacuators[0].evacuator_class, controller);
            assert_eq!(result.mistakes.len(), 21);
        }
    }

    #[test]
    fn a_note_names_the_first_mistakes() {
        let (one, many) = (Some(", 1 more"), Some(", 6995 more"));
        for (count, more) in [(0, None), (1, None), (5, None), (6, one), (7000, many)] {
            let classes: Vec<_> = (0..count).map(|n| format!("e{n:04}.example")).collect();
            let annotations: Vec<_> = classes.iter().map(|class| (class.as_str(), "")).collect();
            let note = parsed(&annotations).note();
            assert_eq!(note.is_some(), count > 0, "{count}");
            let note = note.unwrap_or_default();
            assert_eq!(note.matches("is left out").count(), count.min(5), "{count}");
            assert!(more.is_none_or(|more| note.ends_with(more)), "{note}");
        }
    }

    #[test]
    fn a_class_may_be_registered_by_the_spelling_of_the_kep() {
        let [own, kep] = EVACUATOR_ANNOTATION_PREFIXES;
        let annotations = [
            (kep, "a.example", "5"),
            (own, "a.example", "7"),
            (kep, "b.example", "6"),
        ];
        let annotations = annotations.map(|(prefix, class, value)| (format!("{prefix}{class}"), value.to_owned()));
        let result = parse_evacuators(&BTreeMap::from(annotations));
        assert_eq!(turns(&result), [("a.example", 7), ("b.example", 6)]);
        assert_eq!(
            result.mistakes[0].to_string(),
            "annotation evacuation.coordination.k8s.io/priority_a.example: \"5\" is left out: \
             another annotation registers the same class"
        );
    }

    #[test]
    fn other_annotations_are_ignored() {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        assert_eq!(parse_evacuators(&annotations), ParsedEvacuators::default());
    }
}
