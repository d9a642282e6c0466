//! What a candidate has seen of the Lease, since when, and what follows for when it may take it.
//!
//! Invariant: how long a record has stayed unchanged is counted on one's own monotonic clock from the answer in
//! which it was first seen, so never too long. Times in the record are a hint only, and only when to look: they are
//! compared with the freshest that the same holder ever was here, so that a clock that is off by minutes costs one
//! look and no time. A Lease that nobody ever held was perhaps deleted under a holder, and is free no sooner than one that
//! is held.

use std::time::Duration;

use headgate_clock::Moment;
use jiff::SignedDuration;
use tokio::time::Instant;

use super::record::Record;
use super::timing::{LONGEST_LEASE, Timing};

/// The longest wait before a Lease is taken whose leaders fail one after another.
const LONGEST_MISTRUST: Duration = Duration::from_mins(5);

/// One record as long as it does not change.
#[derive(Clone, Debug)]
struct Seen {
    record: Record,
    since: Instant,
    /// By its times the holder is late.
    suspect: bool,
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    seen: Option<Seen>,
    highest: Option<i32>,
    candidates: Option<u32>,
    /// A holder, and the least that its record was ever behind our wall clock.
    freshest: Option<(String, SignedDuration)>,
}

/// Who is asking, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    pub(super) identity: &'a str,
    /// Its node carries a signal: it stands only when nobody else did.
    pub(super) signalled: bool,
    pub(super) timing: &'a Timing,
}

impl Sight {
    /// A look, or a write of our own, has shown this.
    pub(super) fn observe(&mut self, record: Record, timing: &Timing, now: Moment) {
        self.highest = self.highest.max(Some(record.number));
        self.candidates = record.candidates.or(self.candidates);
        let (since, suspect) = match self.seen.take() {
            Some(seen) if seen.record.is_same_renewal(&record) => (seen.since, seen.suspect),
            before => (now.mono, self.suspects(before.as_ref(), &record, timing, now)),
        };
        self.seen = Some(Seen { record, since, suspect });
    }

    /// There is no Lease.
    pub(super) fn observe_none(&mut self) {
        self.seen = None;
    }

    /// Whether a record that is new to us looks as if its holder were gone.
    fn suspects(&mut self, before: Option<&Seen>, record: &Record, timing: &Timing, now: Moment) -> bool {
        let Some(renewed) = record.renewed else { return true };
        let age = now.wall.duration_since(renewed);
        let within = SignedDuration::try_from(timing.freshness()).unwrap_or(SignedDuration::MAX);
        let known = self.freshest.take().filter(|(holder, _)| *holder == record.holder);
        let of_holder = |seen: &&Seen| seen.record.holder == record.holder;
        let wrongly = before.filter(of_holder).is_some_and(|seen| seen.suspect);
        let freshest = match known {
            // It lives: what it is behind is how far the clocks are apart.
            _ if wrongly => age,
            Some((_, freshest)) => freshest.min(age),
            None if age.abs() <= within => age,
            // Gone, or its clock is off: one more look will show.
            None => return true,
        };
        self.freshest = Some((record.holder.clone(), freshest));
        age.saturating_sub(freshest) > within
    }

    /// The record as last seen.
    pub(super) fn record(&self) -> Option<&Record> {
        self.seen.as_ref().map(|seen| &seen.record)
    }

    /// How many candidates there are, as far as a leader has ever said.
    pub(super) fn candidates(&self) -> Option<u32> {
        self.candidates
    }

    /// The highest number that was seen.
    pub(super) fn highest(&self) -> i32 {
        self.highest.unwrap_or_default()
    }

    /// A number that no term has had, as far as we can know.
    pub(super) fn next_number(&self) -> i32 {
        // Beyond the largest there is none; a garbled number must not stop all elections.
        self.highest().checked_add(1).unwrap_or(0)
    }

