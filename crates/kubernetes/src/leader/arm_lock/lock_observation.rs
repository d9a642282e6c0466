//! What was observed of the shared Lease, and how often another process held it.
//!
//! Invariant: the watch, which may lag, never replaces a version by an older one; the response to a request of headgate's
//! own always counts. Watches coalesce: a hold that began and ended between two observations shows in the times and in the
//! previous holder.

use std::cmp::Ordering;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::lock_record::LockRecord;

/// The Lease as observed last.
#[derive(Clone, Debug, Default)]
pub(super) enum ObservedLock {
    /// Nothing was observed yet.
    #[default]
    Unknown,
    /// The Lease does not exist.
    Missing,
    /// The Lease, and the same as plain data.
    Present(Box<Lease>, LockRecord),
}

/// The observations so far.
#[derive(Clone, Debug, Default)]
pub(super) struct LockObservation {
    observed: ObservedLock,
    /// The `acquireTime` of this process's last attempt to acquire the Lease, whose response may be lost.
    own_acquire_time: Option<Timestamp>,
    other_holds: u64,
}

impl LockObservation {
    pub(super) fn observed(&self) -> &ObservedLock {
        &self.observed
    }

    pub(super) fn record(&self) -> Option<&LockRecord> {
        match &self.observed {
            ObservedLock::Present(_, record) => Some(record),
            ObservedLock::Unknown | ObservedLock::Missing => None,
        }
    }

    /// How many holds of other processes have been observed to end.
    pub(super) fn other_holds(&self) -> u64 {
        self.other_holds
    }

    /// A request that acquires the Lease for `holder` at `time` is about to be sent.
    pub(super) fn begin_acquire(&mut self, holder: &str, time: Timestamp) {
        let is_others = |record: &LockRecord| !record.is_released() && !record.is_held_by(holder);
        if self.record().is_some_and(is_others) {
            // The other holder did not release it: the hold has expired.
            self.other_holds += 1;
        }
        self.own_acquire_time = Some(time);
    }

    /// That request had a conflict: another process acquired the Lease, perhaps in the same microsecond.
    pub(super) fn cancel_acquire(&mut self) {
        self.own_acquire_time = None;
    }

    /// Adds what the watch showed if it is newer than what was known, and returns how the versions compare.
    pub(super) fn observe_watch(&mut self, lease: Lease) -> Ordering {
        let number = |version: Option<&str>| version.and_then(|version| version.parse::<u64>().ok());
        let shown = number(lease.metadata.resource_version.as_deref());
        let known = self
            .record()
            .and_then(|record| number(record.lease.resource_version.as_deref()));
        let compared = shown.cmp(&known);
        if known.is_none() || compared.is_gt() {
            self.observe_response(Some(lease));
            return Ordering::Greater;
        }
        compared
    }

    /// Adds the response to a read or a write.
    pub(super) fn observe_response(&mut self, lease: Option<Lease>) {
        let after = lease.as_ref().map(LockRecord::from_lease);
        if self.has_other_hold_ended(after.as_ref()) {
            self.other_holds += 1;
        }
        self.observed = match lease.zip(after) {
            Some((lease, record)) => ObservedLock::Present(Box::new(lease), record),
            None => ObservedLock::Missing,
        };
    }

