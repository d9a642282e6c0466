//! A Lease as plain data: the part that the election and the ARM lock have in common.
//!
//! Invariant: a write keeps every field that headgate does not know, and names the `resourceVersion` that it follows. A
//! malformed Lease is read as far as possible; nothing in it can stop an election.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

/// A clock that is less behind `renewTime` counts as standing still; one that is more was set back.
const MAX_CLOCK_STEP: SignedDuration = SignedDuration::from_secs(1);

/// Identifies a Lease. The default is the Lease of the leader election, `kube-system/headgate-leader`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

impl Default for LeaseName {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "headgate-leader".to_owned(),
        }
    }
}

/// The metadata and the spec of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseState {
    /// The version that a write must follow.
    pub(super) resource_version: Option<String>,
    /// Differs between a Lease and one of the same name that was created after its deletion.
    pub(super) uid: Option<String>,
    /// `holderIdentity`; empty when the Lease is released.
    pub(super) holder: String,
    /// `leaseTransitions`; in the election the number of the holder's term.
    pub(super) transitions: i32,
    /// `acquireTime`, by the holder's clock.
    pub(super) acquired: Option<Timestamp>,
    /// `renewTime`, by the holder's clock.
    pub(super) renewed: Option<Timestamp>,
    /// `leaseDurationSeconds`; 0 if it is missing.
    pub(super) duration_seconds: i32,
}

impl LeaseState {
    pub(super) fn from_lease(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        Self {
            resource_version: lease.metadata.resource_version.clone(),
            uid: lease.metadata.uid.clone(),
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or_default(),
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
            duration_seconds: spec.lease_duration_seconds.unwrap_or_default(),
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.holder.is_empty()
    }

    /// The end of the hold by the holder's clock without a renewal; `None` if the Lease is not held.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        let duration = SignedDuration::from_secs(self.duration_seconds.into());
        let renewed = self.renewed.filter(|_| !self.is_released())?;
        Some(renewed.saturating_add(duration).unwrap_or(Timestamp::MAX))
    }

    /// `now` with the precision of a Lease, changed if necessary so that it differs from the times in the Lease. A write
    /// with this time is always a change, even if a clock was set back, and each one of many while a clock stands still.
    pub(super) fn next_time(&self, now: Timestamp) -> Timestamp {
        let after = |time: Timestamp| time.saturating_add(SignedDuration::from_micros(1)).unwrap_or(time);
        let time = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let behind = self.renewed.map(|renewed| renewed.duration_since(time));
        let is_standing = behind.is_some_and(|behind| !behind.is_negative() && behind < MAX_CLOCK_STEP);
        let time = self.renewed.filter(|_| is_standing).map_or(time, after);
        if self.acquired == Some(time) { after(time) } else { time }
    }
}

/// The value of an annotation.
pub(super) fn annotation<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// A copy of `lease` to be written, with a changed spec.
pub(super) fn with_spec(lease: &Lease, change: impl FnOnce(&mut LeaseSpec)) -> Lease {
    let mut lease = lease.clone();
    // The API server keeps them where a write leaves them out, and they are long.
    lease.metadata.managed_fields = None;
    change(lease.spec.get_or_insert_default());
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_written_twice() {
        let now = Timestamp::from_nanosecond(1_234_567_890).unwrap();
        let first = LeaseState::default().next_time(now);
        assert_eq!(first.as_nanosecond(), 1_234_567_000);
        let acquired = LeaseState {
            acquired: Some(first),
            ..LeaseState::default()
        };
        let second = acquired.next_time(now);
        assert_eq!(second.as_nanosecond(), 1_234_568_000);
        let mut renewed = acquired;
        renewed.renewed = Some(second);
        assert_eq!(renewed.next_time(now).as_nanosecond(), 1_234_569_000);
        // In microseconds: what the Lease has, the clock, and what is written.
        let at = |micros| Timestamp::from_microsecond(micros).unwrap();
        for (acquired, renewed, now, written) in [
            (7, 9, 7, 10),
            (10, 9, 7, 11),
            (7, 9, 10, 10),
            (10, 9, 10, 11),
            (0, 1_000_009, 10, 1_000_010),
            (0, 1_000_009, 9, 9),
            (9, 1_000_009, 9, 10),
        ] {
            let lease = LeaseState {
                acquired: Some(at(acquired)),
                renewed: Some(at(renewed)),
                ..LeaseState::default()
            };
            assert_eq!(lease.next_time(at(now)), at(written), "{acquired} {renewed} {now}");
        }
    }
}
