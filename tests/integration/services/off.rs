//! Which kinds of objects an agent lists: Services and EndpointSlices only if their health is served.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate::agent::{self, AgentParts, Role};
use headgate::config;
use headgate_core::clock::Clock;
use headgate_test_kubernetes::scratch;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;

use crate::harness::settings_file;

/// The paths that an agent in this mode requests within some seconds, from an API server that refuses everything.
async fn asked_for(mode: &str) -> BTreeSet<String> {
    let paths = Arc::new(Mutex::new(BTreeSet::new()));
    let asked = Arc::clone(&paths);
    let service = tower::service_fn(move |request: Request<Body>| {
        asked.lock().unwrap().insert(request.uri().path().to_owned());
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
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.stop().await.unwrap();
    paths.lock().unwrap().clone()
}

#[tokio::test]
async fn services_are_watched_only_where_their_health_is_served() {
    let nodes = "/api/v1/nodes".to_owned();
    assert_eq!(asked_for("Disabled").await, [nodes.clone()].into());
    let services = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"].map(ToOwned::to_owned);
    let all: BTreeSet<_> = services.into_iter().chain([nodes]).collect();
    assert_eq!(asked_for("Path").await, all);
    assert_eq!(asked_for("NodePorts").await, all);
}
