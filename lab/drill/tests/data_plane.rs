//! The data plane on this machine's kernel: real connections, node deaths, endpoints and admin states.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "fixture/fixture.rs"]
mod fixture;
#[path = "fixture/lag.rs"]
mod lag;

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_budget::probe::{ProbeRule, ProbeSettings, Provider};
use headgate_drill::clients::{Held, Observations};
use headgate_drill::control_plane::ControlPlane;
use headgate_drill::draining::{DrainRules, Ending, FlowEnd};
use headgate_drill::lifetimes::Lifetimes;
use headgate_drill::machine::{DeletedMachines, PowerOff};
use headgate_drill::result::Event;
use headgate_drill::rotation::AdminState;
use headgate_drill::scenario::{Action, Scenario, Signal, Step, Timeline};
use headgate_drill::speed::Speed;
use headgate_drill::strategy::{Plan, PodTimes, Strategy};
use headgate_drill::world::phase::Schedule;
use headgate_drill::world::{Recording, RunSettings, World, WorldSettings};
use tokio::sync::watch;
use tokio::time::Instant;

use fixture::{NODES, probe, run_settings, runtime, world_settings};
use lag::{LAG_LIMIT, on_time, on_time_by};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn plan(strategy: Strategy, scenario: Scenario) -> Plan {
    let times = PodTimes {
        pre_stop: millis(1500),
        process: millis(100),
        connection_lifetime: millis(500),
    };
    strategy.plan(scenario, &times)
}

fn settings(plan: Plan, empty_nodes: usize) -> WorldSettings {
    WorldSettings {
        empty_nodes,
        propagation: millis(50),
        ..world_settings(plan, probe(millis(200)))
    }
}

fn step(at: u64, node: usize, action: Action) -> Step {
    Step {
        at: millis(at),
        node,
        action,
    }
}

fn record(settings: &WorldSettings, steps: Vec<Step>, end: u64) -> Recording {
    let timeline = Timeline {
        steps,
        end: millis(end),
    };
    record_run(settings, &timeline, &run_settings())
}

fn record_run(settings: &WorldSettings, timeline: &Timeline, run: &RunSettings) -> Recording {
    on_time(|| {
        runtime().block_on(async {
            let mut world = World::start(settings.clone()).await.unwrap();
            world.run(timeline, run, &mut ControlPlane::none(NODES)).await.unwrap()
        })
    })
}

/// New connections begun between two times that failed, and all of them.
fn attempts(recording: &Recording, from: u64, to: u64) -> (usize, usize) {
    let range = recording.start + millis(from)..recording.start + millis(to);
    let begun: Vec<_> = recording
        .observations
        .attempts
        .iter()
        .filter(|attempt| range.contains(&attempt.at))
        .collect();
    let failed = begun.iter().filter(|attempt| attempt.answered_by.is_none()).count();
    (failed, begun.len())
}

fn event(recording: &Recording, event: Event) -> Option<u128> {
    let found = recording
        .events
        .iter()
        .filter(|seen| seen.event == event)
        .map(|seen| seen.at)
        .min()?;
    Some((found - recording.start).as_millis())
}

fn nodes(observations: &Observations) -> BTreeSet<u8> {
    observations
        .attempts
        .iter()
        .filter_map(|attempt| attempt.answered_by)
        .collect()
}

#[test]
#[ignore = "needs network namespaces"]
fn connections_spread_over_all_nodes_and_survive() {
    let recording = record(
        &settings(plan(Strategy::KubeProxy, Scenario::Maintenance), 0),
        Vec::new(),
        1500,
    );
    let (failed, begun) = attempts(&recording, 0, 1500);
    assert_eq!(failed, 0);
    assert!(begun > 120, "{begun} at 100 a second");
    assert_eq!(nodes(&recording.observations), BTreeSet::from([0, 1, 2]));
    assert_eq!(recording.observations.held.len(), 12);
    assert!(recording.observations.held.iter().all(|held| held.lost.is_none()));
}

