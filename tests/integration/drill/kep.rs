//! KEP-3836's end-to-end tests on the drill's data plane: with kube-proxy's own process, and with headgate's agents.
//!
//! The third one, about liveness probes, needs no data plane: `node.rs` asks `/livez` beside each answer of `/healthz`.

use std::time::Duration;

use headgate_budget::probe::{ProbeSettings, Provider};
use headgate_drill::azure::PoolMembers;
use headgate_drill::clients::ClientSettings;
use headgate_drill::cluster::{Cluster, ClusterSettings, KubeProxySettings, MaintenanceSettings};
use headgate_drill::control_plane::ControlPlane;
use headgate_drill::endpoints::TrafficPolicy;
use headgate_drill::machine::DeletedMachines;
use headgate_drill::result::Event;
use headgate_drill::scenario::{Action, Scenario, Signal, Step, Timeline};
use headgate_drill::strategy::{PodTimes, Strategy};
use headgate_drill::world::{Recording, World, WorldSettings};
use headgate_sandbox::assets::Assets;
use tokio::time::Instant;

use super::fixture::{NODES, run_settings, world_settings};
use super::runtime;

const SIGNAL: Duration = Duration::from_millis(1500);
const END: Duration = Duration::from_secs(6);
/// Longer than the run: only the end of the run, or a loss, ends a connection.
const LIFETIME: Duration = Duration::from_mins(1);

/// A node gets the autoscaler's taint, and stays: nothing is evicted and no machine dies.
async fn terminating_node(strategy: Strategy) -> Recording {
    let times = PodTimes {
        pre_stop: Duration::ZERO,
        process: Duration::from_secs(1),
        connection_lifetime: LIFETIME,
    };
    let mut plan = strategy.plan(Scenario::Maintenance, &times);
    // With Local the Pod that answers is on the node that the load balancer chose.
    plan.forwarding.policy = TrafficPolicy::Local;
    let settings = ClusterSettings {
        program: env!("CARGO_BIN_EXE_headgate").into(),
        assets: Assets::find(None).unwrap(),
        nodes: NODES,
        headgate: plan.headgate,
        polls_scheduled_events: false,
        policy: TrafficPolicy::Local,
        deletion_delay: None,
        kube_proxy: (strategy == Strategy::KubeProxy).then_some(KubeProxySettings {
            min_sync_period: Duration::from_millis(100),
        }),
        maintenance: MaintenanceSettings { drain: Duration::ZERO },
        notice: Duration::ZERO,
        probe: plan.probe,
        azure: headgate_azure_emulator::Settings::default(),
        pool_members: PoolMembers::default(),
        deleted_machines: DeletedMachines::Stay,
        other_writer: None,
        arm_faults: Vec::new(),
        negative_control: None,
    };
    let cluster = Cluster::start(settings).await.unwrap();
    let probe = ProbeSettings {
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(500),
        ..Provider::Azure.probe()
    };
    let settings = WorldSettings {
        processes: cluster.processes(),
        ..world_settings(plan, probe)
    };
    cluster.set_operation_delay(Duration::ZERO).await.unwrap();
    let mut world = World::start(settings).await.unwrap();
    let mut run = run_settings();
    run.clients = ClientSettings {
        rate: 50.0,
        timeout: Duration::from_secs(3),
        request_interval: Duration::from_millis(100),
        ..run.clients
    };
    let timeline = Timeline {
        steps: vec![Step {
            at: SIGNAL,
            node: 0,
            action: Action::Signal(Signal::AutoscalerTaint),
        }],
        end: END,
    };
    let mut control_plane = ControlPlane::Cluster(Box::new(cluster));
    world.run(&timeline, &run, &mut control_plane).await.unwrap()
}

/// The events of the node, in the order in which they are to happen.
fn times(recording: &Recording, events: &[Event]) -> Vec<Instant> {
    let time = |event: &Event| {
        let mut seen = recording
            .events
            .iter()
            .filter(|seen| seen.event == *event && seen.node == 0);
        seen.next()
            .unwrap_or_else(|| panic!("{event:?} in {:?}", recording.events))
            .at
    };
    events.iter().map(time).collect()
}

fn assert_as_the_kep_says(strategy: Strategy) {
    let recording = runtime().block_on(terminating_node(strategy));
    let order = times(
        &recording,
        &[Event::Signal, Event::Healthz503, Event::ProbeDown, Event::OutOfRotation],
    );
    assert!(order.is_sorted(), "{:?}", recording.events);
    let (signal, out) = (order[0], order[3]);
    let answered_by_node = |from: Instant, to: Instant| {
        let attempts = recording.observations.attempts.iter();
        attempts
            .filter(|attempt| (from..to).contains(&attempt.at) && attempt.answered_by == Some(0))
            .count()
    };
    assert!(
        answered_by_node(recording.start, signal) > 0,
        "before, the node has its share"
    );
    assert!(
        answered_by_node(signal, out) > 0,
        "also until the load balancer has noticed"
    );
    assert_eq!(
        answered_by_node(out, recording.start + END),
        0,
        "new connections drop to zero"
    );
    let failed = recording
        .observations
        .attempts
        .iter()
        .filter(|attempt| attempt.answered_by.is_none());
    assert_eq!(failed.count(), 0, "the others take them");
    let held: Vec<_> = recording
        .observations
        .held
        .iter()
        .filter(|held| held.node == 0)
        .collect();
    assert!(!held.is_empty(), "the node had established connections");
    assert!(
        held.iter().all(|held| held.lost.is_none()),
        "they end on their own: {held:?}"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn a_terminating_node_gets_no_new_connection_by_kube_proxys_healthz() {
    assert_as_the_kep_says(Strategy::KubeProxy);
}

#[test]
#[ignore = "needs network namespaces"]
fn a_terminating_node_gets_no_new_connection_by_headgates_healthz() {
    assert_as_the_kep_says(Strategy::Healthz);
}