    /// From when on the record may be taken, if it does not change.
    fn free_at(&self, asking: Asking<'_>) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        let lease = asking.timing.lease_duration();
        let record = &seen.record;
        let wait = if record.was_never_held() {
            lease
        } else if record.is_released() {
            mistrust(record.failed_terms, lease)
        } else if record.holder == asking.identity {
            // Written by a term of ours that has ended, or whose answer was lost.
            Duration::ZERO
        } else {
            let theirs = Duration::from_secs(u64::try_from(record.seconds).unwrap_or_default());
            lease.max(theirs.min(LONGEST_LEASE))
        };
        let further = if asking.signalled {
            asking.timing.stood_back(self.candidates)
        } else {
            Duration::ZERO
        };
        Some(seen.since + wait + further)
    }

    /// Whether the record as just seen may be taken.
    pub(super) fn is_free(&self, asking: Asking<'_>, now: Instant) -> bool {
        self.free_at(asking).is_some_and(|free_at| now >= free_at)
    }

    /// When to look once more beside the regular looks, which come each `interval`.
    pub(super) fn one_more_look(&self, asking: Asking<'_>, interval: Duration, looked_at: Instant) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        let lease = asking.timing.lease_duration();
        let held_by_another = !seen.record.is_released() && seen.record.holder != asking.identity;
        let is_due = !held_by_another || seen.suspect || interval < lease || looked_at >= seen.since + lease;
        self.free_at(asking).filter(|_| is_due)
    }
}

