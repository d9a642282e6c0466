//! The shared Lease as plain data: who holds it, until when, and what it looks like taken and given back.
//!
//! Invariant: the rules are cloud-controller-manager's (`azure_lock.go`), by the wall clock of who looks; what is
//! written is what was read but for the holder, its times and the name of the one before. A duration that is there is
//! never changed: cloud-controller-manager does not write it again, so the change would stay for all.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::super::LeaseName;

/// Who held it before; cloud-controller-manager drops its caches when that was not itself.
pub(super) const PREVIOUS_HOLDER: &str = "aks-managed-resource-locker-previous-holder";
/// The duration that everybody gives it.
const SECONDS: i32 = 900;

/// What the Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) version: Option<String>,
    /// Empty when released.
    pub(super) holder: String,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
    /// None counts as 0.
    pub(super) seconds: i32,
    pub(super) previous: Option<String>,
}

impl Record {
    pub(super) fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let annotations = lease.metadata.annotations.as_ref();
        Self {
            version: lease.metadata.resource_version.clone(),
            holder: spec.holder_identity.unwrap_or_default(),
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
            seconds: spec.lease_duration_seconds.unwrap_or_default(),
            previous: annotations.and_then(|all| all.get(PREVIOUS_HOLDER).cloned()),
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.holder.is_empty()
    }

    pub(super) fn is_held_by(&self, name: &str) -> bool {
        !self.is_released() && self.holder.eq_ignore_ascii_case(name)
    }

    /// The last instant at which it is held, if nobody changes it; `None` where it is not held at all.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        let lasts = SignedDuration::from_secs(self.seconds.into());
        let renewed = self.renewed.filter(|_| !self.is_released())?;
        Some(renewed.saturating_add(lasts).unwrap_or(Timestamp::MAX))
    }

    /// Whether `name` may take it now.
    pub(super) fn is_free_for(&self, name: &str, now: Timestamp) -> bool {
        self.is_held_by(name) || self.expires().is_none_or(|expires| now > expires)
    }

    /// Whether the two tell of one hold in one state; labels and versions do not count.
    pub(super) fn is_same_turn(&self, other: &Self) -> bool {
        let turn = |record: &Self| (record.acquired, record.renewed, record.previous.clone());
        self.holder.eq_ignore_ascii_case(&other.holder) && turn(self) == turn(other)
    }
}

/// A time as a Lease keeps it, and another than `record` has already.
pub(super) fn stamp(record: &Record, now: Timestamp) -> Timestamp {
    let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
    if record.acquired == Some(now) || record.renewed == Some(now) {
        now.saturating_add(SignedDuration::from_micros(1)).unwrap_or(now)
    } else {
        now
    }
}

/// One that nobody held yet: a duration and no more, as all who use it make it.
pub(super) fn new(name: &LeaseName) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.name = Some(name.name.clone());
    lease.metadata.namespace = Some(name.namespace.clone());
    lease.spec = Some(LeaseSpec {
        lease_duration_seconds: Some(SECONDS),
        ..LeaseSpec::default()
    });
    lease
}

/// `lease` taken by `holder` at `stamp`.
pub(super) fn taken(lease: &Lease, holder: &str, stamp: Timestamp) -> Lease {
    written(lease, |spec| {
        spec.holder_identity = Some(holder.to_owned());
        spec.acquire_time = Some(MicroTime(stamp));
        spec.renew_time = Some(MicroTime(stamp));
        // Without one it would have expired at once, for everybody else.
        let lasts = spec.lease_duration_seconds.filter(|seconds| *seconds > 0);
        spec.lease_duration_seconds = lasts.or(Some(SECONDS));
    })
}

/// `lease` given back, by a holder who is named if he changed something.
pub(super) fn released(lease: &Lease, writer: Option<&str>) -> Lease {
    let mut lease = written(lease, |spec| spec.holder_identity = Some(String::new()));
    if let Some(writer) = writer {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PREVIOUS_HOLDER.to_owned(), writer.to_owned());
    }
    lease
}

