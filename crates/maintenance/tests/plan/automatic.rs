//! `maintenance.automatic`: a maintenance for each node that is taken, and for no other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::node::{AUTOSCALER_TAINT, AzureNotice, DRAINING_TAINT, KARPENTER_TAINT, Node, NodeTraffic, Taint};
use headgate_core::settings::IntOrPercent;
use headgate_maintenance::api::names::AUTOMATIC_LABEL;
use headgate_maintenance::api::{NodeMaintenance, PodType, Stage};
use headgate_maintenance::automatic::{AutomaticMaintenances, Cause, is_automatic};
use headgate_maintenance::machine::DeletedMachine;
use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::gate::open;
use crate::world::{World, announce, announce_eviction, in_service};

/// The time of a cause, where it is not the default.
fn time(cause: Cause) -> Option<Duration> {
    (cause == Cause::Shutdown).then_some(Duration::from_secs(40))
}

fn settings(causes: &[Cause]) -> AutomaticMaintenances {
    AutomaticMaintenances {
        causes: causes.iter().map(|cause| (*cause, time(*cause))).collect(),
    }
}

fn world(causes: &[Cause]) -> World {
    let mut world = World::default()
        .nodes(&["one", "two"])
        .pods("one", 2, PodType::Default, 0);
    world.snapshot.automatic = settings(causes);
    world.snapshot.machines = Some(Vec::new());
    for node in &mut world.snapshot.nodes {
        let node = Arc::make_mut(node);
        node.uid = format!("uid-of-{}", node.name);
        node.cluster_api_machine = Some(format!("/of-{}", node.name));
    }
    world
}

/// The Node of this name after the one before it is gone.
fn created_again(name: &str, uid: &str) -> Node {
    Node {
        name: name.to_owned(),
        uid: uid.to_owned(),
        ready: true,
        ..Node::default()
    }
}

fn taint_autoscaler(node: &mut Node) {
    node.taints.push(Taint::new(AUTOSCALER_TAINT, "NoSchedule"));
}

/// A Machine of this node that Cluster API deletes.
fn deleted_machine(node: &str, is_held: bool) -> DeletedMachine {
    DeletedMachine {
        name: format!("of-{node}"),
        node: node.to_owned(),
        is_held,
        ..DeletedMachine::default()
    }
}

/// A node that Azure evicts in 30 s, and what follows from it.
fn evicted() -> World {
    let mut world = world(&Cause::ALL);
    announce_eviction(&mut world, "one");
    world.settle();
    world
}

fn is_given_back(node: &Node) -> bool {
    !node.unschedulable && node.was_unschedulable.is_none() && node.maintenance_taint.is_none()
}

fn automatic(world: &World) -> Vec<&NodeMaintenance> {
    let maintenances = world.snapshot.maintenances.iter();
    maintenances.filter(|one| is_automatic(one)).collect()
}

fn deadline(world: &World) -> Timestamp {
    automatic(world)[0].spec.deadline.as_ref().unwrap().0
}

/// Node one is taken by this.
fn take(world: &mut World, by: &str) {
    let [in_30_s, in_600_s] = [30, 600].map(|seconds| Some(world.after(seconds)));
    let node = world.node("one");
    match by {
        "a spot eviction" => announce(node, AzureNotice::Preempt, in_30_s),
        "one that has started" => announce(node, AzureNotice::Preempt, None),
        "a scale set's notice" => announce(node, AzureNotice::Terminate, in_600_s),
        "kubelet" => node.shutting_down = true,
        "Cluster Autoscaler" => taint_autoscaler(node),
        _ => {
            node.taints.push(Taint::new(KARPENTER_TAINT, "NoSchedule"));
            node.is_deleting = true;
        }
    }
}

