//! What gates wait for in a cluster whose load balancers no leader reads: the condition `headgate.dev/OutOfLoadBalancers`, which each agent
//! writes on its own Node once its load balancers' probes have failed so often that they send no new connections
//! (`outOfLoadBalancers.failedProbes`). Pure.
//!
//! Invariant: a Node is out only while its condition says so and its agent has confirmed that within [`MarkerFact::ttl`], by this process's
//! clock since it observed the confirmation. Only for the first observation of a Node the age comes from the wall clock, so that a
//! new leader does not trust what no agent confirms any more.

use std::collections::{BTreeMap, HashMap};

use headgate_core::clock::{Moment, Observed, age_by_wall_clock, whole_seconds};
use headgate_core::node::{
    MARKER_LAST_SERVING, MARKER_NO_SIGNAL, MARKER_TTL, MarkerFact, MarkerStatus, NodeTraffic, TrafficByNode, Unproved,
};
use jiff::Timestamp;
use tokio::time::Instant;

/// The reason with which agents say that enough probes have failed.
const PROBES_FAILED: &str = "ProbesFailed";

/// When the confirmation of each Node's condition expires.
#[derive(Debug, Default)]
pub(super) struct ProbeMarkers {
    observed: HashMap<String, Observed<MarkerFact>>,
}

impl ProbeMarkers {
    /// What the conditions mean for gates, and when the next confirmation expires.
    pub(super) fn observe<'a>(
        &mut self,
        nodes: impl Iterator<Item = (&'a str, Option<&'a MarkerFact>)>,
        now: Moment,
    ) -> (TrafficByNode, Option<Instant>) {
        let mut before = std::mem::take(&mut self.observed);
        let (mut observations, mut next_expiry) = (BTreeMap::new(), None::<Instant>);
        for (node, marker) in nodes {
            let Some(marker) = marker else {
                observations.insert(node.to_owned(), unknown(NO_CONDITION.to_owned()));
                continue;
            };
            let mut observed = before.remove(node).unwrap_or_default();
            // Without a readable time, it counts as expired.
            let ttl = marker.ttl(MARKER_TTL);
            let age = |shown: &MarkerFact| shown.confirmed_at.map_or(ttl, |at| age_by_wall_clock(at, now));
            observed.observe(Some(marker.clone()), age, now);
            let expires_at = observed.expires_at(ttl).unwrap_or(now.mono);
            self.observed.insert(node.to_owned(), observed);
            let is_expired = expires_at <= now.mono;
            if !is_expired {
                next_expiry = Some(next_expiry.map_or(expires_at, |at| at.min(expires_at)));
            }
            observations.insert(node.to_owned(), observation(marker, is_expired, now.wall));
        }
        (observations, next_expiry)
    }
}

/// Why nothing is known of a Node without the condition.
const NO_CONDITION: &str = "the Node has no condition headgate.dev/OutOfLoadBalancers, which its agent writes with outOfLoadBalancers.failedProbes";

fn unknown(reason: String) -> NodeTraffic {
    NodeTraffic::Unknown(Unproved::NotConfirmed(reason))
}

