//! What headgate writes: no member is lost that another writer has added, and each `Down` is recorded in the ledger before it is written.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::history::{ArmRequest, Event, LedgerEntries, Stage, What, ledger_entry};
use super::leadership::is_late;
use super::{Findings, Violation};

/// The members of each pool, as long as accepted writes alone say them.
#[derive(Debug, Default)]
struct KnownMembers<'a>(BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>);

impl<'a> KnownMembers<'a> {
    /// Adds an accepted write; one with a fault may be taken back.
    fn written(&mut self, request: &'a ArmRequest) {
        let load_balancer = request.load_balancer.as_str();
        match &request.pool {
            Some(pool) => self.0.retain(|known, _| *known != (load_balancer, pool.as_str())),
            None => self.0.retain(|known, _| known.0 != load_balancer),
        }
        if request.is_faulted {
            return;
        }
        for (pool, members) in request.pools.iter().flatten() {
            let members = members.keys().map(String::as_str).collect();
            self.0.insert((load_balancer, pool), members);
        }
    }

    fn lost_by(&self, request: &'a ArmRequest) -> Vec<String> {
        let written = request.pools.iter().flatten();
        let lost = written.flat_map(|(pool, members)| {
            let known = self.0.get(&(request.load_balancer.as_str(), pool.as_str()));
            known
                .into_iter()
                .flatten()
                .filter(|member| !members.contains_key(**member))
        });
        lost.map(|member| (*member).to_owned()).collect()
    }
}

pub(crate) fn check(history: &[Event], findings: &mut Findings) {
    let mut effects: Vec<&Event> = history.iter().collect();
    effects.sort_by_key(|event| event.end);
    let mut known = KnownMembers::default();
    for event in effects {
        let What::Arm(request) = &event.what else { continue };
        if request.change.is_none() {
            continue;
        }
        let lost = known.lost_by(request);
        if request.is_headgate && !lost.is_empty() {
            let text = format!(
                "{} writes a pool at {} without its members {lost:?}",
                request.caller, event.end
            );
            findings.violations.push(Violation::at(history, event, "members", text));
        }
        known.written(request);
        if request.is_headgate {
            check_ledger(history, event, request, findings);
        }
    }
}