fn written(lease: &Lease, change: impl FnOnce(&mut LeaseSpec)) -> Lease {
    let mut lease = lease.clone();
    // The API server's own, and long; left out, they stay.
    lease.metadata.managed_fields = None;
    change(lease.spec.get_or_insert_default());
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
    fn who_may_take_it_when() {
        let renewed = "1970-01-01T00:01:40.000000Z";
        for (spec, now, free) in [
            (json!({}), 0, true),
            (json!({"holderIdentity": ""}), 0, true),
            (
                json!({"holderIdentity": "", "renewTime": renewed, "leaseDurationSeconds": 900}),
                100,
                true,
            ),
            (json!({"holderIdentity": "x", "leaseDurationSeconds": 900}), 0, true),
            (
                json!({"holderIdentity": "x", "renewTime": renewed, "leaseDurationSeconds": 900}),
                1000,
                false,
            ),
            // The last instant still counts.
            (
                json!({"holderIdentity": "x", "renewTime": renewed, "leaseDurationSeconds": 5}),
                105,
                false,
            ),
            (
                json!({"holderIdentity": "x", "renewTime": renewed, "leaseDurationSeconds": 5}),
                106,
                true,
            ),
            (json!({"holderIdentity": "x", "renewTime": renewed}), 100, false),
            (json!({"holderIdentity": "x", "renewTime": renewed}), 101, true),
            // Its clock is ahead of ours.
            (
                json!({"holderIdentity": "x", "renewTime": renewed, "leaseDurationSeconds": 5}),
                0,
                false,
            ),
            (
                json!({"holderIdentity": "Me", "renewTime": renewed, "leaseDurationSeconds": 900}),
                100,
                true,
            ),
        ] {
            let record = Record::of(&lease(json!({"spec": spec})));
            assert_eq!(record.is_free_for("me", at(now)), free, "{spec} at {now}");
        }
        assert!(Record::of(&Lease::default()).is_free_for("me", at(0)));
        assert!(!Record::default().is_held_by(""));
    }

    #[test]
    fn what_is_not_ours_survives() {
        let theirs = lease(json!({
            "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                "annotations": {"other": "1", PREVIOUS_HOLDER: "x"}, "managedFields": [{"manager": "m"}]},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1200, "leaseTransitions": 4, "preferredHolder": "y", "strategy": "s"},
        }));
        let expected = |holder: &str, previous: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                    "annotations": {"other": "1", PREVIOUS_HOLDER: previous}},
                "spec": {"acquireTime": "1970-01-01T00:00:09.000000Z", "holderIdentity": holder, "leaseDurationSeconds": 1200,
                    "leaseTransitions": 4, "preferredHolder": "y", "renewTime": "1970-01-01T00:00:09.000000Z", "strategy": "s"}})
        };
        let ours = taken(&theirs, "me", at(9));
        assert_eq!(serde_json::to_value(&ours).unwrap(), expected("me", "x"));
        let back = serde_json::to_value(released(&ours, None)).unwrap();
        assert_eq!(back, expected("", "x"));
        let back = serde_json::to_value(released(&ours, Some("me"))).unwrap();
        assert_eq!(back, expected("", "me"));
    }

    #[test]
    fn one_that_does_not_last_is_made_to() {
        for seconds in [json!(null), json!(0)] {
            let bare = lease(json!({"spec": {"leaseDurationSeconds": seconds}}));
            let spec = taken(&bare, "me", at(9)).spec.unwrap();
            assert_eq!(spec.lease_duration_seconds, Some(SECONDS));
        }
        assert_eq!(
            serde_json::to_value(new(&LeaseName::default())).unwrap()["spec"],
            json!({"leaseDurationSeconds": 900})
        );
        let back = released(&Lease::default(), Some("me")).metadata.annotations.unwrap();
        assert_eq!(back[PREVIOUS_HOLDER], "me");
    }

    #[test]
    fn no_stamp_comes_twice() {
        let now = Timestamp::from_nanosecond(1_234_567_890).unwrap();
        let first = stamp(&Record::default(), now);
        assert_eq!(first.as_nanosecond(), 1_234_567_000);
        let record = Record {
            acquired: Some(first),
            ..Record::default()
        };
        assert_eq!(stamp(&record, now).as_nanosecond(), 1_234_568_000);
    }
}
