//! The record of the election in its Lease: who leads in which term, and what the leader publishes for all candidates.
//!
//! Invariant: every write is a change, so that a candidate that observes no change knows that the holder wrote nothing.

use headgate_core::clock::Moment;
use headgate_core::throttle::ThrottledUntil;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::lease_state::{LeaseState, annotation, with_spec};
use super::successor_request::{GiveUps, Inability, InabilityReason, ThrottleDeadlines};
use super::timing::LEASE_DURATION;

/// The annotation with the number of candidates, as the leader counts them.
pub const CANDIDATES_ANNOTATION: &str = "headgate.dev/nodes";
/// The annotation with the number of terms that ended one after another because the leader's work failed.
pub const FAILED_TERMS_ANNOTATION: &str = "headgate.dev/failed-terms";
/// The annotation by which a holder that cannot do its work requests a successor: JSON with reason and start.
pub const UNABLE_ANNOTATION: &str = "headgate.dev/unable";
/// The annotation with the identity of the candidate that volunteered as its successor.
pub const SUCCESSOR_ANNOTATION: &str = "headgate.dev/successor";
/// The annotation with the candidates that gave up a term recently: a JSON list of identity, reason and time.
pub const GAVE_UP_ANNOTATION: &str = "headgate.dev/gave-up";
/// The annotation with the times until which ARM throttles reads and writes: JSON.
pub const THROTTLE_ANNOTATION: &str = "headgate.dev/arm-throttled-until";

/// The state of the election's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ElectionRecord {
    pub(super) lease: LeaseState,
    /// The number of candidates; `None` if no leader has published it.
    pub(super) candidates: Option<u32>,
    /// Failed terms one after another, up to now.
    pub(super) failed_terms: u32,
    /// The holder cannot do its work and requests a successor.
    pub(super) unable: Option<Inability>,
    /// The candidate that volunteered since.
    pub(super) successor: Option<String>,
    /// The candidates that gave up recently.
    pub(super) give_ups: GiveUps,
    /// Until when ARM throttles requests.
    pub(super) throttle: ThrottleDeadlines,
}

/// The value of an annotation in JSON; `None` if it is absent or malformed.
fn json<T: DeserializeOwned>(lease: &Lease, name: &str) -> Option<T> {
    serde_json::from_str(annotation(lease, name)?).ok()
}

impl ElectionRecord {
    pub(super) fn from_lease(lease: &Lease) -> Self {
        let count = |name| annotation(lease, name).and_then(|value| value.trim().parse().ok());
        Self {
            lease: LeaseState::from_lease(lease),
            candidates: count(CANDIDATES_ANNOTATION),
            failed_terms: count(FAILED_TERMS_ANNOTATION).unwrap_or_default(),
            unable: json(lease, UNABLE_ANNOTATION),
            successor: annotation(lease, SUCCESSOR_ANNOTATION).map(str::to_owned),
            give_ups: json(lease, GAVE_UP_ANNOTATION).unwrap_or_default(),
            throttle: json(lease, THROTTLE_ANNOTATION).unwrap_or_default(),
        }
    }

    /// The Lease `name` with this record; all else is as in `base`.
    pub(super) fn to_lease(&self, base: Option<&Lease>, name: &str) -> Lease {
        let state = &self.lease;
        let mut lease = with_spec(base.unwrap_or(&Lease::default()), |spec| {
            *spec = LeaseSpec {
                holder_identity: Some(state.holder.clone()),
                lease_duration_seconds: Some(state.duration_seconds.max(1)),
                acquire_time: state.acquired.map(MicroTime),
                renew_time: state.renewed.map(MicroTime),
                lease_transitions: Some(state.transitions),
                ..std::mem::take(spec)
            };
        });
        let metadata = &mut lease.metadata;
        metadata.name = Some(name.to_owned());
        metadata.resource_version.clone_from(&state.resource_version);
        metadata.uid.clone_from(&state.uid);
        let mut annotations = metadata.annotations.take().unwrap_or_default();
        let failed = (self.failed_terms > 0).then_some(self.failed_terms);
        let give_ups = Some(&self.give_ups).filter(|give_ups| !give_ups.is_empty());
        let throttle = Some(self.throttle).filter(|throttle| !throttle.is_empty());
        for (name, value) in [
            (CANDIDATES_ANNOTATION, self.candidates.map(|count| count.to_string())),
            (FAILED_TERMS_ANNOTATION, failed.map(|count| count.to_string())),
            (UNABLE_ANNOTATION, self.unable.as_ref().and_then(to_json)),
            (SUCCESSOR_ANNOTATION, self.successor.clone()),
            (GAVE_UP_ANNOTATION, give_ups.and_then(to_json)),
            (THROTTLE_ANNOTATION, throttle.as_ref().and_then(to_json)),
        ] {
            match value {
                Some(value) => annotations.insert(name.to_owned(), value),
                None => annotations.remove(name),
            };
        }
        metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        lease
    }

