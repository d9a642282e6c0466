//! The check of registers beside another one, on random short histories: that one tries every order of the calls that real time allows, from
//! every value, with every version that a write without an answer may have written. It shares nothing with `registers` and stateright.

use fastrand::Rng;

use super::Findings;
use super::history::Event;
use super::made_up::{arm, lease, operation_end};
use super::registers::check;

const HISTORIES: u64 = 2000;
const MAX_CALLS: usize = 6;
/// Those of calls, and one more that no call names.
const VALUES: u8 = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read(u8),
    /// Requires a value, or none, and writes one.
    Write(Option<u8>, u8),
    /// Requires another value than there was.
    Refused(u8),
    /// Requires a value; without an answer.
    Lost(u8),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    begin: i64,
    end: i64,
    kind: Kind,
}

impl Call {
    /// The values that there may be after it; none if its answer is wrong.
    fn after(&self, value: u8) -> Vec<u8> {
        let is_right = match self.kind {
            Kind::Read(read) => read == value,
            Kind::Write(required, _) => required.is_none_or(|required| required == value),
            Kind::Refused(required) => required != value,
            Kind::Lost(required) if required == value => return (0..VALUES).collect(),
            Kind::Lost(_) => true,
        };
        let after = match self.kind {
            Kind::Write(_, new) => new,
            _ => value,
        };
        if is_right { vec![after] } else { Vec::new() }
    }

    fn has_answer(&self) -> bool {
        !matches!(self.kind, Kind::Lost(_))
    }

    /// An event of a Lease, or of a load balancer.
    fn event(&self, is_lease: bool) -> Event {
        let version = |value: u8| format!("v{value}");
        let on_lease = || lease("node-1_a", self.begin, self.end);
        // Others write without an etag.
        let is_foreign = matches!(self.kind, Kind::Write(None, _));
        let on_arm = || arm(if is_foreign { "cloud" } else { "node-1" }, self.begin, self.end);
        match self.kind {
            Kind::Read(value) if is_lease => on_lease().reads(&version(value)),
            Kind::Read(value) => on_arm().reads(&version(value)),
            Kind::Write(Some(required), new) if is_lease => on_lease().replaces(&version(required), &version(new)),
            Kind::Write(Some(required), new) if self.begin == self.end => {
                operation_end(self.begin, &version(required), &version(new))
            }
            Kind::Write(required, new) => {
                let required = required.map(version).unwrap_or_default();
                on_arm().puts(&required, Some((&required, &version(new))))
            }
            Kind::Refused(required) if is_lease => on_lease().gets_a_refusal(&version(required)),
            Kind::Refused(required) => on_arm().puts(&version(required), None),
            Kind::Lost(required) => on_lease().gets_no_answer(&version(required)),
        }
    }
}

/// Calls that begin and end around their effects, answered as a register answers them; but some answers may be wrong.
fn draw(random: &mut Rng, is_lease: bool) -> Vec<Call> {
    let named = 0..VALUES - 1;
    let mut value = random.u8(named.clone());
    let count = random.usize(1..=MAX_CALLS);
    let mut calls = Vec::new();
    for number in 0..count {
        let at = 2 * i64::try_from(number).unwrap();
        let other = random.u8(named.clone());
        let required = random.choice([value, other]).unwrap();
        let kind = match random.u8(0..if is_lease { 5 } else { 4 }) {
            0 => Kind::Read(required),
            1 if !is_lease => Kind::Write(None, other),
            1 | 2 => Kind::Write(Some(required), other),
            3 => Kind::Refused(other),
            _ => Kind::Lost(required),
        };
        match kind {
            Kind::Write(_, new) => value = new,
            Kind::Lost(_) if random.bool() => value = other,
            _ => {}
        }
        let (before, after) = (random.i64(0..4), random.i64(0..4));
        let (begin, end) = (at - before, at + after);
        calls.push(Call { begin, end, kind });
    }
    calls
}

/// Whether some order of the calls that are not `done` explains their answers, where the register has this value.
fn has_order(calls: &[Call], done: &[usize], value: u8) -> bool {
    let left = |number: &usize| !done.contains(number);
    let answered: Vec<_> = (0..calls.len())
        .filter(left)
        .filter(|number| calls[*number].has_answer())
        .collect();
    let is_next = |number: &usize| answered.iter().all(|other| calls[*other].end >= calls[*number].begin);
    let mut next = (0..calls.len()).filter(left).filter(is_next);
    answered.is_empty()
        || next.any(|number| {
            let done = [done, &[number]].concat();
            let mut values = calls[number].after(value).into_iter();
            values.any(|value| has_order(calls, &done, value))
        })
}

#[test]
fn short_histories_are_explained_where_some_order_of_their_calls_is() {
    let mut explained = 0;
    for seed in 0..HISTORIES {
        let mut random = Rng::with_seed(seed);
        let is_lease = random.bool();
        let calls = draw(&mut random, is_lease);
        let mut history: Vec<Event> = calls.iter().map(|call| call.event(is_lease)).collect();
        history.sort_by_key(|event| event.begin);
        let mut findings = Findings::default();
        check(&history, &mut findings);
        let is_explained = (0..VALUES).any(|value| has_order(&calls, &[], value));
        assert_eq!(
            findings.violations.is_empty(),
            is_explained,
            "seed {seed}, of a Lease: {is_lease}\n{calls:#?}"
        );
        assert_eq!(findings.operations, calls.len(), "seed {seed}");
        explained += u64::from(is_explained);
    }
    println!("{explained} of {HISTORIES} histories are explained");
    let range = HISTORIES / 4..HISTORIES * 3 / 4;
    assert!(range.contains(&explained), "{explained} of {HISTORIES} say little");
}
