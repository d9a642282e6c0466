//! How the controller of a Service's Pods replaces them: how many are away at once, and how many come in addition.
//!
//! The numbers are those that the controllers of Kubernetes compute, with their rounding and their minimum.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

/// How a controller replaces Pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// The kind and name of the controller, such as `DaemonSet envoy`.
    pub controller: String,
    /// Pods that may be away at once. With `max_surge` 0 too, the controller replaces no Pod by itself.
    pub max_unavailable: u32,
    /// Pods that may be there in addition.
    pub max_surge: u32,
}

impl Rollout {
    /// That of a Deployment; `Recreate` has all Pods away at once.
    pub fn of_deployment(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let replicas = count(spec.and_then(|spec| spec.replicas));
        let strategy = spec.and_then(|spec| spec.strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let quarter = IntOrString::String("25%".to_owned());
        let surge = rolling
            .and_then(|rolling| rolling.max_surge.as_ref())
            .unwrap_or(&quarter);
        let away = rolling
            .and_then(|rolling| rolling.max_unavailable.as_ref())
            .unwrap_or(&quarter);
        let is_recreated = strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("Recreate"));
        let (max_unavailable, max_surge) = if is_recreated {
            (replicas, 0)
        } else {
            at_least_one(
                resolved(away, replicas, Round::Down),
                resolved(surge, replicas, Round::Up),
            )
        };
        Self {
            controller: named("Deployment", deployment.metadata.name.as_ref()),
            max_unavailable,
            max_surge,
        }
    }

    /// That of a `DaemonSet` with this many Pods, where its status does not say; with `OnDelete` nothing is replaced by
    /// itself.
    pub fn of_daemon_set(set: &DaemonSet, pods: u32) -> Self {
        let scheduled = set.status.as_ref().map(|status| status.desired_number_scheduled);
        let scheduled = scheduled.and_then(|count| u32::try_from(count).ok());
        let pods = scheduled.filter(|count| *count > 0).unwrap_or(pods);
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let (one, none) = (IntOrString::Int(1), IntOrString::Int(0));
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref()).unwrap_or(&none);
        let away = rolling
            .and_then(|rolling| rolling.max_unavailable.as_ref())
            .unwrap_or(&one);
        let (max_unavailable, max_surge) = if is_on_delete(strategy.and_then(|strategy| strategy.type_.as_deref())) {
            (0, 0)
        } else {
            // Unlike a Deployment's, both percentages are rounded up.
            at_least_one(resolved(away, pods, Round::Up), resolved(surge, pods, Round::Up))
        };
        Self {
            controller: named("DaemonSet", set.metadata.name.as_ref()),
            max_unavailable,
            max_surge,
        }
    }

    /// That of a `StatefulSet`: no Pod comes in addition, because each has a name of its own. `maxUnavailable` is beta, and
    /// missing where the API server drops it; `OnDelete` and a `partition` above all Pods replace nothing.
    pub fn of_stateful_set(set: &StatefulSet) -> Self {
        let spec = set.spec.as_ref();
        let replicas = count(spec.and_then(|spec| spec.replicas));
        let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let away = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let away = away.map_or(1, |away| resolved(away, replicas, Round::Up).max(1));
        let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or_default();
        let replaced = replicas.saturating_sub(u32::try_from(partition).unwrap_or_default());
        let max_unavailable = if is_on_delete(strategy.and_then(|strategy| strategy.type_.as_deref())) {
            0
        } else {
            away.min(replaced)
        };
        Self {
            controller: named("StatefulSet", set.metadata.name.as_ref()),
            max_unavailable,
            max_surge: 0,
        }
    }

    /// That of a `ReplicaSet` without a Deployment: a change of its template replaces nothing.
    pub fn of_replica_set(name: &str) -> Self {
        Self {
            controller: format!("ReplicaSet {name}"),
            max_unavailable: 0,
            max_surge: 0,
        }
    }

    /// What to change about it, for a Service whose connections this many nodes share.
    pub(super) fn advice(&self, nodes: u32, uses_host_network: bool) -> Vec<String> {
        let mut advice = Vec::new();
        if self.max_unavailable == 0 && self.max_surge == 0 {
            advice.push(format!(
                "{} replaces no Pod by itself. The figures are those of Pods that are deleted one after another.",
                self.controller
            ));
        }
        if self.max_unavailable > 1 {
            advice.push(format!(
                "{} replaces up to {} Pods at once: the share of lost connections is up to {:.1} % and not that of one node. \
                 Set maxUnavailable: 1.",
                self.controller,
                self.max_unavailable,
                (f64::from(self.max_unavailable) / f64::from(nodes.max(1))).min(1.0) * 100.0,
            ));
        }
        if self.max_surge > 0 && uses_host_network {
            advice.push(format!(
                "{} may start a Pod beside the old one (maxSurge {}), but two Pods with the same ports do not fit on one node's \
                 network. Set maxUnavailable: 1 and maxSurge: 0.",
                self.controller, self.max_surge,
            ));
        }
        advice
    }
}

fn named(kind: &str, name: Option<&String>) -> String {
    format!("{kind} {}", name.map(String::as_str).unwrap_or_default())
}

/// The number of replicas; without one it is 1.
fn count(replicas: Option<i32>) -> u32 {
    u32::try_from(replicas.unwrap_or(1)).unwrap_or_default()
}

fn is_on_delete(kind: Option<&str>) -> bool {
    kind == Some("OnDelete")
}

/// Where both numbers are 0, controllers take one Pod away at a time.
const fn at_least_one(away: u32, surge: u32) -> (u32, u32) {
    if away == 0 && surge == 0 { (1, 0) } else { (away, surge) }
}

