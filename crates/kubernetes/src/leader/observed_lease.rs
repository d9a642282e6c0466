//! What a candidate has observed of the Lease, and from when on it may acquire it.
//!
//! Invariant: the time for which a record has stayed unchanged counts on the candidate's own monotonic clock, from the
//! response that showed it first, so never too long. The times in a record are only a hint, and only for when to read
//! again: they are compared with the smallest age that the same holder's record ever had here, so a clock that is minutes
//! wrong costs one read and no time. A Lease that was never held may have been deleted under its holder, and one of an earlier term
//! restored under it, so it is free no sooner than a held one.

use std::time::Duration;

use headgate_core::clock::Moment;
use jiff::SignedDuration;
use tokio::time::Instant;

use super::election_record::ElectionRecord;
use super::timing::{
    LEASE_DURATION, MAX_LEASE_DURATION, MAX_RENEWAL_AGE, failing_lease_wait, longest_read_interval, signalled_delay,
};

/// A record from its first observation on, for as long as it does not change.
#[derive(Clone, Debug)]
struct Observation {
    record: ElectionRecord,
    since: Instant,
    /// By the times in the record, the holder has missed renewals.
    is_late: bool,
}

/// The smallest age of a holder's renewals by the local wall clock: the difference of the clocks, or a little more.
#[derive(Clone, Debug)]
struct SmallestAge {
    holder: String,
    age: SignedDuration,
}

/// The observations so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedLease {
    last: Option<Observation>,
    highest_term: Option<i32>,
    candidates: Option<u32>,
    /// By then all candidates have read that number; until then they may read as rarely as one before it makes them. A process that
    /// has just started does not know since when it is published, and counts from its own first read.
    candidates_read_by: Option<Instant>,
    smallest_age: Option<SmallestAge>,
}

/// The candidate on whose behalf a Lease is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender<'a> {
    pub(super) identity: &'a str,
    /// Its node has a signal, or it gave up a term recently: it acquires the Lease only if no other candidate does.
    pub(super) is_last_choice: bool,
}

impl ObservedLease {
    /// Adds what a read, or a write of this candidate, has shown.
    pub(super) fn observe(&mut self, record: ElectionRecord, now: Moment) {
        // After the largest number counting begins again, and what is lower then is later.
        let highest = self.highest_term.filter(|highest| *highest < i32::MAX);
        self.highest_term = highest.max(Some(record.lease.transitions));
        if record.candidates.is_some() && record.candidates != self.candidates {
            let read_by = now.mono + longest_read_interval(self.candidates);
            self.candidates_read_by = self.candidates_read_by.max(Some(read_by));
            self.candidates = record.candidates;
        }
        let (since, is_late) = match self.last.take() {
            Some(last) if last.record.is_same_renewal(&record) => (last.since, last.is_late),
            before => (now.mono, self.looks_late(before.as_ref(), &record, now)),
        };
        self.last = Some(Observation { record, since, is_late });
    }

    /// Adds that the Lease does not exist.
    pub(super) fn observe_missing(&mut self) {
        self.last = None;
    }

    /// Whether the holder of a record that is new here seems to be gone.
    fn looks_late(&mut self, before: Option<&Observation>, record: &ElectionRecord, now: Moment) -> bool {
        let Some(renewed) = record.lease.renewed else {
            return true;
        };
        let holder = &record.lease.holder;
        let age = now.wall.duration_since(renewed);
        let max_age = SignedDuration::try_from(MAX_RENEWAL_AGE).unwrap_or(SignedDuration::MAX);
        let known = self.smallest_age.take().filter(|known| known.holder == *holder);
        let was_wrong = before.is_some_and(|before| before.record.lease.holder == *holder && before.is_late);
        let smallest = match known {
            // It renewed after all: the age is the difference of the clocks.
            _ if was_wrong => age,
            Some(known) => known.age.min(age),
            None if age.abs() <= max_age => age,
            // Gone, or its clock is wrong: one more read shows which.
            None => return true,
        };
        self.smallest_age = Some(SmallestAge {
            holder: holder.clone(),
            age: smallest,
        });
        age.saturating_sub(smallest) > max_age
    }

    /// The record as observed last; `None` if the Lease does not exist, or was not read yet.
    pub(super) fn record(&self) -> Option<&ElectionRecord> {
        self.last.as_ref().map(|last| &last.record)
    }

    /// The number of candidates that a leader published last.
    pub(super) fn candidates(&self) -> Option<u32> {
        self.candidates
    }

