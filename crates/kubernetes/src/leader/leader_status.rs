//! Who leads, as the Lease shows it to an operator. Pure.
//!
//! Whether the holder is alive follows from the times in the Lease and this machine's clock. That is good enough to show,
//! not to act on.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Deserialize, Serialize};

use super::election_record::ElectionRecord;

/// The holder of the election's Lease, or its last term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// The identity of the holder; `None` if the Lease is released.
    pub holder: Option<String>,
    /// The start of its term, by the holder's clock.
    pub since: Option<Timestamp>,
    /// The last renewal, by the clock of the holder then.
    pub renewed: Option<Timestamp>,
    /// Whether the last renewal is younger than the duration of the Lease, by this machine's clock.
    pub alive: bool,
    /// The number of the term.
    pub term: i32,
    /// The number of candidates that a leader published last.
    pub candidates: Option<u32>,
}

impl LeaderStatus {
    /// The status that the Lease shows at `now`.
    pub fn from_lease(lease: &Lease, now: Timestamp) -> Self {
        let ElectionRecord { lease, candidates, .. } = ElectionRecord::from_lease(lease);
        let is_held = !lease.is_released();
        let duration = SignedDuration::from_secs(lease.duration_seconds.max(0).into());
        let is_young = |renewed| now.duration_since(renewed) < duration;
        Self {
            alive: is_held && lease.renewed.is_some_and(is_young),
            since: lease.acquired.filter(|_| is_held),
            renewed: lease.renewed,
            term: lease.transitions,
            candidates,
            holder: is_held.then_some(lease.holder),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::election_record::CANDIDATES_ANNOTATION;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(spec: &Value) -> Lease {
        serde_json::from_value(json!({"metadata": {"annotations": {CANDIDATES_ANNOTATION: " 3 "}}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn a_holder_is_alive_while_it_renews() {
        let held = lease(
            &json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "1970-01-01T00:00:10.000000Z", "renewTime": "1970-01-01T00:01:40.000000Z"}),
        );
        for (now, alive) in [(100, true), (114, true), (115, false), (50, true)] {
            let leader = LeaderStatus::from_lease(&held, at(now));
            assert_eq!(leader.alive, alive, "{now}");
            assert_eq!((leader.since, leader.term), (Some(at(10)), 4));
            assert_eq!(leader.candidates, Some(3));
        }
    }

    #[test]
    fn a_released_lease_has_no_holder() {
        for spec in [
            json!({"holderIdentity": "", "renewTime": "1970-01-01T00:01:40.000000Z", "leaseDurationSeconds": 1,
                "acquireTime": "1970-01-01T00:01:40.000000Z"}),
            json!({}),
            json!({"holderIdentity": null, "leaseDurationSeconds": -1}),
        ] {
            let leader = LeaderStatus::from_lease(&lease(&spec), at(100));
            let found = (leader.holder, leader.since, leader.alive);
            assert_eq!(found, (None, None, false), "{spec}");
        }
    }
}
