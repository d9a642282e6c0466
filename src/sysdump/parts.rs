//! What headgate's pods say: their state in named fields, their `/statusz`, their logs.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_core::telemetry::VERSION;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::archive::Part;
use super::logged;
use crate::api_error::api_error_text;
use crate::pods::{HeadgatePod, HeadgatePods};

/// Why a part is missing when the time is over.
const TOO_LATE: &str = "no answer before the time of the sysdump was over";
/// Pods whose logs are read.
pub(super) const MAX_LOGGED_PODS: usize = 30;
/// Agents whose status is read, beside all other pods.
const MAX_AGENTS: usize = 200;
/// Lines and bytes of one log.
const MAX_LOG_LINES: i64 = 10_000;
const MAX_LOG_BYTES: i64 = 2 * 1024 * 1024;
const MAX_STATUS_BYTES: usize = 1024 * 1024;
/// Requests at the same time.
const CONCURRENCY: usize = 16;
/// Time for one log.
const LOG_TIMEOUT: Duration = Duration::from_secs(15);

/// What is read by the deadline, or why it is not.
pub(super) async fn in_time<T>(deadline: Instant, read: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout_at(deadline, read)
        .await
        .unwrap_or_else(|_| Err(TOO_LATE.to_owned()))
}

/// The versions of this program and of the pods.
pub(super) fn versions(pods: Option<&HeadgatePods>) -> Value {
    let pods = pods.map(|pods| {
        let rows = pods.all.iter().map(|pod| {
            json!({"name": pod.name, "component": pod.component, "node": pod.node, "version": pod.version, "image": pod.image})
        });
        rows.collect::<Vec<_>>()
    });
    json!({"client": VERSION, "pods": pods})
}

/// The status of each pod, and the logs of the first ones.
pub(super) async fn of_pods(client: &Client, pods: &HeadgatePods, port: u16, deadline: Instant) -> Vec<Part> {
    let (agents, others): (Vec<_>, Vec<_>) = pods.all.iter().partition(|pod| pod.component == "agent");
    let asked: Vec<_> = others
        .into_iter()
        .chain(agents.iter().copied().take(MAX_AGENTS))
        .collect();
    let statuses = stream::iter(asked.iter().filter(|pod| pod.is_running && pod.component != "hold"))
        .map(|pod| status(pods, pod, port, deadline))
        .buffered(CONCURRENCY);
    let api = Api::<Pod>::namespaced(client.clone(), &pods.namespace);
    let requests = logged(&pods.all).into_iter().flat_map(|pod| {
        let containers = pod.containers.iter();
        containers.flat_map(move |container| [false, true].map(|previous| (pod, container, previous)))
    });
    let logs = stream::iter(requests.collect::<Vec<_>>())
        .map(|(pod, container, previous)| log(&api, pod, container, previous, deadline))
        .buffered(CONCURRENCY);
    let (mut parts, logs) = futures::join!(statuses.collect::<Vec<_>>(), logs.collect::<Vec<_>>());
    parts.extend(logs.into_iter().flatten());
    let left_out = agents.len().saturating_sub(MAX_AGENTS);
    if left_out > 0 {
        parts.push(Part::missing(
            "statusz of agents",
            format!("{left_out} more agents than the first {MAX_AGENTS}"),
        ));
    }
    parts
}

async fn status(pods: &HeadgatePods, pod: &HeadgatePod, port: u16, deadline: Instant) -> Part {
    let path = format!("statusz/{}.json", pod.name);
    let body = in_time(deadline, pods.get(&pod.name, port, "/statusz", MAX_STATUS_BYTES)).await;
    Part::read(path, body.map(|body| String::from_utf8_lossy(&body).into_owned()))
}

/// A log; `None` where there was no previous container.
async fn log(api: &Api<Pod>, pod: &HeadgatePod, container: &str, previous: bool, deadline: Instant) -> Option<Part> {
    let suffix = if previous { ".previous" } else { "" };
    let path = format!("logs/{}_{container}{suffix}.log", pod.name);
    let params = LogParams {
        container: Some(container.to_owned()),
        limit_bytes: Some(MAX_LOG_BYTES),
        previous,
        tail_lines: Some(MAX_LOG_LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let read = async {
        match api.logs(&pod.name, &params).await {
            Err(kube::Error::Api(status)) if previous && status.code == 400 => Ok(None),
            Err(error) => Err(api_error_text(&error)),
            Ok(text) => Ok(Some(text)),
        }
    };
    let text = in_time(deadline.min(Instant::now() + LOG_TIMEOUT), read).await;
    Some(Part::read(path, text.transpose()?))
}
