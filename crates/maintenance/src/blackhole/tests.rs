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
        name: NamespacedName::new("shop", policy.as_str()),
        ..Service::default()
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

fn drained_node<'a>(pods: Vec<&'a PodFacts>, observation: &'a NodeTraffic) -> DrainedNode<'a> {
    DrainedNode {
        name: "one",
        is_ready: true,
        pods,
        observation,
        was_out: false,
    }
}

/// What is Ready in a step.
#[derive(Clone, Copy, PartialEq)]
enum Ready {
    Both,
    /// The node, but not the pod.
    Node,
    /// The pod, but not the node.
    Pod,
    Neither,
}

/// The seconds of each result, for both policies: local, cluster.
fn seconds(steps: &[(u32, Ready, NodeTraffic)]) -> Vec<(u64, Vec<(TrafficPolicy, u64)>)> {
    let services = [service(TrafficPolicy::Local), service(TrafficPolicy::Cluster)];
    let mut meter = BlackholeMeter::default();
    let mut found = Vec::new();
    for (second, ready, observation) in steps {
        let pod = pod(matches!(ready, Ready::Both | Ready::Pod));
        let mut node = drained_node(vec![&pod], observation);
        node.is_ready = matches!(ready, Ready::Both | Ready::Node);
        for (_, results) in meter.update(&[node], &services, at(*second)) {
            let results = results.iter().map(|result| (result.policy, result.lasted.as_secs()));
            found.push((u64::from(*second), results.collect()));
        }
    }
    found
}

#[test]
fn seconds_between_the_last_endpoint_and_the_load_balancer_count() {
    use Ready::{Both, Neither, Node, Pod};
    use TrafficPolicy::{Cluster, Local};
    let both = |second, local, cluster| (second, vec![(Local, local), (Cluster, cluster)]);
    let start = (0, Both, inside());
    let check = |what: &str, steps: &[(u32, Ready, NodeTraffic)], expected: &[_]| {
        assert_eq!(seconds(steps), expected, "{what}");
    };
    let steps = [start.clone(), (5, Both, out(5)), (9, Node, out(5))];
    check("out first", &steps, &[both(5, 0, 0)]);
    let steps = [start.clone(), (5, Node, inside()), (9, Node, out(8))];
    check("pod first", &steps, &[both(9, 3, 0)]);
    let steps = [start.clone(), (9, Node, out(8))];
    check("pod and load balancer seen together", &steps, &[both(9, 0, 0)]);
    let steps = [start.clone(), (5, Pod, inside()), (9, Pod, out(9))];
    check("node first", &steps, &[both(9, 4, 4)]);
    let steps = [
        start.clone(),
        (5, Node, inside()),
        (7, Both, inside()),
        (9, Both, out(9)),
    ];
    check("ready again", &steps, &[both(9, 2, 0)]);
    let lost = [(10, Node, inside()), (13, Node, out(13))];
    let steps = [&[start.clone(), (5, Both, out(5)), (6, Node, out(5))][..], &lost].concat();
    check("a confirmation that is lost", &steps, &[both(5, 0, 0), both(13, 3, 0)]);
    let steps = [start.clone(), (5, Node, missing()), (9, Node, out(7))];
    check("reads that are missing change nothing", &steps, &[both(9, 2, 0)]);
    let steps = [
        start.clone(),
        (5, Both, out(5)),
        (6, Node, missing()),
        (60, Node, out(5)),
    ];
    check("missing reads of a node that is out", &steps, &[both(5, 0, 0)]);
    let steps = [start, (5, Node, inside()), (9, Node, NodeTraffic::Out { since: None })];
    check("in no load balancer", &steps, &[]);
    let steps = [(0, Neither, inside()), (9, Neither, out(9))];
    check("never served", &steps, &[]);
}

#[test]
fn a_node_that_ends_gives_what_was_counted() {
    let services = [service(TrafficPolicy::Local)];
    let mut meter = BlackholeMeter::default();
    let (ready, gone, observation) = (pod(true), pod(false), inside());
    let node = |pod| drained_node(vec![pod], &observation);
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
        was_out: true,
        ..drained_node(vec![&ready], &observation)
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
            is_ready: second == 0,
            ..drained_node(Vec::new(), &observation)
        };
        assert_eq!(meter.update(&[node], [&unselected], at(second)), []);
    }
}

#[test]
fn only_pods_of_the_service_serve_it() {
    let local = service(TrafficPolicy::Local);
    let with = |change: fn(&mut PodFacts)| {
        let mut pod = pod(true);
        change(&mut pod);
        pod
    };
    for (what, pod, expected) in [
        ("ready", pod(true), true),
        ("terminating", with(|pod| pod.terminating_until = Some(at(1))), true),
        ("not ready", pod(false), false),
        (
            "of another namespace",
            with(|pod| pod.namespace = "other".to_owned()),
            false,
        ),
        ("of another app", with(|pod| pod.labels.clear()), false),
        ("finished", with(|pod| pod.is_finished = true), false),
    ] {
        assert_eq!(serves(&pod, &local), expected, "{what}");
    }
    let published = Service {
        publishes_not_ready: true,
        ..local
    };
    assert!(serves(&pod(false), &published), "kube-proxy goes on sending");
}
