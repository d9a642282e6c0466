//! What was seen of the shared Lease, newest version last, and how often somebody else had it.
//!
//! Invariant: what is known never goes back to an older version by a watch that lags behind; an answer to a question
//! of our own is believed in any case. Watches coalesce: a hold that came and went between two sights shows in the
//! times and in the name of the holder before.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::record::Record;

/// What is known of the Lease.
#[derive(Clone, Debug, Default)]
pub(super) enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// There is none.
    Missing,
    /// It, and what it says.
    Found(Box<Lease>, Record),
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    known: Known,
    /// When we last took it, as it says itself; the answer may have been lost.
    ours: Option<Timestamp>,
    others: u64,
}

impl Sight {
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    pub(super) fn record(&self) -> Option<&Record> {
        match &self.known {
            Known::Found(_, record) => Some(record),
            Known::Nothing | Known::Missing => None,
        }
    }

    /// How often somebody else was seen to have had it.
    pub(super) fn others(&self) -> u64 {
        self.others
    }

    /// A write that takes it at `stamp` is about to be sent.
    pub(super) fn claim(&mut self, holder: &str, stamp: Timestamp) {
        let theirs = |record: &Record| !record.is_released() && !record.is_held_by(holder);
        if self.record().is_some_and(theirs) {
            // He did not give it back: it has expired.
            self.others += 1;
        }
        self.ours = Some(stamp);
    }

    /// That write came to nothing: what bears its time is somebody else's, by clocks that agree to the microsecond.
    pub(super) fn disclaim(&mut self) {
        self.ours = None;
    }

    /// The watch showed it; whether that is news.
    pub(super) fn watched(&mut self, lease: Lease) -> bool {
        let number = |version: Option<&str>| version.and_then(|version| version.parse::<u64>().ok());
        let shown = number(lease.metadata.resource_version.as_deref());
        let known = self.record().and_then(|record| number(record.version.as_deref()));
        if known.is_some() && shown <= known {
            return false;
        }
        self.answered(Some(lease));
        true
    }

    /// The answer to a question, or to a write, shows it.
    pub(super) fn answered(&mut self, lease: Option<Lease>) {
        let after = lease.as_ref().map(Record::of);
        if self.was_anothers(after.as_ref()) {
            self.others += 1;
        }
        self.known = match lease.zip(after) {
            Some((lease, record)) => Known::Found(Box::new(lease), record),
            None => Known::Missing,
        };
    }

    /// Whether somebody else had it and has it no more, between what is known and `after`.
    fn was_anothers(&self, after: Option<&Record>) -> bool {
        let ours = |record: &Record| self.ours.is_some() && record.acquired == self.ours && record.renewed == self.ours;
        let before = match &self.known {
            Known::Nothing => return false,
            Known::Missing => None,
            Known::Found(_, record) => Some(record),
        };
        let had = before.is_some_and(|before| !before.is_released() && !ours(before));
        match (before, after) {
            (_, None) => had,
            (None, Some(after)) => after.is_released() && after.acquired.is_some() && !ours(after),
            (Some(before), Some(after)) if before.is_same_turn(after) => false,
            // Our own write took it over: counted when it was sent.
            (Some(_), Some(after)) if ours(after) => false,
            (Some(_), Some(after)) => after.is_released() || had,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One version of the Lease: who holds it, since which second, who held it before.
    fn lease(version: u64, holder: &str, second: i64, previous: &str) -> Lease {
        let time = (second > 0).then(|| format!("1970-01-01T00:00:{second:02}.000000Z"));
        let spec =
            json!({"holderIdentity": holder, "acquireTime": time, "renewTime": time, "leaseDurationSeconds": 900});
        serde_json::from_value(json!({
            "metadata": {"resourceVersion": version.to_string(), "annotations": {super::super::record::PREVIOUS_HOLDER: previous}},
            "spec": spec,
        }))
        .unwrap()
    }

    fn counted(story: &[Option<Lease>], ours: Option<i64>) -> u64 {
        let mut sight = Sight {
            ours: ours.map(|second| Timestamp::from_second(second).unwrap()),
            ..Sight::default()
        };
        for lease in story {
            sight.answered(lease.clone());
        }
        sight.others()
    }

    #[test]
    fn each_time_somebody_else_gave_it_back_is_counted() {
        let of = |version, holder, second, previous| Some(lease(version, holder, second, previous));
        let free = || of(1, "", 1, "c");
        for (told, story, others) in [
            ("the first sight", vec![free()], 0),
            ("the first sight of a held one", vec![of(1, "c", 1, "c")], 0),
            ("taken", vec![free(), of(2, "c", 2, "c")], 0),
            (
                "taken and given back",
                vec![free(), of(2, "c", 2, "c"), of(3, "", 2, "c")],
                1,
            ),
            ("the same, seen late", vec![free(), of(3, "", 2, "c")], 1),
            (
                "again and again, seen late",
                vec![free(), of(2, "c", 2, "c"), of(9, "c", 5, "c"), of(10, "", 5, "c")],
                2,
            ),
            ("one after another", vec![of(2, "c", 2, "c"), of(9, "d", 5, "c")], 1),
            ("ours", vec![free(), of(2, "h", 7, "c"), of(3, "", 7, "h")], 0),
            ("ours, the answers lost", vec![free(), of(3, "", 7, "h")], 0),
            (
                "ours, then theirs, seen late",
                vec![of(2, "h", 7, "c"), of(5, "", 8, "c")],
                1,
            ),
            ("only a label", vec![free(), of(2, "", 1, "c")], 0),
            ("another name in the annotation", vec![free(), of(2, "", 1, "d")], 1),
            ("deleted under its holder", vec![of(2, "c", 2, "c"), None], 1),
            ("deleted when free", vec![free(), None], 0),
            ("made", vec![None, of(2, "", 0, "")], 0),
            ("made, taken and given back", vec![None, of(4, "", 2, "c")], 1),
        ] {
            assert_eq!(counted(&story, Some(7)), others, "{told}");
        }
    }

    #[test]
    fn an_expired_hold_that_is_taken_over_is_counted_once() {
        let mut sight = Sight::default();
        sight.answered(Some(lease(1, "c", 1, "c")));
        sight.claim("h", Timestamp::from_second(7).unwrap());
        assert_eq!(sight.others(), 1);
        sight.answered(Some(lease(2, "h", 7, "c")));
        sight.answered(Some(lease(3, "", 7, "h")));
        sight.claim("H", Timestamp::from_second(8).unwrap());
        assert_eq!(sight.others(), 1);
        // Somebody else was sooner, in the same microsecond.
        sight.disclaim();
        sight.answered(Some(lease(5, "", 8, "c")));
        assert_eq!(sight.others(), 2);
    }

    #[test]
    fn a_watch_that_lags_behind_brings_nothing_back() {
        let mut sight = Sight::default();
        assert!(sight.watched(lease(5, "c", 1, "c")));
        sight.answered(Some(lease(12, "h", 2, "c")));
        for version in [5, 11, 12] {
            assert!(!sight.watched(lease(version, "c", 1, "c")));
        }
        assert_eq!(sight.record().unwrap().holder, "h");
        assert!(sight.watched(lease(13, "", 2, "h")));
        // The store was restored from a copy: who asks is told.
        sight.answered(Some(lease(3, "c", 1, "c")));
        assert_eq!(sight.record().unwrap().version.as_deref(), Some("3"));
    }
}
