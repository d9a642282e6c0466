//! What holds pods that leave on their node, in words (ST-04).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::{MAX_BLOCKERS, MAX_MESSAGE_BYTES};
use crate::api::{BlockedPod, Blocker, BlockerReason, Evacuation, PodType};
use crate::rollout::{self, RolloutReason, progress};
use crate::snapshot::{BudgetFacts, PodFacts};

use super::evacuations::{foreign_finalizers, is_ending};

/// The end of a message that is cut.
const ELLIPSIS: &str = "…";

/// What keeps the pod on its node, if anything is known to.
pub fn blocker(
    pod: &PodFacts,
    evacuation: Option<&Evacuation>,
    budgets: &[BudgetFacts],
    node_is_ready: bool,
    now: Timestamp,
) -> Option<(BlockerReason, String)> {
    if let Some(until) = pod.terminating_until {
        return (now > until).then(|| (BlockerReason::Terminating, terminating(pod, node_is_ready)));
    }
    // Another one is created once it is gone.
    let kept_by = evacuation.filter(|one| is_ending(one)).map(foreign_finalizers);
    if let Some(finalizers) = kept_by.filter(|finalizers| !finalizers.is_empty()) {
        let message = format!("its Evacuation is being deleted; finalizers: {}", finalizers.join(", "));
        return Some((BlockerReason::EvictionFailed, bounded(message)));
    }
    // Pods of DaemonSets are deleted, whatever budgets say.
    let is_evicted = pod.pod_type != PodType::DaemonSet;
    let budgets: Vec<_> = budgets
        .iter()
        .filter(|budget| is_evicted && budget.is_about(pod))
        .collect();
    match budgets.as_slice() {
        [] => {}
        [budget] if budget.has_room_for(pod) => {}
        [budget] => {
            let mut message = format!("PodDisruptionBudget {} allows 0 disruptions", budget.name);
            if let Some(advice) = advice(pod, evacuation, budget) {
                message.push_str("; ");
                message.push_str(&advice);
            }
            return Some((BlockerReason::DisruptionBudget, bounded(message)));
        }
        several => {
            let mut names: Vec<_> = several.iter().map(|budget| budget.name.as_str()).collect();
            names.sort_unstable();
            let message = format!(
                "PodDisruptionBudgets {} select the same pod, which the Eviction API does not support",
                names.join(", ")
            );
            return Some((BlockerReason::MultipleDisruptionBudgets, bounded(message)));
        }
    }
    let status = evacuation?.status.as_ref()?;
    (status.failed_eviction_counter > 0).then(|| {
        let message = format!(
            "{} evictions failed; {}",
            status.failed_eviction_counter, status.message
        );
        (BlockerReason::EvictionFailed, bounded(message))
    })
}

/// What to do about a pod that a budget keeps because it needs all replicas, or what headgate does.
fn advice(pod: &PodFacts, evacuation: Option<&Evacuation>, budget: &BudgetFacts) -> Option<String> {
    let condition = evacuation.and_then(progress::condition);
    if let Some(condition) = condition.filter(|one| one.reason != RolloutReason::NotProtected.as_str()) {
        return Some(condition.message.clone());
    }
    // What a ReplicaSet belongs to is known once the evacuator has its turn.
    let is_asked = pod.owner.as_ref().is_some_and(|owner| owner.is_apps("ReplicaSet"));
    (budget.needs_all && !is_asked).then(|| rollout::advice(pod))
}

fn terminating(pod: &PodFacts, node_is_ready: bool) -> String {
    let mut message = "the pod is terminating for longer than its grace period".to_owned();
    if !node_is_ready {
        message.push_str("; its node is not ready");
    }
    if !pod.finalizers.is_empty() {
        message.push_str("; finalizers: ");
        message.push_str(&pod.finalizers.join(", "));
    }
    bounded(message)
}

