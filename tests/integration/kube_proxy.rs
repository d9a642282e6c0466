//! The real kube-proxy beside headgate: equal answers to equal requests, and kube-proxy's health as an input.
//!
//! kube-proxy writes iptables rules, so these run in a network namespace of their own, with etcd,
//! kube-apiserver and the agent beside it.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use headgate::config::Settings;
use headgate_agent::health::{ProxyStatus, poll_kube_proxy};
use headgate_core::clock::{Clock, Moment};
use headgate_http::server;
use headgate_test_kubernetes::{create_node, eventually, met, own_cluster, patch_node, set_taints};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::agent::Agent;
use crate::harness::http::{self, Response};
use crate::harness::{AgentOptions, SOON, in_network_namespace};

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The parts that must be equal: status, headers, and the body without times and headgate's additional fields.
fn comparable(answer: &Response) -> Value {
    let headers: Vec<_> = ["Content-Type", "X-Content-Type-Options"]
        .iter()
        .map(|name| {
            answer
                .headers
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        })
        .collect();
    let body = match serde_json::from_slice::<Value>(&answer.body) {
        Ok(mut body) => {
            if let Some(fields) = body.as_object_mut() {
                for added in ["signals", "source", "lastUpdated", "currentTime"] {
                    fields.remove(added);
                }
            }
            body
        }
        Err(_) => json!(String::from_utf8_lossy(&answer.body)),
    };
    let length = answer.header("content-length").is_some();
    json!({"status": answer.status_line, "headers": headers, "body": body, "length": length})
}

/// The names of a JSON object's fields, in their order.
fn fields(answer: &Response) -> Vec<String> {
    let text = answer.text();
    let depth_one = text
        .char_indices()
        .fold((0, Vec::new()), |(depth, mut starts), (index, c)| {
            match c {
                '{' => return (depth + 1, if depth == 0 { vec![index + 1] } else { starts }),
                '}' => return (depth - 1, starts),
                ',' if depth == 1 => starts.push(index + 1),
                _ => {}
            }
            (depth, starts)
        });
    let name = |start: usize| text[start..].split('"').nth(1).unwrap().to_owned();
    depth_one
        .1
        .into_iter()
        .map(name)
        .filter(|name| name != "signals" && name != "source")
        .collect()
}

async fn both_answer(agent: &Agent, proxy: SocketAddr, status: u16, what: &str) {
    eventually(SOON, what, async || {
        let ours = agent.healthz().await;
        let theirs = http::get(proxy, "/healthz").await.map_err(|error| error.to_string())?;
        if ours.status == status && theirs.status == status && comparable(&ours) == comparable(&theirs) {
            assert_eq!(fields(&ours), fields(&theirs), "the same fields in the same order");
            return Ok(());
        }
        Err(format!("ours {} theirs {}", ours.text(), theirs.text()))
    })
    .await;
}