#[test]
fn each_cause_has_its_deadline() {
    use Cause::{Autoscaler, Preempt, Shutdown, Terminate};
    for (what, cause, expected, reason) in [
        ("a spot eviction", Preempt, 30, "Azure evicts the VM"),
        ("one that has started", Preempt, 30, "Azure evicts the VM"),
        ("a scale set's notice", Terminate, 600, "the scale set deletes the VM"),
        ("kubelet", Shutdown, 40, "kubelet shuts the node down"),
        (
            "Cluster Autoscaler",
            Autoscaler,
            600,
            "Cluster Autoscaler removes the node",
        ),
        ("Karpenter", Autoscaler, 600, "Karpenter removes the node"),
    ] {
        for causes in [vec![cause], Cause::ALL.to_vec(), Vec::new()] {
            let mut world = world(&causes);
            let start = world.now;
            take(&mut world, what);
            world.settle();
            let created = automatic(&world);
            if causes.is_empty() {
                assert!(created.is_empty(), "{what}");
                continue;
            }
            let [created] = created[..] else { panic!("{what}") };
            assert_eq!(created.metadata.name.as_deref(), Some("automatic-one"), "{what}");
            let label = &created.metadata.labels.as_ref().unwrap()[AUTOMATIC_LABEL];
            assert_eq!(label, cause.as_str(), "{what}");
            let spec = &created.spec;
            assert_eq!((spec.stage, spec.reason.as_str()), (Stage::Drain, reason), "{what}");
            assert_eq!(deadline(&world), start + SignedDuration::from_secs(expected), "{what}");
            let timeout = i64::from(spec.load_balancer.confirmation_timeout_seconds);
            assert_eq!(timeout, expected / 4, "{what}");
            let evacuated = world.evacuated_pods().len();
            assert_eq!(evacuated, 2, "{what}: its nodes are in no load balancer");
            assert!(!world.node("two").unschedulable, "{what}");
        }
        for other in Cause::ALL.into_iter().filter(|other| *other != cause) {
            let mut world = world(&[other]);
            take(&mut world, what);
            world.settle();
            assert!(automatic(&world).is_empty(), "{what} is not {}", other.as_str());
        }
    }
}

#[test]
fn reboots_and_notices_that_ended_take_no_node() {
    for (taint, event_type) in [
        (true, AzureNotice::Reboot),
        (true, AzureNotice::Redeploy),
        (false, AzureNotice::Preempt),
    ] {
        let mut world = world(&Cause::ALL);
        let at = world.after(30);
        announce(world.node("one"), event_type, Some(at));
        if !taint {
            world.node("one").taints.clear();
        }
        world.settle();
        assert!(automatic(&world).is_empty(), "{event_type:?}");
    }
}

#[test]
fn neither_karpenters_plan_nor_somebodys_taint_beside_an_old_notice_takes_a_node() {
    let mut world = world(&Cause::ALL);
    world.node("one").taints.push(Taint::new(KARPENTER_TAINT, "NoSchedule"));
    let past = world.now - SignedDuration::from_hours(100);
    announce(world.node("two"), AzureNotice::Preempt, Some(past));
    world.node("two").notice.as_mut().unwrap().is_tainted = false;
    world.settle();
    assert!(automatic(&world).is_empty());
}

#[test]
fn it_is_completed_where_the_setting_is_switched_off() {
    let mut world = evicted();
    assert!(world.node("one").unschedulable);
    // The right to delete went with the setting.
    world.snapshot.automatic = settings(&[]);
    world.settle();
    assert_eq!(automatic(&world)[0].spec.stage, Stage::Complete);
    assert!(is_given_back(world.node("one")));
    assert!(world.evacuated_pods().is_empty());
}

#[test]
fn it_ends_with_the_notice_or_the_node() {
    for ends in ["withdrawn", "gone", "created again"] {
        let mut world = evicted();
        assert!(world.node("one").unschedulable);
        match ends {
            "withdrawn" => world.node("one").taints.clear(),
            "gone" => world.snapshot.nodes.retain(|node| node.name != "one"),
            _ => *world.node("one") = created_again("one", "another"),
        }
        world.settle();
        assert!(world.snapshot.maintenances.is_empty(), "{ends}");
        if ends != "gone" {
            assert!(world.evacuated_pods().is_empty(), "{ends}");
            assert!(is_given_back(world.node("one")), "{ends}");
        }
    }
}

