//! The Azure emulator of a drill: ARM for the leader, and the instance metadata service for the agents.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use headgate_azure_emulator::{Options, Settings};
use headgate_http::client::PlainClient;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Method, Request};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{ClusterError, POLL_INTERVAL, REQUEST_TIMEOUT};
use crate::azure;
use crate::files::write;

/// Of requests of other clients than headgate.
const API_VERSION: &str = "2025-05-01";
/// How long the emulator may take to bind its addresses.
const EMULATOR_TIMEOUT: Duration = Duration::from_secs(10);
/// More than the pool of one load balancer takes.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// How Azure writes times in Scheduled Events.
const TIME_FORMAT: &str = "%a, %d %b %Y %H:%M:%S GMT";

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct EmulatorAddresses {
    pub(super) arm: SocketAddr,
    pub(super) control: SocketAddr,
}

impl EmulatorAddresses {
    /// Announces the eviction of a node's machine to all machines, as Azure does.
    pub(super) async fn announce_eviction(&self, node: usize, notice: Duration) -> Result<(), ClusterError> {
        let start = Timestamp::now() + notice;
        let event = json!({"EventType": "Preempt", "Resources": [azure::name(node)],
            "NotBefore": start.strftime(TIME_FORMAT).to_string()});
        self.put_scheduled_events(json!([event])).await
    }

    /// Takes all announcements back.
    pub(super) async fn clear_evictions(&self) -> Result<(), ClusterError> {
        self.put_scheduled_events(json!([])).await
    }

    async fn put_scheduled_events(&self, events: Value) -> Result<(), ClusterError> {
        let body = json!({"Events": events});
        self.send("Scheduled Events", Method::PUT, "scheduled-events", &body)
            .await
    }

    /// Lets operations take this long, those that are in progress as before.
    pub(super) async fn set_operation_delay(&self, delay: Duration) -> Result<(), ClusterError> {
        let body = json!({"operationDelay": format!("{}us", delay.as_micros())});
        self.send("settings", Method::PUT, "settings", &body).await
    }

    /// Replaces the fault rules. Rules that act a number of times begin anew.
    pub(super) async fn set_faults(&self, faults: &[Value]) -> Result<(), ClusterError> {
        self.send("faults", Method::DELETE, "faults", &Value::Null).await?;
        for fault in faults {
            self.send("faults", Method::POST, "faults", fault).await?;
        }
        Ok(())
    }

    /// Removes a machine's network interface, as the platform does with a machine that is deleted.
    pub(super) async fn delete_machine(&self, node: usize) -> Result<(), ClusterError> {
        let interface = azure::interface_id(node);
        self.arm(Method::DELETE, &interface, None).await.map(drop)
    }

    /// Brings it back into its pools.
    pub(super) async fn create_machine(&self, node: usize) -> Result<(), ClusterError> {
        let interface = azure::interface(node);
        let id = azure::interface_id(node);
        self.arm(Method::PUT, &id, Some(&interface)).await.map(drop)
    }

    /// Sends a request to ARM as another client of it; gives the body of the answer, null if it is empty.
    pub(super) async fn arm(&self, method: Method, id: &str, body: Option<&Value>) -> Result<Value, ClusterError> {
        let what = "a request to ARM";
        let token = Request::get(format!("http://{}/emulator/v1/token", self.control));
        let token = exchange(what, token, Bytes::new()).await?;
        let token = token["token"].as_str().unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{id}?api-version={API_VERSION}", self.arm))
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .header(CONTENT_TYPE, "application/json");
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        exchange(what, request, body).await
    }

    async fn send(&self, what: &'static str, method: Method, path: &str, body: &Value) -> Result<(), ClusterError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}/emulator/v1/{path}", self.control))
            .header(CONTENT_TYPE, "application/json");
        exchange(what, request, body.to_string().into()).await.map(drop)
    }
}

async fn exchange(what: &'static str, request: Builder, body: Bytes) -> Result<Value, ClusterError> {
    let failed = |answer: String| ClusterError::EmulatorRequest { what, answer };
    let request = request.body(body).map_err(|error| failed(error.to_string()))?;
    let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
    let answer = client
        .exchange(request)
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !answer.status().is_success() {
        let text = String::from_utf8_lossy(answer.body());
        return Err(failed(format!("{} {text}", answer.status())));
    }
    Ok(serde_json::from_slice(answer.body()).unwrap_or_default())
}