/// Sends valid and invalid requests to both.
async fn same_requests(agent: &Agent, proxy: SocketAddr) {
    let request = |line: &str| format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
    for line in [
        "GET /healthz",
        "GET /livez",
        "POST /healthz",
        "PUT /livez",
        "DELETE /healthz",
        "OPTIONS /livez",
        "GET /healthz?verbose",
        "GET /",
        "GET /healthz/",
        "GET /HEALTHZ",
        "GET /metrics",
        "POST /nothing",
        "GET /livez/x",
        "GET /healthz%2f",
    ] {
        let ours = http::exchange(agent.healthz_address(), request(line).as_bytes())
            .await
            .unwrap();
        let theirs = http::exchange(proxy, request(line).as_bytes()).await.unwrap();
        assert_eq!(comparable(&ours), comparable(&theirs), "{line}");
    }
    for bytes in [
        &b"GET /healthz HTTP/1.1\r\n\r\n"[..],
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"garbage\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
    ] {
        let ours = http::exchange(agent.healthz_address(), bytes).await.unwrap();
        let theirs = http::exchange(proxy, bytes).await.unwrap();
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!(ours.status, theirs.status, "{shown}");
        let version = |answer: &Response| answer.status_line.split(' ').next().unwrap().to_owned();
        assert_eq!(version(&ours), version(&theirs), "{shown}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn headgate_and_kube_proxy_answer_alike() {
    in_network_namespace("kube_proxy::headgate_and_kube_proxy_answer_alike", async || {
        let (mut control_plane, client) = own_cluster().await;
        let node = create_node(&client, "beside").await;
        let proxy = control_plane.start_kube_proxy(&node).await.unwrap().healthz;
        let settings = format!("kubeProxyHealthzUrl: \"http://{proxy}\"\n");
        let agent = AgentOptions::new(&node, control_plane.kubeconfig())
            .settings(&settings)
            .start()
            .await;

        both_answer(&agent, proxy, 200, "an untainted node").await;
        same_requests(&agent, proxy).await;

        set_taints(&client, &node, json!([{"key": "other", "effect": "NoSchedule"}])).await;
        both_answer(&agent, proxy, 200, "another taint").await;
        set_taints(&client, &node, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
        both_answer(&agent, proxy, 503, "the autoscaler's taint").await;
        set_taints(&client, &node, json!(null)).await;
        both_answer(&agent, proxy, 200, "the taint gone").await;
        let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
        patch_node(&client, &node, held).await;
        Api::<Node>::all(client.clone())
            .delete(&node, &kube::api::DeleteParams::default())
            .await
            .unwrap();
        both_answer(&agent, proxy, 503, "a node being deleted").await;
        let livez = http::get(agent.healthz_address(), "/livez").await.unwrap();
        assert_eq!(livez.status, 200);

        // Families and their times are kube-proxy's own.
        let theirs = http::get(proxy, "/livez").await.unwrap().json();
        assert!(theirs["status"]["IPv4"]["lastUpdated"].is_string(), "{theirs}");
        eventually(SOON, "the same families", async || {
            let ours = http::get(agent.healthz_address(), "/livez").await.unwrap().json();
            let theirs = http::get(proxy, "/livez").await.unwrap().json();
            met(ours["status"] == theirs["status"], format!("{ours} {theirs}"))
        })
        .await;

        // kube-proxy stops answering; that counts after the health timeout.
        control_plane.stop_optional_components().await;
        eventually(Duration::from_secs(90), "/livez follows kube-proxy", async || {
            let answer = http::get(agent.healthz_address(), "/livez").await.unwrap();
            met(answer.status == 503, answer.text())
        })
        .await;
        assert_eq!(
            http::get(agent.metrics_address(), "/livez").await.unwrap().status,
            200,
            "restarting us cures nothing"
        );
        assert!(agent.log().contains("stopped answering"), "{}", agent.log());
        drop(agent);
        control_plane.stop().await;
    });
}

#[test]
#[ignore = "needs network namespaces"]
fn a_silently_dropped_watch_connection_is_detected() {
    in_network_namespace(
        "kube_proxy::a_silently_dropped_watch_connection_is_detected",
        async || {
            let (control_plane, client) = own_cluster().await;
            let node = create_node(&client, "silent").await;
            let agent = AgentOptions::new(&node, control_plane.kubeconfig()).start().await;
            let port = control_plane
                .server()
                .rsplit(':')
                .next()
                .unwrap()
                .trim_end_matches('/')
                .to_owned();
            let rule = |action: &str| {
                let status = Command::new("iptables")
                    .args(["-w", action, "INPUT", "-p", "tcp", "--dport", &port, "-j", "DROP"])
                    .status();
                assert!(status.unwrap().success());
            };
            let error = async || agent.statusz().await["node"]["watchError"].clone();
            assert_eq!(error().await, Value::Null);
            rule("-A");
            // A watch that is silent for another reason ends after five minutes; `headgate-kubernetes` tests the times.
            eventually(Duration::from_secs(200), "the loss is seen", async || {
                let error = error().await;
                met(error["reason"] == "connection", error)
            })
            .await;
            assert_eq!(agent.healthz().await.status, 200, "the last state goes on");
            rule("-D");
            set_taints(&client, &node, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
            agent
                .healthz_becomes(SOON, "what was missed is seen", |answer| answer.status == 503)
                .await;
            drop(agent);
            control_plane.stop().await;
        },
    );
}

/// A fake of kube-proxy before 1.28, which has no `/livez`.
#[tokio::test]
async fn kube_proxy_before_1_28_is_polled_at_healthz() {
    let old =
        r#"{"lastUpdated": "2020-06-03 23:59:53 +0000 UTC m=+202.6","currentTime": "2020-06-03 23:59:53 +0000 UTC"}"#;
    let code = watch::Sender::new(StatusCode::OK);
    let answers = code.subscribe();
    let polls = watch::Sender::new(0);
    let polled = polls.clone();
    let router = Router::new().route(
        "/healthz",
        any(move || {
            let code = *answers.borrow();
            polled.send_modify(|polls| *polls += 1);
            async move { (code, old) }
        }),
    );
    let listener = server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = server::Metrics::default();
    let serving = tokio::spawn(async move {
        server::serve(
            "old",
            listener,
            router,
            server::Limits::OPERATIONS,
            &metrics,
            CancellationToken::new(),
        )
        .await
    });
    let mut settings = Settings::default().kube_proxy;
    settings.healthz_authority = Some(address.to_string());
    settings.poll_interval = Duration::from_millis(100);
    let timeout = settings.health_timeout;
    let state = watch::Sender::new(ProxyStatus::new(timeout));
    let (mut status, seen) = (state.subscribe(), state.subscribe());
    let polling = tokio::spawn(poll_kube_proxy(settings, state, Clock::System));
    let mut becomes = async |healthy: bool| {
        let known =
            |status: &ProxyStatus| !status.parts().is_empty() && status.health(Clock::System.now()).healthy == healthy;
        tokio::time::timeout(SOON, status.wait_for(known))
            .await
            .unwrap()
            .unwrap();
    };
    becomes(true).await;
    code.send_replace(StatusCode::SERVICE_UNAVAILABLE);
    becomes(false).await;
    code.send_replace(StatusCode::OK);
    becomes(true).await;
    // Other codes count as no answer: not at once, and after the timeout. 404 is one of both paths then. The third poll from a change
    // shows that one with that code was read.
    for other in [StatusCode::BAD_GATEWAY, StatusCode::NOT_FOUND] {
        for answered in [StatusCode::OK, other] {
            code.send_replace(answered);
            let before = *polls.borrow();
            polls.subscribe().wait_for(|polls| *polls >= before + 3).await.unwrap();
            let now = Clock::System.now();
            let is_healthy = [Duration::ZERO, timeout].map(|later| {
                let mono = now.mono + later;
                seen.borrow().health(Moment { mono, ..now }).healthy
            });
            assert_eq!(is_healthy, [true, answered == StatusCode::OK], "{answered}");
        }
    }
    polling.abort();
    serving.abort();
}
