//! The Lease as plain data: who holds it, in which term, since when.
//!
//! Invariant: what we do not know of a Lease survives our writing it, and what is written names the version that it
//! follows. A record that somebody garbled is read as far as it goes; none of it can stop an election.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::timing::Timing;

/// How many candidates there are, as the leader counts them.
pub const CANDIDATES_ANNOTATION: &str = "headgate.dev/nodes";
/// How many terms ended one after another because the leader's work failed.
pub const FAILED_TERMS_ANNOTATION: &str = "headgate.dev/failed-terms";

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The version that a write has to follow.
    pub(super) resource_version: Option<String>,
    /// Which Lease it is: one that was deleted and made anew is another.
    pub(super) uid: Option<String>,
    /// Empty when released.
    pub(super) holder: String,
    /// The holder's term: `leaseTransitions`.
    pub(super) number: i32,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
    pub(super) seconds: i32,
    pub(super) candidates: Option<u32>,
    pub(super) failed_terms: u32,
}

impl Record {
    pub(super) fn of(lease: &Lease) -> Self {
        let spec = lease.spec.as_ref();
        let annotations = lease.metadata.annotations.as_ref();
        let count = |name| annotations.and_then(|all| all.get(name)?.trim().parse().ok());
        let time = |time: Option<&MicroTime>| time.map(|time| time.0);
        Self {
            resource_version: lease.metadata.resource_version.clone(),
            uid: lease.metadata.uid.clone(),
            holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
            number: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
            acquired: time(spec.and_then(|spec| spec.acquire_time.as_ref())),
            renewed: time(spec.and_then(|spec| spec.renew_time.as_ref())),
            seconds: spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default(),
            candidates: count(CANDIDATES_ANNOTATION),
            failed_terms: count(FAILED_TERMS_ANNOTATION).unwrap_or_default(),
        }
    }

    /// The Lease `name` that says this, with everything else as in `base`.
    pub(super) fn lease(&self, base: Option<&Lease>, name: &str) -> Lease {
        let mut lease = base.cloned().unwrap_or_default();
        let metadata = &mut lease.metadata;
        metadata.name = Some(name.to_owned());
        metadata.resource_version.clone_from(&self.resource_version);
        metadata.uid.clone_from(&self.uid);
        // The API server's own, and long.
        metadata.managed_fields = None;
        let mut annotations = metadata.annotations.take().unwrap_or_default();
        let failed = (self.failed_terms > 0).then_some(self.failed_terms);
        for (name, count) in [
            (CANDIDATES_ANNOTATION, self.candidates),
            (FAILED_TERMS_ANNOTATION, failed),
        ] {
            match count {
                Some(count) => annotations.insert(name.to_owned(), count.to_string()),
                None => annotations.remove(name),
            };
        }
        metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: Some(self.seconds.max(1)),
            acquire_time: self.acquired.map(MicroTime),
            renew_time: self.renewed.map(MicroTime),
            lease_transitions: Some(self.number),
            ..lease.spec.unwrap_or_default()
        });
        lease
    }

    pub(super) fn is_released(&self) -> bool {
        self.holder.is_empty()
    }

    /// Whether it was only made, as by [`Record::new`].
    pub(super) fn was_never_held(&self) -> bool {
        self.is_released() && self.acquired.is_none()
    }

    /// Whether the two are one holder's one renewal. Versions do not count: an annotation that somebody sets keeps
    /// no dead leader alive.
    pub(super) fn is_same_renewal(&self, other: &Self) -> bool {
        let vital = |record: &Self| (record.number, record.acquired, record.renewed);
        self.uid == other.uid && self.holder == other.holder && vital(self) == vital(other)
    }

    /// A Lease that nobody holds yet.
    pub(super) fn new(number: i32, now: Timestamp) -> Self {
        Self {
            number,
            renewed: Some(now),
            seconds: 1,
            ..Self::default()
        }
    }

    /// This record taken over in the term `number`.
    pub(super) fn taken(&self, holder: &str, number: i32, timing: &Timing, now: Timestamp) -> Self {
        let now = self.later(now);
        Self {
            holder: holder.to_owned(),
            number,
            acquired: Some(now),
            renewed: Some(now),
            seconds: whole_seconds(timing),
            ..self.clone()
        }
    }

    /// This record renewed by its holder.
    pub(super) fn renewed(&self, timing: &Timing, candidates: Option<u32>, now: Timestamp) -> Self {
        Self {
            renewed: Some(self.later(now)),
            seconds: whole_seconds(timing),
            candidates: candidates.or(self.candidates),
            ..self.clone()
        }
    }

    /// This record given back by its holder, as client-go does it.
    pub(super) fn released(&self, failed_terms: u32, now: Timestamp) -> Self {
        Self {
            holder: String::new(),
            renewed: Some(self.later(now)),
            seconds: 1,
            failed_terms,
            ..self.clone()
        }
    }

    /// A renewal that is written always differs from the one before, even if a clock was set back.
    fn later(&self, now: Timestamp) -> Timestamp {
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        if self.renewed == Some(now) {
            now.saturating_add(SignedDuration::from_micros(1)).unwrap_or(now)
        } else {
            now
        }
    }
}

