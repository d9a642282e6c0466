use super::*;
use crate::drill::options_of_a_test;
use crate::strategy::{HeadgatePart, Strategy};

fn options() -> Options {
    Options {
        nodes: 6,
        ..options_of_a_test()
    }
}

/// Of a Pod that ends within 5 s.
fn plan() -> Plan {
    Strategy::None.plan(Scenario::RollingUpdate, &options().pods())
}

fn controllers() -> Plan {
    Plan {
        headgate: HeadgatePart::MaintenanceControllers,
        ..plan()
    }
}

/// Steps with the time after the lead-in, the node and the action.
fn shown(steps: &[Step]) -> String {
    let step = |Step { at, node, action }: &Step| match at.checked_sub(LEAD_IN) {
        Some(at) => format!("{at:?} {node} {action:?}"),
        None => format!("-{:?} {node} {action:?}", LEAD_IN.saturating_sub(*at)),
    };
    steps.iter().map(step).collect::<Vec<_>>().join(", ")
}

fn steps(scenario: Scenario, options: &Options, plan: &Plan) -> String {
    shown(&scenario.timeline(options, plan).steps)
}

#[test]
fn autoscalers_follow_their_measured_times() {
    let (mut options, plan) = (options(), plan());
    assert_eq!(
        steps(Scenario::ScaleDown, &options, &plan),
        "0ns 0 Signal(AutoscalerTaint), 5.01s 0 PowerOff"
    );
    options.autoscaler = Autoscaler::Karpenter;
    assert_eq!(
        steps(Scenario::ScaleDown, &options, &plan),
        "0ns 0 Signal(KarpenterTaint), 89ms 0 Signal(Deletion), 5.145s 0 PowerOff"
    );
    options.delete_delay = Duration::from_secs(30);
    assert!(steps(Scenario::ScaleDown, &options, &plan).ends_with(", 30s 0 PowerOff"));
}

#[test]
fn maintenance_evicts_after_the_delay_and_switches_off_last() {
    let options = Options {
        delete_delay: Duration::from_secs(30),
        ..options()
    };
    assert_eq!(
        steps(Scenario::Maintenance, &options, &plan()),
        "0ns 0 Signal(MaintenanceTaint), 30s 0 TerminatePod, 35s 0 EndPod, 36s 0 PowerOff"
    );
}

#[test]
fn controllers_evict_in_their_own_time() {
    assert_eq!(
        steps(Scenario::Maintenance, &options(), &controllers()),
        "0ns 0 Signal(NodeMaintenance), 0ns 0 AwaitEviction, 0ns 0 TerminatePod, 5s 0 EndPod, 6s 0 PowerOff"
    );
}

#[test]
fn an_evicted_pod_leaves_before_azure_takes_the_machine_at_its_time() {
    let (options, plan) = (options(), controllers());
    let seconds = Duration::from_secs;
    let taken = |change: &dyn Fn(&mut Timeline)| {
        let mut timeline = Scenario::Spot.timeline(&options, &plan);
        let end = timeline.end;
        assert_eq!(timeline.steps[1].action, Action::AwaitEviction);
        change(&mut timeline);
        assert!(timeline.end >= end);
        shown(&timeline.steps[2..])
    };
    assert_eq!(taken(&|_| {}), "0ns 0 TerminatePod, 5s 0 EndPod, 30s 0 PowerOff");
    assert_eq!(
        taken(&|timeline| timeline.postpone(1, seconds(6))),
        "6s 0 TerminatePod, 11s 0 EndPod, 30s 0 PowerOff",
        "the machine does not wait"
    );
    let with_grace = |late: u64, grace: u64| {
        taken(&|timeline| {
            timeline.postpone(1, seconds(late));
            timeline.limit_grace_period(1, seconds(grace));
        })
    };
    assert!(with_grace(6, 600).contains(", 11s 0 EndPod"), "it needs less");
    assert!(with_grace(6, 3).contains(", 9s 0 EndPod"), "and is killed");
    assert_eq!(
        with_grace(40, 1),
        "30s 0 PowerOff, 40s 0 TerminatePod, 41s 0 EndPod",
        "too late"
    );
    let mut other = Scenario::Maintenance.timeline(&options, &plan);
    let before = other.steps.last().unwrap().at;
    other.postpone(1, seconds(6));
    assert_eq!(
        other.steps.last().unwrap().at,
        before + seconds(6),
        "nobody announced it"
    );
}

