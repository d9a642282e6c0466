//! When PodDisruptionBudgets let another eviction succeed, as far as they show it; only the Eviction API decides.

use crate::snapshot::{BudgetFacts, PodFacts};

/// Whether no budget keeps the Eviction API from evicting a pod now: at most one is about it, and that one has room.
pub(super) fn have_room<'a>(budgets: impl IntoIterator<Item = &'a BudgetFacts>, pod: &PodFacts) -> bool {
    let mut about = budgets
        .into_iter()
        .filter(|budget| budget.selects(&pod.namespace, &pod.labels));
    match (about.next(), about.next()) {
        (None, _) => true,
        (Some(only), None) => only.disruptions_allowed > 0,
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::drain_plan::Labels;

    fn budget(selector: Value, allowed: Value) -> Option<BudgetFacts> {
        let mut budget = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {}, "status": {"currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1}});
        budget["spec"]["selector"] = selector;
        budget["status"]["disruptionsAllowed"] = allowed;
        BudgetFacts::read(&serde_json::from_value(budget).unwrap())
    }

    #[test]
    fn one_budget_with_room_lets_a_pod_go() {
        let pod = PodFacts {
            namespace: "shop".to_owned(),
            labels: Labels::from([("app".to_owned(), "web".to_owned())]),
            ..PodFacts::default()
        };
        let web = |allowed: i32| budget(json!({"matchLabels": {"app": "web"}}), json!(allowed));
        let other = budget(json!({"matchLabels": {"app": "db"}}), json!(0));
        // An empty selector is about every pod of the namespace, none at all about no pod.
        let every = budget(json!({}), json!(1));
        assert_eq!(budget(Value::Null, json!(0)), None);
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
}
