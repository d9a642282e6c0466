//! For which maintenances a rollout was restarted: an annotation of the pod template, whose change is the restart.
//!
//! A ReplicaSet keeps the template of its pods, so its record tells pods from before a restart from those after it.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::names::RESTARTED_FOR_ANNOTATION;

/// The UIDs of maintenances for which a rollout was restarted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record(BTreeSet<String>);

impl Record {
    /// The record in the annotations of a pod template.
    pub fn read(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let value = annotations.and_then(|annotations| annotations.get(RESTARTED_FOR_ANNOTATION));
        let uids = value.into_iter().flat_map(|value| value.split(','));
        Self(
            uids.map(str::trim)
                .filter(|uid| !uid.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Whether it names one of these maintenances.
    pub fn has_any(&self, uids: &BTreeSet<String>) -> bool {
        !self.0.is_disjoint(uids)
    }

    /// The record after a restart for these maintenances. Those that no longer exist are dropped, so that it stays short.
    #[must_use]
    pub fn with(&self, uids: &BTreeSet<String>, existing: &BTreeSet<String>) -> Self {
        Self(self.0.intersection(existing).chain(uids).cloned().collect())
    }

    /// The value of the annotation.
    pub fn to_annotation(&self) -> String {
        self.0.iter().map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    fn read(value: &str) -> Record {
        Record::read(Some(&BTreeMap::from([(
            RESTARTED_FOR_ANNOTATION.to_owned(),
            value.to_owned(),
        )])))
    }

    #[test]
    fn a_record_keeps_the_maintenances_that_exist() {
        assert_eq!(Record::read(None), Record::default());
        assert_eq!(read(""), Record::default());
        let record = read("a, b,,c");
        assert!(record.has_any(&set(&["x", "b"])));
        assert!(!record.has_any(&set(&["x"])) && !record.has_any(&set(&[])));
        let next = record.with(&set(&["d"]), &set(&["a", "c", "d", "e"]));
        assert_eq!(next.to_annotation(), "a,c,d");
        assert_eq!(read(&next.to_annotation()), next);
    }
}
