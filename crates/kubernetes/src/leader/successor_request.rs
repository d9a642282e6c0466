//! What a leader that cannot do its work leaves on the Lease: its request for a successor, which candidates have given up a
//! term, and until when ARM throttles requests.
//!
//! Invariants: a leader gives up its term only if another candidate has volunteered, so a leader without a successor keeps
//! the term. A candidate that gave up for a reason does not volunteer for the same reason within [`GIVE_UP_TTL`]. Nothing
//! here decides who may lead: times are compared with the local wall clock, so a wrong clock costs time and no safety.
//!
//! Pure. The annotations that hold this are `election_record`'s.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// For how long a candidate that gave up a term leaves the Lease to others.
const GIVE_UP_TTL: Duration = Duration::from_mins(10);
/// The length of the annotation. The policy of the manifests admits 1,024 characters, its name included.
const MAX_GIVE_UPS_BYTES: usize = 900;
/// A throttle deadline of another process is obeyed for no longer than this.
const MAX_THROTTLE: Duration = Duration::from_hours(1);
/// Times in a Lease are changed by microseconds, so that no two are the same.
const LEASE_TIME_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// What a leader cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InabilityReason {
    /// Lists of load balancers fail, or the tokens for them.
    Lists,
}

/// That a leader cannot do its work, as it reports itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inability {
    /// What it cannot do.
    pub reason: InabilityReason,
    /// Since when, by its wall clock.
    pub since: Timestamp,
}

/// Until when ARM throttles the requests of all instances, by the wall clock of the one that it answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleDeadlines {
    /// For reads; `None` if they are not throttled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Timestamp>,
    /// For writes; `None` if they are not throttled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Timestamp>,
}

impl ThrottleDeadlines {
    /// The deadlines that are still to be obeyed at `now`, each bounded.
    #[must_use]
    pub fn remaining(self, now: Timestamp) -> Self {
        let max = now.saturating_add(signed(MAX_THROTTLE)).unwrap_or(Timestamp::MAX);
        let remaining = |deadline: Option<Timestamp>| deadline.filter(|until| *until > now).map(|until| until.min(max));
        Self {
            reads: remaining(self.reads),
            writes: remaining(self.writes),
        }
    }

    /// The deadlines for a process whose clock shows `now`, from a Lease that their writer renewed at `renewed`. Both are by the writer's
    /// clock, which may be ahead: each deadline is at most as far away as it was then.
    pub(super) fn inherited(self, renewed: Option<Timestamp>, now: Timestamp) -> Self {
        let inherited = |deadline: Option<Timestamp>| {
            let (deadline, Some(renewed)) = (deadline?, renewed) else {
                return deadline;
            };
            let remaining = deadline.duration_since(renewed).saturating_add(LEASE_TIME_PRECISION);
            Some(now.saturating_add(remaining).map_or(deadline, |own| own.min(deadline)))
        };
        Self {
            reads: inherited(self.reads),
            writes: inherited(self.writes),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// A candidate that gave up a term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GiveUp {
    holder: String,
    reason: InabilityReason,
    at: Timestamp,
}

impl GiveUp {
    /// Whether it counts at `now`. One from far in the future, by a wrong clock, does not.
    fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() < signed(GIVE_UP_TTL)
    }
}

/// The candidates that gave up terms recently, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct GiveUps(Vec<GiveUp>);

impl GiveUps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `holder` gave up recently, for this reason or, without one, for any.
    pub(super) fn contains(&self, holder: &str, reason: Option<InabilityReason>, now: Timestamp) -> bool {
        let mut recent = self.0.iter().filter(|give_up| give_up.is_recent(now));
        recent.any(|give_up| give_up.holder == holder && reason.is_none_or(|reason| reason == give_up.reason))
    }

    /// The terms given up recently enough to count, without those that are older.
    pub(super) fn recent(&self, now: Timestamp) -> Self {
        Self(
            self.0
                .iter()
                .filter(|give_up| give_up.is_recent(now))
                .cloned()
                .collect(),
        )
    }

    /// The recent ones and this one.
    pub(super) fn with(&self, holder: &str, reason: InabilityReason, now: Timestamp) -> Self {
        let Self(mut all) = self.recent(now);
        all.retain(|give_up| give_up.holder != holder || give_up.reason != reason);
        all.push(GiveUp {
            holder: holder.to_owned(),
            reason,
            at: now,
        });
        while serde_json::to_string(&all).is_ok_and(|text| text.len() > MAX_GIVE_UPS_BYTES) {
            all.remove(0);
        }
        Self(all)
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + 60 * minute).unwrap()
    }

    #[test]
    fn a_candidate_that_gave_up_counts_for_ten_minutes() {
        let gave_up = GiveUps::default().with("a", InabilityReason::Lists, minute(0));
        for (holder, at, counts) in [
            ("a", 0, true),
            ("a", 9, true),
            ("a", 10, false),
            ("a", -9, true),
            ("a", -10, false),
            ("b", 0, false),
        ] {
            let reason = Some(InabilityReason::Lists);
            assert_eq!(gave_up.contains(holder, reason, minute(at)), counts, "{holder} {at}");
            assert_eq!(gave_up.contains(holder, None, minute(at)), counts, "{holder} {at}");
        }
        let again = gave_up.with("a", InabilityReason::Lists, minute(5));
        assert_eq!(again.0.len(), 1);
        assert!(again.contains("a", None, minute(14)));
        assert!(again.recent(minute(15)).is_empty());
    }

    #[test]
    fn the_list_is_bounded() {
        let all = (0..100).fold(GiveUps::default(), |all, n| {
            all.with(&format!("m{n}"), InabilityReason::Lists, minute(0))
        });
        let length = serde_json::to_string(&all).unwrap().len();
        assert!(
            length <= MAX_GIVE_UPS_BYTES && length > MAX_GIVE_UPS_BYTES / 2,
            "{length}"
        );
        assert!(all.contains("m99", None, minute(0)) && !all.contains("m0", None, minute(0)));
        let lengths = (0..1000).filter_map(|length| {
            let one = GiveUps::default().with(&"m".repeat(length), InabilityReason::Lists, minute(0));
            (!one.is_empty()).then(|| serde_json::to_string(&one).unwrap().len())
        });
        assert_eq!(lengths.max(), Some(MAX_GIVE_UPS_BYTES));
    }

    #[test]
    fn a_throttle_deadline_ends_and_is_bounded() {
        let deadlines = |reads, writes| ThrottleDeadlines { reads, writes };
        let now = minute(0);
        for (before, after) in [
            (deadlines(None, None), deadlines(None, None)),
            (
                deadlines(Some(minute(5)), Some(minute(0))),
                deadlines(Some(minute(5)), None),
            ),
            (
                deadlines(Some(minute(-1)), Some(minute(600))),
                deadlines(None, Some(minute(60))),
            ),
        ] {
            assert_eq!(before.remaining(now), after);
        }
    }
}