#[test]
fn a_deletion_that_is_held_is_announced_and_waits_before_the_machine_goes() {
    let plan = Plan {
        holds_deletion: true,
        ..plan()
    };
    let mut timeline = Scenario::ScaleDown.timeline(&options(), &plan);
    assert_eq!(
        shown(&timeline.steps),
        "-5s 0 Signal(AutoscalerCandidate), 0ns 0 Signal(AutoscalerTaint), 5.01s 0 AwaitDeletionDelay, 5.01s 0 PowerOff",
        "the annotation is there before the taint"
    );
    let waits = timeline.steps.iter().map(|step| step.action.is_wait());
    assert_eq!(waits.collect::<Vec<_>>(), [true, false, true, false]);
    // The first step is a wait: what comes after it is later by what it took.
    let times = |timeline: &Timeline| timeline.steps.iter().map(|step| step.at).collect::<Vec<_>>();
    let (mut expected, took) = (times(&timeline), Duration::from_secs(3));
    for at in &mut expected[1..] {
        *at += took;
    }
    timeline.postpone(0, took);
    assert_eq!(times(&timeline), expected);
}

#[test]
fn a_roll_replaces_one_pod_after_another() {
    let taken = Scenario::RollingUpdate.timeline(&options(), &plan()).steps;
    let starts: Vec<_> = taken
        .iter()
        .filter(|step| step.action == Action::StartPod)
        .copied()
        .collect();
    assert_eq!(
        shown(&starts),
        "25s 0 StartPod, 50s 1 StartPod, 75s 2 StartPod, 100s 3 StartPod, 125s 4 StartPod, 150s 5 StartPod"
    );
    let absent = taken
        .windows(2)
        .filter(|pair| pair[0].action == Action::EndPod && pair[1].action == Action::StartPod);
    assert_eq!(absent.count(), 6, "never two nodes at once");
}

#[test]
fn readiness_fails_only_while_the_pod_still_serves() {
    let mut plan = plan();
    plan.shutdown.fails_health_check = true;
    let has_failed = |plan: &Plan| steps(Scenario::RollingUpdate, &options(), plan).contains("FailReadiness");
    assert!(!has_failed(&plan), "it ends after 5 s");
    plan.shutdown.pre_stop = Duration::from_secs(20);
    assert!(has_failed(&plan));
}

#[test]
fn steps_are_sorted_and_a_run_outlasts_detection() {
    for scenario in Scenario::value_variants() {
        let timeline = scenario.timeline(&options(), &plan());
        assert!(timeline.steps.is_sorted_by_key(|step| step.at), "{scenario:?}");
        let last = timeline.steps.last().unwrap().at;
        assert!(timeline.end >= last + Duration::from_secs(15), "{scenario:?}");
        assert!(timeline.steps.iter().all(|step| step.node < 6), "{scenario:?}");
    }
    let empty: Vec<_> = Scenario::value_variants()
        .iter()
        .map(|scenario| (*scenario, scenario.empty_nodes(6)))
        .filter(|(_, empty)| *empty > 0)
        .collect();
    assert_eq!(
        empty,
        [
            (Scenario::ScaleDown, 1),
            (Scenario::Spot, 1),
            (Scenario::ApiOutage, 1),
            (Scenario::Mass, 3)
        ]
    );
}