/// How a percentage of Pods becomes a number.
#[derive(Clone, Copy)]
enum Round {
    Up,
    Down,
}

fn resolved(value: &IntOrString, pods: u32, round: Round) -> u32 {
    match value {
        IntOrString::Int(count) => u32::try_from(*count).unwrap_or_default(),
        IntOrString::String(text) => {
            let percent: u64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let hundredths = percent.saturating_mul(u64::from(pods));
            let count = match round {
                Round::Up => hundredths.div_ceil(100),
                Round::Down => hundredths / 100,
            };
            u32::try_from(count).unwrap_or(u32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A strategy of a Deployment or `DaemonSet`.
    macro_rules! rolling {
        ($away:expr, $surge:expr) => {
            json!({"rollingUpdate": {"maxUnavailable": $away, "maxSurge": $surge}})
        };
    }

    fn numbers(rollout: &Rollout) -> (u32, u32) {
        (rollout.max_unavailable, rollout.max_surge)
    }

    fn daemon_set(strategy: &Value, status: &Value) -> Rollout {
        let object = json!({"metadata": {"name": "envoy"}, "status": status,
            "spec": {"updateStrategy": strategy, "selector": {}, "template": {}}});
        Rollout::of_daemon_set(&serde_json::from_value(object).unwrap(), 6)
    }

    fn stateful_set(replicas: &Value, strategy: &Value) -> Rollout {
        let object = json!({"metadata": {"name": "db"}, "spec": {"replicas": replicas, "updateStrategy": strategy,
            "serviceName": "db", "selector": {}, "template": {}}});
        Rollout::of_stateful_set(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn percentages_are_rounded_as_kubernetes_does() {
        let deployment = |strategy: &Value| {
            let object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 6, "strategy": strategy,
                "selector": {}, "template": {}}});
            let rollout = Rollout::of_deployment(&serde_json::from_value(object).unwrap());
            (rollout.max_unavailable, rollout.max_surge)
        };
        assert_eq!(deployment(&Value::Null), (1, 2), "25 % of 6, down and up");
        assert_eq!(deployment(&rolling!(0, "10%")), (0, 1));
        assert_eq!(deployment(&rolling!("10%", 0)), (1, 0), "at least one of them");
        assert_eq!(deployment(&json!({"type": "Recreate"})), (6, 0));
        let set = |strategy: &Value| daemon_set(strategy, &Value::Null);
        assert_eq!((set(&Value::Null).max_unavailable, set(&Value::Null).max_surge), (1, 0));
        assert_eq!(set(&json!({"type": "OnDelete"})).max_unavailable, 0);
        assert_eq!(set(&Value::Null).controller, "DaemonSet envoy");
    }

    #[test]
    fn a_daemon_set_rounds_up_and_counts_all_its_pods() {
        let set = |strategy: &Value, status: &Value| numbers(&daemon_set(strategy, status));
        assert_eq!(set(&rolling!("20%", 0), &Value::Null), (2, 0), "1.2 of 6 Pods");
        assert_eq!(set(&rolling!(0, "10%"), &Value::Null), (0, 1));
        let status = json!({"desiredNumberScheduled": 50, "currentNumberScheduled": 50, "numberMisscheduled": 0,
            "numberReady": 50});
        assert_eq!(set(&rolling!("10%", 0), &status), (5, 0), "not only the Service's Pods");
        let unknown = json!({"desiredNumberScheduled": 0, "currentNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
        assert_eq!(
            set(&rolling!("20%", 0), &unknown),
            (2, 0),
            "a status that says nothing yet"
        );
    }

    #[test]
    fn a_stateful_set_has_no_surge_and_one_pod_away_by_default() {
        let set = |replicas: u32, strategy: &Value| numbers(&stateful_set(&json!(replicas), strategy));
        let rolling = |fields: &Value| json!({"type": "RollingUpdate", "rollingUpdate": fields});
        for (replicas, strategy, away) in [
            (6, Value::Null, 1),
            (6, rolling(&json!({"partition": 0})), 1),
            (6, rolling(&json!({"maxUnavailable": 3})), 3),
            (6, rolling(&json!({"maxUnavailable": "20%"})), 2),
            (6, rolling(&json!({"maxUnavailable": "0%"})), 1),
            (6, rolling(&json!({"maxUnavailable": 3, "partition": 4})), 2),
            (6, rolling(&json!({"partition": 6})), 0),
            (6, rolling(&json!({"partition": 100})), 0),
            (2, rolling(&json!({"maxUnavailable": 3})), 2),
            (6, json!({"type": "OnDelete"}), 0),
        ] {
            assert_eq!(set(replicas, &strategy), (away, 0), "{replicas} {strategy}");
        }
        let without = stateful_set(&Value::Null, &Value::Null);
        assert_eq!(
            (numbers(&without), without.controller.as_str()),
            ((1, 0), "StatefulSet db")
        );
    }

    #[test]
    fn controllers_that_replace_nothing_by_themselves_are_named() {
        let bare = Rollout::of_replica_set("web");
        assert_eq!((numbers(&bare), bare.controller.as_str()), ((0, 0), "ReplicaSet web"));
        let on_delete = daemon_set(&json!({"type": "OnDelete"}), &Value::Null);
        for rollout in [bare, on_delete] {
            let advice = rollout.advice(6, true);
            assert_eq!(advice.len(), 1, "{advice:?}");
            assert!(advice[0].contains("replaces no Pod by itself"), "{advice:?}");
        }
        assert!(stateful_set(&json!(6), &Value::Null).advice(6, true).is_empty());
    }
}