fn observation(marker: &MarkerFact, is_expired: bool, now: Timestamp) -> NodeTraffic {
    let detail = |detail: &str| NodeTraffic::InService {
        detail: detail.to_owned(),
    };
    match (marker.status, marker.reason.as_str()) {
        (MarkerStatus::False, MARKER_NO_SIGNAL) => {
            detail("its agent has observed no signal, and answers probes with 200")
        }
        _ if is_expired => unknown(format!(
            "its agent has not confirmed the condition headgate.dev/OutOfLoadBalancers for {} s",
            marker.ttl(MARKER_TTL).as_secs()
        )),
        (MarkerStatus::True, PROBES_FAILED) => {
            let since = marker.since.unwrap_or(now);
            let since = Some(whole_seconds(since));
            NodeTraffic::Out { since }
        }
        (MarkerStatus::True, reason) => unknown(format!(
            "the condition headgate.dev/OutOfLoadBalancers has the reason {reason}, and not {PROBES_FAILED}"
        )),
        (MarkerStatus::False, MARKER_LAST_SERVING) => NodeTraffic::HeldBack {
            detail: marker.message.clone(),
        },
        (MarkerStatus::False, _) => detail(&marker.message),
        (MarkerStatus::Unknown, _) => unknown(marker.message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::clock::Clock;
    use headgate_core::node::MARKER_CONDITION;
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn marker(status: &str, reason: &str, confirmed_at: Timestamp) -> MarkerFact {
        let condition = json!({"type": MARKER_CONDITION, "status": status, "reason": reason,
            "message": "Not yet: 1 of 2", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": confirmed_at});
        MarkerFact::find(&[serde_json::from_value(condition).unwrap()], MARKER_CONDITION).unwrap()
    }

    fn after(start: Moment, seconds: u32) -> Moment {
        Moment {
            wall: start.wall + seconds * SECOND,
            mono: start.mono + seconds * SECOND,
        }
    }

    /// What a condition means that was confirmed just now.
    fn meaning(status: &str, reason: &str) -> NodeTraffic {
        let now = Clock::System.now();
        let marker = marker(status, reason, now.wall);
        let (found, _) = ProbeMarkers::default().observe([("one", Some(&marker))].into_iter(), now);
        found["one"].clone()
    }

    #[test]
    fn only_enough_failed_probes_mean_that_a_node_is_out() {
        let since = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(meaning("True", "ProbesFailed"), NodeTraffic::Out { since: Some(since) });
        for (status, reason, says) in [
            ("False", "ProbesNotFailed", "Not yet: 1 of 2"),
            ("False", "NoSignal", "observed no signal"),
        ] {
            let found = meaning(status, reason);
            assert!(
                matches!(&found, NodeTraffic::InService { detail } if detail.contains(says)),
                "{status} {reason}: {found:?}"
            );
        }
        let held = meaning("False", "LastServingNode");
        assert!(matches!(held, NodeTraffic::HeldBack { .. }), "{held:?}");
        for (status, reason) in [("True", "AdminStateDown"), ("Unknown", "NotConfirmed"), ("Maybe", "")] {
            let found = meaning(status, reason);
            assert!(matches!(found, NodeTraffic::Unknown(_)), "{status} {reason}: {found:?}");
        }
        let (found, next) = ProbeMarkers::default().observe([("one", None)].into_iter(), Clock::System.now());
        assert_eq!((found["one"].clone(), next), (unknown(NO_CONDITION.to_owned()), None));
    }

    #[test]
    fn a_confirmation_expires_by_the_own_clock() {
        let start = Clock::System.now();
        let mut markers = ProbeMarkers::default();
        let is_out = |markers: &mut ProbeMarkers, marker: &MarkerFact, seconds: u32| {
            let (found, next) = markers.observe([("one", Some(marker))].into_iter(), after(start, seconds));
            (matches!(found["one"], NodeTraffic::Out { since: Some(_) }), next)
        };
        let first = marker("True", "ProbesFailed", start.wall);
        assert_eq!(
            is_out(&mut markers, &first, 10),
            (true, Some(after(start, 180).mono)),
            "the first observation counts from the confirmation"
        );
        assert_eq!(is_out(&mut markers, &first, 179), (true, Some(after(start, 180).mono)));
        assert_eq!(is_out(&mut markers, &first, 180), (false, None));
        // The clock of the agent is an hour behind; what counts is that it wrote.
        let second = marker("True", "ProbesFailed", start.wall - 3600 * SECOND);
        assert_eq!(is_out(&mut markers, &second, 200), (true, Some(after(start, 380).mono)));
        assert_eq!(is_out(&mut markers, &second, 380), (false, None));
    }

    #[test]
    fn a_new_leader_trusts_no_old_condition() {
        let now = Clock::System.now();
        for (age, is_out) in [(0, true), (179, true), (180, false), (9999, false)] {
            let old = marker("True", "ProbesFailed", now.wall - age * SECOND);
            let (found, _) = ProbeMarkers::default().observe([("one", Some(&old))].into_iter(), now);
            assert_eq!(
                matches!(found["one"], NodeTraffic::Out { since: Some(_) }),
                is_out,
                "{age}"
            );
        }
    }
}
