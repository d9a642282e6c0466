//! What headgate writes: no member is lost that another writer has added, and each `Down` is in the ledger before it is written.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{ArmRequest, Event, What, ledger_entry};
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

/// Each `Down` in the body is in the ledger as it was when the request arrived.
fn check_ledger(history: &[Event], event: &Event, request: &ArmRequest, findings: &mut Findings) {
    let history_before = &history[..history.partition_point(|other| other.begin <= event.begin)];
    let mut known = BTreeSet::new();
    for other in history_before {
        match &other.what {
            // The API server may log the end of a write late. Of two that end after the begin, either may be the one before it.
            What::Ledger(entries) if other.end < event.begin => known.clone_from(entries),
            What::Ledger(entries) => known.extend(entries.clone()),
            _ => {}
        }
    }
    let excused = lost_by_restores(history_before);
    let downs = entries_of(request).filter_map(|(entry, is_down)| is_down.then_some(entry));
    let missing: Vec<String> = downs
        .filter(|entry| !known.contains(entry) && !excused.contains(entry))
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
    use super::super::made_up::{arm, ledger, restored};
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
}
