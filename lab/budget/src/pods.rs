//! What a Pod's specification says about its end, as plain data.
//!
//! The duration of a preStop hook is known for `sleep`, both kubelet's own action and the command; other commands are not
//! guessed.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// `terminationGracePeriodSeconds` where a Pod has none.
const DEFAULT_GRACE_SECONDS: i64 = 30;
/// A longer sleep means to wait for ever.
const MAX_SLEEP: Duration = Duration::from_hours(24);

/// How a Pod ends.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// The Pod's name.
    pub name: String,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Whether it is ready, so that it gets new connections.
    pub is_ready: bool,
    /// How long its preStop hook takes.
    pub pre_stop: PreStop,
    /// Whether its preStop hook fails the Pod's own health check.
    pub fails_health_check: bool,
    /// `terminationGracePeriodSeconds`.
    pub grace: Duration,
    /// Whether it is on the host's network.
    pub uses_host_network: bool,
}

/// The duration of a preStop hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreStop {
    /// There is no hook.
    None,
    /// It sleeps for this long.
    Sleep(Duration),
    /// It does something that may take any time.
    Unknown,
}

impl PodFacts {
    /// The facts of a Pod that serves on this port, a number or a container port's name; `None` if it has ended or ends.
    pub fn new(pod: &Pod, port: Option<&IntOrString>) -> Option<Self> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let serves = |container: &&Container| {
            let mut ports = container.ports.iter().flatten();
            ports.any(|known| match port {
                Some(IntOrString::Int(number)) => known.container_port == *number,
                Some(IntOrString::String(name)) => known.name.as_ref() == Some(name),
                None => false,
            })
        };
        let container = spec.containers.iter().find(serves).or_else(|| spec.containers.first());
        let (pre_stop, fails_health_check) = container.map_or((PreStop::None, false), pre_stop);
        let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let is_ready = |kind: &str, value: &str| kind == "Ready" && value == "True";
        Some(Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            node: spec.node_name.clone(),
            is_ready: conditions
                .into_iter()
                .flatten()
                .any(|condition| is_ready(&condition.type_, &condition.status)),
            pre_stop,
            fails_health_check,
            grace: Duration::from_secs(u64::try_from(grace).unwrap_or_default()),
            uses_host_network: spec.host_network == Some(true),
        })
    }

    /// How long it is known to go on serving once it terminates: its preStop sleep, which the grace period bounds.
    pub fn serving(&self) -> Duration {
        match self.pre_stop {
            PreStop::Sleep(sleep) => sleep.min(self.grace),
            PreStop::None | PreStop::Unknown => Duration::ZERO,
        }
    }
}

/// How long a container's preStop hook takes, and whether it fails the Pod's own health check.
fn pre_stop(container: &Container) -> (PreStop, bool) {
    let hook = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let Some(hook) = hook else {
        return (PreStop::None, false);
    };
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        return (PreStop::Sleep(Duration::from_secs(seconds)), false);
    }
    if let Some(exec) = &hook.exec {
        let command = exec.command.iter().flatten().map(String::as_str);
        let command = command.collect::<Vec<_>>().join(" ");
        return (slept(&command), command.contains("healthcheck/fail"));
    }
    let path = hook.http_get.as_ref().and_then(|get| get.path.as_deref());
    (
        PreStop::Unknown,
        path.is_some_and(|path| path.contains("healthcheck/fail")),
    )
}

/// The time that `sleep` takes in a shell command.
fn slept(command: &str) -> PreStop {
    let mut words = command
        .split(|c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')' | '"' | '\''))
        .filter(|word| !word.is_empty());
    let mut total = None;
    while let Some(word) = words.next() {
        if word == "sleep" || word.ends_with("/sleep") {
            match words.next().and_then(sleep_argument) {
                Some(time) => total = Some(total.unwrap_or(Duration::ZERO).saturating_add(time)),
                None => return PreStop::Unknown,
            }
        }
    }
    total.map_or(PreStop::Unknown, PreStop::Sleep)
}

fn sleep_argument(text: &str) -> Option<Duration> {
    let (number, unit) = match text.char_indices().next_back()? {
        (at, 's') => (&text[..at], 1.0),
        (at, 'm') => (&text[..at], 60.0),
        (at, 'h') => (&text[..at], 3600.0),
        _ => (text, 1.0),
    };
    let time = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()?;
    (time <= MAX_SLEEP).then_some(time)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(hook: &Value, grace: Option<u32>) -> PodFacts {
        let pod = json!({
            "metadata": {"name": "web-1"},
            "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": grace, "containers": [
                {"name": "sidecar", "ports": [{"containerPort": 9}]},
                {"name": "web", "ports": [{"name": "http", "containerPort": 8080}], "lifecycle": {"preStop": hook}},
            ]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let port = IntOrString::String("http".to_owned());
        PodFacts::new(&serde_json::from_value(pod).unwrap(), Some(&port)).unwrap()
    }

    #[test]
    fn the_sleep_of_the_serving_container_is_found() {
        let seconds = |seconds: u64| PreStop::Sleep(Duration::from_secs(seconds));
        let shell = |command: &str| json!({"exec": {"command": ["/bin/sh", "-c", command]}});
        for (hook, expected) in [
            (Value::Null, PreStop::None),
            (json!({"sleep": {"seconds": 20}}), seconds(20)),
            (shell("sleep 300"), seconds(300)),
            (json!({"exec": {"command": ["/usr/bin/sleep", "5m"]}}), seconds(300)),
            (shell("sleep 2h"), seconds(7200)),
            (
                shell("curl -X POST localhost:9901/healthcheck/fail && sleep 10; sleep 5s"),
                seconds(15),
            ),
            (shell("sleep $DELAY"), PreStop::Unknown),
            (shell("sleep infinity"), PreStop::Unknown),
            (shell("sleep 1e19"), PreStop::Unknown),
            (shell("nginx -s quit"), PreStop::Unknown),
            (json!({"httpGet": {"path": "/quit", "port": 80}}), PreStop::Unknown),
        ] {
            assert_eq!(facts(&hook, None).pre_stop, expected, "{hook}");
        }
        let failing = facts(&shell("curl -X POST localhost:9901/healthcheck/fail && sleep 10"), None);
        assert!(failing.fails_health_check && !facts(&shell("sleep 10"), None).fails_health_check);
    }

    #[test]
    fn the_grace_period_bounds_how_long_a_pod_serves() {
        let sleep = json!({"sleep": {"seconds": 300}});
        assert_eq!(facts(&sleep, None).serving(), Duration::from_secs(30), "the default");
        assert_eq!(facts(&sleep, Some(305)).serving(), Duration::from_mins(5));
        assert_eq!(facts(&Value::Null, Some(305)).serving(), Duration::ZERO);
    }

    #[test]
    fn pods_that_end_are_left_out() {
        for gone in [
            json!({"metadata": {"deletionTimestamp": "2026-11-22T10:00:00Z"}, "spec": {"containers": []}}),
            json!({"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Failed"}}),
        ] {
            assert_eq!(
                PodFacts::new(&serde_json::from_value(gone.clone()).unwrap(), None),
                None,
                "{gone}"
            );
        }
    }
}
