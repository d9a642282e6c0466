//! The drain plan: which pods leave in which order, and which of them are targeted at a position of the plan.
//!
//! A [`DrainPlan`] is the list of `spec.drainPlan` with the default entries of KEP-4212, in order. A maintenance has a
//! position in its plan, the index of one entry. A node has [`DrainTargets`]: pods that any of its entries selects are
//! evacuated. Targets only grow.

mod selector;
mod targets;

use crate::api::{DrainPlanEntry, PodType};

pub use selector::{Labels, PodSelector};
pub use targets::DrainTargets;

/// The priorities of the default entries: the highest of user-defined priority classes, `system-cluster-critical`,
/// `system-node-critical`, and the maximum.
pub(crate) const DEFAULT_PRIORITIES: [i32; 4] = [1_000_000_000, 2_000_000_000, 2_000_001_000, i32::MAX];

/// The types in the order in which their pods leave.
const POD_TYPES: [PodType; 3] = [PodType::Default, PodType::DaemonSet, PodType::Static];

/// Where an entry stands among those of any plan (NM-02): by type, then by priority, entries with a selector before the one without.
///
/// Two entries with different selectors may stand at the same position. They are executed at the same time where two
/// maintenances of a node have them.
pub type Position = (PodType, i32, bool);

/// A whole plan: never empty, in order, without duplicates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DrainPlan {
    entries: Vec<DrainPlanEntry>,
}

impl DrainPlanEntry {
    /// Pods of this type, with this priority or a lower one, and with these labels, or all.
    pub fn new(pod_type: PodType, pod_priority: i32, pod_selector: Option<PodSelector>) -> Self {
        Self {
            pod_selector,
            pod_priority,
            pod_type,
        }
    }

    /// Where the entry stands.
    pub fn position(&self) -> Position {
        (self.pod_type, self.pod_priority, self.pod_selector.is_none())
    }
}

impl DrainPlan {
    /// The effective plan of `spec.drainPlan`: the default entries are added where they are missing (NM-03).
    pub fn effective(spec: &[DrainPlanEntry]) -> Self {
        let defaults = POD_TYPES
            .iter()
            .flat_map(|of| DEFAULT_PRIORITIES.map(|priority| DrainPlanEntry::new(*of, priority, None)));
        Self::in_order(spec.iter().cloned().chain(defaults).collect())
    }

    fn in_order(mut entries: Vec<DrainPlanEntry>) -> Self {
        // Entries of the same position differ in their selectors; any fixed order among them will do.
        entries.sort_by(|a, b| (a.position(), &a.pod_selector).cmp(&(b.position(), &b.pod_selector)));
        entries.dedup();
        Self { entries }
    }

    /// The entries in order.
    pub fn entries(&self) -> &[DrainPlanEntry] {
        &self.entries
    }

    /// The index of the last entry.
    pub fn last(&self) -> usize {
        self.entries.len() - 1
    }

    /// Where the entry at `index` stands; an index beyond the end is the last one.
    pub fn position(&self, index: usize) -> Position {
        self.entries[index.min(self.last())].position()
    }

    /// The index of the first entry that does not stand before `position`, or of the last entry.
    pub fn first_at(&self, position: Position) -> usize {
        self.entries
            .partition_point(|entry| entry.position() < position)
            .min(self.last())
    }

