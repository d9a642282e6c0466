//! The ledger: which `Down`s are ours, from before each is written until it can come back no more. Pure but for `store`.
//!
//! One `ConfigMap`, so that it outlives a Node: one that is made anew under the same name and address finds its entry
//! `Down`, and nothing on the new Node says whose that is. It says nothing of what is wished: that is recomputed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use headgate_azure::PoolId;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::pool::Key;

mod store;

pub(super) use store::Ledger;
pub use store::{LEDGER, LedgerError, read};

/// How long a `Down` that was restored may come back by somebody else's write of what he read before:
/// cloud-controller-manager keeps load balancers for 2 min, and one of its reconciles may take as long again.
const MAY_COME_BACK: Duration = Duration::from_mins(5);

/// For so long after its last line an entry may be missing in a list that was asked for before, or that lags.
const MAY_NOT_BE_LISTED: Duration = Duration::from_mins(2);

/// What became of a `Down` of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is about to be written, or was; people were not told yet.
    Intended,
    /// It was seen, and people were told.
    Down,
    /// It was seen to be gone, and may come back.
    Restored,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Intended, Self::Down, Self::Restored];

    /// As it stands in the ledger.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Intended => "intended",
            Self::Down => "down",
            Self::Restored => "restored",
        }
    }
}

/// One entry's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Record {
    /// What became of it.
    pub stage: Stage,
    /// Since when.
    pub since: Timestamp,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}", self.stage.as_str(), self.since)
    }
}

impl From<Record> for String {
    fn from(record: Record) -> Self {
        record.to_string()
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no record; allowed: intended, down or restored, a space and a time");
        let (stage, since) = text.split_once(' ').ok_or_else(bad)?;
        let stage = Stage::ALL.into_iter().find(|known| known.as_str() == stage);
        Ok(Self {
            stage: stage.ok_or_else(bad)?,
            since: since.parse().map_err(|_| bad())?,
        })
    }
}

impl TryFrom<String> for Record {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A pool in the ledger: its id in lower case.
fn page(pool: &PoolId) -> String {
    pool.to_string().to_ascii_lowercase()
}

/// All records, by pool and entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    #[serde(default)]
    pools: BTreeMap<String, BTreeMap<String, Record>>,
}

/// One line is to be this, or is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pool: String,
    key: String,
    record: Option<Record>,
}

impl Line {
    /// For an entry of a pool.
    #[must_use]
    pub fn new(pool: &PoolId, key: &Key, record: Option<Record>) -> Self {
        Self {
            pool: page(pool),
            key: key.to_string(),
            record,
        }
    }
}

impl Book {
    /// The line of an entry.
    #[must_use]
    pub fn record(&self, pool: &PoolId, key: &Key) -> Option<Record> {
        self.pools.get(&page(pool))?.get(&key.to_string()).copied()
    }

    /// The lines of one pool, to be looked up many times.
    #[must_use]
    pub fn page(&self, pool: &PoolId) -> Page<'_> {
        let lines = self.pools.get(&page(pool)).into_iter().flatten();
        Page(lines.map(|(key, record)| (&**key, *record)).collect())
    }

    /// All lines: the pool's id in lower case, what the entry is recognised by, what is known of it.
    pub fn lines(&self) -> impl Iterator<Item = (&str, &str, Record)> {
        let pools = self.pools.iter();
        pools.flat_map(|(pool, lines)| lines.iter().map(move |(key, record)| (&**pool, &**key, *record)))
    }

    /// Whether nothing is ours.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// How many lines say that a `Down` of ours stands, or may stand.
    #[must_use]
    pub fn standing(&self) -> usize {
        let lines = self.pools.values().flat_map(BTreeMap::values);
        lines.filter(|record| record.stage != Stage::Restored).count()
    }

    /// Writes a line.
    pub fn write(&mut self, line: Line) {
        match line.record {
            Some(record) => {
                self.pools.entry(line.pool).or_default().insert(line.key, record);
            }
            None => {
                if let Some(lines) = self.pools.get_mut(&line.pool) {
                    lines.remove(&line.key);
                    if lines.is_empty() {
                        self.pools.remove(&line.pool);
                    }
                }
            }
        }
    }

    /// The lines by which this differs from an earlier one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Vec<Line> {
        let lines = |book: &Self| -> BTreeMap<(String, String), Record> {
            let pools = book.pools.iter();
            pools
                .flat_map(|(pool, lines)| {
                    lines
                        .iter()
                        .map(move |(key, record)| ((pool.clone(), key.clone()), *record))
                })
                .collect()
        };
        let (now, before) = (lines(self), lines(earlier));
        let line = |(pool, key): &(String, String), record| Line {
            pool: pool.clone(),
            key: key.clone(),
            record,
        };
        let gone = before.keys().filter(|place| !now.contains_key(*place));
        let new = now.iter().filter(|(place, record)| before.get(*place) != Some(*record));
        gone.map(|place| line(place, None))
            .chain(new.map(|(place, record)| line(place, Some(*record))))
            .collect()
    }

    /// What to write so that lines grow old: `stands` says how entries stood in the last list. A line of an entry that has
    /// not been there for a while counts as restored from now on; what was restored long enough ago goes, unless the
    /// entry is `Down`.
    #[must_use]
    pub fn aged(&self, stands: impl Fn(&str, &str) -> Stands, now: Timestamp) -> Vec<Line> {
        let mut lines = Vec::new();
        let old = |record: &Record, than: Duration| {
            now.duration_since(record.since) >= SignedDuration::try_from(than).unwrap_or(SignedDuration::MAX)
        };
        for (pool, entries) in &self.pools {
            for (key, record) in entries {
                let record = match (record.stage, stands(pool, key)) {
                    (Stage::Restored, Stands::NotDown | Stands::NotThere) if old(record, MAY_COME_BACK) => None,
                    (Stage::Intended | Stage::Down, Stands::NotThere) if old(record, MAY_NOT_BE_LISTED) => {
                        Some(Record {
                            stage: Stage::Restored,
                            since: now,
                        })
                    }
                    _ => continue,
                };
                lines.push(Line {
                    pool: pool.clone(),
                    key: key.clone(),
                    record,
                });
            }
        }
        lines
    }
}

