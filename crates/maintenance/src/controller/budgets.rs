//! When PodDisruptionBudgets let another eviction succeed, as far as they show it; only the Eviction API decides.

use crate::snapshot::{BudgetFacts, PodFacts};

/// Whether no budget keeps the Eviction API from evicting a pod now: at most one is about it, and that one has room.
pub(super) fn have_room<'a>(budgets: impl IntoIterator<Item = &'a BudgetFacts>, pod: &PodFacts) -> bool {
    let mut about = budgets.into_iter().filter(|budget| budget.is_about(pod));
    match (about.next(), about.next()) {
        (None, _) => true,
        (Some(only), None) => only.has_room_for(pod),
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::drain_plan::Labels;

    fn budget(selector: &Value, allowed: i32) -> Option<BudgetFacts> {
        let budget = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": selector},
            "status": {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": allowed}});
        BudgetFacts::read(&serde_json::from_value(budget).unwrap())
    }

    #[test]
    fn one_budget_with_room_lets_a_pod_go() {
        let pod = PodFacts {
            namespace: "shop".to_owned(),
            labels: Labels::from([("app".to_owned(), "web".to_owned())]),
            is_ready: true,
            ..PodFacts::default()
        };
        let web = |allowed: i32| budget(&json!({"matchLabels": {"app": "web"}}), allowed);
        let other = budget(&json!({"matchLabels": {"app": "db"}}), 0);
        // An empty selector is about every pod of the namespace, none at all about no pod.
        let every = budget(&json!({}), 1);
        assert_eq!(budget(&Value::Null, 0), None);
        for (budgets, has_room) in [
            (vec![], true),
            (vec![web(1)], true),
            (vec![web(0)], false),
            (vec![web(1), other], true),
            (vec![web(1), every], false),
        ] {
            let budgets: Vec<_> = budgets.into_iter().flatten().collect();
            assert_eq!(have_room(&budgets, &pod), has_room, "{budgets:?}");
        }
    }

    /// As the registry of evictions of kube-apiserver decides.
    #[test]
    fn a_pod_that_is_not_ready_may_go_where_it_takes_no_healthy_one_away() {
        let unready = PodFacts {
            namespace: "shop".to_owned(),
            ..PodFacts::default()
        };
        for (policy, healthy, desired, has_room) in [
            (None, 2, 2, true),
            (Some("IfHealthyBudget"), 2, 2, true),
            (None, 1, 2, false),
            (Some("AlwaysAllow"), 1, 2, true),
            (None, 0, 0, false),
        ] {
            let budget = json!({"metadata": {"namespace": "shop"}, "spec": {"selector": {}, "unhealthyPodEvictionPolicy": policy},
                "status": {"currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": 3, "disruptionsAllowed": 0}});
            let budget = BudgetFacts::read(&serde_json::from_value(budget).unwrap());
            assert_eq!(have_room(&budget, &unready), has_room, "{policy:?} {healthy} {desired}");
        }
    }
}
