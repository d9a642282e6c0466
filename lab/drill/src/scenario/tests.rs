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

fn steps(scenario: Scenario, options: &Options, plan: &Plan) -> Vec<(f64, usize, Action)> {
    let steps = scenario.timeline(options, plan).steps;
    let lead_in = LEAD_IN.as_secs_f64();
    let short = |step: &Step| (step.at.as_secs_f64() - lead_in, step.node, step.action);
    steps.iter().map(short).collect()
}

#[test]
fn autoscalers_follow_their_measured_times() {
    let (mut options, plan) = (options(), plan());
    let taken = steps(Scenario::ScaleDown, &options, &plan);
    assert_eq!(taken[0], (0.0, 0, Action::Signal(Signal::AutoscalerTaint)));
    assert!(
        (taken[1].0 - 5.01).abs() < 1e-9 && taken[1].2 == Action::PowerOff,
        "{taken:?}"
    );
    options.autoscaler = Autoscaler::Karpenter;
    let taken = steps(Scenario::ScaleDown, &options, &plan);
    assert_eq!(taken[1].2, Action::Signal(Signal::Deletion));
    assert!((taken[2].0 - 5.145).abs() < 1e-9, "{taken:?}");
    options.delete_delay = Duration::from_secs(30);
    assert!((steps(Scenario::ScaleDown, &options, &plan)[2].0 - 30.0).abs() < 1e-9);
}

#[test]
fn maintenance_evicts_after_the_delay_and_switches_off_last() {
    let options = Options {
        delete_delay: Duration::from_secs(30),
        ..options()
    };
    let taken: Vec<_> = steps(Scenario::Maintenance, &options, &plan())
        .into_iter()
        .map(|step| (step.0, step.2))
        .collect();
    assert_eq!(
        taken,
        [
            (0.0, Action::Signal(Signal::MaintenanceTaint)),
            (30.0, Action::TerminatePod),
            (35.0, Action::EndPod),
            (36.0, Action::PowerOff)
        ]
    );
}

#[test]
fn controllers_evict_in_their_own_time() {
    let taken: Vec<_> = steps(Scenario::Maintenance, &options(), &controllers())
        .into_iter()
        .map(|step| (step.0, step.2))
        .collect();
    assert_eq!(
        taken,
        [
            (0.0, Action::Signal(Signal::NodeMaintenance)),
            (0.0, Action::AwaitEviction),
            (0.0, Action::TerminatePod),
            (5.0, Action::EndPod),
            (6.0, Action::PowerOff)
        ]
    );
}

#[test]
fn an_evicted_pod_leaves_before_azure_takes_the_machine_at_its_time() {
    let (options, plan) = (options(), controllers());
    let seconds = Duration::from_secs;
    let taken = |change: &dyn Fn(&mut Timeline)| -> Vec<_> {
        let mut timeline = Scenario::Spot.timeline(&options, &plan);
        let end = timeline.end;
        assert_eq!(timeline.steps[1].action, Action::AwaitEviction);
        change(&mut timeline);
        assert!(timeline.end >= end);
        let later = timeline.steps.iter().skip(2);
        later
            .map(|step| (step.at.saturating_sub(LEAD_IN).as_secs(), step.action))
            .collect()
    };
    let planned = [(0, Action::TerminatePod), (5, Action::EndPod), (30, Action::PowerOff)];
    assert_eq!(taken(&|_| {}), planned);
    assert_eq!(
        taken(&|timeline| timeline.postpone(1, seconds(6))),
        [(6, Action::TerminatePod), (11, Action::EndPod), (30, Action::PowerOff)],
        "the machine does not wait"
    );
    let with_grace = |late: u64, grace: u64| {
        taken(&|timeline| {
            timeline.postpone(1, seconds(late));
            timeline.limit_grace_period(1, seconds(grace));
        })
    };
    assert_eq!(with_grace(6, 600)[1], (11, Action::EndPod), "it needs less");
    assert_eq!(with_grace(6, 3)[1], (9, Action::EndPod), "and is killed");
    let too_late: Vec<_> = with_grace(40, 1).iter().map(|step| step.1).collect();
    assert_eq!(too_late, [Action::PowerOff, Action::TerminatePod, Action::EndPod]);
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
    let taken = steps(Scenario::ScaleDown, &options(), &plan);
    let actions: Vec<_> = taken.iter().map(|step| step.2).collect();
    assert_eq!(
        actions,
        [
            Action::Signal(Signal::AutoscalerCandidate),
            Action::Signal(Signal::AutoscalerTaint),
            Action::AwaitDeletionDelay,
            Action::PowerOff
        ]
    );
    assert!(
        taken[0].0 < taken[1].0,
        "the annotation is to be there before: {taken:?}"
    );
    let waits: Vec<_> = actions.iter().map(|action| action.is_wait()).collect();
    assert_eq!(waits, [true, false, true, false]);
    assert!((taken[2].0 - 5.01).abs() < 1e-9, "after the fixed delay: {taken:?}");
    // The first step is a wait: what comes after it is later by what it took.
    let mut timeline = Scenario::ScaleDown.timeline(&options(), &plan);
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
    let taken = steps(Scenario::RollingUpdate, &options(), &plan());
    let starts: Vec<_> = taken
        .iter()
        .filter(|step| step.2 == Action::StartPod)
        .map(|step| (step.0, step.1))
        .collect();
    assert_eq!(
        starts,
        [(25.0, 0), (50.0, 1), (75.0, 2), (100.0, 3), (125.0, 4), (150.0, 5)]
    );
    let absent = taken
        .windows(2)
        .filter(|pair| pair[0].2 == Action::EndPod && pair[1].2 == Action::StartPod);
    assert_eq!(absent.count(), 6, "never two nodes at once");
}