    pub(super) fn is_released(&self) -> bool {
        self.lease.is_released()
    }

    /// Whether the Lease was created, as by [`ElectionRecord::unheld`], and not acquired since.
    pub(super) fn was_never_held(&self) -> bool {
        self.is_released() && self.lease.acquired.is_none()
    }

    /// Whether both are the same renewal of the same holder. The resourceVersion does not count: an annotation that
    /// someone else sets does not prove that the holder lives.
    pub(super) fn is_same_renewal(&self, other: &Self) -> bool {
        let renewal = |record: &Self| {
            let lease = &record.lease;
            (lease.transitions, lease.acquired, lease.renewed)
        };
        self.lease.uid == other.lease.uid && self.lease.holder == other.lease.holder && renewal(self) == renewal(other)
    }

    /// A new Lease without a holder. The next term has a higher number than `highest_term`.
    pub(super) fn unheld(highest_term: i32) -> Self {
        Self {
            lease: LeaseState {
                transitions: highest_term,
                ..LeaseState::default()
            },
            ..Self::default()
        }
    }

    /// This record after `holder` acquired the Lease for `term`.
    pub(super) fn acquired(&self, holder: &str, term: i32, now: Timestamp) -> Self {
        let throttle = self.throttle.inherited(self.lease.renewed, now);
        let now = self.lease.next_time(now);
        let lease = LeaseState {
            holder: holder.to_owned(),
            transitions: term,
            acquired: Some(now),
            renewed: Some(now),
            duration_seconds: lease_duration_seconds(),
            ..self.lease.clone()
        };
        Self {
            lease,
            unable: None,
            successor: None,
            throttle,
            ..self.clone()
        }
    }

    /// This record after `volunteer` offered to succeed the holder.
    pub(super) fn with_successor(&self, volunteer: &str) -> Self {
        Self {
            successor: Some(volunteer.to_owned()),
            ..self.clone()
        }
    }

    /// This record with what the holder reports about its work. A successor is needed only while the holder is unable.
    pub(super) fn reported(self, unable: Option<Inability>, throttle: ThrottledUntil, now: Moment) -> Self {
        Self {
            unable,
            successor: self.successor.filter(|_| unable.is_some()),
            give_ups: self.give_ups.recent(now.wall),
            throttle: ThrottleDeadlines::new(throttle, now),
            ..self
        }
    }

    /// This record after `holder` gave up its term.
    pub(super) fn gave_up(self, holder: &str, reason: InabilityReason, now: Timestamp) -> Self {
        Self {
            give_ups: self.give_ups.with(holder, reason, now),
            ..self
        }
    }

    /// This record after its holder renewed the Lease; `candidates` is published if it is known.
    pub(super) fn renewed(&self, candidates: Option<u32>, now: Timestamp) -> Self {
        let lease = LeaseState {
            renewed: Some(self.lease.next_time(now)),
            duration_seconds: lease_duration_seconds(),
            ..self.lease.clone()
        };
        Self {
            lease,
            candidates: candidates.or(self.candidates),
            ..self.clone()
        }
    }

    /// This record after its holder released the Lease, in client-go's way.
    pub(super) fn released(&self, failed_terms: u32, now: Timestamp) -> Self {
        let lease = LeaseState {
            holder: String::new(),
            renewed: Some(self.lease.next_time(now)),
            duration_seconds: 1,
            ..self.lease.clone()
        };
        Self {
            lease,
            failed_terms,
            unable: None,
            successor: None,
            ..self.clone()
        }
    }
}

