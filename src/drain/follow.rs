//! Follows a `NodeMaintenance`: a watch in, lines of text out.
//!
//! Invariant: it writes nothing to the cluster. A watch that fails is started again; the drain goes on meanwhile, and afterwards.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use anyhow::anyhow;
use futures::{StreamExt as _, stream};
use headgate_core::node::CORDON_ANNOTATION;
use headgate_core::telemetry::error_chain;
use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::selection::selects;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::Error::InitialListFailed;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{self, Instant, sleep_until};

use super::progress::{Outcome, Progress, outcome};
use crate::failure::Failure;

/// How often time alone may give a line.
const TICK: Duration = Duration::from_secs(5);
/// Nodes that are read at the same time: thousands within a [`TICK`].
const MAX_CONCURRENT_READS: usize = 16;
/// A timeout that no drain reaches.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// How following ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Followed {
    /// How the drain ended.
    pub(crate) outcome: Outcome,
    /// The last state.
    pub(crate) last: Box<NodeMaintenance>,
}

fn goes_on(name: &str) -> String {
    format!(
        "The drain goes on: the same command again follows it, `headgate undrain` with the same nodes or labels, or \
         `kubectl delete hgnm {name}`, cancels it"
    )
}

/// Follows a maintenance to its end, without `timeout` however long. `line` gets each line; `interrupted` ends following, and not the drain.
/// One that `is_new` was created just now. What another one shows may be old: no controller has to run.
///
/// # Errors
/// When the time is over, the user interrupts, or may not watch the maintenance.
pub(crate) async fn follow(
    client: &Client,
    object: &NodeMaintenance,
    is_new: bool,
    timeout: Option<Duration>,
    interrupted: impl Future<Output = ()>,
    mut line: impl FnMut(&str),
) -> Result<Followed, Failure> {
    let name = object.name_any();
    let mut progress = Progress::new(object, Timestamp::now());
    let mut last = Box::new(object.clone());
    let api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    let mut states = pin!(watch_object(api, &name).default_backoff());
    let mut interrupted = pin!(interrupted);
    let deadline = Instant::now() + timeout.unwrap_or(FOREVER);
    let mut tick = Instant::now() + TICK;
    let mut reported_error = String::new();
    let mut was_read = false;
    let mut is_current = is_new;
    // A state that may be old, and what was printed about it.
    let (mut doubted, mut reported_doubt) = (None, String::new());
    loop {
        let state = tokio::select! {
            biased;
            () = &mut interrupted => return Err(Failure::interrupted(anyhow!("interrupted. {}", goes_on(&name)))),
            () = sleep_until(deadline) => {
                for text in progress.unfinished() {
                    line(&text);
                }
                let timeout = timeout.unwrap_or(FOREVER);
                return Err(Failure::runtime(anyhow!("not drained within {timeout:?}. {}", goes_on(&name))));
            }
            () = sleep_until(tick) => {
                tick = Instant::now() + TICK;
                for text in progress.remind(Timestamp::now()) {
                    line(&text);
                }
                let Some(state) = doubted.take() else { continue };
                Some(state)
            }
            state = states.next() => match state {
                Some(Ok(Some(Decoded::Undecodable(undecodable)))) => {
                    let error = undecodable.to_string();
                    if error != reported_error {
                        line(&format!("nodemaintenance/{error}"));
                    }
                    reported_error = error;
                    continue;
                }
                Some(Ok(state)) => {
                    was_read = true;
                    reported_error.clear();
                    state.and_then(|state| state.into_object().ok())
                }
                // Later it may pass: a kube-apiserver that starts does not know every role at once.
                Some(Err(InitialListFailed(kube::Error::Api(refusal)))) if !was_read && matches!(refusal.code, 401 | 403) => {
                    let error = anyhow!("NodeMaintenance {name} cannot be followed: {}. {}", refusal.message, goes_on(&name));
                    return Err(Failure::runtime(error));
                }
                Some(Err(error)) => {
                    let error = error_chain(&error);
                    if error != reported_error {
                        line(&format!("nodemaintenance/{name}: not watched, trying again: {error}"));
                    }
                    reported_error = error;
                    continue;
                }
                // The stream of a watch does not end.
                None => std::future::pending().await,
            },
        };
        doubted = None;
        if let Some(object) = state.as_ref().filter(|_| !is_current) {
            let doubt = time::timeout(TICK, doubt(client, object)).await;
            let doubt = doubt.unwrap_or_else(|_| Some(format!("nodemaintenance/{name}: its nodes are not read yet")));
            if let Some(doubt) = doubt {
                if doubt != reported_doubt {
                    line(&doubt);
                }
                (reported_doubt, doubted) = (doubt, state);
                continue;
            }
        }
        is_current = true;
        let (lines, outcome) = progress.update(state.as_ref(), Timestamp::now());
        for text in &lines {
            line(text);
        }
        last = state.map_or(last, Box::new);
        if let Some(outcome) = outcome {
            return Ok(Followed { outcome, last });
        }
    }
}

