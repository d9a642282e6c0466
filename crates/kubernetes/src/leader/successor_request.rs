//! What a leader that cannot do its work leaves on the Lease: its request for a successor, which candidates have given up a
//! term, and until when ARM throttles requests.
//!
//! Invariants: a leader gives up its term only if another candidate has volunteered, so a leader without a successor keeps
//! the term. A candidate that gave up does not volunteer within [`GIVE_UP_TTL`], for whatever reason. Nothing
//! here decides who may lead: times in the Lease are compared with the local wall clock, so a wrong clock costs time and no safety.
//!
//! Pure. The annotations that hold this are `election_record`'s.

use std::time::Duration;

use headgate_core::clock::Moment;
use headgate_core::throttle::ThrottledUntil;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

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

/// [`ThrottledUntil`] in a Lease: by the wall clock of the process that renewed it, at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ThrottleDeadlines {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reads: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) writes: Option<Timestamp>,
}

impl ThrottleDeadlines {
    /// What is still to be obeyed.
    pub(super) fn new(until: ThrottledUntil, now: Moment) -> Self {
        let deadline = |until: Option<Instant>| {
            until
                .filter(|until| *until > now.mono)
                .map(|at| now.whole_second_at(at))
        };
        Self {
            reads: deadline(until.reads),
            writes: deadline(until.writes),
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

    /// What the process obeys that wrote these at `now`.
    pub(super) fn until(self, now: Moment) -> ThrottledUntil {
        let until = |deadline: Option<Timestamp>| {
            let wait = Duration::try_from(deadline?.duration_since(now.wall)).ok()?;
            (!wait.is_zero()).then(|| now.mono + wait.min(MAX_THROTTLE))
        };
        ThrottledUntil {
            reads: until(self.reads),
            writes: until(self.writes),
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

    /// Whether `holder` gave up recently.
    pub(super) fn contains(&self, holder: &str, now: Timestamp) -> bool {
        let mut recent = self.0.iter().filter(|give_up| give_up.is_recent(now));
        recent.any(|give_up| give_up.holder == holder)
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
    use headgate_core::clock::Clock;

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
            assert_eq!(gave_up.contains(holder, minute(at)), counts, "{holder} {at}");
        }
        let again = gave_up.with("a", InabilityReason::Lists, minute(5));
        assert_eq!(again.0.len(), 1);
        assert!(again.contains("a", minute(14)));
        assert!(again.recent(minute(15)).is_empty());
    }

    #[test]
    fn the_list_is_bounded() {
        let all = (0..100).fold(GiveUps::default(), |all, n| {
            all.with(&format!("m{n}"), InabilityReason::Lists, minute(0))
        });
        let length = serde_json::to_string(&all).unwrap().len();
        let bounds = MAX_GIVE_UPS_BYTES / 2..=MAX_GIVE_UPS_BYTES;
        assert!(bounds.contains(&length), "{length}");
        assert!(all.contains("m99", minute(0)) && !all.contains("m0", minute(0)));
        let lengths = (0..1000).filter_map(|length| {
            let one = GiveUps::default().with(&"m".repeat(length), InabilityReason::Lists, minute(0));
            (!one.is_empty()).then(|| serde_json::to_string(&one).unwrap().len())
        });
        assert_eq!(lengths.max(), Some(MAX_GIVE_UPS_BYTES));
    }

    #[test]
    fn a_throttle_deadline_is_the_same_on_both_sides() {
        let now = Clock::System.now();
        let until = ThrottledUntil {
            reads: Some(now.mono + Duration::from_secs(90)),
            writes: Some(now.mono),
        };
        let deadlines = ThrottleDeadlines::new(until, now);
        let obeyed = deadlines.until(now);
        let reads = obeyed.reads.unwrap() - now.mono;
        assert!((90..91).contains(&reads.as_secs()), "{reads:?}");
        assert_eq!((deadlines.writes, obeyed.writes), (None, None));
    }

    #[test]
    fn a_throttle_deadline_of_another_process_ends_and_is_bounded() {
        let wall = minute(0);
        let mono = Instant::now();
        for (minutes, remaining) in [(-1, None), (0, None), (5, Some(5)), (600, Some(60))] {
            let (reads, writes) = (None, Some(minute(minutes)));
            let deadlines = ThrottleDeadlines { reads, writes };
            let until = deadlines.until(Moment { wall, mono });
            let writes = remaining.map(|minutes| mono + Duration::from_mins(minutes));
            assert_eq!(until, ThrottledUntil { reads: None, writes });
        }
    }
}
