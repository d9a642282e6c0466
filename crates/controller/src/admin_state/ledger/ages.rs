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
        let before = std::mem::replace(&mut self.ledger, Arc::clone(ledger));
        self.since.retain(|pool, _| ledger.pools.contains_key(pool));
        for (pool, entries) in &ledger.pools {
            let before = before.pools.get(pool);
            // Pools that did not change are shared.
            if before == Some(entries) {
                continue;
            }
            let since = self.since.entry(pool.clone()).or_default();
            since.retain(|key, _| entries.contains_key(key));
            for (key, entry) in &**entries {
                // What was written is read to the second.
                let is_same = before.and_then(|entries| entries.get(key)).is_some_and(|before| {
                    before.stage == entry.stage && before.since.as_second() == entry.since.as_second()
                });
                if !is_same {
                    since.insert(key.clone(), now);
                }
            }
        }
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
