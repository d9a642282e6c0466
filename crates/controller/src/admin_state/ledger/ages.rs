//! For how long the leader has known the ledger entries.
//!
//! Invariant: ages are counted by this leader's monotonic clock, and begin again with each leader, because the wall clock that wrote the
//! times in the ledger may have been wrong, and so may this leader's. An entry that is kept longer costs nothing; if one is removed too
//! early, nobody sets its `Down` back.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Ledger;

/// Since when each entry is as it is.
#[derive(Debug, Default)]
pub(in super::super) struct LedgerAges {
    ledger: Arc<Ledger>,
    since: BTreeMap<String, BTreeMap<String, Instant>>,
}

impl LedgerAges {
    /// Adopts the ledger as it is now.
    pub(in super::super) fn observe(&mut self, ledger: &Arc<Ledger>, now: Instant) {
        if Arc::ptr_eq(&self.ledger, ledger) {
            return;
        }
        let mut since: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (pool, key, entry) in ledger.entries() {
            let before = self.ledger.pools.get(pool).and_then(|entries| entries.get(key));
            // What was written is read to the second.
            let is_same = before.is_some_and(|before| {
                before.stage == entry.stage && before.since.as_second() == entry.since.as_second()
            });
            let known = self.since(pool, key).filter(|_| is_same);
            let entries = since.entry(pool.to_owned()).or_default();
            entries.insert(key.to_owned(), known.unwrap_or(now));
        }
        *self = Self {
            ledger: Arc::clone(ledger),
            since,
        };
    }

    /// Since when the entry is as it is, as far as this leader knows.
    pub(in super::super) fn since(&self, pool: &str, key: &str) -> Option<Instant> {
        self.since.get(pool)?.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{entry, pool};
    use super::super::{EntryKey, LedgerChange, LedgerStage, pool_key};
    use super::*;

    #[test]
    fn an_age_begins_with_the_first_look_and_with_each_change() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (p, key) = (pool("p"), EntryKey::from_text("10.0.0.1"));
        let mut ages = LedgerAges::default();
        for (second, found, expected) in [
            (10, Some(entry(LedgerStage::Restored, 500)), Some(10)),
            (20, Some(entry(LedgerStage::Restored, 500)), Some(10)),
            (30, Some(entry(LedgerStage::Down, 500)), Some(30)),
            (40, Some(entry(LedgerStage::Down, 7)), Some(40)),
            (50, None, None),
            (60, Some(entry(LedgerStage::Down, 7)), Some(60)),
        ] {
            let mut ledger = Ledger::default();
            ledger.apply(LedgerChange::new(&p, &key, found));
            ages.observe(&Arc::new(ledger), after(second));
            let since = ages.since(&pool_key(&p), key.as_str());
            assert_eq!(since, expected.map(after), "{second}");
        }
    }
}