    /// Whether a hold of another process has ended between the last observation and `after`.
    fn has_other_hold_ended(&self, after: Option<&LockRecord>) -> bool {
        let is_own = |record: &LockRecord| {
            let (own, lease) = (self.own_acquire_time, &record.lease);
            own.is_some() && lease.acquired == own && lease.renewed == own
        };
        let before = match &self.observed {
            ObservedLock::Unknown => return false,
            ObservedLock::Missing => None,
            ObservedLock::Present(_, record) => Some(record),
        };
        let was_others = before.is_some_and(|before| !before.is_released() && !is_own(before));
        match (before, after) {
            (_, None) => was_others,
            (None, Some(after)) => after.is_released() && after.lease.acquired.is_some() && !is_own(after),
            (Some(before), Some(after)) if before.is_same_hold(after) => false,
            // This process acquired it: counted when the request was sent.
            (Some(_), Some(after)) if is_own(after) => false,
            (Some(_), Some(after)) => after.is_released() || was_others,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use serde_json::json;

    use super::*;

    /// One version of the Lease: who holds it, since which second, who held it before.
    fn lease(version: u64, holder: &str, second: i64, previous: &str) -> Lease {
        let time = (second > 0).then(|| format!("1970-01-01T00:00:{second:02}.000000Z"));
        let spec =
            json!({"holderIdentity": holder, "acquireTime": time, "renewTime": time, "leaseDurationSeconds": 900});
        serde_json::from_value(json!({
            "metadata": {"resourceVersion": version.to_string(), "annotations": {super::super::lock_record::PREVIOUS_HOLDER_ANNOTATION: previous}},
            "spec": spec,
        }))
        .unwrap()
    }

    fn counted(states: &[Option<Lease>], own: Option<i64>) -> u64 {
        let mut observation = LockObservation {
            own_acquire_time: own.map(|second| Timestamp::from_second(second).unwrap()),
            ..LockObservation::default()
        };
        for lease in states {
            observation.observe_response(lease.clone());
        }
        observation.other_holds()
    }

    #[test]
    fn each_end_of_another_processs_hold_is_counted() {
        let some = |version, holder, second, previous| Some(lease(version, holder, second, previous));
        let free = || some(1, "", 1, "c");
        let theirs = |second| some(2, "c", second, "c");
        let twice = vec![free(), theirs(2), some(9, "c", 5, "c"), some(10, "", 5, "c")];
        for (case, states, count) in [
            ("the first observation", vec![free()], 0),
            ("the first observation of a held one", vec![some(1, "c", 1, "c")], 0),
            ("acquired", vec![free(), some(2, "c", 2, "c")], 0),
            ("acquired and released", vec![free(), theirs(2), some(3, "", 2, "c")], 1),
            ("the same, observed late", vec![free(), some(3, "", 2, "c")], 1),
            ("twice, observed late", twice, 2),
            ("one after another", vec![some(2, "c", 2, "c"), some(9, "d", 5, "c")], 1),
            ("own", vec![free(), some(2, "h", 7, "c"), some(3, "", 7, "h")], 0),
            ("own, with lost responses", vec![free(), some(3, "", 7, "h")], 0),
            ("own, another's", vec![some(2, "h", 7, "c"), some(5, "", 8, "c")], 1),
            ("only a label", vec![free(), some(2, "", 1, "c")], 0),
            ("another previous holder", vec![free(), some(2, "", 1, "d")], 1),
            ("deleted while held", vec![some(2, "c", 2, "c"), None], 1),
            ("deleted while free", vec![free(), None], 0),
            ("created", vec![None, some(2, "", 0, "")], 0),
            ("created, acquired and released", vec![None, some(4, "", 2, "c")], 1),
        ] {
            assert_eq!(counted(&states, Some(7)), count, "{case}");
        }
        assert_eq!(counted(&[some(2, "c", 0, ""), None], None), 1, "one without times");
        let mut renewed = lease(2, "", 7, "c");
        renewed.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::from_second(9).unwrap()));
        assert_eq!(counted(&[free(), Some(renewed)], Some(7)), 1, "renewed by another");
    }

    #[test]
    fn an_expired_hold_of_another_process_is_counted_once() {
        let mut observation = LockObservation::default();
        observation.observe_response(Some(lease(1, "c", 1, "c")));
        observation.begin_acquire("h", Timestamp::from_second(7).unwrap());
        assert_eq!(observation.other_holds(), 1);
        observation.observe_response(Some(lease(2, "h", 7, "c")));
        observation.observe_response(Some(lease(3, "", 7, "h")));
        observation.begin_acquire("H", Timestamp::from_second(8).unwrap());
        assert_eq!(observation.other_holds(), 1);
        // Another process was sooner, in the same microsecond.
        observation.cancel_acquire();
        observation.observe_response(Some(lease(5, "", 8, "c")));
        assert_eq!(observation.other_holds(), 2);
    }

    #[test]
    fn a_watch_that_lags_restores_nothing() {
        let mut observation = LockObservation::default();
        assert!(observation.observe_watch(lease(5, "c", 1, "c")).is_gt());
        observation.observe_response(Some(lease(12, "h", 2, "c")));
        for version in [5, 11, 12] {
            assert!(observation.observe_watch(lease(version, "c", 1, "c")).is_le());
        }
        assert_eq!(observation.record().unwrap().lease.holder, "h");
        assert!(observation.observe_watch(lease(13, "", 2, "h")).is_gt());
        // The store was restored from a backup: responses count.
        observation.observe_response(Some(lease(3, "c", 1, "c")));
        let version = observation.record().unwrap().lease.resource_version.as_deref();
        assert_eq!(version, Some("3"));
    }
}
