//! A leader that renews its Lease but can neither list nor watch Nodes: it follows what it knows for a while, then writes nothing.

use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_controller::admin_state::{AdminStateMode, Policy};
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault};
use hyper::Request;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use crate::rows::cluster::DRAINING;
use crate::world::{ENFORCE, Leader, SECOND, World, entries, load_balancer, pool_path, set_taints};

const MINUTE: Duration = Duration::from_mins(1);
const POOL: &str = "kubernetes";
const EVENT: &str = "NodesStale";
const METRIC: &str = "headgate_admin_state_nodes_stale_since_timestamp_seconds";
/// The period of the leader's watch, and the time until its first request after that fails.
const UNTIL_NOTICED: Duration = Duration::from_secs(52);

struct Story {
    fake: FakeApi,
    world: World,
    leader: Leader,
    faults: ClientFaults,
}

/// A client that waits for a response as long as headgate's own.
fn client_with_timeout(fake: &FakeApi) -> (Client, ClientFaults) {
    let (inner, faults) = fake.client();
    let service = service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            let sent = timeout(30 * SECOND, inner.send(request)).await;
            sent.map_err(|_| kube::Error::Service("no response".into()))?
        }
    });
    (Client::new(service, "default"), faults)
}

impl Story {
    /// `node-3` leads; `node-1` has a signal and is `Down`.
    async fn new(policy: Policy) -> Self {
        let resources = [load_balancer("kubernetes", &[(POOL, entries(1..=3, false))])];
        let (fake, world) = World::with_nodes(3, &resources, Settings::default()).await;
        let (client, faults) = client_with_timeout(&fake);
        let leader = Leader::start(&world, client, "node-3", policy).await;
        let story = Self {
            fake,
            world,
            leader,
            faults,
        };
        story.taint(1, &[DRAINING]);
        sleep(MINUTE).await;
        story
    }

    fn taint(&self, number: usize, keys: &[&str]) {
        set_taints(&self.fake, number, keys);
    }

    /// From now on requests for Nodes fail; other requests succeed.
    fn fail_nodes(&self, fault: Fault) {
        self.faults.set_for(fault, |request| request.path == "/api/v1/nodes");
        if fault != Fault::CutOff {
            self.faults.cut_watches();
        }
    }

    fn down(&self) -> Vec<String> {
        self.world.down("kubernetes", POOL).into_iter().collect()
    }

    /// Another writer sets every entry to `None`.
    async fn reset_admin_states(&self) {
        let document = json!({"properties": {"virtualNetwork": {"id": "nodes"}, "loadBalancerBackendAddresses": entries(1..=3, false)}});
        let path = pool_path("kubernetes", POOL);
        assert!(self.world.put(&path, &document, None).await.status().is_success());
        sleep(SECOND / 10).await;
        assert_eq!(self.down(), Vec::<String>::new());
    }

    async fn event_notes(&self) -> Vec<(String, String)> {
        let events = self.world.events().await.into_iter();
        let stale = events.filter(|(reason, ..)| reason == EVENT);
        stale.map(|(_, node, note)| (node, note)).collect()
    }

    fn stale_since(&self) -> f64 {
        self.leader.metric(METRIC)
    }

    fn is_leading(&self) -> bool {
        let term = self.leader.terms.borrow();
        term.as_ref().is_some_and(|term| term.permit().is_ok())
    }
}

#[tokio::test(start_paused = true)]
async fn leader_writes_nothing_while_nodes_are_stale_and_catches_up_afterwards() {
    // A missing right, an overloaded API server, one that does not answer and whose watch stays open.
    for fault in [Fault::Status(403), Fault::Status(429), Fault::CutOff] {
        let story = Story::new(ENFORCE).await;
        assert_eq!(story.down(), ["node-1"]);
        story.fail_nodes(fault);
        let began = Instant::now();
        // Changes that the leader cannot see any more.
        story.taint(1, &[]);
        story.taint(2, &[DRAINING]);
        sleep(2 * MINUTE).await;
        story.reset_admin_states().await;
        sleep(30 * SECOND).await;
        assert_eq!(story.down(), ["node-1"], "{fault:?}: it follows what it knows");
        assert!(story.stale_since() < 1.0, "{fault:?}");

        while story.stale_since() < 1.0 {
            assert!(began.elapsed() < 6 * MINUTE, "{fault:?}");
            sleep(SECOND / 10).await;
        }
        let took = began.elapsed();
        assert!(
            took + UNTIL_NOTICED > 5 * MINUTE && took <= 5 * MINUTE + SECOND,
            "{fault:?}: {took:?}"
        );
        sleep(MINUTE).await;
        assert_eq!(story.down(), ["node-1"], "{fault:?}: what is set stays");
        story.reset_admin_states().await;
        let puts = story.world.puts().len();
        sleep(20 * MINUTE).await;
        assert!(story.is_leading(), "{fault:?}");
        assert_eq!(story.world.puts().len(), puts, "{fault:?}: nothing is written");
        let notes = story.event_notes().await;
        assert_eq!(notes.len(), 1, "{fault:?}: {notes:?}");
        assert_eq!(notes[0].0, "node-3");
        assert!(notes[0].1.contains("since 2026-01-02T03:0"), "{notes:?}");

        story.faults.set(Fault::None);
        sleep(90 * SECOND).await;
        assert_eq!(story.down(), ["node-2"], "{fault:?}");
        assert!(story.stale_since() < 1.0, "{fault:?}");
        story.taint(2, &[]);
        sleep(10 * SECOND).await;
        assert_eq!(story.down(), [""; 0], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_cluster_is_not_stale() {
    let story = Story::new(ENFORCE).await;
    sleep(60 * MINUTE).await;
    assert_eq!(story.event_notes().await, []);
    story.reset_admin_states().await;
    sleep(30 * SECOND).await;
    assert_eq!(story.down(), ["node-1"]);
}

#[tokio::test(start_paused = true)]
async fn short_outage_of_nodes_leaves_the_leader_at_work() {
    let story = Story::new(ENFORCE).await;
    for _ in 0..5 {
        story.fail_nodes(Fault::Status(500));
        sleep(2 * MINUTE).await;
        story.reset_admin_states().await;
        sleep(MINUTE).await;
        assert_eq!(story.down(), ["node-1"], "it follows what it knows");
        story.faults.set(Fault::None);
        sleep(2 * MINUTE).await;
    }
    assert_eq!(story.event_notes().await, []);
}

#[tokio::test(start_paused = true)]
async fn mode_off_gives_back_without_nodes() {
    let mut story = Story::new(ENFORCE).await;
    story.leader.stop().await;
    let policy = Policy {
        mode: AdminStateMode::Disabled,
        ..ENFORCE
    };
    // Nothing is given back while ARM refuses writes, so the `Down` is still there when the Nodes are stale.
    story.world.control(
        "POST",
        "faults",
        &json!({"match": {"method": "PUT"}, "action": {"answer": {"status": 503}}}),
    );
    let (client, faults) = client_with_timeout(&story.fake);
    (story.leader, story.faults) = (Leader::start(&story.world, client, "node-3", policy).await, faults);
    sleep(MINUTE).await;
    story.fail_nodes(Fault::Status(403));
    sleep(7 * MINUTE).await;
    assert!(story.stale_since() > 1.0);
    assert_eq!(story.down(), ["node-1"]);
    story.world.clear_faults();
    sleep(MINUTE).await;
    assert_eq!(story.down(), Vec::<String>::new());
}