#[test]
fn readiness_fails_only_while_the_pod_still_serves() {
    let mut plan = plan();
    plan.shutdown.fails_health_check = true;
    let has_failed = |plan: &Plan| {
        let taken = steps(Scenario::RollingUpdate, &options(), plan);
        taken.iter().any(|step| step.2 == Action::FailReadiness)
    };
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
    let timeline = Scenario::ApiOutage.timeline(&options, &plan());
    let taken = timeline
        .steps
        .iter()
        .map(|step| (step.at.saturating_sub(LEAD_IN).as_millis(), step.node, step.action));
    assert_eq!(
        taken.collect::<Vec<_>>(),
        [
            (0, 0, Action::Signal(Signal::AutoscalerTaint)),
            (4000, 0, Action::StopApiServer),
            (5000, 0, Action::RestartAgent),
            (5000, 1, Action::RestartAgent),
            (20_010, 0, Action::PowerOff),
            (22_000, 0, Action::StartApiServer),
        ]
    );
}

#[test]
fn a_spot_machine_goes_with_its_notice() {
    assert_eq!(
        steps(Scenario::Spot, &options(), &plan()),
        [
            (0.0, 0, Action::Signal(Signal::SpotNotice)),
            (30.0, 0, Action::PowerOff)
        ]
    );
}

#[test]
fn the_first_signal_is_what_first_says_that_a_node_goes() {
    let step = |at: u64, action: Action| Step {
        at: Duration::from_secs(at),
        node: 3,
        action,
    };
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
    let step = |at: u64, action: Action| Step {
        at: Duration::from_secs(at),
        node: 0,
        action,
    };
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
    let later: Vec<_> = timeline.steps[2..]
        .iter()
        .map(|step| (step.at.as_secs(), step.action))
        .collect();
    assert_eq!(
        later,
        [(3, Action::TerminatePod), (8, Action::EndPod), (20, Action::PowerOff)]
    );
}

#[test]
fn each_signal_is_seen_by_those_who_follow_it() {
    // Signal: a drain signal, of controllers of clouds, of kube-proxy, a taint's effect.
    for (signal, drain, cloud, kube_proxy, taint) in [
        (
            Signal::AutoscalerTaint,
            true,
            true,
            true,
            "ToBeDeletedByClusterAutoscaler:NoSchedule",
        ),
        (
            Signal::AutoscalerCandidate,
            false,
            false,
            false,
            "DeletionCandidateOfClusterAutoscaler:PreferNoSchedule",
        ),
        (
            Signal::KarpenterTaint,
            true,
            true,
            false,
            "karpenter.sh/disrupted:NoSchedule",
        ),
        (Signal::Deletion, true, true, true, ""),
        (
            Signal::MaintenanceTaint,
            true,
            false,
            false,
            "headgate.dev/maintenance:NoSchedule",
        ),
        (Signal::SpotNotice, true, false, false, ""),
        (Signal::NodeMaintenance, true, false, false, ""),
    ] {
        let found = signal
            .taint()
            .map(|(key, effect)| format!("{key}:{effect}"))
            .unwrap_or_default();
        let seen = [
            signal.is_drain_signal(),
            signal.is_seen_by_cloud_controllers(),
            signal.is_seen_by_kube_proxy(),
        ];
        assert_eq!(
            (seen, found.as_str()),
            ([drain, cloud, kube_proxy], taint),
            "{signal:?}"
        );
        assert_eq!(Action::Signal(signal).announces(), drain, "{signal:?}");
    }
}
