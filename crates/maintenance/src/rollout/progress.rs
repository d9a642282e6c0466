//! What the evacuator writes to the status of an Evacuation: its turn, the heartbeat, and the condition `RolloutRestarted`.
//!
//! While it waits it keeps its turn, with a progress timestamp that is renewed well before the deadline. Where it can do nothing it
//! completes its turn, and takes it back once it can: the last evacuator may do so, because only the Eviction API follows.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::names::{ROLLOUT_EVACUATOR, ROLLOUT_RESTARTED_CONDITION};
use crate::api::{Evacuation, EvacuationStatus};
use crate::plan::conditions::{Conditions, find};

use super::Decision;

/// The progress timestamp is renewed after this part of the deadline.
const HEARTBEATS: i64 = 3;
/// Characters of a condition's message.
const MAX_MESSAGE: usize = 1024;

/// Whether it is the evacuator's turn, or was the last one's and the pod is left to the Eviction API.
pub fn is_active(evacuation: &Evacuation) -> bool {
    let status = evacuation.status.as_ref();
    status.and_then(|status| status.active_evacuator_class.as_deref()) == Some(ROLLOUT_EVACUATOR)
}

/// The condition about the restart, once a decision was recorded.
pub fn condition(evacuation: &Evacuation) -> Option<&Condition> {
    find(&evacuation.status.as_ref()?.conditions, ROLLOUT_RESTARTED_CONDITION)
}

/// Whether the rollout was restarted for this Evacuation.
pub fn was_restarted(evacuation: &Evacuation) -> bool {
    condition(evacuation).is_some_and(|condition| condition.status == "True")
}

/// The status after a decision that restarts nothing, or `None` where the Evacuation has it already.
pub(crate) fn status_after(evacuation: &Evacuation, decision: &Decision, now: Timestamp) -> Option<EvacuationStatus> {
    let (explanation, completes) = match decision {
        Decision::Restart(_) => return None,
        Decision::Wait(explanation) => (explanation, false),
        Decision::NotOurs(explanation) => (explanation, true),
    };
    let before = evacuation.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.active_evacuator_completed = completes;
    if !completes || !before.active_evacuator_completed {
        // Later it is the Eviction API's.
        status.message.clone_from(&explanation.message);
    }
    if !completes && (before.active_evacuator_completed || needs_heartbeat(evacuation, &before, now)) {
        status.evacuation_progress_timestamp = Some(Time(now));
    }
    let message = explanation.message.chars().take(MAX_MESSAGE).collect();
    let (kind, reason) = (ROLLOUT_RESTARTED_CONDITION, explanation.reason.as_str());
    let mut conditions = Conditions::new(&before.conditions, evacuation.metadata.generation, now).keep_others();
    // `True` stays: a rollout is not restarted twice for an Evacuation.
    conditions.set(kind, explanation.is_restarted, reason, message);
    status.conditions = conditions.finish();
    (status != before).then_some(status)
}

fn needs_heartbeat(evacuation: &Evacuation, status: &EvacuationStatus, now: Timestamp) -> bool {
    let allowed = SignedDuration::from_secs(i64::from(evacuation.spec.progress_deadline_seconds) / HEARTBEATS);
    let last = status.evacuation_progress_timestamp.as_ref();
    last.is_none_or(|last| now.duration_since(last.0) >= allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{Explanation, RolloutReason};

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn evacuation() -> Evacuation {
        let mut evacuation = Evacuation::default();
        evacuation.spec.progress_deadline_seconds = 1800;
        evacuation.status = Some(EvacuationStatus {
            active_evacuator_class: Some(ROLLOUT_EVACUATOR.to_owned()),
            evacuation_progress_timestamp: Some(Time(NOW.parse().unwrap())),
            ..EvacuationStatus::default()
        });
        evacuation
    }

    fn explanation(message: &str, is_restarted: bool) -> Explanation {
        Explanation {
            reason: RolloutReason::InProgress,
            message: message.to_owned(),
            is_restarted,
        }
    }

    fn at(minutes: i64) -> Timestamp {
        NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn a_wait_keeps_the_turn_with_a_heartbeat() {
        let mut evacuation = evacuation();
        let wait = Decision::Wait(explanation("waits", true));
        let status = status_after(&evacuation, &wait, at(1)).unwrap();
        assert_eq!(status.message, "waits");
        assert_eq!(status.evacuation_progress_timestamp.clone().unwrap().0, at(0));
        evacuation.status = Some(status);
        assert!(is_active(&evacuation) && was_restarted(&evacuation));
        let mut of_another = evacuation.clone();
        of_another.status.as_mut().unwrap().active_evacuator_class = Some("app.example".to_owned());
        assert!(!is_active(&of_another));
        assert_eq!(status_after(&evacuation, &wait, at(9)), None, "nothing is new");
        let renewed = status_after(&evacuation, &wait, at(10)).unwrap();
        assert_eq!(renewed.evacuation_progress_timestamp.unwrap().0, at(10));
        assert_eq!(renewed.conditions[0].last_transition_time.0, at(1));
    }

    #[test]
    fn a_completed_turn_is_left_to_the_eviction_api_and_taken_back() {
        let mut evacuation = evacuation();
        let not_ours = Decision::NotOurs(explanation("not allowed", false));
        let mut status = status_after(&evacuation, &not_ours, at(1)).unwrap();
        assert!(status.active_evacuator_completed);
        assert_eq!(status.message, "not allowed");
        // The Eviction API has refused since.
        "429".clone_into(&mut status.message);
        evacuation.status = Some(status);
        assert!(!was_restarted(&evacuation));
        assert_eq!(status_after(&evacuation, &not_ours, at(2)), None);
        let taken_back = status_after(&evacuation, &Decision::Wait(explanation("waits", false)), at(3)).unwrap();
        assert!(!taken_back.active_evacuator_completed);
        assert_eq!(taken_back.evacuation_progress_timestamp.unwrap().0, at(3));
        assert_eq!(taken_back.message, "waits");
    }
}
