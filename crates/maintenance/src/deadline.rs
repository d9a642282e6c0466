//! Deadlines: when a node under maintenance is gone, and what that shortens. Pure.
//!
//! A deadline is `spec.deadline` of a maintenance that drains the node, or the time of a notice that is recorded on the Node, whichever is
//! earlier. Only a confirmation that is `Required` is waited for beyond it: the gate and the evacuators have at most half of what is left
//! each, and the order of the drain plan holds until half of the time has passed. Then all pods leave, with the time that is left to end.
//! Budgets hold nevertheless, so a node may stay: some minutes after its deadline load balancers and pods have their whole time again.

use std::time::Duration;

use headgate_core::node::Node;
use jiff::{SignedDuration, Timestamp};

use crate::api::NodeMaintenance;
use crate::automatic::is_deadline_guessed;
use crate::selection::selects;

/// What a pod has at least to end. With 0 the API server would forget it while its containers run.
const SHORTEST_GRACE_PERIOD: Duration = Duration::from_secs(1);
/// A node that is there so long after its deadline is not about to be gone: the deadline was wrong.
const MAX_OVERDUE: SignedDuration = SignedDuration::from_mins(5);

/// The deadlines of a node, of all maintenances that drain it and of its notice.
fn all_of_node<'a>(
    node: &Node,
    maintenances: impl IntoIterator<Item = &'a NodeMaintenance>,
) -> impl Iterator<Item = Timestamp> {
    let draining = maintenances.into_iter().filter(|one| drains(one, node));
    draining.filter_map(at).chain(node.eviction_deadline())
}

/// When a node is expected to be gone.
pub fn of_node<'a>(node: &Node, maintenances: impl IntoIterator<Item = &'a NodeMaintenance>) -> Option<Timestamp> {
    all_of_node(node, maintenances).min()
}

/// The same without times that are long over.
pub(crate) fn pending_for_node<'a>(
    node: &Node,
    maintenances: impl IntoIterator<Item = &'a NodeMaintenance>,
    now: Timestamp,
) -> Option<Timestamp> {
    all_of_node(node, maintenances).filter(|at| shortens(*at, now)).min()
}

/// The last of the times that are over.
pub(crate) fn over_for_node<'a>(
    node: &Node,
    maintenances: impl IntoIterator<Item = &'a NodeMaintenance>,
    now: Timestamp,
) -> Option<Timestamp> {
    all_of_node(node, maintenances).filter(|at| *at <= now).max()
}

/// Whether a deadline shortens a wait that begins then: it was not long over.
pub(crate) fn shortens(deadline: Timestamp, begun: Timestamp) -> bool {
    begun.duration_since(deadline) <= MAX_OVERDUE
}

/// [`pending_for_node`] by what somebody has announced. By a guess alone no pod loses its grace period.
pub(crate) fn announced_for_node<'a>(
    node: &Node,
    maintenances: impl IntoIterator<Item = &'a NodeMaintenance>,
    now: Timestamp,
) -> Option<Timestamp> {
    let announcing = maintenances.into_iter().filter(|one| !is_deadline_guessed(one));
    pending_for_node(node, announcing, now)
}

/// Whether all pods of the node leave at once: half of the time of a maintenance has passed.
pub(crate) fn hurries<'a>(
    node: &Node,
    maintenances: impl IntoIterator<Item = &'a NodeMaintenance>,
    now: Timestamp,
) -> bool {
    let mut draining = maintenances.into_iter().filter(|one| drains(one, node));
    draining.any(|one| hurries_from(one).is_some_and(|from| now >= from))
}

/// When half of the time of a maintenance with a deadline has passed.
pub(crate) fn hurries_from(maintenance: &NodeMaintenance) -> Option<Timestamp> {
    let created = maintenance.metadata.creation_timestamp.as_ref()?.0;
    Some(half(created, at(maintenance)?))
}

/// When the turns of evacuators end: half of the time since the creation of the Evacuation has passed, or only the pod's grace period is
/// left, whichever is later.
pub fn turns_end(created: Timestamp, grace_period: SignedDuration, deadline: Timestamp) -> Timestamp {
    let latest = deadline.checked_sub(grace_period).unwrap_or(Timestamp::MIN);
    half(created, deadline).max(latest)
}

/// The grace period that a pod gets in the place of its own, in seconds, where less than that is left.
pub(crate) fn cut_grace_period(own: SignedDuration, deadline: Option<Timestamp>, now: Timestamp) -> Option<u32> {
    let left = Duration::try_from(deadline?.duration_since(now))
        .unwrap_or_default()
        .max(SHORTEST_GRACE_PERIOD);
    let is_shorter = SignedDuration::try_from(left).is_ok_and(|left| left < own);
    u32::try_from(left.as_secs()).ok().filter(|_| is_shorter)
}

fn at(maintenance: &NodeMaintenance) -> Option<Timestamp> {
    maintenance.spec.deadline.as_ref().map(|deadline| deadline.0)
}

/// Whether it drains the node, and has a deadline.
fn drains(maintenance: &NodeMaintenance, node: &Node) -> bool {
    let spec = &maintenance.spec;
    spec.deadline.is_some() && maintenance.is_draining() && selects(&spec.node_selector, &node.name, &node.labels)
}