/// How long to leave a released Lease alone. Whatever fails in each leader's hands would otherwise go round
/// the whole fleet, ten terms a second.
fn mistrust(failed_terms: u32, lease: Duration) -> Duration {
    match failed_terms.checked_sub(2) {
        None => Duration::ZERO,
        Some(more) => lease.saturating_mul(2_u32.saturating_pow(more)).min(LONGEST_MISTRUST),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const ME: &str = "me";

    fn asking(signalled: bool, timing: &Timing) -> Asking<'_> {
        Asking {
            identity: ME,
            signalled,
            timing,
        }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// A record of `holder`, last renewed at a second of its own clock.
    fn held(holder: &str, renewed: i64) -> Record {
        Record {
            holder: holder.to_owned(),
            acquired: Some(second(-1000)),
            renewed: Some(second(renewed)),
            seconds: 15,
            ..Record::default()
        }
    }

    /// What was seen at which second since the start.
    fn seen(start: Instant, records: &[(i64, Option<Record>)]) -> Sight {
        let mut sight = Sight::default();
        for (at, record) in records {
            let now = Moment {
                wall: second(*at),
                mono: start + Duration::from_secs(u64::try_from(*at).unwrap()),
            };
            match record {
                Some(record) => sight.observe(record.clone(), &Timing::default(), now),
                None => sight.observe_none(),
            }
        }
        sight
    }

    #[test]
    fn when_what_was_seen_may_be_taken() {
        let start = Instant::now();
        let released = |failed_terms| {
            Some(Record {
                failed_terms,
                ..held("", 0)
            })
        };
        let longer = |seconds| {
            Some(Record {
                seconds,
                ..held("a", 0)
            })
        };
        for (record, unsignalled) in [
            (Some(Record::default()), 15),
            (Some(held("a", 0)), 15),
            (longer(60), 60),
            (longer(i32::MAX), 300),
            (longer(-3), 15),
            (Some(held(ME, 0)), 0),
            (released(0), 0),
            (released(1), 0),
            (released(2), 15),
            (released(3), 30),
            (released(u32::MAX), 300),
        ] {
            let sight = seen(start, &[(0, record.clone())]);
            for (signalled, after) in [(false, unsignalled), (true, unsignalled + 15)] {
                let timing = Timing::default();
                let free = |millis| sight.is_free(asking(signalled, &timing), start + Duration::from_millis(millis));
                assert!(free(after * 1000), "{record:?} {signalled}");
                assert!(after == 0 || !free(after * 1000 - 1), "{record:?} {signalled}");
            }
        }
        assert!(!Sight::default().is_free(asking(false, &Timing::default()), start));
    }

    #[test]
    fn time_counts_from_the_last_change() {
        let start = Instant::now();
        let sight = seen(
            start,
            &[
                (0, Some(held("a", 0))),
                (9, Some(held("a", 8))),
                (30, Some(held("a", 8))),
            ],
        );
        let timing = Timing::default();
        let free = |second| sight.is_free(asking(false, &timing), start + Duration::from_secs(second));
        assert!(free(24) && !free(23));
        let another = Record {
            uid: Some("another".to_owned()),
            ..held("a", 8)
        };
        for between in [None, Some(held("b", 9)), Some(another)] {
            let back = [(0, Some(held("a", 8))), (20, between), (30, Some(held("a", 8)))];
            let free = seen(start, &back).is_free(asking(false, &timing), start + Duration::from_secs(44));
            assert!(!free, "what came back has changed");
        }
    }

    #[test]
    fn a_number_never_comes_again_even_after_a_deletion() {
        let start = Instant::now();
        let number = |number| Some(Record { number, ..held("a", 0) });
        assert_eq!(Sight::default().next_number(), 1);
        assert_eq!(seen(start, &[(0, number(4)), (1, None)]).next_number(), 5);
        assert_eq!(seen(start, &[(0, number(4)), (1, number(2))]).next_number(), 5);
        assert_eq!(seen(start, &[(0, number(i32::MAX))]).next_number(), 0);
    }

    type Look = (i64, &'static str, i64, bool);

    /// Each story: at which second a look found a record renewed at which second of its holder's clock; whether
    /// that calls for one more look.
    #[test]
    fn one_more_look_where_the_holder_seems_gone() {
        let start = Instant::now();
        let stories: &[&[Look]] = &[
            // Clocks agree: late is more than 5 s behind.
            &[(0, "a", -2, false), (100, "a", 99, false), (200, "a", 193, true)],
            &[(0, "a", -6, true)],
            // Clocks five minutes apart, either way: one look, then lateness is known again.
            &[
                (0, "a", 299, true),
                (15, "a", 314, false),
                (100, "a", 399, false),
                (200, "a", 493, true),
            ],
            &[
                (0, "a", -301, true),
                (15, "a", -286, false),
                (100, "a", -201, false),
                (200, "a", -107, true),
            ],
            // The holder's clock is set back by a minute: one look.
            &[
                (0, "a", 0, false),
                (100, "a", 39, true),
                (115, "a", 54, false),
                (200, "a", 139, false),
            ],
            // ... and forward: none.
            &[
                (0, "a", 0, false),
                (100, "a", 159, false),
                (200, "a", 260, false),
                (300, "a", 353, true),
            ],
            // Another holder has another clock.
            &[
                (0, "a", -301, true),
                (15, "a", -286, false),
                (100, "b", 99, false),
                (200, "a", -101, true),
            ],
        ];
        for story in stories {
            let mut looks = Vec::new();
            for (at, holder, renewed, more) in *story {
                looks.push((*at, Some(held(holder, *renewed))));
                let looked_at = start + Duration::from_secs(u64::try_from(*at).unwrap());
                let timing = Timing::default();
                let look = seen(start, &looks).one_more_look(asking(false, &timing), Duration::from_mins(5), looked_at);
                let expected = more.then(|| looked_at + Duration::from_secs(15));
                assert_eq!(look, expected, "{story:?} at {at}");
            }
        }
    }

    #[test]
    fn one_more_look_whatever_its_times_say() {
        let start = Instant::now();
        let timing = Timing::default();
        let look = |record: Option<Record>, signalled, interval, looked_at| {
            let sight = seen(start, &[(0, record)]);
            let looked_at = start + Duration::from_secs(looked_at);
            let look = sight.one_more_look(asking(signalled, &timing), Duration::from_secs(interval), looked_at);
            look.map(|look| (look - start).as_secs())
        };
        assert_eq!(look(Some(held("a", 0)), false, 300, 0), None);
        assert_eq!(look(Some(held("a", 0)), false, 14, 0), Some(15), "few candidates");
        assert_eq!(look(None, false, 300, 0), None);
        assert_eq!(look(Some(Record::default()), false, 300, 0), Some(15), "never held");
        assert_eq!(
            look(Some(held("", 0)), true, 300, 0),
            Some(15),
            "signalled, and it is released"
        );
        assert_eq!(look(Some(held("a", 0)), true, 300, 0), None);
        assert_eq!(
            look(Some(held("a", 0)), true, 300, 16),
            Some(30),
            "signalled, and it has expired"
        );
        let unknown = Record {
            renewed: None,
            ..held("a", 0)
        };
        assert_eq!(look(Some(unknown), false, 300, 0), Some(15));
    }
}