/// A Node of the same name may be taken before the maintenance of the one before it is gone, which may take as long as somebody's finalizer.
#[test]
fn a_node_that_is_created_again_and_taken_does_not_wait_for_the_maintenance_before() {
    for is_completed in [false, true] {
        let mut world = world(&Cause::ALL);
        announce(world.node("one"), AzureNotice::Preempt, None);
        world.settle();
        world.change("automatic-one", |one| {
            let finalizers = one.metadata.finalizers.get_or_insert_default();
            finalizers.push("example.com/other".to_owned());
        });
        let mut fresh = created_again("one", "another");
        fresh.cluster_api_machine = Some("/of-one".to_owned());
        announce(&mut fresh, AzureNotice::Preempt, None);
        *world.node("one") = fresh;
        world.observe("one", in_service());
        world.snapshot.machines = Some(vec![deleted_machine("one", true)]);
        if is_completed {
            world.set_stage("automatic-one", Stage::Complete);
        }
        world.settle();
        assert!(world.node("one").unschedulable && world.node("one").maintenance_taint.is_some());
        assert_eq!(world.maintenance("automatic-one-another").spec.stage, Stage::Drain);
        let old = &world.maintenance("automatic-one").metadata;
        assert!(old.deletion_timestamp.is_some());
        assert_eq!(old.finalizers, Some(vec!["example.com/other".to_owned()]));
        assert_eq!(world.condition("automatic-one", "Progressing"), ("False", "Completed"));
        let machines = world.snapshot.machines.as_ref().unwrap();
        assert!(machines[0].is_held, "its node is in service: {is_completed}");
    }
}

/// A person's maintenance may have the name that headgate would give its own.
#[test]
fn somebody_elses_maintenance_of_its_name_is_left_alone() {
    let mut world = world(&Cause::ALL);
    world.maintain("automatic-one", Stage::Idle, &["one"], &[]).settle();
    let theirs = world.maintenance("automatic-one").clone();
    announce_eviction(&mut world, "one");
    world.settle();
    let created: Vec<_> = automatic(&world)
        .iter()
        .map(|one| one.metadata.name.as_deref())
        .collect();
    assert_eq!(created, [Some("automatic-one-uid-of-o")]);
    assert_eq!(world.evacuated_pods().len(), 2, "the node is drained all the same");
    assert_eq!(world.maintenance("automatic-one").spec, theirs.spec);
    world.node("one").taints.clear();
    world.settle();
    assert!(automatic(&world).is_empty());
    assert_eq!(world.maintenance("automatic-one").spec, theirs.spec);
    assert_eq!(world.maintenance("automatic-one").metadata, theirs.metadata);
}

/// A leader that cannot decode the first one creates a second.
#[test]
fn both_maintenances_of_a_node_end_with_the_cause() {
    let mut world = world(&Cause::ALL);
    announce(world.node("one"), AzureNotice::Preempt, None);
    world.settle();
    let mut second = automatic(&world)[0].clone();
    second.metadata.name = Some("automatic-one-uid-of-o".to_owned());
    second.metadata.uid = Some("uid-of-the-second".to_owned());
    world.snapshot.maintenances.push(second);
    world.settle();
    world.node("one").taints.clear();
    world.settle();
    assert!(automatic(&world).is_empty() && !world.node("one").unschedulable);
}

#[test]
fn a_node_that_was_shut_down_stays_out_until_it_is_back() {
    let mut world = world(&Cause::ALL);
    (world.node("one").shutting_down, world.node("one").ready) = (true, false);
    world.settle();
    assert_eq!(automatic(&world).len(), 1);
    // kubelet is gone, and its last words with it.
    world.node("one").shutting_down = false;
    world.settle();
    assert_eq!(automatic(&world).len(), 1);
    assert!(world.node("one").unschedulable);
    world.node("one").ready = true;
    world.settle();
    assert!(automatic(&world).is_empty() && !world.node("one").unschedulable);
}