    /// The highest number of a term that was observed.
    pub(super) fn highest_term(&self) -> i32 {
        self.highest_term.unwrap_or_default()
    }

    /// Whether the Lease has ever existed, as far as was observed.
    pub(super) fn has_existed(&self) -> bool {
        self.highest_term.is_some()
    }

    /// A number that no observed term had, or 1 after the largest number: a malformed one must not stop all elections.
    pub(super) fn next_term(&self) -> i32 {
        self.highest_term().checked_add(1).unwrap_or(1)
    }

    /// From when on the Lease may be acquired if it does not change.
    fn acquirable_at(&self, contender: Contender<'_>) -> Option<Instant> {
        let last = self.last.as_ref()?;
        let record = &last.record;
        let wait = if record.was_never_held() {
            LEASE_DURATION
        } else if record.is_released() {
            failing_lease_wait(record.failed_terms)
        } else if record.lease.holder == contender.identity {
            // From an earlier term of this candidate, or from a write without a response.
            Duration::ZERO
        } else {
            let theirs = Duration::from_secs(u64::try_from(record.lease.duration_seconds).unwrap_or_default());
            LEASE_DURATION.max(theirs.min(MAX_LEASE_DURATION))
        };
        // etcd was restored: the holder of a later term may not know it yet.
        let is_earlier = record.lease.transitions < self.highest_term();
        let wait = if is_earlier { wait.max(LEASE_DURATION) } else { wait };
        let delay = if contender.is_last_choice {
            signalled_delay(self.candidates, self.candidates_read_by <= Some(last.since))
        } else {
            Duration::ZERO
        };
        Some(last.since + wait + delay)
    }

    /// Whether the Lease may be acquired in the version observed last.
    pub(super) fn is_acquirable(&self, contender: Contender<'_>, now: Instant) -> bool {
        self.acquirable_at(contender).is_some_and(|at| now >= at)
    }