#[test]
#[ignore = "needs network namespaces"]
fn a_dead_node_loses_its_share_until_probes_notice() {
    let steps = vec![step(1000, 0, Action::PowerOff)];
    let recording = record(&settings(plan(Strategy::None, Scenario::Maintenance), 0), steps, 3500);
    let order = [
        Event::NodeGone,
        Event::ProbeFailed,
        Event::ProbeDown,
        Event::OutOfRotation,
    ]
    .map(|kind| event(&recording, kind).unwrap_or_else(|| panic!("{kind:?} in {:?}", recording.events)));
    assert!(order.is_sorted(), "{order:?}");
    let [gone, .., out] = order;
    assert!(out - gone >= 200, "two probes: {gone} {out}");
    assert_eq!(attempts(&recording, 0, 900).0, 0, "nothing is lost before");
    let (failed, begun) = attempts(
        &recording,
        u64::try_from(gone).unwrap() + 20,
        u64::try_from(out).unwrap(),
    );
    assert!(failed > 0 && failed < begun, "{failed} of {begun}: a share, silently");
    assert!(
        event(&recording, Event::Healthz503).is_none(),
        "TCP probes have no answer to watch"
    );
    let lost = recording
        .observations
        .held
        .iter()
        .filter(|held| held.lost.is_some())
        .count();
    assert!(lost > 0, "established ones of a dead machine are lost");
}