/// Why a state by which all nodes are drained may be old: one of them, or one that the selector matches by now, is not cordoned by a
/// maintenance any more. What may not be read gives no reason.
async fn doubt(client: &Client, object: &NodeMaintenance) -> Option<String> {
    if object.spec.dry_run || outcome(object) != Some(Outcome::Drained) {
        return None;
    }
    let api = Api::<Decoded<Node>>::all(client.clone());
    let nodes = object.status.iter().flat_map(|status| &status.node_statuses);
    let mut names: BTreeSet<_> = nodes.map(|node| node.node_ref.name.clone()).collect();
    let selector = &object.spec.node_selector;
    if let Ok(listed) = Api::<Node>::all(client.clone())
        .list_metadata(&ListParams::default())
        .await
    {
        let selected = listed.iter().map(|node| (node.name_any(), node.labels()));
        let selected = selected.filter(|(name, labels)| selects(selector, name, labels));
        names.extend(selected.map(|(name, _)| name));
    }
    let reads = names.into_iter().map(|name| {
        let api = api.clone();
        async move { (api.get_opt(&name).await, name) }
    });
    let mut reads = stream::iter(reads).buffered(MAX_CONCURRENT_READS);
    while let Some((node, name)) = reads.next().await {
        let Ok(Some(Decoded::Object(node))) = node else {
            continue;
        };
        let is_unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        if !is_unschedulable || !node.annotations().contains_key(CORDON_ANNOTATION) {
            let maintenance = object.name_any();
            return Some(format!(
                "nodemaintenance/{maintenance}: it was drained, and node/{name} is not cordoned any more; waiting for a controller"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use headgate_maintenance::api::{NodeMaintenanceSpec, Stage};
    use headgate_test_kubernetes::{FakeApi, Fault};
    use kube::api::PostParams;
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_who_may_never_follow_is_told_so_at_once() {
        let object = NodeMaintenance::new("m", NodeMaintenanceSpec::default());
        for (fault, expected) in [
            (Fault::Status(401), "NodeMaintenance m cannot be followed: "),
            (Fault::Status(403), "NodeMaintenance m cannot be followed: "),
            (Fault::Status(503), "not drained within 60s. "),
        ] {
            let (client, faults) = FakeApi::default().client();
            faults.set(fault);
            let timeout = Some(Duration::from_mins(1));
            let followed = follow(&client, &object, true, timeout, std::future::pending(), |_| {}).await;
            let error = followed.unwrap_err().error.to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(error.contains("The drain goes on: "), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_drained_before_counts_while_its_nodes_are_cordoned() {
        let cordon = |node: &mut Value| {
            node["spec"]["unschedulable"] = json!(true);
            node["metadata"]["annotations"] = json!({CORDON_ANNOTATION: "false"});
        };
        let at_once = "nodemaintenance/m drained, ";
        let doubted = "nodemaintenance/m: it was drained, and node/one is not cordoned any more";
        let known = || json!([{"nodeRef": {"name": "one"}}]);
        // Created again, or joined: no controller has seen it.
        let unknown = || json!([]);
        let by_label = json!({"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "pool", "operator": "In", "values": ["a"]}]}]});
        let of_another = json!({"nodeSelectorTerms": [{"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["two"]}]}]});
        for (is_new, is_unschedulable, has_annotation, statuses, selector, expected) in [
            (true, false, false, known(), &by_label, at_once),
            (false, true, true, known(), &by_label, at_once),
            (false, false, false, known(), &by_label, doubted),
            (false, true, false, known(), &by_label, doubted),
            (false, false, true, known(), &by_label, doubted),
            (false, false, true, known(), &of_another, doubted),
            (true, false, false, unknown(), &by_label, at_once),
            (false, true, true, unknown(), &by_label, at_once),
            (false, false, false, unknown(), &by_label, doubted),
            (false, false, false, unknown(), &of_another, at_once),
        ] {
            let fake = FakeApi::default();
            let (client, _) = fake.client();
            let node = json!({"metadata": {"name": "one", "labels": {"pool": "a"}}, "spec": {}});
            let nodes = Api::<Node>::all(client.clone());
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
            fake.change::<Node>("", "one", |node| {
                cordon(node);
                node["spec"]["unschedulable"] = json!(is_unschedulable);
                if !has_annotation {
                    node["metadata"]["annotations"] = json!({});
                }
            });
            let spec = NodeMaintenanceSpec {
                stage: Stage::Drain,
                node_selector: serde_json::from_value(selector.clone()).unwrap(),
                ..NodeMaintenanceSpec::default()
            };
            let all = Api::<NodeMaintenance>::all(client.clone());
            let object = NodeMaintenance::new("m", spec);
            let object = all.create(&PostParams::default(), &object).await.unwrap();
            fake.change::<NodeMaintenance>("", "m", |object| {
                object["status"] = json!({"observedGeneration": 9, "nodeStatuses": statuses,
                    "conditions": [{"type": "Drained", "status": "True", "reason": "Drained", "message": "",
                        "lastTransitionTime": "2026-01-02T03:00:00Z"}]});
            });
            let timeout = Some(Duration::from_mins(1));
            let never = std::future::pending::<()>;
            let mut lines = Vec::new();
            let line = |line: &str| lines.push(line.to_owned());
            let followed = follow(&client, &object, is_new, timeout, never(), line).await;
            assert_eq!(followed.is_ok(), expected == at_once, "{lines:?}");
            assert!(lines.iter().any(|line| line.starts_with(expected)), "{lines:?}");
            // A controller cordons it again, and has nothing to change in the status.
            let cordoned = async {
                sleep_until(Instant::now() + Duration::from_secs(7)).await;
                fake.change::<Node>("", "one", cordon);
            };
            let (followed, ()) = tokio::join!(follow(&client, &object, is_new, timeout, never(), |_| {}), cordoned);
            assert_eq!(followed.unwrap().outcome, Outcome::Drained);
        }
    }
}