    /// When to read once more, beside the regular reads that come each `interval`; `last_read` is the time of the read
    /// that was observed last.
    pub(super) fn extra_read_at(
        &self,
        contender: Contender<'_>,
        interval: Duration,
        last_read: Instant,
    ) -> Option<Instant> {
        let last = self.last.as_ref()?;
        let is_held_by_other = !last.record.is_released() && last.record.lease.holder != contender.identity;
        let is_due =
            !is_held_by_other || last.is_late || interval < LEASE_DURATION || last_read >= last.since + LEASE_DURATION;
        self.acquirable_at(contender).filter(|_| is_due)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::lease_state::LeaseState;
    use super::*;

    const ME: &str = "me";

    fn contender(is_last_choice: bool) -> Contender<'static> {
        Contender {
            identity: ME,
            is_last_choice,
        }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// A record of `holder`, last renewed at a second of its own clock.
    fn held(holder: &str, renewed: i64) -> ElectionRecord {
        ElectionRecord {
            lease: LeaseState {
                holder: holder.to_owned(),
                acquired: Some(second(-1000)),
                renewed: Some(second(renewed)),
                duration_seconds: 14,
                ..LeaseState::default()
            },
            ..ElectionRecord::default()
        }
    }

    fn with_lease(record: ElectionRecord, change: impl FnOnce(&mut LeaseState)) -> ElectionRecord {
        let mut record = record;
        change(&mut record.lease);
        record
    }

    /// Each record with the second at which it was observed.
    fn observed(start: Instant, records: &[(i64, Option<ElectionRecord>)]) -> ObservedLease {
        let mut lease = ObservedLease::default();
        for (at, record) in records {
            let now = Moment {
                wall: second(*at),
                mono: start + Duration::from_secs(u64::try_from(*at).unwrap()),
            };
            match record {
                Some(record) => lease.observe(record.clone(), now),
                None => lease.observe_missing(),
            }
        }
        lease
    }

    #[test]
    fn each_record_is_acquirable_after_its_time() {
        let start = Instant::now();
        let released = |failed_terms| {
            let mut record = held("", 0);
            record.failed_terms = failed_terms;
            Some(record)
        };
        let longer = |seconds| Some(with_lease(held("a", 0), |lease| lease.duration_seconds = seconds));
        for (record, unsignalled) in [
            (Some(ElectionRecord::default()), 14),
            (Some(held("a", 0)), 14),
            (longer(60), 60),
            (longer(i32::MAX), 300),
            (longer(-3), 14),
            (Some(held(ME, 0)), 0),
            (released(0), 0),
            (released(1), 0),
            (released(2), 14),
            (released(3), 28),
            (released(u32::MAX), 300),
        ] {
            let lease = observed(start, &[(0, record.clone())]);
            for (signalled, after) in [(false, unsignalled), (true, unsignalled + 14)] {
                let free = |millis| lease.is_acquirable(contender(signalled), start + Duration::from_millis(millis));
                assert!(free(after * 1000), "{record:?} {signalled}");
                assert!(after == 0 || !free(after * 1000 - 1), "{record:?} {signalled}");
            }
        }
        assert!(!ObservedLease::default().is_acquirable(contender(false), start));
    }

    #[test]
    fn the_last_choice_waits_longer_until_all_have_read_the_number_of_candidates() {
        let start = Instant::now();
        let published = |candidates: Option<u32>, holder, second| {
            let mut record = held(holder, second);
            record.candidates = candidates;
            (second, Some(record))
        };
        let later = Some(2);
        // The numbers of candidates at seconds, and the millisecond after a release at which the last choice may acquire the Lease.
        for (numbers, released, millis) in [
            (&[(0, later)][..], 35, 14_000),
            (&[(0, later)], 36, 1200),
            (&[(0, later)], 300, 1200),
            (&[(0, None), (100, later)], 135, 14_000),
            (&[(0, None), (100, later)], 136, 1200),
            (&[(0, Some(100)), (100, later)], 111, 14_000),
            (&[(0, Some(100)), (100, later)], 112, 1200),
            (&[(0, Some(100)), (100, Some(3)), (103, later)], 111, 14_000),
            (&[(0, Some(100)), (100, Some(3)), (103, later)], 112, 1200),
            (&[(0, Some(100)), (100, later), (111, None)], 112, 1200),
        ] {
            let while_held = numbers.iter().map(|(at, number)| published(*number, "a", *at));
            let records: Vec<_> = while_held.chain([published(later, "", released)]).collect();
            let lease = observed(start, &records);
            let released = start + Duration::from_secs(u64::try_from(released).unwrap());
            let is_acquirable = |millis| lease.is_acquirable(contender(true), released + Duration::from_millis(millis));
            let found = (is_acquirable(millis), is_acquirable(millis - 1));
            assert_eq!(found, (true, false), "{numbers:?}: {millis} ms");
        }
    }

    #[test]
    fn a_lease_as_it_was_before_a_restore_of_etcd_is_not_acquirable_at_once() {
        let start = Instant::now();
        let in_term = |record, term| Some(with_lease(record, |lease| lease.transitions = term));
        for free in [held(ME, 5), held("", 5)] {
            for (term, after) in [(8, 0), (7, 14), (i32::MIN, 14)] {
                let records = [(6, in_term(held("a", 6), 8)), (10, in_term(free.clone(), term))];
                let lease = observed(start, &records);
                let is_acquirable =
                    |millis: u64| lease.is_acquirable(contender(false), start + Duration::from_millis(10_000 + millis));
                assert!(is_acquirable(after * 1000), "{free:?} {term}");
                assert!(after == 0 || !is_acquirable(after * 1000 - 1), "{free:?} {term}");
            }
        }
    }

    #[test]
    fn the_time_counts_from_the_last_change() {
        let start = Instant::now();
        let records = [(0, 0), (9, 8), (30, 8)].map(|(at, renewed)| (at, Some(held("a", renewed))));
        let lease = observed(start, &records);
        let free = |second| lease.is_acquirable(contender(false), start + Duration::from_secs(second));
        assert!(free(23) && !free(22));
        let another = with_lease(held("a", 8), |lease| lease.uid = Some("another".to_owned()));
        for between in [None, Some(held("b", 9)), Some(another)] {
            let back = [(0, Some(held("a", 8))), (20, between), (30, Some(held("a", 8)))];
            let free = observed(start, &back).is_acquirable(contender(false), start + Duration::from_secs(43));
            assert!(!free, "a record that came back has changed");
        }
    }

    #[test]
    fn the_published_number_of_candidates_is_kept() {
        let mut published = held("a", 0);
        published.candidates = Some(3);
        let records = [(0, Some(published)), (1, Some(held("a", 0))), (2, None)];
        assert_eq!(observed(Instant::now(), &records).candidates(), Some(3));
    }

    #[test]
    fn no_term_number_repeats_even_after_a_deletion() {
        let start = Instant::now();
        let term = |term| Some(with_lease(held("a", 0), |lease| lease.transitions = term));
        assert_eq!(ObservedLease::default().next_term(), 1);
        assert_eq!(observed(start, &[(0, term(4)), (1, None)]).next_term(), 5);
        assert_eq!(observed(start, &[(0, term(4)), (1, term(2))]).next_term(), 5);
    }

    #[test]
    fn numbers_of_terms_begin_again_after_the_largest() {
        let start = Instant::now();
        let term = |term| Some(with_lease(held("a", 0), |lease| lease.transitions = term));
        let next = |seen: &[i32]| {
            let records: Vec<_> = (0..).zip(seen.iter().map(|number| term(*number))).collect();
            observed(start, &records).next_term()
        };
        assert_eq!(next(&[i32::MAX]), 1);
        assert_eq!(next(&[i32::MAX, 1]), 2);
        assert_eq!(next(&[i32::MAX, 1, 2, 2]), 3);
        assert_eq!(next(&[i32::MAX, 1, i32::MAX]), 1);
    }

    /// A read: its second, the holder, the second of the renewal by the holder's clock, and whether an extra read
    /// follows.
    type Read = (i64, &'static str, i64, bool);

    #[test]
    fn a_holder_that_seems_gone_costs_one_extra_read() {
        let start = Instant::now();
        let stories: &[&[Read]] = &[
            // Clocks agree: late is more than 5 s behind.
            &[(0, "a", -2, false), (100, "a", 99, false), (200, "a", 193, true)],
            &[(0, "a", 0, false), (100, "a", 95, false), (200, "a", 194, true)],
            &[(0, "a", -6, true)],
            // Clocks five minutes apart, either way: one extra read, then lateness is known again.
            &[
                (0, "a", 299, true),
                (14, "a", 313, false),
                (100, "a", 399, false),
                (200, "a", 493, true),
            ],
            &[
                (0, "a", -301, true),
                (14, "a", -287, false),
                (100, "a", -201, false),
                (200, "a", -107, true),
            ],
            // The holder's clock is set back by a minute: one extra read.
            &[
                (0, "a", 0, false),
                (100, "a", 39, true),
                (114, "a", 53, false),
                (200, "a", 139, false),
            ],
            // It is set forward: none.
            &[
                (0, "a", 0, false),
                (100, "a", 159, false),
                (200, "a", 260, false),
                (300, "a", 353, true),
            ],
            // Another holder has another clock.
            &[
                (0, "a", -301, true),
                (14, "a", -287, false),
                (100, "b", 99, false),
                (200, "a", -101, true),
            ],
        ];
        for story in stories {
            let mut reads = Vec::new();
            for (at, holder, renewed, is_extra) in *story {
                reads.push((*at, Some(held(holder, *renewed))));
                let last_read = start + Duration::from_secs(u64::try_from(*at).unwrap());
                let lease = observed(start, &reads);
                let extra = lease.extra_read_at(contender(false), Duration::from_mins(5), last_read);
                let expected = is_extra.then(|| last_read + Duration::from_secs(14));
                assert_eq!(extra, expected, "{story:?} at {at}");
            }
        }
    }

    #[test]
    fn some_records_get_an_extra_read_whatever_their_times() {
        let start = Instant::now();
        let never_held = ElectionRecord::default();
        let unknown = with_lease(held("a", 0), |lease| lease.renewed = None);
        for (what, record, signalled, interval, last_read, expected) in [
            ("renewed", Some(held("a", 0)), false, 300, 0, None),
            ("few candidates", Some(held("a", 0)), false, 13, 0, Some(14)),
            ("the regular read comes as late", Some(held("a", 0)), false, 14, 0, None),
            ("missing", None, false, 300, 0, None),
            ("never held", Some(never_held), false, 300, 0, Some(14)),
            ("signalled, released", Some(held("", 0)), true, 300, 0, Some(14)),
            ("signalled, held", Some(held("a", 0)), true, 300, 0, None),
            ("signalled, expired", Some(held("a", 0)), true, 300, 15, Some(28)),
            ("at an unknown time", Some(unknown), false, 300, 0, Some(14)),
        ] {
            let lease = observed(start, &[(0, record)]);
            let last_read = start + Duration::from_secs(last_read);
            let extra = lease.extra_read_at(contender(signalled), Duration::from_secs(interval), last_read);
            assert_eq!(extra.map(|extra| (extra - start).as_secs()), expected, "{what}");
        }
    }
}
