//! Which kinds of objects an agent lists: Services and EndpointSlices only if their health is served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate::agent::{self, AgentParts, Role};
use headgate::config;
use headgate_core::clock::Clock;
use headgate_test_kubernetes::{eventually, met, scratch};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;

use crate::harness::settings_file;

/// Waits until an agent in this mode has requested these paths of an API server that refuses everything, and checks that it requests no others.
async fn asks_for(mode: &str, expected: &BTreeSet<String>) {
    let paths = Arc::new(Mutex::new(BTreeMap::<String, usize>::new()));
    let asked = Arc::clone(&paths);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        *asked.lock().unwrap().entry(path).or_default() += 1;
        let mut response = Response::new(Body::from(b"{}".to_vec()));
        *response.status_mut() = hyper::StatusCode::FORBIDDEN;
        std::future::ready(Ok::<_, std::io::Error>(response))
    });
    let directory = scratch("watched");
    let file = directory.join("settings.yaml");
    let settings = format!(
        "kubeProxyHealthzUrl: Disabled\nhealthzBindAddress: 127.0.0.1:0\nserviceHealthChecks: {mode}\nmetricsBindAddress: 127.0.0.1:0\n"
    );
    std::fs::write(&file, settings_file(&settings)).unwrap();
    let running = agent::start(AgentParts {
        settings: config::Settings {
            state_dir: directory,
            ..config::load(Some(&file), &[]).unwrap()
        },
        role: Role::All,
        node_name: "n".to_owned(),
        pod_name: None,
        client: Client::new(service, "default"),
        clock: Clock::System,
        addresses_file: None,
    });
    let running = running.unwrap();
    // The second request of each is a retry: by then what begins beside it has asked for the first time.
    eventually(Duration::from_secs(30), mode, async || {
        let paths = paths.lock().unwrap();
        let is_retried = |path: &String| paths.get(path).is_some_and(|requests| *requests > 1);
        met(expected.iter().all(is_retried), format!("{paths:?}"))
    })
    .await;
    running.stop().await.unwrap();
    let found: BTreeSet<String> = paths.lock().unwrap().keys().cloned().collect();
    assert_eq!(found, *expected, "{mode}");
}

#[tokio::test]
async fn services_are_watched_only_where_their_health_is_served() {
    let nodes = "/api/v1/nodes".to_owned();
    asks_for("Disabled", &[nodes.clone()].into()).await;
    let services = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"].map(ToOwned::to_owned);
    let all: BTreeSet<_> = services.into_iter().chain([nodes]).collect();
    asks_for("Path", &all).await;
    asks_for("NodePorts", &all).await;
}