/// The middle between two times; the first one where it is the later.
fn half(from: Timestamp, to: Timestamp) -> Timestamp {
    let time = to.duration_since(from).max(SignedDuration::ZERO);
    from.checked_add(time / 2).unwrap_or(to)
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{DRAINING_TAINT, RecordedNotice, Taint};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::api::names::AUTOMATIC_LABEL;
    use crate::api::{NodeMaintenanceSpec, Stage};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn maintenance(stage: Stage, created: i64, deadline: Option<i64>) -> NodeMaintenance {
        let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["one"]}]});
        let mut spec: NodeMaintenanceSpec =
            serde_json::from_value(json!({"nodeSelector": {"nodeSelectorTerms": [term]}, "stage": stage})).unwrap();
        spec.deadline = deadline.map(|second| Time(at(second)));
        let mut object = NodeMaintenance::new("m", spec);
        object.metadata.creation_timestamp = Some(Time(at(created)));
        object
    }

    fn node(name: &str, notice: Option<i64>) -> Node {
        Node {
            name: name.to_owned(),
            taints: vec![Taint::new(DRAINING_TAINT, "NoSchedule")],
            notice: notice.map(|second| RecordedNotice {
                is_tainted: true,
                not_before: Some(at(second)),
                ..RecordedNotice::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn the_earliest_deadline_of_a_drain_counts() {
        let drain = |deadline| maintenance(Stage::Drain, 0, deadline);
        let mut dry_run = drain(Some(5));
        dry_run.spec.dry_run = true;
        let mut deleted = drain(Some(5));
        deleted.metadata.deletion_timestamp = Some(Time(at(1)));
        for (node, maintenances, expected) in [
            (node("one", None), vec![], None),
            (node("one", None), vec![drain(None)], None),
            (node("one", Some(30)), vec![drain(None)], Some(30)),
            (node("one", None), vec![drain(Some(60)), drain(Some(40))], Some(40)),
            (node("one", Some(30)), vec![drain(Some(60))], Some(30)),
            (node("two", None), vec![drain(Some(60))], None),
            (node("one", None), vec![maintenance(Stage::Cordon, 0, Some(60))], None),
            (node("one", None), vec![dry_run, deleted], None),
        ] {
            let found = of_node(&node, &maintenances);
            assert_eq!(found, expected.map(at), "{node:?} {maintenances:?}");
        }
    }

    #[test]
    fn a_guess_announces_nothing() {
        for (label, expected) in [
            (None, Some(60)),
            (Some("preempt"), Some(60)),
            (Some("shutdown"), Some(60)),
            (Some("autoscaler"), None),
            (Some("machine"), None),
        ] {
            let mut one = maintenance(Stage::Drain, 0, Some(60));
            one.metadata.labels = label.map(|label| [(AUTOMATIC_LABEL.to_owned(), label.to_owned())].into());
            assert_eq!(of_node(&node("one", None), [&one]), Some(at(60)), "{label:?}");
            let announced = |notice, now| announced_for_node(&node("one", notice), [&one], at(now));
            assert_eq!(announced(None, 360), expected.map(at), "{label:?}");
            assert_eq!(announced(Some(30), 330), Some(at(30)), "{label:?}");
            // What is long over hides nothing that was announced later.
            assert_eq!(announced(None, 361), None, "{label:?}");
            assert_eq!(announced(Some(390), 361), Some(at(390)), "{label:?}");
        }
    }

    #[test]
    fn pods_leave_at_once_after_half_of_the_time() {
        for (created, deadline, now, expected) in [
            (0, Some(30), 14, false),
            (0, Some(30), 15, true),
            (0, Some(30), 99, true),
            (40, Some(30), 40, true),
            (0, None, 99, false),
        ] {
            let maintenance = maintenance(Stage::Drain, created, deadline);
            let hurries = |name| hurries(&node(name, None), [&maintenance], at(now));
            assert_eq!(hurries("one"), expected, "{created} {now}");
            assert!(!hurries("two"));
        }
    }

    #[test]
    fn evacuators_have_half_of_the_time_or_all_but_the_grace_period() {
        for (created, grace, deadline, expected) in
            [(0, 30, 30, 15), (0, 30, 600, 570), (0, 600, 100, 50), (50, 5, 20, 50)]
        {
            let ends = turns_end(at(created), SignedDuration::from_secs(grace), at(deadline));
            assert_eq!(ends, at(expected), "{created} {grace} {deadline}");
        }
    }

    #[test]
    fn a_grace_period_is_cut_to_what_is_left() {
        for (own, left, expected) in [
            (30, Some(31), None),
            (30, Some(30), None),
            (30, Some(12), Some(12)),
            (30, Some(0), Some(1)),
            (30, Some(-300), Some(1)),
            (1, Some(0), None),
            (0, Some(0), None),
            (30, None, None),
        ] {
            let deadline = left.map(|left| at(1_000 + left));
            let cut = cut_grace_period(SignedDuration::from_secs(own), deadline, at(1_000));
            assert_eq!(cut, expected, "{own} {left:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_lasts_longer_than_the_deadline(
            own in 0..100_000_i64, created in 0..100_000_i64, deadline in 0..200_000_i64, now in 0..300_000_i64
        ) {
            let own = SignedDuration::from_secs(own);
            if let Some(grace) = cut_grace_period(own, Some(at(deadline)), at(now)) {
                let (grace, left) = (i64::from(grace), (deadline - now).max(1));
                prop_assert!(grace >= 1 && grace <= left && grace < own.as_secs());
            } else {
                prop_assert!(own.as_secs() <= (deadline - now).max(1));
            }
            let ends = turns_end(at(created), own, at(deadline));
            prop_assert!(ends >= at(created.min(deadline)) && ends <= at(deadline.max(created)));
            let maintenance = maintenance(Stage::Drain, created, Some(deadline));
            let from = hurries_from(&maintenance).unwrap();
            prop_assert!(from >= at(created) && from <= at(deadline.max(created)));
        }
    }
}
