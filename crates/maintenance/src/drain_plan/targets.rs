//! What a node is drained of now.
//!
//! Targets are a set of pods in the form that `status.nodeStatuses[].drainTargets` has. The only changes are upwards:
//! [`DrainTargets::raise`] and [`DrainTargets::join`].

use std::collections::BTreeMap;

use crate::api::{DrainPlanEntry, PodType};

use super::Position;
use super::selector::{Labels, PodSelector};

/// What a node is drained of now: pods that any of these entries selects (DT-01). By default, of nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DrainTargets {
    /// The highest priority of each type and selector.
    priorities: BTreeMap<(PodType, Option<PodSelector>), i32>,
}

impl DrainTargets {
    /// Whether a pod of this type, priority and labels is targeted.
    pub fn select(&self, pod_type: PodType, priority: i32, labels: &Labels) -> bool {
        self.priorities.iter().any(|((of, selector), highest)| {
            *of == pod_type && priority <= *highest && selector.as_ref().is_none_or(|selector| selector.matches(labels))
        })
    }

    /// The entries by type, the one without a selector first.
    pub fn entries(&self) -> impl Iterator<Item = DrainPlanEntry> {
        let entries = self.priorities.iter();
        entries.map(|((pod_type, selector), priority)| DrainPlanEntry::new(*pod_type, *priority, selector.clone()))
    }

    /// The highest priority of a type and selector.
    pub fn priority(&self, pod_type: PodType, selector: Option<&PodSelector>) -> Option<i32> {
        self.priorities.get(&(pod_type, selector.cloned())).copied()
    }

    /// How far the node is: the position of the last entry that was reached, or `None` without any.
    pub fn position(&self) -> Option<Position> {
        self.entries().map(|entry| entry.position()).max()
    }

    /// Adds an entry; what is targeted already stays.
    pub fn raise(&mut self, entry: &DrainPlanEntry) {
        let key = (entry.pod_type, entry.pod_selector.clone());
        let priority = self.priorities.entry(key).or_insert(entry.pod_priority);
        *priority = entry.pod_priority.max(*priority);
    }

    /// Adds all that `other` targets.
    pub fn join(&mut self, other: &Self) {
        for entry in other.entries() {
            self.raise(&entry);
        }
    }
}

impl<'a> FromIterator<&'a DrainPlanEntry> for DrainTargets {
    fn from_iter<I: IntoIterator<Item = &'a DrainPlanEntry>>(entries: I) -> Self {
        let mut targets = Self::default();
        for entry in entries {
            targets.raise(entry);
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_selects_by_type_priority_and_labels() {
        let mut targets = DrainTargets::default();
        assert!(!targets.select(PodType::Default, i32::MIN, &Labels::new()));
        targets.raise(&DrainPlanEntry::new(PodType::Default, 1000, None));
        targets.raise(&DrainPlanEntry::new(
            PodType::Default,
            2000,
            Some(PodSelector::label("app", "pg")),
        ));
        let pg = Labels::from([("app".to_owned(), "pg".to_owned())]);
        for (pod_type, priority, labels, targeted) in [
            (PodType::Default, 1000, &Labels::new(), true),
            (PodType::Default, 1001, &Labels::new(), false),
            (PodType::Default, -5, &Labels::new(), true),
            (PodType::Default, 2000, &pg, true),
            (PodType::Default, 2001, &pg, false),
            (PodType::DaemonSet, 0, &Labels::new(), false),
            (PodType::Static, 0, &pg, false),
        ] {
            assert_eq!(
                targets.select(pod_type, priority, labels),
                targeted,
                "{pod_type:?} {priority}"
            );
        }
    }

    #[test]
    fn joined_targets_are_never_lower() {
        let mut targets = DrainTargets::default();
        targets.raise(&DrainPlanEntry::new(PodType::Default, 9, None));
        let mut other = DrainTargets::default();
        other.raise(&DrainPlanEntry::new(PodType::Default, 3, None));
        other.raise(&DrainPlanEntry::new(PodType::DaemonSet, 1, None));
        targets.join(&other);
        assert_eq!(targets.priority(PodType::Default, None), Some(9));
        assert_eq!(targets.priority(PodType::DaemonSet, None), Some(1));
        let entries: Vec<_> = targets.entries().collect();
        let read: DrainTargets = entries.iter().collect();
        assert_eq!(read, targets);
    }
}