/// JSON in an annotation. These types have no value that JSON cannot express.
fn to_json(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

fn lease_duration_seconds() -> i32 {
    i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(i32::MAX)
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
    fn unknown_fields_survive_a_write() {
        let theirs = lease(json!({
            "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                "annotations": {"other": "1", CANDIDATES_ANNOTATION: "3", FAILED_TERMS_ANNOTATION: "2"}, "managedFields": [{"manager": "m"}]},
            "spec": {"holderIdentity": "x", "leaseTransitions": 4, "preferredHolder": "y", "strategy": "s"},
        }));
        let record = ElectionRecord::from_lease(&theirs);
        assert_eq!((record.candidates, record.failed_terms), (Some(3), 2));
        let acquired = record.acquired("me", 5, at(1));
        assert_eq!(acquired.lease.renewed, Some(at(1)));
        assert_eq!(acquired.lease.duration_seconds, 14);
        let renewed = acquired.renewed(Some(9), at(1)).to_lease(Some(&theirs), "l");
        let expected = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "uid": "u", "labels": {"a": "b"},
                    "annotations": {"other": "1", CANDIDATES_ANNOTATION: "9", FAILED_TERMS_ANNOTATION: "2"}},
                "spec": {"acquireTime": "1970-01-01T00:00:00.000001Z", "holderIdentity": "me", "leaseDurationSeconds": 14,
                    "leaseTransitions": 5, "preferredHolder": "y", "renewTime": "1970-01-01T00:00:00.000002Z", "strategy": "s"}});
        assert_eq!(serde_json::to_value(&renewed).unwrap(), expected);
        let released = ElectionRecord::from_lease(&renewed).released(0, at(5));
        assert!(released.is_released() && released.candidates == Some(9));
        assert_eq!(released.lease.renewed, Some(at(5)));
        let released = released.to_lease(Some(&renewed), "l");
        let annotations = released.metadata.annotations.unwrap();
        assert!(!annotations.contains_key(FAILED_TERMS_ANNOTATION));
        let spec = released.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some(""));
        assert_eq!(spec.lease_duration_seconds, Some(1));
    }

    #[test]
    fn a_malformed_record_is_read_as_far_as_possible() {
        for (annotation, candidates) in [
            ("", None),
            ("x", None),
            ("-1", None),
            ("99999999999999999999", None),
            ("4294967295", Some(u32::MAX)),
            (" 12 ", Some(12)),
        ] {
            let annotations = json!({CANDIDATES_ANNOTATION: annotation, FAILED_TERMS_ANNOTATION: annotation});
            let malformed = lease(json!({"metadata": {"annotations": annotations}}));
            let record = ElectionRecord::from_lease(&malformed);
            assert_eq!(record.candidates, candidates, "{annotation}");
            assert_eq!(record.failed_terms, candidates.unwrap_or(0), "{annotation}");
            assert!(record.is_released() && record.lease.transitions == 0);
        }
        assert_eq!(ElectionRecord::from_lease(&Lease::default()), ElectionRecord::default());
    }

    #[test]
    fn what_a_holder_reports_is_read_as_it_was_written_and_ends_with_its_term() {
        let reason = InabilityReason::Lists;
        let unable = Inability { reason, since: at(1) };
        let now = Moment {
            wall: at(4),
            mono: tokio::time::Instant::now(),
        };
        let throttle = ThrottledUntil {
            reads: Some(now.mono + LEASE_DURATION),
            writes: None,
        };
        let free = ElectionRecord::default().gave_up("b", reason, at(2));
        let held = free.acquired("a", 1, at(3)).reported(Some(unable), throttle, now);
        let held = held.with_successor("c");
        let mut shorter = held.clone();
        shorter.lease.duration_seconds = 1;
        assert_eq!(shorter.renewed(None, at(5)).lease.duration_seconds, 14);
        let written = held.to_lease(None, "l");
        assert_eq!(ElectionRecord::from_lease(&written), held);
        assert!(held.unable.is_some() && !held.give_ups.is_empty() && held.throttle.reads.is_some());
        for ended in [held.released(1, at(5)), held.acquired("c", 2, at(5))] {
            assert_eq!((ended.unable, ended.successor), (None, None));
        }
        let (wall, mono) = (at(2) + jiff::SignedDuration::from_mins(10), now.mono);
        let later = held.reported(None, throttle, Moment { wall, mono });
        assert!(later.give_ups.is_empty(), "no longer recent");
    }

    #[test]
    fn only_a_holder_and_its_renewals_count_as_changes() {
        let record = ElectionRecord::default().acquired("a", 1, at(1));
        let mut annotated = record.clone();
        annotated.lease.resource_version = Some("8".to_owned());
        annotated.candidates = Some(3);
        assert!(record.is_same_renewal(&annotated));
        // The clock stands still, or was set back to the same microsecond.
        assert!(!record.is_same_renewal(&record.renewed(None, at(1))));
        let mut renewals = vec![record.clone()];
        for _ in 0..4 {
            let renewed = renewals[renewals.len() - 1].renewed(None, at(1));
            assert!(renewals.iter().all(|before| !before.is_same_renewal(&renewed)));
            renewals.push(renewed);
        }
        assert!(!record.is_same_renewal(&record.acquired("a", 2, at(1))));
        assert!(!record.is_same_renewal(&record.released(0, at(1))));
    }
}
