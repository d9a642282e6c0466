//! Who leads, as the Lease says. Pure.
//!
//! Whether the holder still lives is judged by its times and this machine's clock: good enough to show, not to act on.

use std::time::Duration;

use crate::record::CANDIDATES_ANNOTATION;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde::Serialize;

/// Who holds the leader's Lease, or held it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// The holder's name; none where it was given back.
    pub holder: Option<String>,
    /// Since when it leads.
    pub since: Option<Timestamp>,
    /// When it last said so.
    pub renewed: Option<Timestamp>,
    /// Whether that is recent enough, by this machine's clock.
    pub alive: bool,
    /// The number of its term.
    pub term: i32,
    /// How many candidates there are, as far as a leader has said.
    pub candidates: Option<u32>,
}

impl LeaderStatus {
    /// What the Lease says now.
    #[must_use]
    pub fn of(lease: &Lease, now: Timestamp) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        let renewed = spec.renew_time.map(|time| time.0);
        let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
        let lasts = SignedDuration::try_from(Duration::from_secs(seconds)).unwrap_or(SignedDuration::MAX);
        let candidates = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(CANDIDATES_ANNOTATION));
        Self {
            alive: holder.is_some() && renewed.is_some_and(|renewed| now.duration_since(renewed) < lasts),
            since: spec.acquire_time.map(|time| time.0).filter(|_| holder.is_some()),
            holder,
            renewed,
            term: spec.lease_transitions.unwrap_or_default(),
            candidates: candidates.and_then(|count| count.trim().parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(spec: &Value) -> Lease {
        serde_json::from_value(json!({"metadata": {"annotations": {CANDIDATES_ANNOTATION: " 3 "}}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn a_holder_lives_as_long_as_it_renews() {
        let held = lease(
            &json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "1970-01-01T00:00:10.000000Z", "renewTime": "1970-01-01T00:01:40.000000Z"}),
        );
        for (now, alive) in [(100, true), (114, true), (115, false), (50, true)] {
            let leader = LeaderStatus::from_lease(&held, at(now));
            assert_eq!(leader.alive, alive, "{now}");
            assert_eq!(
                (leader.since, leader.term, leader.candidates),
                (Some(at(10)), 4, Some(3))
            );
        }
    }

    #[test]
    fn a_lease_that_nobody_holds_names_nobody() {
        for spec in [
            json!({"holderIdentity": "", "renewTime": "1970-01-01T00:01:40.000000Z", "leaseDurationSeconds": 1,
                "acquireTime": "1970-01-01T00:01:40.000000Z"}),
            json!({}),
            json!({"holderIdentity": null, "leaseDurationSeconds": -1}),
        ] {
            let leader = LeaderStatus::from_lease(&lease(&spec), at(100));
            assert_eq!(
                (leader.holder, leader.since, leader.alive),
                (None, None, false),
                "{spec}"
            );
        }
    }
}