/// Cuts a message of a status to its bound.
pub(super) fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES - ELLIPSIS.len()));
        message.push_str(ELLIPSIS);
    }
    message
}

/// The first blockers of a node by pod, and how many there are. One that was there before keeps its time.
pub fn listed(
    mut found: Vec<(BlockedPod, BlockerReason, String)>,
    previous: &[Blocker],
    now: Timestamp,
) -> (Vec<Blocker>, i32) {
    found.sort();
    let total = i32::try_from(found.len()).unwrap_or(i32::MAX);
    let listed = found
        .into_iter()
        .take(MAX_BLOCKERS)
        .map(|(pod_ref, reason, message)| {
            let before = previous
                .iter()
                .find(|before| before.pod_ref == pod_ref && before.reason == reason);
            let since = before.map_or(Time(now), |before| before.first_observed_time.clone());
            Blocker {
                pod_ref,
                reason,
                message,
                first_observed_time: since,
            }
        })
        .collect();
    (listed, total)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;
    use crate::api::EvacuationStatus;
    use crate::api::names::ROLLOUT_RESTARTED_CONDITION;
    use crate::drain_plan::{Labels, PodSelector};
    use crate::plan::evacuations::evacuation_of;
    use crate::snapshot::Owner;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn pod() -> PodFacts {
        PodFacts {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            labels: Labels::from([("app".to_owned(), "web".to_owned())]),
            ..PodFacts::default()
        }
    }

    fn budget(namespace: &str, name: &str, app: &str, allowed: i32) -> BudgetFacts {
        BudgetFacts {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: PodSelector::label("app", app),
            disruptions_allowed: allowed,
            ..BudgetFacts::default()
        }
    }

    #[test]
    fn budgets_block() {
        let now = NOW.parse().unwrap();
        let web = || budget("shop", "web", "web", 0);
        let of = |is_ready, is_pending| PodFacts {
            is_pending,
            is_ready,
            ..pod()
        };
        let (ready, unready, pending) = (of(true, false), of(false, false), of(false, true));
        let lets_unready_go = || BudgetFacts {
            lets_unready_go: true,
            ..web()
        };
        let one = Some("PodDisruptionBudget web allows 0 disruptions");
        let two = Some("PodDisruptionBudgets all, web select the same pod, which the Eviction API does not support");
        let both = || vec![lets_unready_go(), budget("shop", "all", "web", 3)];
        for (pod, budgets, expected) in [
            (&ready, vec![], None),
            (&ready, vec![budget("shop", "web", "web", 1)], None),
            (&ready, vec![budget("shop", "db", "db", 0)], None),
            (&ready, vec![budget("other", "web", "web", 0)], None),
            (&ready, vec![lets_unready_go()], one),
            (&ready, both(), two),
            (&unready, vec![web()], one),
            (&unready, vec![lets_unready_go()], None),
            (&unready, both(), two),
            (&pending, vec![web()], None),
            (&pending, both(), None),
        ] {
            let found = blocker(pod, None, &budgets, true, now).map(|(_, message)| message);
            assert_eq!(found.as_deref(), expected, "{pod:?} {budgets:?}");
        }
    }

    #[test]
    fn a_budget_that_keeps_a_pod_comes_with_what_to_do() {
        let replaced = |kind: &str| Owner {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
            ..Owner::default()
        };
        let decided = |reason: RolloutReason| Condition {
            type_: ROLLOUT_RESTARTED_CONDITION.to_owned(),
            reason: reason.as_str().to_owned(),
            message: "what the evacuator says".to_owned(),
            status: "False".to_owned(),
            last_transition_time: Time(NOW.parse().unwrap()),
            observed_generation: None,
        };
        let says = Some("what the evacuator says");
        let on_its_own = Some("nothing replaces the pod: let the budget allow a disruption, or delete the pod");
        for (needs_all, owner, condition, expected) in [
            (true, None, None, on_its_own),
            (false, None, None, None),
            // The evacuator has not had its turn.
            (true, Some("ReplicaSet"), None, None),
            (true, Some("ReplicaSet"), Some(RolloutReason::Paused), says),
            (true, Some("ReplicaSet"), Some(RolloutReason::NotProtected), None),
        ] {
            let mut pod = pod();
            pod.owner = owner.map(replaced);
            let mut evacuation = evacuation_of(&pod);
            evacuation.status = Some(EvacuationStatus {
                conditions: condition.map(decided).into_iter().collect(),
                ..EvacuationStatus::default()
            });
            let mut budget = budget("shop", "web", "web", 0);
            budget.needs_all = needs_all;
            let (_, message) = blocker(&pod, Some(&evacuation), &[budget], true, NOW.parse().unwrap()).unwrap();
            let advice = message
                .strip_prefix("PodDisruptionBudget web allows 0 disruptions")
                .unwrap();
            let advice = advice.strip_prefix("; ");
            assert_eq!(advice, expected, "{needs_all} {owner:?} {condition:?}");
        }
    }

    #[test]
    fn a_pod_that_does_not_end_is_shown_after_its_grace_period() {
        let now = NOW.parse().unwrap();
        let mut pod = pod();
        pod.terminating_until = Some(now);
        let budgets = [budget("shop", "web", "web", 0)];
        assert_eq!(blocker(&pod, None, &budgets, false, now), None);
        pod.terminating_until = Some("2026-01-01T00:59:59Z".parse().unwrap());
        pod.finalizers = vec!["example.com/backup".to_owned()];
        let (reason, message) = blocker(&pod, None, &[], false, now).unwrap();
        assert_eq!(reason, BlockerReason::Terminating);
        assert_eq!(
            message,
            "the pod is terminating for longer than its grace period; its node is not ready; \
             finalizers: example.com/backup"
        );
    }

    #[test]
    fn failed_evictions_are_shown_with_their_message() {
        let mut evacuation = evacuation_of(&pod());
        evacuation.status = Some(EvacuationStatus {
            failed_eviction_counter: 3,
            message: "the webhook does not answer".to_owned(),
            ..EvacuationStatus::default()
        });
        let found = |evacuation: &Evacuation| blocker(&pod(), Some(evacuation), &[], true, NOW.parse().unwrap());
        let (reason, message) = found(&evacuation).unwrap();
        assert_eq!(reason, BlockerReason::EvictionFailed);
        assert_eq!(message, "3 evictions failed; the webhook does not answer");
        evacuation.status = Some(EvacuationStatus::default());
        assert_eq!(found(&evacuation), None);
    }

    #[test]
    fn a_long_message_is_cut_to_its_bound() {
        for (text, expected) in [
            ("m".repeat(256), "m".repeat(256)),
            ("m".repeat(257), format!("{}…", "m".repeat(253))),
            ("é".repeat(200), format!("{}…", "é".repeat(126))),
        ] {
            assert_eq!(bounded(text), expected);
        }
    }

    #[test]
    fn the_list_is_bounded_and_keeps_times() {
        let now: Timestamp = NOW.parse().unwrap();
        let early: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let found = |n: usize| {
            let names = (0..n).rev().map(|n| BlockedPod {
                namespace: "shop".to_owned(),
                name: format!("web-{n}"),
                uid: String::new(),
            });
            let blocked = names.map(|pod| (pod, BlockerReason::DisruptionBudget, String::new()));
            blocked.collect::<Vec<_>>()
        };
        let (first, total) = listed(found(2), &[], early);
        assert_eq!((first.len(), total), (2, 2));
        let (second, total) = listed(found(9), &first, now);
        assert_eq!((second.len(), total), (5, 9));
        let times: Vec<_> = second.iter().map(|blocker| blocker.first_observed_time.0).collect();
        assert_eq!(times, [early, early, now, now, now]);
    }
}
