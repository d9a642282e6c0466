//! Events of made-up histories, for the tests of the invariants. Times are in seconds.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::history::{
    ArmRequest, Change, Event, LEADER_LEASE, LeaseRequest, Members, OperationEnd, Outcome, SHARED_LEASE, Stage, What,
    ledger_entry,
};

pub(crate) const BALANCER: &str = "/subscriptions/s/loadbalancers/lb";

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn event(begin: i64, end: i64, what: What) -> Event {
    Event {
        begin: at(begin),
        end: at(end),
        what,
    }
}

/// A request of a controller of headgate, or of `cloud` for the pool `pool`.
pub(crate) struct Arm(i64, i64, ArmRequest);

pub(crate) fn arm(caller: &str, begin: i64, end: i64) -> Arm {
    let request = ArmRequest {
        caller: caller.to_owned(),
        is_headgate: caller.starts_with("node-"),
        load_balancer: BALANCER.to_owned(),
        pool: Some("pool".to_owned()),
        is_write: false,
        if_match: None,
        status: Some(200),
        is_faulted: false,
        etag: None,
        change: None,
        pools: None,
    };
    Arm(begin, end, request)
}

impl Arm {
    pub(crate) fn reads(mut self, etag: &str) -> Event {
        self.2.etag = Some(etag.to_owned());
        event(self.0, self.1, What::Arm(self.2))
    }

    /// A PUT with this `If-Match`, and the change of the etag if it is accepted.
    pub(crate) fn puts(mut self, if_match: &str, change: Option<(&str, &str)>) -> Event {
        self.2.is_write = true;
        self.2.if_match = Some(if_match.to_owned()).filter(|etag| !etag.is_empty());
        self.2.status = Some(if change.is_some() { 200 } else { 412 });
        self.2.change = change.map(|(before, after)| Change {
            before: Some(before.to_owned()),
            after: Some(after.to_owned()),
        });
        event(self.0, self.1, What::Arm(self.2))
    }

    /// The same with these members, `!` before those that are `Down`.
    pub(crate) fn with(mut self, members: &[&str]) -> Self {
        let member = |member: &&str| (member.trim_start_matches('!').to_owned(), member.starts_with('!'));
        let members: Members = members.iter().map(member).collect();
        self.2.pools = Some(BTreeMap::from([("pool".to_owned(), members)]));
        self
    }

    pub(crate) fn faulted(mut self) -> Self {
        self.2.is_faulted = true;
        self
    }
}

pub(crate) fn operation_end(second: i64, before: &str, after: &str) -> Event {
    let change = Change {
        before: Some(before.to_owned()),
        after: Some(after.to_owned()),
    };
    let end = OperationEnd {
        load_balancer: BALANCER.to_owned(),
        is_superseded: false,
        change: Some(change),
    };
    event(second, second, What::OperationEnded(end))
}

/// A request for the Lease of the election, which this holder renews at its begin.
pub(crate) struct Lease(i64, i64, LeaseRequest);

pub(crate) fn lease(holder: &str, begin: i64, end: i64) -> Lease {
    let request = LeaseRequest {
        lease: LEADER_LEASE.to_owned(),
        is_write: true,
        expected: None,
        outcome: Outcome::Done,
        version: None,
        holder: holder.to_owned(),
        renewed: Some(at(begin)),
    };
    Lease(begin, end, request)
}

impl Lease {
    pub(crate) fn reads(mut self, version: &str) -> Event {
        self.2.is_write = false;
        self.2.version = Some(version.to_owned());
        event(self.0, self.1, What::Lease(self.2))
    }

    pub(crate) fn replaces(mut self, expected: &str, version: &str) -> Event {
        self.2.expected = Some(expected.to_owned());
        self.2.version = Some(version.to_owned());
        event(self.0, self.1, What::Lease(self.2))
    }

    pub(crate) fn gets_a_refusal(mut self, expected: &str) -> Event {
        self.2.expected = Some(expected.to_owned());
        self.2.outcome = Outcome::Refused;
        event(self.0, self.1, What::Lease(self.2))
    }

    pub(crate) fn gets_no_answer(mut self, expected: &str) -> Event {
        self.2.expected = Some(expected.to_owned());
        self.2.outcome = Outcome::Unknown;
        event(self.0, self.1, What::Lease(self.2))
    }

    pub(crate) fn shared(mut self) -> Self {
        self.2.lease = SHARED_LEASE.to_owned();
        self
    }

    /// The same with the time of a clock that is ahead.
    pub(crate) fn by_clock_ahead(mut self, seconds: i64) -> Self {
        self.2.renewed = Some(at(self.0 + seconds));
        self
    }
}

pub(crate) fn frozen(controller: &str, begin: i64, end: i64) -> Event {
    event(begin, end, What::Frozen(controller.to_owned()))
}

/// A controller's clock is set, to be ahead by so many seconds.
pub(crate) fn clock_set(controller: &str, second: i64, ahead_seconds: i64) -> Event {
    let controller = controller.to_owned();
    event(
        second,
        second,
        What::ClockSet {
            controller,
            ahead_seconds,
        },
    )
}

pub(crate) fn stopped(begin: i64, end: i64) -> Event {
    event(begin, end, What::ApiServerStopped)
}

pub(crate) fn restored(begin: i64, end: i64, lost: &[&str]) -> Event {
    event(begin, end, What::Restored(entries(lost)))
}

/// A write of the ledger: these are `Down`, those with `~` before them given back.
pub(crate) fn ledger(begin: i64, end: i64, addresses: &[&str]) -> Event {
    let entry = |address: &&str| match address.strip_prefix('~') {
        Some(address) => (ledger_entry(BALANCER, "pool", address), Stage::Restored),
        None => (ledger_entry(BALANCER, "pool", address), Stage::Down),
    };
    event(begin, end, What::Ledger(addresses.iter().map(entry).collect()))
}

fn entries(addresses: &[&str]) -> BTreeSet<String> {
    let entry = |address: &&str| ledger_entry(BALANCER, "pool", address);
    addresses.iter().map(entry).collect()
}
