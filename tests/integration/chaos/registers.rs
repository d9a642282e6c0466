//! Linearizability: each load balancer is a register with compare-and-set on its etag, each Lease one on its resourceVersion. stateright's
//! tester searches for an order; a long history is cut where one request alone determines the value.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use super::history::{Event, Outcome, What};
use super::{Findings, Violation};

/// Requests of one search, if it can be cut.
const WINDOW: usize = 16;

/// The value of a register, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Register {
    /// Any but these, which have been required and refused.
    AnyBut(BTreeSet<Option<String>>),
    Known(Option<String>),
}

/// What a write requires.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Anything,
    Version(Option<String>),
}

#[allow(
    clippy::option_option,
    reason = "whether the new version is known, and whether there is one"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    /// Without `new`, the written version is not known.
    Write {
        expected: Expected,
        new: Option<Option<String>>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Value(Option<String>),
    Done,
    Refused,
}

impl Register {
    const UNKNOWN: Self = Self::AnyBut(BTreeSet::new());

    /// Whether it may have what is expected.
    fn meets(&self, expected: &Expected) -> bool {
        match (self, expected) {
            (_, Expected::Anything) => true,
            (Self::Known(value), Expected::Version(version)) => value == version,
            (Self::AnyBut(others), Expected::Version(version)) => !others.contains(version),
        }
    }
}

impl SequentialSpec for Register {
    type Op = Operation;
    type Ret = Answer;

    /// Only for a request without an answer.
    fn invoke(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Write { expected, new } if self.meets(expected) => {
                *self = new.clone().map_or(Self::UNKNOWN, Self::Known);
                Answer::Done
            }
            Operation::Write { .. } => Answer::Refused,
            Operation::Read => Answer::Value(None),
        }
    }

    fn is_valid_step(&mut self, operation: &Operation, answer: &Answer) -> bool {
        match (operation, answer) {
            (Operation::Read, Answer::Value(value)) => {
                let is_valid = self.meets(&Expected::Version(value.clone()));
                *self = Self::Known(value.clone());
                is_valid
            }
            (Operation::Write { expected, .. }, Answer::Done) => {
                let is_valid = self.meets(expected);
                self.invoke(operation);
                is_valid
            }
            (Operation::Write { expected, .. }, Answer::Refused) => match (&mut *self, expected) {
                (Self::AnyBut(others), Expected::Version(version)) => {
                    others.insert(version.clone());
                    true
                }
                _ => !self.meets(expected),
            },
            _ => false,
        }
    }
}

/// A request for a register. Without an answer, it may take effect at any time after its begin, or never.
#[derive(Clone, Debug)]
struct Call<'a> {
    event: &'a Event,
    operation: Operation,
    answer: Option<Answer>,
}

impl Call<'_> {
    /// The value of the register after this call, if no other one was under way.
    #[allow(
        clippy::option_option,
        reason = "whether the value is known, and whether there is one"
    )]
    fn determined(&self) -> Option<Option<String>> {
        match (&self.answer, &self.operation) {
            (Some(Answer::Value(value)), _) => Some(value.clone()),
            (Some(Answer::Done), Operation::Write { new, .. }) => new.clone(),
            _ => None,
        }
    }
}

