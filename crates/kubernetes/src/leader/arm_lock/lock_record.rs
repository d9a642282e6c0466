//! The shared Lease as plain data: who holds it, until when, and what a write of headgate changes.
//!
//! Invariant: the rules are those of cloud-controller-manager's `azure_lock.go`, by the local wall clock. A write keeps what was
//! read, except the holder, its times, and the previous holder. A duration that is set never changes: cloud-controller-manager does
//! not write it again, so a change would stay for all.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::super::LeaseName;
use super::super::lease_state::{LeaseState, annotation, with_spec};

/// The annotation with the last holder that changed something in ARM. cloud-controller-manager drops its caches if that was another.
pub(super) const PREVIOUS_HOLDER_ANNOTATION: &str = "aks-managed-resource-locker-previous-holder";
/// The duration that all users of the Lease give it.
const LEASE_DURATION_SECONDS: i32 = 900;

/// The state of the shared Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockRecord {
    pub(super) lease: LeaseState,
    pub(super) previous_holder: Option<String>,
}

impl LockRecord {
    pub(super) fn from_lease(lease: &Lease) -> Self {
        Self {
            lease: LeaseState::from_lease(lease),
            previous_holder: annotation(lease, PREVIOUS_HOLDER_ANNOTATION).map(str::to_owned),
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.lease.is_released()
    }

    /// Whether `holder` holds the Lease. Case does not matter, as for cloud-controller-manager.
    pub(super) fn is_held_by(&self, holder: &str) -> bool {
        !self.is_released() && self.lease.holder.eq_ignore_ascii_case(holder)
    }

    /// Whether `holder` may acquire the Lease now.
    pub(super) fn is_acquirable_by(&self, holder: &str, now: Timestamp) -> bool {
        self.is_held_by(holder) || self.lease.expires().is_none_or(|expires| now > expires)
    }

    /// Whether both show the same hold in the same state. Labels and versions do not count.
    pub(super) fn is_same_hold(&self, other: &Self) -> bool {
        let state = |record: &Self| {
            let lease = &record.lease;
            (lease.acquired, lease.renewed, record.previous_holder.clone())
        };
        self.lease.holder.eq_ignore_ascii_case(&other.lease.holder) && state(self) == state(other)
    }
}

/// A new Lease without a holder. Like all its users, headgate sets nothing but the duration.
pub(super) fn new_lease(name: &LeaseName) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.name = Some(name.name.clone());
    lease.metadata.namespace = Some(name.namespace.clone());
    lease.spec = Some(LeaseSpec {
        lease_duration_seconds: Some(LEASE_DURATION_SECONDS),
        ..LeaseSpec::default()
    });
    lease
}

/// `lease` after `holder` acquired it at `time`.
pub(super) fn acquired(lease: &Lease, holder: &str, time: Timestamp) -> Lease {
    with_spec(lease, |spec| {
        spec.holder_identity = Some(holder.to_owned());
        spec.acquire_time = Some(MicroTime(time));
        spec.renew_time = Some(MicroTime(time));
        // Without a duration it would have expired at once for all others.
        let duration = spec.lease_duration_seconds.filter(|seconds| *seconds > 0);
        spec.lease_duration_seconds = duration.or(Some(LEASE_DURATION_SECONDS));
    })
}

/// `lease` after its release. `writer` is the holder if it changed something in ARM.
pub(super) fn released(lease: &Lease, writer: Option<&str>) -> Lease {
    let mut lease = with_spec(lease, |spec| spec.holder_identity = Some(String::new()));
    if let Some(writer) = writer {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PREVIOUS_HOLDER_ANNOTATION.to_owned(), writer.to_owned());
    }
    lease
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(value: Value) -> Lease {
        serde_json::from_value(value).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_lease_is_acquirable_when_released_expired_or_held_by_the_same_name() {
        let renewed = "1970-01-01T00:01:40.000000Z";
        let held = |holder: &str, seconds: u32| json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": seconds});
        for (spec, now, free) in [
            (json!({}), 0, true),
            (json!({"holderIdentity": ""}), 0, true),
            (held("", 900), 100, true),
            (json!({"holderIdentity": "x", "leaseDurationSeconds": 900}), 0, true),
            (held("x", 900), 1000, false),
            // It is still held at the last instant.
            (held("x", 5), 105, false),
            (held("x", 5), 106, true),
            (json!({"holderIdentity": "x", "renewTime": renewed}), 100, false),
            (json!({"holderIdentity": "x", "renewTime": renewed}), 101, true),
            // The holder's clock is ahead.
            (held("x", 5), 0, false),
            (held("Me", 900), 100, true),
        ] {
            let record = LockRecord::from_lease(&lease(json!({"spec": spec})));
            assert_eq!(record.is_acquirable_by("me", at(now)), free, "{spec} at {now}");
        }
        assert!(LockRecord::from_lease(&Lease::default()).is_acquirable_by("me", at(0)));
        assert!(!LockRecord::default().is_held_by(""));
    }

    #[test]
    fn unknown_fields_survive_a_write() {
        let theirs = lease(json!({
            "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                "annotations": {"other": "1", PREVIOUS_HOLDER_ANNOTATION: "x"}, "managedFields": [{"manager": "m"}]},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1200, "leaseTransitions": 4, "preferredHolder": "y", "strategy": "s"},
        }));
        let expected = |holder: &str, previous: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                    "annotations": {"other": "1", PREVIOUS_HOLDER_ANNOTATION: previous}},
                "spec": {"acquireTime": "1970-01-01T00:00:09.000000Z", "holderIdentity": holder, "leaseDurationSeconds": 1200,
                    "leaseTransitions": 4, "preferredHolder": "y", "renewTime": "1970-01-01T00:00:09.000000Z", "strategy": "s"}})
        };
        let ours = acquired(&theirs, "me", at(9));
        assert_eq!(serde_json::to_value(&ours).unwrap(), expected("me", "x"));
        for (written, previous) in [(None, "x"), (Some("me"), "me")] {
            let after = serde_json::to_value(released(&ours, written)).unwrap();
            assert_eq!(after, expected("", previous));
        }
    }

    #[test]
    fn a_lease_without_a_duration_gets_one() {
        for seconds in [json!(null), json!(0)] {
            let bare = lease(json!({"spec": {"leaseDurationSeconds": seconds}}));
            let spec = acquired(&bare, "me", at(9)).spec.unwrap();
            assert_eq!(spec.lease_duration_seconds, Some(LEASE_DURATION_SECONDS));
        }
        let new = serde_json::to_value(new_lease(&LeaseName::default())).unwrap();
        assert_eq!(new["spec"], json!({"leaseDurationSeconds": 900}));
        let after = released(&Lease::default(), Some("me")).metadata.annotations.unwrap();
        assert_eq!(after[PREVIOUS_HOLDER_ANNOTATION], "me");
    }
}