#[test]
fn the_deadline_follows_the_announcement() {
    let mut world = world(&Cause::ALL);
    let start = world.now;
    let after = |seconds| start + SignedDuration::from_secs(seconds);
    let terminated_at = |world: &mut World, at| {
        announce(world.node("one"), AzureNotice::Terminate, Some(at));
        world.settle();
    };
    taint_autoscaler(world.node("one"));
    world.settle();
    assert_eq!(deadline(&world), after(600));
    for (not_before, expected) in [(300, 300), (100, 100), (200, 100)] {
        terminated_at(&mut world, after(not_before));
        assert_eq!(deadline(&world), after(expected), "the earliest counts");
    }
    world.node("one").taints.retain(|taint| taint.key == DRAINING_TAINT);
    world.settle();
    assert_eq!(deadline(&world), after(200), "only the announced one is left");
    let half = SignedDuration::from_millis(500);
    terminated_at(&mut world, after(199) + half);
    assert_eq!(
        deadline(&world),
        after(199),
        "whole seconds are kept, and nothing is due again"
    );
    terminated_at(&mut world, after(200));
    // Somebody ends it: it stays so while the node is taken.
    world.set_stage("automatic-one", Stage::Complete);
    terminated_at(&mut world, after(50));
    assert!(!world.node("one").unschedulable);
    assert_eq!(deadline(&world), after(200));
    world.node("one").taints.clear();
    world.settle();
    assert!(world.snapshot.maintenances.is_empty());
}

#[test]
fn maintenances_of_others_are_left_alone() {
    let mut world = world(&Cause::ALL);
    world.maintain("automatic-two", Stage::Cordon, &["two"], &[]).settle();
    assert!(world.find("automatic-two").is_some(), "it has neither label nor owner");
    announce_eviction(&mut world, "one");
    world.maintain("kernel", Stage::Drain, &["one", "two"], &[]).settle();
    assert_eq!(automatic(&world).len(), 1);
    world.node("one").taints.clear();
    world.settle();
    assert!(automatic(&world).is_empty());
    assert!(world.find("kernel").is_some() && world.node("one").unschedulable);
}

#[test]
fn a_node_that_is_taken_waits_for_no_place_and_counts() {
    let mut world = world(&Cause::ALL);
    world.snapshot.max_concurrent_nodes = Some(IntOrPercent::Int(1));
    world.maintain("kernel", Stage::Drain, &["two"], &[]).settle();
    taint_autoscaler(world.node("one"));
    world.settle();
    assert!(world.node("one").unschedulable && world.node("two").unschedulable);
    world.delete("kernel").settle();
    world.maintain("next", Stage::Drain, &["two"], &[]).settle();
    assert!(!world.node("two").unschedulable, "the place is taken");
    world.remove_node("one");
    world.snapshot.pods.clear();
    world.snapshot.evacuations.clear();
    world.settle();
    assert!(world.node("two").unschedulable);
}

#[test]
fn a_machine_is_held_until_its_node_is_out() {
    let machines = |are_held: [bool; 3]| {
        let machines = ["one", "", "gone"].into_iter().zip(are_held);
        Some(
            machines
                .map(|(node, is_held)| deleted_machine(node, is_held))
                .collect::<Vec<_>>(),
        )
    };
    let mut world = world(&[Cause::Machine]);
    world.observe("one", in_service());
    // Machines without a Node wait for nothing.
    world.snapshot.machines = machines([true; 3]);
    world.settle();
    assert_eq!(world.snapshot.machines, machines([true, false, false]));
    assert_eq!(automatic(&world)[0].spec.reason, "Cluster API deletes the Machine");
    assert!(world.node("one").unschedulable && !world.node("two").unschedulable);
    world.observe("one", NodeTraffic::Out { since: Some(world.now) });
    world.settle();
    assert_eq!(
        world.snapshot.machines,
        machines([true, false, false]),
        "connections drain"
    );
    // A new leader has not listed them yet.
    let listed = world.snapshot.machines.take();
    world.settle();
    assert_eq!(automatic(&world).len(), 1);
    world.snapshot.machines = listed;
    world.pass(30);
    assert_eq!(world.snapshot.machines, machines([false; 3]));
    let is_tainted = world.node("one").maintenance_taint.is_some();
    assert!(is_tainted, "it stays out until it is gone");
    world.snapshot.machines = Some(Vec::new());
    world.settle();
    assert!(automatic(&world).is_empty() && !world.node("one").unschedulable);
}