/// The register of an event and what it did there; `None` if it says nothing about a version.
fn call(event: &Event) -> Option<(&str, Call<'_>)> {
    let (register, operation, answer) = match &event.what {
        What::Arm(request) => {
            // headgate writes nothing without `If-Match`, which could only create.
            let expected = if request.is_headgate || request.if_match.is_some() {
                Expected::Version(request.if_match.clone())
            } else {
                Expected::Anything
            };
            let (operation, answer) = match (&request.change, request.status) {
                (Some(change), _) => {
                    let new = Some(change.after.clone());
                    (Operation::Write { expected, new }, Answer::Done)
                }
                (None, Some(200)) if !request.is_write && !request.is_faulted => {
                    (Operation::Read, Answer::Value(Some(request.etag.clone()?)))
                }
                (None, Some(412)) if request.is_write && !request.is_faulted => {
                    (Operation::Write { expected, new: None }, Answer::Refused)
                }
                _ => return None,
            };
            (&request.load_balancer, operation, Some(answer))
        }
        What::OperationEnded(end) => {
            let change = end.change.as_ref()?;
            let operation = Operation::Write {
                expected: Expected::Version(change.before.clone()),
                new: Some(change.after.clone()),
            };
            (&end.load_balancer, operation, Some(Answer::Done))
        }
        What::Lease(request) => {
            let version = request.version.clone().filter(|_| request.outcome == Outcome::Done);
            let operation = if request.is_write {
                Operation::Write {
                    expected: Expected::Version(request.expected.clone()),
                    new: version.clone().map(Some),
                }
            } else {
                Operation::Read
            };
            let answer = match (request.outcome, request.is_write) {
                (Outcome::Done, true) => Some(Answer::Done),
                (Outcome::Done, false) => Some(Answer::Value(Some(version?))),
                (Outcome::Refused, true) => Some(Answer::Refused),
                (Outcome::Unknown, true) => None,
                (_, false) => return None,
            };
            (&request.lease, operation, answer)
        }
        _ => return None,
    };
    let call = Call {
        event,
        operation,
        answer,
    };
    Some((register, call))
}

/// Whether some order of these calls, from this value on, explains all answers.
fn is_linearizable(start: &Register, calls: &[Call<'_>]) -> bool {
    let mut edges: Vec<(Timestamp, bool, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        edges.push((call.event.begin, false, index));
        if call.answer.is_some() {
            edges.push((call.event.end, true, index));
        }
    }
    // What ends when another one begins counts as concurrent to it.
    edges.sort();
    let mut tester = LinearizabilityTester::new(start.clone());
    let (mut threads, mut busy) = (BTreeMap::new(), BTreeSet::new());
    for (_, is_end, index) in edges {
        if is_end {
            let thread = threads.remove(&index).expect("a call begins before it ends");
            let answer = calls[index].answer.clone().expect("only these have an end");
            tester.on_return(thread, answer).unwrap();
            busy.remove(&thread);
        } else {
            let thread = (0..=busy.len())
                .find(|thread| !busy.contains(thread))
                .expect("there are many");
            tester.on_invoke(thread, calls[index].operation.clone()).unwrap();
            busy.insert(thread);
            threads.insert(index, thread);
        }
    }
    tester.is_consistent()
}

/// The calls of one register since it was known.
#[derive(Debug)]
struct Window<'a> {
    start: Register,
    calls: Vec<Call<'a>>,
    /// Calls without an answer of earlier windows.
    open: Vec<Call<'a>>,
    last_end: Timestamp,
}

impl Default for Window<'_> {
    fn default() -> Self {
        Self {
            start: Register::UNKNOWN,
            calls: Vec::new(),
            open: Vec::new(),
            last_end: Timestamp::MIN,
        }
    }
}

impl<'a> Window<'a> {
    /// The calls, if no order explains them. What is known afterwards is `next`.
    fn close(&mut self, next: Register) -> Option<Vec<Call<'a>>> {
        let (open, mut calls): (Vec<_>, Vec<_>) = std::mem::take(&mut self.calls)
            .into_iter()
            .partition(|call| call.answer.is_none());
        self.open.extend(open);
        calls.extend(self.open.iter().cloned());
        let is_explained = is_linearizable(&self.start, &calls);
        self.start = next;
        (!is_explained).then_some(calls)
    }

    /// The value after the calls so far, if the next one begins at `begin`: the last call was alone and says it.
    fn determined_before(&self, begin: Timestamp) -> Option<Register> {
        let (last, others) = self.calls.split_last()?;
        let was_alone = others.iter().all(|other| other.event.end < last.event.begin) && last.event.end < begin;
        let value = last.determined().filter(|_| was_alone && self.open.is_empty())?;
        Some(Register::Known(value))
    }

    fn add(&mut self, call: Call<'a>) -> Option<Vec<Call<'a>>> {
        let begin = call.event.begin;
        let mut unexplained = None;
        if self.calls.len() >= WINDOW && self.last_end < begin {
            if let Some(value) = self.determined_before(begin) {
                unexplained = self.close(value);
            } else if self.calls.len() >= 2 * WINDOW {
                unexplained = self.close(Register::UNKNOWN);
            }
        }
        self.last_end = self.last_end.max(call.event.end);
        self.calls.push(call);
        unexplained
    }
}