fn whole_seconds(timing: &Timing) -> i32 {
    i32::try_from(timing.lease_duration().as_secs()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(value: Value) -> Lease {
        serde_json::from_value(value).unwrap()
    }

    fn at(microsecond: i64) -> Timestamp {
        Timestamp::from_microsecond(microsecond).unwrap()
    }

    #[test]
    fn what_is_not_ours_survives() {
        let theirs = lease(json!({
            "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                "annotations": {"other": "1", CANDIDATES_ANNOTATION: "3", FAILED_TERMS_ANNOTATION: "2"}, "managedFields": [{"manager": "m"}]},
            "spec": {"holderIdentity": "x", "leaseTransitions": 4, "preferredHolder": "y", "strategy": "s"},
        }));
        let record = Record::of(&theirs);
        assert_eq!((record.candidates, record.failed_terms), (Some(3), 2));
        let taken = record.taken("me", 5, &Timing::default(), at(1));
        let renewed = taken
            .renewed(&Timing::default(), Some(9), at(1))
            .lease(Some(&theirs), "l");
        assert_eq!(
            serde_json::to_value(&renewed).unwrap(),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                    "annotations": {"other": "1", CANDIDATES_ANNOTATION: "9", FAILED_TERMS_ANNOTATION: "2"}},
                "spec": {"acquireTime": "1970-01-01T00:00:00.000001Z", "holderIdentity": "me", "leaseDurationSeconds": 15,
                    "leaseTransitions": 5, "preferredHolder": "y", "renewTime": "1970-01-01T00:00:00.000002Z", "strategy": "s"}})
        );
        let released = Record::of(&renewed).released(0, at(5));
        assert!(released.is_released() && released.candidates == Some(9));
        let released = released.lease(Some(&renewed), "l");
        assert_eq!(
            released.metadata.annotations.unwrap().get(FAILED_TERMS_ANNOTATION),
            None
        );
        let spec = released.spec.unwrap();
        assert_eq!(
            (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
            (Some(""), Some(1))
        );
    }

    #[test]
    fn a_garbled_record_is_read_as_far_as_it_goes() {
        for (annotation, candidates) in [
            ("", None),
            ("x", None),
            ("-1", None),
            ("99999999999999999999", None),
            ("4294967295", Some(u32::MAX)),
            (" 12 ", Some(12)),
        ] {
            let garbled = lease(
                json!({"metadata": {"annotations": {CANDIDATES_ANNOTATION: annotation, FAILED_TERMS_ANNOTATION: annotation}}}),
            );
            let record = Record::of(&garbled);
            assert_eq!(
                (record.candidates, record.failed_terms),
                (candidates, candidates.unwrap_or(0))
            );
            assert!(record.is_released() && record.number == 0);
        }
        assert_eq!(Record::of(&Lease::default()), Record::default());
    }

    #[test]
    fn only_the_holder_and_its_renewal_count_as_change() {
        let record = Record::default().taken("a", 1, &Timing::default(), at(1));
        let annotated = Record {
            resource_version: Some("8".to_owned()),
            candidates: Some(3),
            ..record.clone()
        };
        assert!(record.is_same_renewal(&annotated));
        // The clock stands still, or was set back to the very microsecond.
        assert!(!record.is_same_renewal(&record.renewed(&Timing::default(), None, at(1))));
        assert!(!record.is_same_renewal(&record.taken("a", 2, &Timing::default(), at(1))));
        assert!(!record.is_same_renewal(&record.released(0, at(1))));
    }
}