/// A quarter of the 10 min while reads show the node in service; 30 s, and 60 s more for connections, once they show it out.
#[test]
fn a_machine_is_released_at_the_bounds_of_its_gate() {
    for (is_out, bound) in [(false, 150), (true, 90)] {
        let mut world = world(&[Cause::Machine]);
        let since = Some(world.now);
        let traffic = if is_out {
            NodeTraffic::Out { since }
        } else {
            in_service()
        };
        world.observe("one", traffic);
        world.node("one").connections = Some(open(9));
        world.snapshot.machines = Some(vec![deleted_machine("one", true)]);
        world.settle();
        for (seconds, is_held) in [(bound - 1, true), (1, false)] {
            world.pass(seconds);
            let machines = Some(vec![deleted_machine("one", is_held)]);
            assert_eq!(world.snapshot.machines, machines, "{is_out}, {bound} s");
        }
    }
}

/// The label has the cause that came first, and a later one may be all that is left.
#[test]
fn machines_that_are_not_listed_keep_what_a_machine_may_hold() {
    for (causes, has_machine, is_kept) in [
        (&[Cause::Autoscaler, Cause::Machine][..], true, true),
        // Without Cluster API none is ever listed.
        (&[Cause::Autoscaler, Cause::Machine], false, false),
        (&[Cause::Autoscaler], true, false),
        // Its node is gone soon.
        (&[Cause::Preempt, Cause::Machine], true, false),
    ] {
        let mut world = world(causes);
        if !has_machine {
            world.node("one").cluster_api_machine = None;
        }
        if causes.contains(&Cause::Autoscaler) {
            taint_autoscaler(world.node("one"));
        } else {
            announce(world.node("one"), AzureNotice::Preempt, None);
        }
        world.settle();
        assert_eq!(automatic(&world).len(), 1);
        world.snapshot.machines = Some(vec![deleted_machine("one", false)]);
        world.settle();
        // Cluster Autoscaler removes its taints when it starts.
        let is_of_others = |taint: &Taint| ![AUTOSCALER_TAINT, DRAINING_TAINT].contains(&taint.key.as_str());
        world.node("one").taints.retain(is_of_others);
        let listed = world.snapshot.machines.take();
        world.settle();
        assert_eq!(automatic(&world).len(), usize::from(is_kept), "{causes:?}");
        assert_eq!(world.node("one").unschedulable, is_kept, "{causes:?}");
        world.snapshot.machines = listed.filter(|_| is_kept);
        world.settle();
        assert_eq!(automatic(&world).len(), usize::from(is_kept), "{causes:?}");
        world.snapshot.machines = Some(Vec::new());
        world.settle();
        assert!(automatic(&world).is_empty() && !world.node("one").unschedulable);
    }
}

#[test]
fn a_machine_of_another_cluster_takes_no_node_and_waits_for_none() {
    for machine in [Some("other/of-one"), Some("/of-two"), None] {
        let mut world = world(&[Cause::Machine]);
        world.node("one").cluster_api_machine = machine.map(str::to_owned);
        world.snapshot.machines = Some(vec![deleted_machine("one", true)]);
        world.settle();
        let is_taken = !automatic(&world).is_empty() || world.node("one").unschedulable;
        assert!(!is_taken, "{machine:?}");
        assert!(world.snapshot.machines.iter().flatten().all(|machine| !machine.is_held));
    }
}

#[test]
fn a_machine_is_released_where_its_maintenance_is_completed_and_not_where_it_is_deleted() {
    let machines = |are_held: [bool; 2]| {
        let machines = ["one", "two"].into_iter().zip(are_held);
        Some(
            machines
                .map(|(node, is_held)| deleted_machine(node, is_held))
                .collect::<Vec<_>>(),
        )
    };
    for (is_deleted, expected) in [(false, [false, true]), (true, [true, true])] {
        let mut world = world(&[Cause::Machine]);
        for node in ["one", "two"] {
            world.observe(node, in_service());
        }
        world.snapshot.machines = machines([true, true]);
        world.settle();
        assert_eq!(world.snapshot.machines, machines([true, true]));
        if is_deleted {
            world.delete("automatic-one");
        } else {
            world.set_stage("automatic-one", Stage::Complete);
        }
        world.settle();
        assert_eq!(world.snapshot.machines, machines(expected), "{is_deleted}");
        let is_tainted = world.node("one").maintenance_taint.is_some();
        assert_eq!(is_tainted, is_deleted, "it is created again");
    }
}

