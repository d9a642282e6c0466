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
    for (what, count, max) in [
        ("statusz of agents", agents.len(), MAX_AGENTS),
        ("logs", pods.all.len(), MAX_LOGGED_PODS),
    ] {
        let left_out = count.saturating_sub(max);
        if left_out > 0 {
            parts.push(Part::missing(
                what,
                format!("{left_out} more pods than the first {max}"),
            ));
        }
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
    let text = text.transpose()?;
    let length = text.as_ref().map_or(0, String::len);
    // Of the last lines the API server sends the first bytes.
    let is_cut = i64::try_from(length).is_ok_and(|length| length >= MAX_LOG_BYTES);
    let lacks =
        is_cut.then(|| format!("its newest lines, after {MAX_LOG_BYTES} bytes of its last {MAX_LOG_LINES} lines"));
    Some(Part::read(path, text).cut(lacks))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::{Request, Response};
    use kube::client::Body;

    use super::super::Bundle;
    use super::*;

    #[tokio::test]
    async fn pods_and_logs_beyond_the_limits_are_missing() {
        let service = tower::service_fn(|request: Request<Body>| {
            let pod = |number| json!({"metadata": {"name": format!("p-{number:02}")}, "spec": {"containers": [{"name": "c"}]}});
            let body = match request.uri().path() {
                "/api/v1/namespaces/headgate/pods" => {
                    json!({"items": (0..=30).map(pod).collect::<Vec<_>>()}).to_string()
                }
                "/api/v1/namespaces/headgate/pods/p-07/log" => "x".repeat(2 * 1024 * 1024),
                _ => "short".to_owned(),
            };
            async move { Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes()))) }
        });
        let client = Client::new(service, "default");
        let pods = HeadgatePods::list(&client, "headgate", None, None).await.unwrap();
        let mut bundle = Bundle::default();
        for part in of_pods(&client, &pods, 1, Instant::now() + Duration::from_secs(10)).await {
            bundle.add(part);
        }
        assert_eq!(bundle.files(), 60, "of each log that of the previous container, too");
        let missing: Vec<_> = bundle.missing().iter().map(|(what, _)| what.as_str()).collect();
        assert_eq!(missing, ["logs/p-07_c.log", "logs/p-07_c.previous.log", "logs"]);
    }
}