#[test]
fn the_api_server_and_the_agents_go_while_a_node_waits_for_its_end() {
    let options = Options {
        nodes: 2,
        delete_delay: Duration::from_secs(20),
        ..options()
    };
    assert_eq!(
        steps(Scenario::ApiOutage, &options, &plan()),
        "0ns 0 Signal(AutoscalerTaint), 4s 0 StopApiServer, 5s 0 RestartAgent, 5s 1 RestartAgent, 20.01s 0 PowerOff, \
         22s 0 StartApiServer"
    );
}

#[test]
fn a_spot_machine_goes_with_its_notice() {
    assert_eq!(
        steps(Scenario::Spot, &options(), &plan()),
        "0ns 0 Signal(SpotNotice), 30s 0 PowerOff"
    );
}

fn step(at: u64, action: Action) -> Step {
    Step {
        at: Duration::from_secs(at),
        node: 3,
        action,
    }
}

#[test]
fn the_first_signal_is_what_first_says_that_a_node_goes() {
    let mut timeline = Timeline {
        steps: vec![
            step(1, Action::Signal(Signal::AutoscalerCandidate)),
            step(2, Action::StopApiServer),
            step(3, Action::TerminatePod),
            step(4, Action::Signal(Signal::Deletion)),
        ],
        end: Duration::from_secs(9),
    };
    assert_eq!(timeline.first_signal(), timeline.steps[2]);
    timeline.steps.remove(2);
    assert_eq!(timeline.first_signal(), timeline.steps[2]);
    timeline.steps.truncate(2);
    assert_eq!(
        (timeline.first_signal().at, timeline.first_signal().node),
        (Duration::ZERO, 0)
    );
}

#[test]
fn a_limited_grace_period_is_that_of_the_pod_that_ends_after_the_step() {
    let mut timeline = Timeline {
        steps: vec![
            step(1, Action::TerminatePod),
            step(2, Action::AwaitEviction),
            step(3, Action::TerminatePod),
            step(20, Action::PowerOff),
            step(30, Action::EndPod),
        ],
        end: Duration::from_secs(40),
    };
    timeline.limit_grace_period(1, Duration::from_secs(5));
    assert_eq!(
        timeline.steps[2..],
        [
            step(3, Action::TerminatePod),
            step(8, Action::EndPod),
            step(20, Action::PowerOff)
        ]
    );
}

#[test]
fn each_signal_is_seen_by_those_who_follow_it() {
    // Whether it is a drain signal, and seen by controllers of clouds and by kube-proxy; its taint.
    let table = [
        (Signal::AutoscalerTaint, [true, true, true]),
        (Signal::AutoscalerCandidate, [false, false, false]),
        (Signal::KarpenterTaint, [true, true, false]),
        (Signal::Deletion, [true, true, true]),
        (Signal::MaintenanceTaint, [true, false, false]),
        (Signal::SpotNotice, [true, false, false]),
        (Signal::NodeMaintenance, [true, false, false]),
    ];
    let taints = [
        "ToBeDeletedByClusterAutoscaler:NoSchedule",
        "DeletionCandidateOfClusterAutoscaler:PreferNoSchedule",
        "karpenter.sh/disrupted:NoSchedule",
        "",
        "headgate.dev/maintenance:NoSchedule",
        "",
        "",
    ];
    for ((signal, expected), taint) in table.into_iter().zip(taints) {
        let found = signal.taint().map(|(key, effect)| format!("{key}:{effect}"));
        let seen = [
            signal.is_drain_signal(),
            signal.is_seen_by_cloud_controllers(),
            signal.is_seen_by_kube_proxy(),
        ];
        assert_eq!(
            (seen, found.unwrap_or_default()),
            (expected, taint.to_owned()),
            "{signal:?}"
        );
        let [drain, ..] = expected;
        assert_eq!(Action::Signal(signal).announces(), drain, "{signal:?}");
    }
}