    /// What a node is to be drained of at `index` (DT-06): for each type that is reached, the highest entry without a
    /// selector, and each selector of that type at the higher of that and its own highest entry.
    pub fn targets(&self, index: usize) -> DrainTargets {
        let index = index.min(self.last());
        let reached = self.entries[index].pod_type;
        let mut targets = DrainTargets::default();
        for entry in &self.entries[..=index] {
            targets.raise(entry);
        }
        for entry in self.entries.iter().filter(|entry| entry.pod_type <= reached) {
            if let (Some(_), Some(pod_priority)) = (&entry.pod_selector, targets.priority(entry.pod_type, None)) {
                targets.raise(&DrainPlanEntry {
                    pod_priority,
                    ..entry.clone()
                });
            }
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(by: &str) -> Option<PodSelector> {
        Some(by).map(|by| PodSelector::label("app", by))
    }

    fn entry(pod_type: PodType, priority: i32, selector: Option<PodSelector>) -> DrainPlanEntry {
        DrainPlanEntry::new(pod_type, priority, selector)
    }

    #[test]
    fn a_plan_without_entries_is_the_twelve_default_entries() {
        let plan = DrainPlan::effective(&[]);
        let list: Vec<_> = plan.entries().iter().map(|e| (e.pod_type, e.pod_priority)).collect();
        let mut expected = Vec::new();
        for pod_type in [PodType::Default, PodType::DaemonSet, PodType::Static] {
            for priority in [1_000_000_000, 2_000_000_000, 2_000_001_000, 2_147_483_647] {
                expected.push((pod_type, priority));
            }
        }
        assert_eq!(list, expected);
    }

    #[test]
    fn default_entries_are_added_once_and_in_order() {
        let spec = [
            entry(PodType::Default, 1_000_000_000, selected("pg")),
            entry(PodType::Default, 1_000_000_000, None),
            entry(PodType::DaemonSet, 5, None),
        ];
        let plan = DrainPlan::effective(&spec);
        assert_eq!(plan.entries().len(), 14);
        assert_eq!(plan.entries()[0].pod_selector, selected("pg"), "the selector is first");
        assert_eq!(plan.entries()[1].pod_selector, None);
        assert_eq!(plan.entries()[5], entry(PodType::DaemonSet, 5, None));
        assert!(plan.entries().is_sorted_by_key(DrainPlanEntry::position));
    }

    #[test]
    fn the_order_of_entries_in_the_spec_does_not_matter() {
        let mut spec = ["b", "a", "c"].map(|label| entry(PodType::Default, 7, selected(label)));
        let plan = DrainPlan::effective(&spec);
        spec.reverse();
        assert_eq!(DrainPlan::effective(&spec), plan);
    }

    /// The KEP's "PodTypes and Label Selectors Progression".
    #[test]
    fn the_six_steps_of_the_example() {
        use PodType::{DaemonSet, Default, Static};
        let pg = || selected("postgres");
        let plan = DrainPlan::in_order(vec![
            entry(Default, 1000, None),
            entry(Default, 2000, pg()),
            entry(Default, i32::MAX, None),
            entry(DaemonSet, 1000, None),
            entry(DaemonSet, i32::MAX, None),
            entry(Static, i32::MAX, None),
        ]);
        let all = [entry(Default, i32::MAX, None), entry(Default, i32::MAX, pg())];
        let steps = [
            vec![entry(Default, 1000, None), entry(Default, 1000, pg())],
            vec![entry(Default, 1000, None), entry(Default, 2000, pg())],
            all.to_vec(),
            [&all[..], &[entry(DaemonSet, 1000, None)]].concat(),
            [&all[..], &[entry(DaemonSet, i32::MAX, None)]].concat(),
            [
                &all[..],
                &[entry(DaemonSet, i32::MAX, None), entry(Static, i32::MAX, None)],
            ]
            .concat(),
        ];
        for (index, step) in steps.into_iter().enumerate() {
            let targets = plan.targets(index);
            assert_eq!(targets.entries().collect::<Vec<_>>(), step, "step {}", index + 1);
            assert_eq!(targets.position(), Some(plan.position(index)), "step {}", index + 1);
        }
    }

    #[test]
    fn an_entry_with_a_selector_comes_alone_before_any_without() {
        let plan = DrainPlan::in_order(vec![
            entry(PodType::Default, 10, selected("pg")),
            entry(PodType::Default, 10, None),
        ]);
        let first: Vec<_> = plan.targets(0).entries().collect();
        assert_eq!(first, [entry(PodType::Default, 10, selected("pg"))]);
    }
}