/// Runs the emulator as a task of this process.
pub(super) async fn start(
    seed: &Value,
    settings: &Settings,
    directory: &Path,
    tasks: &mut JoinSet<()>,
) -> Result<EmulatorAddresses, ClusterError> {
    let [seed_file, bound] = ["seed.json", "addresses.json"].map(|name| directory.join("azure").join(name));
    write(&seed_file, &seed.to_string())?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = Options {
        listen: any_port,
        tls_listen: None,
        tls_ca_file: None,
        control_listen: any_port,
        seed: Some(seed_file),
        addresses_file: Some(bound.clone()),
        settings: settings.clone(),
    };
    let (send_failed, failed) = tokio::sync::oneshot::channel();
    tasks.spawn(async move {
        let ended = headgate_azure_emulator::run(options, std::future::pending()).await;
        // After the start the receiver is gone; agents then report what they cannot reach.
        let _ = send_failed.send(ended);
    });
    let addresses = async {
        loop {
            let text = std::fs::read(&bound).unwrap_or_default();
            if let Ok(addresses) = serde_json::from_slice(&text) {
                return addresses;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        addresses = timeout(EMULATOR_TIMEOUT, addresses) => addresses.map_err(|_| ClusterError::EmulatorTimeout(EMULATOR_TIMEOUT)),
        Ok(Err(error)) = failed => Err(ClusterError::Emulator(error)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::azure::PoolMembers;
    use crate::control_plane::Observed;
    use crate::result::Event;
    use crate::rotation::AdminState;
    use crate::strategy::ProbeTarget;

    /// An emulator with three nodes, which ends with the tasks.
    pub(in super::super) async fn emulator(
        members: PoolMembers,
        directory: &Path,
        tasks: &mut JoinSet<()>,
    ) -> EmulatorAddresses {
        let seed = azure::seed(3, ProbeTarget::NodePort, members);
        let settings = Settings {
            operation_delay: Duration::from_millis(20),
            ..Settings::default()
        };
        start(&seed, &settings, directory, tasks).await.unwrap()
    }

    async fn control(emulator: &EmulatorAddresses, path: &str) -> Value {
        let uri = format!("http://{}/emulator/v1/{path}", emulator.control);
        let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
        let (_, body) = client.get(uri.parse().unwrap(), &[]).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn what_a_drill_sets_is_set() {
        let (directory, mut tasks) = (tempfile::tempdir().unwrap(), JoinSet::new());
        let emulator = emulator(PoolMembers::Ip, directory.path(), &mut tasks).await;
        let announced = Timestamp::now() + Duration::from_secs(30);
        emulator.announce_eviction(1, Duration::from_secs(30)).await.unwrap();
        let events = control(&emulator, "scheduled-events").await;
        let event = &events["Events"][0];
        assert_eq!(
            (&event["EventType"], &event["Resources"]),
            (&json!("Preempt"), &json!(["node-2"]))
        );
        let not_before = event["NotBefore"].as_str().unwrap();
        let not_before = jiff::fmt::rfc2822::parse(not_before).unwrap().timestamp();
        let late = not_before.duration_since(announced).as_secs();
        assert!((-1..60).contains(&late), "in whole seconds: {event}");
        emulator.clear_evictions().await.unwrap();
        assert_eq!(control(&emulator, "scheduled-events").await["Events"], json!([]));

        emulator.set_operation_delay(Duration::from_millis(1500)).await.unwrap();
        let settings: Settings = serde_json::from_value(control(&emulator, "settings").await).unwrap();
        assert_eq!(settings.operation_delay, Duration::from_millis(1500));

        let once = [json!({"times": 1, "action": {"answer": {"status": 503}}})];
        for _ in 0..2 {
            emulator.set_faults(&once).await.unwrap();
            assert_eq!(
                control(&emulator, "faults").await["faults"].as_array().unwrap().len(),
                1
            );
            let pool = azure::pool_id();
            let answer = emulator.arm(Method::GET, &pool, None).await.unwrap_err().to_string();
            assert!(answer.contains("503"), "each run meets it: {answer}");
            emulator.arm(Method::GET, &pool, None).await.unwrap();
        }
        emulator.set_faults(&[]).await.unwrap();
        assert_eq!(control(&emulator, "faults").await["faults"], json!([]));
        let refused = emulator.set_faults(&[json!({})]).await.unwrap_err().to_string();
        assert!(refused.contains("does not accept faults: 400"), "{refused}");
    }

    #[tokio::test]
    async fn admin_states_count_once_their_operation_has_succeeded() {
        let (directory, mut tasks) = (tempfile::tempdir().unwrap(), JoinSet::new());
        let emulator = emulator(PoolMembers::Ip, directory.path(), &mut tasks).await;
        let (send_states, states) = watch::channel(vec![AdminState::None; 3]);
        let (send_events, mut events) = mpsc::unbounded_channel();
        let following = tokio::spawn(azure::follow(emulator.control, 3, send_states, send_events));
        let set_down = async |node: usize| {
            let mut pool = emulator.arm(Method::GET, &azure::pool_id(), None).await.unwrap();
            pool["properties"]["loadBalancerBackendAddresses"][node]["properties"]["adminState"] = json!("Down");
            emulator.arm(Method::PUT, &azure::pool_id(), Some(&pool)).await.unwrap();
        };
        emulator.set_operation_delay(Duration::from_hours(1)).await.unwrap();
        set_down(1).await;
        let seen = |observed: Observed| (observed.node, observed.event);
        assert_eq!(events.recv().await.map(seen), Some((1, Event::PutAccepted)));
        assert_eq!(*states.borrow(), [AdminState::None; 3], "its operation has not ended");
        emulator.set_operation_delay(Duration::from_millis(20)).await.unwrap();
        set_down(2).await;
        for expected in [(2, Event::PutAccepted), (1, Event::DownShown), (2, Event::DownShown)] {
            assert_eq!(events.recv().await.map(seen), Some(expected));
        }
        assert_eq!(*states.borrow(), [AdminState::None, AdminState::Down, AdminState::Down]);
        drop(events);
        following.await.unwrap();
    }
}