/// kubernetes/autoscaler#1907: its kube-proxy forwards connections to the Pods of other nodes.
#[test]
#[ignore = "needs network namespaces"]
fn an_empty_node_cuts_what_it_forwards_and_silent_connections_notice_it_too() {
    let mut run = run_settings();
    run.clients.long_lived = 60;
    // 10 minutes are 6 s here: the idle ones are silent until the run is over.
    run.clients.lifetimes = Lifetimes::Mix(Speed::new(100.0).unwrap());
    let timeline = Timeline {
        steps: vec![step(800, 0, Action::PowerOff)],
        end: millis(2500),
    };
    let recording = record_run(&settings(plan(Strategy::None, Scenario::ScaleDown), 1), &timeline, &run);
    let gone = recording.start + millis(u64::try_from(event(&recording, Event::NodeGone).unwrap()).unwrap());
    let held = &recording.observations.held;
    assert!(held.iter().all(|held| held.node != 0), "it has no Pod: {held:?}");
    let is_silent = |held: &&Held| held.ended > gone + millis(1600);
    let through: Vec<_> = held
        .iter()
        .filter(|held| held.through == 0 && held.opened < gone && held.ended > gone + millis(20))
        .collect();
    assert!(through.iter().all(|held| held.lost.is_some()), "{through:?}");
    assert!(through.iter().any(is_silent), "noticed at the end: {through:?}");
    assert!(
        through.iter().any(|held| !is_silent(held)),
        "noticed at once: {through:?}"
    );
    assert!(
        held.iter().all(|held| held.through == 0 || held.lost.is_none()),
        "{held:?}"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn a_node_that_fails_its_health_check_in_time_loses_nothing() {
    let steps = vec![
        step(500, 0, Action::Signal(Signal::AutoscalerTaint)),
        step(2000, 0, Action::PowerOff),
    ];
    let mut run = run_settings();
    run.clients.lifetimes = Lifetimes::AtMost(millis(500));
    let timeline = Timeline {
        steps,
        end: millis(3000),
    };
    let recording = record_run(
        &settings(plan(Strategy::KubeProxy, Scenario::ScaleDown), 1),
        &timeline,
        &run,
    );
    assert_eq!(attempts(&recording, 0, 3000).0, 0);
    assert!(recording.observations.held.iter().all(|held| held.lost.is_none()));
    let order: Vec<_> = [
        Event::Signal,
        Event::Healthz503,
        Event::ProbeDown,
        Event::OutOfRotation,
        Event::NodeGone,
    ]
    .map(|kind| event(&recording, kind).unwrap_or_else(|| panic!("{kind:?} in {:?}", recording.events)))
    .to_vec();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(
        nodes(&recording.observations),
        BTreeSet::from([1, 2]),
        "node 0 has no Pod, its kube-proxy forwards"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn a_terminating_pod_behind_local_is_used_or_not() {
    let steps = || vec![step(500, 0, Action::TerminatePod), step(2000, 0, Action::EndPod)];
    let without = record(
        &settings(plan(Strategy::None, Scenario::RollingUpdate), 0),
        steps(),
        2500,
    );
    let out = u64::try_from(event(&without, Event::OutOfRotation).unwrap()).unwrap();
    assert!(
        attempts(&without, 550, out).0 > 0,
        "dropped by kube-proxy until probes notice"
    );
    let with = record(
        &settings(plan(Strategy::PreStopSleep, Scenario::RollingUpdate), 0),
        steps(),
        2500,
    );
    assert_eq!(attempts(&with, 0, 2500).0, 0, "ProxyTerminatingEndpoints");
    assert!(event(&with, Event::Healthz503).is_some());
}

/// So many nodes whose admin state is `Down` from 1.5 s on, with these rules for established flows.
fn record_admin_down(downs: usize, drain_rules: DrainRules) -> Recording {
    let timeline = Timeline {
        steps: Vec::new(),
        end: millis(2500),
    };
    let settings = WorldSettings {
        drain_rules,
        ..settings(plan(Strategy::KubeProxy, Scenario::Maintenance), 0)
    };
    on_time(|| {
        runtime().block_on(async {
            let mut world = World::start(settings.clone()).await.unwrap();
            let states = watch::Sender::new(vec![AdminState::None; NODES]);
            let mut control_plane = ControlPlane::None(states.clone());
            let setter = async {
                tokio::time::sleep(millis(1500)).await;
                states.send_modify(|states| states[..downs].fill(AdminState::Down));
                std::future::pending::<()>().await;
            };
            let run = run_settings();
            tokio::select! {
                recording = world.run(&timeline, &run, &mut control_plane) => recording.unwrap(),
                () = setter => unreachable!(),
            }
        })
    })
}

#[test]
#[ignore = "needs network namespaces"]
fn admin_state_down_takes_a_node_out_without_its_probe_and_keeps_connections() {
    let recording = record_admin_down(1, DrainRules::of(Provider::Azure));
    assert!(event(&recording, Event::OutOfRotation).is_some());
    assert!(event(&recording, Event::ProbeDown).is_none());
    assert_eq!(attempts(&recording, 0, 2500).0, 0);
    assert!(recording.observations.held.iter().all(|held| held.lost.is_none()));
}

#[test]
#[ignore = "needs network namespaces"]
fn connections_survive_that_all_nodes_are_down() {
    let recording = record_admin_down(NODES, DrainRules::of(Provider::Azure));
    let (failed, begun) = attempts(&recording, 2000, 2400);
    assert!(begun > 0 && failed == begun, "{failed} of {begun}");
    let held = &recording.observations.held;
    assert!(held.iter().all(|held| held.lost.is_none()), "{held:?}");
}

#[test]
#[ignore = "needs network namespaces"]
fn admin_state_down_resets_connections_of_its_node_where_a_rule_says_so() {
    let drain_rules = DrainRules {
        admin_down: Some(Ending {
            after: Duration::ZERO,
            how: FlowEnd::Reset,
        }),
        ..DrainRules::of(Provider::Azure)
    };
    let recording = record_admin_down(1, drain_rules);
    let out = recording.start + millis(u64::try_from(event(&recording, Event::OutOfRotation).unwrap()).unwrap());
    let is_through = |held: &&Held| held.through == 0 && held.opened < out;
    let through: Vec<_> = recording.observations.held.iter().filter(is_through).collect();
    assert!(
        !through.is_empty() && through.iter().all(|held| held.lost.is_some()),
        "{through:?}"
    );
    let others = recording.observations.held.iter().filter(|held| held.through != 0);
    assert!(others.into_iter().all(|held| held.lost.is_none()));
    // Clients that connect again at once do not come back to it.
    let reset = through.iter().map(|held| held.ended).min().unwrap();
    let mut later = recording.observations.attempts.iter().filter(|made| made.at > reset);
    assert!(later.all(|made| made.answered_by.is_some()), "{recording:?}");
}

#[test]
#[ignore = "needs network namespaces"]
fn a_label_lets_the_cloud_remove_a_node_after_an_operation_and_no_probe_takes_part() {
    let timeline = Timeline {
        steps: vec![
            step(500, 0, Action::Signal(Signal::KarpenterTaint)),
            step(2500, 0, Action::PowerOff),
        ],
        end: millis(3000),
    };
    let mut run = run_settings();
    run.operation = millis(300);
    run.clients.lifetimes = Lifetimes::AtMost(millis(500));
    let recording = record_run(
        &settings(plan(Strategy::ExcludeLabel, Scenario::ScaleDown), 1),
        &timeline,
        &run,
    );
    let [signal, out, gone] = [Event::Signal, Event::OutOfRotation, Event::NodeGone]
        .map(|kind| event(&recording, kind).unwrap_or_else(|| panic!("{kind:?} in {:?}", recording.events)));
    assert!(out - signal >= 350, "300 ms, and 50 ms of propagation: {signal} {out}");
    assert!(out < gone, "{out} {gone}");
    assert!(event(&recording, Event::ProbeFailed).is_none_or(|failed| failed >= gone));
    assert_eq!(attempts(&recording, 0, 3000).0, 0);
}

#[test]
#[ignore = "needs network namespaces"]
fn a_deleted_machine_leaves_after_an_operation_where_the_platform_removes_it_and_by_its_probe_elsewhere() {
    let timeline = Timeline {
        steps: vec![step(500, 0, Action::PowerOff)],
        end: millis(2500),
    };
    let run = RunSettings {
        operation: millis(100),
        ..run_settings()
    };
    // Two probes without an answer, up to 400 ms each, are later than the operation and 50 ms of propagation.
    let record = |deleted_machines: DeletedMachines| {
        let plan = plan(Strategy::NodePort, Scenario::ScaleDown);
        let slow = WorldSettings {
            deleted_machines,
            propagation: millis(50),
            ..world_settings(plan, probe(millis(400)))
        };
        record_run(&slow, &timeline, &run)
    };
    let [leaves, stays] = [DeletedMachines::Leave, DeletedMachines::Stay].map(record);
    let events =
        |recording: &Recording| [Event::OutOfRotation, Event::ProbeDown].map(|kind| event(recording, kind).unwrap());
    let ([out, probed], [late, noticed]) = (events(&leaves), events(&stays));
    assert!(out < probed, "before its probes notice: {out} {probed}");
    assert!(late >= noticed, "by its probes alone: {late} {noticed}");
}

/// How long the load balancer sends to a machine that is switched off so, with probes of HTTP every 200 ms.
fn until_out_of(power_off: PowerOff) -> u128 {
    let plan = plan(Strategy::KubeProxy, Scenario::Maintenance);
    let first_answer = ProbeSettings {
        rule: ProbeRule::FirstNon200,
        ..probe(millis(200))
    };
    let settings = WorldSettings {
        power_off,
        ..world_settings(plan, first_answer)
    };
    let recording = record(&settings, vec![step(800, 0, Action::PowerOff)], 2500);
    let [gone, out] = [Event::NodeGone, Event::OutOfRotation].map(|kind| event(&recording, kind).unwrap());
    out - gone
}

#[test]
#[ignore = "needs network namespaces"]
fn a_machine_that_resets_connections_is_out_at_the_first_probe_and_a_silent_one_is_not() {
    // Two timeouts of 200 ms, against an answer at once.
    let [silent, reset] = [PowerOff::Silent, PowerOff::Reset].map(until_out_of);
    assert!(silent >= 380, "{silent}");
    assert!(reset < silent, "{reset} {silent}");
}

/// When a run starts if every node answers its probes from `since` on: after each node's second probe, at the run's phase between two
/// probes of the first node. With this seed the first node is probed last, so the start is half an interval after that, and delays of a few
/// milliseconds do not change which probes come before it.
fn start_of_a_whole_world(since: Instant, interval: Duration, run: &RunSettings) -> Instant {
    let schedule = Schedule::new(since, interval, NODES, 1, run.seed);
    let second = (0..NODES).map(|node| schedule.first(node)[0] + interval).max().unwrap();
    second + schedule.wait(second, 0, run.phase)
}

#[test]
#[ignore = "needs network namespaces"]
fn a_world_is_restored_for_the_next_run() {
    let timeline = Timeline {
        steps: vec![step(200, 0, Action::PowerOff), step(250, 1, Action::EndPod)],
        end: millis(1000),
    };
    let nothing = Timeline {
        steps: Vec::new(),
        end: millis(1000),
    };
    // AWS resets the connections of a target that fails its health check.
    let settings = WorldSettings {
        drain_rules: DrainRules::of(Provider::AwsCluster),
        ..settings(plan(Strategy::KubeProxy, Scenario::Maintenance), 0)
    };
    let next = RunSettings {
        index: 1,
        ..run_settings()
    };
    let record = || {
        runtime().block_on(async {
            let mut world = World::start(settings.clone()).await.unwrap();
            let mut control_plane = ControlPlane::none(NODES);
            let first = world.run(&timeline, &run_settings(), &mut control_plane).await.unwrap();
            world.restore().await.unwrap();
            let expected = start_of_a_whole_world(Instant::now(), settings.probe.interval, &next);
            let second = world.run(&nothing, &next, &mut control_plane).await.unwrap();
            let late = second.start.saturating_duration_since(expected);
            (first, second, late)
        })
    };
    let (first, second, late) = on_time_by(record, |(first, second, late)| {
        let lag = |run: &Recording| run.observations.longest_lag;
        lag(first).max(lag(second)).max(*late)
    });
    assert!(attempts(&first, 0, 1000).0 > 0);
    assert!(event(&first, Event::ProbeDown).is_some(), "{first:?}");
    assert!(late <= LAG_LIMIT, "no probe of the restored world fails: {late:?}");
    assert_eq!(attempts(&second, 0, 1000).0, 0);
    assert_eq!(nodes(&second.observations), BTreeSet::from([0, 1, 2]));
}