/// The entries that restores of etcd took out of the ledger and that are not given back since; of events in the order of their begins.
pub(crate) fn lost_by_restores(history: &[Event]) -> BTreeSet<String> {
    let (mut lost, mut given_back, mut downs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for event in history {
        match &event.what {
            What::Restored(entries) => lost.extend(entries.clone()),
            What::Arm(request) if request.change.is_some() => {
                for (entry, is_down) in entries_of(request) {
                    if is_down {
                        // An old copy of another writer's may have it.
                        if !request.is_headgate && given_back.remove(&entry) {
                            lost.insert(entry.clone());
                        }
                        downs.insert(entry);
                    } else if !request.is_faulted && downs.remove(&entry) {
                        // One with a fault may be taken back.
                        given_back.extend(lost.take(&entry));
                    }
                }
            }
            _ => {}
        }
    }
    lost
}

/// The entries in the body by their names in the ledger, with whether each is `Down`.
fn entries_of(request: &ArmRequest) -> impl Iterator<Item = (String, bool)> {
    request.pools.iter().flatten().flat_map(move |(pool, members)| {
        let entry =
            move |(address, is_down): (&String, &bool)| (ledger_entry(&request.load_balancer, pool, address), *is_down);
        members.iter().map(entry)
    })
}

/// The ledger as it may be at this time. The API server may log the end of a write late: of two that end after it, either may be the one
/// before it, and an entry that one of them records is recorded.
fn ledger_at(history: &[Event], at: Timestamp) -> LedgerEntries {
    let mut known = LedgerEntries::new();
    for event in &history[..history.partition_point(|event| event.begin <= at)] {
        let What::Ledger(entries) = &event.what else { continue };
        if event.end < at {
            known.clone_from(entries);
            continue;
        }
        for (entry, stage) in entries {
            if *stage != Stage::Restored || !known.contains_key(entry) {
                known.insert(entry.clone(), *stage);
            }
        }
    }
    known
}

/// Whether the entry may have been `Down` in its pool before this request: a write made it so, and none that cannot be taken back said
/// something else between the end of that and the request.
fn may_have_been_down(history_before: &[Event], event: &Event, entry: &str) -> bool {
    let written = |other: &Event| match &other.what {
        What::Arm(request) if request.change.is_some() && !std::ptr::eq(other, event) => {
            let has_pool = |pool: &String| entry.starts_with(&ledger_entry(&request.load_balancer, pool, ""));
            let is_about_pool = request.pools.iter().flatten().any(|(pool, _)| has_pool(pool));
            let is_down = entries_of(request).any(|(name, is_down)| is_down && name == entry);
            is_about_pool.then_some((is_down, request.is_faulted))
        }
        _ => None,
    };
    let writes = history_before
        .iter()
        .filter_map(|other| Some((other, written(other)?)))
        .collect::<Vec<_>>();
    let is_undone = |down: &Event| {
        let mut later = writes
            .iter()
            .filter(|(other, _)| down.end < other.begin && other.end < event.begin);
        later.any(|(_, (is_down, is_faulted))| !is_down && !is_faulted)
    };
    let mut downs = writes.iter().filter(|(_, (is_down, _))| *is_down);
    downs.any(|(down, _)| !is_undone(down))
}

/// Each `Down` in the body is in the ledger as it was when the request arrived. One that the ledger has as given back is so only if the pool
/// had it already, or if its leader stood still since it had recorded it.
fn check_ledger(history: &[Event], event: &Event, request: &ArmRequest, findings: &mut Findings) {
    let history_before = &history[..history.partition_point(|other| other.begin <= event.begin)];
    let known = ledger_at(history, event.begin);
    let is_known = |entry: &str| match known.get(entry) {
        Some(Stage::Intended | Stage::Down) => true,
        Some(Stage::Restored) => {
            let was_recorded = |at| {
                let before = ledger_at(history, at);
                before.get(entry).is_some_and(|stage| *stage != Stage::Restored)
            };
            may_have_been_down(history_before, event, entry) || is_late(history, request, was_recorded, event.begin)
        }
        None => false,
    };
    let excused = lost_by_restores(history_before);
    let downs = entries_of(request).filter_map(|(entry, is_down)| is_down.then_some(entry));
    let missing: Vec<String> = downs
        .filter(|entry| !is_known(entry) && !excused.contains(entry))
        .collect();
    if !missing.is_empty() {
        let text = format!(
            "{} writes Down at {} without a ledger entry: {missing:?}",
            request.caller, event.begin
        );
        findings.violations.push(Violation::at(history, event, "ledger", text));
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{arm, frozen, ledger, restored};
    use super::*;

    fn violations(history: &[Event]) -> Vec<&'static str> {
        let mut findings = Findings::default();
        check(history, &mut findings);
        findings
            .violations
            .iter()
            .map(|violation| violation.invariant)
            .collect()
    }

    #[test]
    fn a_member_of_another_writer_is_not_lost() {
        let foreign = |at, members: &[&str]| arm("cloud", at, at).with(members).puts("", Some(("a", "b")));
        let own = |at, members: &[&str]| arm("node-1", at, at).with(members).puts("b", Some(("b", "c")));
        assert!(violations(&[foreign(0, &["1", "2"]), own(2, &["1", "2"])]).is_empty());
        assert_eq!(violations(&[foreign(0, &["1", "2"]), own(2, &["1"])]), ["members"]);
        // The other one may remove its members.
        assert!(violations(&[foreign(0, &["1", "2"]), foreign(1, &["1"]), own(2, &["1"])]).is_empty());
        // A write with a fault may not have added anything.
        let lost = arm("cloud", 1, 1)
            .with(&["1", "2"])
            .faulted()
            .puts("", Some(("a", "b")));
        assert!(violations(&[foreign(0, &["1"]), lost, own(2, &["1"])]).is_empty());
        let refused = arm("node-1", 2, 2).with(&["1"]).puts("a", None);
        assert!(violations(&[foreign(0, &["1", "2"]), refused]).is_empty());
    }

    #[test]
    fn each_down_is_in_the_ledger_before() {
        let down = |at| arm("node-1", at, at + 1).with(&["!1", "2"]).puts("a", Some(("a", "b")));
        assert!(violations(&[ledger(0, 1, &["1"]), down(2)]).is_empty());
        assert_eq!(violations(&[ledger(0, 1, &[]), down(2)]), ["ledger"]);
        assert_eq!(
            violations(&[ledger(0, 1, &[]), down(2), ledger(4, 5, &["1"])]),
            ["ledger"],
            "afterwards"
        );
        assert_eq!(violations(&[down(2)]), ["ledger"], "never");
        let slow = |begin| arm("node-1", begin, 6).with(&["!1", "2"]).puts("a", Some(("a", "b")));
        assert!(violations(&[ledger(0, 1, &[]), ledger(2, 4, &["1"]), slow(3)]).is_empty());
        assert_eq!(
            violations(&[ledger(0, 1, &[]), slow(3), ledger(4, 5, &["1"])]),
            ["ledger"],
            "while ARM answers"
        );
        assert_eq!(
            violations(&[ledger(0, 1, &["1"]), ledger(2, 3, &[]), down(4)]),
            ["ledger"],
            "removed"
        );
        let lost = [ledger(0, 1, &["1"]), down(2), ledger(4, 5, &[]), restored(4, 5, &["1"])];
        let given_back = |writer: &str, at| arm(writer, at, at + 1).with(&["1", "2"]).puts("b", Some(("b", "c")));
        let old_copy = arm("cloud", 8, 8).with(&["!1", "2"]).puts("", Some(("c", "d")));
        let faulted = arm("node-1", 6, 7)
            .with(&["1", "2"])
            .faulted()
            .puts("b", Some(("b", "c")));
        let after = |events: &[Event]| violations(&[&lost, events].concat());
        assert!(after(&[down(6)]).is_empty());
        assert_eq!(after(&[given_back("node-1", 6), down(9)]), ["ledger"]);
        assert_eq!(after(&[given_back("operator", 6), down(9)]), ["ledger"]);
        assert!(after(&[given_back("node-1", 6), old_copy, down(9)]).is_empty());
        assert!(after(&[faulted, down(9)]).is_empty());
        assert!(
            violations(&[
                ledger(0, 1, &[]),
                restored(2, 3, &["1"]),
                given_back("cloud", 4),
                down(6)
            ])
            .is_empty()
        );
    }

    /// The ledger remembers what was given back. A new `Down` of it has to be recorded again.
    #[test]
    fn a_down_that_was_given_back_is_recorded_again() {
        let down = |at| arm("node-1", at, at + 1).with(&["!1", "2"]).puts("a", Some(("a", "b")));
        let old_copy = |at| arm("cloud", at, at).with(&["!1", "2"]).puts("", Some(("a", "b")));
        let without_down = |at| arm("node-1", at, at + 1).with(&["1", "2"]);
        let given_back = |at| without_down(at).puts("a", Some(("a", "b")));
        let after = |events: &[Event]| violations(&[&[ledger(0, 1, &["~1"])], events].concat());
        assert_eq!(after(&[down(2)]), ["ledger"]);
        assert!(after(&[ledger(2, 3, &["1"]), down(4)]).is_empty());
        assert!(
            after(&[ledger(2, 5, &["1"]), down(4)]).is_empty(),
            "either may be the one before"
        );
        // What an old copy brought back is in the pool, and in the body of the next PUT.
        assert!(after(&[old_copy(2), down(4)]).is_empty());
        assert_eq!(after(&[old_copy(2), given_back(4), down(6)]), ["ledger"]);
        let without_it = arm("cloud", 4, 5).with(&["2"]).puts("", Some(("a", "b")));
        assert_eq!(after(&[old_copy(2), without_it, down(6)]), ["ledger"]);
        let refused = arm("cloud", 2, 2).with(&["!1", "2"]).puts("a", None);
        assert_eq!(after(&[refused, down(4)]), ["ledger"]);
        // One with a fault may be taken back, and of two at once either may be the last.
        let faulted = without_down(4).faulted().puts("a", Some(("a", "b")));
        assert!(after(&[old_copy(2), faulted, down(6)]).is_empty());
        let slow_copy = arm("cloud", 2, 5).with(&["!1", "2"]).puts("", Some(("a", "b")));
        assert!(after(&[slow_copy, given_back(3), down(6)]).is_empty());
        // A leader that recorded it and then stood still may send it once the next one has found it given back.
        let late = |first: &[&str], at| {
            let thawed = frozen("node-1", 2, 10);
            violations(&[ledger(0, 1, first), thawed, ledger(8, 9, &["~1"]), down(at)])
        };
        assert!(late(&["1"], 11).is_empty());
        assert_eq!(late(&["~1"], 11), ["ledger"], "it had not recorded it");
        assert_eq!(late(&["1"], 14), ["ledger"], "too late");
    }
}