/// Checks every register of the history. Where kube-apiserver stopped, the Leases begin anew, without what it answered meanwhile.
pub(crate) fn check(history: &[Event], findings: &mut Findings) {
    let mut windows: BTreeMap<&str, Window<'_>> = BTreeMap::new();
    let (mut unexplained, mut stopped_until) = (Vec::new(), Timestamp::MIN);
    for event in history {
        if matches!(event.what, What::Lease(_)) && event.begin < stopped_until {
            continue;
        }
        if matches!(event.what, What::ApiServerStopped | What::Restored(_)) {
            stopped_until = stopped_until.max(event.end);
            let leases = windows.extract_if(.., |name, _| !name.starts_with('/'));
            let closed: Vec<_> = leases.collect();
            unexplained.extend(
                closed
                    .into_iter()
                    .filter_map(|(name, mut window)| Some((name, window.close(Register::UNKNOWN)?))),
            );
        } else if let Some((name, call)) = call(event) {
            findings.operations += 1;
            unexplained.extend(windows.entry(name).or_default().add(call).map(|calls| (name, calls)));
        }
    }
    let rest = windows.into_iter();
    unexplained.extend(rest.filter_map(|(name, mut window)| Some((name, window.close(Register::UNKNOWN)?))));
    for (name, calls) in unexplained {
        let context = calls.iter().map(|call| call.event.clone()).collect();
        findings.violations.push(Violation {
            invariant: "linearizable",
            text: format!(
                "no order of these {} requests for {name} explains their answers",
                calls.len()
            ),
            context,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::carried_over;
    use super::super::made_up::{arm, at, lease, operation_end, restored, stopped};
    use super::*;

    fn is_explained(history: &[Event]) -> bool {
        let mut findings = Findings::default();
        check(history, &mut findings);
        findings.violations.is_empty()
    }

    #[test]
    fn known_histories_are_linearizable_or_not() {
        let read = |begin, end, etag| arm("node-1", begin, end).reads(etag);
        let put = |begin, end, expected, before, after| arm("node-1", begin, end).puts(expected, Some((before, after)));
        let refused = |begin, end, expected| arm("node-2", begin, end).puts(expected, None);
        for (name, history, expected) in [
            (
                "in order",
                vec![read(0, 1, "a"), put(2, 3, "a", "a", "b"), read(4, 5, "b")],
                true,
            ),
            ("a stale read", vec![put(2, 3, "a", "a", "b"), read(4, 5, "a")], false),
            (
                "a read during the write shows either",
                vec![put(2, 5, "a", "a", "b"), read(3, 4, "a")],
                true,
            ),
            ("or", vec![put(2, 5, "a", "a", "b"), read(3, 4, "b")], true),
            (
                "two reads during the write go back",
                vec![put(0, 9, "a", "a", "b"), read(1, 2, "b"), read(3, 4, "a")],
                false,
            ),
            (
                "two writes of one etag",
                vec![put(0, 1, "a", "a", "b"), put(2, 3, "a", "a", "c")],
                false,
            ),
            (
                "the second is refused",
                vec![put(0, 1, "a", "a", "b"), refused(2, 3, "a"), read(4, 5, "b")],
                true,
            ),
            (
                "refused although it is the etag",
                vec![read(0, 1, "a"), refused(2, 3, "a"), read(4, 5, "a")],
                false,
            ),
            (
                "refused beside a write that took effect first",
                vec![read(0, 1, "a"), refused(2, 5, "a"), put(3, 4, "a", "a", "b")],
                true,
            ),
            (
                "refused before anything is known, and it is the etag",
                vec![refused(0, 1, "a"), put(2, 3, "a", "a", "b")],
                false,
            ),
            (
                "an operation ends",
                vec![
                    put(0, 1, "a", "a", "b"),
                    operation_end(2, "b", "c"),
                    put(3, 4, "c", "c", "d"),
                ],
                true,
            ),
            (
                "without an etag, as others write",
                vec![read(0, 1, "a"), arm("cloud", 2, 3).puts("", Some(("a", "b")))],
                true,
            ),
            (
                "headgate does not",
                vec![read(0, 1, "a"), put(2, 3, "", "a", "b")],
                false,
            ),
            (
                "an etag from before its end",
                vec![
                    put(0, 1, "a", "a", "b"),
                    operation_end(2, "b", "c"),
                    put(3, 4, "b", "b", "d"),
                ],
                false,
            ),
        ] {
            assert_eq!(is_explained(&history), expected, "{name}");
        }
    }

    #[test]
    fn a_lease_is_compare_and_set_on_its_version() {
        let second = |expected| lease("node-2_b", 2, 3).replaces(expected, "3");
        let first = lease("node-1_a", 0, 1).replaces("1", "2");
        assert!(is_explained(&[first.clone(), second("2")]));
        assert!(!is_explained(&[first.clone(), second("1")]), "both followed version 1");
        // After a stop, and so after a restore, any version may be there.
        assert!(is_explained(&[first.clone(), stopped(1, 2), second("1")]));
        let meanwhile = lease("node-1_a", 2, 2).replaces("2", "4");
        assert!(is_explained(&[
            first.clone(),
            stopped(1, 3),
            meanwhile,
            lease("node-2_b", 4, 5).replaces("1", "3")
        ]));
        // A write without an answer took effect, or did not.
        for expected in ["2", "9"] {
            let lost = lease("node-1_a", 2, 3).gets_no_answer("2");
            let next = lease("node-2_b", 6, 7).replaces(expected, "10");
            assert!(is_explained(&[first.clone(), lost, next]), "{expected}");
        }
        let lost = lease("node-1_a", 4, 5).gets_no_answer("1");
        let next = lease("node-2_b", 6, 7).replaces("9", "10");
        assert!(!is_explained(&[first, lost, next]), "it could not take effect");
    }

    #[test]
    fn the_next_round_begins_with_the_last_write_of_a_lease_unless_it_was_taken_back() {
        let first = lease("node-1_a", 0, 1).replaces("1", "2");
        let next_round = |history: Vec<Event>, expected| {
            let mut next = carried_over(history);
            next.push(lease("node-2_b", 4, 5).replaces(expected, "3"));
            next.sort_by_key(|event| event.begin);
            is_explained(&next)
        };
        assert!(next_round(vec![first.clone()], "2"));
        assert!(!next_round(vec![first.clone()], "1"));
        assert!(next_round(vec![first.clone(), restored(2, 3, &[])], "1"));
        let again = lease("node-1_a", 3, 3).replaces("1", "2");
        assert!(!next_round(vec![first, restored(1, 2, &[]), again], "1"));
    }

    #[test]
    fn a_long_history_is_cut_and_still_checked() {
        let etag = |number: i64| format!("e{number}");
        let put = |number: i64| {
            let (before, after) = (etag(number), etag(number + 1));
            arm("node-1", 4 * number, 4 * number + 1).puts(&before, Some((&before, &after)))
        };
        let mut history: Vec<Event> = (0..500).map(put).collect();
        assert!(is_explained(&history));
        let stale = arm("node-2", 1602, 1603).reads(&etag(399));
        let position = history.partition_point(|event| event.begin < at(1602));
        history.insert(position, stale);
        let mut findings = Findings::default();
        check(&history, &mut findings);
        assert_eq!(findings.operations, 501);
        assert_eq!(findings.violations.len(), 1);
        assert!(findings.violations[0].context.len() <= 2 * WINDOW + 1);
    }
}
