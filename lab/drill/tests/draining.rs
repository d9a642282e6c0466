//! Established flows on the data plane as each provider's load balancer treats them: kept, reset or dropped.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "fixture/fixture.rs"]
mod fixture;
#[path = "fixture/lag.rs"]
mod lag;

use std::time::Duration;

use headgate_budget::probe::Provider;
use headgate_drill::clients::{ClientSettings, Held};
use headgate_drill::control_plane::ControlPlane;
use headgate_drill::draining::{Deregistration, DrainRules, Ending, FlowEnd};
use headgate_drill::endpoints::TrafficPolicy;
use headgate_drill::result::Event;
use headgate_drill::scenario::{Action, Scenario, Signal, Step, Timeline};
use headgate_drill::strategy::{PodTimes, Strategy};
use headgate_drill::world::{Recording, World, WorldSettings};

use fixture::{NODES, probe, run_settings, runtime, world_settings};
use lag::on_time;

const SIGNAL: Duration = Duration::from_millis(700);
const END: Duration = Duration::from_millis(3500);

/// A node gets the autoscaler's taint and stays; with Local its connections are those to its own Pod.
fn record(strategy: Strategy, drain_rules: DrainRules) -> Recording {
    let times = PodTimes {
        pre_stop: Duration::ZERO,
        process: Duration::ZERO,
        connection_lifetime: Duration::from_mins(1),
    };
    let mut plan = strategy.plan(Scenario::ScaleDown, &times);
    plan.forwarding.policy = TrafficPolicy::Local;
    let settings = WorldSettings {
        drain_rules,
        ..world_settings(plan, probe(Duration::from_millis(200)))
    };
    let mut run = run_settings();
    run.clients = ClientSettings {
        rate: 50.0,
        // The client of a connection whose packets are dropped notices it after the end.
        timeout: 2 * END,
        long_lived: 15,
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
    on_time(|| {
        runtime().block_on(async {
            let mut world = World::start(settings.clone()).await.unwrap();
            world
                .run(&timeline, &run, &mut ControlPlane::none(NODES))
                .await
                .unwrap()
        })
    })
}

/// When the node was out of rotation, since the start.
fn out_of_rotation(recording: &Recording) -> Duration {
    let mut events = recording
        .events
        .iter()
        .filter(|seen| seen.event == Event::OutOfRotation);
    let out = events.next().unwrap();
    assert_eq!(out.node, 0);
    out.at - recording.start
}

fn held_on(recording: &Recording, is_the_node: bool) -> Vec<&Held> {
    let held = recording.observations.held.iter();
    let held: Vec<_> = held.filter(|held| (held.node == 0) == is_the_node).collect();
    assert!(held.iter().all(|held| held.through == held.node), "{held:?}");
    assert!(!held.is_empty());
    held
}

/// The other nodes' connections go on, and no new connection fails.
fn assert_others_unharmed(recording: &Recording) {
    assert!(held_on(recording, false).iter().all(|held| held.lost.is_none()));
    let attempts = &recording.observations.attempts;
    let before_flows_end = attempts.iter().filter(|attempt| attempt.at < recording.start + SIGNAL);
    assert!(before_flows_end.clone().all(|attempt| attempt.answered_by.is_some()));
    assert!(before_flows_end.count() > 20);
}

#[test]
#[ignore = "needs network namespaces"]
fn aws_resets_connections_of_a_node_that_fails_its_health_check() {
    let rules = DrainRules::of(Provider::AwsLocal);
    let recording = record(Strategy::KubeProxy, rules);
    let out = out_of_rotation(&recording);
    for held in held_on(&recording, true) {
        let lost = held.lost.unwrap_or_else(|| panic!("{held:?}")) - recording.start;
        assert!(lost + Duration::from_millis(60) >= out, "{lost:?} {out:?}");
        assert!(held.ended < recording.start + END, "a RST, and not silence: {held:?}");
    }
    assert_others_unharmed(&recording);

    let kept = record(
        Strategy::KubeProxy,
        DrainRules {
            unhealthy: None,
            ..rules
        },
    );
    out_of_rotation(&kept);
    assert!(
        held_on(&kept, true).iter().all(|held| held.lost.is_none()),
        "with connection termination off"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn a_deregistered_node_gets_nothing_new_and_keeps_its_connections_until_the_drain_timeout() {
    let rules = |new_flows_stop, after| DrainRules {
        deregistration: Some(Deregistration {
            new_flows_stop: Duration::from_millis(new_flows_stop),
            established: Some(Ending {
                after: Duration::from_millis(after),
                how: FlowEnd::Drop,
            }),
        }),
        ..DrainRules::default()
    };
    let recording = record(Strategy::Deregistration, rules(300, 1000));
    let out = out_of_rotation(&recording);
    assert!(out >= SIGNAL + Duration::from_millis(300), "{out:?}");
    assert!(
        recording.events.iter().all(|seen| seen.event != Event::ProbeDown),
        "its probes succeed: {:?}",
        recording.events
    );
    for held in held_on(&recording, true) {
        let lost = held.lost.unwrap_or_else(|| panic!("{held:?}")) - recording.start;
        assert!(
            lost + Duration::from_millis(60) >= SIGNAL + Duration::from_secs(1),
            "{lost:?}"
        );
        assert!(lost > out, "new connections go elsewhere first: {lost:?} {out:?}");
        assert!(held.ended > recording.start + END, "silence, and no RST: {held:?}");
    }
    assert_others_unharmed(&recording);

    let recording = record(Strategy::Deregistration, rules(0, 60_000));
    out_of_rotation(&recording);
    assert!(held_on(&recording, true).iter().all(|held| held.lost.is_none()));
    let failed = recording
        .observations
        .attempts
        .iter()
        .filter(|attempt| attempt.answered_by.is_none());
    assert_eq!(failed.count(), 0);
}