/// How an entry stood in the last list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It was there, and `Down`.
    Down,
    /// It was there, and not.
    NotDown,
    /// It was not there.
    NotThere,
}

/// One pool's lines.
#[derive(Clone, Debug)]
pub struct Page<'a>(HashMap<&'a str, Record>);

impl Page<'_> {
    /// The line of an entry.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<Record> {
        self.0.get(key.as_str()).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(name: &str) -> PoolId {
        let id = format!(
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/l/backendAddressPools/{name}"
        );
        PoolId::parse(&id).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(stage: Stage, second: i64) -> Record {
        Record {
            stage,
            since: at(second),
        }
    }

    #[test]
    fn a_record_is_a_readable_line() {
        let text = "down 2026-11-21T10:00:00Z";
        let record: Record = text.parse().unwrap();
        assert_eq!((record.stage, record.to_string().as_str()), (Stage::Down, text));
        for bad in [
            "",
            "down",
            "down x",
            "up 2026-11-21T10:00:00Z",
            "down  2026-11-21T10:00:00Z",
        ] {
            assert!(bad.parse::<Record>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_compare_as_arm_compares_them() {
        let mut book = Book::default();
        let key = Key::written("10.0.0.1");
        book.write(Line::new(&pool("Kubernetes"), &key, Some(record(Stage::Down, 1))));
        assert_eq!(book.record(&pool("kubernetes"), &key), Some(record(Stage::Down, 1)));
        assert_eq!(
            book.page(&pool("KUBERNETES")).record(&key),
            Some(record(Stage::Down, 1))
        );
        assert_eq!(book.record(&pool("other"), &key), None);
        let text = serde_json::to_string(&book).unwrap();
        assert!(text.contains(r#""10.0.0.1":"down 1970-01-01T00:00:01Z""#), "{text}");
        assert_eq!(serde_json::from_str::<Book>(&text).unwrap(), book);
        book.write(Line::new(&pool("kubernetes"), &key, None));
        assert!(book.is_empty());
    }

    #[test]
    fn what_is_gone_grows_old_and_what_is_old_goes() {
        let mut book = Book::default();
        for (key, stage) in [
            ("there", Stage::Down),
            ("gone", Stage::Down),
            ("meant", Stage::Intended),
            ("old", Stage::Restored),
            ("back", Stage::Restored),
        ] {
            book.write(Line::new(&pool("p"), &Key::written(key), Some(record(stage, 0))));
        }
        let stands = |_: &str, key: &str| match key {
            "there" | "back" => Stands::Down,
            "old" => Stands::NotDown,
            _ => Stands::NotThere,
        };
        assert!(book.aged(stands, at(119)).is_empty(), "a list may lag");
        for line in book.aged(stands, at(299)) {
            book.write(line);
        }
        let of = |book: &Book, key: &str| book.record(&pool("p"), &Key::written(key));
        assert_eq!(of(&book, "there"), Some(record(Stage::Down, 0)));
        assert_eq!(of(&book, "gone"), Some(record(Stage::Restored, 299)));
        assert_eq!(of(&book, "meant"), Some(record(Stage::Restored, 299)));
        assert_eq!(of(&book, "old"), Some(record(Stage::Restored, 0)));
        assert_eq!(book.standing(), 1);
        for line in book.aged(stands, at(300)) {
            book.write(line);
        }
        assert_eq!(of(&book, "old"), None);
        assert!(of(&book, "gone").is_some());
        assert!(of(&book, "back").is_some(), "it is Down again, by us");
    }

    fn books() -> impl Strategy<Value = Book> {
        let line = (0..3_u8, 0..3_u8, 0..3_usize, 0..3_i64);
        proptest::collection::vec(line, 0..8).prop_map(|lines| {
            let mut book = Book::default();
            for (pool_number, key, stage, second) in lines {
                let record = record(Stage::ALL[stage], second);
                let key = Key::written(&key.to_string());
                book.write(Line::new(&pool(&format!("p{pool_number}")), &key, Some(record)));
            }
            book
        })
    }

    proptest! {
        #[test]
        fn the_difference_leads_from_one_book_to_the_other(from in books(), to in books()) {
            let mut book = from.clone();
            for line in to.since(&from) {
                book.write(line);
            }
            prop_assert_eq!(book, to);
        }
    }
}