/// What happens to one of two nodes.
#[derive(Clone, Debug)]
enum Happening {
    Announced(AzureNotice, Option<i64>),
    Autoscaled,
    ShuttingDown(bool),
    Withdrawn,
    Recreated,
    Replaced,
    Passed(i64),
}

fn happenings() -> impl Strategy<Value = (bool, Happening)> {
    let notices = prop::sample::select(AzureNotice::ALL.to_vec());
    let happening = prop_oneof![
        (notices, prop::option::of(-20..700_i64)).prop_map(|(notice, at)| Happening::Announced(notice, at)),
        Just(Happening::Autoscaled),
        any::<bool>().prop_map(Happening::ShuttingDown),
        Just(Happening::Withdrawn),
        Just(Happening::Recreated),
        Just(Happening::Replaced),
        (1..200_i64).prop_map(Happening::Passed),
    ];
    (any::<bool>(), happening)
}

proptest! {
    #[test]
    fn one_maintenance_for_each_taken_node_also_where_leaders_die(
        then in vec(happenings(), 1..14), at in vec(0..5_usize, 8), chosen in prop::sample::subsequence(Cause::ALL.to_vec(), 0..4),
        of_somebody in prop::sample::select(vec!["kernel", "automatic-two"])
    ) {
        let mut world = world(&chosen);
        world.maintain(of_somebody, Stage::Cordon, &["two"], &[]);
        let (mut made, mut at) = (0, at.iter().cycle());
        for (is_one, happening) in then {
            let now = world.now;
            let name = if is_one { "one" } else { "two" };
            match happening {
                Happening::Announced(notice, after) => {
                    let not_before = after.map(|after| now + SignedDuration::from_secs(after));
                    let node = world.node(name);
                    node.taints.retain(|taint| taint.key != DRAINING_TAINT);
                    announce(node, notice, not_before);
                }
                Happening::Autoscaled => taint_autoscaler(world.node(name)),
                Happening::ShuttingDown(is_so) => world.node(name).shutting_down = is_so,
                Happening::Withdrawn => world.node(name).taints.clear(),
                Happening::Recreated | Happening::Replaced => {
                    made += 1;
                    *world.node(name) = created_again(name, &format!("uid-{made}"));
                    if matches!(happening, Happening::Replaced) {
                        taint_autoscaler(world.node(name));
                    }
                }
                Happening::Passed(seconds) => world.now += SignedDuration::from_secs(seconds),
            }
            // A leader dies after so many actions.
            for action in world.plan().actions.into_iter().take(*at.next().unwrap()) {
                world.apply(action);
            }
            world.settle();
            let settings = world.snapshot.automatic.clone();
            let taken: BTreeSet<_> = world.snapshot.nodes.iter().filter(|node| settings.causes_of(node, &[]).next().is_some())
                .map(|node| (node.name.clone(), node.uid.clone())).collect();
            let kept: Vec<_> = automatic(&world).iter().map(|one| {
                let owner = &one.metadata.owner_references.as_ref().unwrap()[0];
                (owner.name.clone(), owner.uid.clone())
            }).collect();
            prop_assert_eq!(kept.iter().cloned().collect::<BTreeSet<_>>(), taken.clone());
            prop_assert_eq!(kept.len(), taken.len());
            for one in automatic(&world) {
                let deadline = one.spec.deadline.as_ref().unwrap().0;
                let owner = &one.metadata.owner_references.as_ref().unwrap()[0];
                let node = world.snapshot.nodes.iter().find(|node| node.uid == owner.uid).unwrap();
                let is_final = node.present_notice().is_some_and(|notice| {
                    let cause = if notice.event_type == AzureNotice::Preempt { Cause::Preempt } else { Cause::Terminate };
                    notice.event_type.is_final() && chosen.contains(&cause)
                });
                if let Some(announced) = node.eviction_deadline().filter(|_| is_final) {
                    prop_assert!(deadline <= announced, "never longer than the notice");
                }
            }
            let one_is_taken = taken.iter().any(|(name, _)| name == "one");
            prop_assert_eq!(world.node("one").unschedulable, one_is_taken);
            prop_assert!(world.node("two").unschedulable, "by the maintenance of somebody");
        }
    }
}
