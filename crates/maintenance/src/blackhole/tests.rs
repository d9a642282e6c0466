use headgate_core::node::Unproved;

use super::*;
use crate::drain_plan::Labels;

fn at(second: u32) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(second.into())
}

fn service(policy: TrafficPolicy) -> Service {
    Service {
        selector: Labels::from([("app".to_owned(), "web".to_owned())]),
        is_local: policy == TrafficPolicy::Local,
        ..Service::named(NamespacedName::new("shop", policy.as_str()))
    }
}

fn pod(is_ready: bool) -> PodFacts {
    PodFacts {
        namespace: "shop".to_owned(),
        labels: Labels::from([("app".to_owned(), "web".to_owned())]),
        is_ready,
        ..PodFacts::default()
    }
}

/// In service.
fn inside() -> NodeTraffic {
    NodeTraffic::InService { detail: String::new() }
}

fn out(since: u32) -> NodeTraffic {
    NodeTraffic::Out { since: Some(at(since)) }
}

fn missing() -> NodeTraffic {
    NodeTraffic::Unknown(Unproved::NotPlanned)
}

/// The seconds of each result, for both policies: local, cluster.
fn seconds(steps: &[(u32, bool, bool, NodeTraffic)]) -> Vec<(u64, Vec<(TrafficPolicy, u64)>)> {
    let services = [service(TrafficPolicy::Local), service(TrafficPolicy::Cluster)];
    let mut meter = BlackholeMeter::default();
    let mut found = Vec::new();
    for (second, pod_is_ready, node_is_ready, observation) in steps {
        let pod = pod(*pod_is_ready);
        let node = DrainedNode {
            name: "one",
            is_ready: *node_is_ready,
            pods: vec![&pod],
            observation,
            was_out: false,
        };
        for (_, results) in meter.update(&[node], &services, at(*second)) {
            let results = results.iter().map(|result| (result.policy, result.lasted.as_secs()));
            found.push((u64::from(*second), results.collect()));
        }
    }
    found
}

#[test]
fn seconds_between_the_last_endpoint_and_the_load_balancer_count() {
    use TrafficPolicy::{Cluster, Local};
    let both = |local, cluster| vec![(Local, local), (Cluster, cluster)];
    for (what, steps, expected) in [
        (
            "out first",
            vec![
                (0, true, true, inside()),
                (5, true, true, out(5)),
                (9, false, true, out(5)),
            ],
            vec![(5, both(0, 0))],
        ),
        (
            "pod first",
            vec![
                (0, true, true, inside()),
                (5, false, true, inside()),
                (9, false, true, out(8)),
            ],
            vec![(9, both(3, 0))],
        ),
        (
            "pod and load balancer seen together",
            vec![(0, true, true, inside()), (9, false, true, out(8))],
            vec![(9, both(0, 0))],
        ),
        (
            "node first",
            vec![
                (0, true, true, inside()),
                (5, true, false, inside()),
                (9, true, false, out(9)),
            ],
            vec![(9, both(4, 4))],
        ),
        (
            "ready again",
            vec![
                (0, true, true, inside()),
                (5, false, true, inside()),
                (7, true, true, inside()),
                (9, true, true, out(9)),
            ],
            vec![(9, both(2, 0))],
        ),
        (
            "a confirmation that is lost",
            vec![
                (0, true, true, inside()),
                (5, true, true, out(5)),
                (6, false, true, out(5)),
                (10, false, true, inside()),
                (13, false, true, out(13)),
            ],
            vec![(5, both(0, 0)), (13, both(3, 0))],
        ),
        (
            "reads that are missing change nothing",
            vec![
                (0, true, true, inside()),
                (5, false, true, missing()),
                (9, false, true, out(7)),
            ],
            vec![(9, both(2, 0))],
        ),
        (
            "missing reads of a node that is out",
            vec![
                (0, true, true, inside()),
                (5, true, true, out(5)),
                (6, false, true, missing()),
                (60, false, true, out(5)),
            ],
            vec![(5, both(0, 0))],
        ),
        (
            "in no load balancer",
            vec![
                (0, true, true, inside()),
                (5, false, true, inside()),
                (9, false, true, NodeTraffic::Out { since: None }),
            ],
            vec![],
        ),
        (
            "never served",
            vec![(0, false, false, inside()), (9, false, false, out(9))],
            vec![],
        ),
    ] {
        assert_eq!(seconds(&steps), expected, "{what}");
    }
}

#[test]
fn a_node_that_ends_gives_what_was_counted() {
    let services = [service(TrafficPolicy::Local)];
    let mut meter = BlackholeMeter::default();
    let (ready, gone, observation) = (pod(true), pod(false), inside());
    let node = |pod| DrainedNode {
        name: "one",
        is_ready: true,
        pods: vec![pod],
        observation: &observation,
        was_out: false,
    };
    assert_eq!(meter.update(&[node(&ready)], &services, at(0)), []);
    assert_eq!(meter.update(&[node(&gone)], &services, at(4)), []);
    let results = meter.update(&[], &services, at(10));
    assert_eq!(results[0].1[0].lasted, Duration::from_secs(6));
    assert_eq!(meter.update(&[], &services, at(20)), []);
}

#[test]
fn a_new_leader_repeats_no_result() {
    let services = [service(TrafficPolicy::Local)];
    let (ready, observation) = (pod(true), out(0));
    let node = DrainedNode {
        name: "one",
        is_ready: true,
        pods: vec![&ready],
        observation: &observation,
        was_out: true,
    };
    let mut meter = BlackholeMeter::default();
    assert_eq!(meter.update(std::slice::from_ref(&node), &services, at(5)), []);
    assert_eq!(meter.update(&[], &services, at(6)), [], "it is out: nothing is at risk");
}

#[test]
fn a_service_that_does_not_select_its_pods_is_not_measured() {
    let unselected = Service {
        selector: Labels::new(),
        ..service(TrafficPolicy::Cluster)
    };
    let mut meter = BlackholeMeter::default();
    for (second, observation) in [(0, inside()), (9, out(9))] {
        let node = DrainedNode {
            name: "n1",
            is_ready: second == 0,
            pods: Vec::new(),
            observation: &observation,
            was_out: false,
        };
        assert_eq!(meter.update(&[node], [&unselected], at(second)), []);
    }
}

#[test]
fn only_pods_of_the_service_serve_it() {
    let local = service(TrafficPolicy::Local);
    let terminating = PodFacts {
        terminating_until: Some(at(1)),
        ..pod(true)
    };
    for (what, pod, expected) in [
        ("ready", pod(true), true),
        ("terminating and ready", terminating, true),
        ("not ready", pod(false), false),
        (
            "of another namespace",
            PodFacts {
                namespace: "other".to_owned(),
                ..pod(true)
            },
            false,
        ),
        (
            "of another app",
            PodFacts {
                labels: Labels::new(),
                ..pod(true)
            },
            false,
        ),
        (
            "finished",
            PodFacts {
                is_finished: true,
                ..pod(true)
            },
            false,
        ),
    ] {
        assert_eq!(serves(&pod, &local), expected, "{what}");
    }
    let published = Service {
        publishes_not_ready: true,
        ..local
    };
    assert!(serves(&pod(false), &published), "kube-proxy goes on sending");
}
